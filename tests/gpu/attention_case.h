/* SPDX-License-Identifier: Apache-2.0 */
/* Attention problems on the GPU and their comparison with the dense reference in double: what the suites of
 * the op and of its chunks share. */
#ifndef FX_TESTS_GPU_ATTENTION_CASE_H
#define FX_TESTS_GPU_ATTENTION_CASE_H

#include "attention/cpu/flex_attention_cpu.h"
#include "attention/cuda/flex_attention_cuda.h"
#include "tests/core/flex_reference.h"
#include "tests/gpu/arch_case.h"

typedef struct variant_case {
  const char *name, *text;
  int T, H, K;
  int q_from;     /* queries are positions q_from..T of the sequence */
  bool runs, two; /* use run lists; limits of two intervals in place of the expression */
} variant_case;

static const int g_dims[] = {64, 96, 128, 256};
static const fx_dtype g_dtypes[] = {FX_F32, FX_BF16, FX_F16};

enum { OUT, LSE, DQ, DK, DV, DSINK, DTABLE, WHATS };
static const char *const g_whats[WHATS] = {"out", "lse", "dq", "dk", "dv", "dsink", "dtable"};
static double g_worst[3][WHATS];
static fx_device *g_device;

/* ---- memory ---- */

typedef struct arena {
  void *block[64];
  int count;
} arena;

static inline void *fresh(arena *a, size_t bytes) {
  void *memory = NULL;
  if (!CHECK_OK(fx_device_alloc(g_device, bytes, &memory))) return NULL;
  CHECK_OK(fx_device_fill(g_device, FX_LANE_COMPUTE, memory, 0xFF, bytes));
  return a->block[a->count++] = memory;
}
static inline void *upload(arena *a, const void *data, size_t bytes) {
  void *memory = fresh(a, bytes);
  if (memory) CHECK_OK(fx_device_copy(g_device, FX_LANE_COMPUTE, memory, data, bytes));
  CHECK_OK(fx_device_sync(g_device));
  return memory;
}
static inline void *download(const void *memory, size_t bytes) {
  void *data = malloc(bytes);
  CHECK_OK(fx_device_copy(g_device, FX_LANE_COMPUTE, data, memory, bytes));
  CHECK_OK(fx_device_sync(g_device));
  return data;
}
static inline void arena_free(arena *a) {
  for (int i = 0; i < a->count; i++) fx_device_release(g_device, a->block[i]);
}

/* ---- types ---- */

__extension__ typedef _Float16 half;

static inline void encode(fx_dtype dtype, const float *from, void *to, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (dtype == FX_F32)
      ((float *)to)[i] = from[i];
    else if (dtype == FX_BF16)
      ((uint16_t *)to)[i] = fx_f32_to_bf16(from[i]);
    else
      ((half *)to)[i] = (half)from[i];
}
static inline void decode(fx_dtype dtype, const void *from, float *to, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    to[i] = dtype == FX_F32    ? ((const float *)from)[i]
            : dtype == FX_BF16 ? fx_bf16_to_f32(((const uint16_t *)from)[i])
                               : (float)((const half *)from)[i];
}

/* ---- a problem ---- */

typedef struct problem {
  const variant_case *of;
  flex_case c;
  fx_dtype dtype;
  int T_q;
  float *array[7];
  int32_t *ints;
  fx_attention_setup *setup;
  void *field[FX_ATTENTION_MAX_FIELDS];
} problem;

static inline float *numbers(uint64_t seed, int64_t count, float sigma, fx_dtype dtype) {
  float *x = calloc((size_t)count, sizeof *x);
  void *rounded = calloc((size_t)count, sizeof *x);
  fx_fill_normal(x, count, seed, sigma);
  encode(dtype, x, rounded, count);
  decode(dtype, rounded, x, count);
  free(rounded);
  return x;
}

static inline void documents(problem *p) {
  int B = p->c.B, T = p->c.T;
  int32_t *start = p->ints, *end = p->ints + B * T, *tokens = p->ints + 2 * B * T;
  for (int b = 0; b < B; b++)
    for (int t = 0, d = 0; t < T; d++) {
      int stop = t + 1 + (d * 37 + b * 11 + 20) % 83;
      if (stop > T) stop = T;
      for (int first = t; t < stop; t++) {
        start[b * T + t] = first, end[b * T + t] = stop;
        tokens[b * T + t] = (t * 7 + b) % 5 == 0 ? 10 : 1;
      }
    }
  p->c.doc_start = start, p->c.doc_end = end, p->c.tokens = tokens;
}

static inline void fill_fields(problem *p) {
  void *scratch = NULL;
  int T = p->c.T, count = p->c.B * T;
  for (int i = 0; i < p->setup->num_fields; i++)
    p->field[i] = aligned_alloc(FX_ALIGN, fx_align_up((size_t)p->setup->field[i].words * 4, FX_ALIGN));
  CHECK_OK(fx_alloc_aligned(&scratch, p->setup->scratch_bytes + FX_ALIGN));
  int32_t *positions = calloc((size_t)count, sizeof *positions);
  for (int i = 0; i < count; i++) positions[i] = i % T - p->c.doc_start[i];
  fx_attention_batch batch = {p->c.tokens, positions, p->c.doc_start, p->c.doc_end};
  CHECK_OK(fx_attention_fill(p->setup, &batch, p->field, scratch));
  free(scratch), free(positions);
}

static inline bool problem_create(const variant_case *of, int D, fx_dtype dtype, problem *p) {
  *p = (problem){.of = of, .dtype = dtype, .T_q = of->T - of->q_from};
  int B = 2, T = of->T, H = of->H, K = of->K;
  int64_t q = (int64_t)B * T * H * D, k = (int64_t)B * T * K * D;
  float **a = p->array;
  uint64_t seed = fx_hash64_text(of->name) + (uint64_t)D;
  a[0] = numbers(seed, q, 2.0f, dtype), a[1] = numbers(seed + 1, k, 1.0f, dtype);
  a[2] = numbers(seed + 2, k, 1.0f, dtype), a[3] = numbers(seed + 3, q, 1.0f, dtype);
  a[4] = numbers(seed + 4, (int64_t)B * H * T, 1.0f, FX_F32), a[5] = numbers(seed + 5, H, 1.0f, FX_F32);
  a[6] = numbers(seed + 6, H * BUCKETS, 1.0f, FX_F32);
  for (int64_t i = 0; i < q; i++)
    if (i / ((int64_t)H * D) % T < of->q_from) a[3][i] = 0;
  for (int i = 0; i < B * H * T; i++)
    if (i % T < of->q_from) a[4][i] = 0;
  p->ints = calloc((size_t)(3 * B * T), sizeof *p->ints);
  p->c = (flex_case){B, T, H, K, D, a[0], a[1], a[2], a[3], a[4], a[5], a[6], NULL, NULL, NULL};
  documents(p);
  p->setup = flex_setup_for(FX_BACKEND_CUDA, &p->c, of->name, of->text, "none");
  if (p->setup) fill_fields(p);
  return p->setup != NULL;
}

static inline void problem_free(problem *p) {
  for (int i = 0; p->setup && i < p->setup->num_fields; i++) free(p->field[i]);
  fx_attention_setup_destroy(p->setup);
  for (int i = 0; i < 7; i++) free(p->array[i]);
  free(p->ints);
}

/* ---- limits ---- */

/* Up to two intervals of every row of a mask that depends on q and kv alone. */
static inline void two_intervals(const problem *p, fx_limits *limits) {
  enum { MOST = 300 };
  const fx_variant *v = p->setup->kind[0].flex->variant;
  int32_t q[MOST], kv[MOST];
  double seen[MOST], *value[1] = {seen}, zero[MOST] = {0};
  for (int t = 0; t < p->T_q; t++) {
    for (int n = 0; n < p->c.T; n++) q[n] = t + p->of->q_from, kv[n] = n;
    CHECK_OK(fx_reference_run(v->pool, &v->mask, 1, &(fx_interp_inputs){NULL, NULL}, 0, p->c.T, q, kv, zero,
                              value, NULL));
    int r = -1;
    for (int n = 0; n < p->c.T; n++) {
      if (seen[n] == 0) continue;
      if (n == 0 || seen[n - 1] == 0) limits->lo[++r * limits->Tpad + t] = n;
      limits->hi[r * limits->Tpad + t] = n + 1;
    }
    CHECK(r < 2);
  }
}

/* The op's limits for the queries that are here; NULL: none. The caller frees them. */
static inline int32_t *make_limits(const problem *p, fx_attention_attr *attr, size_t *bytes) {
  const fx_attention_kind *kind = &p->setup->kind[0];
  if (kind->limits < 0 && !p->of->two) return NULL;
  if (p->of->two) attr->R = 2, attr->Bm = attr->Hm = 1, attr->ask_mask = 0, attr->T_total = p->c.T;
  fx_limits here = {
      .R = attr->R, .Bm = attr->Bm, .Hm = attr->Hm, .T = p->T_q, .Tpad = fx_attention_tpad(p->T_q)};
  *bytes = fx_limits_bytes(&here);
  int32_t *blob = calloc(1, *bytes);
  fx_limits_bind(&here, blob);
  if (p->of->two) {
    two_intervals(p, &here);
    return blob;
  }
  fx_limits all = here;
  all.T = p->c.T, all.Tpad = fx_attention_tpad(p->c.T);
  fx_limits_bind(&all, p->field[kind->limits]);
  for (int list = 0; list < attr->R * attr->Bm * fx_limits_heads(&here); list++)
    for (int t = 0; t < p->T_q; t++) {
      here.lo[list * here.Tpad + t] = all.lo[list * all.Tpad + p->of->q_from + t];
      here.hi[list * here.Tpad + t] = all.hi[list * all.Tpad + p->of->q_from + t];
    }
  return blob;
}

/* ---- the op's arguments ---- */

/* The op's inputs in its order, then those of the gradient; index 0 of `out` is the forward's. */
enum { IN_LIMITS = 3, IN_RUNS, IN_Q_BASE, IN_KV_BASE, IN_BUFFERS, IN_SINKS, IN_TABLE, IN_OWN = IN_TABLE + 4 };

typedef struct call {
  fx_kernel_args args;
  fx_tensor in[FX_MAX_IN], out[FX_MAX_OUT];
  union {
    fx_attention_attr attention; /* begins the others */
    fx_attention_partial_attr partial;
    fx_attention_add_attr add;
  } attr;
  fx_kernel_fn kernel;
} call;

static inline fx_status run_call(void *arg, void *stream) {
  call *c = arg;
  c->args.stream = stream;
  return c->kernel(&c->args);
}
static inline void launch(call *c, fx_kernel_fn kernel) {
  c->kernel = kernel;
  c->args.attr = &c->attr;
  c->args.gemm = g_device->gemm;
  CHECK_OK(fx_device_launch(g_device, FX_LANE_COMPUTE, run_call, c));
  CHECK_OK(fx_device_sync(g_device));
}
static inline void set_in(call *c, int i, void *data, fx_type type) {
  c->in[i] = (fx_tensor){data, type};
  c->args.in[i] = &c->in[i];
}
static inline void set_out(call *c, int i, void *data, fx_type type) {
  c->out[i] = (fx_tensor){data, type};
  c->args.out[i] = &c->out[i];
}

/* q, k, v or their gradients inside the fused buffer: part 0, 1, 2 from position `from` on. */
static inline void *part_of(const problem *p, void *fused, int part, int from, int count, fx_type *type) {
  int H = p->c.H, K = p->c.K, D = p->c.D, width = (H + 2 * K) * D;
  int64_t at = (int64_t)from * width + (part == 0 ? 0 : (H + (part - 1) * K) * D);
  *type = fx_type_of(p->dtype, 4, (int64_t[]){p->c.B, count, part == 0 ? H : K, D});
  type->stride[0] = (int64_t)p->c.T * width, type->stride[1] = width, type->stride[2] = D,
  type->stride[3] = 1;
  return (char *)fused + at * (int64_t)fx_dtype_bytes(p->dtype);
}

static inline void set_views(const problem *p, call *c, void *fused, bool outputs) {
  for (int part = 0; part < 3; part++) {
    fx_type type;
    int from = part == 0 ? p->of->q_from : 0;
    void *data = part_of(p, fused, part, from, p->c.T - from, &type);
    if (outputs)
      set_out(c, part, data, type);
    else
      set_in(c, part, data, type);
  }
}

static inline void *fused_inputs(const problem *p, arena *a) {
  const flex_case *c = &p->c;
  int width = (c->H + 2 * c->K) * c->D;
  int64_t rows = (int64_t)c->B * c->T;
  float *wide = malloc((size_t)(rows * width) * sizeof *wide);
  void *narrow = malloc((size_t)(rows * width) * sizeof *wide);
  for (int64_t row = 0; row < rows; row++) {
    float *to = wide + row * width;
    memcpy(to, c->q + row * c->H * c->D, (size_t)(c->H * c->D) * sizeof *to);
    memcpy(to + c->H * c->D, c->k + row * c->K * c->D, (size_t)(c->K * c->D) * sizeof *to);
    memcpy(to + (c->H + c->K) * c->D, c->v + row * c->K * c->D, (size_t)(c->K * c->D) * sizeof *to);
  }
  encode(p->dtype, wide, narrow, rows * width);
  void *memory = upload(a, narrow, (size_t)(rows * width) * fx_dtype_bytes(p->dtype));
  free(wide), free(narrow);
  return memory;
}

static inline void set_mask(const problem *p, arena *a, call *c, bool backward) {
  const fx_attention_kind *kind = &p->setup->kind[0];
  fx_attention_attr *attr = &c->attr.attention;
  *attr = kind->attr;
  attr->scale = 1.0f / sqrtf((float)p->c.D);
  size_t bytes = 0;
  int32_t *limits = make_limits(p, attr, &bytes);
  if (limits) set_in(c, IN_LIMITS, upload(a, limits, bytes), fx_type_1d(FX_I32, (int64_t)bytes / 4));
  free(limits);
  if (p->of->runs && kind->runs >= 0) {
    int64_t words = p->setup->field[kind->runs + backward].words;
    set_in(c, IN_RUNS, upload(a, p->field[kind->runs + backward], (size_t)words * 4),
           fx_type_1d(FX_I32, words));
  }
  if (p->of->q_from > 0) {
    int32_t bases[8];
    for (int i = 0; i < 8; i++) bases[i] = p->of->q_from + 128 * i;
    set_in(c, IN_Q_BASE, upload(a, bases, sizeof bases), fx_type_1d(FX_I32, (p->T_q + 127) / 128));
  }
  if (kind->buffers >= 0) {
    int64_t words = p->setup->field[kind->buffers].words;
    set_in(c, IN_BUFFERS, upload(a, p->field[kind->buffers], (size_t)words * 4), fx_type_1d(FX_I32, words));
  }
  const fx_variant *v = kind->flex->variant;
  if (v->sinks) set_in(c, IN_SINKS, upload(a, p->c.sink, (size_t)p->c.H * 4), fx_type_1d(FX_F32, p->c.H));
  int64_t floats = (int64_t)p->c.H * BUCKETS;
  if (v->num_tables)
    set_in(c, IN_TABLE, upload(a, p->c.table, (size_t)floats * 4), fx_type_1d(FX_F32, floats));
}

/* ---- comparisons ---- */

/* Rows of queries as the op takes them: those from q_from on of [B][T][...] with `width` floats each. */
static inline void *upload_rows(const problem *p, arena *a, const float *from, int64_t width) {
  int64_t count = (int64_t)p->T_q * width;
  size_t element = fx_dtype_bytes(p->dtype);
  unsigned char *rows = malloc((size_t)(p->c.B * count) * element);
  for (int b = 0; b < p->c.B; b++)
    encode(p->dtype, from + ((int64_t)b * p->c.T + p->of->q_from) * width,
           rows + (size_t)(b * count) * element, count);
  void *memory = upload(a, rows, (size_t)(p->c.B * count) * element);
  free(rows);
  return memory;
}

static inline void *upload_dlse(const problem *p, arena *a) {
  int Tpad = fx_attention_tpad(p->T_q), heads = p->c.B * p->c.H;
  float *dlse = malloc((size_t)(heads * Tpad) * sizeof *dlse);
  for (int i = 0; i < heads * Tpad; i++)
    dlse[i] = i % Tpad < p->T_q ? p->c.dlse[i / Tpad * p->c.T + p->of->q_from + i % Tpad] : NAN;
  void *memory = upload(a, dlse, (size_t)(heads * Tpad) * sizeof *dlse);
  free(dlse);
  return memory;
}

/* With a single key dS is what remains of dP - delta, which cancel. */
static double bound_of(const problem *p, int what, double highest) {
  double room = p->c.T == 1 ? 8 : 1;
  if (p->dtype == FX_F32) return room * (what == OUT ? 1 : what < DSINK ? 5 : 20) * 4e-7 * (4 + highest);
  double roundoff = p->dtype == FX_BF16 ? 0x1p-8 : 0x1p-11;
  return room * (what == OUT ? 1.5 : 4) * roundoff;
}

static inline void compare(const problem *p, int what, const float *got, const double *want, int64_t count,
                           double highest) {
  double error = 0, norm = 0, bound = bound_of(p, what, highest);
  for (int64_t i = 0; i < count; i++) {
    error += pow((double)got[i] - want[i], 2);
    norm += want[i] * want[i];
  }
  double relative = norm > 0 ? sqrt(error / norm) : sqrt(error);
  int type = p->dtype == FX_F32 ? 0 : p->dtype == FX_BF16 ? 1 : 2;
  if (!(relative <= g_worst[type][what])) g_worst[type][what] = relative;
  CHECK_MSG(relative <= bound, "%s, D %d, %s: %s is off by %.3g, %.3g is allowed", p->of->name, p->c.D,
            fx_dtype_name(p->dtype), g_whats[what], relative, bound);
}

/* A part of [B][rows][width] from the bytes of a tensor of `row` elements a row. */
static inline void compare_part(const problem *p, int what, const unsigned char *bytes, int rows, int from,
                                int row, int column, int width, const double *want, double highest) {
  int B = p->c.B, T = p->c.T, count = T - from;
  size_t element = fx_dtype_bytes(p->dtype);
  float *got = malloc((size_t)(B * count * width) * sizeof *got);
  double *part = malloc((size_t)(B * count * width) * sizeof *part);
  for (int i = 0; i < B * count; i++) {
    int64_t b = i / count, t = i % count, first = rows == T ? from : 0;
    decode(p->dtype, bytes + (size_t)((b * rows + first + t) * row + column) * element,
           got + (int64_t)i * width, width);
    memcpy(part + (int64_t)i * width, want + (b * T + from + t) * width, (size_t)width * sizeof *part);
  }
  compare(p, what, got, part, (int64_t)B * count * width, highest);
  free(got), free(part);
}

static inline void compare_lse(const problem *p, const float *lse, const double *want, double highest) {
  int Tpad = fx_attention_tpad(p->T_q), wrong = 0;
  double most = p->dtype == FX_F32 ? 1e-6 * (4 + highest) : 2e-6 * (4 + highest);
  for (int i = 0; i < p->c.B * p->c.H * Tpad; i++) {
    double expected = i % Tpad < p->T_q ? want[i / Tpad * p->c.T + p->of->q_from + i % Tpad] : -INFINITY;
    wrong += isinf(expected) ? (double)lse[i] != expected : !(fabs((double)lse[i] - expected) <= most);
  }
  CHECK_MSG(wrong == 0, "%s, D %d, %s: %d wrong lse", p->of->name, p->c.D, fx_dtype_name(p->dtype), wrong);
}

static inline void worst(void) {
  for (int t = 0; t < 3; t++) {
    printf("\n    worst %-8s", fx_dtype_name(g_dtypes[t]));
    for (int w = 0; w < WHATS; w++)
      if (w != LSE) printf(" %s %.2e", g_whats[w], g_worst[t][w]);
  }
  printf(" ");
}

static inline void architecture(void) {
  arch_check(g_device);
}

static inline int attention_case_main(const char *name, const fx_test *tests, int count) {
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  if (fx_device_create_cuda(0, &g_device) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  int code = fx_test_main(name, tests, count);
  fx_device_destroy(g_device);
  return code;
}

#endif
