/* SPDX-License-Identifier: Apache-2.0 */
/* A case on the GPU: by replay twice and by eager once. The three must agree in every bit, and with the
 * double reference within the bound of the case. */
#ifndef FX_TESTS_GPU_GPU_CASE_H
#define FX_TESTS_GPU_GPU_CASE_H

#include <stdlib.h>
#include <string.h>

#include "tests/graph_case.h"
#include "tests/harness.h"

/* How many gradients of parameters the case has. */
static inline int run_case(const fx_graph_case *c, fx_device *gpu) {
  fx_world shape;
  double *want = NULL;
  char *got = fx_world_run(c, gpu, FX_EXEC_REPLAY, &shape, &want);
  char *again = got ? fx_world_run(c, gpu, FX_EXEC_REPLAY, NULL, NULL) : NULL;
  char *eager = again ? fx_world_run(c, gpu, FX_EXEC_EAGER, NULL, NULL) : NULL;
  size_t at = 0;
  if (got) fx_world_compare(c, &shape, got, want);
  for (int i = 0; eager && i < shape.count; i++) {
    const fx_world_buffer *b = &shape.buffer[i];
    size_t bytes = fx_type_bytes(&b->type);
    if (!b->output) continue;
    CHECK_MSG(memcmp(got + at, again + at, bytes) == 0, "%s: %s differs between two runs", c->name, b->name);
    CHECK_MSG(memcmp(got + at, eager + at, bytes) == 0, "%s: %s differs between replay and eager", c->name,
              b->name);
    at += bytes;
  }
  free(want);
  free(got);
  free(again);
  free(eager);
  return shape.gradients;
}

#endif
