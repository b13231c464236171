/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA device says where there is no GPU, or not the one that was asked for; the library search. */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/device/cuda/library.h"
#include "dynamo_rt/device/device.h"
#include "tests/harness.h"

static void a_missing_gpu_gets_a_sentence(void) {
  fx_cuda_probe probe;
  fx_device *device = NULL;
  fx_cuda_probe_get(&probe);
  CHECK((probe.count == 0) == (probe.reason[0] != '\0'));
  CHECK(probe.count >= 0 && probe.count <= FX_CUDA_MAX_DEVICES);
  CHECK_STATUS(fx_device_create_cuda(1000, &device), FX_ERR_DEVICE);
  CHECK_HAS(fx_error_text(), probe.count ? "there is no GPU number 1000" : "no GPU: ");
  CHECK_HAS(fx_error_text(), probe.count ? "shows" : probe.reason);
  CHECK(device == NULL);
}

static void the_local_rank_is_mpiruns(void) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  for (int i = 0; i < 3; i++) unsetenv(names[i]);
  CHECK_INT(fx_cuda_local_rank(), 0);
  setenv(names[2], "5", 1);
  CHECK_INT(fx_cuda_local_rank(), 5);
  setenv(names[0], "3", 1);
  CHECK_INT(fx_cuda_local_rank(), 3);
  setenv(names[0], "x", 1);
  CHECK_INT(fx_cuda_local_rank(), 5);
  CHECK_INT(fx_cuda_ordinal_by_rank(8), 5);
  CHECK_INT(fx_cuda_ordinal_by_rank(2), 1);
  CHECK_INT(fx_cuda_ordinal_by_rank(1), 0); /* a launcher that shows each rank its own alone */
  CHECK_INT(fx_cuda_ordinal_by_rank(0), -1);
  for (int i = 0; i < 3; i++) unsetenv(names[i]);
}

static void the_architecture_is_the_gpus_or_an_earlier_ones(void) {
  static const struct {
    const char *wanted;
    int major, minor;
    const char *arch; /* NULL: refused */
  } cases[] = {{NULL, 9, 0, "sm_90a"},
               {"", 8, 6, "sm_86"},
               {NULL, 10, 0, "sm_100a"},
               {"compute_80", 9, 0, "compute_80"},
               {"compute_90", 9, 0, "compute_90"},
               {"compute_100", 9, 0, NULL},
               {"compute_75", 9, 0, NULL},
               {"sm_80", 9, 0, NULL},
               {"compute_80a", 9, 0, NULL},
               {"compute_", 9, 0, NULL},
               {"compute_80 ", 9, 0, NULL}};
  char arch[FX_CUDA_ARCH_BYTES];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fx_status status = fx_cuda_arch_choose(cases[i].wanted, cases[i].major, cases[i].minor, arch);
    if (cases[i].arch) {
      CHECK_OK(status);
      CHECK_MSG(strcmp(arch, cases[i].arch) == 0, "got %s, expected %s", arch, cases[i].arch);
      continue;
    }
    CHECK_STATUS(status, FX_ERR_CONFIG);
    CHECK_HAS(fx_error_text(), cases[i].wanted);
    CHECK_HAS(fx_error_text(), "expected compute_80 to compute_90 for this GPU");
  }
  CHECK_INT(fx_cuda_arch_number("sm_90a"), 90);
  CHECK_INT(fx_cuda_arch_number("compute_80"), 80);
  CHECK_INT(fx_cuda_arch_number("sm_100a"), 100);
}

static void a_missing_library_is_named(void) {
  static const int majors[] = {77, 76, 0};
  void *library = NULL, *table[1] = {NULL};
  CHECK_STATUS(fx_cuda_library_open("nosuchthing", majors, &library), FX_ERR_DEVICE);
  CHECK_HAS(fx_error_text(), "libnosuchthing.so.77 and libnosuchthing.so.76 cannot be opened");
  static const int libm[] = {6, 0};
  static const fx_cuda_symbol symbols[] = {{"cos", 0}, {"no_such_function", 0}};
  if (!CHECK_OK(fx_cuda_library_open("m", libm, &library))) return;
  CHECK_OK(fx_cuda_library_bind(library, "m", symbols, 1, table));
  CHECK(table[0] != NULL);
  CHECK_STATUS(fx_cuda_library_bind(library, "m", symbols, 2, table), FX_ERR_DEVICE);
  CHECK_HAS(fx_error_text(), "libm has no function no_such_function");
}

static const fx_test tests[] = {
    {"a missing GPU gets a sentence", a_missing_gpu_gets_a_sentence},
    {"the local rank is mpirun's", the_local_rank_is_mpiruns},
    {"the architecture is the GPU's or an earlier one's", the_architecture_is_the_gpus_or_an_earlier_ones},
    {"a missing library is named", a_missing_library_is_named}};
FX_TEST_MAIN("cuda device", tests)
