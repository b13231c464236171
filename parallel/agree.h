/* SPDX-License-Identifier: Apache-2.0 */
/* Rank agreement: what makes a divergence a named error instead of a hang.
 *
 * What ranks must have alike they compare as text (fx_agree_text): a configuration before anything follows
 * from it (core/config/agree.h), and plans. Before a plan first runs, ranks compare what they are about to do
 * (fx_agree_plans); then each compiles, at its own speed, and nobody starts before all are ready
 * (fx_agree_ready). */
#ifndef FX_PARALLEL_AGREE_H
#define FX_PARALLEL_AGREE_H

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Texts of two ranks that are not the same: rank 0's and that of the first rank unlike it. Borrowed. */
typedef struct fx_agree_pair {
  int rank; /* whose text is `right` */
  const char *left, *right;
  int64_t left_bytes, right_bytes; /* behind the last text there is a NUL */
  const char *others;              /* "", or " (unlike rank 0 are ranks 1 2 3)" where they are several */
} fx_agree_pair;

/* Says in one sentence where the two differ, and returns FX_ERR_DIVERGED; FX_OK when it finds no place. */
typedef fx_status (*fx_agree_tell)(const fx_agree_pair *pair);

/* Compares a text (NULs may stand in it) of every rank. Collective over the control channel. Digests travel
 * first; texts only when digests differ, and only those of rank 0 and of the first rank that differs from it;
 * then every rank calls `tell` with the same two. FX_ERR_DIVERGED: what `tell` said. FX_ERR_COMM: a rank did
 * not arrive within timeout_ms; the sentence names the missing ones. */
fx_status fx_agree_text(fx_control *control, const char *text, int64_t bytes, fx_agree_tell tell,
                        int timeout_ms);

/* Compares the `count` plans of every rank: names in order, and ledgers (fx_plan_ledger: one line an entry).
 * Collective over the control channel, borrowed arguments; travels as fx_agree_text does. FX_ERR_DIVERGED:
 * the sentence, the same on every rank, names both ranks, the plan, the number of the first entry that
 * differs (counted from 1) and both entries with their source lines, or says that a rank "has no entry N".
 * FX_ERR_COMM as there. */
fx_status fx_agree_plans(fx_control *control, const char *const *plan_names, const char *const *ledgers,
                         int count, int timeout_ms);

/* What a rank does before it is ready: compile, tune, allocate. */
typedef fx_status (*fx_agree_work)(void *ctx);

typedef struct fx_agree_ready_options {
  int heartbeat_ms;  /* pause between two heartbeats of a rank that works */
  int silence_ms;    /* a rank whose heartbeat does not come for this long is lost */
  int timeout_ms;    /* a rank that works longer than this is given up, though it still answers */
  const fx_log *log; /* says whom we wait for, on the first rank that does; NULL: silent */
} fx_agree_ready_options;

/* Runs work(ctx) on the calling thread (NULL: nothing to do) while a helper thread exchanges heartbeats, and
 * returns when all ranks are done. Slow is not diverged: a rank that works keeps answering and is waited for;
 * a rank that answers no more (dead, stuck in the kernel, suspended) is an error after silence_ms. A
 * heartbeat proves that the process lives, not that its work advances: that is what timeout_ms is for. When
 * work fails somewhere every rank returns the first such failure in rank order ("rank 2: ..."), after its own
 * work ended. The control channel must not be used by work. FX_ERR_COMM: a rank is silent or too slow; named.
 * When a rank is too slow the others return at once, the slow one when its work ends. */
fx_status fx_agree_ready(fx_control *control, fx_agree_work work, void *ctx, fx_agree_ready_options options);
/* The same for work that a job compiles with: it may take half an hour, signs of life two minutes. */
fx_status fx_agree_compiled(fx_control *control, fx_agree_work work, void *ctx, const fx_log *log);

#ifdef __cplusplus
}
#endif
#endif
