/* SPDX-License-Identifier: Apache-2.0 */
/* The memory account of a run: what flexion planned, line by line, against what the kernel of the operating
 * system counted and, on a GPU, what its driver did. */
#ifndef FX_CORE_TRAIN_MEMORY_H
#define FX_CORE_TRAIN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of this process. Parameters and arena lie in the GPU's memory where there is one. */
typedef struct fx_memory_account {
  int64_t libraries; /* resident before anything below was allocated */
  int64_t weights;   /* masters, and the compute copy where there is one */
  int64_t gradients;
  int64_t moments; /* of the optimizer */
  int64_t arena;   /* activations and workspaces of all plans */
  int64_t arena_bound;
  bool gpu;
  int64_t gpu_start; /* of the GPU, in use once its device was made: contexts (of every process), kernels, the
                        workspace of products */
  int64_t gpu_comm;  /* of the GPU: what connecting communicators took */
  int64_t inputs;    /* both slots */
  int64_t data;      /* tokens, samplers, batches made ahead */
  int64_t snapshot;  /* of checkpoints written beside training; 0: none */
} fx_memory_account;

enum { FX_MEMORY_TEXT = 1024 };

int64_t fx_memory_params(const fx_memory_account *account);  /* weights, gradients, moments */
int64_t fx_memory_planned(const fx_memory_account *account); /* of the host; arena_bound is no part of it */
int64_t fx_memory_planned_gpu(const fx_memory_account *account); /* of the GPU; 0 without one */
/* "2104.6 MiB: weights 474.9 + gradients 474.9 + moments 949.7 + arena 194.6 (bound 194.6) + ...", the GPU's
 * first */
void fx_memory_print(const fx_memory_account *account, char text[FX_MEMORY_TEXT]);
/* (actual - planned) / planned * 100 */
double fx_memory_excess_percent(int64_t planned, int64_t actual);

/* Bytes from /proc/self/status, 0 where it cannot be read. */
int64_t fx_memory_peak(void);     /* VmHWM: the most that was ever resident */
int64_t fx_memory_resident(void); /* VmRSS: resident now */

/* Makes VmHWM what is resident now, after freed memory has gone back to the system; without the rights for
 * that it stays what it was. */
void fx_memory_reset_peak(void);

#ifdef __cplusplus
}
#endif
#endif
