/* SPDX-License-Identifier: Apache-2.0 */
/* A step saved under any layout of tensor, context and data parallelism, with ZeRO or without, loads under
 * any other: weights, both moments and the trainer's numbers, bit for bit. */
#include "core/checkpoint/checkpoint.h"
#include "tests/core/train_ranks.h"

enum { SAVED = 3, BATCH = 4 };

/* Matrices cut by rows and by columns, key heads that are cut, a learnable table by heads, vectors that all
 * have; two sequences' worth of blocks for two context ranks. */
static const char g_model[] =
    "model: {model_type: llama, vocab_size: 256, hidden_size: 32, head_dim: 8, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 48}\n"
    "attention: {variant: document_causal, score: 'score + bias[h, min(8, max(0, q - kv))]', "
    "buffers: {bias: {shape: [H, 9], learnable: true}}}\n"
    "schedule: {warmup_iters: 0, decay_iters: 100}\n"
    "optimizer: {lr: 1.0e-3, min_lr: 1.0e-4, weight_decay: 0.1, clip_grad: 1.0}\n";

typedef struct layout {
  int tensor, context, data, zero;
} layout;

static const layout g_layouts[] = {{1, 1, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}, {1, 2, 1, 1}, {1, 1, 2, 0},
                                   {1, 1, 2, 1}, {2, 2, 1, 0}, {2, 2, 1, 1}, {2, 1, 2, 0}, {2, 1, 2, 1},
                                   {1, 2, 2, 0}, {1, 2, 2, 1}, {2, 2, 2, 0}, {2, 2, 2, 1}};
enum { LAYOUTS = sizeof g_layouts / sizeof g_layouts[0], OTHERS = FX_TEST_CASES(LAYOUTS) };

static const char *name_of(layout l, char name[64]) {
  snprintf(name, 64, "tp%d cp%d dp%d zero %d", l.tensor, l.context, l.data, l.zero);
  return name;
}

static const char *corpus(void) {
  static char path[512];
  char text[20000];
  size_t length = 0;
  if (path[0]) return path;
  while (length + 400 < sizeof text) {
    for (size_t i = 0, n = 20 + length * 37 % 300; i < n; i++, length++)
      text[length] = (char)('a' + (length * 5 + i * i) % 26);
    text[length++] = '\n';
  }
  text[length] = '\0';
  snprintf(path, sizeof path, "%s", fx_temp_file(fx_temp_dir(), "corpus.txt", text));
  return path;
}

/* Runs to `iters` into dir, from the step `from` ("none": from the start). */
static bool train(run *r, layout l, const char *dir, const char *from, int iters, int64_t poison) {
  memset(r, 0, sizeof *r);
  r->yaml = g_model;
  r->ranks = l.tensor * l.context * l.data;
  r->poison = poison;
  snprintf(r->keys, sizeof r->keys,
           "train: {seq_length: 256, micro_batch_size: %d, global_batch_size: %d, seed: 5, iters: %d, "
           "eval_interval: 0, log_interval: 1000}\n"
           "parallel: {tensor: %d, context: %d, zero: %d, bucket_elements: 5000}\n"
           "runtime: {threads: 1, device: cpu, compiler: none}\n"
           "checkpoint: {dir: \"%s\", resume: \"%s\"}\n"
           "data: {train: [\"lines:%s\"]}\n",
           BATCH / l.data, BATCH, iters, l.tensor, l.context, l.zero, dir, from, corpus());
  return run_train(r);
}

static const char *step_of(char path[640], const char *dir, int step) {
  snprintf(path, 640, "%s/step_%08d", dir, step);
  return path;
}

static void check_state(const char *step, int64_t skipped) {
  fx_ckpt *ckpt = NULL;
  if (!CHECK_OK(fx_ckpt_open(step, &ckpt))) return;
  const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
  CHECK_INT(state->consumed_samples, (SAVED + skipped) * BATCH);
  CHECK_INT(state->optimizer_step, SAVED);
  CHECK_INT(state->skipped, skipped);
  fx_ckpt_close(ckpt);
}

/* The other layout loads the step, skips one (its gradient is made NaN) and saves what it then has. */
static void load_and_save(layout a, layout b, const char *from, const char *dir) {
  static run r;
  char to[640], name[2][64];
  if (!train(&r, b, dir, from, SAVED + 1, SAVED)) return;
  int64_t different = run_different(from, step_of(to, dir, SAVED + 1));
  CHECK_MSG(different == 0, "from %s to %s: %lld tensors differ", name_of(a, name[0]), name_of(b, name[1]),
            (long long)different);
  check_state(to, 1);
}

static void every_layout_loads_every_other(void) {
  static run r;
  char from_dir[600], dir[600], from[640];
  for (int a = 0; a < LAYOUTS; a++) {
    snprintf(from_dir, sizeof from_dir, "%s/from%d", fx_temp_dir(), a);
    if (!train(&r, g_layouts[a], from_dir, "none", SAVED, -1)) return;
    CHECK_OK(fx_ckpt_verify(step_of(from, from_dir, SAVED), NULL));
    check_state(from, 0);
    for (int i = 0; i < OTHERS; i++) {
      int b = (a + 1 + i) % LAYOUTS; /* under sanitizers the next one alone */
      snprintf(dir, sizeof dir, "%s/from%d_to%d", fx_temp_dir(), a, b);
      load_and_save(g_layouts[a], g_layouts[b], from, dir);
    }
  }
}

static const fx_test g_tests[] = {
    {"tensor, context, data, ZeRO: any into any other, bitwise", every_layout_loads_every_other}};
FX_TEST_MAIN("core/reshard", g_tests)
