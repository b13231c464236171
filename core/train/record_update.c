/* SPDX-License-Identifier: Apache-2.0 */
/* The update, and what brings the weights that kernels read up to date with the masters. */
#include "core/train/record.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/optimizer.h"
#include "parallel/collective.h"
#include "parallel/zero.h"

/* A part of the state that one kernel updates. */
typedef struct range {
  int64_t count, packed, master, flat, place;
  bool decay;
} range;

static int64_t weight_elements(const fx_params *p) {
  return p->compute ? p->num_own : p->numel;
}

static void declare(const fx_params *p, fx_graph *graph) {
  fx_type own = fx_type_1d(FX_F32, p->num_own);
  fx_graph_persistent(FX_AT(graph), "weights", p->weight, fx_type_1d(FX_F32, weight_elements(p)));
  fx_graph_persistent(FX_AT(graph), "exp_avg", p->exp_avg, own);
  fx_graph_persistent(FX_AT(graph), "exp_avg_sq", p->exp_avg_sq, own);
  fx_graph_persistent(FX_AT(graph), "gradients", p->grad, own);
  if (p->compute)
    fx_graph_persistent(FX_AT(graph), "compute weights", p->compute, fx_type_1d(FX_BF16, p->numel));
}

/* Number `i` of this rank's ranges; false: there are no more. Without ZeRO what decays is one. */
static bool next_range(const fx_params *p, int64_t i, range *out) {
  int64_t slices = p->zero ? p->num_buckets : 0;
  if (i < slices) {
    fx_zero_slice s = fx_zero_slice_of(p, &p->bucket[i]);
    *out = (range){s.count, s.packed, fx_zero_master(p, &s), s.flat, s.place, true};
    return true;
  }
  bool decay = i == slices;
  int64_t begin = !decay ? p->num_decay : p->zero ? p->num_sharded : 0;
  int64_t end = decay ? p->num_decay : p->numel, packed = fx_zero_rest(p, begin);
  *out = (range){end - begin, packed, fx_zero_weight_rest(p, begin), begin, begin - p->num_padding, decay};
  return i <= slices + 1;
}

static void record_adamw(const fx_step_config *c, fx_graph *graph, const range *r, bool snapshot,
                         fx_value norm, fx_value factor) {
  const fx_params *p = &c->model->params;
  const fx_config_optimizer *o = &c->model->config->optimizer;
  fx_adamw_attr attr = {.beta1 = o->betas[0],
                        .beta2 = o->betas[1],
                        .eps = o->eps,
                        .weight_decay = r->decay ? o->weight_decay : 0.0,
                        .seed = (uint64_t)c->model->config->train.seed,
                        .first = r->place,
                        .stochastic = o->stochastic_rounding};
  fx_type type = fx_type_1d(FX_F32, r->count);
  fx_value copies[3];
  fx_adamw_values v = {.param = fx_graph_persistent(FX_AT(graph), "weights", p->weight + r->master, type),
                       .grad = fx_graph_persistent(graph, "gradients", p->grad + r->packed, type),
                       .exp_avg = fx_graph_persistent(graph, "exp_avg", p->exp_avg + r->packed, type),
                       .exp_avg_sq =
                           fx_graph_persistent(graph, "exp_avg_sq", p->exp_avg_sq + r->packed, type),
                       .lr = fx_graph_input(graph, "lr"),
                       .step = fx_graph_input(graph, "optimizer_step"),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  if (p->compute)
    v.compute =
        fx_graph_persistent(graph, "compute weights", p->compute + r->flat, fx_type_1d(FX_BF16, r->count));
  for (int i = 0; snapshot && i < 3; i++)
    copies[i] = fx_graph_persistent(graph, "snapshot", c->snapshot + i * p->num_own + r->packed, type);
  fx_adamw(FX_AT(graph), &v, snapshot ? copies : NULL, attr);
}

/* Of the whole model's gradient. What several ranks have is counted by one of them: of tensor-parallel ranks
 * by the first that has it, of those that share the state by the first. */
static fx_value record_squares(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  const fx_model_share *share = &c->model->share;
  fx_value grads[FX_MAX_SQUARES];
  int64_t slices = fx_zero_rest(p, p->num_sharded);
  int count = 0;
  grads[count++] = fx_graph_persistent(FX_AT(graph), "gradients", p->grad, fx_type_1d(FX_F32, slices));
  for (int part = 0; part < 2; part++)
    for (int g = 0; g < FX_GROUP_COUNT; g++) {
      int64_t begin = p->group_begin[part][g], end = p->group_begin[part][g + 1];
      bool own = g == FX_GROUP_SHARDED || share->rank == 0 ||
                 (g == FX_GROUP_SHARED_HEADS && share->rank % share->kv_ranks == 0);
      if (!own || begin == end || (p->zero && p->zero_rank > 0)) continue;
      grads[count++] = fx_graph_persistent(FX_AT(graph), "gradients", p->grad + fx_zero_rest(p, begin),
                                           fx_type_1d(FX_F32, end - begin));
    }
  fx_value squares = fx_squares(FX_AT(graph), grads, count);
  if (p->zero) squares = fx_all_reduce(FX_AT(graph), c->dp, FX_LANE_COMM_BULK, squares, FX_REDUCE_SUM);
  if (share->tp.comm)
    squares = fx_all_reduce(FX_AT(graph), share->tp.comm, FX_LANE_COMM_CRITICAL, squares, FX_REDUCE_SUM);
  return squares;
}

fx_status fx_record_update(const fx_step_config *c, const fx_step_results *results, bool snapshot,
                           fx_graph *graph) {
  const fx_params *p = &c->model->params;
  fx_value factor = FX_NONE;
  range r;
  FX_ASSERT(!snapshot || c->snapshot);
  declare(p, graph);
  if (snapshot)
    fx_graph_persistent(FX_AT(graph), "snapshot", c->snapshot, fx_type_1d(FX_F32, 3 * p->num_own));
  fx_value norm = fx_clip(FX_AT(graph), record_squares(c, graph),
                          (fx_clip_attr){c->model->config->optimizer.clip_grad}, &factor);
  fx_value kept = fx_graph_persistent(FX_AT(graph), "grad_norm", results->grad_norm, fx_type_1d(FX_F32, 1));
  fx_store(FX_AT(graph), kept, norm);
  for (int64_t i = 0; next_range(p, i, &r); i++)
    if (r.count > 0) record_adamw(c, graph, &r, snapshot, norm, factor);
  return fx_graph_status(graph);
}

fx_status fx_record_refresh(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  range r;
  FX_ASSERT(p->compute);
  declare(p, graph);
  for (int64_t i = 0; next_range(p, i, &r); i++) {
    if (r.count == 0) continue;
    fx_value masters =
        fx_graph_persistent(FX_AT(graph), "weights", p->weight + r.master, fx_type_1d(FX_F32, r.count));
    fx_value copy =
        fx_graph_persistent(graph, "compute weights", p->compute + r.flat, fx_type_1d(FX_BF16, r.count));
    fx_store(FX_AT(graph), copy, fx_cast(FX_AT(graph), masters, FX_BF16));
  }
  return fx_graph_status(graph);
}

void fx_record_gather(const fx_step_config *c, fx_graph *graph) {
  const fx_params *p = &c->model->params;
  if (!p->zero) return;
  if (p->compute)
    fx_graph_persistent(FX_AT(graph), "compute weights", p->compute, fx_type_1d(FX_BF16, p->numel));
  else
    fx_graph_persistent(FX_AT(graph), "weights", p->weight, fx_type_1d(FX_F32, p->numel));
  for (int64_t b = p->num_buckets - 1; b >= 0; b--) { /* the forward meets them from the back */
    int64_t begin = p->bucket[b].begin, count = p->bucket[b].end - begin;
    fx_value whole = p->compute ? fx_graph_persistent(FX_AT(graph), "compute weights", p->compute + begin,
                                                      fx_type_1d(FX_BF16, count))
                                : fx_graph_persistent(FX_AT(graph), "weights", p->weight + begin,
                                                      fx_type_1d(FX_F32, count));
    fx_all_gather_in_place(FX_AT(graph), c->dp, FX_LANE_COMM_BULK, whole);
  }
}
