/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: a thread a rank that ends a job whose collectives stand still.
 *
 * The watchdogs of all ranks meet again and again on a control channel of their own; each tells what its rank
 * waits for. A meeting at which some rank has waited too long, or to which a rank does not come, is the last
 * one: the lowest rank prints what every rank was doing, communicators are aborted, and the job is ended.
 *
 * A rank that computes is no alarm, as its watchdog answers; what is watched are collectives. On a GPU, where
 * these are only queued, it is the step as a whole, and errors that the transport has noticed; the table says
 * of each communicator which collective was the last to begin there. */
#ifndef FX_PARALLEL_WATCHDOG_H
#define FX_PARALLEL_WATCHDOG_H

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_WATCHDOG_COMMS = 8 };

typedef struct fx_watchdog_options {
  int timeout_ms;                   /* a collective that takes longer, a watchdog that is silent longer */
  fx_comm *comm[FX_WATCHDOG_COMMS]; /* borrowed until stop; NULL: none */
  const fx_log *log;                /* the sentence and the table, from one rank */
  /* Ends all ranks of the job, on the watchdog's thread; may return, or be NULL: then whoever waits in a
   * collective gets FX_ERR_COMM. */
  void (*fatal)(void *ctx, fx_status status);
  void *ctx;
} fx_watchdog_options;

typedef struct fx_watchdog fx_watchdog;

/* Collective over control (borrowed for the call). FX_ERR_UNSUPPORTED where the transport knows no second
 * control channel. */
fx_status fx_watchdog_start(fx_control *control, fx_watchdog_options options, fx_watchdog **out);
/* A step begins (its number is told in the table) and is over; only steps on a GPU are watched. Any thread.
 */
void fx_watchdog_begin(fx_watchdog *watchdog, int64_t step); /* NULL is fine */
void fx_watchdog_end(fx_watchdog *watchdog);
/* Whether it has given the alarm; then communicators are dead. */
bool fx_watchdog_alarmed(const fx_watchdog *watchdog);
/* together: all ranks stop, and this one waits for them, briefly. Otherwise, after an error of this rank
 * alone, the others will miss it. NULL is fine. */
void fx_watchdog_stop(fx_watchdog *watchdog, bool together);

#ifdef __cplusplus
}
#endif
#endif
