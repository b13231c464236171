/* SPDX-License-Identifier: Apache-2.0 */
/* Flash attention forward on the CPU: whole, or one chunk of keys at a time for ring attention. */
#ifndef FX_ATTENTION_CPU_FLASH_FWD_H
#define FX_ATTENTION_CPU_FLASH_FWD_H

#include "attention/cpu/flash.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_attention_forward {
  fx_attention_shape shape;
  fx_attention_in q, k, v; /* [B,T_q,H,D], [B,T_kv,K,D], [B,T_kv,K,D] */
  fx_attention_out out;    /* [B,T_q,H,D], overwritten; may not overlap q, k, v */
  const float *sinks;      /* [H] a logit a head in the softmax's denominator, or NULL */
  float *lse;      /* [B,H,Tpad] fp32, overwritten: natural log-sum-exp, -inf on empty and padded rows */
  void *workspace; /* fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, ...) */
} fx_attention_forward;

/* out = softmax(f(scale * q k^T) + mask) v. An empty row gives out = 0 and lse = -inf (its sink, where there
 * are any). FX_ERR_SHAPE, FX_ERR_UNSUPPORTED: nothing was written. FX_ERR_DATA: an index of the program's
 * score left its buffer for a visible pair; out and lse are then not to be used. */
fx_status fx_attention_cpu_forward(const fx_attention_forward *args);

/* The running state of rows that have seen some chunks of keys. */
typedef struct fx_attention_state {
  fx_attention_out o; /* [B,T_q,H,D] FX_F32: sum of exp2(s - m) * v, not normalised */
  float *m; /* [B,H,Tpad] fp32: running maximum of s = score * log2(e); -inf when nothing was seen */
  float *l; /* [B,H,Tpad] fp32: sum of exp2(s - m) */
} fx_attention_state;

typedef struct fx_attention_partial {
  fx_attention_shape shape; /* T_kv, kv_base and runs are the chunk's; limits stay global */
  fx_attention_in q, k, v;  /* k, v: the chunk */
  fx_attention_state state; /* in and out; only out when `first` */
  bool first;               /* the state's content is ignored, as if nothing had been seen */
  void *workspace;          /* fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, ...) */
} fx_attention_partial;

/* Merges one chunk of keys into the running state. Chunks may come in any order; the result depends on the
 * order only by rounding. Rows that see nothing of the chunk keep their state bit for bit. */
fx_status fx_attention_cpu_partial(const fx_attention_partial *args);

/* After the last chunk: out = o / l, lse = ln(l) + m ln(2), then the sinks (NULL: none): lse' = ln(exp(lse) +
 * exp(sink)), out' = out exp(lse - lse'). Empty rows give 0 and -inf, padded rows of lse -inf. `out` may be
 * state->o itself. `shape`: B, T_q, H, D and threads are read. */
fx_status fx_attention_cpu_finalize(const fx_attention_shape *shape, const fx_attention_state *state,
                                    const float *sinks, fx_attention_out out, float *lse);

#ifdef __cplusplus
}
#endif
#endif
