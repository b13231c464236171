/* SPDX-License-Identifier: Apache-2.0 */
/* From the state of a run to checkpoints, at once or beside training.
 *
 * Beside training: the update of the step to be saved copies the new state into the snapshot (phase
 * update_snapshot); the files are laid out; a writer thread of low priority puts the snapshot on disk while
 * training goes on. That a rank has written its part travels as a flag of the step, summed over ranks, so
 * that all learn in the same step that everybody is done, and commit together. One save is in flight at a
 * time. HDF5 and MPI calls stay on the service thread; the writer thread makes neither. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

enum {
  WRITER_NICE = 10,
  WRITER_PERCENT = 12
}; /* of a core: a step that it overlaps may slow by about as much */

/* ---- the parts of a save ---- */

/* What the collectives of a save say of the disk is agreed (checkpoint.h); what they say of memory or of the
 * connection may be this rank's alone. */
static fx_status note_failure(fx_trainer *run, fx_status status) {
  run->failed_together = status == FX_ERR_IO || status == FX_ERR_CHECKPOINT;
  return status;
}

static fx_status run_begin(void *arg, void *stream) {
  fx_trainer *run = arg;
  fx_saver *saver = &run->saver;
  bool zero = run->model->params.zero > 0; /* what is shared is dealt out in the regions */
  (void)stream;
  fx_ckpt_state state = {.step = fx_trainer_iteration(run),
                         .consumed_samples = run->consumed_samples,
                         .optimizer_step = run->optimizer_step,
                         .skipped = run->skipped,
                         .loss_scale = 1.0};
  return fx_ckpt_save_begin(run->job->control, run->config->checkpoint.dir, &state, saver->config_text,
                            saver->regions.region, saver->regions.count,
                            zero ? 0 : run->topology->comm.dp_cp->rank,
                            zero ? 1 : run->topology->comm.dp_cp->size, &saver->writer);
}

static fx_status begin(fx_trainer *run, float *snapshot) {
  fx_saver *saver = &run->saver;
  saver->step = fx_trainer_iteration(run);
  saver->config_text = fx_config_print(run->config);
  fx_status status = saver->config_text ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory");
  if (status == FX_OK) status = fx_trainer_regions(run, snapshot, true, &saver->regions);
  if (status == FX_OK)
    status = note_failure(run, fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_begin, run));
  free(saver->config_text);
  saver->config_text = NULL;
  if (status != FX_OK) fx_regions_fini(&saver->regions);
  return status;
}

static fx_status run_commit(void *arg, void *stream) {
  fx_trainer *run = arg;
  fx_saver *saver = &run->saver;
  (void)stream;
  if (saver->written != FX_OK) fx_error(saver->written, "%s", saver->text); /* this thread's record */
  const fx_log *log = run->job->control->rank == 0 ? run->job->log : NULL;
  return fx_ckpt_save_commit(saver->writer, saver->written, (int)run->config->checkpoint.keep, log, NULL);
}

static fx_status commit(fx_trainer *run) {
  fx_status status = note_failure(run, fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_commit, run));
  fx_regions_fini(&run->saver.regions);
  run->saver.writer = NULL;
  if (status == FX_OK) run->saved_since_start = true;
  return status;
}

static void write_now(fx_saver *saver) {
  saver->written = fx_ckpt_save_write(saver->writer);
  if (saver->written != FX_OK) strncpy(saver->text, fx_error_text(), sizeof saver->text - 1);
  __atomic_store_n(&saver->done, true, __ATOMIC_RELEASE);
}

static void *writer_main(void *arg) {
  setpriority(PRIO_PROCESS, 0, WRITER_NICE); /* on Linux: of this thread; training goes first */
  write_now(arg);
  return NULL;
}

/* ---- what the loop calls ---- */

fx_status fx_trainer_save_finish(fx_trainer *run) {
  if (!run->saver.writer) return FX_OK;
  fx_ckpt_save_pace(run->saver.writer, 100);
  pthread_join(run->saver.thread, NULL);
  return commit(run);
}

fx_status fx_trainer_save_start(fx_trainer *run) {
  FX_TRY(fx_trainer_save_finish(run));
  FX_TRY(begin(run, run->snapshot));
  __atomic_store_n(&run->saver.done, false, __ATOMIC_RELEASE);
  fx_ckpt_save_pace(run->saver.writer, WRITER_PERCENT);
  if (pthread_create(&run->saver.thread, NULL, writer_main, &run->saver) == 0) return FX_OK;
  write_now(&run->saver); /* no thread to be had: slower, but saved */
  return commit(run);
}

bool fx_trainer_save_written(const fx_trainer *run) {
  return run->saver.writer && __atomic_load_n(&run->saver.done, __ATOMIC_ACQUIRE);
}

/* A state that the host cannot touch is copied, into the snapshot where there is one: no save is in flight.
 */
static fx_status present_state(const fx_trainer *run, float **copy, float **own) {
  *copy = *own = NULL;
  if (fx_params_on_host(&run->model->params)) return FX_OK;
  *copy = run->snapshot;
  if (!*copy) {
    FX_TRY(fx_alloc_aligned(own, 3 * (size_t)run->model->params.num_own * sizeof **own));
    *copy = *own;
  }
  return fx_trainer_copy_state(run, *copy, true);
}

fx_status fx_trainer_save(fx_trainer *run) {
  float *copy = NULL, *own = NULL;
  FX_TRY(fx_trainer_save_finish(run));
  fx_status status = fx_trainer_barrier_status(run, present_state(run, &copy, &own));
  if (status == FX_OK) status = begin(run, copy);
  if (status == FX_OK) {
    write_now(&run->saver);
    status = commit(run);
  }
  free(own);
  return status;
}

void fx_trainer_save_abandon(fx_trainer *run) {
  if (!run->saver.writer) return;
  fx_ckpt_save_pace(run->saver.writer, 100);
  pthread_join(run->saver.thread, NULL);
  fx_ckpt_save_abandon(run->saver.writer);
  fx_regions_fini(&run->saver.regions);
  run->saver.writer = NULL;
}
