/* SPDX-License-Identifier: Apache-2.0 */
/* Variants from nodes and from descriptions in C: what follows from mask and score, what is refused and why,
 * and when two are one kernel. */
#include "attention/variant/build.h"
#include "attention/variant/variant.h"
#include "tests/attention/lang_case.h"

/* A variant of two texts in the pool of lang_case.h; NULL where it is refused. */
static fx_variant *create(const char *mask, const char *score, bool sinks) {
  fx_ex_pool *pool = make_pool();
  fx_variant_parts parts = {"test", FX_EX_NONE, FX_EX_NONE, sinks, NULL, 0};
  fx_variant *v = NULL;
  if (mask) parts.mask = parse(pool, mask);
  if (score) parts.score = parse(pool, score);
  if (fx_variant_create(pool, &parts, &v) == FX_OK) return v;
  fx_ex_pool_destroy(pool);
  return NULL;
}

static void what_follows(void) {
  fx_variant *v = create("q >= q", "score", false); /* everything, as it is */
  CHECK(v->mask == FX_EX_NONE && v->score == FX_EX_NONE && v->slope == FX_EX_NONE && !v->guarded);
  fx_variant_destroy(v);
  v = create("kv <= q", "score - float(q - kv) * rate", false);
  CHECK(v->mask != FX_EX_NONE && v->slope == FX_EX_NONE && v->mask_fault == FX_EX_NONE && !v->guarded);
  CHECK_HAS(v->text, "mask kv <= q; score score - ");
  CHECK_HAS(v->text, "rate = 0.75");
  fx_variant_destroy(v);
  v = create("sign[q - kv] > 0", "where(kv < 3, score * bias[h, q] * bias[h, 0], -inf)", true);
  CHECK(v->mask_fault != FX_EX_NONE && v->score_fault != FX_EX_NONE && v->slope != FX_EX_NONE);
  CHECK(v->guarded && v->sinks);
  CHECK_INT(v->num_reads, 2);
  CHECK_INT(v->num_tables, 1);
  CHECK(v->tables[0].init == FX_TABLE_INIT_ZEROS && !v->tables[0].weight_decay);
  for (int i = 0; i < v->num_reads; i++) { /* the slope by one read is the score times the other one */
    point at = {1.5, 2, 3, 1};
    double other = value_at(v->pool, v->reads[1 - i].load, &at);
    CHECK(fabs(value_at(v->pool, v->reads[i].slope, &at) - 1.5 * other) < 1e-6);
  }
  CHECK(value_at(v->pool, v->slope, &(point){1.5, 2, 3, 5}) == 0); /* masked by -inf: no slope */
  fx_variant_destroy(v);
}

static void refusals(void) {
  static const struct {
    const char *mask, *score, *says;
  } rows[] = {
      {"q - kv", NULL, "a mask is a condition"},
      {"score > 0.0", NULL, "cannot read score"},
      {"bias[h, 0] > 0.0", NULL, "cannot read the learnable table bias"},
      {NULL, "q < kv", "a score is a number"},
      {NULL, "score + float(sign[int(bias[h, 0])])", "the learnable table bias is read in the index of sign"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK(create(rows[i].mask, rows[i].score, false) == NULL);
    CHECK_HAS(fx_error_text(), rows[i].says);
  }
}

static bool same_kernel(const fx_variant *a, const fx_variant *b) {
  return a->hash.low == b->hash.low && a->hash.high == b->hash.high;
}

/* {name, value, score} of a described variant with one float parameter. */
static fx_variant *described(const char *name, double value, const char *score, const char *mask) {
  fx_param_spec param = {.has_value = true, .value = value};
  snprintf(param.name, sizeof param.name, "%s", name);
  fx_mask_tree tree = {.kind = FX_MASK_TEXT, .text = {.text = mask}};
  fx_score_part part = {.text = {.text = score}};
  fx_variant_spec spec = {.name = "d",
                          .path = "x",
                          .mask = &tree,
                          .score = &part,
                          .num_scores = 1,
                          .param = &param,
                          .num_params = 1};
  fx_variant *v = NULL;
  CHECK_OK(fx_variant_build(&spec, &(fx_ex_ranges){H, T, T}, NULL, &v));
  return v;
}

static void kernels(void) {
  fx_variant *base = described("cap", 30, "cap * tanh(score / cap)", "kv <= q");
  fx_variant *named = described("limit", 5, "tanh(score / limit) * limit", "q >= kv");
  fx_variant *other = described("cap", 30, "cap * tanh(score / cap)", "kv < q");
  fx_variant *zero = described("cap", 0, "cap * tanh(score / cap)", "kv <= q"); /* its kernels are guarded */
  CHECK(same_kernel(base, named) && !same_kernel(base, other) && !same_kernel(base, zero));
  CHECK(strcmp(base->text, named->text) != 0);
  CHECK(!base->guarded && zero->guarded);
  fx_variant_destroy(base);
  fx_variant_destroy(named);
  fx_variant_destroy(other);
  fx_variant_destroy(zero);
}

/* One description used twice, under two values of its parameter, beside an any: */
static void references(void) {
  fx_param_spec inner = {
      .name = "window", .is_int = true, .has_value = true, .value = 4, .min = 1, .max = 100};
  fx_mask_tree near = {.kind = FX_MASK_TEXT, .text = {.text = "abs(q - kv) < window"}};
  fx_variant_spec window = {.name = "near", .path = "x", .mask = &near, .param = &inner, .num_params = 1};
  fx_param_spec outer = {.name = "window", .is_int = true, .has_value = true, .value = 9};
  fx_mask_tree reference = {.kind = FX_MASK_SPEC, .spec = &window};
  fx_variant_spec wide = {.name = "wide", .path = "x", .mask = &reference, .param = &outer, .num_params = 1};
  fx_mask_tree parts[2] = {
      {.kind = FX_MASK_SPEC, .spec = &window},
      {.kind = FX_MASK_NOT, .part = &(fx_mask_tree){.kind = FX_MASK_SPEC, .spec = &wide}, .num_parts = 1}};
  fx_mask_tree any = {.kind = FX_MASK_ANY, .part = parts, .num_parts = 2};
  fx_variant_spec both = {.name = "both", .path = "x", .mask = &any};
  fx_variant *v = NULL;
  if (!CHECK_OK(fx_variant_build(&both, &(fx_ex_ranges){H, T, T}, NULL, &v))) return;
  for (int d = 0; d < 20; d++) {
    bool got = value_at(v->pool, v->mask, &(point){0, 0, 20, 20 - d}) != 0;
    CHECK_MSG(got == (d < 4 || d >= 9), "distance %d: got %d", d, got);
  }
  fx_variant_destroy(v);
}

static const fx_test tests[] = {
    {"what follows from mask and score", what_follows},
    {"refusals", refusals},
    {"which variants share a kernel", kernels},
    {"references and parameters", references},
};
FX_TEST_MAIN("variant", tests)
