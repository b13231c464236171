/* SPDX-License-Identifier: Apache-2.0 */
/* Every op's CUDA kernels, forward and backward, against the double reference, and what the device says of
 * bad data. Without a GPU there is one line and nothing to test. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "tests/double_reference.h"
#include "tests/gpu/gpu_case.h"
#include "tests/op_cases.h"

static fx_device *g_gpu;

static void run_shape(const fx_op_case *o, int64_t rows, int64_t cols, bool half) {
  fx_graph_case c = {.name = o->name,
                     .build = o->build,
                     .bound = half ? o->bound_half : o->bound_gpu,
                     .half = half,
                     .rows = rows,
                     .cols = cols};
  if (c.bound < 0) return;
  int gradients = run_case(&c, g_gpu);
  c.add = true;
  if (gradients && rows * cols <= FX_OP_CASE_MANY) run_case(&c, g_gpu);
}

static void every_op(void) {
  int index, of, count;
  const fx_op_case *cases = fx_op_cases(&count);
  fx_test_slice(&index, &of);
  for (int i = index; i < count; i += of)
    for (int k = 0; k < FX_OP_CASE_SHAPES && cases[i].shape[k][0] > 0; k++)
      for (int half = 0; half < 2; half++)
        run_shape(&cases[i], cases[i].shape[k][0], cases[i].shape[k][1], half != 0);
}

static void a_bad_gradient_changes_nothing(void) {
  static const fx_graph_case c = {.name = "adamw, gradient not finite", .build = fx_op_case_not_finite};
  fx_world shape;
  char *outputs = fx_world_run(&c, g_gpu, FX_EXEC_REPLAY, &shape, NULL);
  size_t at = 0;
  for (int i = 0; outputs && i < shape.count; i++) {
    const fx_world_buffer *b = &shape.buffer[i];
    if (!b->output) continue;
    const char *data = outputs + at;
    if (strcmp(b->name, "compute") == 0)
      for (size_t k = 0; k < fx_type_bytes(&b->type); k++) CHECK((unsigned char)data[k] == 0xFF);
    if (strcmp(b->name, "p") == 0 || strcmp(b->name, "copy p") == 0)
      for (int64_t k = 0; k < 16; k++) CHECK(isfinite(fx_double_load(data, FX_F32, k)));
    if (strcmp(b->name, "norm") == 0) CHECK(!isfinite(fx_double_load(data, FX_F32, 0)));
    at += fx_type_bytes(&b->type);
  }
  free(outputs);
}

/* ---- what the device says ---- */

static void bad_data_is_told(void) {
  for (int head = 0; head < 2; head++) {
    fx_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
    fx_plan *plan = NULL;
    void *arena = NULL;
    fx_value ids = fx_world_integers(&w, "ids", fx_type_2d(FX_I32, 1, 40), 0, 9);
    ((int32_t *)w.buffer[0].data)[33] = 12;
    fx_value table = fx_world_normals(&w, "table", fx_type_2d(FX_F32, 10, 8), 1, false);
    fx_value x = fx_world_normals(&w, "x", fx_type_3d(FX_F32, 1, 40, 8), 1, false);
    fx_value y = head ? fx_head_ce(FX_AT(w.graph), x, table, ids, fx_world_number(&w, "f", 1),
                                   (fx_head_ce_attr){0}, NULL)
                      : fx_embedding(FX_AT(w.graph), ids, table);
    fx_world_output(&w, "y", y);
    CHECK_OK(fx_plan_prepare(w.graph, (fx_plan_options){.name = "bad"}, g_gpu, &plan));
    CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_OK(fx_plan_run(plan, 0));
    CHECK_STATUS(fx_device_sync(g_gpu), FX_ERR_DATA);
    CHECK_HAS(fx_error_text(), head ? "target 12 is outside the vocabulary of 10" : "id 12 at place 33");
    CHECK_OK(fx_device_sync(g_gpu)); /* told once */
    fx_plan_destroy(plan);
    fx_device_release(g_gpu, arena);
    for (int i = 0; i < w.count; i++) fx_device_release_host(g_gpu, w.buffer[i].data);
  }
}

static void memory_is_counted(void) {
  size_t before = 0, after = 0, total = 0;
  void *memory = NULL;
  CHECK_OK(fx_device_memory_info(g_gpu, &before, &total));
  CHECK_OK(fx_device_alloc(g_gpu, (size_t)256 << 20, &memory));
  CHECK_OK(fx_device_memory_info(g_gpu, &after, &total));
  CHECK_MSG(after >= before + ((size_t)256 << 20) && after < total, "%zu, then %zu of %zu bytes", before,
            after, total);
  fx_device_release(g_gpu, memory);
  CHECK_STATUS(fx_device_alloc(g_gpu, total * 2, &memory), FX_ERR_MEMORY);
  CHECK_HAS(fx_error_text(), "of GPU memory");
}

static fx_status no_shapes(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

static void a_missing_kernel_is_named(void) {
  static const fx_op lonely = {.name = "lonely", .min_in = 1, .max_in = 1, .num_out = 1, .infer = no_shapes};
  fx_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
  fx_plan *plan = NULL;
  fx_value x = fx_world_normals(&w, "x", fx_type_1d(FX_F32, 8), 1, false);
  fx_world_output(&w, "y", fx_graph_record(w.graph, &lonely, NULL, (fx_value[]){x}, NULL));
  CHECK_STATUS(fx_plan_prepare(w.graph, (fx_plan_options){.name = "p"}, g_gpu, &plan), FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "op lonely has no kernel for the cuda backend");
  for (int i = 0; i < w.count; i++) fx_device_release_host(g_gpu, w.buffer[i].data);
}

static void runtime_inputs_are_copied(void) {
  fx_inputs *inputs = NULL;
  void *memory = NULL, *arena = NULL;
  fx_plan *plan = NULL;
  CHECK_OK(fx_inputs_create(2, &inputs));
  CHECK_OK(fx_inputs_add(inputs, "pad", fx_type_1d(FX_F32, 3)));
  CHECK_OK(fx_inputs_add(inputs, "x", fx_type_1d(FX_F32, 1000)));
  CHECK_OK(fx_inputs_allocate_on(inputs, g_gpu));
  CHECK_OK(fx_device_alloc_host(g_gpu, 4000, &memory));
  fx_graph *graph = fx_graph_create(inputs);
  fx_value x = fx_graph_input(FX_AT(graph), "x");
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "y", memory, fx_type_1d(FX_F32, 1000)),
           fx_add(FX_AT(graph), x, x));
  CHECK_OK(fx_plan_prepare(graph, (fx_plan_options){.name = "p"}, g_gpu, &plan));
  CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
  CHECK_OK(fx_plan_bind(plan, arena));
  for (int slot = 0; slot < 2; slot++) {
    float *data = fx_inputs_data(inputs, slot, "x");
    for (int i = 0; i < 1000; i++) data[i] = (float)(i + 1000 * slot);
    CHECK_OK(fx_plan_run(plan, slot));
    CHECK_OK(fx_device_sync(g_gpu));
    for (int i = 0; i < 1000; i++) CHECK(((float *)memory)[i] == (float)(2 * (i + 1000 * slot)));
  }
  fx_plan_destroy(plan);
  fx_device_release(g_gpu, arena);
  fx_device_release_host(g_gpu, memory);
  fx_inputs_destroy(inputs);
}

int main(void) {
  static const fx_test tests[] = {
      {"every op against the double reference", every_op},
      {"a gradient that is not finite changes nothing", a_bad_gradient_changes_nothing},
      {"bad ids and targets are told", bad_data_is_told},
      {"memory is counted", memory_is_counted},
      {"a missing kernel is named", a_missing_kernel_is_named},
      {"runtime inputs are copied from their slot", runtime_inputs_are_copied}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  if (fx_device_create_cuda(0, &g_gpu) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  printf("GPU: %s, %s, %s\n", probe.device[0].name, g_gpu->isa, g_gpu->gemm_name);
  int code = fx_test_main("cuda ops", tests, (int)(sizeof tests / sizeof tests[0]));
  fx_device_destroy(g_gpu);
  return code;
}
