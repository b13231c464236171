/* SPDX-License-Identifier: Apache-2.0 */
/* Start and end of a job over MPI. This folder is the only one that includes mpi.h; what it hands out are the
 * transport-free fx_control and, through fx_control_split, fx_comm.
 *
 * Threads: MPI is initialised as MPI_THREAD_SERIALIZED and one lock guards every call, so the main thread may
 * use the control channel while the service thread carries out collectives; waits never hold the lock. */
#ifndef FX_PARALLEL_COMM_MPI_BOOTSTRAP_H
#define FX_PARALLEL_COMM_MPI_BOOTSTRAP_H

#include <stddef.h>

#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* MPI_Init_thread and the control channel of all ranks. Without mpirun: a job of one rank. argc and argv may
 * be NULL. FX_ERR_COMM when MPI cannot start or gives less than MPI_THREAD_SERIALIZED. Once a process. */
fx_status fx_mpi_bootstrap(int *argc, char ***argv, fx_control **out);
/* After communicators and control channel are destroyed; collective: every rank must come. When a rank is
 * missing or a communicator is dead use fx_mpi_abort. Does nothing when MPI is not running. */
void fx_mpi_finalize(void);
/* Ends all ranks of the job with the exit code `code`; does not return. For launch's `fatal` callback. */
void fx_mpi_abort(int code) __attribute__((noreturn));
/* One line for `flexion doctor`: library, standard, thread level; callable before fx_mpi_bootstrap. Returns
 * text. */
const char *fx_mpi_version(char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
