/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/embedding.h"

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

enum { SCAN = 256, WIDE = 8 }; /* of embedding_grad */

static fx_cuda_fault *fault_of(const fx_kernel_args *args) {
  return ((const fx_cuda_context *)args->gemm)->fault;
}

fx_status fx_embedding_cuda(const fx_kernel_args *args) {
  void *ids = args->in[0]->data, *table = args->in[1]->data, *y = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type), vocab = args->in[1]->type.dim[0],
          cols = args->in[1]->type.dim[1];
  fx_cuda_fault *fault = fault_of(args);
  return fx_cuda_run_rows(args, FX_CUDA_EMBEDDING, FX_F32, rows, cols,
                          FX_CUDA_ARGS(&ids, &table, &y, &vocab, &cols, &fault));
}

fx_status fx_embedding_grad_cuda(const fx_kernel_args *args) {
  void *dy = args->in[0]->data, *ids = args->in[1]->data, *dtable = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[1]->type), vocab = args->out[0]->type.dim[0],
          cols = args->out[0]->type.dim[1];
  int add = (int)(args->accumulate & 1);
  fx_cuda_dim grid = {(unsigned)vocab, (unsigned)fx_ceil_div(cols, SCAN * WIDE), 1};
  return fx_cuda_run(args, FX_CUDA_EMBEDDING_GRAD, FX_F32, grid, (fx_cuda_dim){SCAN, 1, 1},
                     FX_CUDA_ARGS(&dy, &ids, &dtable, &rows, &cols, &add));
}

/* ---- head with cross-entropy ---- */

enum { LOGITS_BYTES = 512 << 20, MIN_CHUNK = 256 };

static int64_t chunk_rows(int64_t rows, int64_t vocab) {
  int64_t fit = LOGITS_BYTES / ((int64_t)sizeof(float) * vocab);
  return fx_min_i64(rows, fx_max_i64(MIN_CHUNK, fit));
}

size_t fx_head_ce_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                 int threads) {
  (void)out, (void)attr, (void)threads;
  int64_t vocab = in[1]->dim[0];
  return (size_t)(chunk_rows(fx_type_rows(in[0]), vocab) * vocab) * sizeof(float);
}

/* As fx_gemm_f32, all of it packed. */
static fx_status product_f32(const fx_kernel_args *args, bool transpose_a, bool transpose_b, int64_t m,
                             int64_t n, int64_t k, const float *a, const float *b, float beta, float *c) {
  fx_cuda_product product = {.transpose_a = transpose_a,
                             .transpose_b = transpose_b,
                             .m = m,
                             .n = n,
                             .k = k,
                             .in = FX_F32,
                             .out = FX_F32,
                             .a = a,
                             .b = b,
                             .lda = transpose_a ? m : k,
                             .ldb = transpose_b ? k : n,
                             .c = c,
                             .ldc = n,
                             .beta = beta};
  return fx_cuda_gemm_run(((const fx_cuda_context *)args->gemm)->gemm, &product, args->stream);
}

static fx_status head_chunk(const fx_kernel_args *args, int64_t begin, int64_t rows) {
  int64_t vocab = args->in[1]->type.dim[0], e = args->in[1]->type.dim[1];
  int64_t valid = ((const fx_head_ce_attr *)args->attr)->valid_vocab;
  const float *x = (const float *)args->in[0]->data + begin * e, *w = args->in[1]->data;
  const int32_t *targets = (const int32_t *)args->in[2]->data + begin;
  void *factor = args->in[3]->data;
  float *nll = (float *)args->out[0]->data + begin, *logits = args->workspace;
  float *dx = args->out[2] ? (float *)args->out[2]->data + begin * e : NULL;
  float *dw = args->out[3] ? args->out[3]->data : NULL;
  int grad = dx || dw;
  fx_cuda_fault *fault = fault_of(args);
  if (valid == 0) valid = vocab;
  FX_TRY(product_f32(args, false, true, rows, vocab, e, x, w, 0.0f, logits));
  FX_TRY(fx_cuda_run_rows(
      args, FX_CUDA_CROSS_ENTROPY, FX_F32, rows, vocab,
      FX_CUDA_ARGS(&logits, &targets, &factor, &nll, &vocab, &valid, &begin, &grad, &fault)));
  if (dx) FX_TRY(product_f32(args, false, false, rows, e, vocab, logits, w, 0.0f, dx));
  float beta = begin > 0 || args->accumulate & 8 ? 1.0f : 0.0f;
  if (dw) FX_TRY(product_f32(args, true, false, vocab, e, rows, logits, x, beta, dw));
  return FX_OK;
}

fx_status fx_head_ce_cuda(const fx_kernel_args *args) {
  int64_t rows = fx_type_rows(&args->in[0]->type), vocab = args->in[1]->type.dim[0];
  int64_t step = chunk_rows(rows, vocab);
  void *nll = args->out[0]->data, *factor = args->in[3]->data, *loss = args->out[1]->data;
  for (int64_t begin = 0; begin < rows; begin += step)
    FX_TRY(head_chunk(args, begin, fx_min_i64(step, rows - begin)));
  return fx_cuda_run(args, FX_CUDA_SUM_NLL, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1024, 1, 1},
                     FX_CUDA_ARGS(&nll, &factor, &loss, &rows));
}

/* ---- dropout ---- */

fx_status fx_dropout_cuda(const fx_kernel_args *args) {
  const fx_dropout_attr *attr = args->attr;
  void *x = args->in[0]->data, *ordinal = args->in[1]->data, *iteration = args->in[2]->data;
  void *y = args->out[0]->data;
  uint64_t seed = attr->seed, site = attr->site + 0x9E3779B97F4A7C15ull * (uint64_t)args->layer;
  float p = attr->p, keep = 1.0f / (1.0f - attr->p);
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type),
          length = args->in[0]->type.dim[1];
  return fx_cuda_run_flat(
      args, FX_CUDA_DROPOUT, FX_F32, rows * fx_ceil_div(cols, 4),
      FX_CUDA_ARGS(&x, &ordinal, &iteration, &y, &seed, &site, &p, &keep, &rows, &cols, &length));
}
