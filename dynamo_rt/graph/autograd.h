/* SPDX-License-Identifier: Apache-2.0 */
/* Reverse-mode differentiation as a graph transform: records the backward behind the forward, in the same
 * graph. */
#ifndef FX_DYNAMO_RT_GRAPH_AUTOGRAD_H
#define FX_DYNAMO_RT_GRAPH_AUTOGRAD_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records d loss / d wrt[i] into grads[i] (FX_NONE where loss does not depend on it). loss holds one element.
 * Nodes are visited in reverse program order; contributions are summed in that order, so the result is
 * deterministic. */
fx_status fx_autograd(fx_graph *graph, fx_value loss, const fx_value *wrt, int count, fx_value *grads);

/* The same, but each gradient is handed over as soon as it is complete, in the middle of the backward: what
 * ready records (a reduction) then stands before the rest of it. */
typedef void (*fx_autograd_ready)(void *ctx, int index, fx_value grad);
fx_status fx_autograd_each(fx_graph *graph, fx_value loss, const fx_value *wrt, int count,
                           fx_autograd_ready ready, void *ctx);

/* For vjp functions: `value` of the forward, as its backward should read it. What a collective made that says
 * `again` is not kept till then but recorded once more, once a graph. */
fx_value fx_autograd_saved(fx_graph *graph, fx_value value);

#ifdef __cplusplus
}
#endif
#endif
