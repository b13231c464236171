/* SPDX-License-Identifier: Apache-2.0 */
/* GFLOP/s of the CPU attention kernels, counting unmasked pairs only (forward 4 D a pair, backward 10 D).
 * Usage: bench_attention_cpu [B T H K D variant window threads isa]; best of five, one line a pass. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/cpu/flash_bwd.h"
#include "attention/cpu/flash_fwd.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

static int number(int argc, char **argv, int i, int otherwise) {
  return i < argc ? atoi(argv[i]) : otherwise; // NOLINT
}

static void *room(size_t bytes) {
  void *memory = NULL;
  if (fx_alloc_aligned(&memory, bytes) != FX_OK) abort();
  return memory;
}

static double best_of_five(fx_status (*pass)(const void *), const void *args) {
  double best = INFINITY;
  for (int i = 0; i < 5; i++) {
    double start = omp_get_wtime();
    if (pass(args) != FX_OK) {
      fprintf(stderr, "%s\n", fx_error_text());
      exit(1);
    }
    best = fmin(best, omp_get_wtime() - start);
  }
  return best;
}

static fx_status forward(const void *args) {
  return fx_attention_cpu_forward(args);
}
static fx_status backward(const void *args) {
  return fx_attention_cpu_backward(args);
}

int main(int argc, char **argv) {
  int B = number(argc, argv, 1, 4), T = number(argc, argv, 2, 1024), H = number(argc, argv, 3, 12),
      K = number(argc, argv, 4, 12), D = number(argc, argv, 5, 64), threads = number(argc, argv, 8, 0);
  const fx_mask_variant *variant = fx_mask_variant_find(argc > 6 ? argv[6] : "causal");
  if (!variant || variant->needs_doc_start) return 2;
  fx_mask_inputs in = {.B = B, .T = T, .T_kv = T, .window = number(argc, argv, 7, 256)};
  fx_limits limits = fx_limits_plan(variant, &in);
  fx_limits_bind(&limits, room(fx_limits_bytes(&limits)));
  if (fx_limits_compute(variant, &in, &limits) != FX_OK) return 2;
  double pairs = 0;
  for (int q = 0; q < T; q++) pairs += (double)B * H * (limits.hi[q] - limits.lo[q]);

  int64_t width = (int64_t)(H + 2 * K) * D, rows = (int64_t)B * T;
  float *qkv = room((size_t)(rows * width) * 4), *dqkv = room((size_t)(rows * width) * 4);
  float *out = room((size_t)(rows * H * D) * 4), *dout = room((size_t)(rows * H * D) * 4);
  float *lse = room((size_t)B * (size_t)H * (size_t)fx_attention_tpad(T) * 4);
  fx_fill_normal(qkv, rows * width, 1, 1.0f);
  fx_fill_normal(dout, rows * H * D, 2, 1.0f);
  fx_attention_shape shape = {.B = B, .T_q = T, .T_kv = T, .H = H, .K = K, .D = D, .threads = threads};
  shape.scale = 1.0f / sqrtf((float)D);
  shape.limits = &limits;
  shape.isa = (fx_attention_isa)number(argc, argv, 9, FX_ISA_AUTO);
  size_t need[2];
  for (int pass = 0; pass < 2; pass++)
    need[pass] = fx_attention_cpu_workspace((fx_attention_pass)pass, &shape, threads);
  void *workspace = room(need[0] > need[1] ? need[0] : need[1]);
  int64_t batch = T * width, flat = (int64_t)T * H * D, k_at = (int64_t)H * D, v_at = k_at + (int64_t)K * D;
  fx_attention_forward f = {shape,
                            {qkv, batch, width, D},
                            {qkv + k_at, batch, width, D},
                            {qkv + v_at, batch, width, D},
                            {out, flat, (int64_t)H * D, D},
                            lse,
                            workspace};
  fx_attention_backward g = {
      .shape = shape, .q = f.q, .k = f.k, .v = f.v, .lse = lse, .workspace = workspace};
  g.out = (fx_attention_in){out, flat, (int64_t)H * D, D};
  g.dout = (fx_attention_in){dout, flat, (int64_t)H * D, D};
  g.dq = (fx_attention_out){dqkv, batch, width, D};
  g.dk = (fx_attention_out){dqkv + k_at, batch, width, D};
  g.dv = (fx_attention_out){dqkv + v_at, batch, width, D};
  double seconds = best_of_five(forward, &f);
  printf("forward  %8.2f ms %7.1f GFLOP/s\n", seconds * 1e3, pairs * 4 * D / seconds * 1e-9);
  seconds = best_of_five(backward, &g);
  printf("backward %8.2f ms %7.1f GFLOP/s\n", seconds * 1e3, pairs * 10 * D / seconds * 1e-9);
  return 0;
}
