/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/mpi/bootstrap.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/memory.h"
#include "parallel/comm/mpi/mpi_internal.h"

enum {
  YIELD_TURNS = 400, /* about 0.1 to 0.4 ms of polling: most collectives of a step end within it */
  SLEEP_NS = 20000   /* the kernel adds about 50 us of timer slack */
};

int fx_mpi_pause_pass(fx_mpi_pause *pause) {
  if (pause->turns++ < YIELD_TURNS) {
    sched_yield();
    return 0;
  }
  nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
  return 1;
}

fx_status fx_mpi_check(int code, const char *call) {
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  if (code == MPI_SUCCESS) return FX_OK;
  MPI_Error_string(code, text, &length);
  return fx_error(FX_ERR_COMM, "%s: %s", call, text);
}

fx_mpi_context *fx_mpi_context_ref(fx_mpi_context *context) {
  pthread_mutex_lock(&context->mutex);
  context->references++;
  pthread_mutex_unlock(&context->mutex);
  return context;
}

void fx_mpi_context_unref(fx_mpi_context *context) {
  if (!context) return;
  pthread_mutex_lock(&context->mutex);
  int left = --context->references;
  pthread_mutex_unlock(&context->mutex);
  if (left > 0) return;
  /* context->comm is not freed: MPI_Finalize does it, and freeing is collective, which a rank that leaves
   * after an error must not wait for */
  pthread_mutex_destroy(&context->mutex);
  free(context);
}

/* MPI is running; makes errors return and takes a communicator of our own. */
static fx_status fill_context(fx_mpi_context *context, int provided) {
  if (provided < MPI_THREAD_SERIALIZED)
    return fx_error(FX_ERR_COMM,
                    "this MPI offers thread level %d, MPI_THREAD_SERIALIZED (%d) is needed; use an MPI that "
                    "was built with thread support",
                    provided, MPI_THREAD_SERIALIZED);
  FX_TRY(fx_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  FX_TRY(fx_mpi_check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  FX_TRY(fx_mpi_check(MPI_Comm_dup(MPI_COMM_WORLD, &context->comm), "MPI_Comm_dup"));
  FX_TRY(fx_mpi_check(MPI_Comm_set_errhandler(context->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  FX_TRY(fx_mpi_check(MPI_Comm_rank(context->comm, &context->rank), "MPI_Comm_rank"));
  return fx_mpi_check(MPI_Comm_size(context->comm, &context->size), "MPI_Comm_size");
}

fx_status fx_mpi_bootstrap(int *argc, char ***argv, fx_control **out) {
  int running = 0, provided = 0;
  fx_mpi_context *context = NULL;
  MPI_Initialized(&running);
  if (running) return fx_error(FX_ERR_COMM, "MPI is already running in this process; start it once");
  FX_TRY(fx_calloc(&context, 1, sizeof *context));
  pthread_mutex_init(&context->mutex, NULL);
  context->references = 1;
  fx_status status =
      fx_mpi_check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  if (status == FX_OK) status = fill_context(context, provided);
  if (status == FX_OK) status = fx_mpi_control_create(context, out);
  if (status != FX_OK) fx_mpi_context_unref(context);
  return status;
}

void fx_mpi_finalize(void) {
  int running = 0, finished = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&finished);
  if (running && !finished) MPI_Finalize();
}

void fx_mpi_abort(int code) {
  int running = 0, finished = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&finished);
  if (running && !finished) MPI_Abort(MPI_COMM_WORLD, code);
  _Exit(code);
}

const char *fx_mpi_version(char *text, size_t capacity) {
  static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0, major = 0, minor = 0, running = 0, finished = 0, level = -1;
  MPI_Get_library_version(library, &length);
  library[strcspn(library, ",\n")] = '\0'; /* Open MPI goes on with its build host */
  MPI_Get_version(&major, &minor);
  MPI_Initialized(&running);
  MPI_Finalized(&finished);
  if (running && !finished) MPI_Query_thread(&level);
  int index = level == MPI_THREAD_SINGLE       ? 0
              : level == MPI_THREAD_FUNNELED   ? 1
              : level == MPI_THREAD_SERIALIZED ? 2
                                               : 3;
  snprintf(text, capacity, "%s, MPI %d.%d, threads %s", library, major, minor,
           level < 0 ? "not started" : levels[index]);
  return text;
}
