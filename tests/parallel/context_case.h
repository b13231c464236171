/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a sequence that in-process ranks share, through YAML, set-up, the assignment of blocks and
 * the masks of each rank's rows, against the dense reference in double: out, lse and all gradients. Documents
 * end nowhere near a multiple of 128. */
#ifndef FX_TESTS_PARALLEL_CONTEXT_CASE_H
#define FX_TESTS_PARALLEL_CONTEXT_CASE_H

#define FLEX_REFERENCE_T 1152
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "core/model/context.h"
#include "parallel/comm/local/local.h"
#include "tests/core/flex_reference.h"

enum { H = 4, K = 2, D = 16, MOST_RANKS = 8 };

/* ---- one problem on several ranks ---- */

typedef enum loss_kind { OF_OUT, OF_OUT_AND_LSE, OF_LSE } loss_kind;

typedef struct shared_problem {
  const flex_case *c;
  const char *attention, *exchange;
  int ranks;
  bool apart;        /* as on a GPU: dq after dk and dv, all of them sums in place */
  bool bf16;         /* q, k, v and everything in between */
  loss_kind loss;    /* what the gradients are of */
  fx_trace *trace;   /* of rank 0, or NULL */
  flex_results *got; /* whole arrays; every rank writes its rows */
  float *dsink[MOST_RANKS], *dtable[MOST_RANKS]; /* each rank's share */
  int32_t *blocks[MOST_RANKS];                   /* what each rank took the assignment to be */
  size_t arena[MOST_RANKS];
} shared_problem;

static inline fx_status rank_setup(const shared_problem *p, int rank, fx_attention_setup **out) {
  char yaml[2048];
  fx_config *config = NULL;
  const flex_case *c = p->c;
  snprintf(
      yaml, sizeof yaml,
      "model: {vocab_size: 64, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: %d, "
      "num_key_value_heads: %d, head_dim: %d, intermediate_size: 16}\nattention: %s\n"
      "parallel: {context: %d, context_exchange: %s}\n"
      "train: {seq_length: %d, micro_batch_size: %d, global_batch_size: %d}\nruntime: {compiler: none}\n",
      c->H, c->K, c->D, p->attention, p->ranks, p->exchange, c->T, c->B, c->B);
  FX_TRY(fx_config_parse(yaml, "ring", &config));
  fx_status status = fx_attention_setup_create_for(config, FX_BACKEND_CPU, c->B, c->T, p->ranks, rank, out);
  fx_config_destroy(config);
  return status;
}

/* Rows of `width` floats between a whole [B, T] and this rank's [B, rows]. */
static inline void move_rows(const fx_attention_setup *s, const int32_t *blocks, int64_t width, float *whole,
                             float *local, bool take) {
  const int32_t *mine = blocks + s->rank * (s->rows / 128);
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t t = 0; t < s->rows; t++) {
      float *far = whole + (b * s->T + mine[t / 128] + t % 128) * width,
            *near = local + (b * s->rows + t) * width;
      memcpy(take ? near : far, take ? far : near, (size_t)width * sizeof(float));
    }
}

static inline float *take(const fx_attention_setup *s, const int32_t *blocks, int64_t width,
                          const float *whole) {
  float *local = calloc((size_t)(s->B * s->rows * width), sizeof *local);
  move_rows(s, blocks, width, (float *)(uintptr_t)whole, local, true);
  return local;
}

/* Between lse [B, H, T] and this rank's [B, H, rows]. */
static inline void move_lse(const fx_attention_setup *s, const int32_t *blocks, float *whole, float *local,
                            bool take) {
  const int32_t *mine = blocks + s->rank * (s->rows / 128);
  for (int64_t head = 0; head < (int64_t)s->B * s->H; head++)
    for (int64_t t = 0; t < s->rows; t++) {
      float *far = whole + head * s->T + mine[t / 128] + t % 128, *near = local + head * s->rows + t;
      *(take ? near : far) = *(take ? far : near);
    }
}

typedef struct rank_values {
  fx_value q, k, v, dout, dlse, out, lse, grads[5];
} rank_values;

/* sum of x * dx, so that the gradient of x is dx */
static inline fx_value product(fx_graph *g, fx_value x, fx_value dx) {
  int64_t n = fx_type_numel(fx_graph_type(g, x));
  return fx_linear(FX_AT(g), fx_reshape(FX_AT(g), x, 2, (int64_t[]){1, n}), dx, FX_NONE,
                   (fx_linear_attr){0, FX_ACT_NONE});
}

static inline fx_value loss_of(fx_graph *g, const rank_values *values, loss_kind loss) {
  if (loss == OF_LSE) return product(g, values->lse, values->dlse);
  fx_value of_out = product(g, values->out, values->dout);
  return loss == OF_OUT ? of_out : fx_add(FX_AT(g), of_out, product(g, values->lse, values->dlse));
}

static inline void record(fx_graph *g, const shared_problem *p, const fx_attention_setup *s, fx_comm *comm,
                          void *const *memory, rank_values *values) {
  const fx_attention_kind *kind = &s->kind[0];
  fx_attention_inputs in = fx_attention_no_inputs();
  fx_attention_attr attr = kind->attr;
  attr.scale = 1.0f / sqrtf((float)p->c->D);
  attr.dq_apart = p->apart;
  in.limits = flex_field(g, s, memory, kind->limits);
  in.runs = flex_field(g, s, memory, kind->runs);
  in.runs_backward = flex_field(g, s, memory, kind->runs < 0 ? -1 : kind->runs + 1);
  in.buffers = flex_field(g, s, memory, kind->buffers);
  if (kind->flex->variant->sinks)
    in.sinks = flex_constant(g, "sinks", p->c->sink, fx_type_1d(FX_F32, p->c->H));
  if (fx_flex_num_tables(kind->flex) > 0)
    in.table[0] =
        flex_constant(g, "table", p->c->table, fx_type_1d(FX_F32, fx_flex_table_floats(kind->flex, 0)));
  fx_value q = values->q, k = values->k, v = values->v;
  if (p->bf16) q = fx_cast(g, q, FX_BF16), k = fx_cast(g, k, FX_BF16), v = fx_cast(g, v, FX_BF16);
  fx_context_blocks blocks = fx_context_values(FX_AT(g), s, flex_field(g, s, memory, s->blocks),
                                               flex_field(g, s, memory, s->shared));
  values->out = fx_context_attention(FX_AT(g), comm, FX_LANE_COMM_CRITICAL, s->exchange, q, k, v, &blocks,
                                     &in, attr, &values->lse);
  if (fx_graph_status(g) != FX_OK) return;
  if (p->bf16) values->out = fx_cast(g, values->out, FX_F32);
  fx_value loss = loss_of(g, values, p->loss);
  fx_value wrt[5] = {values->q, values->k, values->v, in.sinks, in.table[0]};
  int count = 3;
  for (int i = 3; i < 5; i++)
    if (wrt[i] != FX_NONE) wrt[count++] = wrt[i];
  if (fx_autograd(g, loss, wrt, count, values->grads) != FX_OK) return;
  for (int i = count; i < 5; i++) values->grads[i] = FX_NONE;
  if (in.sinks == FX_NONE) values->grads[4] = values->grads[3], values->grads[3] = FX_NONE;
}

/* With a trace nothing is poisoned: that waits for every exchange. */
static inline fx_status run_rank_graph(fx_graph *g, fx_trace *trace, size_t *arena_bytes) {
  fx_device *device = NULL;
  fx_plan *plan = NULL;
  void *arena = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_device_create_cpu(1, "auto", &device));
  fx_plan_options options = {.name = "ring", .poison = !trace, .mode = FX_EXEC_REPLAY};
  FX_TRY_GOTO(fx_plan_prepare(g, options, device, &plan), destroy_device);
  fx_plan_set_trace(plan, trace);
  *arena_bytes = fx_plan_stats_get(plan)->arena.bytes;
  FX_TRY_GOTO(fx_alloc_aligned(&arena, *arena_bytes), destroy_plan);
  FX_TRY_GOTO(fx_plan_bind(plan, arena), destroy_plan);
  status = fx_plan_run(plan, 0);
  if (status == FX_OK) status = fx_device_sync(device);
destroy_plan:
  fx_plan_destroy(plan);
  free(arena);
destroy_device:
  fx_device_destroy(device);
  return status;
}

static inline fx_status solve_rows(shared_problem *p, const fx_attention_setup *s, fx_comm *comm,
                                   void *const *memory) {
  const flex_case *c = p->c;
  const int32_t *blocks = memory[s->blocks];
  int64_t q_width = (int64_t)c->H * c->D, kv_width = (int64_t)c->K * c->D, rank = comm->rank;
  float *q = take(s, blocks, q_width, c->q), *k = take(s, blocks, kv_width, c->k),
        *v = take(s, blocks, kv_width, c->v), *dout = take(s, blocks, q_width, c->dout),
        *dlse = calloc((size_t)(c->B * c->H * s->rows), sizeof *dlse);
  move_lse(s, blocks, (float *)(uintptr_t)c->dlse, dlse, true);
  fx_type q_type = fx_type_of(FX_F32, 4, (int64_t[]){c->B, s->rows, c->H, c->D});
  fx_type kv_type = fx_type_of(FX_F32, 4, (int64_t[]){c->B, s->rows, c->K, c->D});
  fx_graph *g = fx_graph_create(NULL);
  rank_values r = {.q = flex_constant(g, "q", q, q_type),
                   .k = flex_constant(g, "k", k, kv_type),
                   .v = flex_constant(g, "v", v, kv_type),
                   .dout = flex_constant(g, "dout", dout, fx_type_2d(FX_F32, 1, fx_type_numel(&q_type))),
                   .dlse = flex_constant(g, "dlse", dlse, fx_type_2d(FX_F32, 1, c->B * c->H * s->rows))};
  record(g, p, s, comm, memory, &r);
  fx_status status = fx_graph_status(g);
  if (status == FX_OK) {
    float *lse = flex_store(g, "lse of it", r.lse), *out = flex_store(g, "out", r.out),
          *dq = flex_store(g, "dq", r.grads[0]), *dk = flex_store(g, "dk", r.grads[1]),
          *dv = flex_store(g, "dv", r.grads[2]);
    p->dsink[rank] = flex_store(g, "dsink", r.grads[3]);
    p->dtable[rank] = flex_store(g, "dtable", r.grads[4]);
    status = run_rank_graph(g, rank == 0 ? p->trace : NULL, &p->arena[rank]);
    move_rows(s, blocks, q_width, p->got->out, out, false);
    move_rows(s, blocks, q_width, p->got->dq, dq, false);
    move_rows(s, blocks, kv_width, p->got->dk, dk, false);
    move_rows(s, blocks, kv_width, p->got->dv, dv, false);
    move_lse(s, blocks, p->got->lse, lse, false);
    free(out), free(lse), free(dq), free(dk), free(dv);
  } else {
    fx_graph_destroy(g);
  }
  free(q), free(k), free(v), free(dout), free(dlse);
  return status;
}

static inline fx_status run_rank(fx_control *control, void *ctx) {
  shared_problem *p = ctx;
  const flex_case *c = p->c;
  fx_comm *comm = NULL;
  fx_attention_setup *setup = NULL;
  void *memory[FX_ATTENTION_MAX_FIELDS], *scratch = NULL;
  int all[MOST_RANKS];
  for (int r = 0; r < control->size; r++) all[r] = r;
  FX_TRY(fx_control_split(control, "cp", 2, all, control->size, &comm));
  FX_TRY(rank_setup(p, control->rank, &setup));
  for (int i = 0; i < setup->num_fields; i++)
    memory[i] = aligned_alloc(FX_ALIGN, fx_align_up((size_t)setup->field[i].words * 4, FX_ALIGN));
  FX_TRY(fx_alloc_aligned(&scratch, setup->scratch_bytes + FX_ALIGN));
  int32_t *positions = calloc((size_t)(c->B * c->T), sizeof *positions);
  for (int i = 0; i < c->B * c->T; i++) positions[i] = i % c->T - c->doc_start[i];
  fx_attention_batch batch = {c->tokens, positions, c->doc_start, c->doc_end};
  fx_status status = fx_attention_fill(setup, &batch, memory, scratch);
  setup->room = setup->rung[fx_attention_rung(setup, memory)];
  if (status == FX_OK) {
    p->blocks[control->rank] = malloc((size_t)c->T / 128 * sizeof(int32_t));
    memcpy(p->blocks[control->rank], memory[setup->blocks], (size_t)c->T / 128 * sizeof(int32_t));
    status = solve_rows(p, setup, comm, memory);
  }
  free(scratch), free(positions);
  for (int i = 0; i < setup->num_fields; i++) free(memory[i]);
  fx_attention_setup_destroy(setup);
  fx_comm_destroy(comm);
  return status;
}

/* Shares of a parameter's gradient, in rank order, as a reduction over the ranks adds them. */
static inline float *sum_shares(float *const *share, int ranks, size_t count) {
  if (!share[0]) return NULL;
  float *sum = calloc(count, sizeof *sum);
  for (int r = 0; r < ranks; r++)
    for (size_t i = 0; i < count; i++) sum[i] += share[r][i];
  return sum;
}

static size_t g_arena; /* largest of the last run */

static inline bool solve_with(shared_problem p, flex_results *got) {
  const flex_case *c = p.c;
  const int ranks = p.ranks;
  int64_t q = (int64_t)c->B * c->T * c->H * c->D, k = (int64_t)c->B * c->T * c->K * c->D;
  p.got = got;
  *got = (flex_results){.out = calloc((size_t)q, 4),
                        .dq = calloc((size_t)q, 4),
                        .dk = calloc((size_t)k, 4),
                        .dv = calloc((size_t)k, 4),
                        .lse = calloc((size_t)(c->B * c->H * c->T), 4)};
  bool ok = CHECK_MSG(fx_local_run(ranks, run_rank, &p) == FX_OK, "%s, %d ranks, %s: %s", p.attention, ranks,
                      p.exchange, fx_error_text());
  g_arena = 0;
  for (int r = 0; ok && r < ranks; r++) {
    CHECK(memcmp(p.blocks[r], p.blocks[0], (size_t)c->T / 128 * sizeof(int32_t)) == 0);
    g_arena = p.arena[r] > g_arena ? p.arena[r] : g_arena;
  }
  if (ok)
    got->dsink = sum_shares(p.dsink, ranks, (size_t)c->H),
    got->dtable = sum_shares(p.dtable, ranks, (size_t)c->H * BUCKETS);
  for (int r = 0; r < ranks; r++) free(p.dsink[r]), free(p.dtable[r]), free(p.blocks[r]);
  return ok;
}

static inline bool solve(const flex_case *c, const char *attention, const char *exchange, int ranks,
                         flex_results *got) {
  return solve_with((shared_problem){.c = c, .attention = attention, .exchange = exchange, .ranks = ranks},
                    got);
}

/* ---- problems ---- */

typedef struct problem {
  flex_case c;
  float *floats[7];
  int32_t *ints;
} problem;

static inline problem *new_problem_of(int B, int T, int heads, int kv_heads, float sigma) {
  problem *p = calloc(1, sizeof *p);
  int64_t q = (int64_t)B * T * heads * D, k = (int64_t)B * T * kv_heads * D, n = (int64_t)B * T;
  const int64_t sizes[7] = {q, k, k, q, n * heads, heads, heads * BUCKETS};
  for (int i = 0; i < 7; i++) {
    p->floats[i] = calloc((size_t)sizes[i], sizeof(float));
    if (i != 4) fx_fill_normal(p->floats[i], sizes[i], (uint64_t)(31 + i), i < 2 ? sigma : 1);
  }
  p->ints = calloc((size_t)(3 * n), sizeof(int32_t));
  static const int lengths[] = {1, 200, 2, 127, 129, 77, 333, 41};
  for (int b = 0; b < B; b++)
    for (int t = 0, d = b; t < T; d++) {
      int stop = t + lengths[d % 8];
      if (stop > T) stop = T;
      for (int first = t; t < stop; t++) {
        p->ints[b * T + t] = first, p->ints[n + b * T + t] = stop;
        p->ints[2 * n + b * T + t] = t % 7 == 3 ? 10 : 1;
      }
    }
  p->c = (flex_case){.B = B, .T = T, .H = heads, .K = kv_heads, .D = D};
  p->c.q = p->floats[0], p->c.k = p->floats[1], p->c.v = p->floats[2], p->c.dout = p->floats[3];
  p->c.dlse = p->floats[4], p->c.sink = p->floats[5], p->c.table = p->floats[6];
  p->c.doc_start = p->ints, p->c.doc_end = p->ints + n, p->c.tokens = p->ints + 2 * n;
  return p;
}

static inline problem *new_problem(int B, int T, float sigma) {
  return new_problem_of(B, T, H, K, sigma);
}

static inline void free_problem(problem *p) {
  for (int i = 0; i < 7; i++) free(p->floats[i]);
  free(p->ints);
  free(p);
}

static inline double off(const float *got, const double *want, int64_t count) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    error += pow((double)got[i] - want[i], 2);
    norm += want[i] * want[i];
  }
  return norm > 0 ? sqrt(error / norm) : sqrt(error);
}

/* Returns the forward's error over its bound. */
static inline double compare(const flex_case *c, const fx_variant *v, const flex_results *r,
                             const reference *ref, const char *what) {
  int64_t q = (int64_t)c->B * c->T * c->H * c->D, k = (int64_t)c->B * c->T * c->K * c->D;
  double forward = 4e-7 * (4 + ref->highest), backward = 5 * forward;
  const struct {
    const char *name;
    const float *got;
    const double *want;
    int64_t count;
    double bound;
  } rows[] = {{"out", r->out, ref->out, q, forward},
              {"dq", r->dq, ref->dq, q, backward},
              {"dk", r->dk, ref->dk, k, backward},
              {"dv", r->dv, ref->dv, k, backward},
              {"dsink", v->sinks ? r->dsink : NULL, ref->dsink, c->H, 4 * backward},
              {"dtable", v->num_tables ? r->dtable : NULL, ref->dtable, c->H * BUCKETS, 4 * backward}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if (i >= 4 && !rows[i].got) continue;
    double error = off(rows[i].got, rows[i].want, rows[i].count);
    CHECK_MSG(error <= rows[i].bound, "%s: %s is off by %.3g, %.3g is allowed", what, rows[i].name, error,
              rows[i].bound);
  }
  for (int64_t i = 0; i < q; i += 64 * c->H * c->D) /* a hole in one place does not drown in the whole */
    CHECK_MSG(off(r->out + i, ref->out + i, 64 * c->H * c->D) <= 4 * forward, "%s: rows at %lld of out", what,
              (long long)(i / c->H / c->D));
  int64_t wrong = 0;
  for (int64_t i = 0; i < (int64_t)c->B * c->H * c->T; i++)
    wrong += isinf(ref->lse[i]) ? (double)r->lse[i] != ref->lse[i]
                                : !(fabs((double)r->lse[i] - ref->lse[i]) <= 1e-6 * (4 + ref->highest));
  CHECK_MSG(wrong == 0, "%s: %lld wrong lse", what, (long long)wrong);
  return off(r->out, ref->out, q) / forward;
}

static const char *const k_exchanges[] = {"allgather", "ring", "alltoall"};

static inline void all_ways(problem *p, const char *attention, loss_kind loss, const int *ranks, int count) {
  fx_attention_setup *setup = flex_setup(&p->c, "reference", attention, "none");
  static const char *const loss_names[] = {
      [OF_OUT] = "", [OF_OUT_AND_LSE] = ", loss of out and lse", [OF_LSE] = ", loss of lse"};
  if (!setup) return;
  const fx_variant *variant = setup->kind[0].flex->variant;
  reference ref = reference_solve(&p->c, variant);
  for (int i = 0; i < count; i++)
    for (int e = 0; e < 5; e++) {
      flex_results got = {0};
      char what[400];
      shared_problem way = {.c = &p->c,
                            .attention = attention,
                            .exchange = k_exchanges[e == 4 ? 2 : e % 2],
                            .ranks = ranks[i],
                            .apart = e == 2 || e == 3,
                            .loss = loss};
      if (e == 4 && p->c.K % ranks[i] != 0) continue; /* alltoall divides the heads */
      snprintf(what, sizeof what, "%s, %d ranks, %s%s%s", attention, ranks[i], way.exchange,
               way.apart ? ", dq apart" : "", loss_names[loss]);
      if (solve_with(way, &got)) compare(&p->c, variant, &got, &ref, what);
      flex_results_free(&got);
    }
  reference_free(&ref);
  fx_attention_setup_destroy(setup);
}

#endif
