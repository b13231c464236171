/* SPDX-License-Identifier: Apache-2.0 */
/* CPU or GPU, from what each rank sees and would take: every rank of a host needs a whole GPU of its own,
 * whether ranks are shown all GPUs of their host or one each. */
#include <stdio.h>
#include <string.h>

#include "core/train/device.h"
#include "tests/harness.h"

enum { MOST_RANKS = 4 };

typedef struct seen {
  char host, gpu; /* gpu: what the rank would take; 0: none */
  int gpus;       /* that it sees */
} seen;

typedef struct job {
  const char *what;
  int size;
  seen rank[MOST_RANKS];
  bool wants;          /* auto takes GPUs */
  const char *refused; /* part of the sentence under cuda; NULL: none about GPUs that ranks share */
} job;

static const job g_jobs[] = {
    {"one rank", 1, {{'a', 'x', 1}}, true, NULL},
    {"one rank of eight GPUs", 1, {{'a', 'x', 8}}, true, NULL},
    {"one rank without", 1, {{'a', 0, 0}}, false, NULL},
    {"each sees both", 2, {{'a', 'x', 2}, {'a', 'y', 2}}, true, NULL},
    {"each sees its own", 2, {{'a', 'x', 1}, {'a', 'y', 1}}, true, NULL},
    {"one sees both, one its own", 2, {{'a', 'x', 2}, {'a', 'y', 1}}, true, NULL},
    {"both see the same one",
     2,
     {{'a', 'x', 1}, {'a', 'x', 1}},
     false,
     "ranks 0 and 1 would share a GPU (2 ranks on their host, which shows rank %d 1 GPU)"},
    {"both take the first of two",
     2,
     {{'a', 'x', 2}, {'a', 'x', 2}},
     false,
     "ranks 0 and 1 would share a GPU (2 ranks on their host, which shows rank %d 2 GPUs)"},
    {"two hosts", 4, {{'a', 'x', 2}, {'b', 'p', 2}, {'a', 'y', 2}, {'b', 'q', 2}}, true, NULL},
    {"two hosts that number alike", 2, {{'a', 'x', 1}, {'b', 'x', 1}}, true, NULL},
    {"a rank without among those with", 3, {{'a', 'x', 2}, {'a', 'y', 2}, {'b', 0, 0}}, false, NULL},
    {"ranks without", 4, {{'a', 0, 0}, {'a', 0, 0}, {'b', 0, 0}, {'b', 0, 0}}, false, NULL},
    {"only the first rank without", 3, {{'b', 0, 0}, {'a', 'x', 2}, {'a', 'y', 2}}, false, NULL}};
enum { JOBS = sizeof g_jobs / sizeof g_jobs[0] };

/* One GPU that two of three ranks share. */
static const job g_third = {"third", 3, {{'a', 'x', 2}, {'a', 'y', 2}, {'a', 'x', 2}}, false, NULL};

static void fill(const job *j, fx_affinity *ranks) {
  memset(ranks, 0, MOST_RANKS * sizeof *ranks);
  for (int r = 0; r < j->size; r++) {
    ranks[r].host = (uint64_t)j->rank[r].host;
    ranks[r].gpus = j->rank[r].gpus;
    if (j->rank[r].gpu) ranks[r].gpu[FX_CUDA_UUID_BYTES - 1] = (uint8_t)j->rank[r].gpu;
  }
}

static fx_config *config_of(const char *device, int head_dim) {
  char yaml[160];
  fx_config *config = NULL;
  snprintf(yaml, sizeof yaml, "runtime: {device: %s}\nmodel: {head_dim: %d}\n", device, head_dim);
  CHECK_OK(fx_config_parse(yaml, "choice", &config));
  return config;
}

/* All ranks compute it from the same records, so one answer is everybody's. */
static void automatic(void) {
  fx_affinity ranks[MOST_RANKS];
  fx_config *config = config_of("auto", 64), *odd = config_of("auto", 48), *cpu = config_of("cpu", 64);
  if (!config || !odd || !cpu) return;
  for (int i = 0; i < JOBS; i++) {
    const job *j = &g_jobs[i];
    fill(j, ranks);
    bool got = fx_device_wants_cuda(config, ranks, j->size);
    CHECK_MSG(got == j->wants, "%s: expected %s, got %s", j->what, j->wants ? "GPUs" : "the CPU",
              got ? "GPUs" : "the CPU");
    CHECK_MSG(!fx_device_wants_cuda(odd, ranks, j->size), "%s: no kernel has a head_dim of 48", j->what);
    CHECK_MSG(!fx_device_wants_cuda(cpu, ranks, j->size), "%s: runtime.device=cpu", j->what);
  }
  fx_config_destroy(cpu);
  fx_config_destroy(odd);
  fx_config_destroy(config);
}

/* Only where there are GPUs that auto leaves. */
static void what_auto_says(void) {
  static const struct {
    const job *job;
    int head_dim;
    const char *device, *why;
  } rows[] = {{&g_jobs[0], 64, "auto", NULL},
              {&g_jobs[0], 64, "cpu", NULL},
              {&g_jobs[6], 64, "cuda", NULL},
              {&g_jobs[11], 48, "auto", NULL},
              {&g_jobs[0], 48, "auto", "there is no attention kernel on GPUs for model.head_dim=48"},
              {&g_jobs[3], 80, "auto", "there is no attention kernel on GPUs for model.head_dim=80"},
              {&g_jobs[6], 64, "auto", "ranks 0 and 1 would share a GPU"},
              {&g_third, 64, "auto", "ranks 0 and 2 would share a GPU"},
              {&g_jobs[10], 64, "auto", "rank 2 sees no GPU"},
              {&g_jobs[12], 64, "auto", "rank 0 sees no GPU"}};
  fx_affinity ranks[MOST_RANKS];
  char text[96];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_config *config = config_of(rows[i].device, rows[i].head_dim);
    if (!config) return;
    fill(rows[i].job, ranks);
    const char *why = fx_device_why_cpu(config, ranks, rows[i].job->size, text, sizeof text);
    CHECK_STR(why ? why : "", rows[i].why ? rows[i].why : "");
    fx_config_destroy(config);
  }
}

/* On the ranks that share a GPU, and on no other; without a GPU here those fail for want of one. */
static void refused(void) {
  fx_affinity ranks[MOST_RANKS];
  fx_config *config = config_of("cuda", 64);
  if (!config) return;
  for (int i = 0; i < JOBS; i++) {
    const job *j = &g_jobs[i];
    fill(j, ranks);
    CHECK(fx_device_wants_cuda(config, ranks, j->size));
    for (int r = 0; r < j->size; r++) {
      char sentence[160] = "";
      fx_device *device = NULL;
      fx_status status = fx_device_choose(config, ranks, j->size, r, 1, &device);
      fx_device_destroy(device);
      if (!j->refused) {
        CHECK_MSG(status == FX_OK || !strstr(fx_error_text(), "would share"), "%s: rank %d is refused: %s",
                  j->what, r, fx_error_text());
        continue;
      }
      CHECK_STATUS(status, FX_ERR_DEVICE);
      snprintf(sentence, sizeof sentence, j->refused, r);
      CHECK_HAS(fx_error_text(), sentence);
      CHECK_HAS(fx_error_text(), "start fewer ranks there, check CUDA_VISIBLE_DEVICES");
    }
  }
  fx_config_destroy(config);
}

/* The rank that has a GPU to itself is not the one to complain. */
static void the_sharers_are_named(void) {
  fx_affinity ranks[MOST_RANKS];
  fx_device *device = NULL;
  fx_config *config = config_of("cuda", 64);
  if (!config) return;
  fill(&g_third, ranks);
  for (int r = 0; r <= 2; r += 2) {
    CHECK_STATUS(fx_device_choose(config, ranks, 3, r, 1, &device), FX_ERR_DEVICE);
    CHECK_HAS(fx_error_text(), "ranks 0 and 2 would share a GPU (3 ranks on their host");
  }
  fx_config_destroy(config);
}

/* This process: it takes one of what it sees. */
static void of_this_process(void) {
  static const uint8_t none[FX_CUDA_UUID_BYTES];
  fx_affinity own = fx_affinity_get(), again = fx_affinity_get();
  CHECK((own.gpus == 0) == (memcmp(own.gpu, none, sizeof none) == 0));
  CHECK(memcmp(&own, &again, sizeof own) == 0);
}

static const fx_test g_tests[] = {{"auto: GPUs where every rank has one of its own", automatic},
                                  {"what auto says of GPUs that it leaves", what_auto_says},
                                  {"cuda: ranks that would share one are refused", refused},
                                  {"the ranks that share are named", the_sharers_are_named},
                                  {"what this process takes", of_this_process}};
FX_TEST_MAIN("core/device_choice", g_tests)
