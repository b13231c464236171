/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/optimizer.h"

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

enum { CHUNK = 16384 }; /* elements a partial sum; the workspace is the CPU's, which has as many */

fx_status fx_clip_cuda(const fx_kernel_args *args) {
  void *grad = args->in[0]->data, *norm = args->out[0]->data, *factor = args->out[1]->data;
  void *partial = args->workspace;
  int64_t n = fx_type_numel(&args->in[0]->type), chunk = CHUNK, chunks = fx_ceil_div(n, CHUNK);
  double max_norm = ((const fx_clip_attr *)args->attr)->max_norm;
  FX_TRY(fx_cuda_run(args, FX_CUDA_SQUARE_PARTIAL, FX_F32, (fx_cuda_dim){(unsigned)chunks, 1, 1},
                     (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1}, FX_CUDA_ARGS(&grad, &partial, &n, &chunk)));
  return fx_cuda_run(args, FX_CUDA_CLIP_FACTOR, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1024, 1, 1},
                     FX_CUDA_ARGS(&partial, &norm, &factor, &max_norm, &chunks));
}

fx_status fx_adamw_cuda(const fx_kernel_args *args) {
  fx_adamw_attr attr = *(const fx_adamw_attr *)args->attr;
  void *p = args->out[0]->data, *g = args->in[1]->data, *m = args->out[1]->data, *v = args->out[2]->data;
  void *lr = args->in[4]->data, *step = args->in[5]->data, *norm = args->in[6]->data,
       *factor = args->in[7]->data;
  void *copy[3] = {NULL, NULL, NULL};
  for (int i = 0; i < 3; i++)
    if (args->out[3 + i]) copy[i] = args->out[3 + i]->data;
  int64_t n = fx_type_numel(&args->in[0]->type);
  return fx_cuda_run_flat(
      args, FX_CUDA_ADAMW, FX_F32, n,
      FX_CUDA_ARGS(&p, &g, &m, &v, &lr, &step, &norm, &factor, &attr, &copy[0], &copy[1], &copy[2], &n));
}
