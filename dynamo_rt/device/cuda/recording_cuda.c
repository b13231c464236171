/* SPDX-License-Identifier: Apache-2.0 */
/* A driver launches a graph of nothing but kernels, one behind the other, in a few microseconds however many
 * they are; other nodes among them cost it microseconds each. The products' library clears its counters by
 * memsets before most products, so that a step has a hundred of them. */
#include "dynamo_rt/device/cuda/recording_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

enum { NODE_MEMSET = 2, MAX_NEIGHBOURS = 16, MAX_BYTES = 1 << 20 };

typedef struct memset_params { /* CUDA_MEMSET_NODE_PARAMS */
  uint64_t to;
  size_t pitch;
  unsigned value, element;
  size_t width, height;
} memset_params;

typedef struct kernel_params { /* CUDA_KERNEL_NODE_PARAMS_v2 */
  void *function;
  unsigned grid[3], block[3], shared_bytes;
  void **args, **extra;
  void *kernel, *context;
} kernel_params;

/* The value repeated to four bytes. */
static uint32_t word_of(const memset_params *m) {
  if (m->element == 1) return (m->value & 0xFFu) * 0x01010101u;
  return m->element == 2 ? (m->value & 0xFFFFu) * 0x00010001u : m->value;
}

/* The node that does what `node` does; NULL: there is none. */
static void *add_fill(const fx_cuda_context *context, void *graph, void *const *before, size_t count,
                      const memset_params *m) {
  const fx_cuda_driver *driver = context->driver;
  size_t bytes = m->width * m->element;
  if (m->height > 1 || bytes % 4 != 0 || m->to % 4 != 0 || bytes > MAX_BYTES) return NULL;
  uint64_t to = m->to;
  uint32_t word = word_of(m);
  int64_t n = (int64_t)(bytes / 4);
  kernel_params params = {.function = fx_cuda_kernels_get(context->kernels, FX_CUDA_FILL, FX_F32)->handle,
                          .grid = {(unsigned)fx_ceil_div(n, 16 * FX_CUDA_BLOCK), 1, 1},
                          .block = {FX_CUDA_BLOCK, 1, 1},
                          .args = FX_CUDA_ARGS(&to, &word, &n)};
  void *added = NULL;
  return driver->graph_add_kernel(&added, graph, before, count, &params) == 0 ? added : NULL;
}

static void replace(const fx_cuda_context *context, void *graph, void *node) {
  const fx_cuda_driver *driver = context->driver;
  void *before[MAX_NEIGHBOURS], *after[MAX_NEIGHBOURS], *from[MAX_NEIGHBOURS];
  size_t num_before = MAX_NEIGHBOURS, num_after = MAX_NEIGHBOURS;
  memset_params m;
  if (driver->graph_memset(node, &m) != 0 || driver->graph_before(node, before, &num_before) != 0 ||
      driver->graph_after(node, after, &num_after) != 0 || num_before > MAX_NEIGHBOURS ||
      num_after > MAX_NEIGHBOURS)
    return;
  void *added = add_fill(context, graph, before, num_before, &m);
  if (!added) return;
  for (size_t i = 0; i < num_after; i++) from[i] = added;
  if (driver->graph_add_edges(graph, from, after, num_after) == 0)
    driver->graph_remove(node);
  else
    driver->graph_remove(added);
}

void fx_cuda_fill_by_kernels(const fx_cuda_context *context, void *graph) {
  const fx_cuda_driver *driver = context->driver;
  void **nodes = NULL;
  size_t count = 0;
  int type = 0;
  if (!driver->graph_nodes || !driver->graph_node_type || !driver->graph_memset || !driver->graph_before ||
      !driver->graph_after || !driver->graph_add_kernel || !driver->graph_add_edges || !driver->graph_remove)
    return;
  if (driver->graph_nodes(graph, NULL, &count) != 0 || count == 0) return;
  nodes = calloc(count, sizeof *nodes);
  if (!nodes) return; /* an optimisation: without memory it does nothing */
  if (driver->graph_nodes(graph, nodes, &count) == 0)
    for (size_t i = 0; i < count; i++)
      if (driver->graph_node_type(nodes[i], &type) == 0 && type == NODE_MEMSET)
        replace(context, graph, nodes[i]);
  free(nodes);
}
