/* SPDX-License-Identifier: Apache-2.0 */
/* The attention op of a layer, as a training step runs it: time against the machine's own matrix product,
 * what its mask and its kernels cost to make, and its memory. Documents, turns and tokens are made up. */
#ifndef FX_CORE_BENCH_ATTENTION_H
#define FX_CORE_BENCH_ATTENTION_H

#include "core/bench/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_bench_attention_options {
  fx_bench_layer_options layer; /* steps: after one that is not timed when there are several */
  bool memory;                  /* also one step of half the length, before the others */
} fx_bench_attention_options;

/* Bytes at one length. */
typedef struct fx_bench_attention_memory {
  int64_t length;
  int64_t io_bytes;        /* q, k, v, out, dout, dq, dk, dv */
  int64_t workspace_bytes; /* scratch of the larger kernel */
  int64_t mask_bytes;      /* limits, run lists, the batch's buffers */
  int64_t lse_bytes;
  int64_t
      peak_bytes; /* growth of VmHWM, or of the GPU's memory in use, from before the inputs were allocated */
} fx_bench_attention_memory;

typedef enum fx_bench_kernels {
  FX_BENCH_KERNELS_NONE, /* limits say it all: nothing generated runs */
  FX_BENCH_KERNELS_COMPILED,
  FX_BENCH_KERNELS_INTERPRETED
} fx_bench_kernels;

typedef struct fx_bench_attention_report {
  char name[64], text[512]; /* of the variant; text cut where it is longer */
  int64_t B, T, H, K, D;
  int64_t documents; /* of all samples */
  int threads;
  fx_dtype dtype;
  bool gpu;
  char device[64];      /* its product name */
  const char *form;     /* "none", "limits", "expression" */
  int32_t R;            /* intervals a query, by limits */
  double visible_pairs; /* of one head, all samples; the mean of heads that differ */
  double density;       /* of B * T * T */
  bool density_exact;   /* else estimated inside partial tiles */
  double mask_build_ms; /* of one batch, best of several */
  fx_bench_kernels kernels;
  char reason[256];             /* why AUTO interprets, or "" */
  double compile_ms, cached_ms; /* making the variant's functions into an empty cache, and out of it */
  double forward_ms, backward_ms, gemm_ms; /* medians */
  double forward_gflops, backward_gflops;  /* 4 D and 10 D a visible pair and head */
  double gemm_gflops;
  int64_t gemm_size; /* rows, columns and depth of the product */
  char provider[64];
  fx_bench_attention_memory half, full; /* half: zeros without `memory` */
} fx_bench_attention_report;

/* FX_ERR_USAGE: an option out of range. FX_ERR_CONFIG: the variant does not suit the length, or needs a
 * buffer that no batch brings. FX_ERR_MEMORY, FX_ERR_DEVICE, and the kernels' own. */
fx_status fx_bench_attention(const fx_config *config, const fx_bench_attention_options *options,
                             fx_bench_attention_report *report);

#ifdef __cplusplus
}
#endif
#endif
