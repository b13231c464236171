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
  TYPE_F32 = 0,         /* CUDA_R_32F */
  COMPUTE_F32 = 68,     /* CUBLAS_COMPUTE_32F: no down-conversion */
  DESC_TRANSPOSE_A = 3, /* CUBLASLT_MATMUL_DESC_TRANSA */
  DESC_TRANSPOSE_B = 4,
  PREFER_WORKSPACE = 1, /* CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES */
  PREFER_REDUCTION = 3, /* CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK */
  PREFER_ALIGNMENT = 5, /* _MIN_ALIGNMENT_A_BYTES; B, C and D follow */
  REDUCTION_ORDERED = 6 /* _COMPUTE_TYPE | _OUTPUT_TYPE: not _INPLACE, whose order depends on timing */
};
enum { SLOTS = 1024, PROBES = 16, WORKSPACE = 64 << 20 };

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
  int32_t transpose_a, transpose_b, beta, alignment;
} shape;

typedef struct product {
  shape key;
  void *desc, *a, *b, *c; /* desc NULL: an empty slot */
  uint64_t algorithm[8];
} product;

struct fx_cuda_gemm {
  const fx_cuda_driver *driver;
  lt_table lt;
  void *handle;
  uint64_t workspace;
  char name[48];
  product slot[SLOTS];
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

static void release_product(const fx_cuda_gemm *gemm, product *p) {
  if (p->desc) gemm->lt.desc_destroy(p->desc);
  if (p->a) gemm->lt.layout_destroy(p->a);
  if (p->b) gemm->lt.layout_destroy(p->b);
  if (p->c) gemm->lt.layout_destroy(p->c);
  memset(p, 0, sizeof *p);
}

void fx_cuda_gemm_close(fx_cuda_gemm *gemm) {
  if (!gemm) return;
  for (int i = 0; i < SLOTS; i++)
    if (gemm->slot[i].desc) release_product(gemm, &gemm->slot[i]);
  if (gemm->workspace) gemm->driver->memory_free(gemm->workspace);
  if (gemm->handle) gemm->lt.destroy(gemm->handle);
  free(gemm);
}

const char *fx_cuda_gemm_name(const fx_cuda_gemm *gemm) {
  return gemm->name;
}

static fx_status choose(const fx_cuda_gemm *gemm, product *p) {
  const lt_table *lt = &gemm->lt;
  lt_heuristic best;
  void *preference = NULL;
  uint64_t workspace = WORKSPACE;
  uint32_t reduction = REDUCTION_ORDERED, alignment = (uint32_t)p->key.alignment;
  int found = 0;
  fx_status status = FX_OK;
  FX_TRY(check(lt->prefer_create(&preference), "a preference"));
  FX_TRY_GOTO(check(lt->prefer_set(preference, PREFER_WORKSPACE, &workspace, sizeof workspace), "workspace"),
              destroy_preference);
  FX_TRY_GOTO(check(lt->prefer_set(preference, PREFER_REDUCTION, &reduction, sizeof reduction), "reduction"),
              destroy_preference);
  for (int i = 0; i < 4; i++)
    FX_TRY_GOTO(
        check(lt->prefer_set(preference, PREFER_ALIGNMENT + i, &alignment, sizeof alignment), "alignment"),
        destroy_preference);
  memset(&best, 0, sizeof best);
  int result = lt->heuristic(gemm->handle, p->desc, p->b, p->a, p->c, p->c, preference, 1, &best, &found);
  if (result != 0 || found < 1)
    status =
        fx_error(FX_ERR_DEVICE, "cuBLASLt has no algorithm for a product of %lld x %lld x %lld (status %d)",
                 (long long)p->key.m, (long long)p->key.n, (long long)p->key.k, result);
  else
    memcpy(p->algorithm, best.algorithm, sizeof p->algorithm);
destroy_preference:
  lt->prefer_destroy(preference);
  return status;
}

/* The first operand of cuBLASLt is our B, the second our A. */
static fx_status prepare(const fx_cuda_gemm *gemm, const shape *key, product *p) {
  const lt_table *lt = &gemm->lt;
  int32_t first = key->transpose_b, second = key->transpose_a;
  uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
  fx_status status = FX_OK;
  memset(p, 0, sizeof *p);
  p->key = *key;
  FX_TRY_GOTO(check(lt->desc_create(&p->desc, COMPUTE_F32, TYPE_F32), "a descriptor"), release);
  FX_TRY_GOTO(check(lt->desc_set(p->desc, DESC_TRANSPOSE_A, &first, sizeof first), "transposition"), release);
  FX_TRY_GOTO(check(lt->desc_set(p->desc, DESC_TRANSPOSE_B, &second, sizeof second), "transposition"),
              release);
  FX_TRY_GOTO(check(lt->layout_create(&p->b, TYPE_F32, first ? k : n, first ? n : k, key->ldb), "a layout"),
              release);
  FX_TRY_GOTO(check(lt->layout_create(&p->a, TYPE_F32, second ? m : k, second ? k : m, key->lda), "a layout"),
              release);
  FX_TRY_GOTO(check(lt->layout_create(&p->c, TYPE_F32, n, m, key->ldc), "a layout"), release);
  FX_TRY_GOTO(choose(gemm, p), release);
  return FX_OK;
release:
  release_product(gemm, p);
  return status;
}

static fx_status find(fx_cuda_gemm *gemm, const shape *key, product **out) {
  uint64_t hash = fx_hash64(key, sizeof *key, 0);
  product *place = &gemm->slot[hash % SLOTS]; /* evicted when all probes are taken */
  for (uint64_t i = 0; i < PROBES; i++) {
    product *p = &gemm->slot[(hash + i) % SLOTS];
    if (p->desc && memcmp(&p->key, key, sizeof *key) == 0) {
      *out = p;
      return FX_OK;
    }
    if (p->desc) continue;
    place = p;
    break;
  }
  release_product(gemm, place);
  FX_TRY(prepare(gemm, key, place));
  *out = place;
  return FX_OK;
}

/* The largest power of two, up to 256, that all three addresses are multiples of. */
static int32_t alignment_of(const void *a, const void *b, const void *c) {
  uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | 256;
  return (int32_t)(bits & (~bits + 1));
}

fx_status fx_cuda_gemm_f32(fx_cuda_gemm *gemm, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                           float *c, int64_t ldc, void *stream) {
  static const float one = 1.0f;
  product *p = NULL;
  shape key = {.m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc};
  if (m == 0 || n == 0) return FX_OK;
  key.transpose_a = transpose_a;
  key.transpose_b = transpose_b;
  key.beta = beta != 0.0f;
  key.alignment = alignment_of(a, b, c);
  FX_TRY(find(gemm, &key, &p));
  return check(gemm->lt.multiply(gemm->handle, p->desc, &one, b, p->b, a, p->a, &beta, c, p->c, c, p->c,
                                 p->algorithm, (void *)(uintptr_t)gemm->workspace, WORKSPACE, stream),
               "cublasLtMatmul");
}
