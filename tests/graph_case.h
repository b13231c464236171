/* SPDX-License-Identifier: Apache-2.0 */
/* One graph on a device and in double precision: a case declares inputs and outputs by name, the rest is the
 * same. Outputs are poisoned before each run. Every output must agree with the double reference within a
 * relative norm, and no element of it may be far off. */
#ifndef FX_TESTS_GRAPH_CASE_H
#define FX_TESTS_GRAPH_CASE_H

#include "dynamo_rt/graph/graph.h"
#include "dynamo_rt/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_WORLD_BUFFERS = 32 };

typedef struct fx_world_buffer {
  const char *name;
  void *data; /* of the device that runs */
  fx_type type;
  bool output;
} fx_world_buffer;

typedef struct fx_world {
  fx_device *device;
  fx_graph *graph;
  fx_world_buffer buffer[FX_WORLD_BUFFERS];
  int count, gradients;
  bool half, add; /* these and below: of the case */
  int64_t rows, cols;
} fx_world;

typedef struct fx_graph_case {
  const char *name;
  void (*build)(fx_world *world);
  double bound; /* relative L2 norm of each output; 0: the reference rounded once, in every bit */
  bool half;    /* elements are bfloat16 on the GPU, and float32 rounded to bfloat16 on the CPU */
  int64_t rows, cols;
  bool add; /* gradients of parameters are only added to what is there, which their kernels do themselves */
} fx_graph_case;

/* ---- building; a name seeds what it fills ---- */

fx_world_buffer *fx_world_new_buffer(fx_world *w, const char *name, fx_type type, bool output);
/* A float32 input of normal numbers. output: it is changed in place and compared. */
fx_value fx_world_normals(fx_world *w, const char *name, fx_type type, float sigma, bool output);
/* The same as the element type of the case; x as that type. */
fx_value fx_world_elements(fx_world *w, const char *name, fx_type type, float sigma);
fx_value fx_world_halved(fx_world *w, fx_value x);
/* An int32 input of numbers in [low, high). */
fx_value fx_world_integers(fx_world *w, const char *name, fx_type type, int32_t low, int32_t high);
fx_value fx_world_number(fx_world *w, const char *name, float number);
fx_value fx_world_count(fx_world *w, const char *name, int64_t number);
/* Of bfloat16 as float32 where that is the element type of the case. */
void fx_world_output(fx_world *w, const char *name, fx_value value);
/* A parameter's gradient, as an output and added to another one; with `add` the latter alone. */
void fx_world_gradient(fx_world *w, const char *name, fx_value grad);

/* ---- running ---- */

/* Builds the case and runs it. Returns copies of the outputs, one after the other as the case declared them,
 * for free(); NULL after a failed check. want: NULL, or receives the same of the double reference, for
 * free(). shape: what the case declared, its memory gone. */
char *fx_world_run(const fx_graph_case *c, fx_device *device, fx_exec_mode mode, fx_world *shape,
                   double **want);
/* Checks all outputs; FX_SHOW in the environment prints how far each is off. */
void fx_world_compare(const fx_graph_case *c, const fx_world *shape, const char *got, const double *want);

#ifdef __cplusplus
}
#endif
#endif
