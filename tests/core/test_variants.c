/* SPDX-License-Identifier: Apache-2.0 */
/* The attention section: the named variants against predicates and formulas written by hand, every form that
 * YAML and overrides may take, and what is refused, with its place. */
#include "attention/variant/build.h"
#include "core/config/config.h"
#include "tests/attention/lang_case.h"

enum { LENGTH = 40 };

typedef struct batch {
  int start[LENGTH], end[LENGTH], id[LENGTH], turn[LENGTH];
} batch;
static batch g_batch;

/* Documents of 1, 2, 13, 17 and 7 positions, turns of 3. */
static void make_batch(void) {
  static const int lengths[] = {1, 2, 13, 17, 7};
  for (int d = 0, at = 0; d < 5; at += lengths[d++])
    for (int i = 0; i < lengths[d]; i++) {
      g_batch.start[at + i] = at;
      g_batch.end[at + i] = at + lengths[d];
      g_batch.id[at + i] = d;
      g_batch.turn[at + i] = i / 3;
    }
}

static double read_batch(const fx_ex_pool *pool, const fx_ex_node *n, const double *index) {
  const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
  int64_t at = 0;
  for (int i = 0; i < buffer->ndim; i++) {
    int k = (int)fmin(fmax(index[i], 0), buffer->dim[i] - 1);
    at = at * buffer->dim[i] + k;
  }
  if (buffer->constant && buffer->type == FX_EX_FLOAT) return (double)((const float *)buffer->constant)[at];
  if (buffer->constant) return ((const int32_t *)buffer->constant)[at];
  if (buffer->learnable) return (double)(at % 97) * 0.25; /* of table number `at` */
  if (strcmp(buffer->name, "doc_start") == 0) return g_batch.start[at];
  if (strcmp(buffer->name, "doc_end") == 0) return g_batch.end[at];
  if (strcmp(buffer->name, "doc_id") == 0) return g_batch.id[at];
  if (strcmp(buffer->name, "position") == 0) return (double)at - g_batch.start[at];
  if (strcmp(buffer->name, "turn") == 0) return g_batch.turn[at];
  if (strcmp(buffer->name, "role") == 0) return g_batch.turn[at] % 2;
  CHECK_MSG(false, "nobody knows the input %s", buffer->name);
  return 0;
}

/* The configuration of `yaml` with 4 heads and sequences of LENGTH. */
static fx_config *configure(const char *yaml) {
  char text[4000];
  fx_config *cfg = NULL;
  snprintf(text, sizeof text, "train: {seq_length: %d}\n%s", LENGTH, yaml);
  CHECK_MSG(fx_config_parse(text, "x.yaml", &cfg) == FX_OK, "%s\n%s", yaml, fx_error_text());
  return cfg;
}

static fx_variant *variant_of(const fx_config *cfg, int32_t kind) {
  fx_variant *v = NULL;
  fx_ex_ranges ranges = {4, LENGTH, LENGTH};
  if (cfg) CHECK_OK(fx_config_variant(cfg, kind, &ranges, &v));
  return v;
}

/* ---- the named variants ---- */

static bool same_doc(int q, int kv) {
  return g_batch.id[q] == g_batch.id[kv];
}
static bool sees_full(int q, int kv) {
  return q >= 0 && kv >= 0;
}
static bool sees_causal(int q, int kv) {
  return kv <= q;
}
static bool sees_window(int q, int kv) {
  return kv <= q && kv > q - 5;
}
static bool sees_dilated(int q, int kv) {
  for (int i = 0; i < 4; i++)
    if (kv == q - 3 * i) return true;
  return false;
}
static bool sees_chunk(int q, int kv) {
  int begin = q - q % 8;
  return begin <= kv && kv <= q;
}
static bool sees_prefix(int q, int kv) {
  return kv < 6 || kv <= q;
}
static bool sees_document_causal(int q, int kv) {
  return same_doc(q, kv) && kv <= q;
}
static bool sees_document(int q, int kv) {
  return same_doc(q, kv);
}
static bool sees_document_prefix(int q, int kv) {
  return same_doc(q, kv) && (kv <= q || kv - g_batch.start[kv] < 4);
}
static bool sees_global(int q, int kv) {
  return q < 2 || kv < 2 || (q - kv <= 5 && kv - q <= 5);
}
static bool sees_shared(int q, int kv) {
  return kv <= q && (kv < 3 || same_doc(q, kv));
}
static bool sees_neighbours(int q, int kv) {
  int rows = q / 8 - kv / 8, columns = q % 8 - kv % 8;
  return rows * rows <= 4 && columns * columns <= 4;
}
static bool sees_diffusion(int q, int kv) {
  int half = LENGTH / 2, qb = q % half / 4, kb = kv % half / 4;
  bool noised_q = q < half, noised_kv = kv < half;
  if (noised_kv) return noised_q && qb == kb; /* noised text: its own block only */
  return noised_q ? kb < qb : kb <= qb;       /* clean text: blocks before; clean blocks see themselves */
}
static bool sees_conversation(int q, int kv) {
  if (!same_doc(q, kv) || kv > q) return false;
  return g_batch.turn[kv] % 2 == 0 || g_batch.turn[q] - g_batch.turn[kv] <= 1;
}

static void named_masks(void) {
  static const struct {
    const char *yaml;
    bool (*sees)(int q, int kv);
  } rows[] = {
      {"variant: full", sees_full},
      {"variant: causal", sees_causal},
      {"variant: sliding_window, params: {window: 5}", sees_window},
      {"variant: dilated_window, params: {window: 4, dilation: 3}", sees_dilated},
      {"variant: chunked, params: {chunk: 8}", sees_chunk},
      {"variant: prefix_lm, params: {prefix: 6}", sees_prefix},
      {"variant: document_causal", sees_document_causal},
      {"variant: document", sees_document},
      {"variant: document_prefix, params: {prefix: 4}", sees_document_prefix},
      {"variant: global_sliding, params: {window: 5, globals: 2}", sees_global},
      {"variant: shared_prefix, params: {prefix: 3}", sees_shared},
      {"variant: neighbourhood_2d, params: {width: 8, radius: 2}", sees_neighbours},
      {"variant: block_diffusion, params: {block: 4}", sees_diffusion},
      {"variant: conversation, params: {memory: 1}", sees_conversation},
      {"variant: soft_sliding_window, params: {window: 5}", sees_causal},
      {"variant: alibi", sees_causal},
      {"variant: t5_bias", sees_causal},
      {"variant: softcap", sees_causal},
      {"variant: temperature", sees_causal},
      {"variant: sinks", sees_causal},
      {"mask: {all: [causal, document]}", sees_document_causal},
      {"mask: {any: [causal, \"kv < n\"]}, params: {n: 6}", sees_prefix},
      {"mask: {not: {any: [\"kv > q\", {not: \"kv > q - 5\"}]}}", sees_window},
      {"mask: {all: [sliding_window]}, params: {window: 5}", sees_window},
      {"mask: {all: []}", sees_full},
      {"variant: mine, variants: {mine: {mask: {all: [theirs, document]}}, theirs: causal}",
       sees_document_causal},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char yaml[500];
    snprintf(yaml, sizeof yaml, "attention: {%s}\n", rows[i].yaml);
    fx_config *cfg = configure(yaml);
    fx_variant *v = variant_of(cfg, 0);
    int wrong = 0;
    for (int q = 0; v && q < LENGTH; q++)
      for (int kv = 0; kv < LENGTH; kv++) {
        point at = {0, 1, q, kv};
        wrong += (v->mask == FX_EX_NONE || value_at(v->pool, v->mask, &at) != 0) != rows[i].sees(q, kv);
        wrong += v->mask_fault != FX_EX_NONE && value_at(v->pool, v->mask_fault, &at) != 0;
      }
    CHECK_MSG(v && wrong == 0, "%s: %d pairs wrong", rows[i].yaml, wrong);
    fx_variant_destroy(v);
    fx_config_destroy(cfg);
  }
}

static double
bucket_of(int distance) { /* T5's relative_position_bucket, one-directional, 32 buckets up to 128 */
  int n = distance < 0 ? 0 : distance;
  double large = 16 + trunc(log(n / 16.0) / log(128 / 16.0) * 16);
  return n < 16 ? n : fmin(large, 31);
}
static double score_alibi(double s, int h, int q, int kv) {
  return s - pow(2, -2.0 * (h + 1)) * (q - kv);
}
static double score_soft(double s, int h, int q, int kv) {
  (void)h;
  return s - (q - kv >= 5 ? 0.5 * (q - kv - 4) : 0);
}
static double score_t5(double s, int h, int q, int kv) {
  return s + (double)((int)(h * 32 + bucket_of(q - kv)) % 97) * 0.25;
}
static double score_twice(double s, int h, int q, int kv) { /* by one table */
  return score_t5(score_t5(s, h, q, kv), h, q, kv);
}
static double score_cap(double s, int h, int q, int kv) {
  (void)h, (void)q, (void)kv;
  return 30 * tanh(s / 30);
}
static double score_temperature(double s, int h, int q, int kv) {
  (void)h, (void)q, (void)kv;
  return s / 2.5;
}
static double score_both(double s, int h, int q, int kv) {
  return score_alibi(score_cap(s, h, q, kv), h, q, kv) * 2;
}

static void named_scores(void) {
  static const struct {
    const char *yaml;
    double (*score)(double s, int h, int q, int kv);
    bool sloped, guarded;
    int tables;
  } rows[] = {
      {"variant: alibi", score_alibi, false, false, 0},
      {"variant: soft_sliding_window, params: {window: 5, slope: 0.5}", score_soft, false, false, 0},
      {"variant: t5_bias", score_t5, false, false, 1},
      {"score: [t5_bias, t5_bias]", score_twice, false, false, 1},
      {"variant: softcap, params: {cap: 30}", score_cap, true, false, 0},
      {"variant: temperature, params: {temperature: 2.5}", score_temperature, true, false, 0},
      {"score: [softcap, alibi, \"score * 2\"], params: {cap: 30.0}", score_both, true, false, 0},
      {"score: score / limit, params: {limit: 2.5}", score_temperature, true, false, 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char yaml[500];
    snprintf(yaml, sizeof yaml, "attention: {%s}\n", rows[i].yaml);
    fx_config *cfg = configure(yaml);
    fx_variant *v = variant_of(cfg, 0);
    double worst = v ? 0 : INFINITY;
    for (int q = 0; v && q < LENGTH; q++)
      for (int kv = 0; kv <= q; kv++) {
        point at = {0.7 * q - 1.3 * kv, (q + kv) % 4, q, kv};
        double want = rows[i].score(at.score, at.h, q, kv), got = value_at(v->pool, v->score, &at);
        worst = fx_worse(worst, fabs(got - want) / (1 + fabs(want)));
        CHECK(v->score_fault == FX_EX_NONE || value_at(v->pool, v->score_fault, &at) == 0);
      }
    CHECK_MSG(worst < 1e-5, "%s: off by %g", rows[i].yaml, worst);
    if (v) {
      CHECK_MSG((v->slope != FX_EX_NONE) == rows[i].sloped, "%s: slope %d", rows[i].yaml, v->slope);
      CHECK_MSG(v->guarded == rows[i].guarded, "%s: guarded %d", rows[i].yaml, v->guarded);
      CHECK_INT(v->num_tables, rows[i].tables);
      CHECK_INT(v->num_reads, rows[i].tables);
    }
    fx_variant_destroy(v);
    fx_config_destroy(cfg);
  }
}

/* Press et al.'s slopes where the number of heads is no power of two. */
static void alibi_of_six_heads(void) {
  static const int exponents[] = {2, 4, 6, 8, 1, 3};
  fx_variant *v = NULL;
  fx_config *cfg = configure("attention: {variant: alibi}");
  if (cfg && CHECK_OK(fx_config_variant(cfg, 0, &(fx_ex_ranges){6, 64, 64}, &v)))
    for (int h = 0; h < 6; h++) {
      double got = value_at(v->pool, v->score, &(point){0, h, 32, 0}), want = -32 * pow(2, -exponents[h]);
      CHECK_MSG(fabs(got - want) < 1e-5 * -want, "head %d: expected %g, got %g", h, want, got);
    }
  fx_variant_destroy(v);
  fx_config_destroy(cfg);
}

/* ---- what a model needs ---- */

static void tables_and_sinks(void) {
  fx_config *cfg = configure(
      "attention:\n"
      "  score: score + near[h, clamp[q]] * far[q % 4] + fixed[h][kv % 2]\n"
      "  sinks: true\n"
      "  params: {reach: 3}\n"
      "  buffers:\n"
      "    near: {shape: [H, 2*reach + 1], learnable: true, init: {normal: 0.5}, weight_decay: true}\n"
      "    far: {shape: [4], learnable: true, init: {constant: 2}}\n"
      "    clamp: {shape: [T], type: int, expression: \"min(i, 2*reach)\"}\n"
      "    fixed: {shape: [H, 2], values: [[1, 2], [3, 4], [5, 6], [7, 8.5]]}\n");
  fx_variant *v = variant_of(cfg, 0);
  if (v) {
    CHECK(v->sinks && !v->guarded && v->slope == FX_EX_NONE && v->score_fault == FX_EX_NONE);
    CHECK_INT(v->num_tables, 2);
    CHECK_INT(v->num_reads, 2);
    for (int i = 0; i < v->num_tables; i++) {
      const fx_ex_buffer *buffer = fx_ex_buffer_at(v->pool, v->tables[i].buffer);
      bool near = strcmp(buffer->name, "near") == 0;
      CHECK(buffer->learnable && (near || strcmp(buffer->name, "far") == 0));
      CHECK_INT(buffer->dim[0], 4);
      if (near) CHECK_INT(buffer->dim[1], 7);
      CHECK_INT(v->tables[i].init, near ? FX_TABLE_INIT_NORMAL : FX_TABLE_INIT_CONSTANT);
      CHECK(v->tables[i].value == (near ? 0.5f : 2.0f) && v->tables[i].weight_decay == near);
    }
    CHECK(fabs(value_at(v->pool, v->score, &(point){0, 3, 9, 1}) - (6.75 * 0.25 + 8.5)) < 1e-6);
    for (int i = 0; i < v->num_reads; i++) { /* each table's slope is the other one's value */
      const fx_ex_node *load = fx_ex_get(v->pool, v->reads[i].load),
                       *slope = fx_ex_get(v->pool, v->reads[i].slope);
      CHECK(load->op == FX_EX_LOAD && slope->op == FX_EX_LOAD && load->index != slope->index);
    }
  }
  fx_variant_destroy(v);
  fx_config_destroy(cfg);
}

/* What a variant says, unless the section says otherwise; names of the user's do not reach into built-in
 * files. */
static void inheritance(void) {
  static const struct {
    const char *yaml;
    bool sinks, causal;
  } rows[] = {
      {"variant: sinks", true, true},
      {"variant: sinks, sinks: auto, mask: full, score: -score", true, false},
      {"variant: sinks, sinks: false", false, true},
      {"variant: causal, sinks: true", true, true},
      {"variants: {causal: full}", false, false},
      {"variant: alibi, variants: {causal: full}", false, true},
      {"variant: mine, variants: {mine: {variant: sinks, mask: full}}", true, false},
      {"variant: causal, variants: {causal: {variant: causal, sinks: true}}", true, true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char yaml[300];
    snprintf(yaml, sizeof yaml, "attention: {%s}", rows[i].yaml);
    fx_config *cfg = configure(yaml);
    fx_variant *v = variant_of(cfg, 0);
    CHECK_MSG(v && v->sinks == rows[i].sinks, "%s: sinks", rows[i].yaml);
    CHECK_MSG(v && (v->mask != FX_EX_NONE) == rows[i].causal, "%s: mask", rows[i].yaml);
    fx_variant_destroy(v);
    fx_config_destroy(cfg);
  }
}

static void layers(void) {
  fx_config *cfg =
      configure("model: {num_hidden_layers: 7}\n"
                "attention:\n"
                "  layers: [local, local, global, {variant: softcap, params: {cap: 20.0}}, causal, global]\n"
                "  variants:\n"
                "    local: {variant: sliding_window, params: {window: 7}}\n"
                "    global: {mask: document_causal, sinks: true}\n");
  static const int32_t kinds[] = {0, 0, 1, 2, 3, 1, 0, 0, 1};
  if (!cfg) return;
  CHECK_INT(fx_config_num_variants(cfg), 4);
  for (int i = 0; i < 9; i++) CHECK_INT(fx_config_layer_variant(cfg, i), kinds[i]);
  static const char *const says[] = {"q - kv < 7", "doc_start[q] <= kv", "cap = 20", "mask kv <= q"};
  for (int32_t kind = 0; kind < 4; kind++) {
    fx_variant *v = variant_of(cfg, kind);
    if (!v) continue;
    CHECK_HAS(v->text, says[kind]);
    CHECK(v->sinks == (kind == 1));
    fx_variant_destroy(v);
  }
  fx_config_destroy(cfg);
  cfg = configure(
      "attention: {layers: [sliding_window, causal], variants: {sliding_window: {params: {window: 3}}}}");
  fx_variant *v = variant_of(cfg, 0);
  if (v) CHECK_HAS(v->text, "q - kv < 3"); /* the entry gives the built-in one its parameter */
  fx_variant_destroy(v);
  fx_config_destroy(cfg);
}

/* ---- texts of the configuration ---- */

static void check_round_trip(const fx_config *cfg, const char *what) {
  fx_config *again = NULL;
  char *first = fx_config_print(cfg), *second = NULL;
  if (CHECK_MSG(fx_config_parse(first, "again", &again) == FX_OK, "%s: %s", what, fx_error_text())) {
    second = fx_config_print(again);
    CHECK_STR(second, first);
    CHECK_INT(fx_config_num_variants(again), fx_config_num_variants(cfg));
    for (int32_t kind = 0; kind < fx_config_num_variants(cfg); kind++) {
      fx_variant *a = variant_of(cfg, kind), *b = variant_of(again, kind);
      CHECK_STR(b->text, a->text);
      CHECK(a->hash.low == b->hash.low && a->hash.high == b->hash.high);
      fx_variant_destroy(a);
      fx_variant_destroy(b);
    }
  }
  free(first);
  free(second);
  fx_config_destroy(again);
}

static void files_and_overrides(void) {
  const char *dir = fx_temp_dir();
  char path[300], where[400];
  fx_config *cfg = NULL;
  fx_temp_file(dir, "wide.yaml",
               "# wide\nparams: {reach: 4}\nmask:\n  all:\n    - base.yaml\n    - |\n      # near\n"
               "      q - kv\n        < reach\n");
  fx_temp_file(dir, "base.yaml", "mask: >\n  kv\n  <= q\n");
  const char *top =
      fx_temp_file(dir, "top.yaml", "train: {seq_length: 40}\nattention: {variant: wide.yaml}\n");
  if (CHECK_OK(fx_config_load(top, NULL, 0, &cfg))) {
    fx_variant *v = variant_of(cfg, 0);
    if (v) CHECK_HAS(v->text, "mask kv <= q && q - kv < 4");
    CHECK_STR(cfg->attention.variant, "wide");
    fx_variant_destroy(v);
    check_round_trip(cfg, "files");
  }
  fx_config_destroy(cfg);
  cfg = NULL;
  snprintf(path, sizeof path, "attention.layers=[%s/wide.yaml, causal, near]", dir);
  const char *overrides[] = {path,
                             "attention.variants.near.mask=q >= kv ? q - kv < n : false",
                             "attention.variants.near.params.n=3",
                             "attention.variants.near.params.n=6",
                             "attention.variants.near.score=[softcap, \"-score\"]",
                             "attention.variants.wide.params.reach=9"};
  CHECK_STATUS(fx_config_load(top, overrides, 6, &cfg),
               FX_ERR_CONFIG); /* a file becomes an entry only later */
  CHECK_HAS(fx_error_text(), "attention.variants.wide has neither variant nor mask");
  if (CHECK_OK(fx_config_load(top, overrides, 5, &cfg))) {
    fx_variant *v = variant_of(cfg, 2);
    if (v) CHECK_HAS(v->text, "q - kv < 6");
    if (v) CHECK_HAS(v->text, "score -(tanh(score / cap) * cap)");
    fx_variant_destroy(v);
    snprintf(where, sizeof where, "command line: %s", "attention.variants.near.params.n=6");
    CHECK_STR(fx_config_where(cfg, "attention.variants.near.params.n"), where);
    CHECK_STR(fx_config_where(cfg, "attention.variants.near.params.m"), "default");
    check_round_trip(cfg, "overrides");
  }
  fx_config_destroy(cfg);
  cfg = NULL;
  /* places inside a block of several lines, and in a file that another one names */
  fx_temp_file(dir, "base.yaml", "mask: |\n  kv <= q\n    && kw > 0\n");
  CHECK_STATUS(fx_config_load(top, NULL, 0, &cfg), FX_ERR_CONFIG);
  snprintf(where, sizeof where, "%s/base.yaml:3:8: the name \"kw\" is not known here; the nearest is kv\n",
           dir);
  CHECK_HAS(fx_error_text(), where);
  CHECK_HAS(fx_error_text(), "\n      && kw > 0\n         ^");
  fx_temp_file(dir, "base.yaml", "mask: wide.yaml\n");
  CHECK_STATUS(fx_config_load(top, NULL, 0, &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "refers to itself");
  fx_temp_file(dir, "base.yaml", "mask: gone.yaml\n");
  CHECK_STATUS(fx_config_load(top, NULL, 0, &cfg), FX_ERR_CONFIG);
  snprintf(where, sizeof where, "%s/base.yaml:1:7: ", dir);
  CHECK_HAS(fx_error_text(), where);
  CHECK_HAS(fx_error_text(), "gone.yaml cannot be read");
}

static void warnings(void) {
  fx_config *cfg = configure("attention: {score: score - (q - kv) / 2 * 0.5}");
  if (cfg && CHECK_INT(cfg->warnings.count, 1))
    CHECK_HAS(cfg->warnings.items[0], "x.yaml:2:37: this / divides ints");
  fx_config_destroy(cfg);
}

typedef struct bad {
  const char *yaml, *place, *says;
} bad;

static void refusals(void) {
  static const bad rows[] = {
      {"{mask: q > kw}", "1:23", "the name \"kw\""},
      {"{mask: \"q > kw\"}", "1:24", "the name \"kw\""},
      {"{mask: 'q > kw'}", "1:24", "the name \"kw\""},
      {"\n  mask: q >\n    kw\n", "3:5", "the name \"kw\""},
      {"{mask: causl}", "1:19", "mask=causl is not a known variant; the nearest is causal"},
      {"{mask: q - kv}", "1:19", "a mask is a condition"},
      {"{mask: score > 0.0}", "1:19", "a mask cannot read score"},
      {"{mask: \"t[h] > 0.0\", buffers: {t: {shape: [H], learnable: true}}}", "1:20",
       "a mask cannot read the learnable table t"},
      {"{score: q < kv}", "1:20", "a score is a number"},
      {"{score: \"score + u[int(t[h])]\", buffers: {t: {shape: [H], learnable: true}, u: {shape: [4], "
       "values: [1, 2, 3, "
       "4]}}}",
       "1:21", "read in the index of u"},
      {"{mask: {every: [causal]}}", "1:20", "every is not a key of a mask; the nearest is any"},
      {"{mask: [causal]}", "1:19", "one of {all: [...]}, {any: [...]}, {not: ...}, got a list of 1"},
      {"{mask: {not: [causal]}}", "1:25", "not expects one mask"},
      {"\n  mask: !(q < kv)\n", "2:9", "has to stand in quotes"},
      {"{params: {window: big}}", "1:30", "window expects a number"},
      {"{params: {q: 1}}", "1:22", "the name q is taken"},
      {"{params: {token: 1}}", "1:22", "the name token is taken"},
      {"{params: {2x: 1}}", "1:22", "no name for expressions"},
      {"{params: {n: {typ: int}}}", "1:26", "typ is not a key of a parameter; the nearest is type"},
      {"{variant: softcap, params: {cap: 0}}", "1:45",
       "attention.params.cap expects a number, at least 0.001"},
      {"{variant: sliding_window, params: {window: 1.5}}", "1:55", "expects an integer"},
      {"{variant: sliding_window, params: {windw: 1}}", "1:22", "needs attention.params.window"},
      {"{variant: softcap, params: {capp: 1}}", "1:46",
       "takes no parameter attention.params.capp; the nearest is cap"},
      {"{buffers: {t: {shape: [H], learnable: true}}}", "1:26", "takes no buffer attention.buffers.t"},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [H]}}}", "1:49", "t needs one of values"},
      {"{score: \"score + t[h]\", buffers: {t: {learnable: true}}}", "1:49", "t has no shape"},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [H], values: [1, 2]}}}", "1:49",
       "t has 2 values, expected 4"},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [q], learnable: true}}}", "1:58",
       "q is not known here"},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [0], learnable: true}}}", "1:58", "extent 0 is 0"},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [H], expression: j}}}", "1:74", "the name \"j\""},
      {"{score: \"score + t[h]\", buffers: {t: {shape: [H], size: 1}}}", "1:62",
       "size is not a key of a buffer"},
      {"{sinks: maybe}", "1:20", "auto, true or false"},
      {"{layers: []}", "1:21", "expects a list of variants"},
      {"{layers: [causal], score: -score}", "1:38", "not used beside attention.layers"},
      {"{layers: [causal, locl], variants: {local: causal}}", "1:30", "the nearest is local"},
      {"{layers: [sliding_window]}", "1:22", "needs attention.variants.sliding_window.params.window"},
      {"{layers: [a], variants: {a: {score: -score}}}", "1:40", "neither variant nor mask"},
      {"{variant: one, variants: {one: {variant: two}, two: {variant: one}}}", "1:22", "refers to itself"},
      {"{variant: one, variants: {one: two, two: one}}", "1:38", "more than 32 names"},
      {"{variants: {q: causal}}", "1:24", "q cannot be the name of a variant"},
      {"{variants: {a: {maks: causal}}, variant: a}", "1:28",
       "maks is not a key of attention.variants.a; the nearest is mask"},
      {"{params: {n: {default: 1, default: 2}}}", "1:38", "given twice"},
      {"{turn_token: -1}", "1:25", "attention.turn_token expects an integer"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_config *cfg = NULL;
    char yaml[600], start[64];
    snprintf(yaml, sizeof yaml, "attention: %s\n", rows[i].yaml);
    snprintf(start, sizeof start, "x.yaml:%s", rows[i].place);
    fx_error_clear();
    CHECK_MSG(fx_config_parse(yaml, "x.yaml", &cfg) == FX_ERR_CONFIG, "%s: expected to be refused", yaml);
    bool placed = !*rows[i].place || (strncmp(fx_error_text(), start, strlen(start)) == 0 &&
                                      fx_error_text()[strlen(start)] == ':');
    CHECK_MSG(placed, "%s: expected %s, got \"%s\"", yaml, start, fx_error_text());
    CHECK_HAS(fx_error_text(), rows[i].says);
    fx_config_destroy(cfg);
  }
}

/* An alias of an alias of ...: refused before memory is gone. */
static void hostile_aliases(void) {
  char yaml[4000] = "model: {name: x}\nattention:\n  variants:\n    a0: &a0 {x: [1, 1, 1, 1]}\n";
  fx_config *cfg = NULL;
  for (int i = 1; i < 16; i++) {
    char line[200];
    snprintf(line, sizeof line, "    a%d: &a%d {x: [*a%d, *a%d, *a%d, *a%d]}\n", i, i, i - 1, i - 1, i - 1,
             i - 1);
    strcat(yaml, line);
  }
  CHECK_STATUS(fx_config_parse(yaml, "x.yaml", &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "more than 100000 parts");
  CHECK_STATUS(fx_config_parse("attention: {variants: &a {x: *a}}", "x.yaml", &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "deeper than 24 levels");
  char list[2000] = "attention: {score: [";
  for (int i = 0; i < 65; i++) strcat(list, "-score, ");
  strcat(list, "score]}");
  CHECK_STATUS(fx_config_parse(list, "x.yaml", &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "more than 64 scores");
}

static const fx_test tests[] = {
    {"named masks against predicates", named_masks},
    {"named scores against formulas", named_scores},
    {"ALiBi's slopes of six heads", alibi_of_six_heads},
    {"tables and sinks", tables_and_sinks},
    {"inheritance", inheritance},
    {"layers", layers},
    {"files, overrides, round trips", files_and_overrides},
    {"warnings", warnings},
    {"refusals with their place", refusals},
    {"hostile aliases", hostile_aliases},
};

int main(void) {
  g_read = read_batch;
  make_batch();
  return fx_test_main("variants", tests, (int)(sizeof tests / sizeof tests[0]));
}
