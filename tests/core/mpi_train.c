/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of the layout tests: trains as `flexion train` does and writes one line a step: the loss and the sum
 * of the squares of every named gradient, in full precision. Under ZeRO each rank writes what it has of them,
 * rank r to OUT.r. usage: mpi_train OUT CONFIG [key=value...] */
#include <stdio.h>

#include "core/train/trainer.h"
#include "parallel/comm/mpi/bootstrap.h"
#include "parallel/zero.h"

static void write_norms(void *ctx, const fx_step_view *view) {
  FILE *out = ctx;
  if (!out) return;
  fprintf(out, "{\"step\": %lld, \"loss\": %.17g, \"squares\": {", (long long)view->iteration, view->loss);
  for (int64_t i = 0; i < view->params->num_params; i++) {
    const fx_param *p = &view->params->param[i];
    fx_zero_range mine = fx_zero_range_of(view->params, p);
    const float *g = view->params->grad + mine.packed;
    double sum = 0;
    if (mine.shared && view->params->zero_rank > 0) mine.count = 0;
    for (int64_t k = 0; k < mine.count; k++) sum += (double)g[k] * g[k];
    fprintf(out, "%s\"%s\": %.17g", i ? ", " : "", p->name, sum);
  }
  fprintf(out, "}}\n");
}

int main(int argc, char **argv) {
  fx_control *control = NULL;
  fx_config *config = NULL;
  fx_train_report report;
  if (argc < 3 || fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) return 2;
  char path[1024];
  snprintf(path, sizeof path, "%.1000s.%d", argv[1], control->rank);
  FILE *out = fopen(path, "w");
  fx_log log = {.stream = stderr, .level = FX_LOG_WARN, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = write_norms, .ctx = out};
  fx_status status = fx_config_load(argv[2], (const char *const *)argv + 3, argc - 3, &config);
  if (status == FX_OK) status = fx_train(config, &job, &report);
  if (status != FX_OK) fprintf(stderr, "rank %d: %s\n", control->rank, fx_error_text());
  if (out) fclose(out);
  fx_config_destroy(config);
  if (status != FX_OK) fx_mpi_abort(fx_status_exit_code(status));
  fx_control_destroy(control);
  fx_mpi_finalize();
  return 0;
}
