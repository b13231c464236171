/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/norm.h"

/* Of ops/cuda/norm.cu and norm_grad.cu: columns that a thread holds in the forward kernels and the longest
 * row that is held; vectors that it holds in the backward one, and that one's largest group. CHUNKS,
 * RING_BLOCKS: blocks of norm_grad and of those with a ring, two and one for each multiprocessor of an H200;
 * constants, so that the bits do not depend on how many there are. */
enum { FORWARD = 32, MAX_HELD = 8192, BACKWARD = 2, MAX_GROUP = 512, CHUNKS = 264, RING_BLOCKS = 132 };

typedef struct row_norm { /* of norm.cu */
  void *w, *b, *mean, *rstd;
  int32_t layer;
  float eps;
  int64_t cols;
} row_norm;

static void *data_of(const fx_tensor *tensor) {
  return tensor ? tensor->data : NULL;
}

static row_norm row_norm_of(const fx_kernel_args *args, int weight) {
  const fx_norm_attr *attr = args->attr;
  return (row_norm){.w = args->in[weight]->data,
                    .b = data_of(args->in[weight + 1]),
                    .mean = data_of(args->out[1]),
                    .rstd = data_of(args->out[2]),
                    .layer = attr->kind == FX_NORM_LAYER,
                    .eps = attr->eps,
                    .cols = fx_type_cols(&args->in[0]->type)};
}

/* Columns a thread holds, for fx_cuda_run_rows; rows that are not held are a block's. */
static int columns(int held, int most) {
  return held ? most : 1;
}

/* ---- rows in shared memory (norm.cu, norm_grad.cu) ---- */

/* How a row is shared out: to one warp where it holds the row with up to three vectors a thread, else to as
 * many as do with two. */
typedef struct ring_plan {
  fx_cuda_kernel kernel;
  fx_cuda_dim block;
  int stages;
  unsigned bytes;
} ring_plan;

/* kernels: with two and with three vectors a thread. slots: rows in a stage. Not for rows of less than a
 * vector a thread, whose copies are small, and of more than 16 warps. ring_bytes: on an H200 three rows deep
 * are fastest, at 768 and at 2,048 columns of bfloat16; twice as many under way take up to 5% longer. */
static bool plan_ring(const fx_kernel_args *args, fx_dtype dtype, int64_t cols, const fx_cuda_kernel *kernels,
                      int slots, int64_t ring_bytes, ring_plan *out) {
  enum { LANES = 32, MAX_WARPS = 16, WARPS_OF_THREE = 12, MAX_STAGES = 6, HOPPER = 90 };
  const fx_cuda_context *context = args->gemm;
  int64_t row = cols * (int64_t)fx_dtype_bytes(dtype), vectors = row / 16;
  if (fx_cuda_arch_number(context->arch) < HOPPER || vectors <= LANES || vectors > 2 * LANES * MAX_WARPS)
    return false;
  bool three = vectors > 2 * LANES && vectors <= 3 * LANES;
  int64_t warps = three ? 1 : fx_ceil_div(vectors, 2 * LANES);
  int64_t groups = (three ? WARPS_OF_THREE : MAX_WARPS) / warps, stage = groups * slots * row;
  int64_t stages = fx_max_i64(2, fx_min_i64(MAX_STAGES, ring_bytes / stage));
  *out = (ring_plan){.kernel = kernels[three],
                     .block = {(unsigned)(LANES * warps), (unsigned)groups, 1},
                     .stages = (int)stages,
                     .bytes = (unsigned)(stages * stage)};
  return out->bytes <= fx_cuda_shared_limit(args);
}

/* ---- forward ---- */

fx_status fx_norm_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  fx_dtype dtype = args->in[0]->type.dtype;
  int64_t rows = fx_type_rows(&args->in[0]->type);
  row_norm n = row_norm_of(args, 1);
  int held =
      n.cols <= MAX_HELD && fx_cuda_rows_fit_vectors(dtype, n.cols, (const void *[]){x, y, n.w, n.b}, 4);
  static const fx_cuda_kernel rings[2][2] = {{FX_CUDA_RMS_RING_2, FX_CUDA_RMS_RING_3},
                                             {FX_CUDA_LAYER_RING_2, FX_CUDA_LAYER_RING_3}};
  ring_plan ring;
  if (held && plan_ring(args, dtype, n.cols, rings[n.layer], 1, 60 << 10, &ring)) {
    const fx_cuda_context *context = args->gemm;
    int64_t blocks = fx_min_i64(context->info.multiprocessors, fx_ceil_div(rows, ring.block.y));
    return fx_cuda_run_shared(args, ring.kernel, dtype, (fx_cuda_dim){(unsigned)blocks, 1, 1}, ring.block,
                              ring.bytes, FX_CUDA_ARGS(&x, &y, &n, &ring.stages, &rows));
  }
  return fx_cuda_run_rows(args, FX_CUDA_NORM, dtype, rows, n.cols, columns(held, FORWARD),
                          dtype == FX_BF16 ? 3 : 2, FX_CUDA_ARGS(&x, &y, &n, &held, &rows));
}

fx_status fx_add_norm_cuda(const fx_kernel_args *args) {
  void *a = args->in[0]->data, *b = args->in[1]->data, *y = args->out[0]->data, *sum = data_of(args->out[3]);
  fx_dtype dtype = args->in[0]->type.dtype;
  int64_t rows = fx_type_rows(&args->in[0]->type);
  row_norm n = row_norm_of(args, 2);
  int held = n.cols <= MAX_HELD &&
             fx_cuda_rows_fit_vectors(dtype, n.cols, (const void *[]){a, b, y, sum, n.w, n.b}, 6);
  fx_cuda_dim block = fx_cuda_row_block(n.cols, columns(held, FORWARD), FX_CUDA_BLOCK);
  return fx_cuda_run(args, FX_CUDA_ADD_NORM, dtype, (fx_cuda_dim){(unsigned)fx_ceil_div(rows, block.y), 1, 1},
                     block, FX_CUDA_ARGS(&a, &b, &sum, &y, &n, &held, &rows));
}

/* ---- backward ---- */

typedef struct norm_back { /* of norm_grad.cu */
  void *dy, *x, *w, *mean, *rstd, *dx;
  float *dw, *db;
  int32_t layer, add;
  int64_t rows, cols, step;
} norm_back;

/* [2, CHUNKS, cols]: partial sums of dweight and dbias. */
size_t fx_norm_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                   int threads) {
  (void)out, (void)attr, (void)threads;
  return (size_t)(2 * CHUNKS * fx_type_cols(in[1])) * sizeof(float);
}

/* chunks: how many rows of partial sums there are then */
static fx_status grad_rows(const fx_kernel_args *args, norm_back *n, fx_dtype dtype, int *chunks) {
  int columns_held = BACKWARD * 16 / (int)fx_dtype_bytes(dtype);
  int held = n->cols <= (int64_t)MAX_GROUP * columns_held &&
             fx_cuda_rows_fit_vectors(dtype, n->cols, (const void *[]){n->dy, n->x, n->w, n->dx}, 4);
  fx_cuda_dim block =
      held ? fx_cuda_row_block(n->cols, columns_held, MAX_GROUP) : (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1};
  static const fx_cuda_kernel rings[2][2] = {{FX_CUDA_RMS_GRAD_RING_2, FX_CUDA_RMS_GRAD_RING_3},
                                             {FX_CUDA_LAYER_GRAD_RING_2, FX_CUDA_LAYER_GRAD_RING_3}};
  ring_plan ring;
  if (n->dx && (!n->layer || n->mean) &&
      fx_cuda_rows_fit_vectors(dtype, n->cols, (const void *[]){n->dy, n->x, n->w, n->dx}, 4) &&
      plan_ring(args, dtype, n->cols, rings[n->layer], n->add ? 3 : 2, 108 << 10, &ring)) {
    *chunks = (int)fx_min_i64(RING_BLOCKS, fx_ceil_div(n->rows, ring.block.y));
    return fx_cuda_run_shared(args, ring.kernel, dtype, (fx_cuda_dim){(unsigned)*chunks, 1, 1}, ring.block,
                              ring.bytes, FX_CUDA_ARGS(n, &ring.stages));
  }
  n->step = fx_max_i64(block.y, fx_ceil_div(n->rows, CHUNKS));
  *chunks = (int)fx_ceil_div(n->rows, n->step);
  return fx_cuda_run(args, FX_CUDA_NORM_GRAD, dtype, (fx_cuda_dim){(unsigned)*chunks, 1, 1}, block,
                     FX_CUDA_ARGS(n, &held));
}

fx_status fx_norm_grad_cuda(const fx_kernel_args *args) {
  const fx_norm_attr *attr = args->attr;
  fx_dtype dtype = args->in[1]->type.dtype;
  norm_back n = {.dy = args->in[0]->data,
                 .x = args->in[1]->data,
                 .w = args->in[2]->data,
                 .mean = data_of(args->in[3]),
                 .rstd = args->in[4]->data,
                 .dx = data_of(args->out[0]),
                 .layer = attr->kind == FX_NORM_LAYER,
                 .add = args->out[0] ? (int)(args->accumulate & 1) : 0,
                 .rows = fx_type_rows(&args->in[1]->type),
                 .cols = fx_type_cols(&args->in[1]->type)};
  float *partial[2] = {args->workspace, (float *)args->workspace + CHUNKS * n.cols};
  float *sum[2] = {data_of(args->out[1]), data_of(args->out[2])};
  int chunks;
  n.dw = sum[0] ? partial[0] : NULL;
  n.db = sum[1] ? partial[1] : NULL;
  FX_TRY(grad_rows(args, &n, dtype, &chunks));
  if (!sum[0] && !sum[1]) return FX_OK;
  return fx_cuda_run_sum_partials2(args, partial, sum, chunks, n.cols, (int)(args->accumulate >> 1 & 3));
}
