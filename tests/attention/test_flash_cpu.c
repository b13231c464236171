/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU kernels against the double reference: every variant, head dimension, head ratio and length, forward
 * and each gradient on its own; finite differences of the reference; the exponential by itself. */
#include <stdio.h>

#include "attention/cpu/leaf.h"
#include "tests/attention/reference.h"

/* Largest error over tolerance seen, printed at the end of each test: a bound that is far off tests nothing.
 */
static double g_worst;

/* Relative L2 of each 64-row tile of each head. mass: NULL, or the scale of cancelled terms (see reference).
 */
static void compare(const attention_case *c, const char *what, const fx_attention_out *got, int heads, int T,
                    const double *want, const double *mass, double tolerance) {
  int D = c->spec.D;
  for (int b = 0; b < c->spec.B; b++)
    for (int h = 0; h < heads; h++)
      for (int first = 0; first < T; first += 64) {
        double error = 0, norm = 0, spread = 0;
        for (int t = first; t < T && t < first + 64; t++)
          for (int d = 0; d < D; d++) {
            int64_t at = ((int64_t)(b * heads + h) * T + t) * D + d;
            double difference =
                (double)((const float *)got->data)[b * got->batch + h * got->head + t * got->time + d] -
                want[at];
            error += difference * difference;
            norm += want[at] * want[at];
            spread += mass ? mass[at] * mass[at] : 0;
          }
        double ratio = sqrt(error) / (tolerance * (sqrt(norm) + sqrt(spread) / 16) + 1e-37);
        if (!(ratio <= g_worst)) g_worst = ratio;
        if (!(ratio <= 1))
          CHECK_MSG(false,
                    "%s of %s B%d T%d x %d H%d K%d D%d, sample %d head %d rows from %d: error %g of norm %g, "
                    "tolerance %g",
                    what, c->spec.variant, c->spec.B, c->spec.T_q, c->spec.T_kv, c->spec.H, c->spec.K, D, b,
                    h, first, sqrt(error), sqrt(norm), tolerance);
      }
}

/* Absolute, so it carries the rounding of a dot product of D terms beside that of the largest score. */
static void compare_lse(const attention_case *c, const reference *r) {
  int64_t wrong = 0, Tpad = c->limits.Tpad;
  double tolerance = 4e-7 * (4 + r->highest + sqrt(c->spec.D));
  for (int head = 0; head < c->spec.B * c->spec.H; head++)
    for (int t = 0; t < Tpad; t++) {
      double got = (double)c->lse[head * Tpad + t];
      double want = t < c->spec.T_q ? r->lse[(int64_t)head * c->spec.T_q + t] : -INFINITY;
      if (isinf(want) ? got != want : !(fabs(got - want) <= tolerance)) wrong++;
    }
  CHECK_INT(wrong, 0);
}

/* Spare floats between heads' data keep the poison they had. */
static void compare_spare(const attention_case *c, const float *data, int64_t count, int64_t width) {
  int64_t touched = 0;
  for (int64_t i = 0; i < count; i++)
    if (i % width >= width - 8 && !isnan(data[i])) touched++;
  CHECK_INT(touched, 0);
  (void)c;
}

static void compare_all(const attention_case *c, const reference *r) {
  const attention_spec *s = &c->spec;
  double tolerance = 4e-7 * (4 + r->highest);
  compare(c, "out", &c->o, s->H, s->T_q, r->o, NULL, tolerance);
  compare_lse(c, r);
  compare(c, "dq", &c->dq, s->H, s->T_q, r->dq, r->dq_mass, 5 * tolerance);
  compare(c, "dk", &c->dk, s->K, s->T_kv, r->dk, r->dk_mass, 5 * tolerance);
  compare(c, "dv", &c->dv, s->K, s->T_kv, r->dv, NULL, 5 * tolerance);
  compare_spare(c, c->out, c->o_count, c->o.time);
  compare_spare(c, c->dqkv, c->q_count, c->dq.time);
  compare_spare(c, c->dkv, c->dkv == c->dqkv ? c->q_count : c->kv_count, c->dk.time);
}

static void check_cell(attention_spec spec, fx_attention_isa isa) {
  attention_case c = case_create(spec);
  reference r = reference_create(&c);
  reference_run(&c, &r);
  case_run(&c, 2, isa);
  compare_all(&c, &r);
  reference_destroy(&r);
  case_destroy(&c);
}

static const char *const g_variants[] = {"full",     "causal", "sliding_window", "document_causal",
                                         "document", "random"};
static const int g_lengths[] = {1, 2, 127, 128, 129, 200, 333};
static const int g_heads[][2] = {{1, 1}, {4, 2}, {4, 1}};

/* Every length with itself (fused buffer) and, where no documents are needed, with the next one; run lists in
 * every other cell, dlse in every third. */
static void grid(int D) {
  g_worst = 0;
  int cell = 0;
  for (size_t v = 0; v < sizeof g_variants / sizeof g_variants[0]; v++)
    for (int heads = 0; heads < 3; heads++)
      for (int i = 0; i < 7; i += FX_TEST_CASES(8) == 8 ? 1 : 3) /* lengths */
        for (int other = 0; other < (strncmp(g_variants[v], "document", 8) ? 2 : 1); other++) {
          attention_spec spec = {.variant = g_variants[v],
                                 .B = heads == 0 ? 2 : 1,
                                 .T_q = g_lengths[i],
                                 .T_kv = g_lengths[(i + 3 * other) % 7],
                                 .H = g_heads[heads][0],
                                 .K = g_heads[heads][1],
                                 .D = D,
                                 .window = 50,
                                 .runs = cell % 2 == 0,
                                 .dlse = cell % 3 == 0};
          check_cell(spec, FX_ISA_AUTO);
          cell++;
        }
  CHECK_MSG(g_worst > 0.003 && g_worst <= 1, "largest error is %g of the tolerance", g_worst);
  fprintf(stderr, "[D %d: %d cells, largest error %.3f of the tolerance] ", D, cell, g_worst);
}
static void grid_8(void) {
  grid(8);
}
static void grid_32(void) {
  grid(32);
}
static void grid_64(void) {
  grid(64);
}
static void grid_80(void) {
  grid(80);
}
static void grid_128(void) {
  grid(128);
}
static void grid_256(void) {
  grid(256);
}

/* Enough key tiles for several splits of the backward, and for many rescalings of the forward. */
static void long_rows(void) {
  g_worst = 0;
  for (size_t v = 0; v < sizeof g_variants / sizeof g_variants[0]; v++)
    check_cell((attention_spec){g_variants[v], 1, 1031, 1031, 2, 1, 40, 300, v % 2 == 0, true}, FX_ISA_AUTO);
  check_cell((attention_spec){"random", 1, 70, 1500, 1, 1, 24, 1, true, false}, FX_ISA_AUTO);
  fprintf(stderr, "[largest error %.3f of the tolerance] ", g_worst);
}

/* Every instruction set this processor has; portable always. */
static void instruction_sets(void) {
  int ran = 0;
  for (int isa = FX_ISA_PORTABLE; isa < FX_ISA_COUNT; isa++) {
    const fx_leaf *leaf = fx_leaf_get((fx_attention_isa)isa);
    if (!leaf) continue;
    ran++;
    for (size_t v = 0; v < sizeof g_variants / sizeof g_variants[0]; v++)
      for (int D = 8; D <= 72; D += 16)
        check_cell((attention_spec){g_variants[v], 2, 200, 200, 4, 2, D, 70, true, true},
                   (fx_attention_isa)isa);
    fprintf(stderr, "[%s] ", leaf->name);
  }
  CHECK(ran >= 1);
}

/* sum of out * dout + lse * dlse over rows that see something, from the reference's double inputs */
static double loss(const attention_case *c, reference *r) {
  const attention_spec *s = &c->spec;
  double sum = 0;
  for (int b = 0; b < s->B; b++)
    for (int h = 0; h < s->H; h++) {
      reference_head(c, r, b, h);
      for (int t = 0; t < s->T_q; t++) {
        int64_t row = (int64_t)(b * s->H + h) * s->T_q + t;
        if (r->lse[row] == -INFINITY) continue;
        sum += reference_dot(r->o + row * s->D, r->dout + row * s->D, s->D);
        if (s->dlse) sum += r->lse[row] * (double)c->dlse[(int64_t)(b * s->H + h) * c->limits.Tpad + t];
      }
    }
  return sum;
}

/* Central differences of the double loss against the fp32 kernel's gradient at entries of one input. */
static void differences(const attention_case *c, reference *r, double *input, const fx_attention_out *got,
                        int heads, int T) {
  const attention_spec *s = &c->spec;
  int64_t count = (int64_t)s->B * heads * T * s->D;
  for (int64_t at = 3; at < count; at += count / 11) {
    double before = input[at], step = 1e-4;
    input[at] = before + step;
    double up = loss(c, r);
    input[at] = before - step;
    double down = loss(c, r);
    input[at] = before;
    double want = (up - down) / (2 * step);
    int64_t d = at % s->D, t = at / s->D % T, h = at / s->D / T % heads, b = at / s->D / T / heads;
    double value = (double)((const float *)got->data)[b * got->batch + h * got->head + t * got->time + d];
    CHECK_MSG(fabs(value - want) <= 2e-5 * (1 + fabs(want)), "%s, entry %lld: expected %.9g, got %.9g",
              s->variant, (long long)at, want, value);
  }
}

static void finite_differences(void) {
  for (size_t v = 0; v < sizeof g_variants / sizeof g_variants[0]; v++) {
    attention_case c = case_create((attention_spec){g_variants[v], 2, 45, 45, 4, 2, 16, 11, false, true});
    reference r = reference_create(&c);
    case_run(&c, 1, FX_ISA_AUTO);
    differences(&c, &r, r.q, &c.dq, c.spec.H, c.spec.T_q);
    differences(&c, &r, r.k, &c.dk, c.spec.K, c.spec.T_kv);
    differences(&c, &r, r.v, &c.dv, c.spec.K, c.spec.T_kv);
    reference_destroy(&r);
    case_destroy(&c);
  }
}

/* With m = 0 the softmax leaf gives P = 2^s: at most 2 units in the last place, 0 below -126 and at -inf. */
static void exponential(void) {
  for (int isa = FX_ISA_PORTABLE; isa < FX_ISA_COUNT; isa++) {
    const fx_leaf *leaf = fx_leaf_get((fx_attention_isa)isa);
    if (!leaf) continue;
    enum { KEYS = 4096 };
    float *s = case_room(KEYS * FX_LEAF_GROUP * sizeof(float)),
          *p = case_room(KEYS * FX_LEAF_GROUP * sizeof(float));
    float m[FX_LEAF_GROUP] = {0}, l[FX_LEAF_GROUP] = {0}, alpha[FX_LEAF_GROUP];
    for (int i = 0; i < KEYS * FX_LEAF_GROUP; i++)
      p[i] = s[i] = -127.0f * (float)i / (KEYS * FX_LEAF_GROUP - 1);
    const float special[] = {-126.0f, -126.0001f, -INFINITY, -1e30f, 0.0f, -0.0f, -0.5f, -1.5f};
    memcpy(s, special, sizeof special), memcpy(p, special, sizeof special);
    s[8] = p[8] = NAN;
    leaf->softmax(KEYS, p, FX_LEAF_GROUP, NULL, m, l, alpha);
    double worst = 0;
    for (int i = 0; i < KEYS * FX_LEAF_GROUP; i++) {
      if (i == 8) continue;
      float want = s[i] < -126.0f ? 0.0f : (float)exp2((double)s[i]);
      double ulp = fabs((double)p[i] - (double)want) / fmax((double)want * 0x1p-24, 0x1p-149);
      if (ulp > worst) worst = ulp;
    }
    CHECK_MSG(worst <= 2.0 && worst > 0, "%s: %g half-to-whole units off", leaf->name, worst);
    CHECK(p[2] == 0.0f && p[3] == 0.0f && p[1] == 0.0f && p[0] == 0x1p-126f && p[4] == 1.0f && isnan(p[8]));
    free(s), free(p);
  }
}

static void refusals(void) {
  attention_case c = case_create((attention_spec){"causal", 2, 20, 20, 4, 2, 16, 1, true, false});
  fx_attention_shape good = c.shape, bad;
  good.limits = &c.limits;
  good.runs = &c.runs[0];
  CHECK_OK(fx_attention_cpu_check(FX_ATTENTION_FORWARD, &good));
  CHECK_STATUS((bad = good, bad.D = 12, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)),
               FX_ERR_UNSUPPORTED);
  CHECK_STATUS((bad = good, bad.D = 264, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)),
               FX_ERR_UNSUPPORTED);
  CHECK_STATUS((bad = good, bad.K = 3, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)), FX_ERR_SHAPE);
  CHECK_STATUS((bad = good, bad.T_kv = 0, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)), FX_ERR_SHAPE);
  CHECK_STATUS((bad = good, bad.T_q = 21, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "T=21");
  /* lists built for the forward's tile */
  CHECK_STATUS(fx_attention_cpu_check(FX_ATTENTION_BACKWARD, &good), FX_ERR_SHAPE);
  CHECK_STATUS((bad = good, bad.kv_base = 128, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)),
               FX_ERR_SHAPE);
  fx_limits two = c.limits;
  two.R = 2;
  CHECK_STATUS((bad = good, bad.limits = &two, fx_attention_cpu_check(FX_ATTENTION_FORWARD, &bad)),
               FX_ERR_SHAPE);
  case_destroy(&c);
}

static const fx_test g_tests[] = {
    {"grid, D = 8", grid_8},
    {"grid, D = 32", grid_32},
    {"grid, D = 64", grid_64},
    {"grid, D = 80", grid_80},
    {"grid, D = 128", grid_128},
    {"grid, D = 256", grid_256},
    {"long rows", long_rows},
    {"instruction sets", instruction_sets},
    {"finite differences", finite_differences},
    {"exponential", exponential},
    {"refusals", refusals},
};
FX_TEST_MAIN("flash attention on the CPU", g_tests)
