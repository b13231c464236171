/* SPDX-License-Identifier: Apache-2.0 */
/* The attention of one layer with its gradient, as a training step records it: views of a fused q, k, v in,
 * views of its gradient out, the mask as runtime inputs. Of a whole sequence, or of one rank's rows of a
 * sequence that several share. Documents, turns, tokens and operands are made up. */
#ifndef FX_CORE_BENCH_LAYER_H
#define FX_CORE_BENCH_LAYER_H

#include "core/bench/synthetic.h"
#include "core/model/attention.h"
#include "dynamo_rt/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_bench_layer_options {
  int64_t length;    /* positions; 0: train.seq_length */
  int64_t batch;     /* samples; >= 1 */
  int64_t documents; /* tokens a document has on average; 0: one document */
  int64_t layer;
  uint64_t seed;     /* of sample 0; sample b has seed + 1000 b */
  fx_dtype dtype;    /* FX_F32 or FX_BF16: q, k, v, out and their gradients; FX_DTYPE_COUNT: bfloat16 on a
                        GPU, float32 on a CPU */
  int steps;         /* timed ones */
  const char *trace; /* bench context: where both sides are saved kernel by kernel; NULL: nowhere */
} fx_bench_layer_options;

/* The type that the options stand for on a device. */
fx_dtype fx_bench_layer_dtype(const fx_device *device, const fx_bench_layer_options *options);
/* FX_ERR_USAGE: an option out of range. length: what stands for the option; least: the shortest one. */
fx_status fx_bench_layer_check(const fx_config *config, const fx_bench_layer_options *options, int64_t length,
                               int64_t least);

typedef struct fx_bench_layer {
  fx_device *device; /* borrowed */
  int64_t B, T, H, K, D;
  int64_t rows;      /* positions of this rank: T, or its share */
  int64_t documents; /* of all samples */
  fx_dtype dtype;
  int32_t index; /* kind of the layer */
  fx_attention_setup *setup;
  fx_attention_kind *kind; /* of the setup */
  fx_inputs *inputs;       /* one slot */
  int32_t *batch[FX_SYNTHETIC_ROWS];
  /* In memory of the device: [B, rows, (H + 2 K) D] twice, [B, rows, H D] twice (out: NULL where nobody asked
   * for it), the parameters and their gradients in float32. */
  void *qkv, *dqkv, *dout, *out, *sinks, *dsinks;
  void *table[FX_VARIANT_MAX_TABLES], *dtable[FX_VARIANT_MAX_TABLES];
  fx_plan *plan;
  void *arena;
} fx_bench_layer;

/* Everything but operands, mask and plan, for T positions that `ranks` ranks share (1: alone). keep_out: the
 * plan stores out too. Release with fini whatever comes out. Errors of fx_attention_setup_create_for. */
fx_status fx_bench_layer_init(const fx_config *config, fx_device *device,
                              const fx_bench_layer_options *options, int64_t T, int ranks, int rank,
                              bool keep_out, fx_bench_layer *layer);
void fx_bench_layer_fini(fx_bench_layer *layer); /* before the device; zeros are fine */

/* The batch for fx_attention_fill; borrowed. */
fx_attention_batch fx_bench_layer_batch(const fx_bench_layer *layer);
/* memory[num_fields] of the fields for it; borrowed. */
void fx_bench_layer_fields(const fx_bench_layer *layer, void *memory[FX_ATTENTION_MAX_FIELDS]);

/* qkv and dout from fixed seeds; for a layer of the whole sequence. */
fx_status fx_bench_layer_randomize(fx_bench_layer *layer);
/* qkv and dout as `whole` has them, of which this rank takes its rows; its mask is filled. */
fx_status fx_bench_layer_take(fx_bench_layer *layer, const fx_bench_layer *whole);
/* This rank's rows of a whole [B, T, width] -> local [B, rows, width], elements of the layer's type, of host
 * or device; on the compute lane. */
fx_status fx_bench_layer_copy_rows(const fx_bench_layer *layer, int64_t width, const void *whole,
                                   void *local);

/* Makes setup->room that of the smallest rung which holds the filled mask; every rank of a group comes to
 * the same. */
void fx_bench_layer_fit(fx_bench_layer *layer);
/* Records, for setup->room, and prepares; what is left is fx_plan_bind(plan, arena), collective over
 * comm. comm: NULL for a whole sequence, else the ranks that share it. */
fx_status fx_bench_layer_plan(fx_bench_layer *layer, fx_comm *comm);

/* Visible pairs of one head of a whole sequence, all samples (the mean of heads that differ), when its mask
 * is filled; *exact becomes false where they are estimated inside partial tiles. */
fx_status fx_bench_layer_pairs(const fx_bench_layer *layer, double *pairs, bool *exact);

#ifdef __cplusplus
}
#endif
#endif
