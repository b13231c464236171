/* SPDX-License-Identifier: Apache-2.0 */
/* Masks at the edges: lists that overflow, positions and sums at the ends of int32, promises that a batch
 * breaks, memory that held another batch; and the parts underneath, ranges of buffers and intervals. */
#include "attention/lang/parser.h"
#include "attention/mask/interval.h"
#include "attention/tile/interp.h"
#include "tests/attention/mask_case.h"
#include "tests/attention/random_expr.h"

static fx_ex_pool *pool_of(int32_t H, int32_t T, int32_t T_kv) {
  return fx_ex_pool_create(&(fx_ex_ranges){H, T, T_kv});
}

static fx_mask_program *program_of(fx_ex_pool *pool, const char *text) {
  fx_ex node = fx_ex_parse(pool, &(fx_ex_text){.text = text}, NULL);
  CHECK_MSG(node != FX_EX_NONE, "%s: %s", text, fx_error_text());
  fx_mask_program *program = NULL;
  CHECK_OK(fx_mask_program_create(pool, node, &program));
  return program;
}

/* ---- capacity ---- */

static bool sees_every_third(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return kv / 5 % 3 == q % 3;
}
static bool sees_ends(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return q % 2 ? kv < 30 : kv >= 170 && kv < 190;
}

/* Short lists join, count it, and lose no tile. */
static void capacity(void) {
  static const struct {
    const char *text;
    mask_oracle oracle;
  } masks[] = {{"kv / 5 % 3 == q % 3", sees_every_third},
               {"q % 2 ? kv < 30 : kv >= 170 && kv < 190", sees_ends}};
  for (int m = 0; m < 2; m++) {
    fx_ex_pool *pool = pool_of(1, 200, 301);
    fx_mask_program *program = program_of(pool, masks[m].text);
    mask_case c = {
        .name = masks[m].text, .program = program, .batch = {.B = 1}, .H = 1, .T = 200, .T_kv = 301};
    c.oracle = masks[m].oracle;
    mask_case_ask(&c);
    fx_limits limits = fx_mask_limits_plan(program, 1, 1, 200);
    bool has_limits = fx_mask_program_facts(program)->form == FX_MASK_FORM_LIMITS;
    CHECK_INT(has_limits, m == 1);
    void *memory = mask_room(has_limits ? fx_limits_bytes(&limits) : 0),
         *scratch = mask_room(fx_mask_limits_scratch(program));
    if (has_limits) {
      fx_limits_bind(&limits, memory);
      CHECK_OK(fx_mask_limits_build(program, &c.batch, &limits, scratch));
    }
    static const int32_t rooms[] = {1, 2, 5, 200};
    for (int i = 0; i < 4; i++) {
      int64_t joined = mask_case_tiles(&c, has_limits ? &limits : NULL, 1 + m, 4, rooms[i]);
      CHECK_MSG((joined > 0) == (rooms[i] < (m ? 2 : 200)), "%s: %lld joins with room for %d", c.name,
                (long long)joined, rooms[i]);
    }
    free(memory), free(scratch), free(c.sees);
    fx_mask_program_destroy(program);
    fx_ex_pool_destroy(pool);
  }
}

/* ---- the ends of int32 ---- */

static bool sees_causal(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return kv <= q;
}
static bool sees_window(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return kv <= q && (int64_t)q - kv < 100;
}
static bool sees_ahead(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return q > kv - 100;
}
static bool sees_wrapped(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return (int32_t)((uint32_t)q + 100u) > kv;
}
static bool sees_doubled(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return (int32_t)((uint32_t)kv * 2u) <= q;
}
static bool sees_rows(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)self, (void)b, (void)h;
  return kv < (int32_t)((uint32_t)q * 3u) || kv == INT32_MAX - 1;
}

/* A sequence of 2^31 - 1 positions, of which some near the end are here. Steps that could wrap somewhere are
 * not inverted, and what wraps on a row's side alone wraps in the limits too. */
static void int32_ends(void) {
  static const struct {
    const char *text;
    fx_mask_form form;
    mask_oracle oracle;
  } masks[] = {{"kv <= q", FX_MASK_FORM_LIMITS, sees_causal},
               {"kv <= q && q - kv < 100", FX_MASK_FORM_LIMITS, sees_window},
               {"kv <= q && q - kv < 2147483647", FX_MASK_FORM_LIMITS, sees_causal},
               {"kv <= q && kv > q - 100", FX_MASK_FORM_LIMITS, sees_window},
               {"q + 100 > kv", FX_MASK_FORM_LIMITS, sees_wrapped},
               {"q > kv - 100", FX_MASK_FORM_LIMITS, sees_ahead},
               {"kv * 2 <= q", FX_MASK_FORM_EXPRESSION, sees_doubled},
               {"kv < q * 3 || kv == 2147483646", FX_MASK_FORM_LIMITS, sees_rows}};
  static const int32_t base[] = {INT32_MAX - 128, 0, INT32_MAX - 300};
  for (int m = 0; m < 8; m++)
    for (int segments = 0; segments < 2; segments++) {
      fx_ex_pool *pool = pool_of(1, INT32_MAX, INT32_MAX);
      fx_mask_program *program = program_of(pool, masks[m].text);
      CHECK_MSG(fx_mask_program_facts(program)->form == masks[m].form, "%s: form %d", masks[m].text,
                (int)fx_mask_program_facts(program)->form);
      mask_case c = {
          .name = masks[m].text, .program = program, .batch = {.B = 1}, .H = 1, .T = 270, .T_kv = 333};
      c.oracle = masks[m].oracle;
      c.batch.q.first = INT32_MAX - 270, c.batch.kv.first = INT32_MAX - 333;
      if (segments) c.batch.q.base = base, c.batch.kv.base = base;
      if (segments) c.T_kv = c.T = 290;
      mask_case_check(&c);
      fx_mask_program_destroy(program);
      fx_ex_pool_destroy(pool);
    }
}

static bool sees_least(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)b, (void)h;
  int32_t x = ((const int32_t *)self)[kv];
  switch (q % 4) {
  case 0:
    return (x < 0 ? (int32_t)(0u - (uint32_t)x) : x) <= 5; /* |INT32_MIN| is INT32_MIN */
  case 1:
    return (int32_t)(0u - (uint32_t)x) <= 5;
  case 2:
    return (int32_t)(0u - (uint32_t)x) >= 5; /* x / -1 */
  default:
    return floor((double)x / -3.0) <= 5;
  }
}

/* The one int whose negation wraps: under abs, - and division by a number below 0. */
static void least_int(void) {
  static const char *const texts[] = {"abs(x[kv]) <= 5", "-x[kv] <= 5", "x[kv] / -1 >= 5", "x[kv] / -3 <= 5"};
  int32_t x[300];
  for (int i = 0; i < 300; i++)
    x[i] = i < 100 ? INT32_MIN + i / 50 : i < 250 ? i / 4 - 50 : INT32_MAX - 300 + i;
  for (int m = 0; m < 4; m++) {
    char text[200];
    fx_ex_pool *pool = pool_of(1, 4, 300);
    fx_ex_buffer d = {.name = "x", .type = FX_EX_INT, .ndim = 1, .dim = {300}, .monotone = true};
    d.lo = INT32_MIN, d.hi = INT32_MAX;
    CHECK_INT(fx_ex_declare_buffer(pool, &d), 0);
    snprintf(text, sizeof text, "q %% 4 != %d || %s", m, texts[m]);
    fx_mask_program *program = program_of(pool, text);
    const void *buffer[] = {x};
    mask_case c = {.name = texts[m], .program = program, .batch = {.B = 1, .buffer = buffer}, .H = 1, .T = 1};
    c.batch.q.first = m; /* the row that asks this one */
    c.T_kv = 300, c.oracle = sees_least, c.self = x;
    mask_case_check(&c);
    fx_mask_program_destroy(program);
    fx_ex_pool_destroy(pool);
  }
}

static void positions_outside(void) {
  fx_ex_pool *pool = pool_of(1, 300, 300);
  fx_mask_program *program = program_of(pool, "kv <= q");
  static const int32_t base[] = {0, 256};
  fx_mask_batch batch = {.B = 1, .q = {NULL, 1}};
  fx_limits limits = fx_mask_limits_plan(program, 1, 1, 300);
  fx_limits_bind(&limits, mask_room(fx_limits_bytes(&limits)));
  void *scratch = mask_room(fx_mask_limits_scratch(program));
  CHECK_STATUS(fx_mask_limits_build(program, &batch, &limits, scratch), FX_ERR_SHAPE);
  batch.q = (fx_positions){base, 0};
  limits.T = 173;
  CHECK_STATUS(fx_mask_limits_build(program, &batch, &limits, scratch), FX_ERR_SHAPE);
  limits.T = 172;
  CHECK_OK(fx_mask_limits_build(program, &batch, &limits, scratch));
  fx_runs runs = fx_mask_runs_plan(program, 1, 1, 172, 301, 128, 128, 0);
  fx_runs_bind(&runs, mask_room(fx_runs_bytes(&runs)));
  CHECK_STATUS(fx_mask_runs_build(program, &batch, &limits, &runs, NULL), FX_ERR_SHAPE);
  free(limits.lo), free(scratch), free(runs.run);
  fx_mask_program_destroy(program);
  fx_ex_pool_destroy(pool);
}

/* ---- promises ---- */

static void promises(void) {
  enum { T = 300 };
  int32_t start[2 * T], end[2 * T], id[2 * T];
  for (int i = 0; i < 2 * T; i++) {
    int t = i % T;
    start[i] = t / 50 * 50, end[i] = t / 50 * 50 + 50, id[i] = t / 50;
  }
  fx_ex_pool *pool = pool_of(1, T, T);
  fx_ex_buffer d = {.type = FX_EX_INT, .ndim = 1, .dim = {T}, .per_batch = true, .hi = T};
  snprintf(d.name, sizeof d.name, "start"), d.segment = true;
  CHECK_INT(fx_ex_declare_buffer(pool, &d), 0);
  snprintf(d.name, sizeof d.name, "end"), d.segment = false, d.segment_end = true;
  CHECK_INT(fx_ex_declare_buffer(pool, &d), 1);
  snprintf(d.name, sizeof d.name, "id"), d.segment_end = false, d.monotone = true, d.hi = 9;
  CHECK_INT(fx_ex_declare_buffer(pool, &d), 2);
  fx_mask_program *program = program_of(pool, "start[q] <= kv && kv < end[q] && id[kv] == id[q]");
  const void *buffer[] = {start, end, id};
  fx_mask_batch batch = {.B = 2, .buffer = buffer};
  CHECK_OK(fx_mask_check(program, &batch));
  static const struct {
    int array, at, value;
    const char *says;
  } wrong[] = {{0, T + 70, 51, "start of sample 1 is 51 at position 70"},
               {0, 0, 1, "start of sample 0 is 1 at position 0"},
               {0, 299, 298, "start of sample 0 is 298 at position 299"},
               {1, 20, 20, "end of sample 0 is 20 at position 20"},
               {1, T, 0, "end of sample 1 is 0 at position 0"},
               {1, 60, 99, "end of sample 0 is 99 at position 60"},
               {2, 120, 1, "id of sample 0 falls from 2 to 1 at position 120"},
               {2, T + 299, 10, "id of sample 1 is 10 at position 299, expected 0..9"},
               {2, 0, -1, "id of sample 0 is -1 at position 0, expected 0..9"}};
  int32_t *arrays[] = {start, end, id};
  for (int i = 0; i < 9; i++) {
    int32_t *x = &arrays[wrong[i].array][wrong[i].at], kept = *x;
    *x = wrong[i].value;
    CHECK_STATUS(fx_mask_check(program, &batch), FX_ERR_DATA);
    CHECK_HAS(fx_error_text(), wrong[i].says);
    *x = kept;
  }
  CHECK_OK(fx_mask_check(program, &batch));
  buffer[1] = NULL;
  CHECK_STATUS(fx_mask_check(program, &batch), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "the mask reads \"end\", but the batch has none");
  fx_mask_program_destroy(program);
  fx_ex_pool_destroy(pool);
}

/* ---- the same memory for one batch after another ---- */

static bool sees_spans(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)h;
  return kv <= q && q - kv < ((const int32_t *)self)[b * 400 + q];
}
static bool sees_spans_of_keys(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  (void)h;
  return kv <= q && q - kv < ((const int32_t *)self)[b * 400 + kv];
}

static void rebuilt_in_place(void) {
  static const int32_t spans[] = {400, 3, 120, 1, 400};
  for (int keys = 0; keys < 2; keys++) {
    int32_t span[800];
    fx_ex_pool *pool = pool_of(1, 400, 400);
    fx_ex_buffer d = {
        .name = "span", .type = FX_EX_INT, .ndim = 1, .dim = {400}, .per_batch = true, .hi = 400};
    CHECK_INT(fx_ex_declare_buffer(pool, &d), 0);
    fx_mask_program *program =
        program_of(pool, keys ? "kv <= q && q - kv < span[kv]" : "kv <= q && q - kv < span[q]");
    const void *buffer[] = {span};
    mask_case c = {
        .name = "spans", .program = program, .batch = {.B = 2, .buffer = buffer}, .H = 1, .T = 400};
    c.T_kv = 400, c.oracle = keys ? sees_spans_of_keys : sees_spans, c.self = span;
    fx_limits limits = fx_mask_limits_plan(program, 2, 1, 400);
    fx_runs rows = fx_mask_runs_plan(program, 2, 1, 400, 400, 64, 48, 0),
            columns = fx_runs_plan_transposed(&rows, 32);
    void *scratch = mask_room(fx_mask_limits_scratch(program)),
         *more = mask_room(fx_mask_runs_scratch(program, &rows));
    if (!keys) fx_limits_bind(&limits, mask_room(fx_limits_bytes(&limits)));
    fx_runs_bind(&rows, mask_room(fx_runs_bytes(&rows)));
    fx_runs_bind(&columns, mask_room(fx_runs_bytes(&columns)));
    for (int i = 0; i < 5; i++) {
      for (int k = 0; k < 800; k++) span[k] = k < 400 ? spans[i] : 401 - spans[i];
      mask_case_ask(&c);
      if (!keys) CHECK_OK(fx_mask_limits_build(program, &c.batch, &limits, scratch));
      CHECK_OK(fx_mask_runs_build(program, &c.batch, keys ? NULL : &limits, &rows, more));
      CHECK_OK(fx_runs_transpose(&rows, &columns));
      CHECK_INT(mask_wrong_tiles(&c, &rows, &columns), 0);
      if (!keys) CHECK_INT(mask_wrong_limits(&c, &limits), 0);
      free(c.sees);
    }
    free(limits.lo), free(rows.run), free(columns.run), free(scratch), free(more);
    fx_mask_program_destroy(program);
    fx_ex_pool_destroy(pool);
  }
}

/* ---- underneath ---- */

static void summaries(void) {
  enum { N = 5000 };
  int32_t *x = malloc(N * sizeof *x);
  float *f = malloc(N * sizeof *f);
  for (int64_t i = 0; i < N; i++) {
    x[i] = (int32_t)((uint64_t)(i + 1) * 2654435761u >> 8);
    f[i] = (float)(x[i] % 1000) - 500.0f;
  }
  f[3000] = NAN;
  for (int32_t count = 1; count <= N; count += count < 300 ? 37 : 1567) {
    fx_summary ints, floats;
    void *memory = mask_room(fx_summary_bytes(count)), *other = mask_room(fx_summary_bytes(count));
    fx_summary_build(&ints, x, count, false, false, memory);
    fx_summary_build(&floats, f, count, true, false, other);
    int64_t wrong = 0;
    for (int64_t from = 0; from < count; from += 1 + count / 60)
      for (int64_t to = from; to < count; to += 1 + count / 70) {
        int64_t lo = x[from], hi = x[from];
        float least = f[from], most = f[from];
        bool numbers = true;
        for (int64_t i = from; i <= to; i++) {
          lo = x[i] < lo ? x[i] : lo, hi = x[i] > hi ? x[i] : hi;
          least = fminf(least, f[i]), most = fmaxf(most, f[i]);
          numbers = numbers && f[i] == f[i];
        }
        if (!numbers) least = -INFINITY, most = INFINITY;
        fx_interval i = fx_summary_range(&ints, from, to), g = fx_summary_range(&floats, from, to);
        wrong += i.lo.i != lo || i.hi.i != hi || g.lo.f != (double)least || g.hi.f != (double)most;
      }
    CHECK_MSG(wrong == 0, "%d values: %lld ranges wrong", count, (long long)wrong);
    free(memory), free(other);
  }
  free(x), free(f);
}

/* Every node's interval over everything holds its values at random points. */
static void domains(void) {
  int narrow = 0;
  for (uint64_t seed = 1; seed <= 300; seed++) {
    random_expr r;
    random_create(&r, seed * 31337);
    fx_ex root = random_make(&r, FX_EX_BOOL, 5, false);
    fx_interval_code *code = NULL;
    CHECK_OK(fx_interval_create(r.pool, root, &code));
    bool *needed = fx_ex_reachable(r.pool, &root, 1);
    for (fx_ex i = 0; i <= root; i++) {
      if (!needed[i]) continue;
      enum { N = 64 };
      int32_t q[N], kv[N], out[N];
      for (int k = 0; k < N; k++)
        q[k] = random_below(&r, r.ranges.T), kv[k] = random_below(&r, r.ranges.T_kv);
      fx_interp *interp = NULL;
      CHECK_OK(fx_interp_create(r.pool, &i, 1, &interp));
      void *output = out;
      fx_interp_run(interp, &(fx_interp_inputs){r.uniform, r.buffer}, random_below(&r, r.ranges.H), N, q, kv,
                    NULL, &output);
      fx_interp_destroy(interp);
      fx_interval range = fx_interval_domain(code, i);
      bool floats = fx_ex_get(r.pool, i)->type == FX_EX_FLOAT;
      int wrong = 0;
      for (int k = 0; k < N; k++) {
        float f;
        memcpy(&f, &out[k], sizeof f);
        if (floats)
          wrong +=
              !(range.lo.f <= (double)f && (double)f <= range.hi.f) && range.hi.f - range.lo.f < INFINITY;
        else
          wrong += out[k] < range.lo.i || out[k] > range.hi.i;
      }
      CHECK_MSG(wrong == 0, "seed %llu, node %d (%s): %d values outside", (unsigned long long)seed, i,
                fx_ex_op_name((fx_ex_op)fx_ex_get(r.pool, i)->op), wrong);
      narrow += floats ? range.hi.f - range.lo.f < INFINITY : range.hi.i - range.lo.i < UINT32_MAX;
    }
    free(needed);
    fx_interval_destroy(code);
    random_destroy(&r);
  }
  CHECK_MSG(narrow > 1000, "only %d nodes are narrower than their type", narrow);
}

static const fx_test g_tests[] = {
    {"capacity", capacity},       {"ends of int32", int32_ends},
    {"the least int", least_int}, {"positions outside", positions_outside},
    {"promises", promises},       {"rebuilt in place", rebuilt_in_place},
    {"summaries", summaries},     {"domains", domains},
};
FX_TEST_MAIN("mask edges", g_tests)
