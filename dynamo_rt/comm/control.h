/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel: small host messages between all ranks of a job, apart from the data path. Agreement,
 * bootstrap, checkpoints and the watchdog use it. Every call is collective over all ranks and has a deadline,
 * so that a missing rank becomes an error and never a hang. Called from one thread at a time. */
#ifndef FX_DYNAMO_RT_COMM_CONTROL_H
#define FX_DYNAMO_RT_COMM_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_control fx_control;

typedef struct fx_control_vtable {
  const char *transport;
  fx_status (*all_gather)(fx_control *control, const void *mine, int64_t bytes, char **all, int64_t *offsets,
                          int timeout_ms);
  fx_status (*split)(fx_control *control, const char *name, int id, const int *ranks, int count,
                     fx_comm **out);
  void (*destroy)(fx_control *control);
  fx_status (*duplicate)(fx_control *control, fx_control **out);
  fx_status (*meet)(fx_control *control, const void *mine, int64_t bytes, void *all, bool *here,
                    int timeout_ms);
} fx_control_vtable;

struct fx_control {
  const fx_control_vtable *vtable;
  int rank, size;
};

/* Gathers each rank's `bytes` bytes (they may differ, 0 allowed). *all: malloc'ed, all messages one after the
 * other in rank order plus a final NUL; offsets[size + 1]: where each begins. FX_ERR_COMM when a rank has not
 * answered within timeout_ms; the sentence names how many answered. */
fx_status fx_control_all_gather(fx_control *control, const void *mine, int64_t bytes, char **all,
                                int64_t *offsets, int timeout_ms);
/* Copies rank 0's bytes to every rank (same `bytes` everywhere). */
fx_status fx_control_broadcast(fx_control *control, void *data, int64_t bytes, int timeout_ms);
fx_status fx_control_barrier(fx_control *control, int timeout_ms);
/* The largest of one number a rank; NaN when one is. */
fx_status fx_control_largest(fx_control *control, double mine, double *out, int timeout_ms);
/* The first status that is not FX_OK in rank order, the same on every rank; its sentence (prefixed with the
 * rank) becomes every rank's error text. Lets all ranks leave together when one of them fails. */
fx_status fx_control_agree_status(fx_control *control, fx_status mine, int timeout_ms);
/* Makes the communicator of `ranks` (world ranks in group order, the caller's among them, or count 0 when
 * this rank joins none: *out = NULL). Collective over all ranks of the control channel; disjoint groups may
 * be made in one call. id: the same on all members. */
fx_status fx_control_split(fx_control *control, const char *name, int id, const int *ranks, int count,
                           fx_comm **out);
/* A channel of its own between the same ranks, for another thread. Collective; FX_ERR_UNSUPPORTED where the
 * transport has none. Destroy it before the first. */
fx_status fx_control_duplicate(fx_control *control, fx_control **out);
/* As all_gather, of `bytes` bytes from every rank into all [size * bytes], but ranks that do not come within
 * timeout_ms are no error: here[r] says whose message there is. The channel is dead after one without
 * everybody. */
fx_status fx_control_meet(fx_control *control, const void *mine, int64_t bytes, void *all, bool *here,
                          int timeout_ms);
void fx_control_destroy(fx_control *control); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
