/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/record.h"

#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/optimizer.h"
#include "parallel/collective.h"

static fx_value scalar(fx_graph *graph, const char *name, float *data) {
  return fx_graph_persistent(FX_AT(graph), name, data, fx_type_1d(FX_F32, 1));
}

/* The loss and, in *nll, its terms. */
static fx_value record_loss(const fx_step_config *c, fx_graph *graph, const fx_model_values *values,
                            bool train, fx_value *nll) {
  fx_value hidden = fx_model_hidden(c->model, graph, values, c->attention, train);
  return fx_model_loss(c->model, graph, values, hidden, nll);
}

static fx_value gradients(const fx_params *p, fx_graph *graph, int64_t begin, int64_t end) {
  return fx_graph_persistent(FX_AT(graph), "gradients", p->grad + begin, fx_type_1d(FX_F32, end - begin));
}

/* Sums over tensor-parallel ranks what each has a part of: gradients of shared key heads, and of what all
 * have alike where they come from rows of a sequence shard or from one rank's heads. */
static void record_tensor_reduction(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  const fx_tensor_parallel *tp = &c->model->share.tp;
  if (!tp->comm) return;
  for (int part = 0; part < 2; part++) {
    const int64_t *begin = p->group_begin[part];
    int64_t heads = begin[FX_GROUP_SHARED_HEADS], same = begin[FX_GROUP_REPLICATED];
    int64_t partial = tp->sequence ? same : begin[FX_GROUP_PARTIAL], end = begin[FX_GROUP_COUNT];
    if (heads < same)
      fx_all_reduce(FX_AT(graph), c->model->topology->kv, FX_LANE_COMM_CRITICAL,
                    gradients(p, graph, heads, same), FX_REDUCE_SUM);
    if (partial < end)
      fx_all_reduce(FX_AT(graph), tp->comm, FX_LANE_COMM_CRITICAL, gradients(p, graph, partial, end),
                    FX_REDUCE_SUM);
  }
}

/* Sums the flat gradient over dp in buckets of whole storages, in the order in which the backward completes
 * them. The decaying part and the rest are separate: the rest (norms, biases) is small and complete only at
 * the end. */
static void record_reduction(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  int64_t begin = 0;
  for (int64_t i = 0; i < p->num_storages && begin < p->num_decay; i++) {
    const fx_param_storage *storage = &p->storage[p->order[i]];
    int64_t end = storage->offset + (int64_t)fx_align_up((size_t)fx_type_numel(&storage->type), 16);
    if (end - begin < c->bucket_elements && end < p->num_decay) continue;
    fx_all_reduce(FX_AT(graph), c->dp, FX_LANE_COMM_BULK, gradients(p, graph, begin, end), FX_REDUCE_SUM);
    begin = end;
  }
  if (p->numel == p->num_decay) return;
  fx_all_reduce(FX_AT(graph), c->dp, FX_LANE_COMM_BULK, gradients(p, graph, p->num_decay, p->numel),
                FX_REDUCE_SUM);
}

/* Loss and flags over data-parallel ranks; flags, which any rank may raise, over tensor-parallel ones too,
 * where every rank has the same loss. */
static fx_value record_signal(const fx_step_config *c, fx_graph *graph, fx_value signal, float *data) {
  fx_comm *tp = c->model->share.tp.comm;
  if (c->dp && c->dp->size > 1)
    signal = fx_all_reduce(FX_AT(graph), c->dp, FX_LANE_COMM_BULK, signal, FX_REDUCE_SUM);
  if (tp)
    fx_all_reduce(FX_AT(graph), tp, FX_LANE_COMM_BULK,
                  fx_graph_persistent(FX_AT(graph), "flags", data + 1, fx_type_1d(FX_F32, FX_STEP_FLAGS)),
                  FX_REDUCE_SUM);
  return signal;
}

static fx_status record_micro(const fx_step_config *c, const fx_step_results *results, fx_phase phase,
                              fx_graph *graph) {
  const fx_params *p = &c->model->params;
  bool add = phase == FX_PHASE_MICRO_MID || phase == FX_PHASE_MICRO_LAST;
  bool last = phase == FX_PHASE_MICRO_ONLY || phase == FX_PHASE_MICRO_LAST;
  fx_model_values values = {NULL};
  fx_value *grads = NULL;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_model_bind(c->model, graph, &values), free_values);
  FX_TRY_GOTO(fx_calloc(&grads, (size_t)p->num_storages, sizeof *grads), free_values);
  fx_graph_persistent(FX_AT(graph), "gradients", p->grad, fx_type_1d(FX_F32, p->numel));
  fx_type signal_type = fx_type_1d(FX_F32, 1 + FX_STEP_FLAGS);
  fx_value signal = fx_graph_persistent(FX_AT(graph), "loss and flags", results->signal, signal_type);
  fx_value loss = record_loss(c, graph, &values, true, NULL), kept = scalar(graph, "loss", results->signal);
  FX_TRY_GOTO(fx_autograd(graph, loss, values.weight, (int)p->num_storages, grads), free_values);
  for (int64_t s = 0; s < p->num_storages; s++) {
    fx_value place =
        fx_graph_persistent(FX_AT(graph), "gradients", p->grad + p->storage[s].offset, p->storage[s].type);
    (add ? fx_accumulate : fx_store)(FX_AT(graph), place, grads[s]);
  }
  (add ? fx_accumulate : fx_store)(FX_AT(graph), kept, loss);
  if (last)
    fx_store(FX_AT(graph),
             fx_graph_persistent(graph, "flags", results->signal + 1, fx_type_1d(FX_F32, FX_STEP_FLAGS)),
             fx_graph_input(graph, "flags"));
  if (last) record_tensor_reduction(c, graph);
  if (last && c->dp && c->dp->size > 1) record_reduction(c, graph);
  if (last) signal = record_signal(c, graph, signal, results->signal);
  if (last) fx_store(FX_AT(graph), fx_graph_persistent(graph, "results", results->loss, signal_type), signal);
  status = fx_graph_status(graph);
free_values:
  free(grads);
  fx_model_values_fini(&values);
  return status;
}

/* After the masters were filled from outside: the compute copy follows them. */
static fx_status record_refresh(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  FX_ASSERT(p->compute);
  fx_value masters = fx_graph_persistent(FX_AT(graph), "weights", p->weight, fx_type_1d(FX_F32, p->numel));
  fx_value copy =
      fx_graph_persistent(FX_AT(graph), "compute weights", p->compute, fx_type_1d(FX_BF16, p->numel));
  fx_store(FX_AT(graph), copy, fx_cast(FX_AT(graph), masters, FX_BF16));
  return fx_graph_status(graph);
}

/* Elements [begin, end) of the flat buffers. snapshot: copy the new state aside. */
static void record_adamw(const fx_step_config *c, fx_graph *graph, int64_t begin, int64_t end, bool snapshot,
                         fx_value norm, fx_value factor) {
  const fx_params *p = &c->model->params;
  const fx_config_optimizer *o = &c->model->config->optimizer;
  fx_adamw_attr attr = {.beta1 = o->betas[0],
                        .beta2 = o->betas[1],
                        .eps = o->eps,
                        .weight_decay = begin < p->num_decay ? o->weight_decay : 0.0,
                        .seed = (uint64_t)c->model->config->train.seed,
                        .first = begin,
                        .stochastic = o->stochastic_rounding};
  fx_type type = fx_type_1d(FX_F32, end - begin);
  fx_value copies[3];
  if (end == begin) return;
  fx_adamw_values v = {.param = fx_graph_persistent(FX_AT(graph), "weights", p->weight + begin, type),
                       .grad = fx_graph_persistent(graph, "gradients", p->grad + begin, type),
                       .exp_avg = fx_graph_persistent(graph, "exp_avg", p->exp_avg + begin, type),
                       .exp_avg_sq = fx_graph_persistent(graph, "exp_avg_sq", p->exp_avg_sq + begin, type),
                       .lr = fx_graph_input(graph, "lr"),
                       .step = fx_graph_input(graph, "optimizer_step"),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  if (p->compute)
    v.compute =
        fx_graph_persistent(graph, "compute weights", p->compute + begin, fx_type_1d(FX_BF16, end - begin));
  for (int i = 0; snapshot && i < 3; i++)
    copies[i] = fx_graph_persistent(graph, "snapshot", c->snapshot + i * p->numel + begin, type);
  fx_adamw(FX_AT(graph), &v, snapshot ? copies : NULL, attr);
}

/* The sum of squares of the whole model's gradient: each tensor-parallel rank counts what it owns. */
static fx_value record_squares(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  const fx_model_share *share = &c->model->share;
  fx_value range[FX_MAX_SQUARES];
  int count = 0;
  if (!share->tp.comm) {
    range[0] = gradients(p, graph, 0, p->numel);
    return fx_squares(FX_AT(graph), range, 1);
  }
  for (int part = 0; part < 2; part++)
    for (int g = 0; g < FX_GROUP_COUNT; g++) {
      bool own = g == FX_GROUP_SHARDED || share->rank == 0 ||
                 (g == FX_GROUP_SHARED_HEADS && share->rank % share->kv_ranks == 0);
      int64_t begin = p->group_begin[part][g], end = p->group_begin[part][g + 1];
      if (own && begin < end) range[count++] = gradients(p, graph, begin, end);
    }
  fx_value squares = fx_squares(FX_AT(graph), range, count);
  return fx_all_reduce(FX_AT(graph), share->tp.comm, FX_LANE_COMM_CRITICAL, squares, FX_REDUCE_SUM);
}

static fx_status record_update(const fx_step_config *c, const fx_step_results *results, fx_phase phase,
                               fx_graph *graph) {
  const fx_params *p = &c->model->params;
  fx_type whole = fx_type_1d(FX_F32, p->numel);
  fx_value factor = FX_NONE;
  bool snapshot = phase == FX_PHASE_UPDATE_SNAPSHOT;
  FX_ASSERT(!snapshot || c->snapshot);
  fx_graph_persistent(FX_AT(graph), "weights", p->weight, whole);
  fx_graph_persistent(FX_AT(graph), "exp_avg", p->exp_avg, whole);
  fx_graph_persistent(FX_AT(graph), "exp_avg_sq", p->exp_avg_sq, whole);
  if (p->compute)
    fx_graph_persistent(FX_AT(graph), "compute weights", p->compute, fx_type_1d(FX_BF16, p->numel));
  if (snapshot) fx_graph_persistent(FX_AT(graph), "snapshot", c->snapshot, fx_type_1d(FX_F32, 3 * p->numel));
  gradients(p, graph, 0, p->numel);
  fx_value norm = fx_clip(FX_AT(graph), record_squares(c, graph),
                          (fx_clip_attr){c->model->config->optimizer.clip_grad}, &factor);
  fx_store(FX_AT(graph), scalar(graph, "grad_norm", results->grad_norm), norm);
  record_adamw(c, graph, 0, p->num_decay, snapshot, norm, factor);
  record_adamw(c, graph, p->num_decay, p->numel, snapshot, norm, factor);
  return fx_graph_status(graph);
}

static fx_status record_eval(const fx_step_config *c, const fx_step_results *results, fx_graph *graph) {
  fx_model_values values = {NULL};
  FX_TRY(fx_model_bind(c->model, graph, &values));
  fx_value nll = FX_NONE, loss = record_loss(c, graph, &values, false, &nll);
  fx_model_values_fini(&values);
  fx_store(FX_AT(graph), scalar(graph, "loss", results->loss), loss);
  fx_store(FX_AT(graph), fx_graph_persistent(graph, "nll", results->nll, fx_type_2d(FX_F32, c->B, c->T)),
           nll);
  return fx_graph_status(graph);
}

static fx_status record_logits(const fx_step_config *c, const fx_step_results *results, fx_graph *graph) {
  fx_model_values values = {NULL};
  FX_ASSERT(results->logits && !c->model->share.tp.comm);
  FX_TRY(fx_model_bind(c->model, graph, &values));
  fx_value hidden = fx_model_hidden(c->model, graph, &values, c->attention, false);
  fx_value logits = fx_linear(FX_AT(graph), hidden, fx_model_head(c->model, &values), FX_NONE,
                              (fx_linear_attr){0, FX_ACT_NONE});
  fx_model_values_fini(&values);
  if (c->model->params.compute) logits = fx_cast(FX_AT(graph), logits, FX_F32);
  fx_type type = fx_type_3d(FX_F32, c->B, c->T, c->model->padded_vocab);
  fx_store(FX_AT(graph), fx_graph_persistent(graph, "logits", results->logits, type), logits);
  return fx_graph_status(graph);
}

fx_status fx_step_record(const fx_step_config *config, const fx_step_results *results, fx_phase phase,
                         fx_graph *graph) {
  switch (phase) {
  case FX_PHASE_UPDATE:
  case FX_PHASE_UPDATE_SNAPSHOT:
    return record_update(config, results, phase, graph);
  case FX_PHASE_REFRESH:
    return record_refresh(config, graph);
  case FX_PHASE_EVAL:
    return record_eval(config, results, graph);
  case FX_PHASE_LOGITS:
    return record_logits(config, results, graph);
  default:
    return record_micro(config, results, phase, graph);
  }
}
