/* SPDX-License-Identifier: Apache-2.0 */
/* The op flex_attention: softmax(scale q k^T + mask) v with the mask as data.
 *
 * Views: q, k, v [B, T, heads, D] float32 with unit stride along D, usually slices of the fused projection;
 * query head h reads key head h / (H / K). out [B, T_q, H, D] contiguous; lse [B, H, Tpad] float32 natural
 * log-sum-exp, -inf on empty and padded rows (Tpad: T_q rounded up to 128). Differentiable in q, k, v; the
 * backward takes a gradient of lse too.
 *
 * Mask inputs are values of the graph (usually runtime inputs, built by a prefetch stage): a new batch never
 * records anything again. Positions are global: limits count in positions of the whole sequence, and kv_base
 * says where each 128-key block of k and v lies in it, so that a rank may hold any part. */
#ifndef FX_ATTENTION_FLEX_ATTENTION_H
#define FX_ATTENTION_FLEX_ATTENTION_H

#include "attention/mask/limits.h"
#include "attention/mask/runs.h"
#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each may be FX_NONE. limits: int32 [2, R, Bm, Tpad], lo then hi (fx_limits_bind's layout); absent: every
 * row sees every key. runs, runs_backward: int32 blobs of fx_runs_bytes for the tiles of
 * fx_flex_attention_tile; absent: the kernels derive the tiles from the limits. kv_base: int32 [ceil(T_kv /
 * 128)]; absent: block i begins at 128 i. */
typedef struct fx_attention_mask {
  fx_value limits, runs, runs_backward, kv_base;
} fx_attention_mask;

typedef struct fx_attention_attr {
  float scale;
  int32_t R, Bm;   /* of the limits; 0 without */
  int32_t T_total; /* positions of the whole sequence: what limits count in; 0 without limits */
} fx_attention_attr;

/* Returns out; *lse (may be NULL) receives the other output. */
fx_value fx_flex_attention(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_attention_mask mask,
                           fx_attention_attr attr, fx_value *lse);

/* Ring attention's entry: merges one chunk of keys into a running state, in place. o [B, T_q, H, D] (not
 * normalised), m and l [B, H, Tpad] float32, all persistent or transient values; with `first` their content
 * is ignored. The values after the merge replace those in *state. Not differentiable: the ring records its
 * own backward from fx_flex_attention_grad. */
typedef struct fx_attention_running {
  fx_value o, m, l;
} fx_attention_running;

/* Storage for a state: contiguous values that the first merge will define. */
fx_attention_running fx_flex_attention_begin(fx_graph *graph, fx_value q);
void fx_flex_attention_partial(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_attention_mask mask,
                               fx_attention_attr attr, bool first, fx_attention_running *state);
/* out and lse from the state after the last merge. */
fx_value fx_flex_attention_finish(fx_graph *graph, fx_attention_running state, fx_value *lse);

/* dq, dk, dv of one chunk of keys from the final out and lse; dlse may be FX_NONE. grads[3] receives them. */
void fx_flex_attention_grad(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out, fx_value lse,
                            fx_value dout, fx_value dlse, fx_attention_mask mask, fx_attention_attr attr,
                            fx_value grads[3]);

/* Tile (rows, keys) in which runs must be built for the kernels of a backend at head dimension D. */
void fx_flex_attention_tile(fx_backend backend, bool backward, int32_t D, int32_t tile[2]);

#ifdef __cplusplus
}
#endif
#endif
