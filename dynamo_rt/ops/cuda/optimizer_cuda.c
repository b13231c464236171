/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/optimizer.h"

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

enum { CHUNK = 16384 }; /* elements a partial sum; the workspace is the CPU's, which has as many */

fx_status fx_squares_cuda(const fx_kernel_args *args) {
  double *partial = args->workspace, *next = partial;
  void *squares = args->out[0]->data;
  for (int r = 0; r < FX_MAX_SQUARES; r++) {
    if (!args->in[r]) continue;
    void *grad = args->in[r]->data;
    int64_t n = fx_type_numel(&args->in[r]->type), chunk = CHUNK, chunks = fx_ceil_div(n, CHUNK);
    FX_TRY(fx_cuda_run(args, FX_CUDA_SQUARE_PARTIAL, FX_F32, (fx_cuda_dim){(unsigned)chunks, 1, 1},
                       (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1}, FX_CUDA_ARGS(&grad, &next, &n, &chunk)));
    next += chunks;
  }
  int64_t chunks = next - partial;
  return fx_cuda_run(args, FX_CUDA_SUM_SQUARES, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1024, 1, 1},
                     FX_CUDA_ARGS(&partial, &squares, &chunks));
}

fx_status fx_clip_cuda(const fx_kernel_args *args) {
  void *squares = args->in[0]->data, *norm = args->out[0]->data, *factor = args->out[1]->data;
  double max_norm = ((const fx_clip_attr *)args->attr)->max_norm;
  return fx_cuda_run(args, FX_CUDA_CLIP_FACTOR, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){32, 1, 1},
                     FX_CUDA_ARGS(&squares, &norm, &factor, &max_norm));
}

typedef struct adamw_state { /* of optimizer.cu */
  void *p, *m, *v;
} adamw_state;

fx_status fx_adamw_cuda(const fx_kernel_args *args) {
  fx_adamw_attr attr = *(const fx_adamw_attr *)args->attr;
  adamw_state state = {args->out[0]->data, args->out[1]->data, args->out[2]->data}, copy = {NULL, NULL, NULL};
  void *g = args->in[1]->data, *lr = args->in[4]->data, *step = args->in[5]->data;
  void *norm = args->in[6]->data, *factor = args->in[7]->data;
  void *compute = args->out[6] ? args->out[6]->data : NULL;
  uint64_t site = fx_hash64_text(FX_ADAMW_SITE);
  if (args->out[3]) copy = (adamw_state){args->out[3]->data, args->out[4]->data, args->out[5]->data};
  int64_t n = fx_type_numel(&args->in[0]->type);
  return fx_cuda_run_flat(
      args, FX_CUDA_ADAMW, FX_F32, n,
      FX_CUDA_ARGS(&state, &g, &lr, &step, &norm, &factor, &attr, &site, &copy, &compute, &n));
}
