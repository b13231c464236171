/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that compare their configurations: alike, different in any one key of the schema, inside a variant,
 * in what may differ by host; and a run of the trainer, which such a difference ends before anything is
 * written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/config/agree.h"
#include "core/config/origins.h"
#include "core/config/tree.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/local/local.h"
#include "tests/core/train_ranks.h"
#include "tests/harness.h"

#define ADVICE "; start all ranks with the same config and overrides"
#define DIFFERENT(rank) "ranks 0 and " rank " were given different configurations: "

enum { MAX_RANKS = 8 };

typedef struct agree_case {
  const char *yaml, *odd_yaml; /* of all ranks, of the odd one */
  int odd;                     /* -1: none */
  bool absent;                 /* the odd rank does not come */
  const fx_key *change;        /* of the odd rank; NULL: none */
  fx_status status[MAX_RANKS];
  char text[MAX_RANKS][2048];
} agree_case;

/* Another value of the same type, whatever its range. */
static void change(fx_config *cfg, const fx_key *key) {
  char *field = (char *)cfg + key->offset;
  fx_config_strings *list = (fx_config_strings *)(void *)field;
  int word = 0;
  int64_t count = 0;
  double number = 0;
  switch (key->kind) {
  case FX_KEY_BOOL:
    *(bool *)field = !*(bool *)field;
    break;
  case FX_KEY_INT:
    memcpy(&count, field, sizeof count);
    count += 2; /* auto becomes 1 */
    memcpy(field, &count, sizeof count);
    break;
  case FX_KEY_FLOAT:
  case FX_KEY_PAIR: /* the first */
    memcpy(&number, field, sizeof number);
    number += 1.0 / 1024 / 1024;
    memcpy(field, &number, sizeof number);
    break;
  case FX_KEY_ENUM:
    memcpy(&word, field, sizeof word);
    word = (word + 1) % fx_words_count(key->values);
    memcpy(field, &word, sizeof word);
    break;
  case FX_KEY_STRING:
    free(*(char **)(void *)field);
    *(char **)(void *)field = strdup("another");
    break;
  case FX_KEY_STRINGS:
    free(list->items); /* of none */
    CHECK_INT(list->count, 0);
    list->items = calloc(1, sizeof *list->items);
    list->items[list->count++] = strdup("another");
    break;
  case FX_KEY_TREE:
    CHECK(*(fx_tree **)(void *)field == NULL);
    CHECK_OK(fx_calloc(field, 1, sizeof(fx_tree)));
    (*(fx_tree **)(void *)field)->kind = FX_TREE_LIST;
    break;
  }
}

static fx_status agree_rank(fx_control *control, void *ctx) {
  agree_case *c = ctx;
  int r = control->rank;
  fx_config *cfg = NULL;
  if (c->absent && r == c->odd) return FX_OK;
  FX_TRY(fx_config_parse(r == c->odd && c->odd_yaml ? c->odd_yaml : c->yaml, "x.yaml", &cfg));
  if (c->change && r == c->odd) change(cfg, c->change);
  c->status[r] = fx_config_agree(cfg, control, c->absent ? 1500 : 60000);
  snprintf(c->text[r], sizeof c->text[r], "%s", c->status[r] == FX_OK ? "" : fx_error_text());
  fx_config_destroy(cfg);
  return FX_OK;
}

/* Every rank that came ends with `status` and one and the same sentence. */
static void run_case(agree_case *c, int ranks, fx_status status, const char *sentence) {
  if (!CHECK_OK(fx_local_run(ranks, agree_rank, c))) return;
  for (int r = 0; r < ranks; r++) {
    if (c->absent && r == c->odd) continue;
    CHECK_MSG(c->status[r] == status, "rank %d of %d: expected %s, got %s (%s)", r, ranks,
              fx_status_name(status), fx_status_name(c->status[r]), c->text[r]);
    CHECK_STR(c->text[r], status == FX_OK ? "" : sentence);
  }
}

/* The last of 2, 3 and 4 ranks has another text, and with it another value of `key`. */
static void run_texts(const char *yaml, const char *odd_yaml, const char *key, const char *left,
                      const char *right) {
  char sentence[2048];
  for (int ranks = 2; ranks <= 4; ranks++) {
    agree_case c = {.yaml = yaml, .odd_yaml = odd_yaml, .odd = ranks - 1};
    snprintf(
        sentence, sizeof sentence,
        "ranks 0 and %d were given different configurations: %s is %s on rank 0 and %s on rank %d" ADVICE,
        c.odd, key, left, right, c.odd);
    run_case(&c, ranks, FX_ERR_DIVERGED, sentence);
  }
}

static void alike(void) {
  for (int ranks = 1; ranks <= 4; ranks++) {
    agree_case c = {
        .yaml = "attention: {mask: {all: [causal, {not: {any: [\"q - kv > far\"]}}]}, params: {far: 9}}\n",
        .odd = -1};
    run_case(&c, ranks, FX_OK, NULL);
    c.odd = ranks - 1; /* the same in other words */
    c.odd_yaml =
        "train:\n  iters: 2000\nattention:\n  params:\n    far: 9\n  mask:\n    all:\n      - causal\n"
        "      - not: {any: [\"q - kv > far\"]}\n";
    run_case(&c, ranks, FX_OK, NULL);
  }
}

static void one_key(void) {
  run_texts("optimizer: {clip_grad: 1.0}\n", "optimizer: {clip_grad: 0.5}\n", "optimizer.clip_grad", "1.0",
            "0.5");
  run_texts("train: {iters: 100}\n", "train: {iters: 50}\n", "schedule.warmup_iters", "10",
            "5"); /* resolved */
  run_texts("data: {train: [a.txt, b.txt]}\n", "data: {train: [b.txt, a.txt]}\n", "data.train",
            "[a.txt, b.txt]", "[b.txt, a.txt]");
  /* the first of two, in the order of `config show` */
  run_texts("{}\n", "optimizer: {eps: 1.0e-6}\nmodel: {dropout: 0.1}\n", "model.dropout", "0.0", "0.1");
}

static void odd_ranks(void) {
  agree_case first = {.yaml = "{}\n", .odd_yaml = "train: {seed: 7}\n", .odd = 0};
  run_case(
      &first, 4, FX_ERR_DIVERGED,
      DIFFERENT("1") "train.seed is 7 on rank 0 and 1234 on rank 1 (unlike rank 0 are ranks 1 2 3)" ADVICE);
  agree_case middle = {.yaml = "{}\n", .odd_yaml = "train: {seed: 7}\n", .odd = 1};
  run_case(&middle, 3, FX_ERR_DIVERGED, DIFFERENT("1") "train.seed is 1234 on rank 0 and 7 on rank 1" ADVICE);
}

#define VARIANT(entries) "attention: {variant: mine, variants: {mine: {" entries "}}}\n"

static void inside_a_variant(void) {
  run_texts(VARIANT("mask: q >= kv, params: {n: 3}, score: score * n"),
            VARIANT("mask: q > kv - 1, params: {n: 3}, score: score * n"), "attention.variants.mine.mask",
            "\"q >= kv\"", "\"q > kv - 1\"");
  run_texts(VARIANT("mask: q >= kv, params: {n: 3}, score: score * n"),
            VARIANT("mask: q >= kv, params: {n: 4}, score: score * n"), "attention.variants.mine.params.n",
            "3", "4");
  run_texts(VARIANT("mask: {all: [causal, {not: \"q - kv > 5\"}]}"),
            VARIANT("mask: {all: [causal, {not: \"q - kv > 6\"}]}"), "attention.variants.mine.mask.all",
            "[causal, {not: \"q - kv > 5\"}]", "[causal, {not: \"q - kv > 6\"}]");
  run_texts("attention: {mask: causal}\n", "attention: {mask: {all: [causal]}}\n", "attention.mask", "causal",
            "{all: [causal]}");
}

static void entries_of_mappings(void) {
  run_texts("attention: {variant: alibi}\n", VARIANT("mask: causal"), "attention.variant", "alibi", "mine");
  run_texts(VARIANT("mask: causal"), VARIANT("mask: causal, score: score * 2"),
            "attention.variants.mine.score", "not given", "\"score * 2\"");
  run_texts(VARIANT("mask: causal, score: score * 2"), VARIANT("mask: causal"),
            "attention.variants.mine.score", "\"score * 2\"", "not given");
  run_texts("{}\n", "attention: {score: score * n, params: {n: 2}}\n", "attention.score", "null",
            "\"score * n\"");
  agree_case order = {.yaml = VARIANT("mask: q - kv < n + m, params: {n: 1, m: 2}"),
                      .odd_yaml = VARIANT("mask: q - kv < n + m, params: {m: 2, n: 1}"),
                      .odd = 1};
  run_case(
      &order, 2, FX_ERR_DIVERGED,
      DIFFERENT(
          "1") "attention.variants.mine.params.n comes before attention.variants.mine.params.m on rank 0 and "
               "after it on rank 1" ADVICE);
}

/* Long values are shown where they differ. */
static void long_values(void) {
  char yaml[2][8192], list[6000] = "";
  for (int i = 0; i < 300; i++) snprintf(list + strlen(list), 32, "file%d.txt, ", i);
  for (int k = 0; k < 2; k++)
    snprintf(yaml[k], sizeof yaml[k], "data: {train: [%sthis%d.txt, %s]}\n", list, 7 + k, "end.txt");
  agree_case c = {.yaml = yaml[0], .odd_yaml = yaml[1], .odd = 1};
  CHECK_OK(fx_local_run(2, agree_rank, &c));
  for (int r = 0; r < 2; r++) {
    CHECK_STATUS(c.status[r], FX_ERR_DIVERGED);
    CHECK_HAS(c.text[r], "data.train is ...");
    CHECK_HAS(c.text[r], "file299.txt, this7.txt, end.txt] on rank 0 and ...");
    CHECK_HAS(c.text[r], "file299.txt, this8.txt, end.txt] on rank 1" ADVICE);
    CHECK_MSG(strlen(c.text[r]) < 600, "%zu bytes", strlen(c.text[r]));
  }
}

/* Each row of the schema on its own. Those that may differ are these, and no others. */
static void every_key(void) {
  static const char *const local[] = {"data.prefetch", "runtime.threads", "runtime.compiler",
                                      "runtime.log_level"};
  int accepted = 0;
  for (int i = 0; i < fx_schema_count; i++) {
    const fx_key *key = &fx_schema[i];
    char name[FX_SCHEMA_TEXT], part[FX_SCHEMA_TEXT + 32];
    bool may = false;
    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    for (size_t k = 0; k < sizeof local / sizeof local[0]; k++) may = may || strcmp(local[k], name) == 0;
    if (key->kind == FX_KEY_ENUM && fx_words_count(key->values) == 1) continue;
    agree_case c = {.yaml = "{}\n", .odd = 1, .change = key};
    CHECK_OK(fx_local_run(3, agree_rank, &c));
    accepted += may;
    snprintf(part, sizeof part, "configurations: %s is ", name);
    for (int r = 0; r < 3; r++) {
      CHECK_MSG(c.status[r] == (may ? FX_OK : FX_ERR_DIVERGED), "%s, rank %d: got %s", name, r,
                fx_status_name(c.status[r]));
      if (!may) CHECK_HAS(c.text[r], part);
    }
  }
  CHECK_INT(accepted, 4);
}

static void missing_rank(void) {
  agree_case c = {.yaml = "{}\n", .odd = 1, .absent = true};
  CHECK_OK(fx_local_run(3, agree_rank, &c));
  for (int r = 0; r < 3; r += 2) {
    CHECK_STATUS(c.status[r], FX_ERR_COMM);
    CHECK_HAS(c.text[r], "configuration agreement: 2 of 3 ranks answered within 1500 ms");
    CHECK_HAS(c.text[r], "missing: rank 1");
  }
}

/* ---- in the trainer ---- */

static void set_keys(char keys[2048], const char *dir, const char *corpus, const char *more) {
  snprintf(keys, 2048,
           "model: {hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}\n"
           "train: {seq_length: 16, micro_batch_size: 1, global_batch_size: 6, iters: 1, eval_interval: 0}\n"
           "checkpoint: {dir: \"%s/run\"}\ndata: {train: [\"lines:%s\"]}\n%s",
           dir, corpus, more);
}

static void trainer(void) {
  static run r;
  char dir[512], path[600], odd[sizeof r.keys], text[4000] = "";
  struct stat info;
  snprintf(dir, sizeof dir, "%s", fx_temp_dir());
  snprintf(path, sizeof path, "%s/run", dir);
  for (int i = 0; i < 120; i++) snprintf(text + strlen(text), 32, "line %d of the corpus\n", i);
  const char *corpus = fx_temp_file(dir, "corpus.txt", text);
  r.yaml = "";
  r.poison = -1;
  r.odd = odd;
  set_keys(r.keys, dir, corpus, "optimizer: {clip_grad: 1.0}\nruntime: {device: cpu, threads: 1}\n");
  set_keys(odd, dir, corpus, "optimizer: {clip_grad: 0.5}\nruntime: {device: cpu, threads: 1}\n");
  for (r.ranks = 2; r.ranks <= 3; r.ranks++) {
    pthread_mutex_init(&r.mutex, NULL);
    CHECK_STATUS(fx_local_run(r.ranks, run_rank, &r), FX_ERR_DIVERGED);
    pthread_mutex_destroy(&r.mutex);
    CHECK_HAS(fx_error_text(),
              "were given different configurations: optimizer.clip_grad is 1.0 on rank 0 and 0.5");
    CHECK_MSG(stat(path, &info) != 0, "%s was written", path);
  }
  set_keys(odd, dir, corpus,
           "optimizer: {clip_grad: 1.0}\nruntime: {device: cpu, threads: 2, log_level: error}\n");
  r.ranks = 3;
  run_train(&r);
  CHECK_MSG(stat(path, &info) == 0, "%s was not written", path);
}

static const fx_test g_tests[] = {
    {"the same configuration", alike},
    {"one key", one_key},
    {"which rank is the odd one", odd_ranks},
    {"inside a variant", inside_a_variant},
    {"entries of mappings", entries_of_mappings},
    {"long values", long_values},
    {"every key of the schema", every_key},
    {"a rank that does not arrive", missing_rank},
    {"the trainer ends before it writes", trainer},
};
FX_TEST_MAIN("core/config agreement", g_tests)
