/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/prefetch.h"
#include "tests/data/fixture.h"

enum { T = 64, G = 12, B = 2, R = 3, MICROS = 2, BATCHES = 40 };

typedef struct setup {
  fixture f;
  fx_sampler *sampler;
  fx_prefetch_options options;
} setup;

/* In place: the sampler borrows s->f.documents. */
static void setup_init(setup *s, int64_t consumed, int depth) {
  s->f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS);
  s->sampler = sampler_make(&s->f.documents, T, FX_PACKING_DOCUMENTS, true, true, 77);
  s->options = (fx_prefetch_options){
      .sampler = s->sampler, .layout = {B, G, 1, R}, .consumed_samples = consumed, .depth = depth};
}

static void setup_free(setup *s) {
  fx_sampler_destroy(s->sampler);
  fixture_free(&s->f);
}

/* What batch i (counted from `consumed`) must be, filled here and by a sampler of its own. */
static bool equals_direct(const setup *s, const fx_batch *got, int64_t consumed, int64_t i) {
  fx_sampler *fresh = sampler_make(&s->f.documents, T, FX_PACKING_DOCUMENTS, true, true, 77);
  fx_batch *want = NULL;
  bool equal = false;
  if (CHECK_OK(fx_batch_create(B, T, NULL, 0, NULL, &want))) {
    fx_batch_fill(want, fresh, &s->options.layout, consumed + i / MICROS * G, i % MICROS, -1);
    equal = batches_equal(got, want);
  }
  fx_batch_destroy(want);
  fx_sampler_destroy(fresh);
  return equal;
}

/* Prefetched = filled directly, from any start, for every depth, across epochs (22 samples each). */
static void equals_fill(void) {
  for (int depth = 1; depth <= 5; depth += 2)
    for (int64_t consumed = 0; consumed <= 10 * G; consumed += 5 * G) {
      setup s;
      setup_init(&s, consumed, depth);
      fx_prefetch *prefetch = NULL;
      if (CHECK_OK(fx_prefetch_create(&s.options, &prefetch)))
        for (int64_t i = 0; i < BATCHES; i++) {
          fx_batch *batch = NULL;
          if (!CHECK_OK(fx_prefetch_next(prefetch, &batch))) break;
          CHECK_MSG(equals_direct(&s, batch, consumed, i), "depth %d, from sample %lld: batch %lld differs",
                    depth, (long long)consumed, (long long)i);
          CHECK_INT(fx_batch_count_valid(s.sampler, batch->consumed_samples, G), batch->global_valid);
          fx_prefetch_release(prefetch, batch);
        }
      if (prefetch) CHECK_INT(fx_prefetch_get_stats(prefetch).batches, BATCHES);
      fx_prefetch_destroy(prefetch);
      setup_free(&s);
    }
}

/* Batches in hand are not touched by the thread, and come back in any order. */
static void held_batches(void) {
  setup s;
  setup_init(&s, 0, 3);
  fx_prefetch *prefetch = NULL;
  if (!CHECK_OK(fx_prefetch_create(&s.options, &prefetch))) return;
  for (int64_t round = 0; round < 6; round++) {
    fx_batch *held[3], *more = NULL;
    for (int i = 0; i < 3; i++) CHECK_OK(fx_prefetch_next(prefetch, &held[i]));
    CHECK_STATUS(fx_prefetch_next(prefetch, &more), FX_ERR_INTERNAL);
    CHECK_HAS(fx_error_text(), "all 3 batches are held");
    CHECK_STATUS(fx_prefetch_seek(prefetch, 0), FX_ERR_INTERNAL);
    fx_sleep_ms(2);
    for (int i = 0; i < 3; i++) CHECK(equals_direct(&s, held[i], 0, round * 3 + i));
    fx_prefetch_release(prefetch, held[round % 3]);
    fx_prefetch_release(prefetch, held[(round + 2) % 3]);
    fx_prefetch_release(prefetch, held[(round + 1) % 3]);
  }
  fx_prefetch_destroy(prefetch);
  setup_free(&s);
}

typedef struct stage_log {
  int64_t value, calls, fail_at;
  int sleep_ms;
  pthread_t caller;
  bool on_caller;
} stage_log;

/* trail = 10 * trail + value: tells the order. */
static fx_status stage(void *ctx, fx_batch *batch) {
  stage_log *log = ctx;
  log->on_caller |= pthread_equal(pthread_self(), log->caller) != 0;
  if (log->sleep_ms) fx_sleep_ms(log->sleep_ms);
  if (log->fail_at && ++log->calls == log->fail_at)
    return fx_error(FX_ERR_SHAPE, "batch %lld does not fit", (long long)log->calls);
  void *data;
  FX_TRY(fx_batch_buffer(batch, "trail", FX_I64, 1, &data));
  int64_t *trail = data;
  if (log->value == 1) *trail = 0;
  *trail = 10 * *trail + log->value + (batch->tokens[0] == 0 && batch->valid ? 100000 : 0);
  return FX_OK;
}

static const fx_batch_field trail_field = {.name = "trail", .dtype = FX_I64, .elements = 1};

static void stages_in_order(void) {
  setup s;
  setup_init(&s, 0, 2);
  stage_log logs[3] = {{.value = 1}, {.value = 2}, {.value = 3}};
  fx_batch_stage stages[3];
  for (int i = 0; i < 3; i++) {
    logs[i].caller = pthread_self();
    stages[i] = (fx_batch_stage){"trail", stage, &logs[i]};
  }
  s.options.fields = &trail_field;
  s.options.n_fields = 1;
  s.options.stages = stages;
  s.options.n_stages = 3;
  fx_prefetch *prefetch = NULL;
  if (CHECK_OK(fx_prefetch_create(&s.options, &prefetch)))
    for (int i = 0; i < 10; i++) {
      fx_batch *batch = NULL;
      if (!CHECK_OK(fx_prefetch_next(prefetch, &batch))) break;
      CHECK_INT(*(const int64_t *)fx_batch_find(batch, "trail")->data, 123);
      CHECK(equals_direct(&s, batch, 0, i));
      fx_prefetch_release(prefetch, batch);
    }
  fx_prefetch_destroy(prefetch);
  for (int i = 0; i < 3; i++) CHECK(!logs[i].on_caller);
  setup_free(&s);
}

/* Good batches first, then the sentence, every time; a seek starts afresh. */
static void error_and_seek(void) {
  setup s;
  setup_init(&s, 0, 3);
  stage_log log = {.value = 1, .fail_at = 6};
  fx_batch_stage failing = {"mask limits", stage, &log};
  s.options.fields = &trail_field;
  s.options.n_fields = 1;
  s.options.stages = &failing;
  s.options.n_stages = 1;
  fx_prefetch *prefetch = NULL;
  if (!CHECK_OK(fx_prefetch_create(&s.options, &prefetch))) return;
  for (int i = 0; i < 5; i++) {
    fx_batch *batch = NULL;
    if (!CHECK_OK(fx_prefetch_next(prefetch, &batch))) break;
    CHECK(equals_direct(&s, batch, 0, i));
    fx_prefetch_release(prefetch, batch);
  }
  fx_batch *none = NULL;
  for (int i = 0; i < 2; i++) {
    fx_error_clear();
    CHECK_STATUS(fx_prefetch_next(prefetch, &none), FX_ERR_SHAPE);
    CHECK_STR(fx_error_text(), "data stage \"mask limits\": batch 6 does not fit");
  }
  CHECK(none == NULL);
  for (int64_t round = 0; round < 20; round++) { /* with batches ready, under way and not begun */
    CHECK_OK(fx_prefetch_seek(prefetch, round * G));
    for (int64_t i = 0; i < round % 4; i++) {
      fx_batch *batch = NULL;
      if (!CHECK_OK(fx_prefetch_next(prefetch, &batch))) break;
      CHECK_MSG(equals_direct(&s, batch, round * G, i), "after seek %lld batch %lld differs",
                (long long)round, (long long)i);
      fx_prefetch_release(prefetch, batch);
    }
  }
  fx_prefetch_destroy(prefetch);
  setup_free(&s);
}

/* Destroyed with the thread asleep, filling, in a stage, resting after an error, batches in hand. */
static void destroy_any_time(void) {
  for (int i = 0; i < 30; i++) {
    setup s;
    setup_init(&s, 0, 1 + i % 4);
    stage_log log = {.value = 1, .sleep_ms = i % 2, .fail_at = i % 5 == 0 ? 2 : 0};
    fx_batch_stage slow = {"slow", stage, &log};
    s.options.fields = &trail_field;
    s.options.n_fields = 1;
    s.options.stages = &slow;
    s.options.n_stages = 1;
    fx_prefetch *prefetch = NULL;
    if (CHECK_OK(fx_prefetch_create(&s.options, &prefetch))) {
      fx_batch *batch = NULL;
      if (i % 3) CHECK_OK(fx_prefetch_next(prefetch, &batch));
      if (i % 3 == 2) fx_prefetch_release(prefetch, batch);
      if (i % 6 == 1) fx_sleep_ms(3);
    }
    fx_prefetch_destroy(prefetch);
    setup_free(&s);
  }
  fx_prefetch_destroy(NULL);
}

/* Who comes first to each batch, by event: a slow stage ends only a while after its batch is asked for. */
typedef struct turns {
  bool slow_stage;
  int asked, begun; /* batches; accessed atomically */
} turns;

static fx_status take_turns(void *ctx, fx_batch *batch) {
  turns *t = ctx;
  int number = __atomic_add_fetch(&t->begun, 1, __ATOMIC_ACQ_REL);
  (void)batch;
  while (t->slow_stage && __atomic_load_n(&t->asked, __ATOMIC_ACQUIRE) < number) fx_sleep_ms(1);
  if (t->slow_stage) fx_sleep_ms(50);
  return FX_OK;
}

/* A slow stage is waited for, and the waits are counted; a slow consumer never waits. */
static void waits_are_counted(void) {
  for (int slow_stage = 0; slow_stage < 2; slow_stage++) {
    setup s;
    setup_init(&s, 0, 2);
    turns t = {.slow_stage = slow_stage};
    s.options.stages = &(fx_batch_stage){"turns", take_turns, &t};
    s.options.n_stages = 1;
    fx_prefetch *prefetch = NULL;
    if (!CHECK_OK(fx_prefetch_create(&s.options, &prefetch))) return;
    for (int i = 1; i <= 5; i++) {
      fx_batch *batch = NULL;
      while (!slow_stage && __atomic_load_n(&t.begun, __ATOMIC_ACQUIRE) <= i) fx_sleep_ms(1); /* i is ready */
      __atomic_store_n(&t.asked, i, __ATOMIC_RELEASE);
      if (CHECK_OK(fx_prefetch_next(prefetch, &batch))) fx_prefetch_release(prefetch, batch);
    }
    fx_prefetch_stats stats = fx_prefetch_get_stats(prefetch);
    if (slow_stage)
      CHECK(stats.waits >= 4 && stats.wait_seconds > 0.1 && stats.fill_seconds > 0.2);
    else
      CHECK_INT(stats.waits, 0);
    __atomic_store_n(&t.asked, INT_MAX, __ATOMIC_RELEASE);
    fx_prefetch_destroy(prefetch);
    setup_free(&s);
  }
}

/* The heap does not move while batches go round, epochs change and a seek happens. */
static void no_allocation(void) {
  setup s;
  setup_init(&s, 0, 3);
  fx_prefetch *prefetch = NULL;
  if (!CHECK_OK(fx_prefetch_create(&s.options, &prefetch))) return;
  size_t before = 0;
  for (int i = 0; i < 500; i++) {
    fx_batch *batch = NULL;
    if (i == 20) before = mallinfo2().uordblks;
    if (i % 100 == 99) CHECK_OK(fx_prefetch_seek(prefetch, i));
    if (fx_prefetch_next(prefetch, &batch) != FX_OK) break;
    fx_prefetch_release(prefetch, batch);
  }
  CHECK_INT(mallinfo2().uordblks, before);
  fx_prefetch_destroy(prefetch);
  setup_free(&s);
}

static void bad_options(void) {
  setup s;
  setup_init(&s, 0, 0);
  fx_prefetch *prefetch = NULL;
  CHECK_STATUS(fx_prefetch_create(&s.options, &prefetch), FX_ERR_CONFIG);
  s.options.depth = 2;
  s.options.consumed_samples = -1;
  CHECK_STATUS(fx_prefetch_create(&s.options, &prefetch), FX_ERR_CONFIG);
  s.options.consumed_samples = 0;
  s.options.layout.global_batch_size = 13;
  CHECK_STATUS(fx_prefetch_create(&s.options, &prefetch), FX_ERR_CONFIG);
  s.options.layout.global_batch_size = G;
  fx_batch_field twice = {.name = "targets", .dtype = FX_I32, .elements = 1};
  s.options.fields = &twice;
  s.options.n_fields = 1;
  CHECK_STATUS(fx_prefetch_create(&s.options, &prefetch), FX_ERR_SHAPE);
  CHECK(prefetch == NULL);
  setup_free(&s);
}

static const fx_test tests[] = {{"prefetched batches equal filled ones, from any start", equals_fill},
                                {"held batches stay as they are", held_batches},
                                {"stages run in order on the thread", stages_in_order},
                                {"errors surface at next; a seek starts over", error_and_seek},
                                {"destroy at any time", destroy_any_time},
                                {"waits are counted", waits_are_counted},
                                {"nothing is allocated per batch", no_allocation},
                                {"bad options", bad_options}};
FX_TEST_MAIN("prefetch", tests)
