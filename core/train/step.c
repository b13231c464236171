/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/record.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"

enum {
  MAX_PLANS = FX_PLANS_PER_SITE * FX_PHASE_COUNT, /* that the cache takes */
  STEP_SLOTS = 4,                                 /* slots of runtime inputs at most */
  NAME_BYTES = 32
};

typedef struct named_plan {
  fx_plan *plan; /* owned by the cache */
  char name[NAME_BYTES];
} named_plan;

struct fx_stepper {
  fx_step_config config;
  fx_step_results results;
  fx_plan_cache *cache;
  fx_plan *current[FX_PHASE_COUNT][FX_ATTENTION_MAX_RUNGS]; /* under the present keys; owned by the cache */
  named_plan all[MAX_PLANS + 1];                            /* and one that the cache refuses */
  int num_all;
  bool hold; /* at rung 0 */
  void *arena;
  size_t arena_bytes;
  fx_event *slot_event[STEP_SLOTS]; /* after the last launch that reads the slot */
  int64_t capacity;                 /* tokens that results hold */
  char reason[160];
};

const char *fx_phase_name(fx_phase phase) {
  static const char *const names[FX_PHASE_COUNT] = {
#define FX_PHASE_ROW(name, text) text,
      FX_PHASE_LIST(FX_PHASE_ROW)
#undef FX_PHASE_ROW
  };
  return names[phase];
}

int fx_step_micro_phases(int64_t micros, fx_phase phases[3]) {
  int count = 0;
  if (micros == 1) {
    phases[count++] = FX_PHASE_MICRO_ONLY;
  } else {
    phases[count++] = FX_PHASE_MICRO_FIRST;
    if (micros > 2) phases[count++] = FX_PHASE_MICRO_MID;
    phases[count++] = FX_PHASE_MICRO_LAST;
  }
  return count;
}

fx_status fx_step_declare_inputs(fx_inputs *inputs, const fx_attention_setup *attention) {
  static const char *const per_token[] = {"tokens", "targets", "positions"};
  int64_t B = attention->B, T = attention->rows;
  for (size_t i = 0; i < sizeof per_token / sizeof per_token[0]; i++)
    FX_TRY(fx_inputs_add(inputs, per_token[i], fx_type_2d(FX_I32, B, T)));
  FX_TRY(fx_inputs_add(inputs, "sample_ordinal", fx_type_1d(FX_I64, B)));
  FX_TRY(fx_inputs_add(inputs, "iteration", fx_type_1d(FX_I64, 1)));
  FX_TRY(fx_inputs_add(inputs, "optimizer_step", fx_type_1d(FX_I64, 1)));
  FX_TRY(fx_inputs_add(inputs, "loss_factor", fx_type_1d(FX_F32, 1)));
  FX_TRY(fx_inputs_add(inputs, "lr", fx_type_1d(FX_F32, 1)));
  FX_TRY(fx_inputs_add(inputs, "flags", fx_type_1d(FX_F32, FX_STEP_FLAGS)));
  return fx_attention_declare(attention, inputs);
}

fx_status fx_step_snapshot_create(const fx_model *model, float **out) {
  size_t bytes = 3 * (size_t)model->params.num_own * sizeof(float);
  void *memory = NULL;
  if (model->params.device)
    FX_TRY(fx_device_alloc_host(model->params.device, bytes, &memory));
  else
    FX_TRY(fx_alloc_aligned(&memory, bytes));
  memset(memory, 0, bytes);
  *out = memory;
  return FX_OK;
}

void fx_step_snapshot_destroy(const fx_model *model, float *snapshot) {
  if (model && model->params.device)
    fx_device_release_host(model->params.device, snapshot);
  else
    free(snapshot);
}

/* Results are written by the device and read by the host. */
static fx_status allocate_result(fx_device *device, size_t count, float **out) {
  void *memory = NULL;
  FX_TRY(fx_device_alloc_host(device, count * sizeof(float), &memory));
  *out = memory;
  return FX_OK;
}

fx_status fx_stepper_create(const fx_step_config *config, fx_stepper **out) {
  fx_stepper *stepper = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&stepper, 1, sizeof *stepper));
  stepper->config = *config;
  stepper->capacity = config->B * config->T;
  fx_step_results *r = &stepper->results;
  void *signal = NULL;
  size_t tokens = (size_t)stepper->capacity;
  FX_TRY_GOTO(fx_plan_cache_create(&stepper->cache), destroy_stepper);
  FX_TRY_GOTO(allocate_result(config->device, 1 + FX_STEP_FLAGS, &r->loss), destroy_stepper);
  r->flags = r->loss + 1;
  FX_TRY_GOTO(fx_device_alloc(config->device, (1 + FX_STEP_FLAGS) * sizeof(float), &signal), destroy_stepper);
  r->signal = signal;
  FX_TRY_GOTO(allocate_result(config->device, 1, &r->grad_norm), destroy_stepper);
  FX_TRY_GOTO(allocate_result(config->device, tokens, &r->nll), destroy_stepper);
  *r->loss = *r->grad_norm = 0;
  if (config->keep_logits)
    FX_TRY_GOTO(allocate_result(config->device, tokens * (size_t)config->model->padded_vocab, &r->logits),
                destroy_stepper);
  *out = stepper;
  return FX_OK;
destroy_stepper:
  fx_stepper_destroy(stepper);
  return status;
}

void fx_stepper_destroy(fx_stepper *stepper) {
  if (!stepper) return;
  fx_plan_cache_destroy(stepper->cache);
  for (int i = 0; i < STEP_SLOTS; i++)
    if (stepper->slot_event[i])
      stepper->config.device->vtable->event_destroy(stepper->config.device, stepper->slot_event[i]);
  fx_device_release(stepper->config.device, stepper->arena);
  fx_device_release(stepper->config.device, stepper->results.signal);
  float *results[] = {stepper->results.loss, stepper->results.grad_norm, stepper->results.nll,
                      stepper->results.logits};
  for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
    fx_device_release_host(stepper->config.device, results[i]);
  free(stepper);
}

static bool attends(fx_phase phase) {
  return phase != FX_PHASE_UPDATE && phase != FX_PHASE_UPDATE_SNAPSHOT && phase != FX_PHASE_REFRESH &&
         phase != FX_PHASE_GATHER;
}

static int32_t num_rungs(const fx_stepper *stepper, fx_phase phase) {
  return attends(phase) ? stepper->config.attention->num_rungs : 1;
}

static fx_plan_key key_of(const fx_stepper *stepper, fx_phase phase, int32_t rung) {
  const fx_step_config *c = &stepper->config;
  const fx_config *config = c->model->config;
  fx_plan_key key;
  memset(&key, 0, sizeof key);
  key.site = fx_hash64_text("train step");
  key.phase = (uint64_t)phase;
  key.batch = (uint64_t)c->B;
  key.length = (uint64_t)c->T;
  key.dtype = (uint64_t)c->model->params.dtype;
  key.variant = fx_hash64_text(c->attention->text);
  key.capacity = (uint64_t)c->attention->rung[rung].blocks;
  key.hops = (uint64_t)c->attention->rung[rung].hops;
  key.config = fx_hash64(&config->model.hidden_size, sizeof(int64_t), (uint64_t)c->model->params.numel);
  int zero = c->model->params.zero;
  key.topology = fx_hash64(&zero, sizeof zero, fx_hash64_text(c->topology ? c->topology : ""));
  key.threads = (uint64_t)c->device->threads;
  key.isa = fx_hash64_text(c->device->isa);
  key.mode = (uint64_t)c->mode;
  return key;
}

/* As the stepper's, with the setup of one rung, of which nothing outlives the recording. */
static fx_status record_rung(const fx_stepper *stepper, fx_phase phase, int32_t rung, fx_graph *graph) {
  fx_step_config config = stepper->config;
  fx_attention_setup attention = *config.attention;
  attention.room = attention.rung[rung];
  config.attention = &attention;
  return fx_step_record(&config, &stepper->results, phase, graph);
}

static void name_rung(const fx_stepper *stepper, fx_phase phase, int32_t rung, char name[NAME_BYTES]) {
  const fx_ring_room *room = &stepper->config.attention->rung[rung];
  if (rung == 0)
    snprintf(name, NAME_BYTES, "%s", fx_phase_name(phase));
  else
    snprintf(name, NAME_BYTES, "%s/%dx%d", fx_phase_name(phase), room->blocks, room->hops);
}

static fx_status capture(fx_stepper *stepper, fx_phase phase, int32_t rung, const fx_plan_key *key) {
  const fx_step_config *c = &stepper->config;
  named_plan *made = &stepper->all[stepper->num_all];
  fx_graph *graph = fx_graph_create(c->inputs);
  name_rung(stepper, phase, rung, made->name);
  if (!graph) return fx_error(FX_ERR_MEMORY, "out of host memory while recording %s", made->name);
  fx_status status = record_rung(stepper, phase, rung, graph);
  if (status != FX_OK) {
    fx_graph_destroy(graph);
    return fx_error_prefix(status, "recording %s", made->name);
  }
  fx_plan *plan = NULL;
  fx_plan_options options = {.name = made->name, .mode = c->mode, .poison = c->poison};
  FX_TRY(fx_plan_prepare(graph, options, c->device, &plan));
  FX_TRY(fx_plan_cache_add(stepper->cache, key, plan));
  FX_ASSERT(stepper->num_all < MAX_PLANS);
  made->plan = stepper->current[phase][rung] = plan;
  stepper->num_all++;
  const fx_plan_stats *s = fx_plan_stats_get(plan);
  fx_debug(c->log,
           "plan %s: %d kernels, %d collectives, %d waits, arena %.1f MiB (bound %.1f, %s), captured because "
           "of: %s",
           options.name, s->nodes, s->collectives, s->waits, (double)s->arena.bytes / 1048576.0,
           (double)s->arena.lower_bound / 1048576.0, s->arena.planner ? s->arena.planner : "eager",
           stepper->reason);
  return FX_OK;
}

static fx_status prepare_rung(fx_stepper *stepper, fx_phase phase, int32_t rung) {
  fx_plan_key key = key_of(stepper, phase, rung);
  const char *reason = NULL;
  stepper->current[phase][rung] = fx_plan_cache_find(stepper->cache, &key, &reason);
  if (stepper->current[phase][rung]) return FX_OK;
  strncpy(stepper->reason, reason, sizeof stepper->reason - 1);
  return capture(stepper, phase, rung, &key);
}

fx_status fx_stepper_prepare(fx_stepper *stepper, const fx_phase *phases, int count) {
  for (int i = 0; i < count; i++)
    for (int32_t rung = 0; rung < num_rungs(stepper, phases[i]); rung++)
      FX_TRY(prepare_rung(stepper, phases[i], rung));
  return FX_OK;
}

fx_status fx_stepper_bind(fx_stepper *stepper) {
  size_t need = 0;
  for (int i = 0; i < stepper->num_all; i++) {
    size_t bytes = fx_plan_stats_get(stepper->all[i].plan)->arena.bytes;
    need = bytes > need ? bytes : need;
  }
  if (need > stepper->arena_bytes) {
    fx_device_release(stepper->config.device, stepper->arena);
    stepper->arena = NULL;
    stepper->arena_bytes = 0;
    FX_TRY(fx_device_alloc(stepper->config.device, need, &stepper->arena));
    stepper->arena_bytes = need;
  }
  for (int i = 0; i < stepper->num_all; i++) FX_TRY(fx_plan_bind(stepper->all[i].plan, stepper->arena));
  return FX_OK;
}

fx_plan *fx_stepper_plan(const fx_stepper *stepper, fx_phase phase) {
  return stepper->current[phase][0];
}
fx_plan *fx_stepper_plan_at(const fx_stepper *stepper, fx_phase phase, int32_t rung) {
  return rung >= 0 && rung < FX_ATTENTION_MAX_RUNGS ? stepper->current[phase][rung] : NULL;
}

int fx_stepper_list(const fx_stepper *stepper, const fx_phase *phases, int count, const fx_plan **plans) {
  int found = 0;
  for (int i = 0; i < count; i++)
    for (int32_t rung = 0; rung < num_rungs(stepper, phases[i]); rung++)
      plans[found++] = stepper->current[phases[i]][rung];
  return found;
}

/* The plan for what the host put into a slot, which is its memory on a GPU too. */
static fx_plan *choose(const fx_stepper *stepper, fx_phase phase, int slot) {
  const fx_attention_setup *attention = stepper->config.attention;
  void *memory[FX_ATTENTION_MAX_FIELDS];
  if (stepper->hold || num_rungs(stepper, phase) == 1) return stepper->current[phase][0];
  for (int i = 0; i < attention->num_fields; i++)
    memory[i] = fx_inputs_data(stepper->config.inputs, slot, attention->field[i].name);
  return stepper->current[phase][fx_attention_rung(attention, memory)];
}

static fx_status launch(fx_stepper *stepper, fx_plan *plan, int slot) {
  fx_device *device = stepper->config.device;
  FX_ASSERT(plan && slot < STEP_SLOTS);
  FX_TRY(fx_plan_run(plan, slot));
  if (!stepper->slot_event[slot]) FX_TRY(device->vtable->event_create(device, &stepper->slot_event[slot]));
  return device->vtable->event_record(device, FX_LANE_COMPUTE, stepper->slot_event[slot]);
}

fx_status fx_stepper_launch(fx_stepper *stepper, fx_phase phase, int slot) {
  return launch(stepper, choose(stepper, phase, slot), slot);
}

fx_status fx_stepper_wait_slot(fx_stepper *stepper, int slot) {
  fx_device *device = stepper->config.device;
  if (!stepper->slot_event[slot]) return FX_OK;
  return device->vtable->event_sync(device, stepper->slot_event[slot]);
}

fx_status fx_stepper_wait(fx_stepper *stepper) {
  if (stepper->config.device->backend == FX_BACKEND_CPU) return FX_OK; /* launches return when all is done */
  return fx_device_sync(stepper->config.device);
}

fx_status fx_stepper_run(fx_stepper *stepper, fx_phase phase, int slot) {
  fx_plan *plan = choose(stepper, phase, slot);
  FX_TRY(launch(stepper, plan, slot));
  fx_status status = fx_stepper_wait(stepper);
  return status == FX_OK ? FX_OK : fx_error_prefix(status, "plan %s", fx_plan_name(plan));
}

fx_status fx_stepper_refresh(fx_stepper *stepper) {
  const fx_params *params = &stepper->config.model->params;
  fx_phase phases[2];
  int count = 0;
  if (params->compute) phases[count++] = FX_PHASE_REFRESH;
  if (params->zero) phases[count++] = FX_PHASE_GATHER;
  if (count == 0) return FX_OK;
  FX_TRY(fx_stepper_prepare(stepper, phases, count));
  FX_TRY(fx_stepper_bind(stepper));
  for (int i = 0; i < count; i++) FX_TRY(fx_stepper_run(stepper, phases[i], 0));
  return FX_OK;
}

void fx_stepper_launch_kernels(fx_stepper *stepper, bool launched) {
  for (int i = 0; i < stepper->num_all; i++) fx_plan_launch_kernels(stepper->all[i].plan, launched);
}
void fx_stepper_set_trace(fx_stepper *stepper, fx_trace *trace) {
  for (int i = 0; i < stepper->num_all; i++) fx_plan_set_trace(stepper->all[i].plan, trace);
}
void fx_stepper_hold(fx_stepper *stepper, bool hold) {
  stepper->hold = hold;
}

const fx_step_results *fx_stepper_results(const fx_stepper *stepper) {
  return &stepper->results;
}
size_t fx_stepper_arena_bytes(const fx_stepper *stepper) {
  return stepper->arena_bytes;
}

size_t fx_stepper_arena_bound(const fx_stepper *stepper) {
  size_t bound = 0;
  for (int i = 0; i < stepper->num_all; i++) {
    size_t b = fx_plan_stats_get(stepper->all[i].plan)->arena.lower_bound;
    bound = b > bound ? b : bound;
  }
  return bound;
}

void fx_stepper_account(const fx_stepper *stepper, fx_memory_account *account) {
  const fx_step_config *c = &stepper->config;
  const fx_params *p = &c->model->params;
  const int64_t element = (int64_t)sizeof(float);
  account->weights =
      p->compute ? p->num_own * element + p->numel * (int64_t)sizeof(uint16_t) : p->numel * element;
  account->gradients = p->num_own * element + (p->grad_whole ? p->num_sharded * element : 0);
  account->moments = 2 * p->num_own * element;
  account->gpu = c->device->backend != FX_BACKEND_CPU;
  account->arena = (int64_t)fx_stepper_arena_bytes(stepper);
  account->arena_bound = (int64_t)fx_stepper_arena_bound(stepper);
  account->inputs = 2 * (int64_t)fx_inputs_slot_bytes(c->inputs);
  account->snapshot = c->snapshot ? 3 * p->num_own * element : 0;
}

fx_plan_cache *fx_stepper_cache(fx_stepper *stepper) {
  return stepper->cache;
}
const char *fx_stepper_miss_reason(const fx_stepper *stepper) {
  return stepper->reason;
}

fx_status fx_stepper_reconfigure(fx_stepper *stepper, const fx_attention_setup *attention,
                                 fx_inputs *inputs) {
  int64_t B = attention->B, T = attention->rows;
  if (B * T > stepper->capacity)
    return fx_error(FX_ERR_SHAPE, "%lld x %lld tokens do not fit a step made for %lld", (long long)B,
                    (long long)T, (long long)stepper->capacity);
  stepper->config.B = B;
  stepper->config.T = T;
  stepper->config.attention = attention;
  stepper->config.inputs = inputs;
  memset(stepper->current, 0, sizeof stepper->current);
  return FX_OK;
}
