/* SPDX-License-Identifier: Apache-2.0 */
/* Every op's CPU kernels, forward and backward, against the double reference; and what the reference itself
 * refuses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/ops/elementwise.h"
#include "tests/double_reference.h"
#include "tests/harness.h"
#include "tests/op_cases.h"

static fx_device *g_cpu;

/* How many gradients of parameters the case has. */
static int run_case(const fx_graph_case *c) {
  fx_world shape;
  double *want = NULL;
  char *got = fx_world_run(c, g_cpu, FX_EXEC_REPLAY, &shape, &want);
  if (got) fx_world_compare(c, &shape, got, want);
  free(got);
  free(want);
  return shape.gradients;
}

/* The CPU's kernels compute in float32 whatever the case: its bound holds for rounded elements too, and large
 * shapes have nothing to add with those. */
static void every_op(void) {
  enum { LARGEST = 19 << 20 };
  int count;
  const fx_op_case *cases = fx_op_cases(&count);
  for (const fx_op_case *o = cases; o < cases + count; o++)
    for (int k = 0; k < FX_OP_CASE_SHAPES && o->shape[k][0] > 0 && o->bound_cpu >= 0; k++) {
      fx_graph_case c = {.name = o->name,
                         .build = o->build,
                         .bound = o->bound_cpu,
                         .rows = o->shape[k][0],
                         .cols = o->shape[k][1]};
      if (c.rows * c.cols > FX_TEST_CASES(LARGEST)) continue;
      int gradients = run_case(&c);
      if (c.rows * c.cols > FX_OP_CASE_MANY) continue;
      c.add = true;
      if (gradients) run_case(&c);
      c.add = false;
      c.half = true;
      if (o->bound_half > 0) run_case(&c);
    }
}

/* ---- the reference ---- */

static fx_status as_first(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

static void an_unknown_op_is_named(void) {
  static const fx_op lonely = {.name = "lonely", .min_in = 1, .max_in = 1, .num_out = 1, .infer = as_first};
  float x = 1, y = 2;
  double result = 0;
  fx_type type = fx_type_1d(FX_F32, 1);
  fx_graph *g = fx_graph_create(NULL);
  fx_value in = fx_graph_persistent(FX_AT(g), "x", &x, type);
  fx_value out = fx_graph_record(FX_AT(g), &lonely, NULL, (fx_value[]){in}, NULL);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", &y, type), out);
  CHECK_STATUS(fx_double_reference_run(g, (const void *[]){&y}, (double *[]){&result}, 1),
               FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "the double reference has no op lonely");
  fx_graph_destroy(g);
}

/* What is read before and after an update in place, memory that nothing wrote, and the caller's own. */
static void memory_is_as_recorded(void) {
  float x[2] = {1, 0.1f}, before[2] = {0}, after[2] = {0}, empty[2] = {0};
  double result[4][2];
  fx_type type = fx_type_1d(FX_F32, 2);
  fx_graph *g = fx_graph_create(NULL);
  fx_value in = fx_graph_persistent(FX_AT(g), "x", x, type);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "before", before, type), in);
  fx_value sum = fx_accumulate(FX_AT(g), in, in);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "after", after, type), sum);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "empty", empty, type), fx_empty(FX_AT(g), type));
  CHECK_OK(fx_double_reference_run(g, (const void *[]){x, before, after, empty},
                                   (double *[]){result[0], result[1], result[2], result[3]}, 4));
  for (int i = 0; i < 2; i++) {
    CHECK(result[0][i] == 2 * (double)x[i] && result[1][i] == (double)x[i] && result[2][i] == result[0][i]);
    CHECK(isnan(result[3][i]));
  }
  CHECK(x[0] == 1 && after[0] == 0);
  fx_graph_destroy(g);
}

static void numbers_are_rounded(void) {
  static const double numbers[][3] = {/* as it is, as float32, as bfloat16 */
                                      {1 + 0x1p-8, 1 + 0x1p-8, 1},
                                      {1 + 0x3p-8, 1 + 0x3p-8, 1 + 0x1p-6},
                                      {-1 - 0x1.8p-8, -1 - 0x1.8p-8, -1 - 0x1p-7},
                                      {1 + 0x1p-24, 1, 1},
                                      {1 + 0x1.00001p-24, 1 + 0x1p-23, 1},
                                      {0x1.8p-149, 0x1p-148, 0},
                                      {0x1.8p-133, 0x1.8p-133, 0x1p-132},
                                      {0x1.ffp127, 0x1.ffp127, INFINITY},
                                      {-0x1.ffffffp127, -INFINITY, -INFINITY},
                                      {0, 0, 0}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    const double *n = numbers[i];
    CHECK_MSG(fx_double_round(n[0], FX_F32) == n[1], "%a in float32 is %a", n[0],
              fx_double_round(n[0], FX_F32));
    CHECK_MSG(fx_double_round(n[0], FX_BF16) == n[2], "%a in bfloat16 is %a", n[0],
              fx_double_round(n[0], FX_BF16));
  }
}

int main(void) {
  static const fx_test tests[] = {{"every op against the double reference", every_op},
                                  {"an op that the reference lacks is named", an_unknown_op_is_named},
                                  {"memory of the reference is as recorded", memory_is_as_recorded},
                                  {"numbers are rounded to nearest", numbers_are_rounded}};
  if (fx_device_create_cpu(2, "auto", &g_cpu) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  int code = fx_test_main("ops in double", tests, (int)(sizeof tests / sizeof tests[0]));
  fx_device_destroy(g_cpu);
  return code;
}
