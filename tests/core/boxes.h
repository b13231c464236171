/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank keeps of a parameter, element by element: for tests of layouts. */
#ifndef FX_TESTS_CORE_BOXES_H
#define FX_TESTS_CORE_BOXES_H

#include "parallel/zero.h"

/* Sum of squares of this rank's part of a named gradient; of what several ranks have alike, by one of them.
 */
static inline double box_squares(const fx_params *params, const fx_param *param) {
  fx_zero_box box[FX_ZERO_BOXES];
  double sum = 0;
  if (!param->owner) return 0;
  for (int b = 0, count = fx_zero_boxes(params, param, box); b < count; b++) {
    if (box[b].shared && params->zero_rank > 0) continue;
    for (int64_t r = 0; r < box[b].rows; r++)
      for (int64_t c = 0; c < box[b].cols; c++) {
        double g = (double)params->grad[box[b].packed + r * box[b].pitch + c];
        sum += g * g;
      }
  }
  return sum;
}

#endif
