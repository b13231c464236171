/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/ranks.h"

#include "launch/report.h"
#include "parallel/comm/mpi/bootstrap.h"

int fx_measure_on_ranks(fx_status (*measure)(fx_control *control, void *measurement),
                        void (*print)(const void *measurement), void *measurement) {
  fx_control *control = NULL;
  fx_status status = fx_mpi_bootstrap(NULL, NULL, &control);
  if (status != FX_OK) return fx_report(status);
  status = measure(control, measurement);
  int code = fx_status_exit_code(status);
  if (control->rank == 0) {
    if (status == FX_OK) {
      print(measurement);
      code = fx_flush_output(code);
    } else {
      fx_report(status);
    }
  }
  if (status == FX_ERR_COMM) fx_mpi_abort(code); /* a rank may be missing */
  fx_control_destroy(control);
  fx_mpi_finalize();
  return code;
}
