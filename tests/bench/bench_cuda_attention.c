/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU at a training shape, causal, as slices of a fused projection: milliseconds and TFLOP/s
 * of visible pairs, forward (4 D a pair) and backward (2.5 times that), of the kernels that the policy picks
 * and of those for mma.sync; and how far apart their results are. Launches are queued one behind the other,
 * medians of rounds. Usage: bench-cuda-attention [B T H K D]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cuda/flash_cuda.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/device/device.h"

enum { ROUNDS = 9, QUEUED = 10 };

static void ok(fx_status status) {
  if (status == FX_OK) return;
  fprintf(stderr, "%s\n", fx_error_text());
  exit(1);
}

typedef struct bench {
  fx_device *device;
  const fx_flash_module *module[2]; /* forward, backward */
  fx_flash_args args;
  int D;
  size_t elements[2]; /* of out, of the fused projection */
} bench;

static void *memory_of(bench *b, size_t bytes) {
  void *memory = NULL;
  ok(fx_device_alloc(b->device, bytes, &memory));
  return memory;
}

static void *upload(bench *b, const void *data, size_t bytes) {
  void *memory = memory_of(b, bytes);
  ok(fx_device_copy(b->device, FX_LANE_COMPUTE, memory, data, bytes));
  ok(fx_device_sync(b->device));
  return memory;
}

/* bfloat16, about normal: the sum of four bytes. */
static void *random_values(bench *b, uint64_t seed, size_t count) {
  uint16_t *values = NULL;
  ok(fx_alloc_aligned(&values, count * 2));
  for (size_t i = 0; i < count; i += 4) {
    fx_philox block = fx_philox_at(seed, 1, i, 0);
    for (size_t k = 0; k < 4 && i + k < count; k++) {
      uint32_t word = block.word[k];
      float sum =
          (float)(word & 255) + (float)(word >> 8 & 255) + (float)(word >> 16 & 255) + (float)(word >> 24);
      float value = (sum - 510.0f) / 148.0f;
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      values[i + k] = (uint16_t)(bits >> 16);
    }
  }
  void *memory = upload(b, values, count * 2);
  free(values);
  return memory;
}

/* Limits and run lists of the causal mask. */
static void bind_mask(bench *b) {
  fx_flash_args *a = &b->args;
  int blocks = (a->T_q + FX_FLASH_TILE - 1) / FX_FLASH_TILE;
  int32_t *limits = calloc((size_t)a->Tpad * 2, 4), *runs = calloc((size_t)blocks * 7, 4);
  if (!limits || !runs) exit(1);
  for (int t = 0; t < a->T_q; t++) limits[a->Tpad + t] = t + 1;
  for (int i = 0; i < blocks; i++) {
    int32_t list[6] = {0, i, 1, i, i + 1, 0};
    runs[i] = i > 0 ? 2 : 1;
    memcpy(runs + blocks + (size_t)i * 6, i > 0 ? list : list + 3, sizeof list / (i > 0 ? 1 : 2));
  }
  int32_t *on_device = upload(b, limits, (size_t)a->Tpad * 8);
  a->lo = on_device, a->hi = on_device + a->Tpad, a->limits_Bm = a->limits_Hm = 1;
  on_device = upload(b, runs, (size_t)blocks * 28);
  a->runs_count = on_device, a->runs = on_device + blocks;
  a->runs_Bm = a->runs_Hm = 1, a->runs_blocks = blocks, a->runs_capacity = 2;
  free(limits), free(runs);
}

static void prepare(bench *b, int B, int T, int H, int K, int D) {
  fx_flash_args *a = &b->args;
  int64_t width = (int64_t)(H + 2 * K) * D, all = (int64_t)B * T * width, q = (int64_t)B * T * H * D;
  b->D = D, b->elements[0] = (size_t)q, b->elements[1] = (size_t)all;
  a->B = B, a->T_q = a->T_kv = T, a->H = H, a->K = K, a->Tpad = (T + 127) / 128 * 128;
  a->scale = 1.0f / sqrtf((float)D);
  uint16_t *from = random_values(b, 1, (size_t)all), *to = memory_of(b, (size_t)all * 2);
  a->q = (fx_flash_view){from, T * width, width, D};
  a->k = a->v = a->dk = a->dv = a->dq = a->q;
  a->k.data = from + (int64_t)H * D, a->v.data = from + (int64_t)(H + K) * D;
  a->dq.data = to, a->dk.data = to + (int64_t)H * D, a->dv.data = to + (int64_t)(H + K) * D;
  a->out = (fx_flash_view){memory_of(b, (size_t)q * 2), (int64_t)T * H * D, (int64_t)H * D, D};
  a->dout = a->out, a->dout.data = random_values(b, 2, (size_t)q);
  int64_t words = (int64_t)B * H * a->Tpad;
  a->lse = memory_of(b, (size_t)words * 4);
  a->lse2 = memory_of(b, (size_t)words * 12);
  a->delta = a->lse2 + words, a->span = (int32_t *)(a->delta + words);
  bind_mask(b);
}

static fx_status forward(void *bench_, void *stream) {
  const bench *b = bench_;
  return fx_flash_forward(b->module[0], &b->args, stream);
}
static fx_status backward(void *bench_, void *stream) {
  const bench *b = bench_;
  return fx_flash_backward(b->module[1], &b->args,
                           FX_FLASH_WORK_PREPARE | FX_FLASH_WORK_KEYS | FX_FLASH_WORK_ROWS, stream);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double milliseconds(bench *b, fx_task_fn task) {
  double ms[ROUNDS];
  for (int r = 0; r < ROUNDS; r++) {
    int64_t begin = fx_now_ns();
    for (int i = 0; i < QUEUED; i++) ok(fx_device_launch(b->device, FX_LANE_COMPUTE, task, b));
    ok(fx_device_sync(b->device));
    ms[r] = (double)(fx_now_ns() - begin) / 1e6 / QUEUED;
  }
  qsort(ms, ROUNDS, sizeof ms[0], ascending);
  return ms[ROUNDS / 2];
}

/* Both directions by one family; out, then the gradients, go to `seen`. */
static void run(bench *b, const char *name, bool any_scale, uint16_t *seen) {
  fx_flash_args *a = &b->args;
  for (int pass = 0; pass < 2; pass++) {
    fx_flash_key key = {.pass = pass ? FX_FLASH_BACKWARD : FX_FLASH_FORWARD,
                        .dtype = FX_BF16,
                        .D = b->D,
                        .R = 1,
                        .any_scale = any_scale};
    ok(fx_flash_module_get(b->device->gemm, &key, &b->module[pass]));
    ok(fx_device_launch(b->device, FX_LANE_COMPUTE, pass ? backward : forward, b)); /* warm */
  }
  ok(fx_device_copy(b->device, FX_LANE_COMPUTE, seen, a->out.data, b->elements[0] * 2));
  ok(fx_device_copy(b->device, FX_LANE_COMPUTE, seen + b->elements[0], a->dq.data, b->elements[1] * 2));
  ok(fx_device_sync(b->device));
  double flops = 4.0 * a->B * a->H * b->D * 0.5 * a->T_q * (a->T_q + 1.0);
  double ms[2] = {milliseconds(b, forward), milliseconds(b, backward)};
  printf("bench %-9s B %d T %d H %d/%d D %d causal bf16: forward %.4f ms %.0f TFLOP/s, backward %.4f ms %.0f "
         "TFLOP/s\n",
         name, a->B, a->T_q, a->H, a->K, b->D, ms[0], flops / ms[0] / 1e9, ms[1], 2.5 * flops / ms[1] / 1e9);
}

static double distance(const uint16_t *x, const uint16_t *y, size_t count) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < count; i++) {
    double a = (double)fx_bf16_to_f32(x[i]), b = (double)fx_bf16_to_f32(y[i]);
    error += (a - b) * (a - b), norm += b * b;
  }
  return sqrt(error / norm);
}

int main(int argc, char **argv) {
  int shape[5] = {32, 1024, 12, 12, 64};
  static bench b;
  uint16_t *seen[2];
  for (int i = 0; i < 5 && argc == 6; i++) shape[i] = (int)strtol(argv[1 + i], NULL, 10);
  ok(fx_device_create_cuda(FX_DEVICE_BY_RANK, &b.device));
  prepare(&b, shape[0], shape[1], shape[2], shape[3], shape[4]);
  size_t q = b.elements[0], all = b.elements[1];
  for (int i = 0; i < 2; i++) {
    ok(fx_alloc_aligned(&seen[i], (q + all) * 2));
    run(&b, i ? "mma.sync" : "picked", i != 0, seen[i]);
  }
  double out = distance(seen[0], seen[1], q), grads = distance(seen[0] + q, seen[1] + q, all);
  printf("bench relative distance of the two: out %.2e, gradients %.2e\n", out, grads);
  free(seen[0]), free(seen[1]);
  fx_device_destroy(b.device);
  return out < 5e-3 && grads < 1e-2 ? 0 : 1;
}
