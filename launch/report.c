/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/report.h"

#include <stdio.h>

int fx_report(fx_status status) {
  fprintf(stderr, "flexion: %s: %s\n", fx_status_text(status), fx_error_text());
  return fx_status_exit_code(status);
}

int fx_flush_output(int code) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  return fx_report(
      fx_error(FX_ERR_IO, "standard output cannot be written; check the disk or pipe behind it"));
}
