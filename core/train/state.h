/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a run, private to core/train: trainer.c builds and drives them, resume.c saves and restores
 * them. */
#ifndef FX_CORE_TRAIN_STATE_H
#define FX_CORE_TRAIN_STATE_H

#include <pthread.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/metrics.h"
#include "core/train/pipeline.h"
#include "core/train/step.h"
#include "core/train/trainer.h"
#include "parallel/topology.h"
#include "parallel/watchdog.h"

enum { FX_CONTROL_TIMEOUT_MS = 120000 }; /* a rank that says nothing for this long is taken for dead */

/* Weights and moments of this rank as regions of a checkpoint. */
typedef struct fx_region_list {
  fx_ckpt_region *region;
  char (*path)[FX_CKPT_PATH_BYTES];
  int64_t count;
} fx_region_list;

/* The save in flight, if any. */
typedef struct fx_saver {
  fx_ckpt_writer *writer; /* NULL: none */
  fx_region_list regions;
  char *config_text;
  int64_t step;
  pthread_t thread;
  bool done; /* accessed atomically: the thread has written, with this outcome: */
  fx_status written;
  char text[2048];
} fx_saver;

typedef struct fx_trainer {
  const fx_config *config;
  const fx_job *job;
  fx_device *device;
  fx_topology *topology;
  char topology_text[64];
  fx_model *model;
  fx_attention_setup *attention;
  fx_inputs *inputs;
  fx_stepper *stepper;
  fx_pipeline *pipeline;
  fx_metrics *metrics; /* rank 0 */
  fx_trace *trace;
  fx_watchdog *watchdog;                             /* NULL: one rank, or none wanted */
  int64_t consumed_samples, optimizer_step, skipped; /* with the weights: the state of training */
  int64_t bad_in_a_row;
  float *snapshot; /* [3 * num_own], or NULL when nothing is saved beside training */
  fx_saver saver;
  fx_memory_account memory;
  double peak_flops;  /* of a rank's GPU, nominal; 0: unknown, or a CPU */
  char *resumed_from; /* path of the step that this run started from, or NULL */
  bool saved_since_start, stopped;
  bool failed_together; /* the failure is a save's, which every rank has learnt */
  double tokens, seconds, last_loss, last_valid_loss;
  struct {
    bool wanted;
    double launched_s[3], recorded_s[3]; /* of steps each way */
  } recording;
} fx_trainer;

static inline int64_t fx_trainer_iteration(const fx_trainer *run) {
  return run->optimizer_step + run->skipped;
}

/* Control-channel calls are MPI calls: they go through the service thread, as every one does. */
fx_status fx_trainer_barrier_status(fx_trainer *run, fx_status mine);
fx_status fx_trainer_gather(fx_trainer *run, const void *mine, int64_t bytes, char **all, int64_t *offsets);

/* recording.c: makes the choice between recordings and launched kernels over the first steps. step: after
 * step number `done` of this process (from 1), which took `seconds`; collective in the step that decides.
 * is_slower: whether steps through recordings take so much longer than launched ones, by the medians of three
 * each, that launching pays. */
void fx_trainer_recording_begin(fx_trainer *run);
fx_status fx_trainer_recording_step(fx_trainer *run, int64_t done, double seconds);
bool fx_recording_is_slower(const double recorded_s[3], const double launched_s[3]);

/* resume.c: fills weights and state from checkpoint.resume, or initialises them. Collective. */
fx_status fx_trainer_restore(fx_trainer *run);

/* regions.c. regions: of a copy [3 * num_own] of what this rank keeps (weights, both moments), or, on the
 * host, of the live state (NULL); to save, which leaves out what another rank owns, or to load. copy_state:
 * between such a copy and the state. */
fx_status fx_trainer_regions(const fx_trainer *run, float *copy, bool save, fx_region_list *list);
fx_status fx_trainer_copy_state(const fx_trainer *run, float *copy, bool to_host);
void fx_regions_fini(fx_region_list *list);

/* save.c. save, start and finish are collective: the same
 * calls in the same steps on every rank. save: writes the present state and returns when it is a checkpoint.
 * start: after an update_snapshot, begins a save beside training. written: this rank's part is on disk.
 * finish: waits for the save in flight and completes it. abandon: local; waits for the thread and drops the
 * save (after an error elsewhere). */
fx_status fx_trainer_save(fx_trainer *run);
fx_status fx_trainer_save_start(fx_trainer *run);
bool fx_trainer_save_written(const fx_trainer *run);
fx_status fx_trainer_save_finish(fx_trainer *run);
void fx_trainer_save_abandon(fx_trainer *run);

#endif
