/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of several capacities for one phase, on two in-process ranks that share a sequence by a ring: what is
 * prepared, what it is called, which of them a launch runs, and that it gives the numbers of the largest. */
#include <pthread.h>
#include <stdio.h>

#include "dynamo_rt/plan/ledger.h"
#include "core/model/context.h"
#include "parallel/agree.h"
#include "parallel/comm/local/local.h"
#include "parallel/topology.h"
#include "tests/core/fixture.h"

enum { T = 1024, RANKS = 2, ROWS = T / RANKS, BLOCKS = ROWS / FX_LIMITS_ALIGN, TIMEOUT_MS = 60000 };
/* What lies in the slots: samples of which nothing travels, and samples of which nearly everything does. */
enum { SHORT, LONG, SLOTS };

static const char g_yaml[] =
    "model: {vocab_size: 61, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, "
    "num_key_value_heads: 1, head_dim: 16, intermediate_size: 32, max_position_embeddings: 1024}\n"
    "attention: {variants: {own: {mask: 'doc_id[q] == doc_id[kv] && kv <= q'}}, layers: [own]}\n"
    "parallel: {context: 2, context_exchange: ring}\n"
    "runtime: {compiler: none}\n";
static const fx_phase g_phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_UPDATE, FX_PHASE_EVAL};
enum { PHASES = sizeof g_phases / sizeof g_phases[0] };

typedef struct outcome {
  float loss[SLOTS], eval[SLOTS];
  float *grad[SLOTS];       /* [numel] */
  int ran[SLOTS][2][2];     /* kernels by rung: of micro_only, of eval */
  int updated, held, quiet; /* kernels of rung 0 of update; of rung 1 while held, and without a trace */
  float held_loss;
} outcome;

typedef struct job {
  pthread_mutex_t mutex;          /* the harness counts one check at a time */
  int32_t rungs[RANKS], small;    /* what each rank offers, and the second one's capacity */
  void (*look)(const fixture *f); /* at what was prepared, on rank 0; may be NULL */
  bool agrees;                    /* only compare ledgers */
  outcome out[RANKS];
  int64_t numel;
} job;

/* ---- one rank ---- */

/* Documents of `length` tokens into a slot. */
static void fill(const fixture *f, int slot, int32_t length) {
  const fx_attention_setup *setup = f->attention;
  static const char *const names[] = {"tokens", "targets", "positions"};
  int32_t(*row)[T] = malloc(5 * sizeof *row);
  for (int32_t t = 0; t < T; t++) {
    row[0][t] = (t * 7 + t / 9) % 61;
    row[1][t] = (row[0][t] + 1) % 61;
    row[2][t] = t % length;
    row[3][t] = t - t % length;
    row[4][t] = row[3][t] + length;
  }
  fx_attention_batch batch = {row[0], row[2], row[3], row[4]};
  CHECK_OK(fx_attention_fill_slot(setup, &batch, f->inputs, slot));
  const int32_t *blocks = fx_inputs_data(f->inputs, slot, setup->field[setup->blocks].name);
  for (int i = 0; i < 3; i++)
    fx_context_take_rows(setup, blocks, row[i], fx_inputs_data(f->inputs, slot, names[i]));
  *(float *)fx_inputs_data(f->inputs, slot, "loss_factor") = 1.0f / T;
  *(float *)fx_inputs_data(f->inputs, slot, "lr") = 1e-3f;
  *(int64_t *)fx_inputs_data(f->inputs, slot, "optimizer_step") = 1;
  free(row);
}

/* Kernels that the plan of a rung runs in a launch of the phase. */
static fx_status count_kernels(fixture *f, fx_phase phase, int slot, int32_t rung, int *kernels) {
  fx_plan *plan = fx_stepper_plan_at(f->stepper, phase, rung);
  fx_trace *trace = NULL;
  FX_TRY(fx_trace_create(1 << 12, &trace));
  if (plan) fx_plan_set_trace(plan, trace);
  fx_status status = fx_stepper_run(f->stepper, phase, slot);
  if (plan) fx_plan_set_trace(plan, NULL);
  *kernels = (int)fx_trace_count(trace);
  fx_trace_destroy(trace);
  return status;
}

static fx_status run_slot(fixture *f, int slot, outcome *o) {
  const fx_params *p = &f->model->params;
  const float *loss = fx_stepper_results(f->stepper)->loss;
  for (int32_t rung = 0; rung < 2; rung++)
    FX_TRY(count_kernels(f, FX_PHASE_EVAL, slot, rung, &o->ran[slot][1][rung]));
  o->eval[slot] = *loss;
  for (int32_t rung = 0; rung < 2; rung++)
    FX_TRY(count_kernels(f, FX_PHASE_MICRO_ONLY, slot, rung, &o->ran[slot][0][rung]));
  o->loss[slot] = *loss;
  o->grad[slot] = malloc((size_t)p->numel * sizeof(float));
  memcpy(o->grad[slot], p->grad, (size_t)p->numel * sizeof(float));
  return FX_OK;
}

/* Held at rung 0; then traced as a whole, and not any more. */
static fx_status run_held(fixture *f, outcome *o) {
  fx_trace *trace = NULL;
  fx_status status = FX_OK;
  fx_stepper_hold(f->stepper, true);
  FX_TRY(count_kernels(f, FX_PHASE_MICRO_ONLY, SHORT, 1, &o->held));
  o->held_loss = *fx_stepper_results(f->stepper)->loss;
  fx_stepper_hold(f->stepper, false);
  FX_TRY(count_kernels(f, FX_PHASE_UPDATE, SHORT, 0, &o->updated));
  FX_TRY(fx_trace_create(1 << 12, &trace));
  fx_stepper_set_trace(f->stepper, trace);
  FX_TRY_GOTO(fx_stepper_run(f->stepper, FX_PHASE_EVAL, SHORT), destroy_trace);
  int64_t traced = fx_trace_count(trace);
  fx_stepper_set_trace(f->stepper, NULL);
  FX_TRY_GOTO(fx_stepper_run(f->stepper, FX_PHASE_EVAL, SHORT), destroy_trace);
  o->quiet = traced > 0 && fx_trace_count(trace) == traced;
destroy_trace:
  fx_trace_destroy(trace);
  return status;
}

static fx_status agree(const fixture *f, fx_control *control) {
  const fx_plan *plans[FX_STEP_MAX_PLANS];
  const char *names[FX_STEP_MAX_PLANS];
  char *ledgers[FX_STEP_MAX_PLANS];
  int count = fx_stepper_list(f->stepper, g_phases, PHASES, plans);
  for (int i = 0; i < count; i++) {
    names[i] = fx_plan_name(plans[i]);
    ledgers[i] = fx_plan_ledger(plans[i]);
  }
  fx_status status = fx_agree_plans(control, names, (const char *const *)ledgers, count, TIMEOUT_MS);
  for (int i = 0; i < count; i++) free(ledgers[i]);
  return status;
}

static fx_status run_rank(fx_control *control, void *ctx) {
  job *j = ctx;
  outcome *o = &j->out[control->rank];
  fixture f;
  fx_topology *topology = NULL;
  FX_TRY(fx_topology_create(control, 1, RANKS, &topology));
  pthread_mutex_lock(&j->mutex);
  bool ready = fixture_init(&f, g_yaml, 1, T, (fixture_options){.topology = topology, .poison = true});
  if (ready) {
    f.attention->num_rungs = j->rungs[control->rank];
    f.attention->rung[1] = (fx_ring_room){j->small, j->small > 0};
    ready = CHECK_OK(fx_stepper_prepare(f.stepper, g_phases, PHASES));
  }
  if (ready && j->look && control->rank == 0) j->look(&f);
  pthread_mutex_unlock(&j->mutex);
  fx_status status = ready ? agree(&f, control) : FX_ERR_INTERNAL;
  pthread_mutex_lock(&j->mutex);
  if (status == FX_OK) {
    status = fx_stepper_bind(f.stepper);
    CHECK_OK(fx_params_initialize(&f.model->params, 3));
    fill(&f, SHORT, FX_LIMITS_ALIGN);
    fill(&f, LONG, T);
    j->numel = f.model->params.numel;
  }
  pthread_mutex_unlock(&j->mutex);
  for (int slot = 0; slot < SLOTS && status == FX_OK && !j->agrees; slot++) status = run_slot(&f, slot, o);
  if (status == FX_OK && !j->agrees) status = run_held(&f, o);
  fixture_fini(&f);
  fx_topology_destroy(topology);
  return status;
}

static fx_status run_job(job *j) {
  pthread_mutex_init(&j->mutex, NULL);
  fx_status status = fx_local_run(RANKS, run_rank, j);
  pthread_mutex_destroy(&j->mutex);
  return status;
}

static void release(job *j) {
  for (int r = 0; r < RANKS; r++)
    for (int slot = 0; slot < SLOTS; slot++) free(j->out[r].grad[slot]);
}

/* ---- what is prepared ---- */

static bool check_names(const fixture *f, const char *const *names, int expected) {
  const fx_plan *plans[FX_STEP_MAX_PLANS];
  int count = fx_stepper_list(f->stepper, g_phases, PHASES, plans);
  if (!CHECK_INT(count, expected)) return false;
  for (int i = 0; i < count; i++)
    if (!CHECK(plans[i] != NULL) || !CHECK_STR(fx_plan_name(plans[i]), names[i])) return false;
  return true;
}

static void look_at_one(const fixture *f) {
  const char *const names[] = {"micro_only", "update", "eval"};
  CHECK(check_names(f, names, 3));
  CHECK_INT(fx_plan_cache_misses(fx_stepper_cache(f->stepper)), 3);
  CHECK_STR(fx_stepper_miss_reason(f->stepper), "phase 0 -> 7");
  CHECK(fx_stepper_plan_at(f->stepper, FX_PHASE_MICRO_ONLY, 1) == NULL);
}

/* Without what only ranks of one ring do together, which all have the same rung: others may be at another. */
static void check_same_for_others(const fixture *f, fx_phase phase) {
  char kept[2][8192] = {"", ""};
  for (int32_t rung = 0; rung < 2; rung++) {
    char *text = fx_plan_ledger(fx_stepper_plan_at(f->stepper, phase, rung)), *rest = text;
    for (char *line; (line = strtok_r(rest, "\n", &rest));)
      if (strncmp(line, "cp#", 3) != 0 && strlen(kept[rung]) + strlen(line) + 2 < sizeof kept[rung])
        strcat(strcat(kept[rung], line), "\n");
    free(text);
  }
  CHECK_STR(kept[1], kept[0]);
  if (phase == FX_PHASE_MICRO_ONLY) CHECK_HAS(kept[1], "dp_cp#");
}

/* What ranks of one ring do together in the smaller rung: nothing, where there is no room for keys. */
static void check_ring(const fixture *f, fx_phase phase, bool turns) {
  char *text = fx_plan_ledger(fx_stepper_plan_at(f->stepper, phase, 1));
  CHECK_MSG((strncmp(text, "cp#", 3) == 0 || strstr(text, "\ncp#")) == turns, "%s", text);
  free(text);
}

static void look_at_two(const fixture *f) {
  int32_t small = f->attention->rung[1].blocks;
  const char *const names[2][5] = {{"micro_only", "micro_only/0x0", "update", "eval", "eval/0x0"},
                                   {"micro_only", "micro_only/1x1", "update", "eval", "eval/1x1"}};
  if (!check_names(f, names[small], 5)) return;
  for (int i = 0; i < PHASES; i++) {
    CHECK(fx_stepper_plan(f->stepper, g_phases[i]) == fx_stepper_plan_at(f->stepper, g_phases[i], 0));
    CHECK((fx_stepper_plan_at(f->stepper, g_phases[i], 1) != NULL) == (g_phases[i] != FX_PHASE_UPDATE));
    CHECK(!fx_stepper_plan_at(f->stepper, g_phases[i], 2) &&
          !fx_stepper_plan_at(f->stepper, g_phases[i], FX_ATTENTION_MAX_RUNGS));
  }
  CHECK_INT(fx_plan_cache_misses(fx_stepper_cache(f->stepper)), 5);
  check_same_for_others(f, FX_PHASE_MICRO_ONLY);
  check_same_for_others(f, FX_PHASE_EVAL);
  check_ring(f, FX_PHASE_MICRO_ONLY, small > 0);
  CHECK(fx_stepper_plan(f->stepper, FX_PHASE_MICRO_FIRST) == NULL);
  fx_plan_cache *cache = fx_stepper_cache(f->stepper);
  int64_t hits = fx_plan_cache_hits(cache);
  CHECK_OK(fx_stepper_prepare(f->stepper, g_phases, PHASES)); /* nothing is made again */
  CHECK_INT(fx_plan_cache_hits(cache), hits + 5);
  CHECK_INT(fx_plan_cache_misses(cache), 5);
}

/* A miss says that it was the capacity: a third rung beside the two. */
static void look_at_reason(const fixture *f) {
  f->attention->num_rungs = 3;
  f->attention->rung[1].blocks = 3, f->attention->rung[2] = (fx_ring_room){1, 1};
  CHECK_OK(fx_stepper_prepare(f->stepper, g_phases, 1));
  CHECK_STR(fx_stepper_miss_reason(f->stepper), "capacity 4 -> 3");
  CHECK_INT(fx_plan_cache_misses(fx_stepper_cache(f->stepper)), 6);
  CHECK_OK(fx_stepper_prepare(f->stepper, g_phases, PHASES));
  const char *const names[] = {"micro_only", "micro_only/3x1", "micro_only/1x1", "update",
                               "eval",       "eval/3x1",       "eval/1x1"};
  check_names(f, names, 7);
  CHECK_INT(fx_plan_cache_misses(fx_stepper_cache(f->stepper)), 7);
}

static void miss_names_capacity(void) {
  job j = {.rungs = {2, 2}, .small = 1, .agrees = true, .look = look_at_reason};
  CHECK_STATUS(run_job(&j), FX_ERR_DIVERGED); /* rank 0 offers more now */
  CHECK_HAS(fx_error_text(), "rank 0 has plan micro_only/3x1; rank 1 has plan micro_only/1x1");
}

/* ---- what runs ---- */

static void check_gradients(const job *one, const job *two, int slot) {
  for (int r = 0; r < RANKS; r++)
    CHECK_MSG(memcmp(one->out[r].grad[slot], two->out[r].grad[slot], (size_t)one->numel * sizeof(float)) == 0,
              "rank %d: gradients of slot %d depend on the rungs", r, slot);
}

static void choose(int32_t small) {
  job one = {.rungs = {1, 1}, .look = look_at_one};
  job two = {.rungs = {2, 2}, .small = small, .look = look_at_two};
  if (CHECK_OK(run_job(&one)) && CHECK_OK(run_job(&two))) {
    for (int r = 0; r < RANKS; r++) {
      const outcome *a = &one.out[r], *b = &two.out[r];
      for (int phase = 0; phase < 2; phase++) {
        int kernels = a->ran[SHORT][phase][0];
        CHECK(kernels > 20 && kernels == a->ran[LONG][phase][0]);
        CHECK(a->ran[SHORT][phase][1] == 0 && a->ran[LONG][phase][1] == 0);
        CHECK(b->ran[SHORT][phase][0] == 0 && b->ran[SHORT][phase][1] > 20);
        CHECK(b->ran[LONG][phase][0] > 20 && b->ran[LONG][phase][1] == 0);
      }
      CHECK(b->updated > 0 && b->held == 0 && b->quiet);
      for (int slot = 0; slot < SLOTS; slot++)
        CHECK(a->loss[slot] == b->loss[slot] && a->eval[slot] == b->eval[slot]);
      CHECK(b->held_loss == b->loss[SHORT] && b->loss[SHORT] != b->loss[LONG] && b->loss[SHORT] > 1);
    }
    for (int slot = 0; slot < SLOTS; slot++) check_gradients(&one, &two, slot);
  }
  release(&one);
  release(&two);
}

static void slots_choose(void) {
  choose(1);
}

static void nothing_travels(void) {
  choose(0);
}

static void ranks_agree_on_rungs(void) {
  job j = {.rungs = {2, 1}, .small = 1, .agrees = true};
  CHECK_STATUS(run_job(&j), FX_ERR_DIVERGED);
  CHECK_HAS(fx_error_text(), "rank 0 has plan micro_only/1x1; rank 1 has plan update");
}

static const fx_test g_tests[] = {{"a slot chooses among the rungs of a phase", slots_choose},
                                  {"a ring that does not turn", nothing_travels},
                                  {"a miss names the capacity", miss_names_capacity},
                                  {"ranks agree on the rungs", ranks_agree_on_rungs}};
FX_TEST_MAIN("plans of several capacities", g_tests)
