/* SPDX-License-Identifier: Apache-2.0 */
/* What travels beside what is computed in a training step: gradients beside the backward, gathered weights
 * beside the forward, one piece of a split layer beside another. First from the plans, for CPUs and as for a
 * GPU, without any time in them: between the step of a plan that issues a collective and the first compute
 * step that has to wait for it stand matrix products. Then from traces of ranks with a slow transport: spans
 * of these collectives and of the compute lane lie above each other. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/range.h"
#include "dynamo_rt/plan/plan_internal.h"
#include "parallel/comm/dry.h"
#include "parallel/comm/local/local.h"
#include "parallel/topology.h"
#include "tests/core/fixture.h"

enum { LAYERS = 4, B = 4, T = 128, RANKS = 2, MOST = 64 };

/* Ten buckets: the head, two a layer but for the last, which has a third, the embedding. */
static const char g_yaml[] =
    "model: {model_type: llama, vocab_size: 64, hidden_size: 64, head_dim: 16, num_hidden_layers: 4, "
    "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 128, max_position_embeddings: 128}\n"
    "train: {seq_length: 128, micro_batch_size: 4, global_batch_size: 16, seed: 3}\n"
    "parallel: {bucket_elements: 12000, ";

static const char k_data[] = "tensor: 1", k_whole[] = "tensor: 2, sequence: true",
                  k_pieces[] = "tensor: 2, sequence: true, tensor_pieces: 2";

typedef struct layout {
  const char *keys; /* of the section parallel */
  int tensor, zero;
  fx_phase phase;
  bool cuda; /* planned as for a GPU */
} layout;

static bool make(const layout *l, fx_topology *topology, fx_exec_mode mode, fixture *f) {
  char yaml[1024];
  snprintf(yaml, sizeof yaml, "%szero: %d, %s}\n", g_yaml, l->zero, l->keys);
  fixture_options options = {.topology = topology, .mode = mode, .pretend_cuda = l->cuda};
  return fixture_init(f, yaml, B, T, options) && CHECK_OK(fx_stepper_prepare(f->stepper, &l->phase, 1));
}

/* ---- plans ---- */

static const fx_node *node_of(const fx_plan *plan, int32_t step) {
  return &plan->graph->nodes[plan->steps[step].node];
}

static bool is_collective(const fx_plan *plan, int32_t step, fx_collective kind) {
  const fx_node *node = node_of(plan, step);
  return (node->op->effects & FX_EFFECT_COLLECTIVE) &&
         ((const fx_collective_attr *)node->attr)->kind == (int32_t)kind;
}

/* Matrix products and attention: what takes the time of a step. */
static bool is_product(const fx_plan *plan, int32_t step) {
  const char *name = node_of(plan, step)->op->name;
  return strncmp(name, "linear", 6) == 0 || strncmp(name, "flex_attention", 14) == 0;
}

static int products_between(const fx_plan *plan, int32_t after, int32_t before) {
  int count = 0;
  for (int32_t i = after + 1; i < before; i++) count += is_product(plan, i);
  return count;
}

/* The first compute step that comes after `step` by the order of lanes and the waits; num_steps: none does.
 */
static int32_t awaited_by(const fx_plan *plan, int32_t step) {
  int32_t first[FX_LANE_COUNT]; /* step of each lane that comes after it */
  for (int l = 0; l < FX_LANE_COUNT; l++) first[l] = plan->num_steps;
  first[plan->steps[step].lane] = step;
  for (int32_t i = step + 1; i < plan->num_steps; i++) {
    const fx_step *s = &plan->steps[i];
    bool after = first[s->lane] < i;
    for (int l = 0; l < FX_LANE_COUNT; l++) after = after || s->wait[l] >= first[l];
    if (after && s->lane == FX_LANE_COMPUTE) return i;
    if (after && first[s->lane] > i) first[s->lane] = i;
  }
  return plan->num_steps;
}

/* The last step before `step` that writes what it reads; -1: none. */
static int32_t written_by(const fx_plan *plan, int32_t step) {
  fx_range range = fx_value_range(plan->graph, node_of(plan, step)->in[0]);
  int32_t i = step - 1;
  while (i >= 0 && !fx_node_touches(plan->graph, node_of(plan, i), range, true)) i--;
  return i;
}

/* The first compute step that reads or writes what `step` brings. */
static int32_t used_by(const fx_plan *plan, int32_t step) {
  fx_range range = fx_value_range(plan->graph, node_of(plan, step)->out[0]);
  int32_t i = step + 1;
  while (i < plan->num_steps && (plan->steps[i].lane != FX_LANE_COMPUTE ||
                                 !fx_node_touches(plan->graph, node_of(plan, i), range, false)))
    i++;
  return i;
}

/* Steps of a plan in running order. */
typedef struct steps {
  int32_t at[MOST];
  int count;
} steps;

static void add_step(steps *s, int32_t step) {
  if (CHECK(s->count < MOST)) s->at[s->count++] = step;
}

/* Collectives of one kind that carry the buckets, the first bucket first or the last. */
static steps find_buckets(const fx_plan *plan, const fx_params *p, fx_collective kind, bool first) {
  steps found = {.count = 0};
  for (int32_t i = 0; i < plan->num_steps && found.count < p->num_buckets; i++) {
    const fx_param_bucket *b = &p->bucket[first ? found.count : p->num_buckets - 1 - found.count];
    if (is_collective(plan, i, kind) && fx_type_numel(&plan->steps[i].in[0].type) == b->end - b->begin)
      add_step(&found, i);
  }
  return found;
}

static steps find_gradients(const fx_plan *plan, const fx_params *p) {
  return find_buckets(plan, p, p->zero ? FX_REDUCE_SCATTER : FX_ALL_REDUCE, true);
}
static steps find_gathers(const fx_plan *plan, const fx_params *p) {
  return find_buckets(plan, p, FX_ALL_GATHER, false);
}

/* Two products with the same weight: a layer's rows in pieces. */
static bool same_weight(const fx_plan *plan, int32_t a, int32_t b) {
  const fx_node *x = node_of(plan, a), *y = node_of(plan, b);
  if (strcmp(x->op->name, "linear") != 0 || x->op != y->op) return false;
  return fx_range_overlap(fx_value_range(plan->graph, x->in[1]), fx_value_range(plan->graph, y->in[1]));
}

/* Forward collectives of a piece of rows that travels while another is computed: between issue and wait is a
 * product with the weight of the one that made what is scattered, or that reads what is gathered. */
static steps find_pieces(const fx_plan *plan, fx_collective kind) {
  steps found = {.count = 0};
  for (int32_t i = 0; i < plan->num_steps; i++) {
    if (!is_collective(plan, i, kind)) continue;
    int32_t end = awaited_by(plan, i), own = kind == FX_REDUCE_SCATTER ? written_by(plan, i) : end;
    bool beside = false;
    for (int32_t s = i + 1; s < end && own >= 0 && own < plan->num_steps; s++)
      beside = beside || same_weight(plan, own, s);
    if (beside) add_step(&found, i);
  }
  return found;
}

/* How many of them have a product between issue and wait. */
static int count_beside(const fx_plan *plan, const steps *s) {
  int count = 0;
  for (int i = 0; i < s->count; i++)
    count += products_between(plan, s->at[i], awaited_by(plan, s->at[i])) > 0;
  return count;
}

static void check_lane(const char *what, const fx_plan *plan, const steps *s, fx_lane lane) {
  for (int i = 0; i < s->count; i++)
    CHECK_MSG(plan->steps[s->at[i]].lane == lane, "%s: collective %d is on %s", what, i,
              fx_lane_name(plan->steps[s->at[i]].lane));
}

typedef void (*look_fn)(const char *what, const fixture *f, const fx_plan *plan);

/* The plan of rank 0, which needs no other rank. */
static void look_at(layout l, look_fn look) {
  fx_control *control = NULL;
  fx_topology *topology = NULL;
  fixture f = {NULL};
  char what[160];
  snprintf(what, sizeof what, "%s, zero %d, %s, %s", l.cuda ? "GPU" : "CPU", l.zero, fx_phase_name(l.phase),
           l.keys);
  CHECK_OK(fx_control_create_dry(0, RANKS, &control));
  if (CHECK_OK(fx_topology_create(control, l.tensor, 1, &topology)) && make(&l, topology, FX_EXEC_REPLAY, &f))
    look(what, &f, fx_stepper_plan(f.stepper, l.phase));
  fixture_fini(&f);
  fx_topology_destroy(topology);
  fx_control_destroy(control);
}

/* A bucket goes as soon as it is complete. Behind the last two no product is left: they hold what the first
 * layer's first product and the embedding have as gradients. */
static void look_at_gradients(const char *what, const fixture *f, const fx_plan *plan) {
  steps s = find_gradients(plan, &f->model->params);
  int buckets = (int)f->model->params.num_buckets, beside = count_beside(plan, &s);
  if (!CHECK_MSG(s.count == buckets && buckets == 10, "%s: %d of %d buckets", what, s.count, buckets)) return;
  check_lane(what, plan, &s, FX_LANE_COMM_BULK);
  for (int b = 0; b < buckets; b++) {
    int late = products_between(plan, written_by(plan, s.at[b]), s.at[b]);
    CHECK_MSG(late == 0, "%s: bucket %d goes %d products after it is complete", what, b, late);
  }
  int behind = products_between(plan, s.at[0], plan->num_steps);
  CHECK_MSG(behind > 4 * LAYERS, "%s: %d products behind the first bucket", what, behind);
  CHECK_MSG(beside >= buckets - 2, "%s: %d of %d buckets travel beside a product", what, beside, buckets);
}

static void gradients_travel(void) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_LAST};
  for (int zero = 0; zero < 3; zero++)
    for (int p = 0; p < 2; p++)
      for (int cuda = 0; cuda < 2; cuda++)
        look_at((layout){k_data, 1, zero, phases[p], cuda}, look_at_gradients);
}

/* All go before the first product, and each is waited for where it is used first, not before. Only the
 * embedding and the first layer's first product have nothing in front of them to travel beside. */
static void look_at_gathers(const char *what, const fixture *f, const fx_plan *plan) {
  steps s = find_gathers(plan, &f->model->params);
  int buckets = (int)f->model->params.num_buckets, beside = count_beside(plan, &s);
  if (!CHECK_MSG(s.count == buckets && buckets == 10, "%s: %d of %d buckets", what, s.count, buckets)) return;
  check_lane(what, plan, &s, FX_LANE_COMM_BULK);
  for (int b = 0; b < buckets; b++) {
    int late = products_between(plan, -1, s.at[b]);
    int32_t wait = awaited_by(plan, s.at[b]), use = used_by(plan, s.at[b]);
    CHECK_MSG(late == 0, "%s: gather %d comes after %d products", what, b, late);
    CHECK_MSG(wait == use && use < plan->num_steps, "%s: gather %d is waited for by step %d, used by step %d",
              what, b, wait, use);
  }
  CHECK_MSG(beside >= buckets - 2, "%s: %d of %d gathers travel beside a product", what, beside, buckets);
}

static void weights_travel(void) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_FIRST};
  for (int zero = 1; zero < 3; zero++)
    for (int p = 0; p < 2; p++)
      for (int cuda = 0; cuda < 2; cuda++)
        look_at((layout){k_data, 1, zero, phases[p], cuda}, look_at_gathers);
}

static void look_for_pieces(const char *what, const fx_plan *plan, int expected) {
  static const fx_collective kinds[] = {FX_ALL_GATHER, FX_REDUCE_SCATTER};
  for (int k = 0; k < 2; k++) {
    steps s = find_pieces(plan, kinds[k]);
    CHECK_MSG(s.count == expected, "%s: %d of %d layers have a %s of one piece beside the other's product",
              what, s.count, expected, fx_collective_name(kinds[k]));
    check_lane(what, plan, &s, FX_LANE_COMM_CRITICAL);
  }
}
static void look_at_pieces(const char *what, const fixture *f, const fx_plan *plan) {
  (void)f;
  look_for_pieces(what, plan, LAYERS);
}
static void look_at_whole(const char *what, const fixture *f, const fx_plan *plan) {
  (void)f;
  look_for_pieces(what, plan, 0);
}

static void pieces_travel(void) {
  for (int cuda = 0; cuda < 2; cuda++) {
    look_at((layout){k_pieces, 2, 0, FX_PHASE_MICRO_ONLY, cuda}, look_at_pieces);
    look_at((layout){k_whole, 2, 0, FX_PHASE_MICRO_ONLY, cuda}, look_at_whole);
  }
}

/* ---- traces ---- */

enum { TRIES = 20, MOST_TRIES = 400 };
static const double k_least = 0.02; /* share that counts as overlap */

/* A transport that takes its time, as a network does, without a processor's. */
typedef struct slow_transport {
  fx_comm_vtable vtable;
  const fx_comm_vtable *sound;
  long ns; /* less than a second */
} slow_transport;

static fx_status issue_slowly(fx_comm *comm, const fx_comm_call *call) {
  const slow_transport *slow = (const slow_transport *)(const void *)comm->vtable;
  nanosleep(&(struct timespec){0, slow->ns}, NULL);
  return slow->sound->issue(comm, call);
}

static void make_slow(fx_comm *comm, slow_transport *slow) {
  *slow = (slow_transport){.vtable = *comm->vtable, .sound = comm->vtable};
  slow->vtable.issue = issue_slowly;
  comm->vtable = &slow->vtable;
}

typedef struct traced_job {
  layout l;
  fx_exec_mode mode;
  steps (*find)(const fx_plan *plan, const fx_params *p);
  pthread_mutex_t mutex; /* the harness counts one check at a time */
  double share[RANKS]; /* of the time in which these collectives ran, that in which something was computed */
} traced_job;

static steps find_scattered_pieces(const fx_plan *plan, const fx_params *p) {
  (void)p;
  return find_pieces(plan, FX_REDUCE_SCATTER);
}

static int64_t beside_compute(const fx_trace *trace, const fx_trace_span *span) {
  int64_t ns = 0;
  for (int64_t i = 0; i < fx_trace_count(trace); i++) {
    const fx_trace_span *other = &fx_trace_spans(trace)[i];
    if (other->lane != FX_LANE_COMPUTE || other == span) continue;
    ns +=
        fx_max_i64(fx_min_i64(span->end_ns, other->end_ns) - fx_max_i64(span->begin_ns, other->begin_ns), 0);
  }
  return ns;
}

/* Spans of a lane stand in the trace in the order of the lane's steps. */
static double share_of(const fx_trace *trace, const fx_plan *plan, const steps *s) {
  int64_t own = 0, beside = 0;
  int32_t step[FX_LANE_COUNT] = {0};
  for (int64_t i = 0; i < fx_trace_count(trace); i++) {
    const fx_trace_span *span = &fx_trace_spans(trace)[i];
    int32_t *at = &step[span->lane];
    while (*at < plan->num_steps && (int32_t)plan->steps[*at].lane != span->lane) ++*at;
    for (int k = 0; k < s->count; k++) {
      if (s->at[k] != *at) continue;
      own += span->end_ns - span->begin_ns;
      beside += beside_compute(trace, span);
    }
    ++*at;
  }
  return own ? (double)beside / (double)own : 0;
}

static int64_t computed_ns(const fx_trace *trace) {
  int64_t ns = 0;
  for (int64_t i = 0; i < fx_trace_count(trace); i++) {
    const fx_trace_span *span = &fx_trace_spans(trace)[i];
    if (span->lane == FX_LANE_COMPUTE) ns += span->end_ns - span->begin_ns;
  }
  return ns;
}

/* All calls take half the time of what is computed, by the fastest run so far. The best run behind the first
 * counts, and runs go on until every rank has had a good one: others share the processors. */
static fx_status trace_runs(traced_job *job, fx_control *control, fixture *f, slow_transport *slow) {
  fx_plan *plan = fx_stepper_plan(f->stepper, job->l.phase);
  steps s = job->find(plan, &f->model->params);
  fx_status status = FX_OK;
  int64_t least = INT64_MAX;
  double best = 0, waiting = 1; /* whether any rank waits for a good run */
  int tries = job->mode == FX_EXEC_EAGER ? TRIES : MOST_TRIES;
  for (int i = 0; i <= tries && waiting > 0 && status == FX_OK; i++) {
    fx_trace *trace = NULL;
    FX_TRY(fx_trace_create(4096, &trace));
    fx_plan_set_trace(plan, trace);
    status = fx_control_barrier(control, 60000);
    if (status == FX_OK) status = fx_stepper_run(f->stepper, job->l.phase, 0);
    double share = share_of(trace, plan, &s);
    if (i > 0 && share > best) best = share;
    least = fx_min_i64(least, computed_ns(trace));
    slow->ns = (long)(least / (2 * fx_plan_stats_get(plan)->collectives));
    fx_plan_set_trace(plan, NULL);
    fx_trace_destroy(trace);
    if (status == FX_OK) status = fx_control_largest(control, best > k_least ? 0 : 1, &waiting, 60000);
  }
  job->share[control->rank] = best;
  return status;
}

static void fill(fixture *f, int rank) {
  int32_t tokens[B * T], targets[B * T];
  for (int i = 0; i < B * T; i++) {
    tokens[i] = (i * 7 + rank * 5 + i / 9) % 61;
    targets[i] = (tokens[i] + 1) % 61;
  }
  fixture_fill(f, tokens, targets, NULL, 1.0f / (B * T * RANKS));
}

static fx_status traced_rank(fx_control *control, void *ctx) {
  traced_job *job = ctx;
  fixture f = {NULL};
  fx_topology *topology = NULL;
  slow_transport slow;
  FX_TRY(fx_topology_create(control, job->l.tensor, 1, &topology));
  fx_comm *comm = job->l.tensor > 1 ? topology->comm.tp : topology->comm.dp_cp;
  make_slow(comm, &slow);
  pthread_mutex_lock(&job->mutex);
  bool ready = make(&job->l, topology, job->mode, &f) && CHECK_OK(fx_stepper_bind(f.stepper)) &&
               CHECK_OK(fx_params_initialize(&f.model->params, 3));
  if (ready) fill(&f, control->rank);
  pthread_mutex_unlock(&job->mutex);
  fx_status status = ready ? trace_runs(job, control, &f, &slow) : FX_ERR_INTERNAL;
  fixture_fini(&f);
  comm->vtable = slow.sound;
  fx_topology_destroy(topology);
  return status;
}

/* 0.1 to 0.9 where two processors are free, 0.01 and less in many runs beside thirty busy loops; at most
 * 0.001 where all goes at the end, 0 where steps wait at once. */
static void check_trace(const char *what, layout l, steps (*find)(const fx_plan *, const fx_params *)) {
  for (int eager = 0; eager < 2; eager++) {
    traced_job job = {.l = l, .mode = eager ? FX_EXEC_EAGER : FX_EXEC_REPLAY, .find = find};
    pthread_mutex_init(&job.mutex, NULL);
    bool ran = CHECK_OK(fx_local_run(RANKS, traced_rank, &job));
    pthread_mutex_destroy(&job.mutex);
    for (int r = 0; ran && r < RANKS; r++) {
      if (eager)
        CHECK_MSG(job.share[r] == 0,
                  "%s, zero %d, rank %d: one op at a time, and yet computed during %.3g of their time", what,
                  l.zero, r, job.share[r]);
      else
        CHECK_MSG(job.share[r] > k_least, "%s, zero %d, rank %d: computed during %.3g of their time", what,
                  l.zero, r, job.share[r]);
    }
  }
}

static void traces_overlap(void) {
  for (int zero = 0; zero < 3; zero++)
    check_trace("gradients", (layout){k_data, 1, zero, FX_PHASE_MICRO_LAST, false}, find_gradients);
  for (int zero = 1; zero < 3; zero++)
    check_trace("weights", (layout){k_data, 1, zero, FX_PHASE_MICRO_FIRST, false}, find_gathers);
  check_trace("pieces", (layout){k_pieces, 2, 0, FX_PHASE_MICRO_ONLY, false}, find_scattered_pieces);
}

static const fx_test g_tests[] = {{"plans: gradients beside the backward", gradients_travel},
                                  {"plans: gathered weights beside the forward", weights_travel},
                                  {"plans: a piece of rows beside another's products", pieces_travel},
                                  {"traces: computing during communication", traces_overlap}};
FX_TEST_MAIN("what travels beside what is computed", g_tests)
