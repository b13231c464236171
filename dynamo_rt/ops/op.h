/* SPDX-License-Identifier: Apache-2.0 */
/* What an op is: one static const fx_op in the file that defines it. Folders above register nothing, they
 * record nodes that point at their own fx_op; there is no central list. A kernel receives resolved tensors
 * and touches nothing else. */
#ifndef FX_DYNAMO_RT_OPS_OP_H
#define FX_DYNAMO_RT_OPS_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/comm/comm.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_MAX_IN = 20, FX_MAX_OUT = 8 };

typedef int32_t fx_value; /* an SSA value of a graph; FX_NONE: absent */
enum { FX_NONE = -1 };

typedef struct fx_graph fx_graph;
typedef struct fx_node fx_node;

/* Effects. An op without any is pure: it may be merged with an equal one and dropped when unused. */
enum {
  FX_EFFECT_MUTATES = 1,    /* writes through `must_alias` into a value that outlives it */
  FX_EFFECT_COLLECTIVE = 2, /* attr begins with fx_collective_attr; ordered across ranks */
  FX_EFFECT_RNG = 4,        /* draws random numbers: two equal nodes may still not be merged */
  FX_EFFECT_VIEW = 8, /* no kernel: output 0 is another look at input 0's storage, others are what must_alias
                         says; attr begins with fx_view_attr */
  FX_EFFECT_ASSEMBLE = 16, /* no kernel: the inputs are laid side by side inside output 0 */
  FX_EFFECT_INPUT = 32     /* copies a runtime input from the slot of this run */
};

/* First member of every collective op's attributes, so that ledgers and schedules need not know the op. */
typedef struct fx_collective_attr {
  fx_comm *comm; /* borrowed; outlives every plan that uses it */
  int32_t kind, reduce, peer, peer_from;
  int32_t lane;
  int32_t again; /* 1: the backward makes the result again rather than keep it (fx_autograd_saved) */
} fx_collective_attr;

/* First member of every view op's attributes: where the output begins inside input 0. */
typedef struct fx_view_attr {
  int64_t offset_bytes;
} fx_view_attr;

typedef struct fx_cost {
  double flops, bytes;
} fx_cost;

/* Everything a kernel may look at. in[i] is NULL where an optional input is absent; out[i] is NULL where
 * nobody uses the output and the op allows that. */
typedef struct fx_kernel_args {
  const fx_tensor *in[FX_MAX_IN];
  fx_tensor *out[FX_MAX_OUT];
  const void *attr;
  unsigned accumulate; /* bit i: add to out[i] instead of overwriting it */
  void *workspace;     /* op->workspace bytes, content undefined */
  int threads;
  int layer;        /* which instance of a repeated layer, 0-based */
  const void *gemm; /* fx_device.gemm */
  const void *slot; /* base of the slot of runtime inputs */
  int32_t ticket;   /* a bound collective's, of fx_comm_bind */
  void *stream;
} fx_kernel_args;

typedef fx_status (*fx_kernel_fn)(const fx_kernel_args *args);

typedef struct fx_op {
  const char *name;
  int8_t min_in, max_in; /* inputs past min_in may be absent (FX_NONE) */
  int8_t num_out;
  uint16_t attr_bytes;
  uint16_t effects;
  uint8_t can_accumulate;         /* bit i: the kernels honour `accumulate` for output i */
  uint8_t strided_out;            /* bit i: output i may be a strided view */
  uint8_t optional_out;           /* bit i: kernels accept out[i] == NULL */
  bool bf16_cpu;                  /* the CPU kernel takes bfloat16 tensors where infer lets them through */
  uint8_t must_alias[FX_MAX_OUT]; /* 1 + input whose memory output i is (absent where that is); 0: none */
  uint8_t may_alias[FX_MAX_OUT]; /* 1 + input whose memory output i may take over, no two the same; 0: none */
  /* Output types from input types (NULL: absent input), or a sentence about what does not fit. */
  fx_status (*infer)(const fx_type *const *in, const void *attr, fx_type *out);
  /* Records the backward of `node`: dout[i] is the gradient of output i or FX_NONE; sets din[i] for the
   * inputs that have a gradient (FX_NONE elsewhere). NULL: not differentiable. */
  fx_status (*vjp)(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din);
  fx_cost (*cost)(const fx_type *const *in, const fx_type *out, const void *attr);
  /* Scratch bytes of the kernels for `threads` threads; NULL: none. */
  size_t (*workspace)(const fx_type *const *in, const fx_type *out, const void *attr, int threads);
  /* The same for CUDA kernels that need another amount; NULL: as `workspace`. */
  size_t (*workspace_cuda)(const fx_type *const *in, const fx_type *out, const void *attr, int threads);
  /* Collectives: binds the call whose tensors now have their addresses and sets args->ticket; NULL: none. */
  fx_status (*bind)(fx_kernel_args *args);
  fx_kernel_fn kernel[FX_BACKEND_COUNT];
} fx_op;

#ifdef __cplusplus
}
#endif
#endif
