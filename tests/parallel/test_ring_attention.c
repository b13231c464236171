/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a sequence that 2, 3, 4 and 8 in-process ranks share against the dense reference in double:
 * every exchange, every kind of variant. */
#include <math.h>

#include "parallel/context_cost.h"
#include "tests/parallel/context_case.h"

static const char *const k_variants[] = {
    "{variant: causal}",
    "{variant: full}",
    "{variant: document_causal}",
    "{variant: sliding_window, params: {window: 100}}",
    "{mask: 'kv < 70 || kv <= q', score: 'cap * tanh(score / cap)', params: {cap: 2.5}}",
    "{variant: alibi, sinks: true}",
    "{mask: 'q >= kv', score: 'score + bias[h, max(0, min(8, q - kv + 4))]', sinks: true, buffers: {bias: "
    "{shape: [H, 9], learnable: true}}}",
    "{mask: 'q >= kv && (q - kv) % 3 != 1', score: 'score + bias[h, (q + kv) % 9]', buffers: {bias: "
    "{shape: [H, 9], learnable: true}}}",
    "{mask: 'doc_id[q] == doc_id[kv] && (turn[q] - turn[kv] < 2 || h % 2 == 0)'}",
};

static void variants(void) {
  problem *long_one = new_problem(1, 1024, 2), *two = new_problem(2, 768, 2);
  for (size_t i = 0; i < FX_TEST_CASES(sizeof k_variants / sizeof k_variants[0]) + (FX_TEST_CASES(8) < 8);
       i++) {
    all_ways(long_one, k_variants[i], OF_OUT, (const int[]){2, 4, 8}, 3);
    all_ways(two, k_variants[i], OF_OUT, (const int[]){2, 3}, 2);
  }
  free_problem(long_one);
  free_problem(two);
}

/* Chunks that nobody sees, rows that see nothing, ranks without any work. */
static void nothing_to_do(void) {
  problem *p = new_problem(1, 1024, 2);
  all_ways(p, "{mask: 'kv <= q && q < 150'}", OF_OUT, (const int[]){4, 8}, 2);
  all_ways(p, "{mask: 'kv <= q && kv >= 900', sinks: true}", OF_OUT, (const int[]){2, 8}, 2);
  all_ways(p, "{mask: 'kv < 0'}", OF_OUT, (const int[]){3 - 1, 4}, 2);
  free_problem(p);
}

/* Scores that are one product each, from -96 to 96 with the position, so that exp(lse) covers 80 orders of
 * magnitude and most merges throw one side away. fp32 rounds the scaled query and the product: 2^-24 each. */
static void wide_range(void) {
  problem *p = new_problem(1, 1024, 1);
  fx_attention_setup *setup =
      flex_setup(&p->c, "reference", "{variant: sliding_window, params: {window: 130}}", "none");
  memset(p->floats[0], 0, (size_t)1024 * H * D * sizeof(float));
  memset(p->floats[1], 0, (size_t)1024 * K * D * sizeof(float));
  for (int t = 0; t < 1024; t++)
    for (int h = 0; h < H; h++) {
      p->floats[0][(t * H + h) * D] = 4;
      if (h < K) p->floats[1][(t * K + h) * D] = 96.0f * sinf((float)(t + 100 * h) / 163);
    }
  reference ref = reference_solve(&p->c, setup->kind[0].flex->variant);
  double least = INFINITY, most = -INFINITY;
  for (int i = 0; i < 1024 * H; i++) least = fmin(least, ref.lse[i]), most = fmax(most, ref.lse[i]);
  CHECK_MSG((most - least) / log(10) >= 80, "lse covers %.1f orders of magnitude", (most - least) / log(10));
  for (int e = 0; e < 2; e++)
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
      flex_results got = {0};
      double worst = 0;
      if (solve(&p->c, "{variant: sliding_window, params: {window: 130}}", k_exchanges[e], ranks, &got))
        for (int i = 0; i < 1024 * H; i++)
          worst =
              fx_worse(worst, fabs((double)got.lse[i] - ref.lse[i]) / (2e-6 + fabs(ref.lse[i]) * 0x1p-23));
      CHECK_MSG(worst <= 1, "%d ranks, %s: lse is at %.3f of its bound", ranks, k_exchanges[e], worst);
      flex_results_free(&got);
    }
  reference_free(&ref);
  fx_attention_setup_destroy(setup);
  free_problem(p);
}

/* The error of eight merges is that of none. */
static void error_stays(int T, const int *ranks, int count) {
  problem *p = new_problem(1, T, 2);
  fx_attention_setup *setup = flex_setup(&p->c, "reference", "{variant: full}", "none");
  const fx_variant *variant = setup->kind[0].flex->variant;
  reference ref = reference_solve(&p->c, variant);
  flex_results alone = flex_solve(&p->c, setup, 1);
  double base = compare(&p->c, variant, &alone, &ref, "one rank");
  flex_results_free(&alone);
  for (int i = 0; i < count; i++) {
    flex_results got = {0};
    if (solve(&p->c, "{variant: full}", "ring", ranks[i], &got)) {
      double error = compare(&p->c, variant, &got, &ref, "ring");
      CHECK_MSG(error <= 1.5 * base, "%d ranks: error %.3f of the bound, one rank %.3f", ranks[i], error,
                base);
    }
    flex_results_free(&got);
  }
  reference_free(&ref);
  fx_attention_setup_destroy(setup);
  free_problem(p);
}

static void error_does_not_grow(void) {
  error_stays(1024, (const int[]){2, 4, 8}, 3);
  error_stays(1152, (const int[]){3}, 1);
}

/* A ring holds three chunks of keys at most, so with more ranks a rank needs less. */
static void memory_falls(void) {
  problem *p = new_problem(1, 1024, 2);
  size_t arena[2][3] = {{0}};
  for (int e = 0; e < 2; e++)
    for (int i = 0; i < 3; i++) {
      flex_results got = {0};
      solve(&p->c, "{variant: causal}", k_exchanges[e], 2 << i, &got);
      arena[e][i] = g_arena;
      flex_results_free(&got);
    }
  printf("[arena of 2, 4, 8 ranks in KiB: allgather %zu %zu %zu, ring %zu %zu %zu] ", arena[0][0] / 1024,
         arena[0][1] / 1024, arena[0][2] / 1024, arena[1][0] / 1024, arena[1][1] / 1024, arena[1][2] / 1024);
  CHECK(arena[1][2] < arena[1][1] && arena[1][1] < arena[1][0]);
  CHECK(arena[1][2] < arena[0][2]);
  free_problem(p);
}

/* bfloat16 keys, values and outputs: the sums over hops are fp32, so eight ranks are as good as two. Inputs
 * are rounded first, so that the reference sees the same numbers. */
static void bfloat16(void) {
  problem *p = new_problem(2, 1024, 1);
  for (int i = 0; i < 3; i++)
    for (int64_t n = 0; n < (int64_t)2 * 1024 * (i ? K : H) * D; n++)
      p->floats[i][n] = fx_bf16_to_f32(fx_f32_to_bf16(p->floats[i][n]));
  fx_attention_setup *setup =
      flex_setup(&p->c, "reference", "{variant: document_causal, sinks: true}", "none");
  reference ref = reference_solve(&p->c, setup->kind[0].flex->variant);
  const int64_t q = (int64_t)2 * 1024 * H * D, k = (int64_t)2 * 1024 * K * D;
  for (int e = 0; e < 2; e++)
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
      flex_results got = {0};
      shared_problem shared = {.c = &p->c,
                               .attention = "{variant: document_causal, sinks: true}",
                               .exchange = k_exchanges[e],
                               .ranks = ranks,
                               .bf16 = true};
      if (solve_with(shared, &got)) {
        double errors[] = {off(got.out, ref.out, q), off(got.dq, ref.dq, q), off(got.dk, ref.dk, k),
                           off(got.dv, ref.dv, k), off(got.dsink, ref.dsink, H)};
        for (int i = 0; i < 5; i++)
          CHECK_MSG(errors[i] <= (i ? 8e-3 : 4e-3), "%d ranks, %s: result %d is off by %.3g", ranks,
                    k_exchanges[e], i, errors[i]);
      }
      flex_results_free(&got);
    }
  reference_free(&ref);
  fx_attention_setup_destroy(setup);
  free_problem(p);
}

/* The next keys travel while these are attended to; what comes out does not depend on when. */
static void exchange_overlaps(void) {
  problem *p = new_problem(2, 1024, 2);
  flex_results alone = {0}, traced = {0};
  fx_trace *trace = NULL;
  CHECK_OK(fx_trace_create(4096, &trace));
  shared_problem shared = {
      .c = &p->c, .attention = "{variant: full}", .exchange = "ring", .ranks = 4, .trace = trace};
  if (solve(&p->c, "{variant: full}", "ring", 4, &alone) && solve_with(shared, &traced)) {
    int64_t overlap = fx_trace_overlap(trace, FX_LANE_COMPUTE, FX_LANE_COMM_CRITICAL);
    CHECK_MSG(overlap > 0, "computing and exchanging overlap for %lld ns", (long long)overlap);
    CHECK(memcmp(alone.out, traced.out, (size_t)2 * 1024 * H * D * 4) == 0);
    CHECK(memcmp(alone.dk, traced.dk, (size_t)2 * 1024 * K * D * 4) == 0);
  }
  fx_trace_destroy(trace);
  flex_results_free(&alone), flex_results_free(&traced);
  free_problem(p);
}

/* ---- refusals ---- */

static void refusals(void) {
  static const struct {
    const char *yaml, *part;
  } rows[] = {{"parallel: {context: 2}\ntrain: {seq_length: 384}\n",
               "train.seq_length=384 is not a multiple of 128 x parallel.context=2"},
              {"parallel: {context: 2, context_exchange: alltoall}\nmodel: {num_attention_heads: 6, "
               "num_key_value_heads: 3, head_dim: 16}\n",
               "parallel.context=2 does not divide the 6 query and 3 key heads"},
              {"parallel: {context_exchange: rings}\n", "auto"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_config *config = NULL;
    CHECK_STATUS(fx_config_parse(rows[i].yaml, "x.yaml", &config), FX_ERR_CONFIG);
    CHECK_HAS(fx_error_text(), rows[i].part);
  }
  fx_config *config = NULL;
  fx_attention_setup *setup = NULL;
  CHECK_OK(fx_config_parse("parallel: {context: 2}\ntrain: {seq_length: 512}\n", "x.yaml", &config));
  CHECK_STATUS(fx_attention_setup_create_for(config, FX_BACKEND_CPU, 1, 500, 2, 0, &setup), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "parallel.context=2");
  fx_config_destroy(config);
}

/* What was measured to be fastest of the three (tests/bench/RESULTS.md), and what else the costs say. */
static void costs(void) {
  enum { G = 1 << FX_CONTEXT_ALLGATHER, A = 1 << FX_CONTEXT_ALLTOALL };
  const fx_backend CUDA = FX_BACKEND_CUDA;
  const fx_ring_room all = {-1, -1}, next = {32, 1}, none = {0, 0}; /* next: a window of 4,096 */
  const struct {
    fx_context_shape shape;
    int best;
    unsigned never; /* too much memory; heads that the ranks do not divide, or too many ranks */
  } rows[] = {{{CUDA, 2, 1, 8192, 32, 4, 64, FX_BF16, 0.5, all}, FX_CONTEXT_ALLGATHER, 0}, /* measured */
              {{CUDA, 2, 1, 16384, 32, 32, 128, FX_BF16, 0.5, all}, FX_CONTEXT_RING, 0},   /* measured */
              {{FX_BACKEND_CPU, 2, 1, 1024, 12, 12, 64, FX_F32, 0.5, all}, FX_CONTEXT_ALLGATHER, 0}, /* too */
              {{CUDA, 2, 1, 65536, 32, 32, 128, FX_BF16, 0.5, all}, FX_CONTEXT_RING, G},
              {{CUDA, 8, 1, 16384, 32, 32, 128, FX_BF16, 0.5, all}, FX_CONTEXT_ALLTOALL, 0}, /* short hops */
              {{CUDA, 8, 1, 65536, 32, 4, 128, FX_BF16, 0.5, all}, FX_CONTEXT_ALLGATHER, A},
              {{CUDA, 8, 1, 65536, 32, 4, 128, FX_BF16, 0.06, next}, FX_CONTEXT_RING, A},
              {{CUDA, 8, 1, 65536, 32, 32, 128, FX_BF16, 0.06, all}, FX_CONTEXT_ALLTOALL, G},
              {{CUDA, 8, 1, 65536, 32, 32, 128, FX_BF16, 0.06, next}, FX_CONTEXT_RING, G},
              {{CUDA, 2, 1, 8192, 32, 4, 64, FX_BF16, 0.01, none}, FX_CONTEXT_RING, 0},
              {{CUDA, 32, 1, 65536, 32, 32, 128, FX_BF16, 0.5, all}, FX_CONTEXT_RING, G | A},
              {{FX_BACKEND_CPU, 2, 1, 1 << 20, 4, 4, 64, FX_F32, 0.5, all}, FX_CONTEXT_RING, G}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_context_shape s = rows[i].shape;
    double cost[3];
    if (s.room.hops < 0) s.room = (fx_ring_room){(int32_t)(s.T / 128 / s.ranks), s.ranks - 1};
    for (int e = 0; e < 3; e++) {
      cost[e] = fx_context_cost(&s, (fx_context_exchange)e);
      bool possible = !isinf(cost[e]), expected = !(rows[i].never >> e & 1);
      CHECK_MSG(possible == expected && cost[e] > 0, "row %zu: %s costs %g", i,
                fx_context_exchange_name((fx_context_exchange)e), cost[e]);
    }
    fx_context_exchange got = fx_context_choose(&s);
    CHECK_MSG((int)got == rows[i].best, "row %zu: %s, of allgather %.3g, ring %.3g, alltoall %.3g ms", i,
              fx_context_exchange_name(got), 1e3 * cost[FX_CONTEXT_ALLGATHER], 1e3 * cost[FX_CONTEXT_RING],
              1e3 * cost[FX_CONTEXT_ALLTOALL]);
  }
}

/* Less work hides less, less to pass on takes less; as much work to each hop hides as much of each. */
static void cost_of_masks(void) {
  fx_context_shape dense = {FX_BACKEND_CUDA, 8, 1, 65536, 32, 32, 128, FX_BF16, 0.5, {64, 7}}, sparse = dense;
  double most = fx_context_cost(&dense, FX_CONTEXT_RING);
  sparse.density = 0.001;
  CHECK(fx_context_cost(&sparse, FX_CONTEXT_RING) > most + 1e-3);
  dense.room.hops = sparse.room.hops = 3;
  CHECK(fx_context_cost(&dense, FX_CONTEXT_RING) < 0.6 * most);
  sparse.density = 0.5, sparse.room.blocks = 16;
  CHECK(fx_context_cost(&sparse, FX_CONTEXT_RING) < fx_context_cost(&dense, FX_CONTEXT_RING));
  double cost[4] = {0};
  for (int hops = 1; hops <= 3; hops++) {
    dense.density = 0.005 * (hops + 1), dense.room.hops = hops; /* hides a part */
    cost[hops] = fx_context_cost(&dense, FX_CONTEXT_RING);
  }
  CHECK_MSG(fabs(cost[1] + cost[3] - 2 * cost[2]) < 1e-9 * cost[2], "%g, %g, %g", cost[1], cost[2], cost[3]);
}

static const fx_test g_tests[] = {{"refusals", refusals},
                                  {"what auto is", costs},
                                  {"costs of a ring", cost_of_masks},
                                  {"lse over 80 orders of magnitude", wide_range},
                                  {"error does not grow with the ring", error_does_not_grow},
                                  {"nothing to do", nothing_to_do},
                                  {"memory", memory_falls},
                                  {"bfloat16", bfloat16},
                                  {"exchange and computing overlap", exchange_overlaps},
                                  {"variants, ranks, exchanges", variants}};
FX_TEST_MAIN("context parallel attention against a dense reference", g_tests)
