/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as ops of a graph: replayed on lanes by in-process ranks, each with a device and its service
 * thread. Results that compute needs, delays that must not show, overlap that must, and event waits that are
 * taken out one by one to see that each is needed. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/exec/trace.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/plan/ledger.h"
#include "dynamo_rt/plan/plan_internal.h"
#include "parallel/collective.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

#if defined(__SANITIZE_THREAD__)
#define RACES_ARE_FATAL 1 /* taking out a wait makes a race on purpose */
#else
#define RACES_ARE_FATAL 0
#endif

enum { DELAY_US = 100000 };

typedef struct rank_env {
  fx_control *control;
  fx_comm *comm;
  fx_device *device;
} rank_env;

typedef fx_status (*env_fn)(rank_env *env);

static fx_status with_env(fx_control *control, void *ctx) {
  rank_env env = {.control = control};
  env_fn fn = *(env_fn *)ctx;
  int ranks[16];
  for (int r = 0; r < control->size; r++) ranks[r] = r;
  FX_TRY(fx_control_split(control, "dp", 3, ranks, control->size, &env.comm));
  fx_status status = fx_device_create_cpu(1, "auto", &env.device);
  if (status == FX_OK) status = fn(&env);
  if (status != FX_OK) fx_comm_abort(env.comm); /* a service thread may wait for ranks that do not come */
  fx_device_destroy(env.device);
  fx_comm_destroy(env.comm);
  return status;
}

static void run_env(int size, env_fn fn) {
  CHECK_MSG(fx_local_run(size, with_env, &fn) == FX_OK, "%d ranks: %s", size, fx_error_text());
}

typedef struct bound_plan {
  fx_plan *plan;
  void *arena;
} bound_plan;

/* poison: dead arena bytes become NaN; it waits for communication, so not where overlap or a missing wait is
 * the point */
static fx_status prepare(rank_env *env, fx_graph *graph, fx_exec_mode mode, bool poison, bound_plan *out) {
  fx_plan_options options = {.name = "test", .mode = mode, .poison = poison};
  FX_TRY(fx_graph_status(graph));
  FX_TRY(fx_plan_prepare(graph, options, env->device, &out->plan));
  FX_TRY(fx_alloc_aligned(&out->arena, fx_plan_stats_get(out->plan)->arena.bytes + FX_ALIGN));
  return fx_plan_bind(out->plan, out->arena);
}

static void release(rank_env *env, bound_plan *bound) {
  fx_device_sync(env->device);
  fx_plan_destroy(bound->plan);
  free(bound->arena);
  memset(bound, 0, sizeof *bound);
}

static fx_status compare_bits(const char *what, const float *got, const float *want, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t g, w;
    memcpy(&g, &got[i], sizeof g);
    memcpy(&w, &want[i], sizeof w);
    REQUIRE(g == w, "%s: element %lld: expected %.9g, got %.9g", what, (long long)i, (double)want[i],
            (double)got[i]);
  }
  return FX_OK;
}

/* x summed in rank order into want. */
static void rank_sum(float *want, int size, int64_t count) {
  float *x = malloc((size_t)count * sizeof *x);
  battery_fill(FX_F32, want, 0, count);
  for (int r = 1; r < size; r++) {
    battery_fill(FX_F32, x, r, count);
    battery_combine(FX_F32, FX_REDUCE_SUM, want, x, count);
  }
  free(x);
}

/* ---- compute that needs what a collective brings, twice over two lanes ---- */

enum { N = 1003 };

typedef struct chain {
  float x[N], out[N], grad[N], want_out[N], want_grad[N];
} chain;

/* out := max(sum(copy x) + x) over the ranks, + x; grad (persistent) := sum, in place, the plan's last step.
 */
static fx_graph *chain_graph(rank_env *env, chain *c) {
  fx_graph *g = fx_graph_create(NULL);
  fx_value x = fx_graph_persistent(g, "x", c->x, fx_type_1d(FX_F32, N));
  fx_value out = fx_graph_persistent(g, "out", c->out, fx_type_1d(FX_F32, N));
  fx_value grad = fx_graph_persistent(g, "grad", c->grad, fx_type_1d(FX_F32, N));
  fx_value sum = fx_all_reduce(FX_AT(g), env->comm, FX_LANE_COMM_BULK, fx_copy(g, x), FX_REDUCE_SUM);
  fx_value next = fx_add(FX_AT(g), sum, x);
  fx_value most = fx_all_reduce(FX_AT(g), env->comm, FX_LANE_COMM_CRITICAL, next, FX_REDUCE_MAX);
  fx_value last = fx_add(FX_AT(g), most, x);
  fx_store(FX_AT(g), out, last);
  fx_value mine = fx_accumulate(FX_AT(g), grad, last); /* after everything else, so its sum cannot move up */
  fx_all_reduce(FX_AT(g), env->comm, FX_LANE_COMM_BULK, mine, FX_REDUCE_SUM);
  return g;
}

static void chain_reset(rank_env *env, chain *c) {
  int size = env->comm->size, rank = env->comm->rank;
  float sum[N] = {0}, most[N] = {0}, next[N], x[N] = {0};
  battery_fill(FX_F32, c->x, rank, N);
  battery_fill(FX_F32, c->grad, rank + 100, N);
  memset(c->out, 0xEE, sizeof c->out);
  rank_sum(sum, size, N);
  for (int r = 0; r < size; r++) {
    battery_fill(FX_F32, x, r, N);
    for (int i = 0; i < N; i++) next[i] = sum[i] + x[i];
    if (r == 0)
      memcpy(most, next, sizeof most);
    else
      battery_combine(FX_F32, FX_REDUCE_MAX, most, next, N);
  }
  for (int i = 0; i < N; i++) c->want_out[i] = most[i] + c->x[i];
  for (int r = 0; r < size; r++) {
    battery_fill(FX_F32, x, r, N);
    battery_fill(FX_F32, next, r + 100, N);
    for (int i = 0; i < N; i++) next[i] += most[i] + x[i];
    if (r == 0)
      memcpy(c->want_grad, next, sizeof next);
    else
      battery_combine(FX_F32, FX_REDUCE_SUM, c->want_grad, next, N);
  }
}

static fx_status chain_check(const chain *c) {
  FX_TRY(compare_bits("out", c->out, c->want_out, N));
  return compare_bits("grad", c->grad, c->want_grad, N);
}

static fx_status chain_run(rank_env *env, bound_plan *bound, chain *c) {
  chain_reset(env, c);
  FX_TRY(fx_control_barrier(env->control, 20000)); /* nobody reduces into buffers that are being reset */
  FX_TRY(fx_plan_run(bound->plan, 0));
  return chain_check(c);
}

static fx_status chain_rank(rank_env *env) {
  static const fx_exec_mode modes[] = {FX_EXEC_REPLAY, FX_EXEC_EAGER};
  chain *c = calloc(1, sizeof *c);
  fx_status status = FX_OK;
  for (int m = 0; m < 2 && status == FX_OK; m++) {
    bound_plan bound = {0};
    status = prepare(env, chain_graph(env, c), modes[m], true, &bound);
    for (int i = 0; i < 20 && status == FX_OK; i++) {
      env->device->comm_delay_us = i % 4 == 3 ? 1000 * (1 + env->comm->rank) : 0; /* uneven on purpose */
      status = chain_run(env, &bound, c);
    }
    if (status != FX_OK) fx_comm_abort(env->comm);
    release(env, &bound);
  }
  free(c);
  return status;
}

/* ---- what a plan binds is what it issues ---- */

enum { BINDING_RANKS = 2, MOST_BOUND = 8 };

typedef struct bindings {
  fx_comm_call call[MOST_BOUND];
  int bound, issued, unbound, wrong;
} bindings;

/* By rank: a communicator's functions get nothing else to know theirs by. */
static bindings g_bindings[BINDING_RANKS];
static const fx_comm_vtable *g_sound;

static fx_status note_bind(fx_comm *comm, fx_comm_call *call) {
  bindings *b = &g_bindings[comm->rank];
  REQUIRE(b->bound < MOST_BOUND && call->ticket == 0, "call %d has ticket %d", b->bound, call->ticket);
  b->call[b->bound++] = *call;
  call->ticket = b->bound;
  return FX_OK;
}

static fx_status note_issue(fx_comm *comm, const fx_comm_call *call) {
  bindings *b = &g_bindings[comm->rank];
  const fx_comm_call *bound = &b->call[b->bound ? b->issued % b->bound : 0];
  b->unbound += call->ticket == 0;
  b->wrong += call->ticket != 0 &&
              (call->ticket != bound - b->call + 1 || call->kind != bound->kind || call->src != bound->src ||
               call->dst != bound->dst || call->count != bound->count || call->reduce != bound->reduce);
  b->issued++;
  return g_sound->issue(comm, call);
}

static fx_status binding_rank(rank_env *env) {
  static const fx_exec_mode modes[] = {FX_EXEC_REPLAY, FX_EXEC_EAGER};
  enum { COLLECTIVES = 3, RUNS = 4 };
  bindings *b = &g_bindings[env->comm->rank];
  chain *c = calloc(1, sizeof *c);
  fx_status status = FX_OK;
  fx_comm_vtable noting = *env->comm->vtable;
  noting.bind = note_bind;
  noting.issue = note_issue;
  const fx_comm_vtable *sound = env->comm->vtable;
  __atomic_store_n(&g_sound, sound, __ATOMIC_RELEASE);
  env->comm->vtable = &noting;
  for (int m = 0; m < 2 && status == FX_OK; m++) {
    bound_plan bound = {0};
    *b = (bindings){.bound = 0};
    status = prepare(env, chain_graph(env, c), modes[m], false, &bound);
    for (int i = 0; i < RUNS && status == FX_OK; i++) status = chain_run(env, &bound, c);
    release(env, &bound);
    int want = modes[m] == FX_EXEC_REPLAY ? COLLECTIVES : 0; /* eager buffers come and go */
    bool right = b->bound == want && b->issued == RUNS * COLLECTIVES && b->wrong == 0 &&
                 b->unbound == (want ? 0 : RUNS * COLLECTIVES);
    if (status == FX_OK && !right)
      status = fx_error(FX_ERR_INTERNAL, "%d bound of %d, %d issued, %d of them unbound, %d wrong", b->bound,
                        want, b->issued, b->unbound, b->wrong);
  }
  env->comm->vtable = sound;
  free(c);
  return status;
}

static void plans_bind(void) {
  run_env(BINDING_RANKS, binding_rank);
}

static void results_feed_compute(void) {
  for (int size = 1; size <= 4; size++) run_env(size, chain_rank);
}

/* ---- weights gathered ahead of compute, gradients reduced in joined buffers ---- */

enum { PART = 48, GAP = 16 };

typedef struct bucket {
  float whole[16 * PART], out[2 * PART + GAP];
} bucket;

/* all := blocks of all ranks; out := this rank's block of the sum of [all + all | zeros | all + all + all] */
static fx_graph *bucket_graph(rank_env *env, bucket *b) {
  int64_t size = env->comm->size, n = size * PART, offsets[] = {0, n, n + size * GAP};
  fx_graph *g = fx_graph_create(NULL);
  fx_value all = fx_graph_persistent(g, "whole", b->whole, fx_type_1d(FX_F32, n));
  fx_value out = fx_graph_persistent(g, "out", b->out, fx_type_1d(FX_F32, 2 * PART + GAP));
  all = fx_all_gather_in_place(FX_AT(g), env->comm, FX_LANE_COMM_BULK, all);
  fx_value two = fx_add(FX_AT(g), all, all), three = fx_add(FX_AT(g), two, all);
  fx_value zeros = fx_fill(FX_AT(g), fx_type_1d(FX_F32, size * GAP), 0);
  fx_value joined = fx_join(FX_AT(g), (fx_value[]){two, zeros, three}, offsets, 3, 2 * n + size * GAP);
  fx_store(FX_AT(g), out, fx_reduce_scatter(FX_AT(g), env->comm, FX_LANE_COMM_BULK, joined));
  return g;
}

static float bucket_want(const rank_env *env, int64_t index) {
  int64_t size = env->comm->size, n = size * PART, at = env->comm->rank * (2 * PART + GAP) + index;
  float x[PART], sum = 0;
  if (at >= n && at < n + size * GAP) return 0;
  int64_t element = at < n ? at : at - n - size * GAP;
  battery_fill(FX_F32, x, (int)(element / PART), PART);
  float value = x[element % PART] + x[element % PART];
  if (at >= n) value += x[element % PART];
  for (int r = 0; r < size; r++) sum = r ? sum + value : value;
  return sum;
}

static fx_status bucket_body(rank_env *env, bound_plan *bound, bucket *b) {
  const fx_graph *graph = fx_plan_graph(bound->plan);
  for (int n = 0; n < fx_graph_num_nodes(graph); n++)
    REQUIRE(fx_graph_node(graph, n)->dead || strcmp(fx_graph_node(graph, n)->op->name, "copy") != 0,
            "node %d copies what its producer could have written in place", n);
  REQUIRE(bound->plan->begin_wait[FX_LANE_COMM_BULK] && !bound->plan->begin_wait[FX_LANE_COMM_CRITICAL],
          "the gather must wait for work of the compute lane before this plan");
  for (int i = 0; i < 5; i++) {
    float x[PART];
    battery_fill(FX_F32, x, env->comm->rank, PART);
    memset(b, 0xFF, sizeof *b);
    memcpy(b->whole + env->comm->rank * PART, x, sizeof x);
    env->device->comm_delay_us = i == 3 ? 2000 * env->comm->rank : 0;
    FX_TRY(fx_control_barrier(env->control, 20000));
    FX_TRY(fx_plan_run(bound->plan, 0));
    for (int64_t k = 0; k < 2 * PART + GAP; k++)
      REQUIRE(b->out[k] == bucket_want(env, k), "element %lld: expected %.9g, got %.9g", (long long)k,
              (double)bucket_want(env, k), (double)b->out[k]);
    FX_TRY(fx_control_barrier(env->control, 20000));
  }
  return FX_OK;
}

static fx_status bucket_rank(rank_env *env) {
  static const fx_exec_mode modes[] = {FX_EXEC_REPLAY, FX_EXEC_EAGER};
  bucket *b = calloc(1, sizeof *b);
  fx_status status = FX_OK;
  for (int m = 0; m < 2 && status == FX_OK; m++) {
    bound_plan bound = {0};
    status = prepare(env, bucket_graph(env, b), modes[m], true, &bound);
    if (status == FX_OK) status = bucket_body(env, &bound, b);
    if (status != FX_OK) fx_comm_abort(env->comm);
    release(env, &bound);
  }
  free(b);
  return status;
}

static void buckets(void) {
  for (int size = 1; size <= 5; size++) run_env(size, bucket_rank);
}

/* ---- every wait is needed ---- */

/* Runs with one wait gone and a delay on the communication lanes: *wrong tells whether the result shows it.
 */
static fx_status run_broken(rank_env *env, bound_plan *bound, chain *c, int32_t *wait, bool *wrong) {
  int32_t kept = *wait;
  chain_reset(env, c);
  FX_TRY(fx_control_barrier(env->control, 20000));
  *wait = -1;
  fx_status status = fx_plan_run(bound->plan, 0);
  *wait = kept;
  *wrong = chain_check(c) != FX_OK;
  fx_error_clear();
  fx_status synced = fx_device_sync(env->device);
  return status == FX_OK ? synced : status;
}

static fx_status waits_body(rank_env *env, bound_plan *bound, chain *c) {
  int tried = 0;
  env->device->comm_delay_us = DELAY_US;
  FX_TRY(chain_run(env, bound, c)); /* with every wait the delay does not show */
  for (int32_t s = 0; s <= bound->plan->num_steps; s++) {
    bool end = s == bound->plan->num_steps;
    if (!end && bound->plan->steps[s].lane != FX_LANE_COMPUTE) continue;
    int32_t *waits = end ? bound->plan->final_wait : bound->plan->steps[s].wait;
    for (int l = 0; l < FX_LANE_COUNT; l++) {
      bool wrong = false;
      if (waits[l] < 0) continue;
      FX_TRY(run_broken(env, bound, c, &waits[l], &wrong));
      REQUIRE(wrong, "without the wait of %s for lane %s the result is still right",
              end ? "the end" : "compute", fx_lane_name((fx_lane)l));
      tried++;
    }
  }
  REQUIRE(tried == 3, "expected 3 waits of the compute lane for communication, found %d", tried);
  env->device->comm_delay_us = 0;
  return chain_run(env, bound, c);
}

static fx_status waits_rank(rank_env *env) {
  chain *c = calloc(1, sizeof *c);
  bound_plan bound = {0};
  fx_status status = prepare(env, chain_graph(env, c), FX_EXEC_REPLAY, false, &bound);
  if (status == FX_OK) status = waits_body(env, &bound, c);
  if (status != FX_OK) fx_comm_abort(env->comm);
  release(env, &bound);
  free(c);
  return status;
}

static void a_missing_wait_shows(void) {
  if (RACES_ARE_FATAL) {
    printf("left out under the thread sanitizer ...");
    CHECK(true);
    return;
  }
  run_env(2, waits_rank);
  run_env(3, waits_rank);
}

/* ---- overlap ---- */

enum { BIG = 1 << 20, DIM = 256, LAYERS = 12 };

/* A long sum on the bulk lane beside matrix products that do not need it. */
static fx_graph *overlap_graph(rank_env *env, float *grad, float *x, float *weight, float *out) {
  fx_graph *g = fx_graph_create(NULL);
  fx_value sum = fx_graph_persistent(g, "grad", grad, fx_type_1d(FX_F32, BIG));
  fx_value h = fx_graph_persistent(g, "x", x, fx_type_2d(FX_F32, DIM, DIM));
  fx_value w = fx_graph_persistent(g, "weight", weight, fx_type_2d(FX_F32, DIM, DIM));
  fx_value to = fx_graph_persistent(g, "out", out, fx_type_2d(FX_F32, DIM, DIM));
  fx_all_reduce(FX_AT(g), env->comm, FX_LANE_COMM_BULK, sum, FX_REDUCE_SUM);
  for (int i = 0; i < LAYERS; i++) h = fx_linear(FX_AT(g), h, w, FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
  fx_store(FX_AT(g), to, h);
  return g;
}

static fx_status overlap_ns(rank_env *env, float *buffers, fx_exec_mode mode, int64_t *ns) {
  float *grad = buffers, *x = grad + BIG, *weight = x + DIM * DIM, *out = weight + DIM * DIM;
  bound_plan bound = {0};
  fx_trace *trace = NULL;
  FX_TRY(prepare(env, overlap_graph(env, grad, x, weight, out), mode, false, &bound));
  FX_TRY(fx_trace_create(1000, &trace));
  fx_plan_set_trace(bound.plan, trace);
  fx_status status = FX_OK;
  for (int i = 0; i < 10 && status == FX_OK; i++) {
    memset(grad, 0, BIG * sizeof *grad);
    status = fx_control_barrier(env->control, 20000);
    if (status == FX_OK) status = fx_plan_run(bound.plan, 0);
  }
  if (status == FX_OK) *ns = fx_trace_overlap(trace, FX_LANE_COMM_BULK, FX_LANE_COMPUTE);
  if (status == FX_OK && fx_trace_count(trace) < 10 * (1 + LAYERS))
    status = fx_error(FX_ERR_INTERNAL, "the trace holds %d spans", (int)fx_trace_count(trace));
  if (status != FX_OK) fx_comm_abort(env->comm);
  release(env, &bound);
  fx_trace_destroy(trace);
  return status;
}

static fx_status overlap_rank(rank_env *env) {
  float *buffers = calloc(BIG + 3 * DIM * DIM, sizeof *buffers);
  int64_t replay_ns = 0, eager_ns = -1;
  REQUIRE(buffers, "no memory");
  fx_status status = overlap_ns(env, buffers, FX_EXEC_REPLAY, &replay_ns);
  if (status == FX_OK) status = overlap_ns(env, buffers, FX_EXEC_EAGER, &eager_ns);
  free(buffers);
  if (status != FX_OK) return status;
  REQUIRE(replay_ns > 0, "rank %d: no overlap of comm.bulk and compute in 10 replays", env->comm->rank);
  REQUIRE(eager_ns == 0, "eager runs one node at a time, yet %lld ns overlap", (long long)eager_ns);
  return FX_OK;
}

static void lanes_overlap(void) {
  run_env(2, overlap_rank);
}

/* ---- gradients ---- */

enum { ROWS = 5, COLS = 3, BLOCK = ROWS * COLS, MOST = 4 * BLOCK };

/* loss = weight . f(x), so that dloss/df is this rank's weight. */
static fx_value dot(fx_graph *g, fx_value y, float *weight, int64_t count) {
  fx_value w = fx_graph_persistent(g, "weight", weight, fx_type_2d(FX_F32, 1, count));
  return fx_linear(g, fx_reshape(g, y, 2, (int64_t[]){1, count}), w, FX_NONE,
                   (fx_linear_attr){0, FX_ACT_NONE});
}

/* The gradient of x through `kind`, against the sum or the shift written out by hand. */
static fx_status gradient(rank_env *env, fx_collective kind, fx_exec_mode mode) {
  int size = env->comm->size, rank = env->comm->rank, to = (rank + 1) % size, from = (rank + size - 1) % size;
  int64_t in = kind == FX_REDUCE_SCATTER ? size : 1, out = kind == FX_ALL_GATHER ? size : 1;
  float x[MOST], dx[MOST], want[MOST] = {0}, weight[MOST];
  battery_fill(FX_F32, x, 10 + rank, in * BLOCK);
  battery_fill(FX_F32, weight, rank, out * BLOCK);
  memset(dx, 0xEE, sizeof dx);
  fx_graph *g = fx_graph_create(NULL);
  fx_value input = fx_graph_persistent(g, "x", x, fx_type_2d(FX_F32, in * ROWS, COLS)), y, grad;
  fx_value store = fx_graph_persistent(g, "dx", dx, fx_type_2d(FX_F32, in * ROWS, COLS));
  if (kind == FX_ALL_GATHER)
    y = fx_all_gather(FX_AT(g), env->comm, FX_LANE_COMM_CRITICAL, input);
  else if (kind == FX_REDUCE_SCATTER)
    y = fx_reduce_scatter(FX_AT(g), env->comm, FX_LANE_COMM_CRITICAL, input);
  else
    y = fx_send_recv(FX_AT(g), env->comm, FX_LANE_COMM_CRITICAL, input, to, from);
  fx_status status = fx_autograd(g, dot(FX_AT(g), y, weight, out * BLOCK), &input, 1, &grad);
  if (status == FX_OK) fx_store(g, store, grad);
  bound_plan bound = {0};
  if (status == FX_OK) status = prepare(env, g, mode, true, &bound);
  if (status == FX_OK) status = fx_plan_run(bound.plan, 0);
  if (status != FX_OK) fx_comm_abort(env->comm);
  release(env, &bound);
  if (status != FX_OK) return status;
  if (kind == FX_ALL_GATHER) { /* the block of this rank in every rank's weight, summed */
    float all[MOST] = {0};
    rank_sum(all, size, size * BLOCK);
    memcpy(want, all + rank * BLOCK, BLOCK * sizeof *want);
  } else if (kind == FX_REDUCE_SCATTER) {
    for (int r = 0; r < size; r++) battery_fill(FX_F32, want + r * BLOCK, r, BLOCK);
  } else {
    battery_fill(FX_F32, want, to, BLOCK);
  }
  return compare_bits(fx_collective_name(kind), dx, want, in * BLOCK);
}

static fx_status gradients_rank(rank_env *env) {
  static const fx_collective kinds[] = {FX_ALL_GATHER, FX_REDUCE_SCATTER, FX_SEND_RECV};
  for (int k = 0; k < 3; k++) {
    FX_TRY(gradient(env, kinds[k], FX_EXEC_REPLAY));
    FX_TRY(gradient(env, kinds[k], FX_EXEC_EAGER));
  }
  return FX_OK;
}

static void gradients(void) {
  for (int size = 2; size <= 4; size++) run_env(size, gradients_rank);
}

/* ---- the ledger ---- */

static fx_status ledger_rank(rank_env *env) {
  chain *c = calloc(1, sizeof *c);
  bound_plan bound = {0};
  int64_t offsets[17];
  char *all = NULL, *ledger = NULL;
  fx_status status = prepare(env, chain_graph(env, c), FX_EXEC_REPLAY, false, &bound);
  if (status == FX_OK) {
    ledger = fx_plan_ledger(bound.plan);
    status = fx_control_all_gather(env->control, ledger, (int64_t)strlen(ledger) + 1, &all, offsets, 20000);
  }
  for (int r = 0; status == FX_OK && r < env->comm->size; r++)
    if (strcmp(all + offsets[r], ledger) != 0)
      status =
          fx_error(FX_ERR_INTERNAL, "ledger of rank %d:\n%sof this rank:\n%s", r, all + offsets[r], ledger);
  if (status == FX_OK && !strstr(ledger, "dp#3 all_reduce max float32 x 1003 comm.critical (tests/"))
    if (!strstr(ledger, "test_collectives.c:")) status = fx_error(FX_ERR_INTERNAL, "ledger: %s", ledger);
  free(all);
  free(ledger);
  release(env, &bound);
  free(c);
  return status;
}

static void ledgers_are_equal(void) {
  run_env(3, ledger_rank);
}

static const fx_test g_tests[] = {
    {"results feed compute, delays do not show", results_feed_compute},
    {"each event wait is needed", a_missing_wait_shows},
    {"what a plan binds is what it issues", plans_bind},
    {"a trace shows overlap of comm.bulk and compute", lanes_overlap},
    {"gradients of all_gather, reduce_scatter, send_recv", gradients},
    {"ledgers of all ranks are equal", ledgers_are_equal},
    {"gathered ahead, reduced in joined buffers", buckets},
};
FX_TEST_MAIN("parallel/collectives", g_tests)
