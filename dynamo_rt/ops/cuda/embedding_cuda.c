/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/embedding.h"

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/vocab_shard.h"

static fx_cuda_fault *fault_of(const fx_kernel_args *args) {
  return ((const fx_cuda_context *)args->gemm)->fault;
}

/* The table holds ids [first, first + its rows) of a vocabulary. */
static fx_status lookup(const fx_kernel_args *args, int64_t first, int64_t vocab) {
  enum { COLUMNS = 16, RESIDENT = 6 }; /* of a thread at a time; blocks a multiprocessor */
  void *ids = args->in[0]->data, *table = args->in[1]->data, *y = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type), held = args->in[1]->type.dim[0],
          cols = args->in[1]->type.dim[1];
  fx_cuda_fault *fault = fault_of(args);
  return fx_cuda_run_rows(args, FX_CUDA_EMBEDDING, args->in[1]->type.dtype, rows, cols, COLUMNS, RESIDENT,
                          FX_CUDA_ARGS(&ids, &table, &y, &rows, &first, &held, &vocab, &cols, &fault));
}

fx_status fx_embedding_cuda(const fx_kernel_args *args) {
  return lookup(args, 0, args->in[1]->type.dim[0]);
}

fx_status fx_vocab_embedding_cuda(const fx_kernel_args *args) {
  const fx_vocab_attr *attr = args->attr;
  return lookup(args, attr->first, attr->valid);
}

/* ---- its backward: places of each id in order (index.cu), then sums over them (embedding.cu) ---- */

enum { SORT_WARPS = 32, MAX_RANGE = 1024 };                                 /* of index.cu */
enum { CHUNK = 8, WINDOW = 32, SUPER = 32, SUM_THREADS = 128, LANES = 32 }; /* of embedding.cu */

typedef struct index_sort { /* of index.cu */
  void *ids, *keys, *rows, *first, *counters;
  int64_t n, count;
  int32_t base, vocab, range;
} index_sort;

typedef struct embedding_sums { /* of embedding.cu */
  void *dy, *keys, *rows, *first, *table, *head, *tail, *super_head, *super_tail, *counters;
  int64_t cols;
  int32_t n, windows, chunks, clears, vocab, add, slices, vectors;
} embedding_sums;

/* Places in the workspace of n ids of [0, vocab) by cols columns, from `base` on; the sizes are in the
 * comments of both structs. base NULL: only their number of bytes is wanted. */
static size_t lay_out(char *base, int64_t n, int64_t vocab, int64_t cols, embedding_sums *s) {
  int64_t windows = fx_ceil_div(n, WINDOW), supers = fx_ceil_div(windows, SUPER);
  const struct {
    void **place;
    int64_t count; /* of 4 bytes */
  } parts[] = {{&s->keys, n},
               {&s->rows, n},
               {&s->first, vocab + 2},
               {&s->counters, fx_ceil_div(cols, LANES) * 3 * windows}, /* slices of single columns */
               {&s->head, windows * cols},
               {&s->tail, windows * cols},
               {&s->super_head, supers * cols},
               {&s->super_tail, supers * cols}};
  size_t at = 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    *parts[i].place = base ? base + at : NULL;
    at += fx_align_up((size_t)parts[i].count * sizeof(int32_t), 256);
  }
  return at;
}

size_t fx_embedding_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                        int threads) {
  (void)attr, (void)threads;
  embedding_sums s;
  return lay_out(NULL, fx_type_numel(in[1]), out[0].dim[0], out[0].dim[1], &s);
}

/* keys, rows and first of s from the ids less `base`, and its counters cleared. A range for each
 * multiprocessor, or as many ids as shared memory holds. */
static fx_status sort_places(const fx_kernel_args *args, const embedding_sums *s, int base) {
  const fx_cuda_context *context = args->gemm;
  int64_t row = SORT_WARPS * (int64_t)sizeof(int32_t), ids = (int64_t)s->vocab + 1;
  int64_t most = fx_min_i64(MAX_RANGE, fx_cuda_shared_limit(args) / row);
  int64_t range = fx_min_i64(most, fx_ceil_div(ids, context->info.multiprocessors));
  index_sort p = {.ids = args->in[1]->data,
                  .keys = s->keys,
                  .rows = s->rows,
                  .first = s->first,
                  .counters = s->counters,
                  .n = s->n,
                  .count = (int64_t)s->slices * 3 * s->windows,
                  .base = base,
                  .vocab = s->vocab,
                  .range = (int32_t)range};
  return fx_cuda_run_shared(
      args, FX_CUDA_INDEX_SORT, FX_F32, (fx_cuda_dim){(unsigned)fx_ceil_div(ids, range), 1, 1},
      (fx_cuda_dim){SORT_WARPS * LANES, 1, 1}, (unsigned)(row * range), FX_CUDA_ARGS(&p));
}

static fx_status lookup_grad(const fx_kernel_args *args, int first) {
  fx_dtype dtype = args->in[0]->type.dtype;
  embedding_sums s = {.dy = args->in[0]->data,
                      .table = args->out[0]->data,
                      .n = (int32_t)fx_type_numel(&args->in[1]->type),
                      .cols = args->out[0]->type.dim[1],
                      .vocab = (int32_t)args->out[0]->type.dim[0],
                      .add = (int32_t)(args->accumulate & 1)};
  lay_out(args->workspace, s.n, s.vocab, s.cols, &s);
  s.windows = (int32_t)fx_ceil_div(s.n, WINDOW);
  s.chunks = (int32_t)fx_ceil_div(s.n, CHUNK);
  s.clears = s.add ? 0 : (int32_t)fx_ceil_div(s.vocab, LANES);
  s.vectors = fx_cuda_rows_fit_vectors(dtype, s.cols, (const void *[]){s.dy, s.table}, 2);
  int64_t wide = s.vectors ? 16 / (int64_t)fx_dtype_bytes(dtype) : 1;
  s.slices = (int32_t)fx_ceil_div(s.cols, LANES * wide);
  FX_TRY(sort_places(args, &s, first));
  int64_t units = (int64_t)(s.windows + s.chunks + s.clears) * s.slices;
  return fx_cuda_run(args, FX_CUDA_EMBEDDING_GRAD, dtype,
                     (fx_cuda_dim){(unsigned)fx_ceil_div(units, SUM_THREADS / LANES), 1, 1},
                     (fx_cuda_dim){SUM_THREADS, 1, 1}, FX_CUDA_ARGS(&s));
}

fx_status fx_embedding_grad_cuda(const fx_kernel_args *args) {
  return lookup_grad(args, 0);
}

fx_status fx_vocab_embedding_grad_cuda(const fx_kernel_args *args) {
  return lookup_grad(args, (int)((const fx_vocab_attr *)args->attr)->first);
}

/* ---- head with cross-entropy ---- */

enum { LOGITS_BYTES = 512 << 20, TILE_ROWS = 128, HEAD_THREADS = 512 /* of head.cu */ };

/* Chunks of equal size, as few as keep the logits within LOGITS_BYTES, of whole tiles of the products where
 * that fits too. */
int64_t fx_head_chunk_rows_cuda(int64_t rows, int64_t vocab, fx_dtype dtype) {
  int64_t fit = fx_max_i64(1, LOGITS_BYTES / ((int64_t)fx_dtype_bytes(dtype) * vocab));
  int64_t step = fx_ceil_div(rows, fx_max_i64(1, fx_ceil_div(rows, fit)));
  int64_t whole = fx_ceil_div(step, TILE_ROWS) * TILE_ROWS;
  return fx_max_i64(1, fx_min_i64(rows, whole <= fit ? whole : step));
}

size_t fx_head_ce_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                 int threads) {
  (void)out, (void)attr, (void)threads;
  int64_t vocab = in[1]->dim[0];
  return (size_t)(fx_head_chunk_rows_cuda(fx_type_rows(in[0]), vocab, in[0]->dtype) * vocab) *
         fx_dtype_bytes(in[0]->dtype);
}

/* c [m, n] of type `out` = op(a) op(b) + beta c, all of it packed; a and b are of the activations' type. */
static fx_status packed_product(const fx_kernel_args *args, fx_cuda_product p, fx_dtype out) {
  p.in = args->in[0]->type.dtype;
  p.out = out;
  p.lda = p.transpose_a ? p.m : p.k;
  p.ldb = p.transpose_b ? p.k : p.n;
  p.ldc = p.n;
  return fx_cuda_gemm_run(((const fx_cuda_context *)args->gemm)->gemm, &p, args->stream);
}

typedef struct row_loss { /* of head.cu */
  void *factor;
  float *nll;
  int64_t vocab, valid;
  int32_t grad;
} row_loss;

fx_status fx_head_ce_rows_cuda(const fx_kernel_args *args, int64_t begin, int64_t rows) {
  fx_dtype dtype = args->in[0]->type.dtype;
  void *logits = args->workspace;
  const int32_t *targets = (const int32_t *)args->in[2]->data + begin;
  int64_t vocab = args->in[1]->type.dim[0], valid = ((const fx_head_ce_attr *)args->attr)->valid_vocab;
  row_loss loss = {.factor = args->in[3]->data,
                   .nll = (float *)args->out[0]->data + begin,
                   .vocab = vocab,
                   .valid = valid > 0 ? valid : vocab,
                   .grad = args->out[2] || args->out[3]};
  size_t bytes = (size_t)vocab * fx_dtype_bytes(dtype);
  int vectors = fx_cuda_rows_fit_vectors(dtype, vocab, (const void *[]){logits}, 1);
  int held = vectors && bytes <= fx_cuda_shared_limit(args);
  fx_cuda_fault *fault = fault_of(args);
  return fx_cuda_run_shared(args, FX_CUDA_CROSS_ENTROPY, dtype, (fx_cuda_dim){(unsigned)rows, 1, 1},
                            (fx_cuda_dim){HEAD_THREADS, 1, 1}, held ? (unsigned)bytes : 0,
                            FX_CUDA_ARGS(&logits, &targets, &loss, &begin, &vectors, &held, &fault));
}

static fx_status head_chunk(const fx_kernel_args *args, int64_t begin, int64_t rows) {
  fx_dtype dtype = args->in[0]->type.dtype;
  int64_t vocab = args->in[1]->type.dim[0], e = args->in[1]->type.dim[1];
  size_t offset = (size_t)(begin * e) * fx_dtype_bytes(dtype);
  const char *x = (const char *)args->in[0]->data + offset, *w = args->in[1]->data;
  void *logits = args->workspace, *dx = args->out[2] ? (char *)args->out[2]->data + offset : NULL;
  void *dw = args->out[3] ? args->out[3]->data : NULL;
  fx_cuda_product product = {.transpose_b = true, .m = rows, .n = vocab, .k = e, .a = x, .b = w, .c = logits};
  FX_TRY(packed_product(args, product, dtype));
  FX_TRY(fx_head_ce_rows_cuda(args, begin, rows));
  product = (fx_cuda_product){.m = rows, .n = e, .k = vocab, .a = logits, .b = w, .c = dx};
  if (dx) FX_TRY(packed_product(args, product, dtype));
  product =
      (fx_cuda_product){.transpose_a = true, .m = vocab, .n = e, .k = rows, .a = logits, .b = x, .c = dw};
  product.beta = begin > 0 || args->accumulate & 8 ? 1.0f : 0.0f;
  return dw ? packed_product(args, product, FX_F32) : FX_OK;
}

fx_status fx_head_ce_cuda(const fx_kernel_args *args) {
  int64_t rows = fx_type_rows(&args->in[0]->type), vocab = args->in[1]->type.dim[0];
  int64_t step = fx_head_chunk_rows_cuda(rows, vocab, args->in[0]->type.dtype);
  void *nll = args->out[0]->data, *factor = args->in[3]->data, *loss = args->out[1]->data;
  for (int64_t begin = 0; begin < rows; begin += step)
    FX_TRY(head_chunk(args, begin, fx_min_i64(step, rows - begin)));
  return fx_cuda_run(args, FX_CUDA_SUM_NLL, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1024, 1, 1},
                     FX_CUDA_ARGS(&nll, &factor, &loss, &rows));
}

/* ---- head of a rank that holds some of the ids ---- */

fx_status fx_vocab_numbers_cuda(const fx_kernel_args *args) {
  const fx_vocab_attr *attr = args->attr;
  fx_dtype dtype = args->in[0]->type.dtype;
  void *logits = args->in[0]->data, *scores = args->out[0]->data, *targets = args->in[1]->data,
       *numbers = args->out[1]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t counted = fx_vocab_counted(attr, cols), first = attr->first, valid = attr->valid;
  int vectors = fx_cuda_rows_fit_vectors(dtype, cols, (const void *[]){logits}, 1);
  fx_cuda_fault *fault = fault_of(args);
  if (scores != logits) FX_TRY(fx_cuda_run_copy(args, scores, logits, fx_type_bytes(&args->in[0]->type)));
  return fx_cuda_run(
      args, FX_CUDA_VOCAB_NUMBERS, dtype, (fx_cuda_dim){(unsigned)rows, 1, 1},
      (fx_cuda_dim){HEAD_THREADS, 1, 1},
      FX_CUDA_ARGS(&logits, &targets, &numbers, &cols, &counted, &first, &valid, &vectors, &fault));
}

fx_status fx_vocab_merge_cuda(const fx_kernel_args *args) {
  const fx_vocab_attr *attr = &((const fx_vocab_merge_attr *)args->attr)->vocab;
  fx_dtype dtype = args->in[0]->type.dtype;
  void *scores = args->in[0]->data, *numbers = args->in[1]->data, *targets = args->in[2]->data,
       *factor = args->in[3]->data, *nll = args->out[1]->data,
       *grad = args->out[0] ? args->out[0]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t counted = fx_vocab_counted(attr, cols), first = attr->first;
  int ranks = (int)args->in[1]->type.dim[0];
  int vectors = fx_cuda_rows_fit_vectors(dtype, cols, (const void *[]){scores, grad}, 2);
  return fx_cuda_run(args, FX_CUDA_VOCAB_MERGE, dtype, (fx_cuda_dim){(unsigned)rows, 1, 1},
                     (fx_cuda_dim){HEAD_THREADS, 1, 1},
                     FX_CUDA_ARGS(&scores, &grad, &numbers, &targets, &factor, &nll, &rows, &cols, &counted,
                                  &first, &ranks, &vectors));
}

fx_status fx_vocab_loss_cuda(const fx_kernel_args *args) {
  void *nll = args->in[0]->data, *factor = args->in[1]->data, *loss = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type);
  return fx_cuda_run(args, FX_CUDA_SUM_NLL, FX_F32, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1024, 1, 1},
                     FX_CUDA_ARGS(&nll, &factor, &loss, &rows));
}

/* ---- dropout ---- */

enum { ROUNDS = 10, AHEAD = 4, MAX_GRID_Y = 65535 }; /* the first two of dropout.cu */

typedef struct dropout_params { /* of dropout.cu */
  uint32_t key[2 * ROUNDS];
  fx_dropout_rule rule;
  int64_t rows, cols, length, first;
} dropout_params;

/* The keys of fx_philox_at's rounds. */
static void set_keys(dropout_params *d, uint64_t seed, uint64_t site) {
  uint64_t key = seed * 0x9E3779B97F4A7C15ull ^ site;
  uint32_t word[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
  for (int r = 0; r < ROUNDS; r++) {
    d->key[2 * r] = word[0] + (uint32_t)r * 0x9E3779B9u;
    d->key[2 * r + 1] = word[1] + (uint32_t)r * 0xBB67AE85u;
  }
}

fx_status fx_dropout_cuda(const fx_kernel_args *args) {
  enum { COLUMNS = 32, RESIDENT = 6 }; /* of a thread and blocks a multiprocessor, for any rows */
  const fx_dropout_attr *attr = args->attr;
  void *x = args->in[0]->data, *ordinal = args->in[1]->data, *iteration = args->in[2]->data;
  void *blocks = args->in[3] ? args->in[3]->data : NULL, *y = args->out[0]->data;
  fx_dtype dtype = args->in[0]->type.dtype;
  dropout_params d = {.rule = fx_dropout_rule_of(attr->p),
                      .rows = fx_type_rows(&args->in[0]->type),
                      .cols = fx_type_cols(&args->in[0]->type),
                      .length = attr->length ? attr->length : args->in[0]->type.dim[1],
                      .first = attr->first_row};
  set_keys(&d, attr->seed, attr->site + 0x9E3779B97F4A7C15ull * (uint64_t)args->layer);
  if (d.rows == 0) return FX_OK;
  int64_t samples = (d.first + d.rows - 1) / d.length - d.first / d.length + 1;
  int64_t vectors = fx_min_i64(d.length, d.rows) * d.cols * (int64_t)fx_dtype_bytes(dtype) / 16;
  void **params = FX_CUDA_ARGS(&x, &ordinal, &iteration, &blocks, &y, &d);
  if (d.cols % 8 == 0 && fx_cuda_rows_fit_vectors(dtype, d.cols, (const void *[]){x, y}, 2) &&
      samples <= MAX_GRID_Y && vectors <= INT32_MAX) {
    fx_cuda_dim grid = {(unsigned)fx_ceil_div(vectors, FX_CUDA_BLOCK * AHEAD), (unsigned)samples, 1};
    return fx_cuda_run(args, FX_CUDA_DROPOUT, dtype, grid, (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1}, params);
  }
  return fx_cuda_run_rows(args, FX_CUDA_DROPOUT_ROWS, dtype, d.rows, d.cols, COLUMNS, RESIDENT, params);
}
