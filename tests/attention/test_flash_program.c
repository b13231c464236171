/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU kernels around a variant's functions, which are written by hand here: masks by bits, scores with
 * slopes, learnable tables, sinks, bf16 storage, blocks at any position; against a dense reference in double.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cpu/flash_bwd.h"
#include "attention/cpu/flash_fwd.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

enum { B = 2, H = 4, K = 2, D = 40, REACH = 9, BUCKETS = 2 * REACH + 1, MOST = 400 };
static const double CAP = 3.0;

static void *room(size_t bytes) { /* zeroed */
  void *memory = aligned_alloc(FX_ALIGN, fx_align_up(bytes, FX_ALIGN));
  if (!memory) abort();
  return memset(memory, 0, bytes);
}

typedef struct settings {
  const char *name;
  int T_q, T_kv;
  bool mask, cap, table, sinks, runs, moved, bf16, dlse;
} settings;

/* Every third key up to the query. */
static bool visible(const settings *s, int q, int kv) {
  return !s->mask || (kv <= q && (q - kv) % 3 == 0);
}
static int bucket(int q, int kv) {
  int d = q - kv;
  return (d < -REACH ? -REACH : d > REACH ? REACH : d) + REACH;
}

/* ---- the functions as a generator would make them ---- */

static void mask_bits(const fx_tile_args *args, uint32_t *bits) {
  const settings *s = args->self;
  for (int n = 0; n < args->keys; n++) {
    bits[n] = 0;
    for (int r = 0; r < FX_TILE_ROWS; r++) bits[n] |= (uint32_t)visible(s, args->q[r], args->kv[n]) << r;
  }
}
static void score_slope(const fx_tile_args *args, float *s, float *slope, int64_t stride, float factor) {
  const settings *set = args->self;
  const float *table = args->buffer[0];
  for (int n = 0; n < args->keys; n++)
    for (int r = 0; r < FX_TILE_ROWS; r++) {
      float x = s[n * stride + r], bend = 1.0f;
      if (set->cap) {
        float t = tanhf(x / (float)CAP);
        x = (float)CAP * t, bend = 1.0f - t * t;
      }
      if (set->table) x += table[args->h * BUCKETS + bucket(args->q[r], args->kv[n])];
      s[n * stride + r] = x * factor;
      if (slope) slope[n * stride + r] = bend;
    }
}
static void score(const fx_tile_args *args, float *s, int64_t stride, float factor) {
  score_slope(args, s, NULL, stride, factor);
}
static void tables(const fx_tile_args *args, const uint32_t *bits, const float *raw, const float *ds,
                   int64_t stride) {
  (void)raw;
  for (int n = 0; n < args->keys; n++)
    for (int r = 0; r < FX_TILE_ROWS; r++)
      if (bits[n] >> r & 1)
        args->table_grad[0][args->h * BUCKETS + bucket(args->q[r], args->kv[n])] += ds[n * stride + r];
}

/* ---- a problem ---- */

enum { IN_Q, IN_K, IN_V, IN_DOUT, NUM_IN };
typedef struct problem {
  settings set;
  float *in[NUM_IN]; /* [B][T][heads][D], what the kernels are given (bf16 values when so) */
  uint16_t *half[NUM_IN];
  double *out, *lse, *grad[3], dsink[H], dtable[H * BUCKETS];
  float table[H * BUCKETS], sink[H], *dlse;
  int32_t q_bases[4], kv_bases[4];
} problem;

static int rows_of(const settings *s, int i) {
  return i == IN_Q || i == IN_DOUT ? s->T_q : s->T_kv;
}
static int heads_of(int i) {
  return i == IN_Q || i == IN_DOUT ? H : K;
}
static int64_t count_of(const settings *s, int i) {
  return (int64_t)B * rows_of(s, i) * heads_of(i) * D;
}
static int q_at(const problem *p, int t) {
  return p->set.moved ? p->q_bases[t / 128] + t % 128 : t;
}
static int kv_at(const problem *p, int t) {
  return p->set.moved ? p->kv_bases[t / 128] + t % 128 : t;
}

static problem problem_create(settings set) {
  problem p = {.set = set, .q_bases = {640, 0, 256, 896}, .kv_bases = {256, 1024, 0, 512}};
  for (int i = 0; i < NUM_IN; i++) {
    int64_t n = count_of(&set, i);
    p.in[i] = room((size_t)n * sizeof(float));
    p.half[i] = room((size_t)n * sizeof(uint16_t));
    fx_fill_normal(p.in[i], n, (uint64_t)i + 1, 1.0f);
    for (int64_t j = 0; set.bf16 && j < n; j++) {
      p.half[i][j] = fx_f32_to_bf16(p.in[i][j]);
      p.in[i][j] = fx_bf16_to_f32(p.half[i][j]);
    }
    if (i < 3) p.grad[i] = room((size_t)n * sizeof(double));
  }
  p.out = room((size_t)count_of(&set, IN_Q) * sizeof(double));
  p.lse = room((size_t)(B * H * set.T_q) * sizeof(double));
  int64_t padded = (int64_t)B * H * fx_attention_tpad(set.T_q);
  p.dlse = room((size_t)padded * sizeof(float));
  fx_fill_normal(p.dlse, padded, 9, 1.0f);
  fx_fill_normal(p.table, H * BUCKETS, 7, 1.0f);
  fx_fill_normal(p.sink, H, 8, 1.0f);
  return p;
}

static void problem_destroy(problem *p) {
  for (int i = 0; i < NUM_IN; i++) free(p->in[i]), free(p->half[i]);
  for (int i = 0; i < 3; i++) free(p->grad[i]);
  free(p->out), free(p->lse), free(p->dlse);
}

static double dot(const float *a, const float *b) {
  double sum = 0;
  for (int d = 0; d < D; d++) sum += (double)a[d] * (double)b[d];
  return sum;
}

/* One row: probabilities, slopes, lse; then its share of every gradient. */
static void reference_row(problem *p, int b, int h, int t) {
  const settings *s = &p->set;
  static double prob[MOST], slope[MOST];
  int kv_head = h / (H / K), q = q_at(p, t);
  int64_t q_row = ((int64_t)(b * s->T_q + t) * H + h) * D, lse_at = (int64_t)(b * H + h) * s->T_q + t;
  double top = s->sinks ? (double)p->sink[h] : -INFINITY, sum = 0;
  for (int n = 0; n < s->T_kv; n++) {
    prob[n] = -INFINITY, slope[n] = 1;
    if (!visible(s, q, kv_at(p, n))) continue;
    double x =
        dot(p->in[IN_Q] + q_row, p->in[IN_K] + ((int64_t)(b * s->T_kv + n) * K + kv_head) * D) / sqrt(D);
    if (s->cap) slope[n] = 1 - pow(tanh(x / CAP), 2), x = CAP * tanh(x / CAP);
    if (s->table) x += (double)p->table[h * BUCKETS + bucket(q, kv_at(p, n))];
    prob[n] = x;
    top = fmax(top, x);
  }
  for (int n = 0; n < s->T_kv; n++) sum += prob[n] = top == -INFINITY ? 0 : exp(prob[n] - top);
  double sink = s->sinks ? exp((double)p->sink[h] - top) : 0;
  sum += sink;
  p->lse[lse_at] = top == -INFINITY ? -INFINITY : top + log(sum);
  double delta = s->dlse ? -(double)p->dlse[(int64_t)(b * H + h) * fx_attention_tpad(s->T_q) + t] : 0;
  for (int d = 0; d < D; d++) {
    double o = 0;
    for (int n = 0; n < s->T_kv; n++)
      if (prob[n] != 0)
        o += prob[n] / sum * (double)p->in[IN_V][((int64_t)(b * s->T_kv + n) * K + kv_head) * D + d];
    p->out[q_row + d] = o;
    delta += o * (double)p->in[IN_DOUT][q_row + d];
  }
  if (sum > 0) p->dsink[h] -= sink / sum * delta;
  for (int n = 0; n < s->T_kv; n++) {
    if (prob[n] == 0) continue;
    int64_t k_row = ((int64_t)(b * s->T_kv + n) * K + kv_head) * D;
    double weight = prob[n] / sum, df = weight * (dot(p->in[IN_DOUT] + q_row, p->in[IN_V] + k_row) - delta);
    p->dtable[h * BUCKETS + bucket(q, kv_at(p, n))] += df;
    for (int d = 0; d < D; d++) {
      double ds = df * slope[n] / sqrt(D);
      p->grad[0][q_row + d] += ds * (double)p->in[IN_K][k_row + d];
      p->grad[1][k_row + d] += ds * (double)p->in[IN_Q][q_row + d];
      p->grad[2][k_row + d] += weight * (double)p->in[IN_DOUT][q_row + d];
    }
  }
}

/* Run lists from the visible pairs themselves: exact kinds, one run a tile. */
static fx_runs runs_of(const problem *p, fx_attention_pass pass) {
  fx_attention_tile tile = fx_attention_cpu_tile(pass, D);
  fx_runs runs = fx_runs_plan(1, p->set.T_q, p->set.T_kv, tile.q, tile.kv, MOST / tile.kv + 1);
  fx_runs_bind(&runs, room(fx_runs_bytes(&runs)));
  for (int i = 0; i < runs.blocks; i++)
    for (int j = runs.count[i] = 0; j < runs.tiles; j++) {
      int seen = 0, pairs = 0;
      for (int t = i * tile.q; t < (i + 1) * tile.q && t < p->set.T_q; t++)
        for (int n = j * tile.kv; n < (j + 1) * tile.kv && n < p->set.T_kv; n++, pairs++)
          seen += visible(&p->set, q_at(p, t), kv_at(p, n));
      if (seen) runs.run[i * runs.capacity + runs.count[i]++] = (fx_run){j, j + 1, seen == pairs};
    }
  return runs;
}

static double off_floats(const void *got, const double *want, int64_t n, bool bf16) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < n; i++) {
    double x = bf16 ? (double)fx_bf16_to_f32(((const uint16_t *)got)[i]) : (double)((const float *)got)[i];
    error += (x - want[i]) * (x - want[i]), norm += want[i] * want[i];
  }
  return norm == 0 ? error : sqrt(error / norm);
}

typedef struct answers {
  void *out, *grad[3];
  float *lse, dsink[H], dtable[H * BUCKETS];
} answers;

static fx_attention_in in_view(const problem *p, int i, int T) {
  int64_t heads = heads_of(i);
  return (fx_attention_in){p->set.bf16 ? (const void *)p->half[i] : p->in[i], T * heads * D, heads * D, D,
                           p->set.bf16 ? FX_BF16 : FX_F32};
}
static fx_attention_out out_view(const problem *p, void *data, int T, int64_t heads) {
  return (fx_attention_out){data, T * heads * D, heads * D, D, p->set.bf16 ? FX_BF16 : FX_F32};
}

static answers solve(const problem *p, int threads, fx_attention_isa isa) {
  const settings *s = &p->set;
  answers a;
  a.out = room((size_t)count_of(s, IN_Q) * 4);
  for (int i = 0; i < 3; i++) a.grad[i] = room((size_t)count_of(s, i) * 4);
  a.lse = room((size_t)(B * H * fx_attention_tpad(s->T_q)) * 4);
  fx_tile_functions tile = {.self = s, .mask = s->mask ? mask_bits : NULL};
  if (s->cap || s->table) tile.score = score, tile.score_slope = s->cap ? score_slope : NULL;
  if (s->table) tile.tables = tables;
  int64_t table_floats = s->table ? H * BUCKETS : 0;
  fx_attention_buffer buffer = {p->table, 0};
  fx_attention_program program = {&tile, s->mask, NULL, 1, &buffer, &table_floats};
  fx_attention_shape shape = {
      .B = B, .T_q = s->T_q, .T_kv = s->T_kv, .H = H, .K = K, .D = D, .bf16 = s->bf16};
  shape.scale = 1.0f / sqrtf(D);
  shape.program = &program;
  if (s->moved) shape.q_bases = p->q_bases, shape.kv_bases = p->kv_bases;
  shape.threads = threads, shape.isa = isa;
  fx_runs runs[2] = {runs_of(p, FX_ATTENTION_FORWARD), runs_of(p, FX_ATTENTION_BACKWARD)};
  void *workspace = room(fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, &shape, threads) +
                         fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, &shape, threads));
  fx_attention_forward f = {.shape = shape, .lse = a.lse, .workspace = workspace};
  f.q = in_view(p, IN_Q, s->T_q), f.k = in_view(p, IN_K, s->T_kv), f.v = in_view(p, IN_V, s->T_kv);
  f.out = out_view(p, a.out, s->T_q, H);
  f.sinks = s->sinks ? p->sink : NULL;
  f.shape.runs = s->runs ? &runs[0] : NULL;
  CHECK_OK(fx_attention_cpu_forward(&f));
  fx_attention_backward g = {
      .shape = shape, .q = f.q, .k = f.k, .v = f.v, .lse = a.lse, .workspace = workspace};
  g.shape.runs = s->runs ? &runs[1] : NULL;
  g.dout = in_view(p, IN_DOUT, s->T_q);
  g.out = (fx_attention_in){f.out.data, f.out.batch, f.out.time, f.out.head, f.out.dtype};
  g.dlse = s->dlse ? p->dlse : NULL;
  g.dq = out_view(p, a.grad[0], s->T_q, H);
  g.dk = out_view(p, a.grad[1], s->T_kv, K), g.dv = out_view(p, a.grad[2], s->T_kv, K);
  float *table_out[] = {a.dtable};
  if (s->table) g.dtables = table_out;
  if (s->sinks) g.sinks = p->sink, g.dsinks = a.dsink;
  CHECK_OK(fx_attention_cpu_backward(&g));
  free(workspace), free(runs[0].run), free(runs[1].run);
  return a;
}

static void answers_free(answers *a) {
  free(a->out), free(a->lse);
  for (int i = 0; i < 3; i++) free(a->grad[i]);
}

static void check_answers(const problem *p, const answers *a) {
  const settings *s = &p->set;
  double loose =
      s->bf16 ? 6e-3 : 4e-6; /* bf16: the rounding of out, which delta reads, and of the gradients */
  double off = off_floats(a->out, p->out, count_of(s, IN_Q), s->bf16);
  CHECK_MSG(off <= (s->bf16 ? 4e-3 : 1e-6), "%s: out is off by %g", s->name, off);
  for (int i = 0; i < 3; i++) {
    off = off_floats(a->grad[i], p->grad[i], count_of(s, i), s->bf16);
    CHECK_MSG(off <= loose, "%s: gradient %d is off by %g", s->name, i, off);
  }
  int64_t wrong = 0, Tpad = fx_attention_tpad(s->T_q);
  for (int i = 0; i < B * H; i++)
    for (int t = 0; t < Tpad; t++) {
      double got = (double)a->lse[i * Tpad + t], want = t < s->T_q ? p->lse[i * s->T_q + t] : -INFINITY;
      wrong += isinf(want) ? got != want : !(fabs(got - want) <= 4e-6);
    }
  CHECK_INT(wrong, 0);
  if (s->table) {
    off = off_floats(a->dtable, p->dtable, H * BUCKETS, false);
    CHECK_MSG(off <= (s->bf16 ? loose : 2e-5), "%s: the table's gradient is off by %g", s->name, off);
  }
  if (s->sinks) {
    off = off_floats(a->dsink, p->dsink, H, false);
    CHECK_MSG(off <= (s->bf16 ? loose : 2e-5), "%s: the sinks' gradient is off by %g", s->name, off);
  }
}

static void against_reference(void) {
  static const settings all[] = {
      {.name = "mask", .T_q = 150, .T_kv = 150, .mask = true},
      {.name = "mask and runs", .T_q = 150, .T_kv = 333, .mask = true, .runs = true, .dlse = true},
      {.name = "cap", .T_q = 37, .T_kv = 91, .cap = true, .dlse = true},
      {.name = "table", .T_q = 130, .T_kv = 70, .table = true},
      {.name = "cap, table, mask",
       .T_q = 130,
       .T_kv = 260,
       .cap = true,
       .table = true,
       .mask = true,
       .runs = true},
      {.name = "sinks", .T_q = 65, .T_kv = 64, .sinks = true, .dlse = true},
      {.name = "sinks, mask", .T_q = 65, .T_kv = 64, .sinks = true, .mask = true, .runs = true},
      {.name = "moved", .T_q = 390, .T_kv = 300, .mask = true, .table = true, .moved = true, .runs = true},
      {.name = "moved, no runs", .T_q = 390, .T_kv = 300, .mask = true, .moved = true, .dlse = true},
      {.name = "bf16", .T_q = 150, .T_kv = 170, .bf16 = true, .dlse = true},
      {.name = "bf16, all",
       .T_q = 150,
       .T_kv = 390,
       .mask = true,
       .cap = true,
       .table = true,
       .sinks = true,
       .runs = true,
       .bf16 = true},
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    problem p = problem_create(all[i]);
    for (int b = 0; b < B; b++)
      for (int h = 0; h < H; h++)
        for (int t = 0; t < all[i].T_q; t++) reference_row(&p, b, h, t);
    for (int isa = FX_ISA_PORTABLE; isa < FX_ISA_COUNT; isa++) {
      fx_attention_shape probe = {
          .B = 1, .T_q = 1, .T_kv = 1, .H = 1, .K = 1, .D = 8, .isa = (fx_attention_isa)isa};
      if (fx_attention_cpu_check(FX_ATTENTION_FORWARD, &probe) != FX_OK) continue;
      answers one = solve(&p, 1, (fx_attention_isa)isa), three = solve(&p, 3, (fx_attention_isa)isa);
      check_answers(&p, &one);
      size_t bytes = all[i].bf16 ? 2 : 4;
      CHECK(memcmp(one.out, three.out, (size_t)count_of(&all[i], IN_Q) * bytes) == 0);
      for (int g = 0; g < 3; g++)
        CHECK(memcmp(one.grad[g], three.grad[g], (size_t)count_of(&all[i], g) * bytes) == 0);
      if (all[i].table) CHECK(memcmp(one.dtable, three.dtable, sizeof one.dtable) == 0);
      answers_free(&one), answers_free(&three);
    }
    problem_destroy(&p);
  }
}

static const fx_test g_tests[] = {
    {"masks, scores, tables, sinks, bf16, moved blocks", against_reference},
};
FX_TEST_MAIN("variants' functions in the CPU kernels", g_tests)
