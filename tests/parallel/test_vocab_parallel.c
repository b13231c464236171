/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding and cross-entropy over a split vocabulary against a double-precision reference on one rank: 1 to
 * 5 ranks, padding that fills whole ranks, masked targets, logits of hundreds, targets and ids out of range.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "parallel/comm/local/local.h"
#include "parallel/tensor_parallel.h"
#include "parallel/vocab_parallel.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { B = 2, T = 5, R = B * T, E = 6, V = 23, SHARD = 12, MAX_RANKS = 5 };
static const float k_factor = 0.125f;
static int32_t g_targets[R] = {3, 22, -100, 0, 11, 12, -1, 7, 20, 13};
static int32_t g_ids[R] = {0, 22, 11, 12, 5, 5, 13, 12, 1, 22};

/* What all ranks give together. */
typedef struct outcome {
  float nll[MAX_RANKS][R], loss[MAX_RANKS];
  float dx[R * E], dw[MAX_RANKS * SHARD * E]; /* sums over ranks; rows by id */
  float y[R * E], dtable[MAX_RANKS * SHARD * E];
} outcome;

typedef struct world {
  const float *x, *w; /* w [MAX_RANKS * SHARD, E] */
  outcome *out;
} world;

typedef struct rank_memory {
  float dx[R * E], dw[SHARD * E], y[R * E], dtable[SHARD * E];
} rank_memory;

static fx_value look(fx_graph *g, const void *data, fx_type type) {
  return fx_graph_persistent(FX_AT(g), "p", (void *)(uintptr_t)data, type);
}

/* Loss and gradients; then the embedding, summed over ranks, with the gradient of sum(x * embedding). */
static fx_status record(fx_graph *g, fx_comm *comm, const world *c, rank_memory *m) {
  const fx_tensor_parallel tp = {.comm = comm};
  const fx_type rows = fx_type_2d(FX_F32, R, E), shard = fx_type_2d(FX_F32, SHARD, E),
                flat = fx_type_1d(FX_F32, 1);
  fx_vocab_attr attr = {(int64_t)comm->rank * SHARD, V};
  int64_t line = (int64_t)R * E;
  fx_value x = look(g, c->x, rows), w = look(g, c->w + attr.first * E, shard), nll, grads[2], dtable;
  fx_value factor = look(g, &k_factor, flat), targets = look(g, g_targets, fx_type_2d(FX_I32, B, T));
  fx_value loss = fx_vocab_head_ce(FX_AT(g), comm, FX_BACKEND_CPU, x, w, targets, factor, attr, &nll);
  FX_TRY(fx_autograd(g, loss, (fx_value[]){x, w}, 2, grads));
  fx_store(FX_AT(g), look(g, &c->out->loss[comm->rank], flat), loss);
  fx_store(FX_AT(g), look(g, c->out->nll[comm->rank], fx_type_2d(FX_F32, B, T)), nll);
  fx_store(FX_AT(g), look(g, m->dx, rows), grads[0]);
  fx_store(FX_AT(g), look(g, m->dw, shard), grads[1]);
  fx_value table = look(g, c->w + attr.first * E, shard);
  fx_value y = fx_vocab_embedding(FX_AT(g), look(g, g_ids, fx_type_2d(FX_I32, B, T)), table, attr);
  y = fx_reshape(FX_AT(g), fx_tensor_leave(FX_AT(g), &tp, y), 2, (int64_t[]){1, line});
  fx_store(FX_AT(g), look(g, m->y, fx_type_2d(FX_F32, 1, line)), y);
  fx_value dot =
      fx_linear(FX_AT(g), y, look(g, c->x, fx_type_2d(FX_F32, 1, line)), FX_NONE, (fx_linear_attr){0, 0});
  FX_TRY(fx_autograd(g, dot, &table, 1, &dtable));
  fx_store(FX_AT(g), look(g, m->dtable, shard), dtable);
  return fx_graph_status(g);
}

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

static fx_status run_rank(fx_control *control, void *ctx) {
  const world *c = ctx;
  int ranks[MAX_RANKS];
  fx_comm *comm = NULL;
  fx_device *device = NULL;
  void *arena = NULL;
  fx_plan *plan = NULL;
  rank_memory *m = calloc(1, sizeof *m);
  for (int r = 0; r < control->size; r++) ranks[r] = r;
  FX_TRY(fx_control_split(control, "tp", 1, ranks, control->size, &comm));
  FX_TRY(fx_device_create_cpu(1, "auto", &device));
  fx_graph *graph = fx_graph_create(NULL);
  fx_status status = record(graph, comm, c, m);
  fx_plan_options options = {.name = "vocab", .mode = FX_EXEC_REPLAY, .poison = true};
  if (status == FX_OK) status = fx_plan_prepare(graph, options, device, &plan);
  if (status == FX_OK) status = fx_alloc_aligned(&arena, fx_plan_stats_get(plan)->arena.bytes);
  if (status == FX_OK) status = fx_plan_bind(plan, arena);
  if (status == FX_OK) status = fx_plan_run(plan, 0);
  pthread_mutex_lock(&g_lock);
  for (int i = 0; i < R * E; i++) c->out->dx[i] += m->dx[i];
  memcpy(c->out->y, m->y, sizeof m->y);
  memcpy(c->out->dw + (ptrdiff_t)control->rank * SHARD * E, m->dw, sizeof m->dw);
  memcpy(c->out->dtable + (ptrdiff_t)control->rank * SHARD * E, m->dtable, sizeof m->dtable);
  pthread_mutex_unlock(&g_lock);
  if (status != FX_OK) fx_comm_abort(comm); /* a service thread may wait for ranks that do not come */
  fx_plan_destroy(plan);
  free(arena);
  free(m);
  fx_device_destroy(device);
  fx_comm_destroy(comm);
  return status;
}

typedef struct reference {
  double nll[R], loss, dx[R * E], dw[V * E], y[R * E], dtable[V * E];
} reference;

static void refer(const float *x, const float *w, reference *out) {
  memset(out, 0, sizeof *out);
  for (int r = 0; r < R; r++) {
    double logit[V], top = -INFINITY, sum = 0;
    for (int e = 0; e < E; e++) {
      out->y[r * E + e] = (double)w[g_ids[r] * E + e];
      out->dtable[g_ids[r] * E + e] += (double)x[r * E + e];
    }
    if (g_targets[r] < 0) continue;
    for (int v = 0; v < V; v++) {
      logit[v] = 0;
      for (int e = 0; e < E; e++) logit[v] += (double)x[r * E + e] * (double)w[v * E + e];
      top = fmax(top, logit[v]);
    }
    for (int v = 0; v < V; v++) sum += exp(logit[v] - top);
    out->nll[r] = log(sum) + top - logit[g_targets[r]];
    out->loss += (double)k_factor * out->nll[r];
    for (int v = 0; v < V; v++) {
      double d = (double)k_factor * (exp(logit[v] - top) / sum - (v == g_targets[r]));
      for (int e = 0; e < E; e++) {
        out->dx[r * E + e] += d * (double)w[v * E + e];
        out->dw[v * E + e] += d * (double)x[r * E + e];
      }
    }
  }
}

static void against_a_reference(void) {
  for (int size = 2; size <= MAX_RANKS; size++)
    for (int big = 0; big < 2; big++) {
      static outcome out;
      static reference want;
      float *x = normals(R * E, 1, big ? 30.0f : 1.0f),
            *w = normals(MAX_RANKS * SHARD * E, 2, big ? 5.0f : 1.0f);
      world c = {x, w, &out};
      memset(&out, 0, sizeof out);
      refer(x, w, &want);
      if (!CHECK_OK(fx_local_run(size, run_rank, &c))) return;
      for (int k = 0; k < size; k++) {
        CHECK_MSG(memcmp(out.nll[k], out.nll[0], sizeof out.nll[0]) == 0 && out.loss[k] == out.loss[0],
                  "ranks 0 and %d of %d have different losses", k, size);
        CHECK_MSG(fx_relative_l2(out.nll[k], want.nll, R) < 2e-6, "%d ranks, big %d: nll off by %g", size,
                  big, fx_relative_l2(out.nll[k], want.nll, R));
      }
      CHECK_MSG(fabs((double)out.loss[0] - want.loss) < 2e-6 * fabs(want.loss), "loss %g, expected %g",
                (double)out.loss[0], want.loss);
      CHECK_MSG(fx_relative_l2(out.dx, want.dx, R * E) < 1e-4, "dx off by %g",
                fx_relative_l2(out.dx, want.dx, R * E));
      CHECK_MSG(fx_relative_l2(out.dw, want.dw, V * E) < 1e-4, "dw off by %g",
                fx_relative_l2(out.dw, want.dw, V * E));
      CHECK(fx_relative_l2(out.y, want.y, R * E) == 0);
      CHECK(fx_relative_l2(out.dtable, want.dtable, V * E) < 1e-6);
      for (int i = V * E; i < size * SHARD * E; i++)
        CHECK_MSG(out.dw[i] == 0 && out.dtable[i] == 0, "padding learns");
      free(x);
      free(w);
    }
}

static void out_of_range(void) {
  static outcome out;
  float *x = normals(R * E, 1, 1), *w = normals(MAX_RANKS * SHARD * E, 2, 1);
  world c = {x, w, &out};
  g_targets[4] = V; /* padding of the last rank */
  CHECK_STATUS(fx_local_run(2, run_rank, &c), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "target 23 is outside the vocabulary of 23");
  g_targets[4] = 11;
  g_ids[3] = -1;
  CHECK_STATUS(fx_local_run(2, run_rank, &c), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "id -1 at place 3 of the batch is outside the vocabulary of 23");
  g_ids[3] = 12;
  free(x);
  free(w);
}

static const fx_test tests[] = {{"loss, gradients and embedding against a reference", against_a_reference},
                                {"targets and ids out of range", out_of_range}};
FX_TEST_MAIN("parallel/vocab_parallel", tests)
