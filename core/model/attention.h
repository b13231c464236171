/* SPDX-License-Identifier: Apache-2.0 */
/* The attention of a model: its variants, compiled, and what each batch brings to them as runtime inputs
 * (limits, run lists, the batch's buffers).
 *
 * Layers that attend alike are of one kind (config.h). A kind has up to four int32 fields, named mask_limits,
 * mask_runs, mask_runs_backward and mask_buffers, with _1, _2, ... for further kinds. Filling them needs only
 * a batch's documents and tokens, allocates nothing, and may run on the prefetch thread while a step
 * computes.
 *
 * Where several ranks share a sequence (parallel.context), a batch is whole on each of them: one more field,
 * context_blocks, says who computes which blocks (context.h); limits and run lists are those of this rank's
 * rows, buffers stay whole. */
#ifndef FX_CORE_MODEL_ATTENTION_H
#define FX_CORE_MODEL_ATTENTION_H

#include "attention/flex_attention.h"
#include "attention/mask/mask.h"
#include "core/config/config.h"
#include "dynamo_rt/graph/inputs.h"
#include "parallel/ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FX_ATTENTION_MAX_KINDS = 4,
  FX_ATTENTION_MAX_FIELDS = 4 * FX_ATTENTION_MAX_KINDS + 2,
  FX_ATTENTION_MAX_RUNGS = 4,
  FX_ATTENTION_TEXT_BYTES = 384
};

typedef struct fx_attention_field {
  char name[32];
  int64_t words;
} fx_attention_field;

typedef struct fx_attention_kind {
  fx_flex_variant *flex;     /* owned */
  fx_mask_program *program;  /* owned; NULL: everything is visible */
  fx_attention_attr attr;    /* but for the scale */
  int64_t layers;            /* that are of this kind */
  int limits, runs, buffers; /* numbers of fields, -1: none; the backward's runs follow the forward's */
} fx_attention_kind;

typedef struct fx_attention_setup {
  int32_t B, T, H, K;
  int32_t rows; /* queries a rank: T / ranks */
  int ranks, rank;
  fx_context_exchange exchange; /* with several ranks */
  int blocks;                   /* number of the field context_blocks, int32 [T / 128]; -1: one rank */
  int shared;        /* number of the field context_shared (fx_attention_shared); -1: one rank, or no ring */
  fx_ring_room room; /* for keys that travel, in what is recorded from this */
  bool fixed;        /* no mask depends on the batch */
  int32_t num_rungs;
  fx_ring_room rung[FX_ATTENTION_MAX_RUNGS]; /* worth recording; the first holds everything */
  int32_t num_kinds;
  fx_attention_kind kind[FX_ATTENTION_MAX_KINDS];
  fx_attention_field field[FX_ATTENTION_MAX_FIELDS];
  int num_fields;
  int32_t tile[2][2]; /* [forward, backward][rows, keys] */
  int32_t turn_token;
  bool reads_tokens; /* some field depends on the tokens themselves (token, turn, role) */
  size_t scratch_bytes;
  char text[FX_ATTENTION_TEXT_BYTES]; /* for plan keys and people: name and hash of every kind */
} fx_attention_setup;

/* For batches of B samples of T positions. FX_ERR_CONFIG: a variant that cannot be built for this T, more
 * kinds than there is room for, or a buffer that no batch brings. Errors of fx_tile_kernel_create. Compiles,
 * or loads from the cache, what is not there yet. */
fx_status fx_attention_setup_create(const fx_config *config, fx_backend backend, int64_t B, int64_t T,
                                    fx_attention_setup **out);
/* The same for one rank of a group that shares every sequence. FX_ERR_CONFIG also: T cannot be dealt. */
fx_status fx_attention_setup_create_for(const fx_config *config, fx_backend backend, int64_t B, int64_t T,
                                        int ranks, int rank, fx_attention_setup **out);
void fx_attention_setup_destroy(fx_attention_setup *setup); /* NULL is fine */
/* Whether a backward on `backend` keeps its bits from run to run, as runtime.deterministic asks for.
 * FX_ERR_CONFIG names the variant that does not: gradients of learnable tables are sums in no fixed order on
 * GPUs. */
fx_status fx_attention_check_deterministic(const fx_config *config, const fx_attention_setup *setup,
                                           fx_backend backend);

/* Declares the fields as runtime inputs. */
fx_status fx_attention_declare(const fx_attention_setup *setup, fx_inputs *inputs);

/* int32 [B, T] each: what a batch brings; borrowed. */
typedef struct fx_attention_batch {
  const int32_t *tokens, *positions, *doc_start, *doc_end;
} fx_attention_batch;

/* memory[num_fields]: words of each field, overwritten. scratch: setup->scratch_bytes, 64-byte aligned; one
 * for each thread. FX_ERR_DATA: a buffer breaks what is declared of it. */
fx_status fx_attention_fill(const fx_attention_setup *setup, const fx_attention_batch *batch,
                            void *const *memory, void *scratch);
/* The fields of one kind only; for a setup of one rank. */
fx_status fx_attention_fill_kind(const fx_attention_setup *setup, int32_t index,
                                 const fx_attention_batch *batch, void *const *memory, void *scratch);
/* Where a filled kind's buffers lie in memory[num_fields], by number in its variant's pool. */
void fx_attention_find_buffers(const fx_attention_setup *setup, int32_t index, void *const *memory,
                               const void *buffer[FX_EX_MAX_BUFFERS]);
/* All kinds into a slot of declared inputs, with scratch of its own: for set-up, not for a loop. */
fx_status fx_attention_fill_slot(const fx_attention_setup *setup, const fx_attention_batch *batch,
                                 fx_inputs *inputs, int slot);

/* The field context_shared of N = rows / 128 blocks a rank, which blocks travel in a ring: those that queries
 * of another rank may see. count[ranks]; hops[1], how many ranks on the farthest such queries are; index[N]:
 * numbers of this rank's travelling blocks among its own, ascending, -1 behind them; base[ranks][N]: global
 * position of every rank's travelling blocks, behind them any position. Run lists of other ranks' keys are
 * for their count[rank] travelling blocks, those of this rank's own keys for all N. */
typedef struct fx_attention_shared {
  int32_t *count, *hops, *index, *base;
} fx_attention_shared;
fx_attention_shared fx_attention_shared_at(const fx_attention_setup *setup, int32_t *field);

/* Of a filled batch: what travels, everything without a ring; number of the rung with the least to pass on
 * that holds it, 0 without a ring. */
fx_ring_room fx_attention_need(const fx_attention_setup *setup, void *const *memory);
int32_t fx_attention_rung(const fx_attention_setup *setup, void *const *memory);

/* Whether no query of the batch sees a key that comes after it, in any kind. Exact. */
fx_status fx_attention_is_causal(const fx_attention_setup *setup, const fx_attention_batch *batch,
                                 bool *causal);

#ifdef __cplusplus
}
#endif
#endif
