/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/record.h"

#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
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
  bool add = phase == FX_PHASE_MICRO_MID || phase == FX_PHASE_MICRO_LAST;
  bool last = phase == FX_PHASE_MICRO_ONLY || phase == FX_PHASE_MICRO_LAST;
  fx_model_values values = {NULL};
  fx_status status = FX_OK;
  if (!add) fx_record_gather(c, graph);
  FX_TRY_GOTO(fx_model_bind(c->model, graph, &values), free_values);
  fx_type signal_type = fx_type_1d(FX_F32, 1 + FX_STEP_FLAGS);
  fx_value signal = fx_graph_persistent(FX_AT(graph), "loss and flags", results->signal, signal_type);
  fx_value loss = record_loss(c, graph, &values, true, NULL), kept = scalar(graph, "loss", results->signal);
  FX_TRY_GOTO(fx_record_gradients(c, graph, &values, loss, add, last), free_values);
  (add ? fx_accumulate : fx_store)(FX_AT(graph), kept, loss);
  if (last)
    fx_store(FX_AT(graph),
             fx_graph_persistent(graph, "flags", results->signal + 1, fx_type_1d(FX_F32, FX_STEP_FLAGS)),
             fx_graph_input(graph, "flags"));
  if (last) signal = record_signal(c, graph, signal, results->signal);
  if (last) fx_store(FX_AT(graph), fx_graph_persistent(graph, "results", results->loss, signal_type), signal);
  status = fx_graph_status(graph);
free_values:
  fx_model_values_fini(&values);
  return status;
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
    return fx_record_update(config, results, phase == FX_PHASE_UPDATE_SNAPSHOT, graph);
  case FX_PHASE_REFRESH:
    return fx_record_refresh(config, graph);
  case FX_PHASE_GATHER:
    fx_record_gather(config, graph);
    return fx_graph_status(graph);
  case FX_PHASE_EVAL:
    return record_eval(config, results, graph);
  case FX_PHASE_LOGITS:
    return record_logits(config, results, graph);
  default:
    return record_micro(config, results, phase, graph);
  }
}
