/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/context.h"

#include <stdlib.h>
#include <string.h>

#include "core/bench/synthetic.h"
#include "core/model/context.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/context_blocks.h"

enum { MAX_RANKS = 4096, MAX_LENGTH = 1 << 24 };

typedef struct sample {
  int32_t *rows[FX_SYNTHETIC_ROWS];
  void *memory[FX_ATTENTION_MAX_FIELDS];
} sample;

static void sample_fini(sample *s) {
  for (int i = 0; i < FX_SYNTHETIC_ROWS; i++) free(s->rows[i]);
  for (int i = 0; i < FX_ATTENTION_MAX_FIELDS; i++) free(s->memory[i]);
}

static fx_status sample_init(const fx_attention_setup *setup, int64_t documents, uint64_t seed, sample *s) {
  char *scratch = NULL;
  int32_t count;
  for (int i = 0; i < FX_SYNTHETIC_ROWS; i++)
    FX_TRY(fx_calloc(&s->rows[i], (size_t)setup->T, sizeof(int32_t)));
  FX_TRY(fx_synthetic_sample(s->rows, setup->T, documents, seed, setup->turn_token, &count));
  for (int i = 0; i < setup->num_fields; i++) {
    char *memory = NULL;
    FX_TRY(fx_alloc_aligned(&memory, (size_t)setup->field[i].words * sizeof(int32_t)));
    s->memory[i] = memory;
  }
  FX_TRY(fx_alloc_aligned(&scratch, setup->scratch_bytes + FX_ALIGN));
  fx_attention_batch batch = {s->rows[0], s->rows[1], s->rows[2], s->rows[3]};
  fx_status status = fx_attention_fill(setup, &batch, s->memory, scratch);
  free(scratch);
  return status;
}

static double imbalance(const double *share, int ranks) {
  double most = 0, all = 0;
  for (int r = 0; r < ranks; r++) most = share[r] > most ? share[r] : most, all += share[r];
  return all > 0 ? most * ranks / all : 1;
}

/* order: block numbers, rank by rank, overwritten. */
static void count_shares(const fx_attention_setup *setup, const int32_t *assigned, const double *area,
                         int32_t *order, fx_bench_context *out) {
  int32_t blocks = setup->T / FX_LIMITS_ALIGN;
  double all = 0;
  for (int32_t i = 0; i < blocks; i++) all += area[i], order[i] = i;
  for (int r = 0; r < out->ranks; r++) out->share[r] = fx_context_share(area, blocks, out->ranks, order, r);
  out->contiguous = imbalance(out->share, out->ranks);
  if (setup->exchange == FX_CONTEXT_ALLTOALL) { /* every rank has all rows, of its heads */
    for (int r = 0; r < out->ranks; r++) out->share[r] = 1.0 / out->ranks;
    out->imbalance = 1;
    return;
  }
  for (int32_t i = 0; i < blocks; i++) order[i] = assigned[i] / FX_LIMITS_ALIGN;
  for (int r = 0; r < out->ranks; r++) out->share[r] = fx_context_share(area, blocks, out->ranks, order, r);
  out->imbalance = imbalance(out->share, out->ranks);
  for (int r = 0; r < out->ranks; r++) out->share[r] = all > 0 ? out->share[r] / all : 1.0 / out->ranks;
}

fx_status fx_bench_context_measure(const fx_attention_setup *setup, void *const *memory,
                                   fx_bench_context *out) {
  size_t blocks = (size_t)(setup->T / FX_LIMITS_ALIGN);
  const void *buffer[FX_ATTENTION_MAX_KINDS][FX_EX_MAX_BUFFERS];
  const void *const *buffers[FX_ATTENTION_MAX_KINDS];
  fx_bench_context c = {.ranks = setup->ranks,
                        .blocks = setup->rows / FX_LIMITS_ALIGN,
                        .need = fx_attention_need(setup, memory),
                        .exchange = fx_context_exchange_name(setup->exchange)};
  double *area = NULL;
  int32_t *order = NULL;
  char *scratch = NULL;
  fx_status status = FX_OK;
  for (int32_t k = 0; k < setup->num_kinds; k++) {
    fx_attention_find_buffers(setup, k, memory, buffer[k]);
    buffers[k] = buffer[k];
  }
  FX_TRY_GOTO(fx_calloc(&c.share, (size_t)setup->ranks, sizeof *c.share), free_memory);
  FX_TRY_GOTO(fx_calloc(&area, blocks, sizeof *area), free_memory);
  FX_TRY_GOTO(fx_calloc(&order, blocks, sizeof *order), free_memory);
  FX_TRY_GOTO(fx_alloc_aligned(&scratch, fx_context_scratch(setup)), free_memory);
  FX_TRY_GOTO(fx_context_area(setup, buffers, area, NULL, scratch), free_memory);
  count_shares(setup, memory[setup->blocks], area, order, &c);
  *out = c;
  c.share = NULL;
free_memory:
  free(scratch);
  free(order);
  free(area);
  free(c.share);
  return status;
}

fx_status fx_bench_context_init(const fx_config *config, int ranks, int64_t length, int64_t documents,
                                uint64_t seed, fx_bench_context *out) {
  fx_attention_setup *setup = NULL;
  sample s = {{NULL}, {NULL}};
  memset(out, 0, sizeof *out);
  if (length == 0) length = config->train.seq_length;
  if (ranks < 2 || ranks > MAX_RANKS || length > MAX_LENGTH)
    return fx_error(FX_ERR_USAGE,
                    "a sequence of %lld positions cannot be shared by %d ranks; expected 2..%d ranks",
                    (long long)length, ranks, MAX_RANKS);
  FX_TRY(fx_attention_setup_create_for(config, FX_BACKEND_CPU, 1, length, ranks, 0, &setup));
  fx_status status = sample_init(setup, documents, seed, &s);
  if (status == FX_OK) status = fx_bench_context_measure(setup, s.memory, out);
  sample_fini(&s);
  fx_attention_setup_destroy(setup);
  return status;
}

void fx_bench_context_fini(fx_bench_context *context) {
  free(context->share);
  context->share = NULL;
}
