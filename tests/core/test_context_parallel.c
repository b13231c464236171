/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training runs whose sequences several in-process ranks share, against one rank, from a trained
 * checkpoint: losses, named gradients, evaluation, checkpoints, memory. Documents, dropout, two kinds of
 * attention, learned tables and sinks, samples of different documents in one micro-batch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/trainer.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"

/* Under sanitizers fewer steps: what those look for shows in the first ones. */
enum { SLOW = FX_TEST_CASES(8) < 8, TRAINED = SLOW ? 12 : 60, STEPS = SLOW ? 3 : 20, MOST_TENSORS = 64 };

typedef struct curve {
  double loss[STEPS], norm[STEPS][MOST_TENSORS];
  int steps;
  int64_t tensors;
  fx_train_report report;
} curve;

static void keep(void *ctx, const fx_step_view *view) {
  curve *c = ctx;
  if (!c || c->steps == STEPS) return;
  c->loss[c->steps] = view->loss;
  c->tensors = view->params->num_params;
  /* under ZeRO a rank holds pieces of gradients, not tensors */
  for (int64_t i = 0; view->params->zero == 0 && i < c->tensors && i < MOST_TENSORS; i++) {
    const fx_param *p = &view->params->param[i];
    const float *g = fx_param_data(view->params, p, view->params->grad);
    double sum = 0;
    for (int64_t k = 0; k < fx_param_numel(p); k++) sum += (double)g[k] * (double)g[k];
    c->norm[c->steps][i] = sqrt(sum);
  }
  c->steps++;
}

/* ---- runs ---- */

static const char *g_dir; /* of this test program */

static const char k_model[] =
    "model: {vocab_size: 256, hidden_size: 48, num_hidden_layers: 3, num_attention_heads: 4, "
    "num_key_value_heads: 2, head_dim: 16, intermediate_size: 64, dropout: 0.1}\n"
    "attention:\n"
    "  variants:\n"
    "    biased: {mask: 'doc_id[q] == doc_id[kv] && kv <= q', score: 'score + bias[h, max(0, min(8, q - "
    "kv))]', "
    "sinks: true, buffers: {bias: {shape: [H, 9], learnable: true}}}\n"
    "    near: {mask: 'doc_id[q] == doc_id[kv] && abs(q - kv) < 50 && kv <= q'}\n"
    "  layers: [biased, near]\n"
    "data: {packing: documents, valid_fraction: 0.2}\n"
    "optimizer: {lr: 3.0e-3, min_lr: 3.0e-4}\n"
    "schedule: {warmup_iters: 0, decay_iters: 200}\n"
    "train: {seq_length: 512, micro_batch_size: 2, global_batch_size: 4, seed: 3, eval_iters: 2, "
    "log_interval: 1000}\n"
    "runtime: {threads: 1, compiler: none}\n";

/* Documents of very unequal lengths, a few words each out of a small vocabulary. */
static const char *corpus_path(void) {
  static char text[60000];
  static const char *path;
  static const char *const words[] = {"the ", "ring ",   "passes ", "keys ",
                                      "and ", "values ", "around ", "again "};
  uint32_t state = 7;
  size_t at = 0;
  if (path) return path;
  for (int d = 0; at < sizeof text - 4000; d++) {
    int length = d % 5 == 0 ? 300 : 5 + d % 23;
    for (int w = 0; w < length; w++) {
      state = state * 1664525u + 1013904223u;
      const char *word = words[(state >> 24) % 8 / (w % 3 + 1)];
      size_t n = strlen(word);
      memcpy(text + at, word, n);
      at += n;
    }
    text[at++] = '\n';
  }
  path = strdup(fx_temp_file(g_dir, "corpus.txt", text));
  return path;
}

typedef struct job {
  const char *overrides[16];
  int count;
  curve *out;
} job;

static fx_status run_rank(fx_control *control, void *ctx) {
  const job *j = ctx;
  fx_config *config = NULL;
  fx_train_report report;
  fx_log log = {.stream = stderr, .level = FX_LOG_ERROR, .rank = control->rank, .size = control->size};
  fx_job work = {.control = control,
                 .log = &log,
                 .on_gradients = keep,
                 .ctx = control->rank == control->size - 1 ? j->out : NULL};
  FX_TRY(fx_config_load(j->overrides[0], j->overrides + 1, j->count - 1, &config));
  fx_status status = fx_train(config, &work, &report);
  if (control->rank == control->size - 1 && j->out) j->out->report = report;
  fx_config_destroy(config);
  return status;
}

/* Trains from step `from` (0: from the start) to `to` on `ranks` ranks into g_dir/name. */
static bool train(const char *name, int ranks, const char *from, int to, const char *const *more,
                  curve *out) {
  char data[300], dir[300], iters[40], resume[300];
  const char *yaml = strdup(fx_temp_file(g_dir, "run.yaml", k_model));
  job j = {.out = out};
  if (out) memset(out, 0, sizeof *out);
  snprintf(data, sizeof data, "data.train=[lines:%s]", corpus_path());
  snprintf(dir, sizeof dir, "checkpoint.dir=%s/%s", g_dir, name);
  snprintf(iters, sizeof iters, "train.iters=%d", to);
  snprintf(resume, sizeof resume, "checkpoint.resume=%s%s%s", from ? g_dir : "none", from ? "/" : "",
           from ? from : "");
  const char *const all[] = {yaml, data, dir, iters, resume};
  for (int i = 0; i < 5; i++) j.overrides[j.count++] = all[i];
  for (int i = 0; more && more[i]; i++) j.overrides[j.count++] = more[i];
  bool ok = CHECK_MSG(fx_local_run(ranks, run_rank, &j) == FX_OK, "%s on %d ranks: %s", name, ranks,
                      fx_error_text());
  free((void *)(uintptr_t)yaml);
  return ok;
}

/* ---- comparisons ---- */

static double worst_loss(const curve *a, const curve *b) {
  double worst = 0;
  for (int s = 0; s < STEPS; s++) worst = fx_worse(worst, fabs(a->loss[s] - b->loss[s]) / fabs(a->loss[s]));
  return worst;
}

/* Over a tolerance of 1e-5 and 1e-7 of the whole gradient's norm. */
static double worst_norm(const curve *a, const curve *b) {
  double worst = 0;
  for (int s = 0; s < STEPS; s++) {
    double whole = 0;
    for (int64_t i = 0; i < a->tensors; i++) whole += a->norm[s][i] * a->norm[s][i];
    for (int64_t i = 0; i < a->tensors; i++)
      worst =
          fx_worse(worst, fabs(a->norm[s][i] - b->norm[s][i]) / (1e-5 * a->norm[s][i] + 1e-7 * sqrt(whole)));
  }
  return worst;
}

static void same_training(const curve *one, const curve *many, const char *what) {
  double loss = worst_loss(one, many), norm = worst_norm(one, many);
  CHECK_INT(many->steps, STEPS);
  CHECK_INT(many->tensors, one->tensors);
  CHECK_MSG(loss <= 1e-5, "%s: a loss is off by %.3g", what, loss);
  CHECK_MSG(norm <= 1, "%s: a gradient's norm is at %.3g of its tolerance", what, norm);
  double valid = fabs(many->report.valid_loss / one->report.valid_loss - 1);
  CHECK_MSG(valid <= 1e-5, "%s: the validation loss is off by %.3g", what, valid);
}

static void same_tensors(const char *a_dir, const char *b_dir, double tolerance) {
  char path[2][300];
  char *step = NULL;
  fx_ckpt *ckpt[2] = {NULL};
  const char *dirs[] = {a_dir, b_dir};
  for (int i = 0; i < 2; i++) {
    snprintf(path[i], sizeof path[i], "%s/%s", g_dir, dirs[i]);
    if (!CHECK_OK(fx_ckpt_find(path[i], &step)) || !CHECK(step != NULL)) return;
    CHECK_OK(fx_ckpt_verify(step, NULL));
    CHECK_OK(fx_ckpt_open(step, &ckpt[i]));
    free(step);
  }
  CHECK_INT(fx_ckpt_tensor_count(ckpt[0]), fx_ckpt_tensor_count(ckpt[1]));
  for (int64_t t = 0; t < fx_ckpt_tensor_count(ckpt[0]); t++) {
    fx_ckpt_tensor a = fx_ckpt_tensor_at(ckpt[0], t), b = fx_ckpt_tensor_at(ckpt[1], t);
    CHECK_STR(b.path, a.path);
    if (!CHECK_INT(b.elements, a.elements) || a.dtype != FX_F32) continue;
    float *data[2] = {calloc((size_t)a.elements + 1, 4), calloc((size_t)a.elements + 1, 4)};
    for (int i = 0; i < 2; i++) {
      fx_ckpt_region whole = {.path = a.path, .dtype = a.dtype, .ndim = a.ndim, .data = data[i]};
      for (int d = 0; d < a.ndim; d++) whole.dim[d] = whole.count[d] = a.dim[d];
      CHECK_OK(fx_ckpt_read(ckpt[i], &whole, 1));
    }
    double error = fx_relative_l2_f(data[1], data[0], a.elements);
    CHECK_MSG(error <= tolerance, "%s is off by %.3g", a.path, error);
    free(data[0]), free(data[1]);
  }
  fx_ckpt_close(ckpt[0]), fx_ckpt_close(ckpt[1]);
}

/* ---- tests ---- */

static curve g_one;
/* Evaluates after the last step. */
static const char *const k_end = SLOW ? "train.eval_interval=15" : "train.eval_interval=80";

static void one_rank(void) {
  const char *const none[] = {"train.eval_interval=0", NULL}, *const more[] = {k_end, NULL};
  train("start", 1, NULL, TRAINED, none, NULL);
  train("one", 1, "start", TRAINED + STEPS, more, &g_one);
  CHECK_INT(g_one.steps, STEPS);
  CHECK_MSG(g_one.loss[0] < (SLOW ? 4.5 : 2.5), "the start is not trained: loss %.3f", g_one.loss[0]);
}

static void several_ranks(void) {
  static const struct {
    const char *name, *context, *exchange;
    int ranks;
  } rows[] = {{"cp2 allgather", "parallel.context=2", "parallel.context_exchange=allgather", 2},
              {"cp2 ring", "parallel.context=2", "parallel.context_exchange=ring", 2},
              {"cp2 alltoall", "parallel.context=2", "parallel.context_exchange=alltoall", 2},
              {"cp2 x dp2 alltoall", "parallel.context=2", "parallel.context_exchange=alltoall", 4},
              {"cp4 allgather", "parallel.context=4", "parallel.context_exchange=allgather", 4},
              {"cp4 ring", "parallel.context=4", "parallel.context_exchange=ring", 4},
              {"cp2 x dp2 ring", "parallel.context=2", "parallel.context_exchange=ring", 4},
              {"cp2 x dp2 allgather", "parallel.context=2", "parallel.context_exchange=allgather", 4}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const char *const more[] = {
        rows[i].context, rows[i].exchange, k_end,
        strstr(rows[i].name, "dp2") ? "train.micro_batch_size=1" : "train.eval_iters=2", NULL};
    static curve many;
    if (!train(rows[i].name, rows[i].ranks, "start", TRAINED + STEPS, more, &many)) continue;
    same_training(&g_one, &many, rows[i].name);
    same_tensors("one", rows[i].name, 1e-4);
  }
}

/* Beside tensor parallelism and ZeRO: gradients are in parts there, losses are not. */
static void beside_the_others(void) {
  static const struct {
    const char *name, *more[4];
    int ranks;
  } rows[] = {
      {"cp2 x tp2", {"parallel.tensor=2", "parallel.context_exchange=ring", NULL}, 4},
      {"cp2 x tp2, whole rows", {"parallel.tensor=2", "parallel.sequence=false", NULL}, 4},
      {"cp2, ZeRO 1", {"parallel.zero=1", "parallel.context_exchange=ring", NULL}, 2},
      {"cp2 x dp2, ZeRO 2", {"parallel.zero=2", "train.micro_batch_size=1", NULL}, 4},
      {"cp2 x tp2 x dp2, ZeRO 1", {"parallel.tensor=2", "parallel.zero=1", "train.micro_batch_size=1"}, 8}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const char *more[7] = {"parallel.context=2", k_end};
    static curve many;
    for (int k = 0; k < 4 && rows[i].more[k]; k++) more[2 + k] = rows[i].more[k];
    if (!train(rows[i].name, rows[i].ranks, "start", TRAINED + STEPS, more, &many)) continue;
    CHECK_INT(many.steps, STEPS);
    CHECK_MSG(worst_loss(&g_one, &many) <= 1e-5, "%s: a loss is off by %.3g", rows[i].name,
              worst_loss(&g_one, &many));
    double valid = fabs(many.report.valid_loss / g_one.report.valid_loss - 1);
    CHECK_MSG(valid <= 1e-5, "%s: the validation loss is off by %.3g", rows[i].name, valid);
    same_tensors("one", rows[i].name, 1e-4);
  }
}

/* The comparison can fail: attention that looks into other documents, and dropout that is another one. */
static void controls(void) {
  static curve wrong;
  const char *const mask[] = {k_end, "attention.variants.near.mask='abs(q - kv) < 50 && kv <= q'", NULL};
  if (train("wrong mask", 1, "start", TRAINED + STEPS, mask, &wrong))
    CHECK_MSG(worst_loss(&g_one, &wrong) >= (SLOW ? 1e-4 : 1e-3), "another mask moves a loss by %.3g only",
              worst_loss(&g_one, &wrong));
  const char *const seed[] = {k_end, "model.dropout=0", NULL};
  if (train("no dropout", 1, "start", TRAINED + STEPS, seed, &wrong))
    CHECK_MSG(worst_loss(&g_one, &wrong) >= 1e-3, "without dropout a loss moves by %.3g only",
              worst_loss(&g_one, &wrong));
}

static void eager_is_replay(void) {
  static curve eager, replay;
  for (int e = 0; e < 2; e++) {
    const char *exchange = e ? "parallel.context_exchange=ring" : "parallel.context_exchange=allgather";
    const char *const a[] = {"parallel.context=2", exchange, "runtime.mode=eager", "train.eval_interval=0",
                             NULL};
    const char *const b[] = {"parallel.context=2", exchange, "train.eval_interval=0", NULL};
    if (!train("eager", 2, "start", TRAINED + STEPS, a, &eager) ||
        !train("replay", 2, "start", TRAINED + STEPS, b, &replay))
      continue;
    CHECK(memcmp(eager.loss, replay.loss, sizeof eager.loss) == 0);
    CHECK(memcmp(eager.norm, replay.norm, sizeof eager.norm) == 0);
  }
}

/* A run goes on with another number of ranks. */
static void resumes_elsewhere(void) {
  static curve here, there;
  const char *const alone[] = {"train.eval_interval=0", NULL};
  const char *const shared[] = {"parallel.context=4", "train.eval_interval=0", NULL};
  if (!train("here", 1, "cp4 ring", TRAINED + 2 * STEPS, alone, &here) ||
      !train("there", 4, "one", TRAINED + 2 * STEPS, shared, &there))
    return;
  CHECK_MSG(worst_loss(&here, &there) <= 2e-5, "a loss is off by %.3g", worst_loss(&here, &there));
}

/* What a layer keeps for the backward is this rank's rows. */
static void memory_falls(void) {
  static curve c;
  int64_t arena[3] = {0};
  for (int i = 0; i < 3; i++) {
    char context[40];
    snprintf(context, sizeof context, "parallel.context=%d", 1 << i);
    const char *const more[] = {context, "parallel.context_exchange=ring", "train.seq_length=1024",
                                "train.eval_interval=0", NULL};
    if (train("memory", 1 << i, NULL, 2, more, &c)) arena[i] = c.report.arena_bytes;
  }
  printf("[arena of 1, 2, 4 context ranks: %.2f, %.2f, %.2f MiB] ", (double)arena[0] / 1048576,
         (double)arena[1] / 1048576, (double)arena[2] / 1048576);
  CHECK((double)arena[1] <= 0.65 * (double)arena[0] && (double)arena[2] <= 0.4 * (double)arena[0]);
}

static const fx_test g_tests[] = {{"one rank", one_rank},
                                  {"several ranks train alike", several_ranks},
                                  {"beside tensor parallelism and ZeRO", beside_the_others},
                                  {"controls", controls},
                                  {"eager = replay", eager_is_replay},
                                  {"checkpoints do not depend on the ranks", resumes_elsewhere},
                                  {"memory falls with the ranks", memory_falls}};

int main(void) {
  g_dir = strdup(fx_temp_dir());
  return fx_test_main("context parallel training against one rank", g_tests,
                      (int)(sizeof g_tests / sizeof g_tests[0]));
}
