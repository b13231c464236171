/* SPDX-License-Identifier: Apache-2.0 */
/* The forward is recorded from ops that have no backward, and a last node without a kernel
 * (context_attention) that names what the backward needs: its vjp records the exchange of the backward. */
#include "parallel/ring_attention.h"

#include <string.h>

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "parallel/alltoall_attention.h"
#include "parallel/collective.h"

const char *fx_context_exchange_name(fx_context_exchange exchange) {
  static const char *const names[] = {
      [FX_CONTEXT_ALLGATHER] = "allgather", [FX_CONTEXT_RING] = "ring", [FX_CONTEXT_ALLTOALL] = "alltoall"};
  return names[exchange];
}

int32_t fx_context_rows(fx_context_exchange exchange, int ranks, int32_t T_local) {
  return exchange == FX_CONTEXT_ALLTOALL ? ranks * T_local : T_local;
}

int32_t fx_context_keys(fx_context_exchange exchange, int ranks, int32_t T_local) {
  return exchange == FX_CONTEXT_RING ? T_local : ranks * T_local;
}

int32_t fx_context_lists(fx_context_exchange exchange, int ranks) {
  return exchange == FX_CONTEXT_RING ? ranks : 1;
}

/* Part `index` of `count` equal parts of a vector, as [1, n]. */
static fx_value part_of(fx_graph *graph, fx_value whole, int index, int count) {
  if (whole == FX_NONE || fx_graph_status(graph) != FX_OK) return FX_NONE;
  int64_t words = fx_type_numel(fx_graph_type(graph, whole)) / count;
  return fx_slice_heads(graph, whole, index * words, 1, words);
}

fx_value fx_context_blocks_of(fx_graph *graph, fx_value blocks, int rank, int ranks) {
  return part_of(graph, blocks, rank, ranks);
}

/* ---- what forward and backward share ---- */

typedef struct context_attr {
  fx_view_attr view;
  fx_comm *comm;
  int32_t lane, exchange;
  fx_ring_room room; /* all: with everything that there is */
  fx_attention_attr attention;
} context_attr;

/* Inputs of the last node. Its outputs are other looks at OUT, which comes first, and at LSE. */
enum { OUT, LSE, Q, K, V, BLOCKS, LIMITS, RUNS_BACKWARD, BUFFERS, INDEX, BASE, SINKS, TABLE };
enum { NUM_IN = TABLE + FX_VARIANT_MAX_TABLES };

/* Sizes of the keys and values of one rank. */
typedef struct sizes {
  int64_t B, T, K, D;
  fx_dtype dtype;
} sizes;

static sizes sizes_of(fx_graph *graph, fx_value k) {
  const fx_type *type = fx_graph_type(graph, k);
  return (sizes){type->dim[0], type->dim[1], type->dim[2], type->dim[3], type->dtype};
}

/* k and v side by side: [B, T, 2 K D]. */
static fx_value pack(fx_graph *graph, fx_value k, fx_value v, sizes s) {
  fx_type type = fx_type_3d(s.dtype, s.B, s.T, 2 * s.K * s.D);
  return fx_assemble(graph, (fx_value[]){k, v}, (int64_t[]){0, s.K * s.D}, 2, type);
}

static void unpack(fx_graph *graph, fx_value kv, sizes s, fx_value *k, fx_value *v) {
  *k = fx_slice_heads(graph, kv, 0, s.K, s.D);
  *v = fx_slice_heads(graph, kv, s.K * s.D, s.K, s.D);
}

/* The sums in the type of q, k and v, as values that can be written straight into a larger gradient. */
static void give_gradients(fx_graph *graph, const fx_attention_sums *sums, sizes s, fx_value *din) {
  const fx_value sum[] = {sums->dq, sums->dk, sums->dv};
  for (int i = 0; i < 3; i++)
    din[Q + i] = s.dtype == FX_F32 ? fx_copy(graph, sum[i]) : fx_cast(graph, sum[i], s.dtype);
}

static fx_value sum_of(fx_graph *graph, fx_value sum, fx_value x) {
  return sum == FX_NONE ? x : x == FX_NONE ? sum : fx_add(graph, sum, x);
}

/* The rank whose keys are here at hop s: chunks move to the next rank. */
static int owner_at(const fx_comm *comm, int hop) {
  return (comm->rank - hop + comm->size) % comm->size;
}

/* To the rank `hops` ranks on, from the one as many before; hops may be negative. */
static fx_value pass(fx_graph *graph, const context_attr *a, fx_value x, int hops) {
  int size = a->comm->size, rank = a->comm->rank;
  if (size == 1) return x;
  return fx_send_recv(graph, a->comm, (fx_lane)a->lane, x, (rank + size + hops) % size,
                      (rank + size - hops) % size);
}

/* ---- allgather ---- */

/* K and V of all ranks, rank by rank: views [B, size * T, K, D]. */
static void gather_keys(fx_graph *graph, const context_attr *a, fx_value k, fx_value v, sizes s,
                        fx_value *all_k, fx_value *all_v) {
  int64_t size = a->comm->size;
  fx_value kv = fx_all_gather(graph, a->comm, (fx_lane)a->lane, pack(graph, k, v, s));
  kv = fx_exchange_dims(graph, kv, size, s.B);
  kv = fx_reshape(graph, kv, 3, (int64_t[]){s.B, size * s.T, 2 * s.K * s.D});
  unpack(graph, kv, s, all_k, all_v);
}

static fx_attention_inputs all_inputs(fx_graph *graph, const fx_comm *comm, const fx_attention_inputs *inputs,
                                      fx_value blocks) {
  fx_attention_inputs all = *inputs;
  all.q_base = fx_context_blocks_of(graph, blocks, comm->rank, comm->size);
  all.kv_base = blocks;
  return all;
}

static fx_value allgather_forward(fx_graph *graph, const context_attr *a, fx_value q, fx_value k, fx_value v,
                                  const fx_context_blocks *blocks, const fx_attention_inputs *inputs,
                                  fx_value *lse) {
  fx_value all_k, all_v;
  gather_keys(graph, a, k, v, sizes_of(graph, k), &all_k, &all_v);
  fx_attention_inputs all = all_inputs(graph, a->comm, inputs, blocks->all);
  all.runs_backward = FX_NONE;
  return fx_flex_attention(graph, q, all_k, all_v, &all, a->attention, lse);
}

/* fp32 [B, size * T, K, D], a summand of every rank's gradient -> this rank's [B, T, K, D], summed. */
static fx_value scatter_sum(fx_graph *graph, const context_attr *a, fx_value x, sizes s) {
  int64_t size = a->comm->size;
  x = fx_exchange_dims(graph, x, s.B, size);
  x = fx_reshape(graph, x, 4, (int64_t[]){size * s.B, s.T, s.K, s.D});
  return fx_reduce_scatter(graph, a->comm, (fx_lane)a->lane, x);
}

/* Gradients of the outputs; only dlse may be FX_NONE. */
typedef struct output_gradients {
  fx_value dout, dlse;
} output_gradients;

/* What the kernel of dq and that of dk and dv share where dq comes apart, and what lse's gradient adds. */
static fx_value prepare(fx_graph *graph, const context_attr *a, const fx_value *in, fx_value k, fx_value v,
                        const output_gradients *d, const fx_attention_inputs *inputs) {
  if (!a->attention.dq_apart && d->dlse == FX_NONE) return FX_NONE;
  return fx_flex_attention_prepare(graph, in[Q], k, v, in[OUT], in[LSE], d->dout, d->dlse, inputs,
                                   a->attention);
}

/* Gradients of the parameters of a chunk, onto those of the chunks before. */
static void add_params(fx_graph *graph, const fx_value *grads, fx_value *din) {
  for (int i = 0; i < FX_ATTENTION_PARAMS; i++) din[SINKS + i] = sum_of(graph, din[SINKS + i], grads[i]);
}

static void allgather_backward(fx_graph *graph, const context_attr *a, const fx_value *in,
                               const output_gradients *d, const fx_attention_inputs *inputs, fx_value *din) {
  enum { KEYS = FX_ATTENTION_OF_KEYS, ROWS = FX_ATTENTION_OF_ROWS };
  fx_value all_k, all_v, params[FX_ATTENTION_PARAMS];
  fx_attention_sums sums = {FX_NONE, FX_NONE, FX_NONE};
  sizes s = sizes_of(graph, in[K]);
  bool apart = a->attention.dq_apart;
  gather_keys(graph, a, in[K], in[V], s, &all_k, &all_v);
  fx_attention_inputs all = all_inputs(graph, a->comm, inputs, in[BLOCKS]);
  fx_value prepared = prepare(graph, a, in, all_k, all_v, d, &all);
  fx_flex_attention_grad_add(graph, in[Q], all_k, all_v, in[OUT], in[LSE], d->dout, prepared, &all,
                             a->attention, apart ? KEYS : KEYS | ROWS, true, &sums, params);
  add_params(graph, params, din);
  sums.dk = scatter_sum(graph, a, sums.dk, s); /* they travel while dq is computed */
  sums.dv = scatter_sum(graph, a, sums.dv, s);
  if (apart)
    fx_flex_attention_grad_add(graph, in[Q], all_k, all_v, in[OUT], in[LSE], d->dout, prepared, &all,
                               a->attention, ROWS, true, &sums, NULL);
  give_gradients(graph, &sums, s, din);
}

/* ---- ring ---- */

/* The keys of this rank that travel: [B, 128 blocks, 2 K D]. */
static fx_value pack_travelling(fx_graph *graph, const context_attr *a, fx_value k, fx_value v,
                                const fx_context_blocks *blocks, sizes s) {
  if (a->room.hops == 0 || fx_graph_status(graph) != FX_OK) return FX_NONE;
  if (blocks->index != FX_NONE) {
    k = fx_take_blocks(graph, k, blocks->index, a->room.blocks);
    v = fx_take_blocks(graph, v, blocks->index, a->room.blocks);
  }
  s.T = (int64_t)a->room.blocks * FX_BLOCK_ROWS;
  return pack(graph, k, v, s);
}

/* The op's inputs for keys of rank `owner`: all of this rank's own, of another rank those that travel. */
static fx_attention_inputs chunk_inputs(fx_graph *graph, const context_attr *a,
                                        const fx_attention_inputs *inputs, const fx_context_blocks *blocks,
                                        int owner) {
  fx_attention_inputs chunk = *inputs;
  const fx_comm *comm = a->comm;
  chunk.runs = part_of(graph, inputs->runs, owner, comm->size);
  chunk.runs_backward = part_of(graph, inputs->runs_backward, owner, comm->size);
  chunk.q_base = fx_context_blocks_of(graph, blocks->all, comm->rank, comm->size);
  chunk.kv_base = fx_context_blocks_of(
      graph, owner != comm->rank && blocks->base != FX_NONE ? blocks->base : blocks->all, owner, comm->size);
  if (owner != comm->rank && blocks->base != FX_NONE)
    chunk.kv_base = fx_slice_heads(graph, chunk.kv_base, 0, 1, a->room.blocks);
  return chunk;
}

/* Own keys first, while the first of another rank travel; then each chunk while the next one does. */
static fx_value ring_forward(fx_graph *graph, const context_attr *a, fx_value q, fx_value k, fx_value v,
                             const fx_context_blocks *blocks, const fx_attention_inputs *inputs,
                             fx_value *lse) {
  sizes s = sizes_of(graph, k);
  fx_dtype dtype = s.dtype;
  fx_attention_running state = fx_flex_attention_begin(graph, q);
  fx_value here = pack_travelling(graph, a, k, v, blocks, s);
  for (int hop = 0; hop <= a->room.hops; hop++) {
    fx_value next = hop < a->room.hops ? pass(graph, a, here, 1) : FX_NONE;
    fx_attention_inputs chunk = chunk_inputs(graph, a, inputs, blocks, owner_at(a->comm, hop));
    if (hop > 0) unpack(graph, here, s, &k, &v);
    fx_flex_attention_partial(graph, q, k, v, &chunk, a->attention, hop == 0, &state);
    here = next;
  }
  return fx_flex_attention_finish(graph, state, inputs->sinks, dtype, lse);
}

/* What all hops of the backward share, and the keys of one. */
typedef struct ring_step {
  const fx_value *in; /* of the last node */
  fx_value dout, prepared, k, v;
  fx_attention_inputs inputs;
} ring_step;

static void add_gradients(fx_graph *graph, const context_attr *a, const ring_step *step, int32_t parts,
                          bool first, fx_attention_sums *sums, fx_value *din) {
  fx_value params[FX_ATTENTION_PARAMS];
  fx_flex_attention_grad_add(graph, step->in[Q], step->k, step->v, step->in[OUT], step->in[LSE], step->dout,
                             step->prepared, &step->inputs, a->attention, parts, first, sums, params);
  if (parts & FX_ATTENTION_OF_KEYS) add_params(graph, params, din);
}

/* Gradients of a chunk's keys behind the chunk; from the last rank that the chunk comes to, home. */
static void pass_gradients(fx_graph *graph, const context_attr *a, int hop, fx_attention_sums *home) {
  int on = hop < a->room.hops ? 1 : -hop;
  home->dk = pass(graph, a, home->dk, on);
  home->dv = pass(graph, a, home->dv, on);
}

/* What other ranks' queries gave, onto the own gradients of keys. */
static void add_home(fx_graph *graph, const fx_context_blocks *blocks, const fx_attention_sums *home,
                     fx_attention_sums *sums) {
  const fx_value from[] = {home->dk, home->dv};
  fx_value *const to[] = {&sums->dk, &sums->dv};
  for (int i = 0; i < 2; i++)
    *to[i] = blocks->index == FX_NONE ? fx_add(graph, *to[i], from[i])
                                      : fx_add_blocks(graph, *to[i], from[i], blocks->index);
}

/* dq has a kernel of its own, which runs while keys or their gradients travel: own rows first, own keys last,
 * onto what has come home. */
static void ring_backward_apart(fx_graph *graph, const context_attr *a, ring_step *own, fx_value here,
                                const fx_context_blocks *blocks, const fx_attention_inputs *inputs,
                                fx_attention_sums *sums, fx_value *din) {
  enum { KEYS = FX_ATTENTION_OF_KEYS, ROWS = FX_ATTENTION_OF_ROWS };
  sizes s = sizes_of(graph, own->k);
  fx_attention_sums home = {FX_NONE, FX_NONE, FX_NONE};
  ring_step step = *own;
  int hops = a->room.hops;
  here = hops > 0 ? pass(graph, a, here, 1) : FX_NONE;
  add_gradients(graph, a, own, ROWS, true, sums, din);
  for (int hop = 1; hop <= hops; hop++) {
    fx_value next = hop < hops ? pass(graph, a, here, 1) : FX_NONE;
    step.inputs = chunk_inputs(graph, a, inputs, blocks, owner_at(a->comm, hop));
    step.inputs.sinks = FX_NONE; /* their gradient depends on the final lse only: taken with the own keys */
    unpack(graph, here, s, &step.k, &step.v);
    add_gradients(graph, a, &step, KEYS, hop == 1, &home, din);
    pass_gradients(graph, a, hop, &home);
    add_gradients(graph, a, &step, ROWS, false, sums, din);
    here = next;
  }
  bool onto = hops > 0 && blocks->index == FX_NONE;
  if (onto) sums->dk = home.dk, sums->dv = home.dv;
  add_gradients(graph, a, own, KEYS, !onto, sums, din);
  if (!onto && hops > 0) add_home(graph, blocks, &home, sums);
}

/* One kernel makes all gradients of a chunk, apart from the sums that travel, so that it need not wait for
 * them. */
static void ring_backward_joint(fx_graph *graph, const context_attr *a, ring_step *own, fx_value here,
                                const fx_context_blocks *blocks, const fx_attention_inputs *inputs,
                                fx_attention_sums *sums, fx_value *din) {
  enum { BOTH = FX_ATTENTION_OF_KEYS | FX_ATTENTION_OF_ROWS };
  sizes s = sizes_of(graph, own->k);
  fx_attention_sums home = {FX_NONE, FX_NONE, FX_NONE};
  ring_step step = *own;
  int hops = a->room.hops;
  here = hops > 0 ? pass(graph, a, here, 1) : FX_NONE;
  add_gradients(graph, a, own, BOTH, true, sums, din);
  for (int hop = 1; hop <= hops; hop++) {
    fx_value next = hop < hops ? pass(graph, a, here, 1) : FX_NONE;
    fx_attention_sums part = {FX_NONE, FX_NONE, FX_NONE};
    step.inputs = chunk_inputs(graph, a, inputs, blocks, owner_at(a->comm, hop));
    step.inputs.sinks = FX_NONE;
    unpack(graph, here, s, &step.k, &step.v);
    add_gradients(graph, a, &step, BOTH, true, &part, din);
    home.dk = sum_of(graph, home.dk, part.dk);
    home.dv = sum_of(graph, home.dv, part.dv);
    pass_gradients(graph, a, hop, &home);
    sums->dq = fx_add(graph, sums->dq, part.dq);
    here = next;
  }
  if (hops > 0) add_home(graph, blocks, &home, sums);
}

static void ring_backward(fx_graph *graph, const context_attr *a, const fx_value *in,
                          const output_gradients *d, const fx_attention_inputs *inputs, fx_value *din) {
  fx_context_blocks blocks = {in[BLOCKS], in[INDEX], in[BASE], a->room};
  sizes s = sizes_of(graph, in[K]);
  fx_attention_sums sums = {FX_NONE, FX_NONE, FX_NONE};
  ring_step own = {.in = in, .dout = d->dout, .prepared = FX_NONE, .k = in[K], .v = in[V]};
  own.inputs = chunk_inputs(graph, a, inputs, &blocks, a->comm->rank);
  fx_value here = pack_travelling(graph, a, in[K], in[V], &blocks, s);
  own.prepared = prepare(graph, a, in, in[K], in[V], d, &own.inputs);
  (a->attention.dq_apart ? ring_backward_apart : ring_backward_joint)(graph, a, &own, here, &blocks, inputs,
                                                                      &sums, din);
  give_gradients(graph, &sums, s, din);
}

/* ---- the node that has the backward ---- */

static fx_status context_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[OUT];
  out[1] = *in[LSE];
  return FX_OK;
}

static fx_status context_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const context_attr *a = node->attr;
  fx_value in[NUM_IN]; /* recording moves the nodes */
  memcpy(in, node->in, sizeof in);
  fx_attention_inputs inputs = fx_attention_no_inputs();
  inputs.limits = in[LIMITS];
  inputs.runs_backward = in[RUNS_BACKWARD];
  inputs.buffers = in[BUFFERS];
  inputs.sinks = in[SINKS];
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) inputs.table[t] = in[TABLE + t];
  output_gradients d = {dout[0], dout[1]};
  if (d.dout == FX_NONE) d.dout = fx_zeros_like(graph, in[OUT]); /* only lse was used */
  (a->exchange == FX_CONTEXT_RING ? ring_backward : allgather_backward)(graph, a, in, &d, &inputs, din);
  return fx_graph_status(graph);
}

static const fx_op g_context_attention = {
    .name = "context_attention",
    .min_in = LIMITS,
    .max_in = NUM_IN,
    .num_out = 2,
    .attr_bytes = sizeof(context_attr),
    .effects = FX_EFFECT_VIEW,
    .must_alias = {0, 1 + LSE},
    .infer = context_infer,
    .vjp = context_vjp,
};

static fx_status check(fx_graph *graph, const fx_comm *comm, fx_value q, fx_value k, fx_value blocks) {
  FX_TRY(fx_graph_status(graph));
  if (!fx_value_is(graph, q) || !fx_value_is(graph, k) || !fx_value_is(graph, blocks))
    return fx_error(FX_ERR_GRAPH, "context attention: an input is no value of this graph");
  const fx_type *rows = fx_graph_type(graph, q), *keys = fx_graph_type(graph, k),
                *map = fx_graph_type(graph, blocks);
  int64_t T = rows->ndim == 4 ? rows->dim[1] : 0;
  if (T < 1 || T % FX_LIMITS_ALIGN || keys->ndim != 4 || keys->dim[1] != T)
    return fx_error(FX_ERR_SHAPE,
                    "context attention: %lld rows a rank, expected a multiple of %d and as many "
                    "keys",
                    (long long)T, FX_LIMITS_ALIGN);
  if (map->dtype != FX_I32 || map->ndim != 1 || map->dim[0] * FX_LIMITS_ALIGN != comm->size * T)
    return fx_error(FX_ERR_SHAPE,
                    "context attention: blocks must be int32 [%lld], one a block of %d positions",
                    (long long)(comm->size * T / FX_LIMITS_ALIGN), FX_LIMITS_ALIGN);
  return FX_OK;
}

fx_value fx_context_attention(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_context_exchange exchange,
                              fx_value q, fx_value k, fx_value v, const fx_context_blocks *blocks,
                              const fx_attention_inputs *inputs, fx_attention_attr attr, fx_value *lse) {
  context_attr a;
  fx_value in[NUM_IN], out[2];
  if (lse) *lse = FX_NONE;
  fx_status status = check(graph, comm, q, k, blocks->all);
  if (status != FX_OK) return fx_graph_fail(graph, status);
  if (exchange == FX_CONTEXT_ALLTOALL)
    return fx_alltoall_attention(graph, comm, lane, q, k, v, inputs, attr, lse);
  memset(&a, 0, sizeof a);
  a.comm = comm;
  a.lane = (int32_t)lane;
  a.exchange = (int32_t)exchange;
  a.room = blocks->room;
  if (blocks->index == FX_NONE)
    a.room = (fx_ring_room){(int32_t)(fx_graph_type(graph, k)->dim[1] / FX_BLOCK_ROWS), comm->size - 1};
  a.attention = attr;
  in[OUT] = (exchange == FX_CONTEXT_RING ? ring_forward : allgather_forward)(graph, &a, q, k, v, blocks,
                                                                             inputs, &in[LSE]);
  in[Q] = q, in[K] = k, in[V] = v, in[BLOCKS] = blocks->all;
  in[INDEX] = blocks->index, in[BASE] = blocks->base;
  in[LIMITS] = inputs->limits, in[RUNS_BACKWARD] = inputs->runs_backward;
  in[BUFFERS] = inputs->buffers, in[SINKS] = inputs->sinks;
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) in[TABLE + t] = inputs->table[t];
  fx_graph_record(graph, &g_context_attention, &a, in, out);
  if (lse) *lse = out[1];
  return out[0];
}
