/* SPDX-License-Identifier: Apache-2.0 */
/* One attention problem through everything that training uses: YAML, set-up, mask building, the op and its
 * gradient. */
#ifndef FX_TESTS_CORE_FLEX_CASE_H
#define FX_TESTS_CORE_FLEX_CASE_H

#include <math.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "tests/core/fixture.h"
#include "tests/dynamo_rt/plan_fixture.h"

/* Arrays are borrowed: q, dout [B][T][H][D]; k, v [B][T][K][D]; dlse [B][H][T]; tokens, doc_start, doc_end
 * [B][T]. */
typedef struct flex_case {
  int B, T, H, K, D;
  const float *q, *k, *v, *dout, *dlse;
  const float *sink, *table; /* [H], the variant's first learnable table */
  const int32_t *tokens, *doc_start, *doc_end;
} flex_case;

/* Arrays of the shapes above, lse [B][H][T]; made by flex_solve. */
typedef struct flex_results {
  float *out, *lse, *dq, *dk, *dv, *dsink, *dtable;
} flex_results;

static inline void flex_results_free(flex_results *r) {
  free(r->out), free(r->lse), free(r->dq), free(r->dk), free(r->dv), free(r->dsink), free(r->dtable);
}

/* "{...}" of the attention section for a model of these heads; NULL after a failed check. */
static inline fx_attention_setup *flex_setup_for(fx_backend backend, const flex_case *c, const char *name,
                                                 const char *attention, const char *compiler) {
  char yaml[2048];
  fx_config *config = NULL;
  fx_attention_setup *setup = NULL;
  snprintf(yaml, sizeof yaml,
           "model: {model_type: llama, vocab_size: 64, hidden_size: 64, num_hidden_layers: 1, "
           "num_attention_heads: "
           "%d, num_key_value_heads: %d, head_dim: %d, intermediate_size: 16}\nattention: %s\n"
           "train: {seq_length: %d, micro_batch_size: %d, global_batch_size: %d}\nruntime: {compiler: %s}\n",
           c->H, c->K, c->D, attention, c->T, c->B, c->B, compiler);
  if (!CHECK_OK(fx_config_parse(yaml, name, &config))) return NULL;
  CHECK_OK(fx_attention_setup_create(config, backend, c->B, c->T, &setup));
  fx_config_destroy(config);
  return setup;
}

static inline fx_attention_setup *flex_setup(const flex_case *c, const char *name, const char *attention,
                                             const char *compiler) {
  return flex_setup_for(FX_BACKEND_CPU, c, name, attention, compiler);
}

static inline fx_value flex_constant(fx_graph *g, const char *name, const void *data, fx_type type) {
  return fx_graph_persistent(FX_AT(g), name, (void *)(uintptr_t)data, type);
}

static inline fx_value flex_field(fx_graph *g, const fx_attention_setup *setup, void *const *memory,
                                  int index) {
  if (index < 0) return FX_NONE;
  const fx_attention_field *field = &setup->field[index];
  return flex_constant(g, field->name, memory[index], fx_type_1d(FX_I32, field->words));
}

static inline float *flex_store(fx_graph *g, const char *name, fx_value value) {
  if (value == FX_NONE) return NULL;
  fx_type type = *fx_graph_type(g, value);
  float *to = calloc((size_t)fx_type_numel(&type), sizeof *to);
  fx_store(FX_AT(g), flex_constant(g, name, to, type), value);
  return to;
}

static inline flex_results flex_record(const flex_case *c, const fx_attention_setup *setup,
                                       void *const *memory, const float *dlse, int threads) {
  const fx_attention_kind *kind = &setup->kind[0];
  int64_t Tpad = fx_attention_tpad(c->T);
  fx_type q_type = fx_type_of(FX_F32, 4, (int64_t[]){c->B, c->T, c->H, c->D});
  fx_type kv_type = fx_type_of(FX_F32, 4, (int64_t[]){c->B, c->T, c->K, c->D});
  fx_graph *g = fx_graph_create(NULL);
  fx_value q = flex_constant(g, "q", c->q, q_type), k = flex_constant(g, "k", c->k, kv_type),
           v = flex_constant(g, "v", c->v, kv_type), dout = flex_constant(g, "dout", c->dout, q_type);
  fx_attention_inputs in = fx_attention_no_inputs();
  in.limits = flex_field(g, setup, memory, kind->limits);
  in.runs = flex_field(g, setup, memory, kind->runs);
  in.runs_backward = flex_field(g, setup, memory, kind->runs < 0 ? -1 : kind->runs + 1);
  in.buffers = flex_field(g, setup, memory, kind->buffers);
  if (kind->flex->variant->sinks) in.sinks = flex_constant(g, "sinks", c->sink, fx_type_1d(FX_F32, c->H));
  if (fx_flex_num_tables(kind->flex) > 0)
    in.table[0] =
        flex_constant(g, "table", c->table, fx_type_1d(FX_F32, fx_flex_table_floats(kind->flex, 0)));
  fx_attention_attr attr = kind->attr;
  attr.scale = 1.0f / sqrtf((float)c->D);
  fx_value lse = FX_NONE, out = fx_flex_attention(FX_AT(g), q, k, v, &in, attr, &lse);
  fx_value dlse_value = flex_constant(g, "dlse", dlse, fx_type_3d(FX_F32, c->B, c->H, Tpad));
  fx_value grads[FX_ATTENTION_GRADS];
  fx_flex_attention_grad(FX_AT(g), q, k, v, out, lse, dout, dlse_value, &in, attr, grads);
  flex_results r = {0};
  if (!CHECK_OK(fx_graph_status(g))) return r;
  r.out = flex_store(g, "out", out), r.lse = flex_store(g, "lse of it", lse);
  r.dq = flex_store(g, "dq", grads[0]), r.dk = flex_store(g, "dk", grads[1]),
  r.dv = flex_store(g, "dv", grads[2]);
  r.dsink = flex_store(g, "dsink", grads[3]), r.dtable = flex_store(g, "dtable", grads[4]);
  run_once(g, threads, FX_EXEC_EAGER);
  return r;
}

/* Forward and backward of kind 0. */
static inline flex_results flex_solve(const flex_case *c, const fx_attention_setup *setup, int threads) {
  void *memory[FX_ATTENTION_MAX_FIELDS], *scratch = NULL;
  int64_t Tpad = fx_attention_tpad(c->T), heads = (int64_t)c->B * c->H;
  for (int i = 0; i < setup->num_fields; i++)
    memory[i] = aligned_alloc(FX_ALIGN, fx_align_up((size_t)setup->field[i].words * 4, FX_ALIGN));
  CHECK_OK(fx_alloc_aligned(&scratch, setup->scratch_bytes + FX_ALIGN));
  int32_t *positions = calloc((size_t)(c->B * c->T), sizeof *positions);
  for (int i = 0; i < c->B * c->T; i++) positions[i] = i % c->T - c->doc_start[i];
  fx_attention_batch batch = {c->tokens, positions, c->doc_start, c->doc_end};
  CHECK_OK(fx_attention_fill(setup, &batch, memory, scratch));
  float *dlse = calloc((size_t)(heads * Tpad), sizeof *dlse);
  for (int64_t i = 0; i < heads * c->T; i++) dlse[i / c->T * Tpad + i % c->T] = c->dlse[i];
  flex_results r = flex_record(c, setup, memory, dlse, threads);
  for (int64_t i = 0; r.lse && i < heads * c->T; i++) r.lse[i] = r.lse[i / c->T * Tpad + i % c->T];
  free(scratch), free(positions), free(dlse);
  for (int i = 0; i < setup->num_fields; i++) free(memory[i]);
  return r;
}

#endif
