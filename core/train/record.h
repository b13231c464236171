/* SPDX-License-Identifier: Apache-2.0 */
/* Recording of one phase of the step; private to core/train. */
#ifndef FX_CORE_TRAIN_RECORD_H
#define FX_CORE_TRAIN_RECORD_H

#include "core/train/step.h"

/* Records `phase` into graph: results are the persistent places its plan writes. */
fx_status fx_step_record(const fx_step_config *config, const fx_step_results *results, fx_phase phase,
                         fx_graph *graph);

#endif
