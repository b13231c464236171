/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/context_cost.h"

#include <math.h>

#include "parallel/alltoall_attention.h"

/* Of one NVIDIA H200 among several on NVLink, and of a core of a server (tests/bench/RESULTS.md): arithmetic
 * of attention, what travels to a rank, what kernels read and write; an exchange's own time, and that of the
 * kernels that a hop of a ring has on top, whose ends fill a GPU badly. */
static const struct machine {
  double flops, link, memory; /* a second */
  double call, hop;           /* seconds */
} g_machines[FX_BACKEND_COUNT] = {[FX_BACKEND_CPU] = {4e10, 4e9, 8e9, 50e-6, 1e-3},
                                  [FX_BACKEND_CUDA] = {4e14, 3.3e11, 4.2e12, 20e-6, 300e-6}};

/* Sizes of one rank's share, in elements, and seconds of all its arithmetic. */
typedef struct share {
  const struct machine *machine;
  double ranks, queries, keys; /* keys: and values */
  double hops, travelling;     /* in a ring; travelling: of `keys` */
  double bytes;                /* of an element */
  double seconds;
} share;

static share share_of(const fx_context_shape *s) {
  share out = {.machine = &g_machines[s->backend], .ranks = s->ranks, .bytes = fx_dtype_bytes(s->dtype)};
  double rows = (double)s->B * (double)s->T / s->ranks, D = (double)s->D;
  out.queries = rows * (double)s->H * D;
  out.keys = 2 * rows * (double)s->K * D;
  out.hops = s->room.hops;
  out.travelling = out.keys * s->room.blocks * s->ranks * FX_LIMITS_ALIGN / (double)s->T;
  out.seconds = 14 * out.queries * (double)s->T * s->density / out.machine->flops;
  return out;
}

static double hidden(double exchange, double behind) {
  return fmax(exchange - behind, 0);
}

/* Keys before each direction, with nothing to hide them; their gradients while dq is computed, 3 of 14
 * products, where dq has a kernel of its own (GPUs). Passes: packing twice, fp32 sums of all keys, a cast. */
static double allgather_cost(const fx_context_shape *s, const share *r) {
  double others = r->ranks - 1, apart = s->backend == FX_BACKEND_CUDA ? 3.0 / 14 * r->seconds : 0;
  double held = r->ranks * r->keys * (2 * r->bytes + 4);
  if (held > (double)FX_CONTEXT_GATHER_BYTES) return INFINITY;
  double gather = others * r->keys * r->bytes / r->machine->link;
  double scatter = others * r->keys * 4 / r->machine->link;
  double passes = 4 * r->keys * r->bytes + 2 * r->ranks * r->keys * 4 + r->keys * (4 + r->bytes);
  return 2 * gather + hidden(scatter, apart) + passes / r->machine->memory + 3 * r->machine->call;
}

/* A chunk while the one before is attended to: 4 of 14 products forward, 10 backward, where the gradients of
 * keys travel too. Passes: packing twice; out and dq in fp32, read and written at every hop but the first;
 * the gradients of keys likewise; a cast of all three and the normalised end. */
static double ring_cost(const share *r) {
  double hops = r->hops, travelling = r->travelling, chunk = r->seconds / (hops + 1);
  double forward = hidden(travelling * r->bytes / r->machine->link, 4.0 / 14 * chunk);
  double backward = hidden(travelling * (r->bytes + 4) / r->machine->link, 10.0 / 14 * chunk);
  double sums = 4 * ((2 * hops + 1) * 2 * r->queries + 2 * hops * travelling + r->keys);
  double passes = 4 * travelling * r->bytes + sums + (2 * r->queries + r->keys) * (4 + r->bytes);
  return hops * (forward + backward) + passes / r->machine->memory +
         hops * (4 * r->machine->call + r->machine->hop);
}

/* q, k and v before, out after; their gradients the other way round; nothing hides them. Each is packed on
 * one side and laid out on the other. */
static double alltoall_cost(const fx_context_shape *s, const share *r) {
  if (!fx_alltoall_divides(s->ranks, s->H, s->K)) return INFINITY;
  double elements = 2 * (2 * r->queries + r->keys), others = r->ranks - 1;
  return elements * r->bytes * others / r->ranks / r->machine->link +
         4 * elements * r->bytes / r->machine->memory + 8 * others * r->machine->call;
}

double fx_context_cost(const fx_context_shape *shape, fx_context_exchange exchange) {
  share r = share_of(shape);
  if (exchange == FX_CONTEXT_RING) return ring_cost(&r);
  return exchange == FX_CONTEXT_ALLGATHER ? allgather_cost(shape, &r) : alltoall_cost(shape, &r);
}

fx_context_exchange fx_context_choose(const fx_context_shape *shape) {
  static const fx_context_exchange all[] = {FX_CONTEXT_ALLGATHER, FX_CONTEXT_RING, FX_CONTEXT_ALLTOALL};
  fx_context_exchange best = all[0];
  for (int i = 1; i < 3; i++)
    if (fx_context_cost(shape, all[i]) < fx_context_cost(shape, best)) best = all[i];
  return best;
}
