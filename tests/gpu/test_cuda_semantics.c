/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions on the GPU are the interpreter's, bit for bit: masks, scores, slopes and index conditions of
 * random variants at random points. */
#include <stdio.h>
#include <stdlib.h>

#include "attention/cuda/emit_cuda.h"
#include "attention/cuda/flash_args.h"
#include "attention/cuda/sources.h"
#include "attention/tile/interp.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/device.h"
#include "tests/attention/tile_case.h"
#include "tests/harness.h"

enum { CASES = 60, POINTS = FX_TILE_ROWS * FX_TILE_KEYS };

static const char g_probe[] =
    "extern \"C\" __global__ void probe(const __grid_constant__ fx_flash_args a, int32_t h, const int32_t "
    "*q,\n"
    "    const int32_t *kv, const float *raw, int32_t n, int32_t *mask, float *score, float *again,\n"
    "    float *slope, int32_t *fault) {\n"
    "  int32_t i = blockIdx.x * 256 + threadIdx.x, row = q[i % 32], key = kv[i / 32 < n / 32 ? i / 32 : 0];\n"
    "  if (i >= n) return;\n"
    "#if FX_HAS_MASK\n"
    "  mask[i] = fx_mask(&a, 0, h, row, key);\n"
    "#endif\n"
    "#if FX_HAS_SCORE\n"
    "  score[i] = fx_score(&a, 0, h, row, key, raw[i]);\n"
    "#endif\n"
    "#if FX_HAS_SLOPE\n"
    "  again[i] = fx_score_slope(&a, 0, h, row, key, raw[i], slope + i);\n"
    "#endif\n"
    "#if FX_HAS_FAULT\n"
    "  fault[i] = fx_fault(&a, 0, h, row, key, raw[i]);\n"
    "#endif\n"
    "}\n";

enum { MASK, SCORE, AGAIN, SLOPE, FAULT, OUTPUTS };

typedef struct probe {
  fx_device *device;
  void *block[64];
  int count;
  fx_cuda_function function;
  void *stream;
  fx_flash_args args;
  int32_t h, n;
  void *q, *kv, *raw, *out[OUTPUTS];
} probe;

static void *place(probe *p, const void *data, size_t bytes) {
  void *memory = NULL;
  if (!CHECK_OK(fx_device_alloc(p->device, bytes, &memory))) return NULL;
  p->block[p->count++] = memory;
  if (data) CHECK_OK(fx_device_copy(p->device, FX_LANE_COMPUTE, memory, data, bytes));
  CHECK_OK(fx_device_sync(p->device));
  return memory;
}

static char *probe_source(const fx_variant *variant) {
  const char *structs = "";
  char *functions = NULL;
  for (int i = 0; i < fx_cuda_attention_sources_count; i++)
    if (strcmp(fx_cuda_attention_sources[i].name, "flash_args.h") == 0)
      structs = fx_cuda_attention_sources[i].text;
  if (!CHECK_OK(fx_emit_cuda(variant, &functions))) return NULL;
  char *text = fx_strfmt("#pragma nv_diag_suppress 177\ntypedef int int32_t;\ntypedef unsigned uint32_t;\n"
                         "typedef long long int64_t;\n%s%s%s",
                         structs, functions, g_probe);
  free(functions);
  return text;
}

static fx_status launch(void *arg, void *stream) {
  probe *p = arg;
  void *params[] = {&p->args,      &p->h,          &p->q,          &p->kv,         &p->raw,       &p->n,
                    &p->out[MASK], &p->out[SCORE], &p->out[AGAIN], &p->out[SLOPE], &p->out[FAULT]};
  return fx_cuda_launch(&p->function, (fx_cuda_dim){(unsigned)(p->n + 255) / 256, 1, 1},
                        (fx_cuda_dim){256, 1, 1}, 0, stream, params);
}

static void bind(probe *p, const tile_case *c, const tile_data *d) {
  const fx_ex_pool *pool = c->variant.pool;
  for (int32_t i = 0; i < fx_ex_num_params(pool); i++) p->args.uniform[i] = d->args.uniform[i];
  for (int32_t i = 0; i < fx_ex_num_buffers(pool); i++) {
    const fx_ex_buffer *declared = fx_ex_buffer_at(pool, i);
    size_t count = 1;
    for (int k = 0; k < declared->ndim; k++) count *= (size_t)declared->dim[k];
    const void *data = d->args.buffer[i] ? d->args.buffer[i] : declared->constant;
    p->args.buffer[i] = (fx_flash_buffer){place(p, data, 4 * count), 0};
  }
  p->h = d->args.h;
  p->n = d->args.keys * FX_TILE_ROWS;
  p->q = place(p, d->q, sizeof d->q), p->kv = place(p, d->kv, (size_t)d->args.keys * 4);
  static float raw[POINTS];
  for (int i = 0; i < p->n; i++) raw[i] = d->raw[i / FX_TILE_ROWS * CASE_STRIDE + i % FX_TILE_ROWS];
  p->raw = place(p, raw, (size_t)p->n * 4);
  for (int o = 0; o < OUTPUTS; o++) p->out[o] = place(p, NULL, (size_t)p->n * 4);
}

static bool same(float a, float b) {
  return (a != a && b != b) || memcmp(&a, &b, sizeof a) == 0; /* NaNs may differ in sign and payload */
}

static void compare_floats(const char *what, uint64_t seed, const float *got, const float *want, int n) {
  int wrong = 0, first = 0;
  for (int i = n - 1; i >= 0; i--)
    if (!same(got[i], want[i / FX_TILE_ROWS * CASE_STRIDE + i % FX_TILE_ROWS])) wrong++, first = i;
  CHECK_MSG(wrong == 0, "seed %llu: %s differs at %d of %d points; point %d: got %a, the interpreter %a",
            (unsigned long long)seed, what, wrong, n, first, (double)got[first],
            (double)want[first / FX_TILE_ROWS * CASE_STRIDE + first % FX_TILE_ROWS]);
}

static void compare(probe *p, uint64_t seed, const fx_tile_functions *f, tile_data *d) {
  static union {
    float f[POINTS];
    int32_t i[POINTS];
  } got[OUTPUTS];
  static float s[FX_TILE_KEYS * CASE_STRIDE], slope[FX_TILE_KEYS * CASE_STRIDE];
  uint32_t bits[FX_TILE_KEYS];
  for (int o = 0; o < OUTPUTS; o++)
    CHECK_OK(fx_device_copy(p->device, FX_LANE_COMPUTE, got[o].f, p->out[o], (size_t)p->n * 4));
  CHECK_OK(fx_device_sync(p->device));
  d->args.self = f->self;
  if (f->mask) {
    int wrong = 0;
    f->mask(&d->args, bits);
    for (int i = 0; i < p->n; i++) wrong += got[MASK].i[i] != (int32_t)((bits[i / 32] >> (i % 32)) & 1);
    CHECK_MSG(wrong == 0, "seed %llu: the mask differs at %d of %d points", (unsigned long long)seed, wrong,
              p->n);
  }
  memcpy(s, d->raw, sizeof s);
  if (f->score)
    f->score(&d->args, s, CASE_STRIDE, 1.0f), compare_floats("score", seed, got[SCORE].f, s, p->n);
  memcpy(s, d->raw, sizeof s);
  if (f->score_slope) {
    f->score_slope(&d->args, s, slope, CASE_STRIDE, 1.0f);
    compare_floats("score beside its slope", seed, got[AGAIN].f, s, p->n);
    compare_floats("slope", seed, got[SLOPE].f, slope, p->n);
  }
  if (f->in_bounds) {
    bool any = false;
    for (int i = 0; i < p->n; i++) any = any || (got[FAULT].i[i] && ((d->given[i / 32] >> (i % 32)) & 1));
    CHECK(f->in_bounds(&d->args, d->given, d->raw, CASE_STRIDE) == !any);
  }
}

static void one_case(fx_device *device, uint64_t seed) {
  static const char *const options[] = {"--fmad=false"};
  static tile_case c;
  static tile_data d;
  const fx_cuda_context *context = device->gemm;
  fx_tile_interp *interp = NULL;
  fx_cuda_module *module = NULL;
  fx_cache_image image = {NULL, 0};
  probe p;
  memset(&p, 0, sizeof p);
  p.device = device;
  tile_case_create(&c, seed);
  tile_data_fill(&d, &c);
  char *source = probe_source(&c.variant);
  if (source && CHECK_OK(fx_nvrtc_compile(source, "probe.cu", context->arch, options, 1, &image)) &&
      CHECK_OK(fx_cuda_module_load(context->driver, &image, &module)) &&
      CHECK_OK(fx_cuda_module_function(module, "probe", &p.function)) &&
      CHECK_OK(fx_tile_interp_create(&c.variant, &interp))) {
    fx_tile_functions functions = fx_tile_interp_functions(interp);
    bind(&p, &c, &d);
    CHECK_OK(fx_device_launch(device, FX_LANE_COMPUTE, launch, &p));
    CHECK_OK(fx_device_sync(device));
    compare(&p, seed, &functions, &d);
  }
  for (int i = 0; i < p.count; i++) fx_device_release(device, p.block[i]);
  fx_cuda_module_unload(module);
  fx_tile_interp_destroy(interp);
  tile_case_destroy(&c);
  free(image.data), free(source);
}

static fx_device *g_device;

static void random_variants(void) {
  for (uint64_t seed = 1; seed <= CASES; seed++) one_case(g_device, seed);
  printf("[seeds 1 to %d] ", CASES);
}

static const fx_test g_tests[] = {{"random variants", random_variants}};

int main(void) {
  if (fx_device_create_cuda(0, &g_device) != FX_OK) {
    printf("skipped: no GPU (%s)\n", fx_error_text());
    return FX_TEST_SKIPPED;
  }
  int code = fx_test_main("expressions on CUDA and in the interpreter", g_tests, 1);
  fx_device_destroy(g_device);
  return code;
}
