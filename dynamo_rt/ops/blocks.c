/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/blocks.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

/* Rows of x in whole blocks, their last dimension together; as many numbers as there are blocks to pick. */
static fx_status check(const fx_type *x, const fx_type *index, int64_t count) {
  char text[96];
  bool fits = x->ndim == 4 && x->dim[1] % FX_BLOCK_ROWS == 0 && x->stride[3] == 1 && count > 0 &&
              index->dtype == FX_I32 && fx_type_numel(index) >= count;
  if (fits) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "%lld numbers do not pick %lld blocks of %d rows from %s",
                  (long long)fx_type_numel(index), (long long)count, FX_BLOCK_ROWS,
                  fx_type_text(x, text, sizeof text));
}

typedef struct take_attr {
  int64_t count;
} take_attr;

static fx_status take_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  int64_t count = ((const take_attr *)attr)->count;
  FX_TRY(check(in[0], in[1], count));
  if (!fx_is_activation(in[0]->dtype))
    return fx_error(FX_ERR_SHAPE, "blocks are picked from float32 or bfloat16");
  out[0] = fx_type_of(in[0]->dtype, 4,
                      (int64_t[]){in[0]->dim[0], FX_BLOCK_ROWS * count, in[0]->dim[2], in[0]->dim[3]});
  return FX_OK;
}

static const fx_op g_take = {
    .name = "take_blocks",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(take_attr),
    .bf16_cpu = true,
    .strided_out = 1,
    .infer = take_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_take_blocks_cpu, [FX_BACKEND_CUDA] = fx_take_blocks_cuda},
};

fx_value fx_take_blocks(fx_graph *graph, fx_value x, fx_value index, int64_t count) {
  return fx_graph_record(graph, &g_take, &(take_attr){count}, (fx_value[]){x, index}, NULL);
}

static fx_status add_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  const fx_type *sum = in[0], *x = in[1];
  FX_TRY(check(sum, in[2], x->dim[1] / FX_BLOCK_ROWS));
  bool fits = x->ndim == 4 && x->dim[0] == sum->dim[0] && x->dim[1] % FX_BLOCK_ROWS == 0 &&
              x->dim[2] == sum->dim[2] && x->dim[3] == sum->dim[3] && sum->dtype == FX_F32 &&
              x->dtype == FX_F32 && fx_type_contiguous(sum) && fx_type_contiguous(x);
  if (!fits) return fx_error(FX_ERR_SHAPE, "the blocks do not fit the float32 sum that they are added to");
  out[0] = *sum;
  return FX_OK;
}

static const fx_op g_add = {
    .name = "add_blocks",
    .min_in = 3,
    .max_in = 3,
    .num_out = 1,
    .effects = FX_EFFECT_MUTATES,
    .must_alias = {1},
    .infer = add_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_add_blocks_cpu, [FX_BACKEND_CUDA] = fx_add_blocks_cuda},
};

fx_value fx_add_blocks(fx_graph *graph, fx_value sum, fx_value x, fx_value index) {
  return fx_graph_record(graph, &g_add, NULL, (fx_value[]){sum, x, index}, NULL);
}
