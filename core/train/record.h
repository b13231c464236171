/* SPDX-License-Identifier: Apache-2.0 */
/* Recording of one phase of the step; private to core/train. */
#ifndef FX_CORE_TRAIN_RECORD_H
#define FX_CORE_TRAIN_RECORD_H

#include "core/train/step.h"

/* Records `phase` into graph: results are the persistent places its plan writes. */
fx_status fx_step_record(const fx_step_config *config, const fx_step_results *results, fx_phase phase,
                         fx_graph *graph);

/* record_gradients.c: the backward of loss (add: onto the gradients of earlier micro-batches) and, over dp,
 * their sums (last: all of them are there). */
fx_status fx_record_gradients(const fx_step_config *config, fx_graph *graph, const fx_model_values *values,
                              fx_value loss, bool add, bool last);

/* record_update.c. refresh: after masters were filled from outside, the compute copy of what this rank keeps
 * follows them. gather: under ZeRO, the weights that kernels read take what the other ranks keep; a layer
 * starts when its own are there. Nothing without ZeRO. */
fx_status fx_record_update(const fx_step_config *config, const fx_step_results *results, bool snapshot,
                           fx_graph *graph);
fx_status fx_record_refresh(const fx_step_config *config, fx_graph *graph);
void fx_record_gather(const fx_step_config *config, fx_graph *graph);

#endif
