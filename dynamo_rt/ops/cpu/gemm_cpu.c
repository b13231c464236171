/* SPDX-License-Identifier: Apache-2.0 */
/* dnnl_sgemm is row-major and has kept its signature through oneDNN 2.x and 3.x; cblas_sgemm takes a layout.
 * The prototypes are declared here because the libraries are opened, not linked. */
#include "dynamo_rt/ops/cpu/gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

typedef int (*dnnl_sgemm_fn)(char transa, char transb, int64_t m, int64_t n, int64_t k, float alpha,
                             const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                             int64_t ldc);
typedef struct dnnl_version {
  int major, minor, patch; /* the rest of dnnl_version_t is not read */
} dnnl_version;
typedef const dnnl_version *(*dnnl_version_fn)(void);
typedef void (*cblas_sgemm_fn)(int layout, int transa, int transb, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c,
                               int ldc);

struct fx_gemm {
  void *library;
  dnnl_sgemm_fn dnnl;
  cblas_sgemm_fn cblas;
  char name[64];
};

static void *symbol(void *library, const char *name) {
  return library ? dlsym(library, name) : NULL;
}

static bool open_onednn(fx_gemm *gemm, int threads) {
  (void)threads; /* follows the OpenMP team of the caller */
#ifdef FX_DNNL_MAJOR
  char file[32];
  snprintf(file, sizeof file, "libdnnl.so.%d", FX_DNNL_MAJOR);
  gemm->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  dnnl_version_fn version;
  *(void **)&version = symbol(gemm->library, "dnnl_version");
  *(void **)&gemm->dnnl = symbol(gemm->library, "dnnl_sgemm");
  if (version && gemm->dnnl && version()->major == FX_DNNL_MAJOR) {
    const dnnl_version *v = version();
    snprintf(gemm->name, sizeof gemm->name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return true;
  }
  if (gemm->library) dlclose(gemm->library);
  gemm->library = NULL;
  gemm->dnnl = NULL;
#else
  (void)gemm;
#endif
  return false;
}

static bool open_cblas(fx_gemm *gemm, int threads) {
  static const char *const files[] = {"libopenblas.so.0", "libblis.so.4", "libcblas.so.3", "libblas.so.3"};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    gemm->library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    *(void **)&gemm->cblas = symbol(gemm->library, "cblas_sgemm");
    if (gemm->cblas) {
      void (*set_threads)(int);
      *(void **)&set_threads = symbol(gemm->library, "openblas_set_num_threads");
      if (set_threads) set_threads(threads);
      snprintf(gemm->name, sizeof gemm->name, "CBLAS (%s)", files[i]);
      return true;
    }
    if (gemm->library) dlclose(gemm->library);
    gemm->library = NULL;
  }
  return false;
}

static const struct {
  const char *name;
  bool (*open)(fx_gemm *gemm, int threads);
} g_providers[] = {{"onednn", open_onednn}, {"cblas", open_cblas}};

fx_status fx_gemm_open(const char *provider, int threads, fx_gemm **out) {
  fx_gemm *gemm = NULL;
  FX_TRY(fx_calloc(&gemm, 1, sizeof *gemm));
  bool automatic = strcmp(provider, "auto") == 0, known = automatic;
  for (size_t i = 0; i < sizeof g_providers / sizeof g_providers[0]; i++) {
    bool named = strcmp(provider, g_providers[i].name) == 0;
    known |= named;
    if ((automatic || named) && g_providers[i].open(gemm, threads)) {
      *out = gemm;
      return FX_OK;
    }
  }
  free(gemm);
  if (!known)
    return fx_error(FX_ERR_CONFIG, "unknown GEMM provider \"%s\": expected auto, onednn or cblas", provider);
  return fx_error(FX_ERR_DEVICE,
                  "no GEMM library could be opened for provider \"%s\": install oneDNN (libdnnl) or OpenBLAS "
                  "(libopenblas0)",
                  provider);
}

void fx_gemm_close(fx_gemm *gemm) {
  /* The library stays open: its thread pool and code caches may outlive us. */
  free(gemm);
}

const char *fx_gemm_name(const fx_gemm *gemm) {
  return gemm->name;
}

fx_status fx_gemm_f32(const fx_gemm *gemm, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                      int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                      float *c, int64_t ldc) {
  if (gemm->dnnl) {
    int status = gemm->dnnl(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb,
                            beta, c, ldc);
    if (status != 0)
      return fx_error(FX_ERR_DEVICE, "%s failed with status %d on a %lld x %lld x %lld product", gemm->name,
                      status, (long long)m, (long long)n, (long long)k);
    return FX_OK;
  }
  enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };
  gemm->cblas(ROW_MAJOR, transpose_a ? TRANSPOSE : NO_TRANSPOSE, transpose_b ? TRANSPOSE : NO_TRANSPOSE,
              (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
  return FX_OK;
}
