/* SPDX-License-Identifier: Apache-2.0 */
/* The attention of a layer, forward and backward, of a sequence that all ranks of a job share, against the
 * same of the whole sequence on one rank: time, and whether both give the same numbers. */
#ifndef FX_CORE_BENCH_EXCHANGE_H
#define FX_CORE_BENCH_EXCHANGE_H

#include "core/bench/layer.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is compared. */
enum { FX_BENCH_OUT, FX_BENCH_DQ, FX_BENCH_DK, FX_BENCH_DV, FX_BENCH_RESULTS };

typedef struct fx_bench_exchange_report {
  int ranks;
  int64_t B, T, H, K, D;
  int64_t documents; /* of all samples */
  fx_dtype dtype;
  bool gpu, recorded;   /* recorded: replays are CUDA graphs */
  int threads;          /* of a rank's CPU device */
  char device[64];      /* its product name */
  char transport[32];   /* between ranks: fx_comm_vtable.transport */
  const char *exchange; /* "ring", "allgather" */
  char variant[64];     /* of the layer */
  double visible_pairs; /* of one head, all samples; the mean of heads that differ */
  bool pairs_exact;     /* else estimated inside partial tiles */
  fx_ring_room room;    /* for keys on their way, in what is timed */
  int blocks;           /* all that a rank has */
  double imbalance;     /* largest share of the layer's visible pairs over the mean */
  int steps;            /* timed ones */
  double single_ms;     /* of one rank alone, median over steps, forward and backward; the slowest where each
                           rank has a GPU, rank 0 of a CPU with the threads of one rank */
  double shared_ms;     /* of all ranks together, the slowest, median over steps */
  double single_tflops; /* 4 D and 10 D a visible pair and head */
  double shared_tflops; /* the same of one rank, the mean */
  double efficiency;    /* single_ms / (ranks * shared_ms) */
  double difference[FX_BENCH_RESULTS]; /* relative L2, of the rank where it is largest */
  double worst, bound;                 /* of them; what more would be a failure */
} fx_bench_exchange_report;

/* Collective over the control channel; report and status are the same on every rank. FX_ERR_USAGE: one rank,
 * an option out of range, a length that cannot be dealt. FX_ERR_INTERNAL: results differ. FX_ERR_CONFIG: the
 * variant cannot be built. Errors of devices, communicators and memory. */
fx_status fx_bench_exchange(const fx_config *config, fx_control *control,
                            const fx_bench_layer_options *options, fx_bench_exchange_report *report);

#ifdef __cplusplus
}
#endif
#endif
