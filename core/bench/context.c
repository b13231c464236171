/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/context.h"

#include <stdlib.h>
#include <string.h>

#include "core/bench/synthetic.h"
#include "core/model/context.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/context_blocks.h"

enum { ROW_INPUTS = 4, MAX_RANKS = 4096, MAX_LENGTH = 1 << 24 };

typedef struct sample {
  int32_t *rows[ROW_INPUTS]; /* tokens, positions, doc_start, doc_end */
  void *memory[FX_ATTENTION_MAX_FIELDS];
  char *scratch;
  double *area;
} sample;

static void sample_fini(sample *s) {
  for (int i = 0; i < ROW_INPUTS; i++) free(s->rows[i]);
  for (int i = 0; i < FX_ATTENTION_MAX_FIELDS; i++) free(s->memory[i]);
  free(s->scratch);
  free(s->area);
}

static fx_status sample_init(const fx_attention_setup *setup, int64_t documents, uint64_t seed, sample *s) {
  static const int32_t inputs[ROW_INPUTS] = {FX_SYNTHETIC_TOKEN, FX_SYNTHETIC_POSITION,
                                             FX_SYNTHETIC_DOC_START, FX_SYNTHETIC_DOC_END};
  for (int i = 0; i < ROW_INPUTS; i++) {
    FX_TRY(fx_calloc(&s->rows[i], (size_t)setup->T, sizeof(int32_t)));
    (void)fx_synthetic_fill(inputs[i], s->rows[i], setup->T, documents, seed);
  }
  for (int i = 0; i < setup->num_fields; i++) {
    char *memory = NULL;
    FX_TRY(fx_alloc_aligned(&memory, (size_t)setup->field[i].words * sizeof(int32_t)));
    s->memory[i] = memory;
  }
  FX_TRY(fx_calloc(&s->area, (size_t)(setup->T / FX_LIMITS_ALIGN), sizeof *s->area));
  return fx_alloc_aligned(&s->scratch, setup->scratch_bytes + FX_ALIGN);
}

static double imbalance(const double *share, int ranks) {
  double most = 0, all = 0;
  for (int r = 0; r < ranks; r++) most = share[r] > most ? share[r] : most, all += share[r];
  return all > 0 ? most * ranks / all : 1;
}

static fx_status count_shares(const fx_attention_setup *setup, sample *s, fx_bench_context *out) {
  int32_t blocks = setup->T / FX_LIMITS_ALIGN, *order = s->memory[setup->blocks];
  fx_attention_batch batch = {s->rows[0], s->rows[1], s->rows[2], s->rows[3]};
  const void *buffer[FX_ATTENTION_MAX_KINDS][FX_EX_MAX_BUFFERS];
  const void *const *buffers[FX_ATTENTION_MAX_KINDS];
  FX_TRY(fx_attention_fill(setup, &batch, s->memory, s->scratch));
  for (int32_t k = 0; k < setup->num_kinds; k++) {
    fx_attention_find_buffers(setup, k, s->memory, buffer[k]);
    buffers[k] = buffer[k];
  }
  FX_TRY(fx_context_area(setup, buffers, s->area, s->scratch));
  double all = 0;
  for (int32_t i = 0; i < blocks; i++) all += s->area[i];
  int32_t *neighbours = s->rows[0]; /* no longer read */
  for (int32_t i = 0; i < blocks; i++) neighbours[i] = i;
  for (int r = 0; r < out->ranks; r++)
    out->share[r] = fx_context_share(s->area, blocks, out->ranks, neighbours, r);
  out->contiguous = imbalance(out->share, out->ranks);
  for (int32_t i = 0; i < blocks; i++) order[i] /= FX_LIMITS_ALIGN;
  for (int r = 0; r < out->ranks; r++)
    out->share[r] = fx_context_share(s->area, blocks, out->ranks, order, r);
  out->imbalance = imbalance(out->share, out->ranks);
  for (int r = 0; r < out->ranks; r++) out->share[r] = all > 0 ? out->share[r] / all : 1.0 / out->ranks;
  return FX_OK;
}

fx_status fx_bench_context_init(const fx_config *config, int ranks, int64_t length, int64_t documents,
                                uint64_t seed, fx_bench_context *out) {
  fx_attention_setup *setup = NULL;
  sample s = {{NULL}, {NULL}, NULL, NULL};
  memset(out, 0, sizeof *out);
  if (length == 0) length = config->train.seq_length;
  if (ranks < 2 || ranks > MAX_RANKS || length > MAX_LENGTH)
    return fx_error(FX_ERR_USAGE,
                    "a sequence of %lld positions cannot be shared by %d ranks; expected 2..%d ranks",
                    (long long)length, ranks, MAX_RANKS);
  FX_TRY(fx_attention_setup_create_for(config, FX_BACKEND_CPU, 1, length, ranks, 0, &setup));
  out->ranks = ranks;
  out->blocks = setup->rows / FX_LIMITS_ALIGN;
  out->exchange = fx_context_exchange_name(setup->exchange);
  fx_status status = fx_calloc(&out->share, (size_t)ranks, sizeof *out->share);
  if (status == FX_OK) status = sample_init(setup, documents, seed, &s);
  if (status == FX_OK) status = count_shares(setup, &s, out);
  sample_fini(&s);
  fx_attention_setup_destroy(setup);
  if (status != FX_OK) fx_bench_context_fini(out);
  return status;
}

void fx_bench_context_fini(fx_bench_context *context) {
  free(context->share);
  context->share = NULL;
}
