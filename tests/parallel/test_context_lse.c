/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a loss that reads the lse of context parallel attention, against the dense reference in
 * double.
 */
#include "tests/parallel/context_case.h"

/* A loss that reads lse, alone and beside out; heads that three and four ranks divide as well. */
static void gradient_of_lse(void) {
  static const char *const variants[] = {
      "{variant: document_causal}", "{variant: alibi, sinks: true}",
      "{mask: 'kv <= q && kv >= 300', sinks: true}", "{mask: 'kv <= q && q < 150'}",
      "{mask: 'q >= kv && (q - kv) % 3 != 1', score: 'score + bias[h, (q + "
      "kv) % 9]', buffers: {bias: {shape: [H, 9], learnable: true}}}"};
  problem *even = new_problem_of(1, 512, 8, 4, 2), *odd = new_problem_of(2, 384, 6, 3, 2);
  problem *const both[] = {even, odd};
  for (int loss = OF_OUT_AND_LSE; loss <= OF_LSE; loss++) {
    for (int i = 0; i < 2; i++) {
      flex_case *c = &both[i]->c;
      fx_fill_normal(both[i]->floats[4], (int64_t)c->B * c->H * c->T, 35, 1);
      if (loss == OF_LSE) memset(both[i]->floats[3], 0, (size_t)(c->B * c->T * c->H * c->D) * sizeof(float));
    }
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
      all_ways(even, variants[i], loss, (const int[]){2, 4}, 2);
      all_ways(odd, variants[i], loss, (const int[]){3}, 1);
    }
  }
  free_problem(even);
  free_problem(odd);
}

/* The control: without what lse adds, dq and dk are far from the reference, more than 1000 times what compare
 * allows; bfloat16 rounds to 2^-9. */
static void lse_matters(void) {
  const char *attention = "{variant: document_causal, sinks: true}";
  problem *p = new_problem_of(1, 512, 8, 4, 1);
  flex_case *c = &p->c;
  int64_t q = (int64_t)512 * 8 * D, k = (int64_t)512 * 4 * D;
  fx_fill_normal(p->floats[4], 512 * 8, 35, 1);
  for (int i = 0; i < 3; i++)
    for (int64_t n = 0; n < (i ? k : q); n++)
      p->floats[i][n] = fx_bf16_to_f32(fx_f32_to_bf16(p->floats[i][n]));
  fx_attention_setup *setup = flex_setup(c, "reference", attention, "none");
  for (int loss = OF_OUT; loss <= OF_LSE; loss++) {
    if (loss == OF_LSE) memset(p->floats[3], 0, (size_t)q * sizeof(float));
    reference ref = reference_solve(c, setup->kind[0].flex->variant);
    for (int e = 0; e < 3; e++) {
      flex_results got = {0};
      shared_problem way = {.c = c,
                            .attention = attention,
                            .exchange = k_exchanges[e],
                            .ranks = 4,
                            .bf16 = true,
                            .loss = (loss_kind)loss};
      if (solve_with(way, &got)) {
        double errors[] = {off(got.dq, ref.dq, q), off(got.dk, ref.dk, k), off(got.dsink, ref.dsink, 8)};
        for (int i = 0; i < 3; i++)
          CHECK_MSG(loss == OF_OUT ? errors[i] >= 0.05 : errors[i] <= 8e-3, "%s: result %d is off by %.3g",
                    way.exchange, i, errors[i]);
      }
      flex_results_free(&got);
    }
    reference_free(&ref);
  }
  fx_attention_setup_destroy(setup);
  free_problem(p);
}

static const fx_test g_tests[] = {{"loss of lse, alone and beside out", gradient_of_lse},
                                  {"what lse adds matters, in bfloat16 too", lse_matters}};
FX_TEST_MAIN("lse of context parallel attention", g_tests)
