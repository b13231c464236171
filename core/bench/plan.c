/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/plan/ledger.h"
#include "parallel/comm/dry.h"
#include "parallel/topology.h"

typedef struct parts {
  fx_device *device;
  fx_topology *topology;
  fx_model *model;
  fx_attention_setup *attention;
  fx_inputs *inputs;
  fx_stepper *stepper;
} parts;

/* A CPU device that says it is a GPU: good for everything but running. */
static fx_status make_device(bool gpu, fx_device **out) {
  FX_TRY(fx_device_create_cpu(1, "auto", out));
  if (gpu) (*out)->backend = FX_BACKEND_CUDA;
  return FX_OK;
}

static int list_phases(const fx_config *config, const parts *p, fx_phase phases[FX_PHASE_COUNT]) {
  int64_t micros = config->train.global_batch_size / (config->train.micro_batch_size * p->topology->dp);
  int count = fx_step_micro_phases(micros, phases);
  phases[count++] = FX_PHASE_UPDATE;
  phases[count++] = FX_PHASE_EVAL;
  return count;
}

/* Writes r->topology, which the stepper borrows. */
static fx_status build(const fx_config *config, fx_control *control, bool gpu, parts *p,
                       fx_bench_plan_report *r) {
  int64_t B = config->train.micro_batch_size, T = config->train.seq_length;
  FX_TRY(make_device(gpu, &p->device));
  FX_TRY(
      fx_topology_create(control, (int)config->parallel.tensor, (int)config->parallel.context, &p->topology));
  FX_TRY(fx_topology_share_heads(control, NULL, p->topology, fx_model_kv_ranks(config)));
  FX_TRY(fx_model_create_dry(config, p->device, p->topology, &p->model));
  FX_TRY(fx_attention_setup_create_for(config, p->device->backend, B, T, p->topology->cp,
                                       p->topology->cp_rank, &p->attention));
  FX_TRY(fx_inputs_create(2, &p->inputs));
  FX_TRY(fx_step_declare_inputs(p->inputs, p->attention));
  FX_TRY(fx_inputs_allocate_on(p->inputs, p->device));
  fx_topology_shape shape = {p->topology->tp, p->topology->cp, p->topology->dp};
  fx_step_config step = {.model = p->model,
                         .B = B,
                         .T = p->attention->rows,
                         .attention = p->attention,
                         .topology = fx_topology_text(shape, r->topology, sizeof r->topology),
                         .dp = p->topology->comm.dp_cp,
                         .inputs = p->inputs,
                         .device = p->device,
                         .mode = FX_EXEC_REPLAY};
  return fx_stepper_create(&step, &p->stepper);
}

static fx_status fill_row(const fx_plan *plan, fx_bench_plan_row *row) {
  const fx_plan_stats *s = fx_plan_stats_get(plan);
  *row = (fx_bench_plan_row){.kernels = s->nodes,
                             .collectives = s->collectives,
                             .waits = s->waits,
                             .arena_bytes = (int64_t)s->arena.bytes,
                             .arena_bound_bytes = (int64_t)s->arena.lower_bound,
                             .workspace_bytes = (int64_t)s->workspace_bytes,
                             .gflop = s->cost.flops / 1e9,
                             .gbyte = s->cost.bytes / 1e9,
                             .ledger = fx_plan_ledger(plan)};
  snprintf(row->name, sizeof row->name, "%s", fx_plan_name(plan));
  for (int i = 0; i < s->nodes; i++) {
    const char *name = NULL;
    (void)fx_plan_step_cost(plan, i, &name);
    row->fused += strcmp(name, "add_norm") == 0 || strcmp(name, "linear_dx_act") == 0;
  }
  return row->ledger ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory");
}

static fx_status describe(const fx_config *config, parts *p, fx_bench_plan_report *r) {
  fx_phase phases[FX_PHASE_COUNT];
  const fx_plan *plans[FX_STEP_MAX_PLANS];
  int num_phases = list_phases(config, p, phases);
  FX_TRY(fx_stepper_prepare(p->stepper, phases, num_phases));
  int count = fx_stepper_list(p->stepper, phases, num_phases, plans);
  fx_stepper_account(p->stepper, &r->memory);
  r->memory.arena = r->memory.arena_bound = 0;
  for (int i = 0; i < count; i++) {
    fx_bench_plan_row *row = &r->row[r->count++];
    FX_TRY(fill_row(plans[i], row));
    r->memory.arena = fx_max_i64(r->memory.arena, row->arena_bytes);
    r->memory.arena_bound = fx_max_i64(r->memory.arena_bound, row->arena_bound_bytes);
  }
  snprintf(r->attention, sizeof r->attention, "%s", p->attention->text);
  r->dtype = p->model->params.dtype;
  r->snapshot_bytes = 3 * p->model->params.num_own * (int64_t)sizeof(float);
  return FX_OK;
}

fx_status fx_bench_plan(const fx_config *config, int ranks, bool gpu, fx_bench_plan_report *report) {
  fx_control *control = NULL;
  fx_model *whole = NULL;
  parts p = {NULL};
  memset(report, 0, sizeof *report);
  if (ranks == 0) ranks = (int)(config->parallel.tensor * config->parallel.context);
  report->ranks = ranks;
  FX_TRY(fx_config_check_ranks(config, ranks));
  FX_TRY(fx_model_create_dry(config, NULL, NULL, &whole));
  report->params = fx_model_num_params(whole);
  fx_model_destroy(whole);
  FX_TRY(fx_control_create_dry(0, ranks, &control));
  fx_status status = build(config, control, gpu, &p, report);
  if (status == FX_OK) status = describe(config, &p, report);
  fx_stepper_destroy(p.stepper);
  fx_inputs_destroy(p.inputs);
  fx_attention_setup_destroy(p.attention);
  fx_model_destroy(p.model);
  fx_topology_destroy(p.topology);
  fx_device_destroy(p.device);
  fx_control_destroy(control);
  return status;
}

void fx_bench_plan_fini(fx_bench_plan_report *report) {
  for (int i = 0; i < report->count; i++) free(report->row[i].ledger);
  memset(report, 0, sizeof *report);
}
