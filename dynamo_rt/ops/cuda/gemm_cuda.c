/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt is column-major: a row-major C = op(A) op(B) is the column-major C^T = op(B)^T op(A)^T over the
 * same bytes, so A and B change places and nothing is transposed. */
#include "dynamo_rt/ops/cuda/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/device/cuda/library.h"

/* Of cublasLt.h; the library keeps these values from major version to major version. */
enum {
  TYPE_F32 = 0, /* CUDA_R_32F */
  TYPE_BF16 = 14,
  COMPUTE_F32 = 68,     /* CUBLAS_COMPUTE_32F: no down-conversion */
  DESC_TRANSPOSE_A = 3, /* CUBLASLT_MATMUL_DESC_TRANSA */
  DESC_TRANSPOSE_B = 4,
  DESC_EPILOGUE = 7,
  DESC_BIAS = 8,
  DESC_AUX = 11,
  DESC_AUX_LD = 12,
  PREFER_WORKSPACE = 1, /* CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES */
  PREFER_REDUCTION = 3, /* CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK */
  PREFER_ALIGNMENT = 5, /* _MIN_ALIGNMENT_A_BYTES; B, C and D follow */
  /* Not _INPLACE (1), whose order depends on timing. */
  REDUCTION_COMPUTE_TYPE = 2,
  REDUCTION_OUTPUT_TYPE = 4,
  EPILOGUE_DEFAULT = 1, /* CUBLASLT_EPILOGUE_DEFAULT; the rest are bits */
  EPILOGUE_BIAS = 4,
  EPILOGUE_GELU = 32,
  EPILOGUE_GELU_GRAD = 64,
  EPILOGUE_AUX = 128
};
enum { SLOTS = 1024, PROBES = 16, WORKSPACE = 64 << 20 };
enum { CANDIDATES = 8, TIMED_ROUNDS = 5, TIMED_RUNS = 4 };

typedef struct lt_heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} lt_heuristic;

/* X(field, exported name, parameters); results are int, 0: success */
#define LT_LIST(X)                                                                               \
  X(create, "cublasLtCreate", (void **handle))                                                   \
  X(destroy, "cublasLtDestroy", (void *handle))                                                  \
  X(desc_create, "cublasLtMatmulDescCreate", (void **desc, int compute, int scale))              \
  X(desc_set, "cublasLtMatmulDescSetAttribute",                                                  \
    (void *desc, int attribute, const void *value, size_t bytes))                                \
  X(desc_destroy, "cublasLtMatmulDescDestroy", (void *desc))                                     \
  X(layout_create, "cublasLtMatrixLayoutCreate",                                                 \
    (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                         \
  X(layout_destroy, "cublasLtMatrixLayoutDestroy", (void *layout))                               \
  X(prefer_create, "cublasLtMatmulPreferenceCreate", (void **preference))                        \
  X(prefer_set, "cublasLtMatmulPreferenceSetAttribute",                                          \
    (void *preference, int attribute, const void *value, size_t bytes))                          \
  X(prefer_destroy, "cublasLtMatmulPreferenceDestroy", (void *preference))                       \
  X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                                 \
    (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted, \
     lt_heuristic *results, int *found))                                                         \
  X(multiply, "cublasLtMatmul",                                                                  \
    (void *handle, void *desc, const void *alpha, const void *a, void *layout_a, const void *b,  \
     void *layout_b, const void *beta, const void *c, void *layout_c, void *d, void *layout_d,   \
     const void *algorithm, void *workspace, size_t workspace_bytes, void *stream))

typedef struct lt_table {
#define LT_FIELD(field, name, parameters) int(*field) parameters;
  LT_LIST(LT_FIELD)
#undef LT_FIELD
  size_t (*version)(void);
} lt_table;

/* No padding: compared and hashed as bytes. */
typedef struct shape {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t transpose_a, transpose_b, beta, in, out, epilogue, alignment, alignment_bias;
} shape;

typedef struct entry {
  shape key;
  void *desc, *a, *b, *c; /* desc NULL: an empty slot */
  uint64_t algorithm[8];
  bool timed;
} entry;

struct fx_cuda_gemm {
  const fx_cuda_driver *driver;
  lt_table lt;
  void *handle;
  uint64_t workspace;
  char name[48];
  bool autotune;
  entry slot[SLOTS];
};

static fx_status check(int result, const char *what) {
  return result == 0 ? FX_OK : fx_error(FX_ERR_DEVICE, "cuBLASLt: %s failed with status %d", what, result);
}

fx_status fx_cuda_gemm_open(const fx_cuda_driver *driver, fx_cuda_gemm **out) {
  static const int majors[] = {13, 12, 0};
  static const fx_cuda_symbol symbols[] = {
#define LT_SYMBOL(field, name, parameters) {name, offsetof(lt_table, field)},
      LT_LIST(LT_SYMBOL)
#undef LT_SYMBOL
          {"cublasLtGetVersion", offsetof(lt_table, version)},
  };
  void *library = NULL;
  fx_cuda_gemm *gemm = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_cuda_library_open("cublasLt", majors, &library));
  FX_TRY(fx_calloc(&gemm, 1, sizeof *gemm));
  gemm->driver = driver;
  FX_TRY_GOTO(fx_cuda_library_bind(library, "cublasLt", symbols, (int)(sizeof symbols / sizeof symbols[0]),
                                   &gemm->lt),
              close_gemm);
  size_t version = gemm->lt.version();
  snprintf(gemm->name, sizeof gemm->name, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100,
           version % 100);
  FX_TRY_GOTO(check(gemm->lt.create(&gemm->handle), "cublasLtCreate"), close_gemm);
  FX_TRY_GOTO(
      fx_cuda_check(driver, driver->memory_alloc(&gemm->workspace, WORKSPACE), "the workspace of cuBLASLt"),
      close_gemm);
  *out = gemm;
  return FX_OK;
close_gemm:
  fx_cuda_gemm_close(gemm);
  return status;
}

static void release_entry(const fx_cuda_gemm *gemm, entry *p) {
  if (p->desc) gemm->lt.desc_destroy(p->desc);
  if (p->a) gemm->lt.layout_destroy(p->a);
  if (p->b) gemm->lt.layout_destroy(p->b);
  if (p->c) gemm->lt.layout_destroy(p->c);
  memset(p, 0, sizeof *p);
}

void fx_cuda_gemm_close(fx_cuda_gemm *gemm) {
  if (!gemm) return;
  for (int i = 0; i < SLOTS; i++)
    if (gemm->slot[i].desc) release_entry(gemm, &gemm->slot[i]);
  if (gemm->workspace) gemm->driver->memory_free(gemm->workspace);
  if (gemm->handle) gemm->lt.destroy(gemm->handle);
  free(gemm);
}

const char *fx_cuda_gemm_name(const fx_cuda_gemm *gemm) {
  return gemm->name;
}

void fx_cuda_gemm_autotune(fx_cuda_gemm *gemm, bool on) {
  gemm->autotune = on;
}

static fx_status set_preference(const fx_cuda_gemm *gemm, const shape *key, void *preference) {
  const lt_table *lt = &gemm->lt;
  uint64_t workspace = WORKSPACE;
  /* Partial sums kept in bfloat16 would be rounded once more each. */
  uint32_t reduction = REDUCTION_COMPUTE_TYPE | (key->out == FX_F32 ? REDUCTION_OUTPUT_TYPE : 0);
  uint32_t alignment = (uint32_t)key->alignment;
  FX_TRY(check(lt->prefer_set(preference, PREFER_WORKSPACE, &workspace, sizeof workspace), "workspace"));
  FX_TRY(check(lt->prefer_set(preference, PREFER_REDUCTION, &reduction, sizeof reduction), "reduction"));
  for (int i = 0; i < 4; i++)
    FX_TRY(
        check(lt->prefer_set(preference, PREFER_ALIGNMENT + i, &alignment, sizeof alignment), "alignment"));
  return FX_OK;
}

/* The best `wanted` algorithms by the library's own estimate, best first; at least one. */
static fx_status ask(const fx_cuda_gemm *gemm, const entry *p, int wanted, lt_heuristic *best, int *found) {
  const lt_table *lt = &gemm->lt;
  const shape *key = &p->key;
  void *preference = NULL;
  fx_status status = FX_OK;
  FX_TRY(check(lt->prefer_create(&preference), "a preference"));
  FX_TRY_GOTO(set_preference(gemm, key, preference), destroy_preference);
  memset(best, 0, (size_t)wanted * sizeof *best);
  *found = 0;
  int result = lt->heuristic(gemm->handle, p->desc, p->b, p->a, p->c, p->c, preference, wanted, best, found);
  if (result != 0 || *found < 1)
    status =
        fx_error(FX_ERR_UNSUPPORTED,
                 "cuBLASLt has no algorithm for a product of %lld x %lld x %lld, %s to %s, with epilogue "
                 "%d (status %d)",
                 (long long)key->m, (long long)key->n, (long long)key->k, fx_dtype_name((fx_dtype)key->in),
                 fx_dtype_name((fx_dtype)key->out), key->epilogue, result);
destroy_preference:
  lt->prefer_destroy(preference);
  return status;
}

/* The addresses that a descriptor holds; an algorithm is chosen for their alignment. */
static fx_status set_addresses(const fx_cuda_gemm *gemm, const entry *p, const fx_cuda_product *product) {
  if (p->key.epilogue & EPILOGUE_BIAS)
    FX_TRY(check(gemm->lt.desc_set(p->desc, DESC_BIAS, &product->bias, sizeof product->bias), "a bias"));
  if (p->key.epilogue & EPILOGUE_AUX)
    FX_TRY(check(gemm->lt.desc_set(p->desc, DESC_AUX, &product->aux, sizeof product->aux), "an aux"));
  return FX_OK;
}

static int lt_type(int32_t dtype) {
  return dtype == FX_BF16 ? TYPE_BF16 : TYPE_F32;
}

static fx_status describe(const fx_cuda_gemm *gemm, entry *p) {
  const lt_table *lt = &gemm->lt;
  const shape *key = &p->key;
  int32_t first = key->transpose_b, second = key->transpose_a; /* the library's first operand is our B */
  uint32_t epilogue = (uint32_t)key->epilogue;
  uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
  int in = lt_type(key->in);
  FX_TRY(check(lt->desc_create(&p->desc, COMPUTE_F32, TYPE_F32), "a descriptor"));
  FX_TRY(check(lt->desc_set(p->desc, DESC_TRANSPOSE_A, &first, sizeof first), "transposition"));
  FX_TRY(check(lt->desc_set(p->desc, DESC_TRANSPOSE_B, &second, sizeof second), "transposition"));
  FX_TRY(check(lt->desc_set(p->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue), "an epilogue"));
  if (epilogue & EPILOGUE_AUX)
    FX_TRY(check(lt->desc_set(p->desc, DESC_AUX_LD, &key->ldc, sizeof key->ldc), "an aux"));
  FX_TRY(check(lt->layout_create(&p->b, in, first ? k : n, first ? n : k, key->ldb), "a layout"));
  FX_TRY(check(lt->layout_create(&p->a, in, second ? m : k, second ? k : m, key->lda), "a layout"));
  return check(lt->layout_create(&p->c, lt_type(key->out), n, m, key->ldc), "a layout");
}

static fx_status prepare(const fx_cuda_gemm *gemm, const shape *key, const fx_cuda_product *product,
                         entry *p) {
  lt_heuristic best;
  int found = 0;
  fx_status status = FX_OK;
  memset(p, 0, sizeof *p);
  p->key = *key;
  FX_TRY_GOTO(describe(gemm, p), release);
  FX_TRY_GOTO(set_addresses(gemm, p, product), release);
  FX_TRY_GOTO(ask(gemm, p, 1, &best, &found), release);
  memcpy(p->algorithm, best.algorithm, sizeof p->algorithm);
  return FX_OK;
release:
  release_entry(gemm, p);
  return status;
}

static fx_status find(fx_cuda_gemm *gemm, const shape *key, const fx_cuda_product *product, entry **out) {
  uint64_t hash = fx_hash64(key, sizeof *key, 0);
  entry *place = &gemm->slot[hash % SLOTS]; /* evicted when all probes are taken */
  for (uint64_t i = 0; i < PROBES; i++) {
    entry *p = &gemm->slot[(hash + i) % SLOTS];
    if (p->desc && memcmp(&p->key, key, sizeof *key) == 0) {
      *out = p;
      return FX_OK;
    }
    if (p->desc) continue;
    place = p;
    break;
  }
  release_entry(gemm, place);
  FX_TRY(prepare(gemm, key, product, place));
  *out = place;
  return FX_OK;
}

static int multiply(const fx_cuda_gemm *gemm, const entry *p, const fx_cuda_product *product,
                    const uint64_t *algorithm, void *stream) {
  static const float one = 1.0f;
  return gemm->lt.multiply(gemm->handle, p->desc, &one, product->b, p->b, product->a, p->a, &product->beta,
                           product->c, p->c, product->c, p->c, algorithm, (void *)(uintptr_t)gemm->workspace,
                           WORKSPACE, stream);
}

/* ---- timing ---- */

/* ms: of one run, or untouched when the algorithm cannot run after all. */
static fx_status time_algorithm(const fx_cuda_gemm *gemm, const entry *p, const fx_cuda_product *product,
                                const uint64_t *algorithm, void *const event[2], float *ms, void *stream) {
  const fx_cuda_driver *driver = gemm->driver;
  float took = 0;
  FX_TRY(fx_cuda_check(driver, driver->event_record(event[0], stream), "timing a product"));
  for (int i = 0; i < TIMED_RUNS; i++)
    if (multiply(gemm, p, product, algorithm, stream) != 0) return FX_OK;
  FX_TRY(fx_cuda_check(driver, driver->event_record(event[1], stream), "timing a product"));
  FX_TRY(fx_cuda_check(driver, driver->event_sync(event[1]), "timing a product"));
  FX_TRY(fx_cuda_check(driver, driver->event_elapsed(&took, event[0], event[1]), "timing a product"));
  *ms = took / TIMED_RUNS;
  return FX_OK;
}

/* Rounds over all candidates, so that a clock that falls meanwhile falls for each. The first round warms up.
 */
static fx_status time_candidates(const fx_cuda_gemm *gemm, entry *p, const fx_cuda_product *product,
                                 const lt_heuristic *candidate, int count, void *const event[2],
                                 void *stream) {
  const float WORTH_A_CHANGE = 0.98f, UNTIMED = 1e9f;
  float best[CANDIDATES];
  int fastest = 0;
  for (int i = 0; i < count; i++) best[i] = UNTIMED;
  for (int round = 0; round < TIMED_ROUNDS; round++)
    for (int i = 0; i < count; i++) {
      float ms = UNTIMED;
      FX_TRY(time_algorithm(gemm, p, product, candidate[i].algorithm, event, &ms, stream));
      if (round > 0 && ms < best[i]) best[i] = ms;
    }
  for (int i = 1; i < count; i++)
    if (best[i] < best[fastest] && best[i] < best[0] * WORTH_A_CHANGE) fastest = i;
  memcpy(p->algorithm, candidate[fastest].algorithm, sizeof p->algorithm);
  return FX_OK;
}

/* `dry` is the product with its outputs in one block of scratch, of which the size is returned. */
static size_t move_outputs(fx_cuda_product *dry, uint64_t scratch) {
  size_t bytes = fx_align_up((size_t)(dry->m * dry->ldc) * fx_dtype_bytes(dry->out), 256);
  dry->c = (void *)(uintptr_t)scratch;
  if (dry->epilogue != FX_CUDA_EPILOGUE_GELU || !dry->aux) return bytes;
  dry->aux = (void *)(uintptr_t)(scratch + bytes);
  return 2 * bytes;
}

static fx_status tune(const fx_cuda_gemm *gemm, entry *p, const fx_cuda_product *product, void *stream) {
  const fx_cuda_driver *driver = gemm->driver;
  lt_heuristic candidate[CANDIDATES];
  fx_cuda_product dry = *product;
  void *event[2] = {NULL, NULL};
  uint64_t scratch = 0;
  int found = 0, capturing = 0;
  fx_status status = FX_OK;
  FX_TRY(fx_cuda_check(driver, driver->stream_capturing(stream, &capturing), "a stream"));
  if (capturing) return FX_OK;
  p->timed = true;
  FX_TRY(ask(gemm, p, CANDIDATES, candidate, &found));
  if (found < 2 || driver->memory_alloc(&scratch, move_outputs(&dry, 0)) != 0) return FX_OK;
  move_outputs(&dry, scratch);
  for (int i = 0; i < 2; i++)
    FX_TRY_GOTO(fx_cuda_check(driver, driver->event_create(&event[i], 0), "an event"), free_scratch);
  FX_TRY_GOTO(set_addresses(gemm, p, &dry), free_scratch);
  status = time_candidates(gemm, p, &dry, candidate, found, event, stream);
free_scratch:
  for (int i = 0; i < 2; i++)
    if (event[i]) driver->event_destroy(event[i]);
  driver->memory_free(scratch);
  return status;
}

/* ---- running ---- */

/* The largest power of two, up to 256, that all addresses are multiples of. */
static int32_t alignment_of(const void *a, const void *b, const void *c, const void *d) {
  uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 256;
  return (int32_t)(bits & (~bits + 1));
}

static int32_t epilogue_of(const fx_cuda_product *p) {
  int32_t bias = p->bias ? EPILOGUE_BIAS : 0, aux = p->aux ? EPILOGUE_AUX : 0;
  switch (p->epilogue) {
  case FX_CUDA_EPILOGUE_NONE:
    return EPILOGUE_DEFAULT;
  case FX_CUDA_EPILOGUE_BIAS:
    return EPILOGUE_BIAS;
  case FX_CUDA_EPILOGUE_GELU:
    return EPILOGUE_GELU | bias | aux;
  case FX_CUDA_EPILOGUE_GELU_GRAD:
    return EPILOGUE_GELU_GRAD | EPILOGUE_AUX;
  }
  return EPILOGUE_DEFAULT;
}

static fx_status check_product(const fx_cuda_product *p) {
  bool types = (p->in == FX_F32 && p->out == FX_F32) || (p->in == FX_BF16 && p->out == FX_BF16) ||
               (p->in == FX_BF16 && p->out == FX_F32);
  bool gelu = p->epilogue == FX_CUDA_EPILOGUE_GELU || p->epilogue == FX_CUDA_EPILOGUE_GELU_GRAD;
  if (!types)
    return fx_error(FX_ERR_UNSUPPORTED, "no product of %s gives %s", fx_dtype_name(p->in),
                    fx_dtype_name(p->out));
  if (gelu && (p->beta != 0.0f || p->in != p->out))
    return fx_error(FX_ERR_UNSUPPORTED, "a product with GELU neither adds to its output nor changes type");
  if (gelu && p->aux && p->ldc % 8 != 0)
    return fx_error(FX_ERR_UNSUPPORTED, "a product with GELU keeps rows of a multiple of 8, not %lld",
                    (long long)p->ldc);
  return FX_OK;
}

fx_status fx_cuda_gemm_run(fx_cuda_gemm *gemm, const fx_cuda_product *product, void *stream) {
  entry *p = NULL;
  shape key = {.m = product->m, .n = product->n, .k = product->k};
  if (product->m == 0 || product->n == 0) return FX_OK;
  FX_TRY(check_product(product));
  key.lda = product->lda;
  key.ldb = product->ldb;
  key.ldc = product->ldc;
  key.transpose_a = product->transpose_a;
  key.transpose_b = product->transpose_b;
  key.beta = product->beta != 0.0f;
  key.in = (int32_t)product->in;
  key.out = (int32_t)product->out;
  key.epilogue = epilogue_of(product);
  key.alignment =
      alignment_of(product->a, product->b, product->c, key.epilogue & EPILOGUE_AUX ? product->aux : NULL);
  if (key.epilogue & EPILOGUE_BIAS) key.alignment_bias = alignment_of(product->bias, NULL, NULL, NULL);
  FX_TRY(find(gemm, &key, product, &p));
  if (gemm->autotune && !p->timed) FX_TRY(tune(gemm, p, product, stream));
  FX_TRY(set_addresses(gemm, p, product));
  return check(multiply(gemm, p, product, p->algorithm, stream), "cublasLtMatmul");
}
