/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/vocab_shard.h"

#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/elementwise.h"

int64_t fx_vocab_counted(const fx_vocab_attr *attr, int64_t cols) {
  return fx_max_i64(0, fx_min_i64(cols, attr->valid - attr->first));
}

/* ---- embedding ---- */

static fx_status embedding_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[0]->ndim != 2 || in[0]->dtype != FX_I32 || in[1]->ndim != 2 || !fx_is_activation(in[1]->dtype))
    return fx_error(FX_ERR_SHAPE, "expected int32 ids [B, T] and a table [n, E] of float32 or bfloat16");
  out[0] = fx_type_3d(in[1]->dtype, in[0]->dim[0], in[0]->dim[1], in[1]->dim[1]);
  return FX_OK;
}

typedef struct embedding_grad_attr {
  fx_vocab_attr vocab;
  fx_type table;
} embedding_grad_attr;

static fx_status embedding_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  if (!fx_is_activation(in[0]->dtype) || in[1]->dtype != FX_I32)
    return fx_error(FX_ERR_SHAPE, "expected a gradient of float32 or bfloat16 and int32 ids");
  out[0] = ((const embedding_grad_attr *)attr)->table;
  return FX_OK;
}

static const fx_op g_embedding_grad = {
    .name = "vocab_embedding_grad", /* dy [B, T, E], ids -> dtable [n, E] F32 */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(embedding_grad_attr),
    .can_accumulate = 1,
    .infer = embedding_grad_infer,
    .workspace_cuda = fx_embedding_grad_workspace_cuda,
    .kernel =
        {[FX_BACKEND_CPU] = fx_vocab_embedding_grad_cpu, [FX_BACKEND_CUDA] = fx_vocab_embedding_grad_cuda},
};

static fx_status embedding_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  embedding_grad_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.vocab = *(const fx_vocab_attr *)node->attr;
  attr.table = *fx_graph_type(graph, node->in[1]);
  attr.table.dtype = FX_F32;
  din[1] = fx_graph_record(graph, &g_embedding_grad, &attr, (fx_value[]){dout[0], node->in[0]}, NULL);
  return fx_graph_status(graph);
}

static const fx_op g_embedding = {
    .name = "vocab_embedding",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_vocab_attr),
    .infer = embedding_infer,
    .vjp = embedding_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_vocab_embedding_cpu, [FX_BACKEND_CUDA] = fx_vocab_embedding_cuda},
};

fx_value fx_vocab_embedding(fx_graph *graph, fx_value ids, fx_value table, fx_vocab_attr attr) {
  return fx_graph_record(graph, &g_embedding, &attr, (fx_value[]){ids, table}, NULL);
}

/* ---- the three numbers of a row ---- */

static fx_status numbers_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[0]->ndim != 2 || !fx_is_activation(in[0]->dtype) || in[1]->dtype != FX_I32 ||
      fx_type_numel(in[1]) != in[0]->dim[0])
    return fx_error(FX_ERR_SHAPE, "logits and targets do not fit");
  out[0] = *in[0];
  out[1] = fx_type_3d(FX_F32, 1, in[0]->dim[0], FX_VOCAB_NUMBERS);
  return FX_OK;
}

static const fx_op g_numbers = {
    .name = "vocab_numbers", /* logits, targets -> scores, numbers */
    .min_in = 2,
    .max_in = 2,
    .num_out = 2,
    .attr_bytes = sizeof(fx_vocab_attr),
    .may_alias = {1},
    .infer = numbers_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_vocab_numbers_cpu, [FX_BACKEND_CUDA] = fx_vocab_numbers_cuda},
};

void fx_vocab_row_numbers(fx_graph *graph, fx_value logits, fx_value targets, fx_vocab_attr attr,
                          fx_value *scores, fx_value *numbers) {
  fx_value out[2] = {FX_NONE, FX_NONE};
  fx_graph_record(graph, &g_numbers, &attr, (fx_value[]){logits, targets}, out);
  *scores = out[0];
  *numbers = out[1];
}

/* ---- from all ranks' numbers to nll and the gradient of the logits ---- */

static fx_status merge_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[1]->ndim != 3 || in[1]->dim[1] != in[0]->dim[0] || in[1]->dim[2] != FX_VOCAB_NUMBERS)
    return fx_error(FX_ERR_SHAPE, "the numbers of all ranks do not fit the rows");
  out[0] = *in[0];
  out[1] = fx_type_1d(FX_F32, in[0]->dim[0]);
  return FX_OK;
}

static const fx_op g_merge = {
    .name = "vocab_merge", /* scores, numbers, targets, factor -> dlogits, nll */
    .min_in = 4,
    .max_in = 4,
    .num_out = 2,
    .attr_bytes = sizeof(fx_vocab_merge_attr),
    .optional_out = 1,
    .may_alias = {1},
    .infer = merge_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_vocab_merge_cpu, [FX_BACKEND_CUDA] = fx_vocab_merge_cuda},
};

void fx_vocab_merge(fx_graph *graph, fx_value scores, fx_value numbers, fx_value targets, fx_value factor,
                    fx_vocab_attr attr, int rank, fx_value *dlogits, fx_value *nll) {
  fx_value out[2] = {FX_NONE, FX_NONE};
  fx_vocab_merge_attr merge = {attr, rank};
  fx_graph_record(graph, &g_merge, &merge, (fx_value[]){scores, numbers, targets, factor}, out);
  *dlogits = out[0];
  *nll = out[1];
}

/* ---- the loss ---- */

typedef struct loss_attr {
  fx_value dx, dweight; /* recorded before it; not inputs, so that they may be written where they belong */
} loss_attr;

static fx_status loss_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in, (void)attr;
  out[0] = fx_type_1d(FX_F32, 1);
  return FX_OK;
}

static fx_status loss_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const loss_attr *a = node->attr;
  bool unit = fx_is_fill(graph, dout[0], 1.0f);
  din[2] = unit ? a->dx : fx_scale(graph, a->dx, dout[0]);
  din[3] = unit ? a->dweight : fx_scale(graph, a->dweight, dout[0]);
  return fx_graph_status(graph);
}

static const fx_op g_loss = {
    .name = "vocab_loss", /* nll, factor; x and weight, whose gradients are known -> loss [1] */
    .min_in = 4,
    .max_in = 4,
    .num_out = 1,
    .attr_bytes = sizeof(loss_attr),
    .infer = loss_infer,
    .vjp = loss_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_vocab_loss_cpu, [FX_BACKEND_CUDA] = fx_vocab_loss_cuda},
};

fx_value fx_vocab_loss(fx_graph *graph, fx_value nll, fx_value factor, fx_value x, fx_value weight,
                       fx_value dx, fx_value dweight) {
  return fx_graph_record(graph, &g_loss, &(loss_attr){dx, dweight}, (fx_value[]){nll, factor, x, weight},
                         NULL);
}
