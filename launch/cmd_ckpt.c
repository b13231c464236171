/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion ckpt`: shows, compares and checks checkpoints. All judgement is core/checkpoint's; this file only
 * parses arguments and prints. A PATH is a step directory, or a checkpoint directory, which stands for its
 * newest step. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/report.h"

enum { EXIT_DIFFERENT = 1 };

static void print_usage(FILE *stream) {
  fputs(
      "usage: flexion ckpt inspect PATH [--json]    state, tensors and files of a checkpoint\n"
      "       flexion ckpt diff    A B  [--json]    compare two; exit code 0 bitwise equal, 1 different\n"
      "       flexion ckpt verify  PATH [--json]    check every byte against the stored hashes\n"
      "\n"
      "A path is a step (runs/a/step_00001000) or a checkpoint directory, which stands for its newest step.\n"
      "diff lists all keys of the configuration that differ; checkpoint.dir, checkpoint.resume and "
      "train.iters\n"
      "alone do not make two checkpoints different.\n"
      "\n"
      "  --json   one JSON object on the last line\n"
      "  --help   this text\n",
      stream);
}

static fx_status open_path(const char *path, fx_ckpt **out) {
  char *step = NULL;
  FX_TRY(fx_ckpt_find(path, &step));
  if (!step)
    return fx_error(FX_ERR_CHECKPOINT,
                    "%s: there is no complete step; expected a step_N directory, or one that holds some",
                    path);
  fx_status status = fx_ckpt_open(step, out);
  free(step);
  return status;
}

/* Prints and releases. */
static fx_status print_json(json_t *object) {
  char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
  json_decref(object);
  if (!text) return fx_error(FX_ERR_MEMORY, "out of host memory while printing");
  puts(text);
  free(text);
  return FX_OK;
}

static json_t *figure(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static void shape_text(const fx_ckpt_tensor *tensor, char text[96]) {
  int used = snprintf(text, 96, "[");
  for (int d = 0; d < tensor->ndim; d++)
    used += snprintf(text + used, (size_t)(96 - used), "%s%" PRId64, d ? ", " : "", tensor->dim[d]);
  snprintf(text + used, (size_t)(96 - used), "]");
}

/* ---- inspect ---- */

typedef struct totals {
  int64_t bytes, elements, fragments;
} totals;

static totals add_up(const fx_ckpt *ckpt) {
  totals sum = {0, 0, 0};
  for (int64_t i = 0; i < fx_ckpt_tensor_count(ckpt); i++) {
    fx_ckpt_tensor t = fx_ckpt_tensor_at(ckpt, i);
    sum.bytes += t.bytes;
    sum.elements += t.elements;
    sum.fragments += t.fragments;
  }
  return sum;
}

static void inspect_text(const fx_ckpt *ckpt) {
  const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
  const totals sum = add_up(ckpt);
  char shape[96], name[32];
  int64_t bytes;
  printf("%s, written by flexion %s\n", fx_ckpt_path(ckpt), fx_ckpt_code_version(ckpt));
  printf("step %" PRId64 "  consumed_samples %" PRId64 "  optimizer_step %" PRId64 "  skipped %" PRId64
         "  loss_scale %g\n\n",
         state->step, state->consumed_samples, state->optimizer_step, state->skipped, state->loss_scale);
  for (int64_t i = 0; i < fx_ckpt_tensor_count(ckpt); i++) {
    fx_ckpt_tensor t = fx_ckpt_tensor_at(ckpt, i);
    shape_text(&t, shape);
    printf("%-60s %-8s %-20s %14" PRId64 " bytes\n", t.path, fx_dtype_name(t.dtype), shape, t.bytes);
  }
  printf("\n");
  for (int64_t i = 0; i < fx_ckpt_shard_count(ckpt); i++) {
    fx_ckpt_shard_at(ckpt, i, name, &bytes);
    printf("%-90s %14" PRId64 " bytes\n", name, bytes);
  }
  printf("\n%" PRId64 " tensors, %" PRId64 " elements, %" PRId64 " bytes in %" PRId64 " fragments of %" PRId64
         " shards\n",
         fx_ckpt_tensor_count(ckpt), sum.elements, sum.bytes, sum.fragments, fx_ckpt_shard_count(ckpt));
}

static json_t *json_tensors(const fx_ckpt *ckpt) {
  json_t *list = json_array();
  for (int64_t i = 0; i < fx_ckpt_tensor_count(ckpt); i++) {
    fx_ckpt_tensor t = fx_ckpt_tensor_at(ckpt, i);
    json_t *shape = json_array();
    for (int d = 0; d < t.ndim; d++) json_array_append_new(shape, json_integer(t.dim[d]));
    json_array_append_new(list,
                          json_pack("{s:s, s:s, s:o, s:I}", "path", t.path, "dtype", fx_dtype_name(t.dtype),
                                    "shape", shape, "bytes", (json_int_t)t.bytes));
  }
  return list;
}

static json_t *json_shards(const fx_ckpt *ckpt) {
  json_t *list = json_array();
  for (int64_t i = 0; i < fx_ckpt_shard_count(ckpt); i++) {
    char name[32];
    int64_t bytes;
    fx_ckpt_shard_at(ckpt, i, name, &bytes);
    json_array_append_new(list, json_pack("{s:s, s:I}", "file", name, "bytes", (json_int_t)bytes));
  }
  return list;
}

static int inspect(char **words, bool as_json) {
  fx_ckpt *ckpt = NULL;
  fx_status status = open_path(words[0], &ckpt);
  if (status != FX_OK) return fx_report(status);
  inspect_text(ckpt);
  if (as_json) {
    const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
    const totals sum = add_up(ckpt);
    status = print_json(json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:o, s:o, s:s}", "path", fx_ckpt_path(ckpt),
        "code_version", fx_ckpt_code_version(ckpt), "step", (json_int_t)state->step, "consumed_samples",
        (json_int_t)state->consumed_samples, "optimizer_step", (json_int_t)state->optimizer_step, "skipped",
        (json_int_t)state->skipped, "loss_scale", state->loss_scale, "bytes", (json_int_t)sum.bytes,
        "elements", (json_int_t)sum.elements, "tensors", json_tensors(ckpt), "shards", json_shards(ckpt),
        "config", fx_ckpt_config(ckpt)));
  }
  fx_ckpt_close(ckpt);
  return status == FX_OK ? fx_flush_output(0) : fx_report(status);
}

/* ---- verify ---- */

static int verify(char **words, bool as_json) {
  fx_ckpt *ckpt = NULL;
  int64_t bytes = 0;
  fx_status status = open_path(words[0], &ckpt);
  if (status == FX_OK) status = fx_ckpt_check(ckpt, &bytes);
  if (status == FX_OK) {
    printf("%s: good, %" PRId64 " tensors, %" PRId64 " bytes\n", fx_ckpt_path(ckpt),
           fx_ckpt_tensor_count(ckpt), bytes);
    if (as_json)
      status = print_json(json_pack("{s:s, s:b, s:I, s:I}", "path", fx_ckpt_path(ckpt), "good", 1, "tensors",
                                    (json_int_t)fx_ckpt_tensor_count(ckpt), "bytes", (json_int_t)bytes));
  }
  fx_ckpt_close(ckpt);
  return status == FX_OK ? fx_flush_output(0) : fx_report(status);
}

/* ---- diff ---- */

typedef struct comparison {
  fx_ckpt *a, *b;
  fx_ckpt_diff *tensors;
  fx_ckpt_diff_key *keys;
  int64_t n_tensors, n_keys;
  int64_t different_tensors, different_keys, different_state, bytes;
  double max_abs, max_rel; /* over the tensors whose shapes agree */
} comparison;

static fx_status compare(char **words, comparison *c) {
  FX_TRY(open_path(words[0], &c->a));
  FX_TRY(open_path(words[1], &c->b));
  FX_TRY(fx_ckpt_diff_tensors(c->a, c->b, &c->tensors, &c->n_tensors));
  FX_TRY(fx_ckpt_diff_config(c->a, c->b, &c->keys, &c->n_keys));
  for (int64_t i = 0; i < c->n_tensors; i++) {
    c->different_tensors += c->tensors[i].kind != FX_CKPT_DIFF_NONE;
    c->bytes += c->tensors[i].bytes;
    c->max_abs = fmax(c->max_abs, c->tensors[i].max_abs);
    c->max_rel = fmax(c->max_rel, c->tensors[i].max_rel);
  }
  for (int64_t i = 0; i < c->n_keys; i++) c->different_keys += !c->keys[i].expected;
  return FX_OK;
}

static void comparison_fini(comparison *c) {
  free(c->tensors);
  fx_ckpt_diff_config_free(c->keys, c->n_keys);
  fx_ckpt_close(c->a);
  fx_ckpt_close(c->b);
}

static void print_tensor(const comparison *c, const fx_ckpt_diff *row) {
  fx_ckpt_tensor a, b;
  char shape_a[96], shape_b[96];
  switch (row->kind) {
  case FX_CKPT_DIFF_NONE:
    break;
  case FX_CKPT_DIFF_VALUES:
    printf("%s: %" PRId64 " of %" PRId64 " elements differ, max abs %.9g, max relative %.9g\n", row->path,
           row->different, row->elements, row->max_abs, row->max_rel);
    break;
  case FX_CKPT_DIFF_SHAPE:
    if (!fx_ckpt_tensor_find(c->a, row->path, &a) || !fx_ckpt_tensor_find(c->b, row->path, &b)) break;
    shape_text(&a, shape_a);
    shape_text(&b, shape_b);
    printf("%s: %s %s in A, %s %s in B\n", row->path, fx_dtype_name(a.dtype), shape_a, fx_dtype_name(b.dtype),
           shape_b);
    break;
  case FX_CKPT_DIFF_ONLY_A:
    printf("%s: only in A\n", row->path);
    break;
  case FX_CKPT_DIFF_ONLY_B:
    printf("%s: only in B\n", row->path);
    break;
  }
}

static void print_state(const char *name, double a, double b, comparison *c) {
  if (a == b) return;
  c->different_state++;
  printf("state: %s is %.17g in A, %.17g in B\n", name, a, b);
}

static void print_comparison(comparison *c) {
  const fx_ckpt_state *a = fx_ckpt_state_get(c->a), *b = fx_ckpt_state_get(c->b);
  printf("A %s\nB %s\n", fx_ckpt_path(c->a), fx_ckpt_path(c->b));
  for (int64_t i = 0; i < c->n_keys; i++)
    printf("config: %s is %s in A, %s in B%s\n", c->keys[i].key, c->keys[i].a ? c->keys[i].a : "missing",
           c->keys[i].b ? c->keys[i].b : "missing", c->keys[i].expected ? " (not counted)" : "");
  print_state("step", (double)a->step, (double)b->step, c);
  print_state("consumed_samples", (double)a->consumed_samples, (double)b->consumed_samples, c);
  print_state("optimizer_step", (double)a->optimizer_step, (double)b->optimizer_step, c);
  print_state("skipped", (double)a->skipped, (double)b->skipped, c);
  print_state("loss_scale", a->loss_scale, b->loss_scale, c);
  for (int64_t i = 0; i < c->n_tensors; i++) print_tensor(c, &c->tensors[i]);
}

static json_t *json_comparison(const comparison *c, bool same) {
  json_t *list = json_array();
  for (int64_t i = 0; i < c->n_tensors; i++) {
    static const char *const kinds[] = {"same", "values", "shape", "only_a", "only_b"};
    const fx_ckpt_diff *row = &c->tensors[i];
    if (row->kind == FX_CKPT_DIFF_NONE) continue;
    json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:o, s:o}", "path", row->path, "kind",
                                          kinds[row->kind], "different_elements", (json_int_t)row->different,
                                          "max_abs", figure(row->max_abs), "max_rel", figure(row->max_rel)));
  }
  json_t *keys = json_array();
  for (int64_t i = 0; i < c->n_keys; i++)
    json_array_append_new(keys, json_pack("{s:s, s:s?, s:s?, s:b}", "key", c->keys[i].key, "a", c->keys[i].a,
                                          "b", c->keys[i].b, "counted", !c->keys[i].expected));
  return json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o}", "identical", same, "tensors",
                   (json_int_t)c->n_tensors, "bytes", (json_int_t)c->bytes, "different_tensors",
                   (json_int_t)c->different_tensors, "different_state", (json_int_t)c->different_state,
                   "different_config", (json_int_t)c->different_keys, "max_abs", figure(c->max_abs),
                   "max_rel", figure(c->max_rel), "differences", list, "config", keys);
}

static int diff(char **words, bool as_json) {
  comparison c = {.a = NULL};
  fx_status status = compare(words, &c);
  bool same = false;
  if (status == FX_OK) {
    print_comparison(&c);
    same = c.different_tensors + c.different_state + c.different_keys == 0;
    if (same)
      printf("identical: %" PRId64 " tensors, %" PRId64 " bytes\n", c.n_tensors, c.bytes);
    else
      printf("different: %" PRId64 " of %" PRId64 " tensors, %" PRId64 " state values, %" PRId64
             " config keys, max abs %.9g\n",
             c.different_tensors, c.n_tensors, c.different_state, c.different_keys, c.max_abs);
    if (as_json) status = print_json(json_comparison(&c, same));
  }
  comparison_fini(&c);
  if (status == FX_OK) return fx_flush_output(same ? 0 : EXIT_DIFFERENT);
  fx_report(status);
  return 3; /* unreadable, whatever the reason: 1 would mean different */
}

/* ---- the command ---- */

static const struct verb {
  const char *name;
  int paths;
  int (*run)(char **words, bool as_json);
} g_verbs[] = {{"inspect", 1, inspect}, {"diff", 2, diff}, {"verify", 1, verify}};

static fx_status read_option(int option, const char *word, void *as_json) {
  if (option != 'j') return fx_option_unknown("ckpt", word);
  *(bool *)as_json = true;
  return FX_OK;
}

int fx_cmd_ckpt(int argc, char **argv) {
  static const struct option rows[] = {
      {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  bool as_json = false;
  int code = fx_options_read(&options, argc, argv, &as_json);
  if (code >= 0) return code;
  const char *name = optind < argc ? argv[optind++] : NULL;
  for (size_t i = 0; name && i < sizeof g_verbs / sizeof g_verbs[0]; i++) {
    if (strcmp(g_verbs[i].name, name) != 0) continue;
    if (argc - optind == g_verbs[i].paths) return g_verbs[i].run(argv + optind, as_json);
    return fx_report(fx_error(FX_ERR_USAGE, "ckpt %s expects %d path%s, got %d; see flexion ckpt --help",
                              name, g_verbs[i].paths, g_verbs[i].paths > 1 ? "s" : "", argc - optind));
  }
  return fx_report(fx_error(FX_ERR_USAGE,
                            "ckpt expects inspect, diff or verify, got %s; see flexion ckpt --help",
                            name ? name : "nothing"));
}
