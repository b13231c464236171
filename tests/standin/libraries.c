/* SPDX-License-Identifier: Apache-2.0 */
/* NVRTC, cuBLASLt and NCCL of the stand-in. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/standin/standin.h"

/* ---- NVRTC: the image is the text ---- */

STANDIN_EXPORT int nvrtcVersion(int *major, int *minor) {
  *major = 99, *minor = 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers,
                                      const char *const *header_sources, const char *const *header_names) {
  (void)name, (void)headers, (void)header_sources, (void)header_names;
  *program = strdup(source);
  return *program ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int nvrtcDestroyProgram(void **program) {
  free(*program);
  *program = NULL;
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options) {
  for (int i = 0; i < count; i++)
    if (!options[i] || !options[i][0]) return standin_fault(STANDIN_INVALID, "an empty option of NVRTC");
  return strlen(program) > 0 ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
  (void)program;
  *bytes = 1;
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcGetProgramLog(void *program, char *text) {
  (void)program;
  *text = 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcGetCUBINSize(void *program, size_t *bytes) {
  *bytes = strlen(program) + 1;
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcGetCUBIN(void *program, char *image) {
  memcpy(image, program, strlen(program) + 1);
  return STANDIN_OK;
}
STANDIN_EXPORT int nvrtcGetPTXSize(void *program, size_t *bytes) {
  return nvrtcGetCUBINSize(program, bytes);
}
STANDIN_EXPORT int nvrtcGetPTX(void *program, char *text) {
  return nvrtcGetCUBIN(program, text);
}

/* ---- cuBLASLt ---- */

typedef struct layout {
  size_t bytes; /* from the first element to the last */
} layout;

typedef struct lt_heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} lt_heuristic;

static int make(void **out, size_t bytes) {
  *out = calloc(1, bytes);
  return *out ? STANDIN_OK : STANDIN_MEMORY;
}
static int unmake(void *handle) {
  free(handle);
  return STANDIN_OK;
}

STANDIN_EXPORT size_t cublasLtGetVersion(void) {
  return 990000;
}
STANDIN_EXPORT int cublasLtCreate(void **handle) {
  return make(handle, 1);
}
STANDIN_EXPORT int cublasLtDestroy(void *handle) {
  return unmake(handle);
}
STANDIN_EXPORT int cublasLtMatmulDescCreate(void **desc, int compute, int scale) {
  (void)compute, (void)scale;
  return make(desc, 1);
}
STANDIN_EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value,
                                                  size_t bytes) {
  (void)attribute;
  return desc && value && bytes ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cublasLtMatmulDescDestroy(void *desc) {
  return unmake(desc);
}
STANDIN_EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols,
                                              int64_t ld) {
  enum { FLOAT = 0, BFLOAT16 = 14 };
  if ((type != FLOAT && type != BFLOAT16) || rows == 0 || cols == 0 || (uint64_t)ld < rows)
    return standin_fault(STANDIN_INVALID, "a matrix of %llu x %llu, %lld apart, of type %d",
                         (unsigned long long)rows, (unsigned long long)cols, (long long)ld, type);
  int result = make(out, sizeof(layout));
  if (!result) ((layout *)*out)->bytes = ((cols - 1) * (uint64_t)ld + rows) * (type == FLOAT ? 4 : 2);
  return result;
}
STANDIN_EXPORT int cublasLtMatrixLayoutDestroy(void *handle) {
  return unmake(handle);
}
STANDIN_EXPORT int cublasLtMatmulPreferenceCreate(void **preference) {
  return make(preference, 1);
}
STANDIN_EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                                        size_t bytes) {
  (void)attribute;
  return preference && value && bytes ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) {
  return unmake(preference);
}
STANDIN_EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c,
                                                  void *d, void *preference, int wanted,
                                                  lt_heuristic *results, int *found) {
  (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = wanted < 2 ? wanted : 2;
  for (int i = 0; i < *found; i++) results[i] = (lt_heuristic){.algorithm = {(uint64_t)i + 1}};
  return STANDIN_OK;
}
STANDIN_EXPORT int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *layout_a,
                                  const void *b, void *layout_b, const void *beta, const void *c,
                                  void *layout_c, void *d, void *layout_d, const void *algorithm,
                                  void *workspace, size_t workspace_bytes, void *stream) {
  enum { COUNTERS = 256 };
  if (!handle || !desc || !alpha || !beta || !algorithm) return STANDIN_INVALID;
  int result = standin_check("a product", a, ((const layout *)layout_a)->bytes);
  if (!result) result = standin_check("a product", b, ((const layout *)layout_b)->bytes);
  if (!result) result = standin_check("a product", c, ((const layout *)layout_c)->bytes);
  if (!result) result = standin_check("a product", d, ((const layout *)layout_d)->bytes);
  if (!result) result = standin_check("a workspace", workspace, workspace_bytes);
  /* as the library does before many products */
  if (!result && workspace_bytes >= COUNTERS) result = standin_fill(workspace, 0, COUNTERS, stream);
  return result ? result : standin_kernel(stream);
}

/* ---- NCCL: nothing comes from other ranks ---- */

typedef struct comm {
  int size, rank;
} comm;

typedef struct nccl_id {
  char bytes[128];
} nccl_id;

STANDIN_EXPORT int ncclGetVersion(int *version) {
  *version = 990000;
  return STANDIN_OK;
}
STANDIN_EXPORT const char *ncclGetErrorString(int result) {
  return result ? "the stand-in has refused it" : "no error";
}
STANDIN_EXPORT const char *ncclGetLastError(void *handle) {
  (void)handle;
  return "";
}
STANDIN_EXPORT int ncclGetUniqueId(nccl_id *id) {
  memset(id, 0x5E, sizeof *id);
  return STANDIN_OK;
}
STANDIN_EXPORT int ncclCommInitRank(void **out, int size, nccl_id id, int rank) {
  bool fits = size > 0 && rank >= 0 && rank < size && id.bytes[0] == 0x5E && id.bytes[127] == 0x5E;
  if (!fits) return standin_fault(STANDIN_INVALID, "rank %d of %d with an id of its own", rank, size);
  int result = make(out, sizeof(comm));
  if (!result) *(comm *)*out = (comm){size, rank};
  return result;
}
STANDIN_EXPORT int ncclCommDestroy(void *handle) {
  return unmake(handle);
}
STANDIN_EXPORT int ncclCommAbort(void *handle) {
  standin_abort();
  return unmake(handle);
}
STANDIN_EXPORT int ncclCommGetAsyncError(void *handle, int *result) {
  (void)handle;
  *result = 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int ncclGroupStart(void) {
  return STANDIN_OK;
}
STANDIN_EXPORT int ncclGroupEnd(void) {
  return STANDIN_OK;
}

static size_t bytes_of(size_t count, int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return count * sizes[type];
}

/* own: of this rank's part, at byte `to` of dst and `from` of src */
static int collective(const void *src, size_t src_bytes, size_t from, void *dst, size_t dst_bytes, size_t to,
                      size_t own, void *stream) {
  int result = src ? standin_check("a collective", src, src_bytes) : STANDIN_OK;
  if (!result && dst) result = standin_check("a collective", dst, dst_bytes);
  if (!result) result = standin_collective(stream);
  if (result || !src || !dst || (const char *)src + from == (char *)dst + to) return result;
  return standin_copy((char *)dst + to, (const char *)src + from, own, stream);
}

STANDIN_EXPORT int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, void *handle,
                                 void *stream) {
  size_t bytes = bytes_of(count, type);
  (void)op, (void)handle;
  return collective(src, bytes, 0, dst, bytes, 0, bytes, stream);
}
STANDIN_EXPORT int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op, void *handle,
                                     void *stream) {
  const comm *c = handle;
  size_t bytes = bytes_of(count, type);
  (void)op;
  return collective(src, bytes * (size_t)c->size, bytes * (size_t)c->rank, dst, bytes, 0, bytes, stream);
}
STANDIN_EXPORT int ncclAllGather(const void *src, void *dst, size_t count, int type, void *handle,
                                 void *stream) {
  const comm *c = handle;
  size_t bytes = bytes_of(count, type);
  return collective(src, bytes, 0, dst, bytes * (size_t)c->size, bytes * (size_t)c->rank, bytes, stream);
}
STANDIN_EXPORT int ncclBroadcast(const void *src, void *dst, size_t count, int type, int root, void *handle,
                                 void *stream) {
  (void)root, (void)handle;
  return collective(src, bytes_of(count, type), 0, dst, bytes_of(count, type), 0, bytes_of(count, type),
                    stream);
}
STANDIN_EXPORT int ncclSend(const void *src, size_t count, int type, int peer, void *handle, void *stream) {
  const comm *c = handle;
  bool fits = peer >= 0 && peer < c->size && peer != c->rank;
  if (!fits) return standin_fault(STANDIN_INVALID, "a message to rank %d of %d", peer, c->size);
  return collective(src, bytes_of(count, type), 0, NULL, 0, 0, 0, stream);
}
STANDIN_EXPORT int ncclRecv(void *dst, size_t count, int type, int peer, void *handle, void *stream) {
  const comm *c = handle;
  bool fits = peer >= 0 && peer < c->size && peer != c->rank;
  if (!fits) return standin_fault(STANDIN_INVALID, "a message from rank %d of %d", peer, c->size);
  return collective(NULL, 0, 0, dst, bytes_of(count, type), 0, 0, stream);
}
