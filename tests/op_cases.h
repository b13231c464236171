/* SPDX-License-Identifier: Apache-2.0 */
/* Every op forward and backward as graphs of several shapes, for the suites that run them on a device and
 * compare with the double reference. */
#ifndef FX_TESTS_OP_CASES_H
#define FX_TESTS_OP_CASES_H

#include "tests/graph_case.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shapes of more elements than this are there for kernels that need them, and are run in the fewest ways. */
enum { FX_OP_CASE_SHAPES = 12, FX_OP_CASE_MANY = 1 << 20 };

typedef struct fx_op_case {
  const char *name;
  void (*build)(fx_world *world);
  double bound_cpu, bound_gpu, bound_half; /* of fx_graph_case; half: bfloat16 on a GPU. Negative: not there,
                                              for the CPU because a test has no time for it */
  int64_t shape[FX_OP_CASE_SHAPES][2];     /* rows, cols; ends with 0 */
} fx_op_case;

const fx_op_case *fx_op_cases(int *count);

/* The update of AdamW, with a snapshot, from a gradient that is not finite. */
void fx_op_case_not_finite(fx_world *world);

#ifdef __cplusplus
}
#endif
#endif
