/* SPDX-License-Identifier: Apache-2.0 */
/* Semantic passes: they turn a recorded graph into the *reference graph* that both executors run. */
#ifndef FX_DYNAMO_RT_PASSES_PASSES_H
#define FX_DYNAMO_RT_PASSES_PASSES_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Merges equal pure nodes. Returns how many went. */
int fx_pass_cse(fx_graph *graph);

/* Merges a pair of nodes into one whose kernels touch the memory once: act_grad(linear_dx(dy, W), pre) where
 * nothing else reads the inner gradient, and norm(add(a, b)), which keeps the sum as an output. The merged
 * node stands where the first of the pair stood, so what the second one read must be there by then and stay
 * as it is. Returns how many pairs went. Expects dead nodes to be marked. */
int fx_pass_fuse(fx_graph *graph);

/* Writes gradients in place: the producer of `src` in store(dst, src) writes dst itself, in accumulate(dst,
 * src) and in add(a, b) it adds onto what is there, where its kernels can and nobody in between looks.
 * Returns how many folded. */
int fx_pass_fold(fx_graph *graph);

/* Marks nodes dead that reach no persistent storage and no other rank, and drops unused optional outputs.
 * Returns how many nodes died. */
int fx_pass_dce(fx_graph *graph);

/* Moves in-place collectives to right behind the last node that touches what they reduce, so that they can
 * overlap with the compute that follows. Returns how many moved. */
int fx_pass_hoist(fx_graph *graph);

/* Checks the invariants that recording and passes promise: arity, order, types, single definition, no read of
 * memory that was never written, views inside their storage. FX_ERR_GRAPH names the node and its source line.
 */
fx_status fx_verify(const fx_graph *graph);

/* All of them in their order: cse, dce, fuse (if asked), fold, dce, hoist, verify. */
fx_status fx_graph_optimize(fx_graph *graph, bool fuse);

#ifdef __cplusplus
}
#endif
#endif
