/* SPDX-License-Identifier: Apache-2.0 */
/* What the MPI control channel and the MPI communicators share: the lock that serialises every MPI call, how
 * a wait passes its time, and how an MPI error becomes a status. */
#ifndef FX_PARALLEL_COMM_MPI_MPI_INTERNAL_H
#define FX_PARALLEL_COMM_MPI_MPI_INTERNAL_H

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>

#include "dynamo_rt/comm/control.h"

/* Shared by the control channel and all communicators made from it; freed with the last of them. */
typedef struct fx_mpi_context {
  pthread_mutex_t mutex; /* held around every MPI call, never while waiting */
  int references;        /* guarded by mutex */
  MPI_Comm comm;         /* all ranks, a duplicate of MPI_COMM_WORLD */
  int rank, size;
} fx_mpi_context;

fx_mpi_context *fx_mpi_context_ref(fx_mpi_context *context);
void fx_mpi_context_unref(fx_mpi_context *context); /* NULL is fine */

/* FX_OK, or FX_ERR_COMM with MPI's own words about `code`. */
fx_status fx_mpi_check(int code, const char *call);

/* Passes a moment of a wait: yields at first, then sleeps, so that ranks which share cores get on. Starts
 * zeroed. */
typedef struct fx_mpi_pause {
  int turns;
} fx_mpi_pause;
int fx_mpi_pause_pass(fx_mpi_pause *pause); /* whether it slept */

/* control.c. Takes over one reference of the context. */
fx_status fx_mpi_control_create(fx_mpi_context *context, fx_control **out);
/* comm.c. Takes `comm` (MPI_COMM_NULL for a group of one), whatever comes out. */
fx_status fx_mpi_comm_create(fx_mpi_context *context, MPI_Comm comm, const char *name, int id, int rank,
                             int size, fx_comm **out);

#endif
