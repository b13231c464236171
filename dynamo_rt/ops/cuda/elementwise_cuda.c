/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

fx_status fx_add_cuda(const fx_kernel_args *args) {
  void *a = args->in[0]->data, *b = args->in[1]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_ADD, args->out[0]->type.dtype, n, FX_CUDA_ARGS(&a, &b, &y, &n));
}

fx_status fx_scale_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *s = args->in[1]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SCALE, args->out[0]->type.dtype, n, FX_CUDA_ARGS(&x, &s, &y, &n));
}

fx_status fx_fill_cuda(const fx_kernel_args *args, float number) {
  void *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_FILL, FX_F32, n, FX_CUDA_ARGS(&y, &number, &n));
}

fx_status fx_cuda_tell_host(const fx_kernel_args *args, uint32_t *to, const uint32_t word[2]) {
  uint32_t first = word[0], second = word[1];
  fx_cuda_dim one = {1, 1, 1}, warp = {32, 1, 1};
  return fx_cuda_run(args, FX_CUDA_TELL_HOST, FX_F32, one, warp, FX_CUDA_ARGS(&to, &first, &second));
}

typedef struct view { /* of convert.cu */
  int64_t dim[FX_MAX_DIMS], stride_from[FX_MAX_DIMS], stride_to[FX_MAX_DIMS];
  int32_t first, reserved;
} view;

/* Dimensions of one element and those that lie together with the next one on both sides disappear. */
static view merge_dimensions(const fx_type *from, const fx_type *to) {
  view v;
  int last = FX_MAX_DIMS; /* the dimension merged into; those from it on are filled */
  for (int d = from->ndim - 1; d >= 0; d--) {
    if (from->dim[d] == 1) continue;
    bool joins = last < FX_MAX_DIMS && from->stride[d] == v.stride_from[last] * v.dim[last] &&
                 to->stride[d] == v.stride_to[last] * v.dim[last];
    if (joins) {
      v.dim[last] *= from->dim[d];
      continue;
    }
    last--;
    v.dim[last] = from->dim[d];
    v.stride_from[last] = from->stride[d];
    v.stride_to[last] = to->stride[d];
  }
  for (int d = 0; d < last; d++) {
    v.dim[d] = 1;
    v.stride_from[d] = v.stride_to[d] = 0;
  }
  v.first = last < FX_MAX_DIMS ? last : FX_MAX_DIMS - 1;
  v.reserved = 0;
  return v;
}

/* Counts the view in units of up to 16 bytes; returns their size. */
static int widen(view *v, int size, const void *x, const void *y) {
  int end = FX_MAX_DIMS - 1;
  bool together = v->stride_from[end] == 1 && v->stride_to[end] == 1;
  while (together && size < 16) {
    bool even = ((uintptr_t)x | (uintptr_t)y) % (2 * (size_t)size) == 0 && v->dim[end] % 2 == 0;
    for (int d = 0; d < end; d++) even &= v->stride_from[d] % 2 == 0 && v->stride_to[d] % 2 == 0;
    if (!even) break;
    v->dim[end] /= 2;
    for (int d = 0; d < end; d++) v->stride_from[d] /= 2, v->stride_to[d] /= 2;
    size *= 2;
  }
  return size;
}

/* Contiguous bytes. Short ones by a kernel, also from and to pinned memory of the host: a recording of
 * kernels alone is launched in a time that does not grow with their number, copies in it break that. */
static fx_status move(const fx_kernel_args *args, void *y, const void *x, size_t bytes) {
  enum { KERNEL_BYTES = 1 << 20 };
  view v = {.dim = {1, 1, 1, 1, (int64_t)bytes}, .stride_from = {[4] = 1}, .stride_to = {[4] = 1}};
  if (bytes == 0 || bytes > KERNEL_BYTES) return fx_cuda_run_copy(args, y, x, bytes);
  int unit = widen(&v, 1, x, y);
  int64_t n = (int64_t)bytes / unit;
  return fx_cuda_run_flat(args, FX_CUDA_COPY_VIEW, FX_F32, n, FX_CUDA_ARGS(&x, &y, &v, &unit, &n));
}

/* From the pinned slot of this run; the host keeps it unchanged until the plan is done. */
fx_status fx_input_cuda(const fx_kernel_args *args) {
  const fx_input_attr *attr = args->attr;
  return move(args, args->out[0]->data, (const char *)args->slot + attr->offset, fx_type_bytes(&attr->type));
}

fx_status fx_copy_cuda(const fx_kernel_args *args) {
  const fx_type *from = &args->in[0]->type, *to = &args->out[0]->type;
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int size = (int)fx_dtype_bytes(from->dtype);
  int64_t n = fx_type_numel(from);
  if (fx_type_contiguous(from) && fx_type_contiguous(to)) return move(args, y, x, (size_t)n * (size_t)size);
  view v = merge_dimensions(from, to);
  int unit = widen(&v, size, x, y);
  n = n * size / unit;
  return fx_cuda_run_flat(args, FX_CUDA_COPY_VIEW, FX_F32, 4 * n, FX_CUDA_ARGS(&x, &y, &v, &unit, &n));
}

fx_status fx_store_cuda(const fx_kernel_args *args) {
  return move(args, args->out[0]->data, args->in[1]->data, fx_type_bytes(&args->out[0]->type));
}

fx_status fx_cast_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int from = (int)args->in[0]->type.dtype, to = (int)args->out[0]->type.dtype;
  int64_t n = fx_type_numel(&args->out[0]->type);
  if (fx_type_contiguous(&args->out[0]->type))
    return fx_cuda_run_flat(args, FX_CUDA_CAST, FX_F32, n, FX_CUDA_ARGS(&x, &y, &from, &to, &n));
  enum { WIDE = 8 };
  view v = merge_dimensions(&args->in[0]->type, &args->out[0]->type);
  int end = FX_MAX_DIMS - 1,
      wide = from == FX_F32 && to == FX_BF16 && ((uintptr_t)x | (uintptr_t)y) % 16 == 0;
  wide = wide && v.stride_to[end] == 1 && v.dim[end] % WIDE == 0;
  for (int d = 0; d < end; d++) wide = wide && v.stride_to[d] % WIDE == 0;
  if (wide) {
    v.dim[end] /= WIDE;
    for (int d = 0; d < end; d++) v.stride_to[d] /= WIDE;
    n /= WIDE;
  }
  return fx_cuda_run_flat(args, FX_CUDA_CAST_VIEW, FX_F32, 16 * n,
                          FX_CUDA_ARGS(&x, &y, &v, &from, &to, &wide, &n));
}

/* ---- blocks ---- */

typedef struct block_view { /* of convert.cu */
  int64_t batch_from, row_from, head_from, batch_to, row_to, head_to;
  int64_t count, heads, units;
} block_view;

fx_status fx_take_blocks_cuda(const fx_kernel_args *args) {
  const fx_type *from = &args->in[0]->type, *to = &args->out[0]->type;
  void *x = args->in[0]->data, *index = args->in[1]->data, *y = args->out[0]->data;
  int64_t unit = 16 / (int64_t)fx_dtype_bytes(from->dtype);
  block_view v = {
      from->stride[0] / unit, from->stride[1] / unit, from->stride[2] / unit,     to->stride[0] / unit,
      to->stride[1] / unit,   to->stride[2] / unit,   to->dim[1] / FX_BLOCK_ROWS, to->dim[2],
      to->dim[3] / unit};
  int64_t n = fx_type_numel(to) / unit;
  bool whole = ((uintptr_t)x | (uintptr_t)y) % 16 == 0 && to->dim[3] % unit == 0;
  for (int d = 0; d < 3; d++) whole = whole && from->stride[d] % unit == 0 && to->stride[d] % unit == 0;
  if (!whole)
    return fx_error(FX_ERR_UNSUPPORTED,
                    "picking blocks on CUDA: heads do not begin at multiples of 16 bytes");
  return fx_cuda_run_flat(args, FX_CUDA_TAKE_BLOCKS, FX_F32, 16 * n, FX_CUDA_ARGS(&x, &index, &y, &v, &n));
}

fx_status fx_add_blocks_cuda(const fx_kernel_args *args) {
  const fx_type *sum = &args->out[0]->type, *x = &args->in[1]->type;
  void *to = args->out[0]->data, *from = args->in[1]->data, *index = args->in[2]->data;
  int64_t floats = FX_BLOCK_ROWS * x->dim[2] * x->dim[3], fours = floats / 4;
  int64_t count = x->dim[1] / FX_BLOCK_ROWS, blocks = sum->dim[1] / FX_BLOCK_ROWS;
  int64_t n = x->dim[0] * count * fours;
  if (((uintptr_t)to | (uintptr_t)from) % 16 != 0)
    return fx_error(FX_ERR_UNSUPPORTED, "adding blocks on CUDA: sums do not begin at a multiple of 16 bytes");
  return fx_cuda_run_flat(args, FX_CUDA_ADD_BLOCKS, FX_F32, 16 * n,
                          FX_CUDA_ARGS(&to, &from, &index, &fours, &count, &blocks, &n));
}
