/* SPDX-License-Identifier: Apache-2.0 */
/* The argument of every flash kernel, one struct by value. This very text is compiled by the host's compiler
 * and, ahead of the kernels, by NVRTC: only fixed-size integers, floats and pointers.
 *
 * Views are [B, T, heads, D]: element strides, unit stride along D; the data's address and the strides are
 * multiples of 16 bytes. Pointers are device memory. */
#ifndef FX_ATTENTION_CUDA_FLASH_ARGS_H
#define FX_ATTENTION_CUDA_FLASH_ARGS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum { FX_FLASH_MAX_BUFFERS = 32, FX_FLASH_MAX_UNIFORMS = 32, FX_FLASH_FAULT = 3 };

typedef struct fx_flash_view {
  void *data;
  int64_t batch, time, head;
} fx_flash_view;

/* A buffer of the variant's expressions; words (of 4 bytes) from one sample to the next, 0 where shared. */
typedef struct fx_flash_buffer {
  const void *data;
  int64_t batch;
} fx_flash_buffer;

typedef struct fx_flash_args {
  fx_flash_view q, k, v, out;
  fx_flash_view dout, dq, dk, dv; /* backward; dq, dk, dv are float where they are sums */
  int32_t B, T_q, T_kv, H, K, Tpad;
  float scale;
  int32_t first;      /* partial and sums: the content of the running state is ignored */
  int32_t first_head; /* number of head 0 among those that expressions count */
  /* limits, or NULL: [R][limits_Bm][limits_Hm][Tpad] */
  const int32_t *lo, *hi;
  int32_t limits_Bm, limits_Hm;
  /* row runs in this kernel's tile, or NULL: counts [Bm][Hm][blocks], then runs of three words */
  const int32_t *runs_count, *runs;
  int32_t runs_Bm, runs_Hm, runs_blocks, runs_capacity;
  const int32_t *q_bases, *kv_bases; /* global position of every 128 rows, keys; NULL: contiguous from 0 */
  const float *sinks;                /* [H] or NULL */
  float *lse;                        /* [B, H, Tpad]; the backward reads it */
  float *m, *l;                      /* partial and finish: the running state; `out` is then float */
  const float *dlse;                 /* [B, H, Tpad] or NULL */
  float *lse2, *delta;               /* backward's workspace, [B, H, Tpad] each */
  int32_t *span;                     /* backward's workspace: [B, H, Tpad / 64][2] keys that rows may see */
  float *dsinks;                     /* [H] or NULL */
  int32_t *fault; /* set to FX_FLASH_FAULT when an index leaves its buffer at a visible pair, or NULL */
  float uniform[FX_FLASH_MAX_UNIFORMS];
  fx_flash_buffer buffer[FX_FLASH_MAX_BUFFERS];
  float *table_grad[FX_FLASH_MAX_BUFFERS]; /* gradients of learnable tables, added to; NULL: not wanted */
} fx_flash_args;

/* A tensor map of the driver's (cuTensorMapEncodeTiled): dimensions D, time, head, batch; boxes of 64 columns
 * by 64 rows, swizzled by 128 bytes. */
typedef struct fx_flash_map {
  __attribute__((aligned(64))) int64_t opaque[16];
} fx_flash_map;

/* The second argument of kernels that read by TMA. */
typedef struct fx_flash_maps {
  fx_flash_map q, k, v;
  fx_flash_map out;              /* forward */
  fx_flash_map dout, dq, dk, dv; /* backward */
} fx_flash_maps;

#endif
