/* SPDX-License-Identifier: Apache-2.0 */
/* Milliseconds and MiB for a batch's masks on one core: limits, row runs and transposed runs (and, apart, the
 * check of the buffers). Usage: bench_mask [T tile_q tile_kv]; the best of seven, one line a mask. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/lang/parser.h"
#include "attention/mask/mask.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

static const struct {
  const char *name, *text;
} g_masks[] = {
    {"causal", "kv <= q"},
    {"window 4096", "kv <= q && q - kv < 4096"},
    {"document, starts", "doc_start[q] <= kv && kv <= q"},
    {"document, ids, window 4096", "doc_id[q] == doc_id[kv] && kv <= q && q - kv < 4096"},
    {"document, starts, window 4096", "doc_start[q] <= kv && kv <= q && q - kv < 4096"},
    {"document, both ways", "doc_start[q] <= kv && kv < doc_end[q]"},
    {"global 64 and window 4096", "kv <= q && (q - kv < 4096 || kv < 64)"},
    {"neighbourhood 1024, radius 6", "abs(q / 1024 - kv / 1024) <= 6 && abs(q % 1024 - kv % 1024) <= 6"},
    {"neighbourhood 1000, radius 6", "abs(q / 1000 - kv / 1000) <= 6 && abs(q % 1000 - kv % 1000) <= 6"},
    {"neighbourhood 128, radius 6", "abs(q / 128 - kv / 128) <= 6 && abs(q % 128 - kv % 128) <= 6"},
    {"dilated 16 in window 4096", "kv <= q && q - kv < 4096 && (q - kv) % 16 == 0"},
    {"same turn or causal", "doc_start[q] <= kv && kv < doc_end[q] && (kv <= q || turn[q] == turn[kv])"},
};

static void *room(size_t bytes) {
  void *memory = NULL;
  if (fx_alloc_aligned(&memory, bytes ? bytes : 64) != FX_OK) abort();
  for (size_t i = 0; i < bytes; i += 4096) ((char *)memory)[i] = 0;
  return memory;
}

static void ok(fx_status status) {
  if (status == FX_OK) return;
  fprintf(stderr, "%s\n", fx_error_text());
  exit(1);
}

enum { START, END, ID, TURN, BUFFERS };

/* Documents of exponentially distributed lengths, 1000 on average. */
static void fill(int32_t *const *data, int32_t T) {
  uint64_t state = 1;
  for (int32_t start = 0, id = 0; start < T; id++) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    double uniform = ((double)(state >> 11) + 1) * 0x1p-53;
    int64_t length = 1 + (int64_t)(-log(uniform) * 999.5);
    int32_t end = (int32_t)fx_min_i64(start + length, T);
    for (int32_t i = start; i < end; i++) {
      data[START][i] = start, data[END][i] = end, data[ID][i] = id;
      data[TURN][i] = (i - start) / 200;
    }
    start = end;
  }
}

static void bench(const fx_ex_pool *pool, fx_ex mask, const char *name, const void *const *buffer, int32_t T,
                  int32_t tile_q, int32_t tile_kv) {
  double start = omp_get_wtime();
  fx_mask_program *program;
  ok(fx_mask_program_create(pool, mask, &program));
  double create = omp_get_wtime() - start;
  const fx_mask_facts *facts = fx_mask_program_facts(program);
  bool has_limits = facts->form == FX_MASK_FORM_LIMITS;
  fx_mask_batch batch = {.B = 1, .buffer = buffer};
  fx_limits limits = fx_mask_limits_plan(program, 1, 1, T);
  size_t limit_bytes = has_limits ? fx_limits_bytes(&limits) : 0,
         limit_scratch = fx_mask_limits_scratch(program);
  fx_runs rows = fx_mask_runs_plan(program, 1, 1, T, T, tile_q, tile_kv, 0);
  fx_runs columns = fx_runs_plan_transposed(&rows, rows.capacity);
  size_t run_bytes = fx_runs_bytes(&rows) + fx_runs_bytes(&columns),
         run_scratch = fx_mask_runs_scratch(program, &rows);
  void *memory[5] = {room(limit_bytes), room(limit_scratch), room(fx_runs_bytes(&rows)),
                     room(fx_runs_bytes(&columns)), room(run_scratch)};
  if (has_limits) fx_limits_bind(&limits, memory[0]);
  fx_runs_bind(&rows, memory[2]), fx_runs_bind(&columns, memory[3]);
  double best[4] = {INFINITY, INFINITY, INFINITY, INFINITY}, all = INFINITY;
  for (int i = 0; i < 7; i++) {
    double at[5];
    at[0] = omp_get_wtime();
    ok(fx_mask_check(program, &batch));
    at[1] = omp_get_wtime();
    if (has_limits) ok(fx_mask_limits_build(program, &batch, &limits, memory[1]));
    at[2] = omp_get_wtime();
    ok(fx_mask_runs_build(program, &batch, has_limits ? &limits : NULL, &rows, memory[4]));
    at[3] = omp_get_wtime();
    ok(fx_runs_transpose(&rows, &columns));
    at[4] = omp_get_wtime();
    for (int k = 0; k < 4; k++) best[k] = fmin(best[k], at[k + 1] - at[k]);
    all = fmin(all, at[4] - at[0]);
  }
  fx_runs_totals totals = fx_runs_count(&rows);
  printf("%-30s %9.3f ms = check %.3f + limits %.3f + rows %.3f + transposed %.3f; %.1f MiB (scratch %.1f); "
         "R %d, %lld full, %lld partial, joined %lld; made in %.2f ms\n",
         name, all * 1e3, best[0] * 1e3, best[1] * 1e3, best[2] * 1e3, best[3] * 1e3,
         (double)(limit_bytes + run_bytes) / 1048576, (double)(limit_scratch + run_scratch) / 1048576,
         facts->R, (long long)totals.full, (long long)totals.partial,
         (long long)(rows.merged + columns.merged), create * 1e3);
  for (int i = 0; i < 5; i++) free(memory[i]);
  fx_mask_program_destroy(program);
}

int main(int argc, char **argv) {
  int32_t T = argc > 1 ? atoi(argv[1]) : 1 << 20;                                            // NOLINT
  int32_t tile_q = argc > 2 ? atoi(argv[2]) : 128, tile_kv = argc > 3 ? atoi(argv[3]) : 128; // NOLINT
  static const char *const names[BUFFERS] = {"doc_start", "doc_end", "doc_id", "turn"};
  if (T < 1 || tile_q < 1 || tile_kv < 1) return 2;
  int32_t *data[BUFFERS];
  const void *buffer[BUFFERS];
  for (int i = 0; i < BUFFERS; i++) buffer[i] = data[i] = room((size_t)T * sizeof(int32_t));
  fill(data, T);
  printf("%d x %d positions, tiles of %d x %d\n", T, T, tile_q, tile_kv);
  for (size_t m = 0; m < sizeof g_masks / sizeof g_masks[0]; m++) {
    fx_ex_pool *pool = fx_ex_pool_create(&(fx_ex_ranges){1, T, T});
    for (int i = 0; i < BUFFERS; i++) {
      fx_ex_buffer declared = {.type = FX_EX_INT, .ndim = 1, .dim = {T}, .per_batch = true, .hi = T};
      snprintf(declared.name, sizeof declared.name, "%s", names[i]);
      declared.segment = i == START, declared.segment_end = i == END, declared.monotone = i == ID;
      if (fx_ex_declare_buffer(pool, &declared) < 0) ok(FX_ERR_CONFIG);
    }
    fx_ex mask = fx_ex_parse(pool, &(fx_ex_text){.text = g_masks[m].text}, NULL);
    if (mask == FX_EX_NONE) ok(FX_ERR_CONFIG);
    bench(pool, mask, g_masks[m].name, buffer, T, tile_q, tile_kv);
    fx_ex_pool_destroy(pool);
  }
  for (int i = 0; i < BUFFERS; i++) free(data[i]);
  return 0;
}
