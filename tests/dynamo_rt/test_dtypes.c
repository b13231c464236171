/* SPDX-License-Identifier: Apache-2.0 */
/* Which element types the ops of a layer take and give, forward and backward, and what they say of others. */
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/passes/passes.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { ROWS = 4, I = 8, O = 16, SLOT = 1024 };

static char g_memory[16][SLOT];

static fx_value some(fx_graph *g, int slot, fx_dtype dtype, int64_t rows, int64_t cols) {
  fx_type type = rows ? fx_type_2d(dtype, rows, cols) : fx_type_1d(dtype, cols);
  FX_ASSERT(fx_type_bytes(&type) <= SLOT);
  return fx_graph_persistent(FX_AT(g), "p", g_memory[slot], type);
}

/* x -> linear with a bias and an activation -> norm: every value is of type T but statistics and gradients of
 * parameters, which are float32. */
static void types_of_a_layer(void) {
  static const fx_dtype types[] = {FX_F32, FX_BF16};
  for (int t = 0; t < 2; t++) {
    fx_dtype T = types[t];
    fx_graph *g = fx_graph_create(NULL);
    fx_value wrt[5] = {some(g, 0, T, ROWS, I), some(g, 1, T, I, O), some(g, 2, T, 0, O),
                       some(g, 3, FX_F32, 0, O), some(g, 4, FX_F32, 0, O)},
             grads[5];
    fx_value h = fx_linear(FX_AT(g), wrt[0], wrt[1], wrt[2], (fx_linear_attr){1, FX_ACT_GELU_TANH});
    h = fx_linear(FX_AT(g), h, some(g, 5, T, O, O), FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
    fx_value y = fx_norm(FX_AT(g), h, wrt[3], wrt[4], (fx_norm_attr){FX_NORM_LAYER, 1e-5f});
    CHECK_OK(fx_autograd(g, fx_cast(FX_AT(g), y, FX_F32), wrt, 5, grads));
    CHECK_INT(fx_graph_type(g, h)->dtype, T);
    CHECK_INT(fx_graph_type(g, y)->dtype, T);
    CHECK_INT(fx_graph_type(g, grads[0])->dtype, T);
    for (int i = 1; i < 5; i++) {
      CHECK_INT(fx_graph_type(g, grads[i])->dtype, FX_F32);
      CHECK(fx_type_same_shape(fx_graph_type(g, grads[i]), fx_graph_type(g, wrt[i])));
    }
    for (int i = 0; i < 5; i++) {
      const fx_type *type = fx_graph_type(g, grads[i]);
      fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "p", g_memory[6 + i], *type), grads[i]);
    }
    CHECK_OK(fx_graph_optimize(g, true));
    fx_graph_destroy(g);
  }
}

static void refuse_linear(fx_dtype x, fx_dtype weight, fx_dtype bias, const char *sentence) {
  fx_graph *g = fx_graph_create(NULL);
  CHECK_INT(fx_linear(FX_AT(g), some(g, 0, x, ROWS, I), some(g, 1, weight, I, O), some(g, 2, bias, 0, O),
                      (fx_linear_attr){1, FX_ACT_NONE}),
            FX_NONE);
  CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), sentence);
  fx_graph_destroy(g);
}

static void refuse_norm(fx_dtype x, fx_dtype weight, fx_norm_kind kind, const char *sentence) {
  fx_graph *g = fx_graph_create(NULL);
  CHECK_INT(fx_norm(FX_AT(g), some(g, 0, x, ROWS, I), some(g, 1, weight, 0, I), some(g, 2, FX_F32, 0, I),
                    (fx_norm_attr){(int32_t)kind, 1e-5f}),
            FX_NONE);
  CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), sentence);
  fx_graph_destroy(g);
}

static void other_types_are_refused(void) {
  refuse_linear(FX_I32, FX_F32, FX_F32, "linear: the input int32[4, 8] must be float32 or bfloat16");
  refuse_linear(FX_BF16, FX_F32, FX_BF16,
                "linear: the weight float32[8, 16] must be bfloat16, as the input is");
  refuse_linear(FX_F32, FX_F32, FX_BF16, "linear: the bias bfloat16[16] must be float32, as the input is");
  refuse_norm(FX_F64, FX_F32, FX_NORM_LAYER,
              "norm: the input float64[4, 8] must be contiguous rows of float32 or bfloat16");
  refuse_norm(FX_BF16, FX_BF16, FX_NORM_LAYER, "weight and bias must be float32");
  refuse_norm(FX_F32, FX_F32, FX_NORM_RMS, "RMSNorm takes no bias");
}

/* Bytes are counted by type: half of them in bfloat16, less what stays float32. */
static void costs_count_bytes_by_type(void) {
  double bytes[2];
  for (int t = 0; t < 2; t++) {
    fx_type x = fx_type_2d(t ? FX_BF16 : FX_F32, ROWS, I), w = fx_type_2d(x.dtype, I, O), out[2];
    fx_graph *g = fx_graph_create(NULL);
    fx_value y = fx_linear(FX_AT(g), some(g, 0, x.dtype, ROWS, I), some(g, 1, x.dtype, I, O), FX_NONE,
                           (fx_linear_attr){1, FX_ACT_NONE});
    const fx_node *node = fx_graph_node(g, 0);
    memset(out, 0, sizeof out);
    out[0] = *fx_graph_type(g, y);
    fx_cost cost = node->op->cost((const fx_type *[]){&x, &w, NULL}, out, node->attr);
    CHECK(cost.flops == 2.0 * ROWS * I * O);
    bytes[t] = cost.bytes;
    fx_graph_destroy(g);
  }
  CHECK_MSG(bytes[0] == 4.0 * (ROWS * I + I * O + ROWS * O), "%g bytes", bytes[0]);
  CHECK_MSG(bytes[1] == bytes[0] / 2, "%g bytes", bytes[1]);
}

static const fx_test tests[] = {{"types of a layer", types_of_a_layer},
                                {"other types are refused", other_types_are_refused},
                                {"costs count bytes by type", costs_count_bytes_by_type}};
FX_TEST_MAIN("types", tests)
