/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor and sequence parallelism against one rank, with ranks as threads: 20 steps from a trained
 * checkpoint, the loss of every step within 1e-5, the norm of every named gradient within 1e-5 plus 1e-7 of
 * the global norm. One control a model, so that the comparison could fail: another mask moves the first loss
 * by 100 times the tolerance (10 times where training before was shorter). */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/trainer.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"

/* Under sanitizers fewer steps: what those look for shows in the first ones. */
enum { SLOW = FX_TEST_CASES(8) < 8, WARM = SLOW ? 24 : 60, STEPS = SLOW ? 4 : 20 };
enum { MAX_NAMES = 80, MAX_TEXT = 6000 };

/* What a run did: losses, and sums of squares by name, added up over the ranks that share a model. */
typedef struct trace {
  double loss[STEPS], square[MAX_NAMES][STEPS];
  char name[MAX_NAMES][120];
  int names, steps, disagreed;
  int64_t consumed;
  double valid_loss;
} trace;

typedef struct run_case {
  const fx_config *config;
  trace *out;
  pthread_mutex_t lock;
} run_case;

typedef struct rank_context {
  run_case *run;
  int64_t first; /* iteration of trace entry 0 */
  int rank;
} rank_context;

static int name_index(trace *t, const char *name) {
  int i = 0;
  while (i < t->names && strcmp(t->name[i], name) != 0) i++;
  if (i < t->names) return i;
  if (!CHECK_MSG(t->names < MAX_NAMES, "more than %d names", MAX_NAMES)) return 0;
  snprintf(t->name[i], sizeof t->name[i], "%s", name);
  t->names++;
  return i;
}

static double squares_of(const fx_params *params, const fx_param *p) {
  const float *g = fx_param_data(params, p, params->grad);
  int64_t pitch = fx_param_pitch(params, p), cols = p->ndim == 2 ? p->count[1] : 1;
  double sum = 0;
  for (int64_t r = 0; r < p->count[0]; r++)
    for (int64_t c = 0; c < cols; c++) sum += (double)g[r * pitch + c] * (double)g[r * pitch + c];
  return sum;
}

static void observe(void *ctx, const fx_step_view *view) {
  rank_context *c = ctx;
  trace *t = c->run->out;
  int64_t step = view->iteration - c->first;
  if (c->rank >= c->run->config->parallel.tensor || step < 0 || step >= STEPS) return;
  pthread_mutex_lock(&c->run->lock);
  if (c->rank == 0) t->steps++, t->loss[step] = view->loss;
  for (int64_t i = 0; i < view->params->num_params; i++) {
    const fx_param *p = &view->params->param[i];
    int index = name_index(t, p->name);
    if (p->owner) t->square[index][step] += squares_of(view->params, p);
  }
  pthread_mutex_unlock(&c->run->lock);
}

static fx_status run_rank(fx_control *control, void *ctx) {
  run_case *run = ctx;
  rank_context mine = {run, run->config->train.iters > WARM ? WARM : 0, control->rank};
  fx_train_report report;
  fx_log log = {.stream = stderr, .level = FX_LOG_ERROR, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = observe, .ctx = &mine};
  FX_TRY(fx_train(run->config, &job, &report));
  pthread_mutex_lock(&run->lock);
  if (control->rank == 0)
    run->out->consumed = report.consumed_samples, run->out->valid_loss = report.valid_loss;
  pthread_mutex_unlock(&run->lock);
  return FX_OK;
}

static char g_corpus[500];

/* Documents of 3 to 200 bytes from a few words, so that something can be learnt. */
static void make_corpus(void) {
  static const char *const words[] = {"the ", "cat ", "sat ", "on ",  "a ",
                                      "mat ", "and ", "saw ", "two ", "dogs "};
  static char text[60000];
  uint64_t state = 5;
  size_t used = 0;
  for (int doc = 0; used + 400 < sizeof text; doc++) {
    size_t end = used + 3 + (size_t)(doc * 37 % 200);
    while (used < end) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      used += (size_t)snprintf(text + used, sizeof text - used, "%s", words[(state >> 33) % 10]);
    }
    text[used++] = '\n';
  }
  text[used] = '\0';
  snprintf(g_corpus, sizeof g_corpus, "%s", fx_temp_file(fx_temp_dir(), "corpus.txt", text));
}

/* Trains `model` (YAML of the sections model, attention and runtime) to `iters` on `ranks` ranks; `extra`:
 * more YAML lines of the section parallel; dir, resume: names in the scratch directory. */
static bool train(const char *model, int ranks, const char *parallel, int iters, const char *dir,
                  const char *resume, trace *out) {
  char text[MAX_TEXT], from[600] = "none";
  double lr = iters > WARM ? 3e-4 : 2e-3; /* compared at a rate at which rounding does not grow tenfold */
  fx_config *config = NULL;
  memset(out, 0, sizeof *out);
  if (resume) snprintf(from, sizeof from, "%s/%s", fx_temp_dir(), resume);
  snprintf(text, sizeof text,
           "%s\nparallel: {%s}\n"
           "data: {train: ['lines:%s'], split: documents, packing: documents, valid_fraction: 0.1}\n"
           "optimizer: {lr: %g, min_lr: %g, weight_decay: 0.1, clip_grad: 1.0}\n"
           "schedule: {warmup_iters: 0, decay_iters: 1000}\n"
           "train: {iters: %d, seq_length: 72, micro_batch_size: 1, global_batch_size: 4, seed: 11, "
           "eval_interval: 1000, log_interval: 1000}\n"
           "checkpoint: {dir: '%s/%s', interval: 0, resume: '%s'}\n"
           "runtime: {device: cpu, threads: 1}\n",
           model, parallel, g_corpus, lr, lr, iters, fx_temp_dir(), dir, from);
  if (!CHECK_OK(fx_config_parse(text, "case", &config))) return false;
  run_case run = {config, out, PTHREAD_MUTEX_INITIALIZER};
  bool ok = CHECK_OK(fx_local_run(ranks, run_rank, &run));
  fx_config_destroy(config);
  return ok;
}

/* How far b is from a: losses relative; gradients in units of the tolerance. */
static void compare(const char *what, const trace *a, const trace *b) {
  double loss = 0, grad = 0;
  const char *where = "";
  if (!CHECK_INT(b->steps, a->steps) || !CHECK_INT(b->names, a->names)) return;
  for (int s = 0; s < a->steps; s++) {
    double total = 0;
    loss = fx_worse(loss, fabs(a->loss[s] - b->loss[s]) / fabs(a->loss[s]));
    for (int i = 0; i < a->names; i++) total += a->square[i][s];
    for (int i = 0; i < a->names; i++) {
      int other = 0;
      while (other < b->names && strcmp(b->name[other], a->name[i]) != 0) other++;
      if (!CHECK_MSG(other < b->names, "%s: no gradient of %s", what, a->name[i])) return;
      double want = sqrt(a->square[i][s]), got = sqrt(b->square[other][s]);
      double excess = fabs(want - got) / (1e-5 * want + 1e-7 * sqrt(total));
      if (!(excess <= grad)) where = a->name[i];
      grad = fx_worse(grad, excess);
    }
  }
  CHECK_MSG(loss <= 1e-5, "%s: losses differ by %g", what, loss);
  CHECK_MSG(grad <= 1, "%s: gradient norms are at %g of the tolerance (%s)", what, grad, where);
  CHECK_MSG(fabs(a->valid_loss - b->valid_loss) <= 1e-5 * a->valid_loss, "%s: validation %.9g and %.9g", what,
            a->valid_loss, b->valid_loss);
  CHECK_INT(b->consumed, a->consumed);
}

typedef struct layout {
  int ranks;
  const char *parallel;
} layout;

#define LLAMA(more)                                                                                       \
  "model: {vocab_size: 300, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 8, head_dim: 8, " \
  "intermediate_size: 96, " more "}\n"
#define GPT2(more)                                                                     \
  "model: {model_type: gpt2, vocab_size: 300, hidden_size: 64, num_hidden_layers: 2, " \
  "num_attention_heads: 8, intermediate_size: 128, max_position_embeddings: 80, bias: true, " more "}\n"

/* The same model in every layout, from one checkpoint; `other` is its control. */
static void check_layouts(const char *model, const char *other, const layout *layouts, int count) {
  static trace warm, base, got; /* large */
  char start[64];
  if (!train(model, 1, "", WARM, "start", NULL, &warm)) return;
  snprintf(start, sizeof start, "start/step_%08d", WARM);
  if (!train(model, 1, "", WARM + STEPS, "base", start, &base)) return;
  CHECK_INT(base.steps, STEPS);
  CHECK_MSG(base.loss[0] < 5.3, "the checkpoint is not trained: loss %g", base.loss[0]);
  for (int i = 0; i < count; i++) {
    char what[200];
    snprintf(what, sizeof what, "%d ranks, {%s}", layouts[i].ranks, layouts[i].parallel);
    if (train(model, layouts[i].ranks, layouts[i].parallel, WARM + STEPS, "other", start, &got))
      compare(what, &base, &got);
  }
  if (!train(other, 2, "tensor: 2", WARM + STEPS, "control", start, &got)) return;
  double moved = fabs(got.loss[0] - base.loss[0]) / base.loss[0];
  CHECK_MSG(moved >= (SLOW ? 1e-4 : 1e-3), "control: another mask moves the first loss by %g only", moved);
}
#define CHECK_LAYOUTS(model, other, ...)                                                 \
  do {                                                                                   \
    static const layout layouts[] = {__VA_ARGS__};                                       \
    check_layouts((model), (other), layouts, (int)(sizeof layouts / sizeof layouts[0])); \
  } while (0)

/* Two key heads: with 4 and 8 ranks several share one. With 4 ranks the last holds padding of the vocabulary
 * only. */
static void llama(void) {
  CHECK_LAYOUTS(LLAMA("num_key_value_heads: 2") "attention: {variant: document_causal}",
                LLAMA("num_key_value_heads: 2") "attention: {variant: causal}", {2, "tensor: 2"},
                {2, "tensor: 2, tensor_pieces: 2"}, {4, "tensor: 4, tensor_pieces: 4"}, {4, "tensor: 4"},
                {8, "tensor: 8"}, {2, "tensor: 2, sequence: false"}, {8, "tensor: 8, sequence: false"},
                {4, "tensor: 2"}, {8, "tensor: 4, sequence: false"});
}

static void llama_tied(void) {
  CHECK_LAYOUTS(
      LLAMA("num_key_value_heads: 4, tie_word_embeddings: true, bias: true") "attention: {variant: causal}",
      LLAMA("num_key_value_heads: 4, tie_word_embeddings: true, bias: true") "attention: {variant: full}",
      {2, "tensor: 2"}, {2, "tensor: 2, tensor_pieces: 2"}, {2, "tensor: 2, gather_again: false"},
      {8, "tensor: 8"}, {8, "tensor: 8, sequence: false"});
}

/* c_attn is one tensor of q | k | v; dropout draws by place. */
static void gpt2(void) {
  CHECK_LAYOUTS(GPT2("dropout: 0.1") "attention: {variant: document_causal}",
                GPT2("dropout: 0.1") "attention: {variant: document}", {2, "tensor: 2"}, {4, "tensor: 4"},
                {8, "tensor: 8"}, {2, "tensor: 2, sequence: false"}, {4, "tensor: 2"});
}

static void gpt2_shared_heads(void) {
  CHECK_LAYOUTS(GPT2("num_key_value_heads: 2") "attention: {variant: causal}",
                GPT2("num_key_value_heads: 2") "attention: {variant: full}", {4, "tensor: 4"},
                {8, "tensor: 8, sequence: false"});
}

static void sliding_window(void) {
  CHECK_LAYOUTS(LLAMA("num_key_value_heads: 4") "attention: {variant: sliding_window, params: {window: 17}}",
                LLAMA("num_key_value_heads: 4") "attention: {variant: sliding_window, params: {window: 3}}",
                {2, "tensor: 2"}, {4, "tensor: 4"});
}

static void soft_capped_prefix(void) {
  CHECK_LAYOUTS(LLAMA("num_key_value_heads: 8") "attention: {mask: 'kv < 9 || q >= kv', "
                                                "score: 'cap * tanh(score / cap)', params: {cap: 1.5}}",
                LLAMA("num_key_value_heads: 8") "attention: {mask: 'q >= kv', "
                                                "score: 'cap * tanh(score / cap)', params: {cap: 1.5}}",
                {2, "tensor: 2"}, {8, "tensor: 8"});
}

/* A learnable table by head, sinks by head, slopes by head in the score, windows by head in the mask: a rank
 * must know which heads it has. */
#define BY_HEAD(mask)                                                                \
  "attention: {mask: '" mask "', score: 'score + bias[h, min(7, max(0, q - kv))] - " \
  "0.02 * float(h) * float(q - kv)', sinks: true, "                                  \
  "buffers: {bias: {shape: [H, 8], learnable: true, init: {normal: 0.5}, weight_decay: true}}}"

static void by_head(void) {
  CHECK_LAYOUTS(LLAMA("num_key_value_heads: 2") BY_HEAD("q >= kv && q - kv < 4 * (h + 1)"),
                LLAMA("num_key_value_heads: 2") BY_HEAD("q >= kv && q - kv < 4 * (8 - h)"), {2, "tensor: 2"},
                {4, "tensor: 4"}, {8, "tensor: 8, sequence: false"}, {4, "tensor: 2, sequence: false"});
}

/* The mask asked by the kernels instead of limits. */
static void by_head_asked(void) {
  CHECK_LAYOUTS(LLAMA("num_key_value_heads: 8") BY_HEAD("q >= kv && (q - kv) % (h + 1) == 0"),
                LLAMA("num_key_value_heads: 8") BY_HEAD("q >= kv && (q - kv) % (8 - h) == 0"),
                {4, "tensor: 4"});
}

/* 530,000 ids: the logits of 72 rows are two chunks. */
static void chunks(void) {
  static trace base, got;
  static const char model[] = "model: {vocab_size: 530000, hidden_size: 16, num_hidden_layers: 1, "
                              "num_attention_heads: 2, intermediate_size: 32, tie_word_embeddings: true}\n"
                              "attention: {variant: causal}";
  if (!train(model, 1, "", 2, "base", NULL, &base)) return;
  if (train(model, 2, "tensor: 2", 2, "other", NULL, &got)) compare("several chunks", &base, &got);
}

/* One run, handed from layout to layout: 10 steps on four ranks, 10 on two. */
static void handed_on(void) {
  enum { HALF = STEPS / 2 };
  static trace warm, base, got, rest;
  static const char model[] = LLAMA("num_key_value_heads: 2") "attention: {variant: document_causal}";
  char start[64], at[64];
  snprintf(start, sizeof start, "start/step_%08d", WARM);
  snprintf(at, sizeof at, "a/step_%08d", WARM + HALF);
  if (!train(model, 1, "", WARM, "start", NULL, &warm)) return;
  if (!train(model, 1, "", WARM + STEPS, "base", start, &base)) return;
  if (!train(model, 4, "tensor: 4", WARM + HALF, "a", start, &got)) return;
  if (!train(model, 2, "tensor: 2, sequence: false", WARM + STEPS, "b", at, &rest)) return;
  CHECK_INT(rest.steps, STEPS - HALF);
  for (int s = 0; s < HALF; s++) {
    rest.loss[s] = got.loss[s];
    for (int i = 0; i < got.names; i++) rest.square[name_index(&rest, got.name[i])][s] = got.square[i][s];
  }
  rest.steps += got.steps;
  compare("4 ranks for 10 steps, then 2", &base, &rest);
}

static void all(void (*test)(void)) {
  if (!g_corpus[0]) make_corpus();
  test();
}
#define TEST(name)                \
  static void test_##name(void) { \
    all(name);                    \
  }
TEST(llama)
TEST(llama_tied)
TEST(gpt2)
TEST(gpt2_shared_heads)
TEST(sliding_window)
TEST(soft_capped_prefix)
TEST(by_head)
TEST(by_head_asked)
TEST(chunks)
TEST(handed_on)

static const fx_test tests[] = {{"Llama with grouped heads", test_llama},
                                {"Llama with tied embeddings and biases", test_llama_tied},
                                {"GPT-2 with dropout", test_gpt2},
                                {"GPT-2 with grouped heads", test_gpt2_shared_heads},
                                {"sliding window", test_sliding_window},
                                {"soft-capped prefix", test_soft_capped_prefix},
                                {"sinks, table, slopes and windows by head", test_by_head},
                                {"a mask by head inside the kernels", test_by_head_asked},
                                {"logits in several chunks", test_chunks},
                                {"from layout to layout", test_handed_on}};
FX_TEST_MAIN("core/tensor_parallel", tests)
