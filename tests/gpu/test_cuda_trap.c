/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that dies on the GPU, after runs that were good: recorded and launched kernel by kernel, what is
 * said names eager as the way to learn the op's name, and eager says it, with the line that recorded it. A
 * process has no GPU after that, so each way has a process of its own: this program, started again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/graph/graph.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/plan/plan.h"
#include "tests/harness.h"

enum { COUNT = 64, GOOD_RUNS = 4 };
static const char g_source[] =
    "extern \"C\" __global__ void trap_when(const int *flag, const float *x, float *y) {\n"
    "  if (*flag) asm volatile(\"trap;\");\n"
    "  y[threadIdx.x] = 2.0f * x[threadIdx.x];\n"
    "}\n";

static const struct {
  const char *name;
  fx_exec_mode mode;
  bool launched;
} g_ways[] = {{"recordings", FX_EXEC_REPLAY, false},
              {"launched", FX_EXEC_REPLAY, true},
              {"eager", FX_EXEC_EAGER, false}};
enum { WAYS = sizeof g_ways / sizeof g_ways[0] };

/* ---- the process that loses its GPU; no checks here, its output is looked at ---- */

static fx_cuda_function g_kernel;

static fx_status infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[1];
  return FX_OK;
}

static fx_status run_kernel(const fx_kernel_args *args) {
  void *flag = args->in[0]->data, *x = args->in[1]->data, *y = args->out[0]->data;
  void *params[] = {&flag, &x, &y};
  return fx_cuda_launch(&g_kernel, (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){COUNT, 1, 1}, 0, args->stream,
                        params);
}

static const fx_op g_op = {.name = "trap_when",
                           .min_in = 2,
                           .max_in = 2,
                           .num_out = 1,
                           .infer = infer,
                           .kernel = {[FX_BACKEND_CUDA] = run_kernel}};

static fx_status load(void *arg, void *stream) {
  const fx_cuda_context *context = ((const fx_device *)arg)->gemm;
  fx_cuda_module *module = NULL; /* for the life of the process */
  fx_cache_image image = {NULL, 0};
  (void)stream;
  FX_TRY(fx_nvrtc_compile(g_source, "trap.cu", context->arch, NULL, 0, &image));
  fx_status status = fx_cuda_module_load(context->driver, &image, &module);
  free(image.data);
  return status == FX_OK ? fx_cuda_module_function(module, g_op.name, &g_kernel) : status;
}

static fx_status build(fx_device *device, int way, fx_inputs **inputs, float **y, void **arena,
                       fx_plan **plan) {
  void *memory = NULL;
  FX_TRY(fx_device_launch(device, FX_LANE_COMPUTE, load, device));
  FX_TRY(fx_inputs_create(1, inputs));
  FX_TRY(fx_inputs_add(*inputs, "flag", fx_type_1d(FX_I32, 1)));
  FX_TRY(fx_inputs_add(*inputs, "x", fx_type_1d(FX_F32, COUNT)));
  FX_TRY(fx_inputs_allocate_on(*inputs, device));
  FX_TRY(fx_device_alloc_host(device, COUNT * sizeof(float), &memory));
  *y = memory;
  fx_graph *graph = fx_graph_create(*inputs);
  fx_value in[2] = {fx_graph_input(FX_AT(graph), "flag"), fx_graph_input(FX_AT(graph), "x")};
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "y", memory, fx_type_1d(FX_F32, COUNT)),
           fx_graph_record(FX_AT(graph), &g_op, NULL, in, NULL));
  fx_plan_options options = {.name = "trap", .mode = g_ways[way].mode};
  FX_TRY(fx_plan_prepare(graph, options, device, plan));
  FX_TRY(fx_device_alloc(device, fx_plan_stats_get(*plan)->arena.bytes + 64, arena));
  fx_plan_launch_kernels(*plan, g_ways[way].launched);
  return fx_plan_bind(*plan, *arena);
}

static fx_status run(fx_device *device, fx_plan *plan) {
  FX_TRY(fx_plan_run(plan, 0));
  return fx_device_sync(device);
}

/* Good runs, then the one that dies; what is said of it goes to standard output when all is given back, as a
 * run of training does it. */
static fx_status lose_gpu(int way) {
  fx_device *device = NULL;
  fx_inputs *inputs = NULL;
  fx_plan *plan = NULL;
  float *y = NULL;
  void *arena = NULL;
  FX_TRY(fx_device_create_cuda(0, &device));
  FX_TRY(build(device, way, &inputs, &y, &arena, &plan));
  int *flag = fx_inputs_data(inputs, 0, "flag");
  float *x = fx_inputs_data(inputs, 0, "x");
  *flag = 0;
  for (int i = 0; i < GOOD_RUNS; i++) {
    for (int k = 0; k < COUNT; k++) x[k] = (float)(i + k);
    FX_TRY(run(device, plan));
    for (int k = 0; k < COUNT; k++)
      if (y[k] != (float)(2 * (i + k))) return fx_error(FX_ERR_INTERNAL, "run %d: wrong results", i);
  }
  *flag = 1;
  fx_status status = run(device, plan);
  bool recorded = fx_plan_records(plan);
  fx_plan_destroy(plan);
  fx_inputs_destroy(inputs);
  fx_device_release(device, arena);
  fx_device_release_host(device, y);
  fx_device_destroy(device);
  printf("%s after %d good runs, recorded %d: %s\n", fx_status_name(status), GOOD_RUNS, recorded,
         status == FX_OK ? "" : fx_error_text());
  return FX_OK;
}

/* ---- tests ---- */

static void check_way(const char *program, int way) {
  char command[1200], said[4096];
  snprintf(command, sizeof command, "timeout -k 1 120 '%s' %s 2>&1", program, g_ways[way].name);
  FILE *child = popen(command, "r"); // NOLINT: a path of this program
  if (!CHECK(child != NULL)) return;
  said[fread(said, 1, sizeof said - 1, child)] = '\0';
  CHECK_INT(pclose(child), 0);
  bool eager = g_ways[way].mode == FX_EXEC_EAGER, recorded = !eager && !g_ways[way].launched;
  char begin[80];
  snprintf(begin, sizeof begin, "FX_ERR_DEVICE after %d good runs, recorded %d: ", GOOD_RUNS, recorded);
  CHECK_HAS(said, begin);
  CHECK_HAS(said, "a kernel failed: CUDA_ERROR_");
  CHECK_HAS(said, eager ? "trap_when (recorded at " : "GPU (runtime.mode=eager names the op)");
  if (eager) CHECK_HAS(said, "test_cuda_trap.c:");
}

static void dying_kernels(void) {
  char program[1000];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (!CHECK(length > 0)) return;
  program[length] = '\0';
  for (int way = 0; way < WAYS; way++) check_way(program, way);
}

int main(int argc, char **argv) {
  static const fx_test tests[] = {{"a kernel that dies is told", dying_kernels}};
  fx_cuda_probe probe;
  for (int way = 0; argc == 2 && way < WAYS; way++) {
    if (strcmp(argv[1], g_ways[way].name) != 0) continue;
    fx_status status = lose_gpu(way);
    if (status != FX_OK) printf("%s\n", fx_error_text());
    fflush(stdout);
    _exit(status == FX_OK ? 0 : 1); /* what libraries would do at exit needs a GPU */
  }
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda trap", tests, 1);
}
