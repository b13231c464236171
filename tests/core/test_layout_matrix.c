/* SPDX-License-Identifier: Apache-2.0 */
/* Every combination of tensor, context and data parallelism on in-process ranks against one rank: 20 steps
 * without warm-up from a trained checkpoint, under several masks, of which some leave ranks without work. The
 * loss of every step and the norm of every named gradient agree within 1e-5 (run_distance); so that the
 * comparison could fail, another mask moves the first loss by 100 times that. */
#include "data/sampler.h"
#include "parallel/topology.h"
#include "tests/core/train_ranks.h"

/* Under sanitizers fewer steps: what those look for shows in the first ones. */
enum { SLOW = FX_TEST_CASES(8) < 8, WARM = 100, STEPS = SLOW ? 3 : 20 };

static const struct {
  const char *shape, *exchange;
} k_layouts[] = {{"tp:2", "auto"},           {"cp:2", "ring"},
                 {"dp:2", "auto"},           {"tp:2 cp:2", "ring"},
                 {"tp:2 dp:2", "auto"},      {"cp:2 dp:2", "ring"},
                 {"tp:2 cp:2 dp:2", "ring"}, {"tp:2 cp:2 dp:2", "allgather"}};
enum { LAYOUTS = sizeof k_layouts / sizeof k_layouts[0] };

/* What is trained: the same in every layout. */
typedef struct task {
  const char *model, *attention;
  int seq_length, batch;
  bool few; /* a corpus of three samples, mostly in documents of two or three bytes */
} task;

#define LLAMA                                                                                \
  "model: {vocab_size: 256, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, " \
  "num_key_value_heads: 2, head_dim: 8, intermediate_size: 48}\n"
#define GPT2                                                                           \
  "model: {model_type: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 2, " \
  "num_attention_heads: 4, intermediate_size: 64, max_position_embeddings: 256, bias: true, dropout: 0.1}\n"
#define CAPPED(mask) "{mask: '" mask "', score: 'cap * tanh(score / cap)', params: {cap: 0.5}}"
enum { MANY = 60000, SEED = 11, SHORT = 256, FEW = 2 * SHORT + 1 };

/* ---- runs ---- */

static int64_t document_length(bool few, int doc) {
  static const int lengths[] = {301, 5, 90, 33, 170, 2, 61};
  return few ? (doc % 60 == 0 ? 80 : 2 + doc % 2) : lengths[doc % 7];
}

/* Lines of very unequal lengths, so that samples have unequal numbers of targets. Each is made of three words
 * that repeat: what came long before helps. */
static void make_corpus(bool few, char path[600]) {
  static const char *const words[] = {"the ", "ring ",   "passes ", "keys ",
                                      "and ", "values ", "on ",     "again "};
  static char text[2 * MANY];
  uint32_t state = 7;
  int64_t at = 0, left = few ? FEW : MANY;
  for (int doc = 0; left > 0; doc++) {
    int64_t length = document_length(few, doc);
    if (length > left - 2) length = left; /* no document of one token, which would be left out */
    for (int64_t i = 0; i < length;) {
      state = state * 1664525u + 1013904223u;
      for (const char *c = words[((uint32_t)doc * 5 + (state >> 24) % 3 * (uint32_t)(1 + doc % 2)) % 8];
           *c && i < length; c++, i++)
        text[at++] = *c;
    }
    left -= length;
    text[at++] = '\n';
  }
  text[at] = '\0';
  snprintf(path, 600, "%s", fx_temp_file(fx_temp_dir(), "corpus.txt", text));
}

/* Trains to `iters` into `dir`, from the step in `resume` if that is not NULL. */
static bool train(run *r, const task *t, int layout, int iters, const char *dir, const char *resume) {
  const char *shape = layout < 0 ? "tp:1" : k_layouts[layout].shape;
  char corpus[600], from[700] = "none";
  fx_topology_shape s;
  double lr = resume ? 3e-4 : 2e-3; /* compared at a rate at which rounding does not grow tenfold */
  if (!CHECK_OK(fx_topology_parse(shape, &s))) return false;
  make_corpus(t->few, corpus);
  if (resume) snprintf(from, sizeof from, "%s/%s", fx_temp_dir(), resume);
  memset(r, 0, sizeof *r);
  r->yaml = t->model, r->ranks = s.tp * s.cp * s.dp, r->poison = -1, r->first = WARM;
  snprintf(r->keys, sizeof r->keys,
           "attention: %s\n"
           "parallel: {tensor: %d, context: %d, context_exchange: %s}\n"
           "data: {train: ['lines:%s'], valid_fraction: 0}\n"
           "optimizer: {lr: %g, min_lr: %g, weight_decay: 0.1, clip_grad: 1.0}\n"
           "schedule: {warmup_iters: 0, decay_iters: 1000}\n"
           "train: {iters: %d, seq_length: %d, micro_batch_size: 1, global_batch_size: %d, seed: %d, "
           "eval_interval: 0, log_interval: 1000}\n"
           "checkpoint: {dir: '%s/%s', interval: 0, resume: '%s'}\n"
           "runtime: {device: cpu, threads: 1, compiler: none}\n",
           t->attention, s.tp, s.cp, layout < 0 ? "auto" : k_layouts[layout].exchange, corpus, lr, lr, iters,
           t->seq_length, t->batch, SEED, fx_temp_dir(), dir, from);
  return run_train(r) && CHECK_INT(r->observers[STEPS - 1], resume ? r->ranks : 0);
}

static run g_one, g_other; /* large */
static char g_start[64];

/* The last layout with another attention is far from one rank. */
static void check_control(task t, const char *wrong) {
  t.attention = wrong;
  if (!train(&g_other, &t, LAYOUTS - 1, WARM + STEPS, "control", g_start)) return;
  double moved = fabs(g_other.loss[0] / g_one.loss[0] - 1);
  CHECK_MSG(moved >= 1e-3, "control: %s moves the first loss by %g only", wrong, moved);
}

static void check_layouts(task t, const char *wrong) {
  snprintf(g_start, sizeof g_start, "start/step_%08d", WARM);
  if (!train(&g_other, &t, -1, WARM, "start", NULL)) return;
  if (!train(&g_one, &t, -1, WARM + STEPS, "one", g_start)) return;
  CHECK_MSG(g_one.loss[0] < 2, "%s: the start is not trained: loss %g", t.attention, g_one.loss[0]);
  for (int i = 0; i < LAYOUTS; i++) {
    if (!train(&g_other, &t, i, WARM + STEPS, "other", g_start)) continue;
    double distance = run_distance(&g_one, &g_other, STEPS);
    CHECK_MSG(distance <= 1, "%s, %s, %s: at %.3g of the tolerance", k_layouts[i].shape,
              k_layouts[i].exchange, t.attention, distance);
  }
  check_control(t, wrong);
}

/* ---- masks ---- */

static void causal(void) {
  check_layouts((task){GPT2, "{variant: causal}", SHORT, 4, false}, "{mask: 'kv <= q && q - kv < 20'}");
}

static void window(void) {
  check_layouts((task){LLAMA, "{variant: sliding_window, params: {window: 141}}", SHORT, 4, false},
                "{variant: sliding_window, params: {window: 60}}");
}

static void documents(void) {
  check_layouts((task){LLAMA, "{variant: document_causal}", SHORT, 4, false}, "{variant: causal}");
}

/* The cap bends scores: without it the loss is another one too. */
static void capped_prefix(void) {
  task t = {LLAMA, CAPPED("kv < 150 || kv <= q"), SHORT, 4, false};
  check_layouts(t, CAPPED("kv <= q"));
  check_control(t, "{mask: 'kv < 150 || kv <= q'}");
}

/* ---- nothing to do ---- */

/* Of two blocks the second sees nothing and nobody sees it: one context rank has no attention at all. */
static void rows_that_see_nothing(void) {
  check_layouts((task){LLAMA, "{mask: 'kv <= q && q < 100'}", SHORT, 4, false},
                "{mask: 'kv <= q && q < 60'}");
}

/* Less than a block: of the chunks that go round most are masked for whoever gets them. */
static void chunks_that_nobody_sees(void) {
  check_layouts((task){LLAMA, "{variant: sliding_window, params: {window: 30}}", 2 * SHORT, 2, false},
                "{variant: sliding_window, params: {window: 15}}");
}

/* Of the samples that the compared steps take, how many have no target. */
static int empty_samples(int batch) {
  char path[600];
  const char *const patterns[] = {path};
  fx_tokenizer *tokenizer = NULL;
  fx_corpus *corpus = NULL;
  fx_documents documents = {0};
  fx_sampler *sampler = NULL;
  int count = 0;
  make_corpus(true, path);
  fx_corpus_options options = {.patterns = patterns, .n_patterns = 1, .format = FX_TEXT_LINES};
  fx_sampler_options how = {SHORT, FX_PACKING_DOCUMENTS, true, true, SEED};
  if (CHECK_OK(fx_tokenizer_create("byte", NULL, &tokenizer)) && (options.tokenizer = tokenizer) &&
      CHECK_OK(fx_corpus_load(&options, &corpus)) && CHECK_INT(fx_corpus_tokens(corpus), FEW) &&
      CHECK_OK(fx_documents_all(corpus, &documents)) &&
      CHECK_OK(fx_sampler_create(&documents, &how, &sampler)))
    for (int i = WARM * batch; i < (WARM + STEPS) * batch; i++) count += fx_sampler_valid(sampler, i) == 0;
  if (sampler) fx_sampler_destroy(sampler);
  fx_documents_fini(&documents);
  if (corpus) fx_corpus_destroy(corpus);
  fx_tokenizer_destroy(tokenizer);
  return count;
}

/* The last of three samples an epoch has one token, which often has no target; a step takes two samples, one
 * for each data-parallel rank. */
static void samples_without_targets(void) {
  CHECK(empty_samples(2) > 0);
  check_layouts((task){LLAMA, "{variant: document_causal}", SHORT, 2, true}, "{variant: causal}");
}

static const fx_test tests[] = {{"causal", causal},
                                {"sliding window", window},
                                {"documents", documents},
                                {"soft-capped prefix", capped_prefix},
                                {"rows that see nothing", rows_that_see_nothing},
                                {"chunks that nobody sees", chunks_that_nobody_sees},
                                {"samples without targets", samples_without_targets}};
FX_TEST_MAIN("layout matrix", tests)
