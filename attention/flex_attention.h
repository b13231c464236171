/* SPDX-License-Identifier: Apache-2.0 */
/* The op flex_attention: softmax(f(scale q k^T) + mask) v with the mask as data.
 *
 * Views: q, k, v [B, T, heads, D] float32 or bfloat16 with unit stride along D, usually slices of the fused
 * projection; query head h reads key head h / (H / K). out [B, T_q, H, D] contiguous, of their type; lse [B,
 * H, Tpad] float32 natural log-sum-exp, -inf on empty and padded rows (Tpad: T_q rounded up to 128).
 * Differentiable in q, k, v, the sinks and the learnable tables; the backward takes a gradient of lse too.
 *
 * Mask inputs are values of the graph (usually runtime inputs, built by a prefetch stage): a new batch never
 * records anything again. Positions are global: limits and expressions count in positions of the whole
 * sequence, and q_base and kv_base say where each block of 128 lies in it, so that a rank may hold any part.
 */
#ifndef FX_ATTENTION_FLEX_ATTENTION_H
#define FX_ATTENTION_FLEX_ATTENTION_H

#include "attention/flex_variant.h"
#include "attention/mask/limits.h"
#include "attention/mask/runs.h"
#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the op reads besides q, k, v. Each may be FX_NONE.
 * limits: int32 [2, R, Bm, Hm, Tpad], lo then hi (fx_limits_bind's layout); absent: by limits, every row sees
 * every key. The CPU kernels take R = 1; masks of more intervals go by the variant's expression. runs,
 * runs_backward: int32 blobs of fx_runs_bytes for the tiles of fx_flex_attention_tile; absent: the kernels
 *   derive the tiles from the limits, or ask the variant's mask in every tile.
 * q_base, kv_base: int32 [ceil(T / 128)]; absent: block i begins at 128 i.
 * buffers: the variant's blob (flex_variant.h); sinks float32 [H]; table[t]: the variant's learnable tables.
 */
typedef struct fx_attention_inputs {
  fx_value limits, runs, runs_backward, q_base, kv_base, buffers, sinks, table[FX_VARIANT_MAX_TABLES];
} fx_attention_inputs;

/* All FX_NONE. */
fx_attention_inputs fx_attention_no_inputs(void);

typedef struct fx_attention_attr {
  float scale;
  int32_t R, Bm, Hm;        /* of the limits; 0 without */
  int32_t T_total;          /* positions of the whole sequence: what limits count in; 0 without limits */
  int32_t runs_Bm, runs_Hm; /* of the run lists; 0 without */
  int32_t capacity, capacity_backward; /* runs a list */
  int32_t first_head, all_heads; /* q's heads are [first_head, first_head + H) of all_heads as expressions
                                    and masks count them; all_heads 0: they are all */
  int32_t ask_mask;              /* partial tiles ask the variant's mask; else limits say it all */
  int32_t dq_apart; /* dq has a kernel of its own (fx_flex_attention_dq_apart): it can run while dk and dv
                       already travel */
  int32_t reserved;
  const fx_flex_variant *flex; /* borrowed; NULL: plain scores */
} fx_attention_attr;

/* Returns out; *lse (may be NULL) receives the other output. */
fx_value fx_flex_attention(fx_graph *graph, fx_value q, fx_value k, fx_value v,
                           const fx_attention_inputs *inputs, fx_attention_attr attr, fx_value *lse);

/* Ring attention's entry: merges one chunk of keys into a running state, in place. o [B, T_q, H, D] (not
 * normalised), m and l [B, H, Tpad] float32, all persistent or transient values; with `first` their content
 * is ignored. The values after the merge replace those in *state. Not differentiable: the ring records its
 * own backward from fx_flex_attention_grad. */
typedef struct fx_attention_running {
  fx_value o, m, l;
} fx_attention_running;

/* Storage for a state: contiguous values that the first merge will define. */
fx_attention_running fx_flex_attention_begin(fx_graph *graph, fx_value q);
void fx_flex_attention_partial(fx_graph *graph, fx_value q, fx_value k, fx_value v,
                               const fx_attention_inputs *inputs, fx_attention_attr attr, bool first,
                               fx_attention_running *state);
/* out (of type `dtype`) and lse from the state after the last merge; sinks may be FX_NONE. */
fx_value fx_flex_attention_finish(fx_graph *graph, fx_attention_running state, fx_value sinks, fx_dtype dtype,
                                  fx_value *lse);

/* Gradients of one chunk of keys from the final out and lse; dlse may be FX_NONE. grads receives dq, dk, dv,
 * dsinks, then the tables'; the last ones FX_NONE where there is no such input. */
enum { FX_ATTENTION_GRADS = 4 + FX_VARIANT_MAX_TABLES };
void fx_flex_attention_grad(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out, fx_value lse,
                            fx_value dout, fx_value dlse, const fx_attention_inputs *inputs,
                            fx_attention_attr attr, fx_value grads[FX_ATTENTION_GRADS]);

/* What the gradients of all chunks need of the rows alike, made once: for fx_flex_attention_grad_add. Inputs
 * are those of any chunk. dlse may be FX_NONE; it reaches the gradients this way only. */
fx_value fx_flex_attention_prepare(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out,
                                   fx_value lse, fx_value dout, fx_value dlse,
                                   const fx_attention_inputs *inputs, fx_attention_attr attr);

/* Gradients of one chunk, added to running sums in fp32, in place: dq [B, T_q, H, D], dk and dv [B, T_kv, K,
 * D], contiguous. parts: FX_ATTENTION_OF_KEYS gives dk, dv and the parameters' gradients,
 * FX_ATTENTION_OF_ROWS gives dq. With `first` the sums' content is ignored, and absent ones are made. The
 * values after the addition replace those in *sums. prepared: where dq does not come apart it may be FX_NONE,
 * for lse without a gradient. params (may be NULL without OF_KEYS) receives dsinks and then the tables', of
 * this chunk alone. */
typedef struct fx_attention_sums {
  fx_value dq, dk, dv;
} fx_attention_sums;
enum { FX_ATTENTION_OF_KEYS = 1, FX_ATTENTION_OF_ROWS = 2, FX_ATTENTION_PARAMS = FX_ATTENTION_GRADS - 3 };
void fx_flex_attention_grad_add(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out,
                                fx_value lse, fx_value dout, fx_value prepared,
                                const fx_attention_inputs *inputs, fx_attention_attr attr, int32_t parts,
                                bool first, fx_attention_sums *sums, fx_value params[FX_ATTENTION_PARAMS]);

/* Whether a backend's kernels compute dq apart from dk and dv, without doing more work for that. */
bool fx_flex_attention_dq_apart(fx_backend backend);

/* Tile (rows, keys) in which runs must be built for the kernels of a backend at head dimension D. */
void fx_flex_attention_tile(fx_backend backend, bool backward, int32_t D, int32_t tile[2]);
/* Whether there are kernels, forward and backward, at head dimension D. */
bool fx_flex_attention_runs_on(fx_backend backend, int32_t D);

#ifdef __cplusplus
}
#endif
#endif
