/* SPDX-License-Identifier: Apache-2.0 */
/* The training step as a schedule of plans, recorded once:
 *
 *   micro_only    forward, backward, gradients stored and reduced over dp      (one micro-batch a step)
 *   micro_first   forward, backward, gradients stored
 *   micro_mid     forward, backward, gradients added
 *   micro_last    forward, backward, gradients added and reduced over dp
 *   update        global norm, clip, AdamW
 *   update_snapshot  the same, and the new state is copied aside for a checkpoint
 *   refresh       the compute copy of the weights from their masters, after these were filled
 *   gather        under ZeRO: the weights that other ranks keep. The first micro-batch of a step begins so
 *                 too; eval and logits do not, for they run many times with the same weights
 *   eval          forward; loss and per-token negative log-likelihood
 *   logits        forward; logits of every position (tests, generation)
 *
 * All that changes from step to step is a runtime input. Results live in fx_step_results, which every plan
 * writes.
 *
 * What changes with the data but sets sizes has rungs: where ranks share a sequence by a ring, phases with
 * attention (micro_*, eval, logits) have a plan for each room that the attention setup offers, and a
 * launch runs the smallest that holds what is in its slot. Rung 0 holds any batch and has the phase's name;
 * further ones are called after their blocks and hops too, e.g. "micro_only/16x1". All are prepared, agreed
 * and bound together. Ranks with other samples may run another rung at the same time: only collectives among
 * ranks that share a sequence differ. */
#ifndef FX_CORE_TRAIN_STEP_H
#define FX_CORE_TRAIN_STEP_H

#include "core/model/model.h"
#include "core/train/memory.h"
#include "dynamo_rt/plan/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FX_PHASE_LIST(X)                \
  X(MICRO_ONLY, "micro_only")           \
  X(MICRO_FIRST, "micro_first")         \
  X(MICRO_MID, "micro_mid")             \
  X(MICRO_LAST, "micro_last")           \
  X(UPDATE, "update")                   \
  X(UPDATE_SNAPSHOT, "update_snapshot") \
  X(REFRESH, "refresh")                 \
  X(EVAL, "eval")                       \
  X(LOGITS, "logits")                   \
  X(GATHER, "gather")

typedef enum fx_phase {
#define FX_PHASE_ENUM(name, text) FX_PHASE_##name,
  FX_PHASE_LIST(FX_PHASE_ENUM)
#undef FX_PHASE_ENUM
      FX_PHASE_COUNT
} fx_phase;

const char *fx_phase_name(fx_phase phase);
/* The phases of a step of `micros` micro-batches, without the update; returns how many. */
int fx_step_micro_phases(int64_t micros, fx_phase phases[3]);

enum {
  FX_STEP_FLAGS = 2,
  FX_STEP_MAX_PLANS = FX_PHASE_COUNT * FX_ATTENTION_MAX_RUNGS /* of one set of inputs */
};

typedef struct fx_step_results {
  float *signal; /* [1 + FX_STEP_FLAGS] of the device: loss and flags of the micro-batches so far */
  float *loss;   /* [1] after the last micro plan: sum over the micro-batches of factor * nll, reduced over
                    dp. eval: sum of nll of this rank's batch times factor */
  float *
      flags; /* [FX_STEP_FLAGS], behind loss: the runtime input `flags` of the last micro-batch, summed over
                dp: how ranks learn in the same step that one of them was signalled or has written its part */
  float *grad_norm; /* [1] global norm before clipping */
  float *nll;       /* [B, T] of the last eval, 0 where masked */
  float *logits;    /* [B, T, padded_vocab] of the last logits plan; NULL unless asked for */
} fx_step_results;

typedef struct fx_step_config {
  const fx_model *model;
  int64_t B, T;
  const fx_attention_setup *attention; /* borrowed; of B samples and T rows; its rungs are recorded */
  const char *topology;                /* borrowed; what plans are told apart by besides shapes */
  fx_comm *dp; /* gradients and loss are summed over it; NULL or one rank: no collective is recorded. Under
                  ZeRO the ranks that share the state */
  fx_inputs *inputs;
  fx_device *device;
  fx_exec_mode mode;
  bool poison;      /* tests */
  bool keep_logits; /* allocate results.logits */
  float *snapshot;  /* [3 * params.num_own]: weights, exp_avg, exp_avg_sq of update_snapshot, packed; NULL
                       without that phase */
  const fx_log *log;
} fx_step_config;

typedef struct fx_stepper fx_stepper;

/* Declares the runtime inputs of a step (the caller then allocates them): tokens, targets, positions int32
 * [B, rows]; sample_ordinal int64 [B]; iteration, optimizer_step int64 [1]; loss_factor, lr float32 [1]; the
 * fields of the attention setup, which says what B and rows are. */
fx_status fx_step_declare_inputs(fx_inputs *inputs, const fx_attention_setup *attention);

/* Memory for fx_step_config.snapshot, touched, so that nothing grows later; of the model's device. */
fx_status fx_step_snapshot_create(const fx_model *model, float **out);
void fx_step_snapshot_destroy(const fx_model *model, float *snapshot); /* NULL is fine */

/* Everything but the model is copied or borrowed for the stepper's life. */
fx_status fx_stepper_create(const fx_step_config *config, fx_stepper **out);
void fx_stepper_destroy(fx_stepper *stepper); /* NULL is fine */

/* Captures and prepares the plans of `phases`, all rungs, that the cache does not hold. Touches neither
 * network nor arena; ledgers may be compared between ranks afterwards (fx_stepper_list), then fx_stepper_bind
 * makes them runnable. FX_ERR_GRAPH: the cache is full (fx_plan_cache_add; every rung counts). */
fx_status fx_stepper_prepare(fx_stepper *stepper, const fx_phase *phases, int count);
fx_status fx_stepper_bind(fx_stepper *stepper); /* allocates the arena all plans share */
/* Borrowed; NULL until prepared, and where the phase has no such rung. */
fx_plan *fx_stepper_plan(const fx_stepper *stepper, fx_phase phase); /* rung 0 */
fx_plan *fx_stepper_plan_at(const fx_stepper *stepper, fx_phase phase, int32_t rung);
/* plans[FX_STEP_MAX_PLANS]: those of prepared `phases`, phase by phase and rung by rung, the same order on
 * every rank; borrowed. Returns how many. */
int fx_stepper_list(const fx_stepper *stepper, const fx_phase *phases, int count, const fx_plan **plans);
/* Queues a plan (on a CPU: runs it): of the rung that the slot's attention fields ask for, which the host has
 * filled. The slot is the host's again after fx_stepper_wait_slot, the results after fx_stepper_wait. */
fx_status fx_stepper_launch(fx_stepper *stepper, fx_phase phase, int slot);
fx_status fx_stepper_wait_slot(fx_stepper *stepper, int slot);
fx_status fx_stepper_wait(fx_stepper *stepper);
/* Launches and waits. */
fx_status fx_stepper_run(fx_stepper *stepper, fx_phase phase, int slot);
/* To be called after the weights were filled from outside and before the next run: brings the compute copy,
 * where there is one, up to date. Under ZeRO collective over dp: the weights of other ranks follow, too. */
fx_status fx_stepper_refresh(fx_stepper *stepper);
/* As fx_plan_launch_kernels and fx_plan_set_trace, for every plan made so far. */
void fx_stepper_launch_kernels(fx_stepper *stepper, bool launched);
void fx_stepper_set_trace(fx_stepper *stepper, fx_trace *trace);
/* true: launches run rung 0 whatever the slot asks for, so that times of steps compare; false: as before. */
void fx_stepper_hold(fx_stepper *stepper, bool hold);

const fx_step_results *fx_stepper_results(const fx_stepper *stepper);
size_t fx_stepper_arena_bytes(const fx_stepper *stepper);
size_t fx_stepper_arena_bound(const fx_stepper *stepper); /* largest max-live bound of its plans */
/* Fills in params, arena, inputs and snapshot. */
void fx_stepper_account(const fx_stepper *stepper, fx_memory_account *account);
fx_plan_cache *fx_stepper_cache(fx_stepper *stepper);
/* Another batch, length or variant of the same model, with its own runtime inputs (all borrowed); B * T may
 * not exceed the first one's. The next prepare looks plans up under the new key; earlier plans stay cached.
 */
fx_status fx_stepper_reconfigure(fx_stepper *stepper, const fx_attention_setup *attention, fx_inputs *inputs);
/* Why the last capture was needed, e.g. "sequence length 64 -> 128". */
const char *fx_stepper_miss_reason(const fx_stepper *stepper);

#ifdef __cplusplus
}
#endif
#endif
