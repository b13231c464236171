/* SPDX-License-Identifier: Apache-2.0 */
/* What each tensor-parallel rank holds: every element of every tensor once among the owners, the same numbers
 * from initialisation in every layout, and checkpoints from any layout into any other, bitwise, with moments
 * that differ everywhere (element = hash of path and place). */
#include <stdlib.h>
#include <string.h>

#include "core/train/state.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"

#define LLAMA                                                                                \
  "model: {vocab_size: 300, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 8, " \
  "num_key_value_heads: 2, head_dim: 8, intermediate_size: 96, bias: true}\n"                \
  "attention: {mask: 'q >= kv', score: 'score + bias[h, 0]', sinks: true, "                  \
  "buffers: {bias: {shape: [H, 8], learnable: true, init: {normal: 0.5}, weight_decay: true}}}\n"
#define GPT2                                                                           \
  "model: {model_type: gpt2, vocab_size: 300, hidden_size: 64, num_hidden_layers: 2, " \
  "num_attention_heads: 8, num_key_value_heads: 2, intermediate_size: 128}\n"
#define GPT2_PLAIN                                                                     \
  "model: {model_type: gpt2, vocab_size: 257, hidden_size: 64, num_hidden_layers: 1, " \
  "num_attention_heads: 8, intermediate_size: 128}\n"
static const char *const g_models[] = {LLAMA, GPT2, GPT2_PLAIN};
enum { MODELS = sizeof g_models / sizeof g_models[0] };

static fx_config *configure(const char *model, int tp) {
  char text[2000];
  fx_config *config = NULL;
  snprintf(text, sizeof text, "%sparallel: {tensor: %d}\ntrain: {seq_length: 64}\n", model, tp);
  CHECK_OK(fx_config_parse(text, "layout", &config));
  return config;
}

typedef void (*element_fn)(void *ctx, const fx_param *p, int64_t index, float *element);

/* Calls fn for every element of this rank's parts, with its number in the whole tensor. */
static void each_element(const fx_params *params, float *flat, element_fn fn, void *ctx) {
  for (int64_t i = 0; i < params->num_params; i++) {
    const fx_param *p = &params->param[i];
    float *data = fx_param_data(params, p, flat);
    int64_t pitch = fx_param_pitch(params, p), cols = p->ndim == 2 ? p->count[1] : 1;
    int64_t all = p->ndim == 2 ? p->dim[1] : 1, first = p->ndim == 2 ? p->start[1] : 0;
    for (int64_t r = 0; r < p->count[0]; r++)
      for (int64_t c = 0; c < cols; c++)
        fn(ctx, p, (p->start[0] + r) * all + first + c, &data[r * pitch + c]);
  }
}

/* ---- initialisation ---- */

typedef struct whole {
  char name[120];
  int64_t numel;
  float *value;
  int *owners;
} whole;

typedef struct collection {
  whole tensor[80];
  int count;
  int64_t differing;
} collection;

static whole *whole_of(collection *all, const fx_param *p) {
  int i = 0;
  while (i < all->count && strcmp(all->tensor[i].name, p->name) != 0) i++;
  whole *w = &all->tensor[i];
  if (i < all->count) return w;
  all->count++;
  snprintf(w->name, sizeof w->name, "%s", p->name);
  w->numel = p->dim[0] * (p->ndim == 2 ? p->dim[1] : 1);
  w->value = calloc((size_t)w->numel, sizeof *w->value);
  w->owners = calloc((size_t)w->numel, sizeof *w->owners);
  return w;
}

static void take(void *ctx, const fx_param *p, int64_t index, float *element) {
  whole *w = whole_of(ctx, p);
  w->value[index] = *element;
  w->owners[index] = p->owner;
}

static void match(void *ctx, const fx_param *p, int64_t index, float *element) {
  collection *all = ctx;
  whole *w = whole_of(all, p);
  all->differing += memcmp(&w->value[index], element, sizeof *element) != 0;
  w->owners[index] += p->owner;
}

static void initialized(void) {
  for (int m = 0; m < MODELS; m++)
    for (int tp = 1; tp <= 8; tp *= 2) {
      collection *all = calloc(1, sizeof *all);
      fx_model *one = NULL;
      fx_config *config = configure(g_models[m], 1), *split = configure(g_models[m], tp);
      CHECK_OK(fx_model_create(config, &one));
      CHECK_OK(fx_params_initialize(&one->params, 7));
      each_element(&one->params, one->params.weight, take, all);
      CHECK(all->count > 5);
      for (int i = 0; i < all->count; i++)
        memset(all->tensor[i].owners, 0, (size_t)all->tensor[i].numel * sizeof(int));
      for (int r = 0; r < tp; r++) {
        fx_comm nobody = {.rank = r, .size = tp}; /* layout only looks at the numbers */
        fx_topology place = {.size = tp, .rank = r, .tp = tp, .cp = 1, .dp = 1, .tp_rank = r};
        fx_model *part = NULL;
        place.comm.tp = &nobody;
        CHECK_OK(fx_model_create_on(split, NULL, &place, &part));
        CHECK_INT(fx_model_num_params(part), fx_model_num_params(one));
        CHECK_OK(fx_params_initialize(&part->params, 7));
        CHECK(part->params.numel <= one->params.numel * 2 / (tp < 4 ? tp : 4) || tp == 1);
        each_element(&part->params, part->params.weight, match, all);
        fx_model_destroy(part);
      }
      CHECK_INT(all->differing, 0);
      for (int i = 0; i < all->count; i++) {
        int64_t wrong = 0;
        for (int64_t k = 0; k < all->tensor[i].numel; k++) wrong += all->tensor[i].owners[k] != 1;
        CHECK_MSG(wrong == 0, "model %d, %d ranks: %lld elements of %s are not owned once", m, tp,
                  (long long)wrong, all->tensor[i].name);
        free(all->tensor[i].value);
        free(all->tensor[i].owners);
      }
      free(all);
      fx_model_destroy(one);
      fx_config_destroy(split);
      fx_config_destroy(config);
    }
}

/* ---- checkpoints ---- */

typedef struct reshard {
  const char *model, *from, *to; /* directories; NULL from: the elements are made here */
  int tp;
} reshard;

typedef struct content {
  const char *prefix;
  bool check;
  int64_t wrong;
} content;

static float element_of(const char *prefix, const char *name, int64_t index) {
  uint64_t h = fx_hash64(&index, sizeof index, fx_hash64_text(name) + fx_hash64_text(prefix));
  return (float)(h >> 40) / 8388608.0f - 1.0f;
}

static void fill_or_check(void *ctx, const fx_param *p, int64_t index, float *element) {
  content *c = ctx;
  float want = element_of(c->prefix, p->name, index);
  if (c->check)
    c->wrong += memcmp(&want, element, sizeof want) != 0;
  else
    *element = want;
}

static int64_t each_flat(const fx_params *params, bool check) {
  float *flat[] = {params->weight, params->exp_avg, params->exp_avg_sq};
  static const char *const prefix[] = {"weight", "m", "v"};
  int64_t wrong = 0;
  for (int i = 0; i < 3; i++) {
    content c = {prefix[i], check, 0};
    each_element(params, flat[i], fill_or_check, &c);
    wrong += c.wrong;
  }
  return wrong;
}

static fx_status load_step(fx_trainer *run, const char *dir) {
  fx_region_list list;
  fx_ckpt *ckpt = NULL;
  char path[600];
  snprintf(path, sizeof path, "%s/%s/step_00000007", fx_temp_dir(), dir);
  FX_TRY(fx_ckpt_open(path, &ckpt));
  fx_status status = fx_trainer_regions(run, NULL, false, &list);
  if (status == FX_OK) status = fx_ckpt_read(ckpt, list.region, list.count);
  run->consumed_samples = fx_ckpt_state_get(ckpt)->consumed_samples;
  fx_regions_fini(&list);
  fx_ckpt_close(ckpt);
  return status;
}

static fx_status reshard_rank(fx_control *control, void *ctx) {
  const reshard *c = ctx;
  fx_config *config = configure(c->model, c->tp);
  fx_trainer run = {.config = config, .consumed_samples = 12345};
  fx_region_list list = {0};
  char dir[600];
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_topology_create(control, c->tp, 1, &run.topology), destroy_run);
  FX_TRY_GOTO(fx_topology_share_heads(control, NULL, run.topology, fx_model_kv_ranks(config)), destroy_run);
  FX_TRY_GOTO(fx_model_create_on(config, NULL, run.topology, &run.model), destroy_run);
  CHECK((run.topology->kv != NULL) == (c->tp > config->model.num_key_value_heads));
  if (c->from) {
    FX_TRY_GOTO(load_step(&run, c->from), destroy_run);
    CHECK_INT(each_flat(&run.model->params, true), 0);
    CHECK_INT(run.consumed_samples, 12345);
  } else {
    each_flat(&run.model->params, false);
  }
  fx_ckpt_state state = {.step = 7, .consumed_samples = run.consumed_samples};
  FX_TRY_GOTO(fx_trainer_regions(&run, NULL, true, &list), destroy_run);
  snprintf(dir, sizeof dir, "%s/%s", fx_temp_dir(), c->to);
  status = fx_ckpt_save(control, dir, &state, "", list.region, list.count, run.topology->dp_rank,
                        run.topology->dp, 0, NULL, NULL);
destroy_run:
  fx_regions_fini(&list);
  fx_model_destroy(run.model);
  fx_topology_destroy(run.topology);
  fx_config_destroy(config);
  return status;
}

static void resharded(void) {
  static const struct {
    int ranks, tp;
    const char *to;
  } chain[] = {{1, 1, "one"},     {2, 2, "two"},   {4, 4, "four"},
               {4, 2, "two_two"}, {8, 8, "eight"}, {1, 1, "again"}};
  for (int m = 0; m < MODELS; m++) {
    const char *from = NULL;
    fx_ckpt *a = NULL, *b = NULL;
    fx_ckpt_diff *rows = NULL;
    int64_t count = 0;
    char path[2][600];
    for (size_t i = 0; i < sizeof chain / sizeof chain[0]; i++) {
      reshard c = {g_models[m], from, chain[i].to, chain[i].tp};
      if (!CHECK_OK(fx_local_run(chain[i].ranks, reshard_rank, &c))) return;
      from = chain[i].to;
    }
    snprintf(path[0], sizeof path[0], "%s/one/step_00000007", fx_temp_dir());
    snprintf(path[1], sizeof path[1], "%s/eight/step_00000007", fx_temp_dir());
    if (!CHECK_OK(fx_ckpt_open(path[0], &a)) || !CHECK_OK(fx_ckpt_open(path[1], &b))) return;
    CHECK_OK(fx_ckpt_check(b, NULL));
    CHECK_OK(fx_ckpt_diff_tensors(a, b, &rows, &count));
    CHECK(count > 20);
    for (int64_t i = 0; i < count; i++)
      CHECK_MSG(rows[i].kind == FX_CKPT_DIFF_NONE, "%s differs between layouts", rows[i].path);
    free(rows);
    fx_ckpt_close(a);
    fx_ckpt_close(b);
  }
}

static const fx_test tests[] = {{"every layout draws the same numbers", initialized},
                                {"checkpoints from layout to layout, bitwise", resharded}};
FX_TEST_MAIN("core/tensor_layout", tests)
