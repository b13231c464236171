/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of the layout tests: trains as `flexion train` does and writes, on rank 0, one line a step: the loss
 * and the norm of every named gradient, in full precision. usage: mpi_train OUT CONFIG [key=value...] */
#include <math.h>
#include <stdio.h>

#include "core/train/trainer.h"
#include "parallel/comm/mpi/bootstrap.h"

static void write_norms(void *ctx, const fx_step_view *view) {
  FILE *out = ctx;
  if (!out) return;
  fprintf(out, "{\"step\": %lld, \"loss\": %.17g, \"grads\": {", (long long)view->iteration, view->loss);
  for (int64_t i = 0; i < view->params->num_params; i++) {
    const fx_param *p = &view->params->param[i];
    const float *g = fx_param_data(view->params, p, view->params->grad);
    double sum = 0;
    for (int64_t k = 0; k < fx_param_numel(p); k++) sum += (double)g[k] * g[k];
    fprintf(out, "%s\"%s\": %.17g", i ? ", " : "", p->name, sqrt(sum));
  }
  fprintf(out, "}}\n");
}

int main(int argc, char **argv) {
  fx_control *control = NULL;
  fx_config *config = NULL;
  fx_train_report report;
  if (argc < 3 || fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) return 2;
  FILE *out = control->rank == 0 ? fopen(argv[1], "w") : NULL;
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
