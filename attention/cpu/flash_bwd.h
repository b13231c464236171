/* SPDX-License-Identifier: Apache-2.0 */
/* Flash attention backward on the CPU: recomputes P from q, k and lse tile by tile. */
#ifndef FX_ATTENTION_CPU_FLASH_BWD_H
#define FX_ATTENTION_CPU_FLASH_BWD_H

#include "attention/cpu/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With P = exp(f(score) - lse), delta = rowsum(dout * out) - dlse and dF = P * (dout v^T - delta), dS = dF *
 * f': dv = P^T dout, dk = scale dS^T q, dq = scale dS k   (FlashAttention-2, algorithm 2); dtable[i] = sum of
 * dF df/dtable[i], dsink = -sum of exp(sink - lse) delta. For one chunk of a ring, out and lse are the final
 * ones of the whole sequence, k and v the chunk; dk, dv are then complete for this rank's queries and dq is
 * the chunk's contribution. */
typedef struct fx_attention_backward {
  fx_attention_shape shape;  /* runs in the backward's tile */
  fx_attention_in q, k, v;   /* as in the forward */
  fx_attention_in out, dout; /* [B,T_q,H,D] */
  const float *lse;          /* [B,H,Tpad] fp32 of the forward */
  const float *dlse; /* [B,H,Tpad] fp32 gradient of lse, or NULL; padded and empty rows are not read */
  fx_attention_out dq, dk, dv; /* shapes of q, k, v; overwritten; may not overlap any input or each other */
  const float *sinks;          /* [H] as in the forward, or NULL */
  float *dsinks;               /* [H] overwritten; NULL without sinks */
  float *const *dtables;       /* [program's buffers] gradients of the learnable tables, overwritten; NULL, as
                                      a whole or for one: not wanted */
  void *workspace;             /* fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, ...) */
} fx_attention_backward;

/* Writes dq, dk, dv. Empty rows (by limits, or lse = -inf) contribute nothing and get dq = 0.
 * FX_ERR_SHAPE, FX_ERR_UNSUPPORTED: nothing was written. */
fx_status fx_attention_cpu_backward(const fx_attention_backward *args);

#ifdef __cplusplus
}
#endif
#endif
