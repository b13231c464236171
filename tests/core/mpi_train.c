/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of the layout tests: trains as `flexion train` does and writes, on each of the first parallel.tensor
 * ranks, which together have every gradient once, one line a step to OUT.<rank>: the loss and the sum of
 * squares of this rank's part of every named gradient, in full precision. usage: mpi_train OUT CONFIG
 * [key=value...] */
#include <stdio.h>

#include "core/train/trainer.h"
#include "parallel/comm/mpi/bootstrap.h"

static void write_squares(void *ctx, const fx_step_view *view) {
  FILE *out = ctx;
  const char *comma = "";
  if (!out) return;
  fprintf(out, "{\"step\": %lld, \"loss\": %.17g, \"parts\": [", (long long)view->iteration, view->loss);
  for (int64_t i = 0; i < view->params->num_params; i++) {
    const fx_param *p = &view->params->param[i];
    const float *g = fx_param_data(view->params, p, view->params->grad);
    int64_t pitch = fx_param_pitch(view->params, p), cols = p->ndim == 2 ? p->count[1] : 1;
    double sum = 0;
    if (!p->owner) continue;
    for (int64_t r = 0; r < p->count[0]; r++)
      for (int64_t c = 0; c < cols; c++) sum += (double)g[r * pitch + c] * g[r * pitch + c];
    fprintf(out, "%s[\"%s\", %.17g]", comma, p->name, sum);
    comma = ", ";
  }
  fprintf(out, "]}\n");
}

int main(int argc, char **argv) {
  fx_control *control = NULL;
  fx_config *config = NULL;
  fx_train_report report;
  if (argc < 3 || fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) return 2;
  FILE *out = NULL;
  char path[512];
  fx_log log = {.stream = stderr, .level = FX_LOG_WARN, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = write_squares};
  fx_status status = fx_config_load(argv[2], (const char *const *)argv + 3, argc - 3, &config);
  if (status == FX_OK && control->rank < config->parallel.tensor) {
    snprintf(path, sizeof path, "%s.%d", argv[1], control->rank);
    job.ctx = out = fopen(path, "w");
  }
  if (status == FX_OK) status = fx_train(config, &job, &report);
  if (status != FX_OK) fprintf(stderr, "rank %d: %s\n", control->rank, fx_error_text());
  if (out) fclose(out);
  fx_config_destroy(config);
  if (status != FX_OK) fx_mpi_abort(fx_status_exit_code(status));
  fx_control_destroy(control);
  fx_mpi_finalize();
  return 0;
}
