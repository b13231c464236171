/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

/* From the pinned slot of this run; the host keeps it unchanged until the plan is done. */
fx_status fx_input_cuda(const fx_kernel_args *args) {
  const fx_input_attr *attr = args->attr;
  return fx_cuda_run_copy(args, args->out[0]->data, (const char *)args->slot + attr->offset,
                          fx_type_bytes(&attr->type));
}

fx_status fx_add_cuda(const fx_kernel_args *args) {
  void *a = args->in[0]->data, *b = args->in[1]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_ADD, FX_F32, n, FX_CUDA_ARGS(&a, &b, &y, &n));
}

fx_status fx_scale_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *s = args->in[1]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SCALE, FX_F32, n, FX_CUDA_ARGS(&x, &s, &y, &n));
}

fx_status fx_fill_cuda(const fx_kernel_args *args, float number) {
  void *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_FILL, FX_F32, n, FX_CUDA_ARGS(&y, &number, &n));
}

typedef struct view {
  int64_t dim[FX_MAX_DIMS], stride_from[FX_MAX_DIMS], stride_to[FX_MAX_DIMS];
} view;

fx_status fx_copy_cuda(const fx_kernel_args *args) {
  const fx_type *from = &args->in[0]->type, *to = &args->out[0]->type;
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int size = (int)fx_dtype_bytes(from->dtype);
  int64_t n = fx_type_numel(from);
  view v;
  if (fx_type_contiguous(from) && fx_type_contiguous(to))
    return fx_cuda_run_copy(args, y, x, (size_t)n * (size_t)size);
  for (int d = 0; d < FX_MAX_DIMS; d++) {
    int at = d - (FX_MAX_DIMS - from->ndim); /* aligned to the last dimension */
    v.dim[d] = at >= 0 ? from->dim[at] : 1;
    v.stride_from[d] = at >= 0 ? from->stride[at] : 0;
    v.stride_to[d] = at >= 0 ? to->stride[at] : 0;
  }
  return fx_cuda_run_flat(args, FX_CUDA_COPY_VIEW, FX_F32, n, FX_CUDA_ARGS(&x, &y, &v, &size, &n));
}

fx_status fx_store_cuda(const fx_kernel_args *args) {
  return fx_cuda_run_copy(args, args->out[0]->data, args->in[1]->data, fx_type_bytes(&args->out[0]->type));
}

fx_status fx_cast_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int from = (int)args->in[0]->type.dtype, to = (int)args->out[0]->type.dtype;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_CAST, FX_F32, n, FX_CUDA_ARGS(&x, &y, &from, &to, &n));
}
