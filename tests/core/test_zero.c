/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO 1 and 2 on in-process ranks against one rank, against no ZeRO, and against themselves under other
 * layouts. */
#include "core/config/agree.h"
#include "dynamo_rt/plan/ledger.h"
#include "dynamo_rt/plan/plan.h"
#include "parallel/topology.h"
#include "tests/core/fixture.h"
#include "tests/core/train_ranks.h"

enum { STEPS = 20, BATCH = 24 };

#define COMMON                                      \
  "attention: {variant: document_causal}\n"         \
                                                    \
  "schedule: {warmup_iters: 0, decay_iters: 100}\n" \
  "optimizer: {lr: 1.0e-3, min_lr: 1.0e-4, weight_decay: 0.1, clip_grad: 1.0}\n"

static const struct {
  const char *name, *yaml;
} g_models[] = {
    {"Llama",
     "model: {model_type: llama, vocab_size: 256, hidden_size: 36, head_dim: 8, num_hidden_layers: 2, "
     "num_attention_heads: 4, "
     "num_key_value_heads: 2, intermediate_size: 56, max_position_embeddings: 32}\n" COMMON},
    {"Llama, tied",
     "model: {model_type: llama, vocab_size: 256, hidden_size: 36, head_dim: 8, num_hidden_layers: 2, "
     "num_attention_heads: 4, "
     "num_key_value_heads: 2, intermediate_size: 56, max_position_embeddings: 32, "
     "tie_word_embeddings: true}\n" COMMON},
    /* a width that leaves padding inside buckets */
    {"GPT-2, dropout",
     "model: {model_type: gpt2, vocab_size: 256, hidden_size: 36, head_dim: 8, num_hidden_layers: 2, "
     "num_attention_heads: 3, "
     "max_position_embeddings: 33, bias: true, dropout: 0.1}\n" COMMON},
};
enum { MODELS = sizeof g_models / sizeof g_models[0] };

static const char *corpus(void) {
  static char path[512];
  char text[16384];
  size_t length = 0;
  if (path[0]) return path;
  for (int line = 0; line < 90; line++) {
    for (int i = 0; i < 20 + line * 37 % 110; i++)
      text[length++] = (char)('a' + (line * 5 + i * i % (3 + line % 7)) % 26);
    text[length++] = '\n';
  }
  text[length] = '\0';
  snprintf(path, sizeof path, "%s", fx_temp_file(fx_temp_dir(), "corpus.txt", text));
  return path;
}

typedef struct layout {
  int ranks, zero;
  bool several; /* micro-batches a step */
  const char *mode;
  bool half; /* the batch */
} layout;

static void set_keys(run *r, layout l, const char *dir, int64_t iters, const char *checkpoint) {
  int batch = l.half ? BATCH / 2 : BATCH, micro = l.several ? 1 : batch / l.ranks;
  snprintf(r->keys, sizeof r->keys,
           "train: {seq_length: 32, micro_batch_size: %d, global_batch_size: %d, seed: 5, iters: %lld, "
           "log_interval: 1000}\n"
           "parallel: {zero: %d, bucket_elements: 5000}\n"
           "runtime: {threads: 1, device: cpu, mode: %s}\n"
           "checkpoint: {dir: \"%s\"%s}\n"
           "data: {valid_fraction: 0.2, train: [\"lines:%s\"]}\n",
           micro, batch, (long long)iters, l.zero, l.mode ? l.mode : "replay", dir, checkpoint, corpus());
}

/* A directory of checkpoints that no other run has. */
static const char *fresh_dir(char path[600]) {
  static char root[512];
  static int count;
  if (!root[0]) snprintf(root, sizeof root, "%s", fx_temp_dir());
  snprintf(path, 600, "%s/run%d", root, count++);
  return path;
}

static const char *step_of(char path[640], const char *dir, int64_t step) {
  snprintf(path, 640, "%s/step_%08lld", dir, (long long)step);
  return path;
}

static bool train(run *r, const char *yaml, layout l, const char *dir, int64_t iters,
                  const char *more_checkpoint) {
  memset(r, 0, sizeof *r);
  r->yaml = yaml;
  r->ranks = l.ranks;
  r->poison = -1;
  set_keys(r, l, dir, iters, more_checkpoint);
  return run_train(r);
}

/* ---- losses and gradients ---- */

static void layouts_agree(void) {
  static run one, other;
  char dir[600], none[640], some[640];
  for (int m = 0; m < MODELS; m++) {
    layout alone = {1, 0, true, NULL, false};
    if (!train(&one, g_models[m].yaml, alone, fresh_dir(dir), STEPS, "")) return;
    CHECK_MSG(one.loss[STEPS - 1] < one.loss[0], "the loss went from %g to %g", one.loss[0],
              one.loss[STEPS - 1]);
    static const int sizes[] = {2, 3, 4, 8};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
      for (int several = 0; several < 2; several++)
        for (int zero = 0; zero < 3; zero++) {
          layout l = {sizes[n], zero, several, NULL, false};
          fresh_dir(dir);
          if (!train(&other, g_models[m].yaml, l, dir, STEPS, "")) return;
          double distance = run_distance(&one, &other, STEPS);
          CHECK_MSG(distance <= 1, "%s, %d ranks, zero %d, %s: at %.3g of the tolerance", g_models[m].name,
                    sizes[n], zero, several ? "several micro-batches" : "one micro-batch", distance);
          if (zero == 0) step_of(none, dir, STEPS);
          if (zero == 1 || (zero == 2 && !several)) /* the same sums in the same order */
            CHECK_MSG(run_different(none, step_of(some, dir, STEPS)) == 0,
                      "%s, %d ranks: zero %d is not zero 0, bit for bit", g_models[m].name, sizes[n], zero);
        }
  }
}

/* The comparison above can fail. */
static void another_batch_is_seen(void) {
  static run one, other;
  char dir[600];
  layout alone = {1, 0, true, NULL, false}, two = {2, 2, true, NULL, true};
  if (!train(&one, g_models[0].yaml, alone, fresh_dir(dir), 3, "")) return;
  if (!train(&other, g_models[0].yaml, two, fresh_dir(dir), 3, "")) return;
  CHECK_MSG(run_distance(&one, &other, 3) > 10, "other samples, and yet at %.3g of the tolerance",
            run_distance(&one, &other, 3));
}

static void eager_is_replay(void) {
  static run r;
  char dir[600], a[640], b[640];
  for (int m = 0; m < MODELS; m++)
    for (int zero = 1; zero < 3; zero++) {
      layout replay = {3, zero, true, NULL, false}, eager = {3, zero, true, "eager", false};
      if (!train(&r, g_models[m].yaml, replay, fresh_dir(dir), STEPS, "")) return;
      step_of(a, dir, STEPS);
      if (!train(&r, g_models[m].yaml, eager, fresh_dir(dir), STEPS, "")) return;
      CHECK_MSG(run_different(a, step_of(b, dir, STEPS)) == 0, "%s, zero %d: eager is not replay",
                g_models[m].name, zero);
    }
}

/* In the place of the library's: what plans do about configurations that differ is asked below, not what the
 * comparison before them does (test_config_agree.c). */
fx_status fx_config_agree(const fx_config *cfg, fx_control *control, int timeout_ms) {
  (void)cfg;
  (void)control;
  (void)timeout_ms;
  return FX_OK;
}

/* Ranks that cut or reduce otherwise end with a sentence, not in a hang. */
static void divergence_is_named(void) {
  static const struct {
    const char *from, *to, *named[2];
  } cases[] = {
      {"bucket_elements: 5000",
       "bucket_elements: 7000",
       {"plan micro_first: rank 0 has \"dp_cp#4 all_gather sum float32 x ",
        "rank 1 has \"dp_cp#4 all_gather sum float32 x "}},
      {"zero: 1", "zero: 2", {"rank 0 has no entry", "rank 1 has \"dp_cp#4 reduce_scatter sum float32 x "}},
  };
  static run r;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char dir[600], odd[sizeof r.keys];
    layout l = {2, 1, true, NULL, false};
    memset(&r, 0, sizeof r);
    r.yaml = g_models[0].yaml;
    r.ranks = 2;
    set_keys(&r, l, fresh_dir(dir), 2, "");
    const char *at = strstr(r.keys, cases[i].from);
    if (!CHECK(at != NULL)) return;
    snprintf(odd, sizeof odd, "%.*s%s%s", (int)(at - r.keys), r.keys, cases[i].to,
             at + strlen(cases[i].from));
    r.odd = odd;
    pthread_mutex_init(&r.mutex, NULL);
    CHECK_STATUS(fx_local_run(2, run_rank, &r), FX_ERR_DIVERGED);
    for (int k = 0; k < 2; k++) CHECK_HAS(fx_error_text(), cases[i].named[k]);
    pthread_mutex_destroy(&r.mutex);
  }
}

/* ---- checkpoints ---- */

static const layout g_layouts[] = {{1, 0, true, NULL, false}, {2, 1, true, NULL, false},
                                   {3, 2, true, NULL, false}, {4, 1, true, NULL, false},
                                   {2, 2, true, NULL, false}, {3, 0, true, NULL, false},
                                   {4, 2, true, NULL, false}};
enum { LAYOUTS = sizeof g_layouts / sizeof g_layouts[0], SAVED = 3 };

/* A step is saved by one layout, loaded by another, which skips a step (its gradient is made NaN) and saves:
 * whatever went through both ways must have come out as it was. The skip also shows that all ranks of a group
 * heard of one rank's NaN. */
static void every_layout_loads_every_other(void) {
  static run r;
  char from_dir[600], dir[600], from[640], to[640], key[800];
  for (int a = 0; a < LAYOUTS; a++) {
    fresh_dir(from_dir);
    if (!train(&r, g_models[2].yaml, g_layouts[a], from_dir, SAVED, "")) return;
    CHECK_OK(fx_ckpt_verify(step_of(from, from_dir, SAVED), NULL));
    for (int b = 0; b < LAYOUTS; b++) {
      layout l = g_layouts[b];
      memset(&r, 0, sizeof r);
      r.yaml = g_models[2].yaml;
      r.ranks = l.ranks;
      r.poison = SAVED;
      snprintf(key, sizeof key, ", resume: \"%s\"", from);
      set_keys(&r, l, fresh_dir(dir), SAVED + 1, key);
      if (!run_train(&r)) return;
      for (int rank = 0; rank < l.ranks; rank++) CHECK_INT(r.skipped[rank], 1);
      CHECK_INT(r.consumed, (SAVED + 1) * BATCH);
      int64_t different = run_different(from, step_of(to, dir, SAVED + 1));
      CHECK_MSG(different == 0, "from %d ranks, zero %d to %d ranks, zero %d: %lld tensors differ",
                g_layouts[a].ranks, g_layouts[a].zero, l.ranks, l.zero, (long long)different);
    }
  }
}

/* Half a run under one layout, the other half under another: the losses of one run. */
static void goes_on_under_another_layout(void) {
  static run whole, half;
  char dir[600], other[600], key[800], step[640];
  layout a = {3, 2, true, NULL, false}, b = {4, 1, true, NULL, false}, alone = {1, 0, true, NULL, false};
  if (!train(&whole, g_models[2].yaml, alone, fresh_dir(dir), 10, "")) return;
  if (!train(&half, g_models[2].yaml, a, fresh_dir(dir), 5, "")) return;
  snprintf(key, sizeof key, ", resume: \"%s\"", step_of(step, dir, 5));
  static run rest;
  if (!train(&rest, g_models[2].yaml, b, fresh_dir(other), 10, key)) return;
  memcpy(rest.loss, half.loss, 5 * sizeof *rest.loss);
  memcpy(rest.squares, half.squares, 5 * sizeof *rest.squares);
  double distance = run_distance(&whole, &rest, 10);
  CHECK_MSG(distance <= 1, "at %.3g of the tolerance", distance);
}

/* Saves beside training copy the packed state: the same bits as saves of the live one. */
static void snapshots_are_the_state(void) {
  static run r;
  char dir[600], a[640], b[640];
  for (int zero = 1; zero < 3; zero++) {
    layout l = {3, zero, true, NULL, false};
    fresh_dir(dir);
    memset(&r, 0, sizeof r);
    if (!train(&r, g_models[0].yaml, l, dir, 6, ", interval: 3, async: true")) return;
    step_of(a, dir, 3);
    if (!train(&r, g_models[0].yaml, l, fresh_dir(dir), 3, "")) return;
    CHECK_MSG(run_different(a, step_of(b, dir, 3)) == 0, "zero %d: a save beside training differs", zero);
  }
}

/* ---- one step, by hand ---- */

enum { B = 2, T = 32 };
static const char g_small[] =
    "model: {model_type: llama, vocab_size: 61, hidden_size: 36, head_dim: 8, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 56, max_position_embeddings: 32}\n"
    "train: {seq_length: 32, micro_batch_size: 2, global_batch_size: 4, seed: 3}\n";

typedef struct hand {
  int zero;
  int drop; /* gather of this number does nothing, on all ranks; 0: none */
  float loss[4];
  int copies, scatters, gathers; /* of micro_only */
  char ledger[4096];             /* of micro_mid */
  pthread_mutex_t mutex;
} hand;

static const fx_comm_vtable *g_sound; /* of in-process communicators */
static _Thread_local int g_gathers;   /* of a service thread, that is of a rank */

static int g_drop;

static fx_status drop_one_gather(fx_comm *comm, const fx_comm_call *call) {
  if (call->kind == FX_ALL_GATHER && ++g_gathers == g_drop) return FX_OK;
  return g_sound->issue(comm, call);
}

static void describe(hand *h, const fixture *f) {
  const fx_graph *graph = fx_plan_graph(fx_stepper_plan(f->stepper, FX_PHASE_MICRO_ONLY));
  for (int n = 0; n < fx_graph_num_nodes(graph); n++) {
    const fx_node *node = fx_graph_node(graph, n);
    if (node->dead) continue;
    h->copies += strcmp(node->op->name, "copy") == 0;
    if (!(node->op->effects & FX_EFFECT_COLLECTIVE)) continue;
    h->scatters += ((const fx_collective_attr *)node->attr)->kind == FX_REDUCE_SCATTER;
    h->gathers += ((const fx_collective_attr *)node->attr)->kind == FX_ALL_GATHER;
  }
  char *text = fx_plan_ledger(fx_stepper_plan(f->stepper, FX_PHASE_MICRO_MID));
  snprintf(h->ledger, sizeof h->ledger, "%s", text ? text : "");
  free(text);
}

static fx_status hand_rank(fx_control *control, void *ctx) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_MID, FX_PHASE_UPDATE};
  hand *h = ctx;
  fixture f;
  fx_topology *topology = NULL;
  char yaml[1024];
  int32_t tokens[B * T], targets[B * T];
  FX_TRY(fx_topology_create(control, 1, 1, &topology));
  fx_comm_vtable broken = *topology->comm.dp_cp->vtable;
  g_sound = topology->comm.dp_cp->vtable;
  broken.issue = drop_one_gather;
  if (h->drop) topology->comm.dp_cp->vtable = &broken;
  snprintf(yaml, sizeof yaml, "%sparallel: {zero: %d, bucket_elements: 5000}\n", g_small, h->zero);
  pthread_mutex_lock(&h->mutex); /* the harness counts one check at a time */
  bool ready = fixture_init(&f, yaml, B, T, (fixture_options){.topology = topology, .poison = true}) &&
               fixture_prepare(&f, phases, 3);
  if (ready && control->rank == 0) describe(h, &f);
  for (int i = 0; i < B * T; i++) {
    tokens[i] = (i * 7 + control->rank * 5 + i / 9) % 61;
    targets[i] = (tokens[i] + 1) % 61;
  }
  if (ready) fixture_fill(&f, tokens, targets, NULL, 1.0f / (B * T * 2));
  fixture_optimizer(&f, 1e-2f, 1);
  fx_status status = ready ? fx_params_initialize(&f.model->params, 3) : FX_ERR_INTERNAL;
  pthread_mutex_unlock(&h->mutex);
  for (int s = 0; s < 4 && status == FX_OK; s++) {
    status = fx_stepper_run(f.stepper, FX_PHASE_MICRO_ONLY, 0);
    if (status == FX_OK) status = fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0);
    if (control->rank == 0) h->loss[s] = *fx_stepper_results(f.stepper)->loss;
  }
  fixture_fini(&f);
  topology->comm.dp_cp->vtable = g_sound;
  fx_topology_destroy(topology);
  return status;
}

static hand by_hand(int zero, int drop) {
  hand h = {.zero = zero, .drop = g_drop = drop};
  pthread_mutex_init(&h.mutex, NULL);
  CHECK_OK(fx_local_run(2, hand_rank, &h));
  pthread_mutex_destroy(&h.mutex);
  return h;
}

/* A gather that is left out in one step shows in the loss of that step. */
static void a_lost_gather_is_seen(void) {
  for (int zero = 1; zero < 3; zero++) {
    hand none = by_hand(0, 0), sound = by_hand(zero, 0);
    hand broken =
        by_hand(zero, sound.gathers + 2); /* of the second step: in the first all weights are there */
    CHECK_MSG(memcmp(sound.loss, none.loss, sizeof sound.loss) == 0, "zero %d: %g, without %g", zero,
              (double)sound.loss[3], (double)none.loss[3]);
    CHECK(sound.loss[3] < sound.loss[0] && sound.loss[0] == broken.loss[0]);
    double moved = 0;
    for (int s = 0; s < 4; s++)
      moved = fmax(moved, fabs((double)sound.loss[s] - (double)broken.loss[s]) / (double)sound.loss[s]);
    CHECK_MSG(moved > 1e-3, "zero %d: a gather was dropped, and losses agree to %.3g", zero, moved);
  }
}

/* ZeRO 2: the backward writes into the buckets themselves, and every micro-batch reduces. */
static void plans_are_as_meant(void) {
  hand none = by_hand(0, 0), one = by_hand(1, 0), two = by_hand(2, 0);
  CHECK_INT(none.gathers + none.scatters, 0);
  CHECK(one.gathers > 3 && one.gathers == one.scatters);
  CHECK(two.gathers == one.gathers && two.scatters == one.scatters);
  CHECK_INT(two.copies, none.copies);
  CHECK_STR(one.ledger, "");
  CHECK_HAS(two.ledger, "dp_cp#4 reduce_scatter sum float32 x ");
}

/* ---- masters apart from the weights that kernels read ---- */

enum { UPDATES = 3 };

/* By parameter and its elements, so that layouts can be compared. */
typedef struct state {
  float *weight; /* masters of all ranks */
  uint16_t *compute;
  int64_t numel;
} state;

typedef struct packed_job {
  int zero;
  state out;
  pthread_mutex_t mutex;
} packed_job;

static void fill_gradient(const fx_params *p, int64_t step) {
  for (int64_t i = 0; i < p->num_params; i++) {
    fx_zero_box box[FX_ZERO_BOXES];
    int64_t cols = p->param[i].ndim == 2 ? p->param[i].count[1] : 1;
    float *all = malloc((size_t)fx_param_numel(&p->param[i]) * sizeof *all);
    fx_fill_normal(all, fx_param_numel(&p->param[i]), (uint64_t)(100 * step + i), 0.1f);
    for (int b = 0, count = fx_zero_boxes(p, &p->param[i], box); b < count; b++)
      for (int64_t r = 0; r < box[b].rows; r++)
        memcpy(p->grad + box[b].packed + r * box[b].pitch, all + (box[b].row + r) * cols + box[b].col,
               (size_t)box[b].cols * sizeof *all);
    free(all);
  }
}

static void collect(const fx_params *p, int rank, state *out) {
  int64_t total = 0, at = 0;
  for (int64_t i = 0; i < p->num_params; i++) total += fx_param_numel(&p->param[i]);
  if (!out->weight) {
    out->weight = calloc((size_t)total, sizeof *out->weight);
    out->compute = calloc((size_t)total, sizeof *out->compute);
    out->numel = total;
  }
  for (int64_t i = 0; i < p->num_params; at += fx_param_numel(&p->param[i++])) {
    fx_zero_box box[FX_ZERO_BOXES];
    int64_t cols = p->param[i].ndim == 2 ? p->param[i].count[1] : 1;
    for (int b = 0, count = fx_zero_boxes(p, &p->param[i], box); b < count; b++)
      for (int64_t r = 0; r < box[b].rows; r++)
        memcpy(out->weight + at + (box[b].row + r) * cols + box[b].col,
               p->weight + box[b].master + r * box[b].pitch, (size_t)box[b].cols * sizeof(float));
    const uint16_t *compute = p->compute + fx_param_offset(p, &p->param[i]);
    size_t bytes = (size_t)fx_param_numel(&p->param[i]) * sizeof *compute;
    if (rank == 0) memcpy(out->compute + at, compute, bytes);
    CHECK_MSG(rank == 0 || memcmp(out->compute + at, compute, bytes) == 0, "ranks 0 and %d have another %s",
              rank, p->param[i].name);
  }
}

/* The model is a GPU's, in bfloat16, its memory and the plans that it runs here a CPU's. */
static fx_status packed_rank(fx_control *control, void *ctx) {
  static const fx_phase micros[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_MID, FX_PHASE_MICRO_LAST},
                        phases[] = {FX_PHASE_UPDATE, FX_PHASE_REFRESH, FX_PHASE_GATHER};
  packed_job *job = ctx;
  fixture f;
  fx_topology *topology = NULL;
  char yaml[1024];
  FX_TRY(fx_topology_create(control, 1, 1, &topology));
  snprintf(yaml, sizeof yaml,
           "%sparallel: {zero: %d, bucket_elements: 5000}\noptimizer: {stochastic_rounding: true}\n", g_small,
           job->zero);
  pthread_mutex_lock(&job->mutex);
  bool ready = fixture_init(&f, yaml, B, T, (fixture_options){.topology = topology, .pretend_cuda = true});
  ready = ready && CHECK_OK(fx_stepper_prepare(f.stepper, micros, 3)); /* every op has a CUDA kernel */
  f.device->backend = FX_BACKEND_CPU;
  const fx_params *p = &f.model->params;
  ready = ready && CHECK(p->compute && (job->zero == 0 || p->num_own < p->numel)) &&
          fixture_prepare(&f, phases, job->zero ? 3 : 2);
  f.device->backend = FX_BACKEND_CUDA; /* the masters are not the host's */
  fx_status status = ready ? fx_params_initialize(&f.model->params, 3) : FX_ERR_INTERNAL;
  f.device->backend = FX_BACKEND_CPU;
  pthread_mutex_unlock(&job->mutex);
  if (status == FX_OK) status = fx_stepper_refresh(f.stepper);
  for (int64_t step = 1; step <= UPDATES && status == FX_OK; step++) {
    fill_gradient(p, step);
    fixture_optimizer(&f, 1e-2f, step);
    status = fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0);
  }
  if (job->zero && status == FX_OK) status = fx_stepper_run(f.stepper, FX_PHASE_GATHER, 0);
  for (int rank = 0; rank < control->size && status == FX_OK; rank++) {
    status = fx_control_barrier(control, 60000);
    if (rank == control->rank) collect(p, rank, &job->out);
  }
  fixture_fini(&f);
  fx_topology_destroy(topology);
  return status;
}

static void masters_packed(void) {
  packed_job one = {0}, three = {.zero = 2};
  pthread_mutex_init(&one.mutex, NULL);
  pthread_mutex_init(&three.mutex, NULL);
  if (CHECK_OK(fx_local_run(1, packed_rank, &one)) && CHECK_OK(fx_local_run(3, packed_rank, &three))) {
    CHECK_INT(one.out.numel, three.out.numel);
    CHECK(memcmp(one.out.weight, three.out.weight, (size_t)one.out.numel * sizeof(float)) == 0);
    CHECK(memcmp(one.out.compute, three.out.compute, (size_t)one.out.numel * sizeof(uint16_t)) == 0);
    int64_t rounded = 0; /* not all to the nearest: the masters say more than the copy */
    for (int64_t i = 0; i < one.out.numel; i++)
      rounded += fx_f32_to_bf16(one.out.weight[i]) != one.out.compute[i];
    CHECK_MSG(rounded > one.out.numel / 10, "%lld of %lld", (long long)rounded, (long long)one.out.numel);
  }
  free(one.out.weight), free(one.out.compute), free(three.out.weight), free(three.out.compute);
}

static const fx_test tests[] = {{"2, 3, 4, 8 ranks, zero 0, 1, 2: losses, norms, bits", layouts_agree},
                                {"control: another batch is seen", another_batch_is_seen},
                                {"eager = replay", eager_is_replay},
                                {"a divergence is named", divergence_is_named},
                                {"every layout loads every other's steps", every_layout_loads_every_other},
                                {"a run goes on under another layout", goes_on_under_another_layout},
                                {"saves beside training", snapshots_are_the_state},
                                {"control: a lost gather is seen", a_lost_gather_is_seen},
                                {"plans: gathers, reductions, no copies", plans_are_as_meant},
                                {"bfloat16: packed masters, stochastic rounding", masters_packed}};
FX_TEST_MAIN("zero", tests)
