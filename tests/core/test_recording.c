/* SPDX-License-Identifier: Apache-2.0 */
/* The choice between CUDA graphs and kernels launched one by one, without a GPU: plans of a CPU that says it
 * can record (nothing runs here), and times of steps that the test makes up. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/state.h"
#include "parallel/comm/local/local.h"
#include "tests/core/fixture.h"

enum { MAX_RANKS = 4, STEPS = 8 };

static void medians_decide(void) {
  static const struct {
    double recorded[3], launched[3]; /* ms */
    bool slower;
  } cases[] = {
      {{9, 9, 9}, {8, 8, 8}, true},        {{8, 8, 8}, {9, 9, 9}, false},  {{8, 8, 8}, {8, 8, 8}, false},
      {{8.1, 8.1, 8.1}, {8, 8, 8}, false}, /* steps vary by as much */
      {{8.2, 8.2, 8.2}, {8, 8, 8}, true},  /* one odd step, in each place */
      {{90, 8, 8}, {9, 9, 9}, false},      {{8, 90, 8}, {9, 9, 9}, false}, {{8, 8, 90}, {9, 9, 9}, false},
      {{1, 9, 9}, {8, 8, 8}, true},        {{9, 1, 9}, {8, 8, 8}, true},   {{9, 9, 1}, {8, 8, 8}, true},
      {{9, 9, 9}, {90, 8, 8}, true},       {{8, 8, 8}, {9, 1, 9}, false},  {{7, 8, 9}, {6, 7, 90}, true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    CHECK_MSG(fx_recording_is_slower(cases[i].recorded, cases[i].launched) == cases[i].slower,
              "case %zu: expected that graphs are%s slower", i, cases[i].slower ? "" : " not");
}

/* ---- ranks ---- */

static const char g_yaml[] =
    "model: {vocab_size: 61, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}\n"
    "train: {seq_length: 16, micro_batch_size: 1}\n";

/* Never called: nothing runs. */
static fx_status record_nothing(fx_device *device, unsigned lanes) {
  (void)device;
  (void)lanes;
  return FX_ERR_INTERNAL;
}

typedef struct choice {
  pthread_mutex_t mutex; /* the harness counts one check at a time */
  bool slower;           /* rank 0 finds graphs slower and the others find them faster; or the opposite */
  const char *mode;
  bool records;                       /* the device */
  bool replays[MAX_RANKS][1 + STEPS]; /* whether the next step runs recordings, after so many */
  char *log[MAX_RANKS];
  size_t bytes[MAX_RANKS];
} choice;

/* In ms: medians of 8 and 10. The steps that are not to count, the first and the one that makes the
 * recordings, take long. */
static double step_ms(bool slower, int64_t step) {
  if (step == 1 || step == 5) return 500;
  static const double spread[] = {0, 1, -1};
  return ((step < 5) == slower ? 8 : 10) + spread[(step - 2) % 4];
}

static fx_status choose(fx_control *control, void *ctx) {
  choice *c = ctx;
  int rank = control->rank;
  fixture f;
  char yaml[512];
  fx_phase phase = FX_PHASE_UPDATE;
  snprintf(yaml, sizeof yaml, "%sruntime: {mode: %s}\n", g_yaml, c->mode);
  pthread_mutex_lock(&c->mutex);
  bool made = fixture_init(&f, yaml, 1, 16, (fixture_options){.threads = 1});
  pthread_mutex_unlock(&c->mutex);
  if (!made) return FX_ERR_INTERNAL;
  fx_device_vtable table = *f.device->vtable;
  const fx_device_vtable *own = f.device->vtable;
  if (c->records) table.record_begin = record_nothing;
  f.device->vtable = &table;
  fx_status status = FX_OK;
  fx_log log = {.stream = open_memstream(&c->log[rank], &c->bytes[rank]), .level = FX_LOG_INFO};
  fx_job job = {.control = control, .log = &log};
  fx_trainer run = {.config = f.config, .job = &job, .device = f.device, .stepper = f.stepper};
  FX_TRY_GOTO(fx_stepper_prepare(f.stepper, &phase, 1), close_log);
  fx_trainer_recording_begin(&run);
  for (int64_t step = 0; step <= STEPS; step++) {
    if (step > 0)
      FX_TRY_GOTO(fx_trainer_recording_step(&run, step, step_ms(c->slower == (rank == 0), step) / 1e3),
                  close_log);
    c->replays[rank][step] = fx_plan_records(fx_stepper_plan(f.stepper, phase));
  }
close_log:
  fclose(log.stream);
  f.device->vtable = own;
  fixture_fini(&f);
  return status;
}

static bool run_choice(choice *c, int ranks) {
  memset(c->log, 0, sizeof c->log);
  pthread_mutex_init(&c->mutex, NULL);
  fx_status status = fx_local_run(ranks, choose, c);
  pthread_mutex_destroy(&c->mutex);
  return CHECK_OK(status);
}

static void rank_0_decides_for_all(void) {
  static const bool before[STEPS] = {false, false, false, false, true, true, true, true};
  for (int ranks = 1; ranks <= MAX_RANKS; ranks++)
    for (int slower = 0; slower < 2; slower++) {
      choice c = {.slower = slower, .mode = "replay", .records = true};
      if (!run_choice(&c, ranks)) return;
      for (int r = 0; r < ranks; r++) {
        for (int step = 0; step < STEPS; step++)
          CHECK_MSG(c.replays[r][step] == before[step], "rank %d of %d after %d steps: expected %s", r, ranks,
                    step, before[step] ? "recordings" : "launches");
        CHECK_MSG(c.replays[r][STEPS] == !slower, "rank %d of %d goes on with %s, rank 0 found graphs %s", r,
                  ranks, slower ? "graphs" : "launches", slower ? "slower" : "faster");
        if (r > 0) CHECK_STR(c.log[r], "");
      }
      CHECK_STR(c.log[0],
                slower
                    ? "a step takes 10.00 ms through CUDA graphs and 8.00 ms launched kernel by kernel: the "
                      "run launches, because graphs are not faster here\n"
                    : "a step takes 8.00 ms through CUDA graphs and 10.00 ms launched kernel by kernel: the "
                      "run goes on with graphs\n");
      for (int r = 0; r < ranks; r++) free(c.log[r]);
    }
}

/* A device that cannot record, and a run that asks for none: plans are left as they are, nothing is said. */
static void others_choose_nothing(void) {
  const choice cases[] = {{.mode = "replay", .records = false}, {.mode = "eager", .records = true}};
  for (int i = 0; i < 2; i++) {
    choice c = cases[i];
    if (!run_choice(&c, 2)) return;
    for (int r = 0; r < 2; r++) {
      for (int step = 0; step <= STEPS; step++) CHECK_INT(c.replays[r][step], cases[i].records);
      CHECK_STR(c.log[r], "");
      free(c.log[r]);
    }
  }
}

static const fx_test tests[] = {{"medians decide", medians_decide},
                                {"rank 0 decides for all", rank_0_decides_for_all},
                                {"others choose nothing", others_choose_nothing}};
FX_TEST_MAIN("recording", tests)
