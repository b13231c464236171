/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the CUDA driver that flexion calls, declared here because no CUDA header is needed to
 * build. Handles are void *, device addresses uint64_t, results int (0: success), as in the driver's ABI.
 * Private to folders named cuda/. */
#ifndef FX_DYNAMO_RT_DEVICE_CUDA_DRIVER_API_H
#define FX_DYNAMO_RT_DEVICE_CUDA_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

/* Names memory of this process to the others of its host; passed by value. */
typedef struct fx_cuda_ipc_handle {
  char bytes[64];
} fx_cuda_ipc_handle;

/* What a stream does with a word of memory, in order: CUstreamBatchMemOpParams. */
typedef struct fx_cuda_word {
  uint32_t operation; /* FX_CU_WORD_* */
  uint64_t address, value;
  uint32_t flags;
  uint64_t reserved[2];
} fx_cuda_word;

/* X(field, exported name, parameters) */
#define FX_CUDA_DRIVER_LIST(X)                                                                              \
  X(init, "cuInit", (unsigned flags))                                                                       \
  X(error_name, "cuGetErrorName", (int result, const char **text))                                          \
  X(error_text, "cuGetErrorString", (int result, const char **text))                                        \
  X(driver_version, "cuDriverGetVersion", (int *version))                                                   \
  X(device_count, "cuDeviceGetCount", (int *count))                                                         \
  X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                  \
  X(device_name, "cuDeviceGetName", (char *name, int size, int device))                                     \
  X(device_uuid, "cuDeviceGetUuid", (void *bytes, int device)) /* 16; those of _v2 tell slices apart */     \
  X(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, int device))                                     \
  X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                      \
  X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                               \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                          \
  X(context_set, "cuCtxSetCurrent", (void *context))                                                        \
  X(context_sync, "cuCtxSynchronize", (void))                                                               \
  X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                            \
  X(memory_alloc, "cuMemAlloc_v2", (uint64_t * address, size_t bytes))                                      \
  X(memory_free, "cuMemFree_v2", (uint64_t address))                                                        \
  X(memory_alloc_host, "cuMemHostAlloc", (void **address, size_t bytes, unsigned flags))                    \
  X(memory_free_host, "cuMemFreeHost", (void *address))                                                     \
  X(memory_fill, "cuMemsetD8Async", (uint64_t address, unsigned char byte, size_t count, void *stream))     \
  X(copy, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t bytes, void *stream))                        \
  X(stream_create, "cuStreamCreateWithPriority", (void **stream, unsigned flags, int priority))             \
  X(stream_priorities, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))                          \
  X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                                   \
  X(stream_sync, "cuStreamSynchronize", (void *stream))                                                     \
  X(stream_wait, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))                          \
  X(stream_capturing, "cuStreamIsCapturing", (void *stream, int *status))                                   \
  X(event_create, "cuEventCreate", (void **event, unsigned flags))                                          \
  X(event_destroy, "cuEventDestroy_v2", (void *event))                                                      \
  X(event_record, "cuEventRecord", (void *event, void *stream))                                             \
  X(event_sync, "cuEventSynchronize", (void *event))                                                        \
  X(event_elapsed, "cuEventElapsedTime", (float *ms, void *begin, void *end))                               \
  X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                                     \
  X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                                        \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags)) \
  X(graph_destroy, "cuGraphDestroy", (void *graph))                                                         \
  X(graph_launch, "cuGraphLaunch", (void *exec, void *stream))                                              \
  X(graph_exec_destroy, "cuGraphExecDestroy", (void *exec))                                                 \
  X(module_load, "cuModuleLoadData", (void **module, const void *image))                                    \
  X(module_unload, "cuModuleUnload", (void *module))                                                        \
  X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name))              \
  X(function_get, "cuFuncGetAttribute", (int *value, int attribute, void *function))                        \
  X(function_set, "cuFuncSetAttribute", (void *function, int attribute, int value))                         \
  X(launch, "cuLaunchKernel",                                                                               \
    (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, void *stream, void **args, void **extra))

/* Those that a driver may lack; NULL then. */
#define FX_CUDA_DRIVER_OPTIONAL_LIST(X)                                                                    \
  X(tensor_map, "cuTensorMapEncodeTiled",                                                                  \
    (void *map, int type, uint32_t rank, void *data, const uint64_t *dims, const uint64_t *stride_bytes,   \
     const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int l2, int fill)) \
  X(launch_with, "cuLaunchKernelEx", (const void *config, void *function, void **args, void **extra))      \
  X(graph_nodes, "cuGraphGetNodes", (void *graph, void **nodes, size_t *count))                            \
  X(graph_node_type, "cuGraphNodeGetType", (void *node, int *type))                                        \
  X(graph_memset, "cuGraphMemsetNodeGetParams", (void *node, void *params))                                \
  X(graph_before, "cuGraphNodeGetDependencies", (void *node, void **nodes, size_t *count))                 \
  X(graph_after, "cuGraphNodeGetDependentNodes", (void *node, void **nodes, size_t *count))                \
  X(graph_add_kernel, "cuGraphAddKernelNode_v2",                                                           \
    (void **node, void *graph, void *const *before, size_t count, const void *params))                     \
  X(graph_add_edges, "cuGraphAddDependencies",                                                             \
    (void *graph, void *const *from, void *const *to, size_t count))                                       \
  X(graph_remove, "cuGraphDestroyNode", (void *node))                                                      \
  X(memory_range, "cuMemGetAddressRange_v2", (uint64_t * base, size_t * bytes, uint64_t address))          \
  X(ipc_get, "cuIpcGetMemHandle", (fx_cuda_ipc_handle * handle, uint64_t address))                         \
  X(ipc_open, "cuIpcOpenMemHandle_v2", (uint64_t * address, fx_cuda_ipc_handle handle, unsigned flags))    \
  X(ipc_close, "cuIpcCloseMemHandle", (uint64_t address))                                                  \
  X(stream_words, "cuStreamBatchMemOp_v2",                                                                 \
    (void *stream, unsigned count, fx_cuda_word *words, unsigned flags))

struct fx_cuda_driver {
#define FX_CUDA_DRIVER_FIELD(field, name, parameters) int(*field) parameters;
  FX_CUDA_DRIVER_LIST(FX_CUDA_DRIVER_FIELD)
  FX_CUDA_DRIVER_OPTIONAL_LIST(FX_CUDA_DRIVER_FIELD)
#undef FX_CUDA_DRIVER_FIELD
};

enum {
  FX_CU_ATTRIBUTE_MULTIPROCESSORS = 16,
  FX_CU_ATTRIBUTE_MAJOR = 75,
  FX_CU_ATTRIBUTE_MINOR = 76,
  FX_CU_FUNCTION_LOCAL_BYTES = 3,
  FX_CU_FUNCTION_REGISTERS = 4,
  FX_CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  FX_CU_STREAM_NON_BLOCKING = 1,
  FX_CU_EVENT_DISABLE_TIMING = 2,
  FX_CU_CAPTURE_THREAD_LOCAL = 1,
  FX_CU_GRAPH_USE_NODE_PRIORITY = 8,
  FX_CU_HOST_PORTABLE = 1,
  FX_CU_IPC_LAZY_PEER_ACCESS = 1,
  FX_CU_WORD_WAIT_AT_LEAST = 1, /* signed, 32 bits */
  FX_CU_WORD_WRITE = 2,
  FX_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
  FX_CU_ERROR_NO_DEVICE = 100
};

#endif
