/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of the layout tests: trains as `flexion train` does; rank r writes one line a step to OUT.r: the
 * loss and the sum of squares of what it alone has, or has first, of every named gradient, in full precision.
 * Those of one name add up over the files. usage: mpi_train OUT CONFIG [key=value...] */
#include <stdio.h>

#include "core/train/trainer.h"
#include "parallel/comm/mpi/bootstrap.h"
#include "tests/core/boxes.h"

static void write_squares(void *ctx, const fx_step_view *view) {
  FILE *out = ctx;
  const char *comma = "";
  fprintf(out, "{\"step\": %lld, \"loss\": %.17g, \"parts\": [", (long long)view->iteration, view->loss);
  for (int64_t i = 0; i < view->params->num_params; i++) {
    const fx_param *p = &view->params->param[i];
    fprintf(out, "%s[\"%s\", %.17g]", comma, p->name, box_squares(view->params, p));
    comma = ", ";
  }
  fprintf(out, "]}\n");
}

int main(int argc, char **argv) {
  fx_control *control = NULL;
  fx_config *config = NULL;
  fx_train_report report;
  if (argc < 3 || fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) return 2;
  char path[1024];
  snprintf(path, sizeof path, "%.1000s.%d", argv[1], control->rank);
  FILE *out = fopen(path, "w");
  if (!out) return 2;
  fx_log log = {.stream = stderr,
                .level = control->rank == 0 ? FX_LOG_INFO : FX_LOG_WARN,
                .rank = control->rank,
                .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = write_squares, .ctx = out};
  fx_status status = fx_config_load(argv[2], (const char *const *)argv + 3, argc - 3, &config);
  if (status == FX_OK) status = fx_train(config, &job, &report);
  if (status != FX_OK) fprintf(stderr, "rank %d: %s\n", control->rank, fx_error_text());
  fclose(out);
  fx_config_destroy(config);
  if (status != FX_OK) fx_mpi_abort(fx_status_exit_code(status));
  fx_control_destroy(control);
  fx_mpi_finalize();
  return 0;
}
