/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion kernel CONFIG`: the C code that is generated for the attention variant of a layer, and what
 * compiling it takes. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/tile/kernel.h"
#include "core/config/config.h"
#include "dynamo_rt/base/clock.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/report.h"

typedef struct arguments {
  int64_t layer;
  bool compile, json;
} arguments;

static void print_usage(FILE *stream) {
  fputs("usage: flexion kernel CONFIG [key=value...] [--layer L] [--compile] [--json]\n"
        "\n"
        "Prints the C code that kernels call for the mask and the scores of a layer's attention, the "
        "expressions above it.\n"
        "\n"
        "  --layer L  layer, from 0 (default 0)\n"
        "  --compile  also compiles it as training does: compiler, flags, time, cache, size\n"
        "  --json     one JSON object on the last line\n"
        "  --help     this text\n",
        stream);
}

static fx_status read_option(int option, const char *word, void *words) {
  arguments *a = words;
  switch (option) {
  case 'l':
    return fx_option_number("kernel", "layer", 0, &a->layer);
  case 'c':
    a->compile = true;
    return FX_OK;
  case 'j':
    a->json = true;
    return FX_OK;
  default:
    return fx_option_unreadable("kernel", word);
  }
}

/* The flags in one line, malloc'ed. */
static char *join_flags(void) {
  size_t length = 1;
  for (int i = 0; fx_compile_flag(i); i++) length += strlen(fx_compile_flag(i)) + 1;
  char *text = malloc(length), *end = text;
  if (text) *text = 0;
  for (int i = 0; text && fx_compile_flag(i); i++)
    end += sprintf(end, "%s%s", i ? " " : "", fx_compile_flag(i));
  return text;
}

static void print_compiled(const fx_tile_kernel *kernel, double ms, json_t *row) {
  const fx_compiled *compiled = fx_tile_kernel_compiled(kernel);
  if (!compiled) {
    printf("\nnothing to compile\n");
    return;
  }
  fx_compiled_facts facts = fx_compiled_describe(compiled);
  bool hit = fx_tile_kernel_from_cache(kernel);
  char *flags = join_flags();
  printf("\ncompiler  %s %s\ntime      %.1f ms, %s\nlibrary   %s.so, %zu bytes\n", facts.compiler,
         flags ? flags : "", ms, hit ? "found in the cache" : "compiled", facts.key, facts.bytes);
  json_object_set_new(row, "compiler", json_string(facts.compiler));
  json_object_set_new(row, "flags", json_string(flags ? flags : ""));
  json_object_set_new(row, "compile_ms", json_real(ms));
  json_object_set_new(row, "from_cache", json_boolean(hit));
  json_object_set_new(row, "key", json_string(facts.key));
  json_object_set_new(row, "library_bytes", json_integer((json_int_t)facts.bytes));
  free(flags);
}

/* Compiles first: a compiler that fails leaves nothing but its sentence. */
static fx_status print_kernel(const fx_config *config, const fx_variant *variant, bool compile, json_t *row) {
  fx_tile_options options = {.mode = FX_TILE_COMPILED, .compile = {.compiler = config->runtime.compiler}};
  fx_tile_kernel *kernel = NULL;
  char *source = NULL;
  fx_status status = FX_OK;
  int64_t begin = fx_now_ns();
  if (compile) FX_TRY(fx_tile_kernel_create(variant, &options, &kernel));
  double ms = (double)(fx_now_ns() - begin) * 1e-6;
  FX_TRY_GOTO(fx_tile_kernel_source(variant, &source), destroy_kernel);
  fputs(source, stdout);
  json_object_set_new(row, "variant", json_string(variant->name));
  json_object_set_new(row, "expression", json_string(variant->text ? variant->text : ""));
  json_object_set_new(row, "source_bytes", json_integer((json_int_t)strlen(source)));
  if (kernel) print_compiled(kernel, ms, row);
  free(source);
destroy_kernel:
  fx_tile_kernel_destroy(kernel);
  return status;
}

static int show(const fx_config *config, const void *words) {
  const arguments *a = words;
  int64_t layers = config->model.num_hidden_layers;
  int32_t length = (int32_t)config->train.seq_length;
  if (a->layer >= layers)
    return fx_report(fx_error(FX_ERR_USAGE, "there is no layer %lld; the model has 0..%lld",
                              (long long)a->layer, (long long)layers - 1));
  if (a->compile && strcmp(config->runtime.compiler, "none") == 0)
    return fx_report(fx_error(FX_ERR_USAGE, "--compile needs a compiler, and runtime.compiler is none"));
  fx_ex_ranges ranges = {(int32_t)config->model.num_attention_heads, length, length};
  fx_variant *variant = NULL;
  fx_status status = fx_config_variant(config, fx_config_layer_variant(config, a->layer), &ranges, &variant);
  if (status != FX_OK) return fx_report(status);
  json_t *row = json_object();
  status =
      row ? print_kernel(config, variant, a->compile, row) : fx_error(FX_ERR_MEMORY, "no memory for JSON");
  if (status == FX_OK && a->json)
    fx_print_json(row);
  else
    json_decref(row);
  fx_variant_destroy(variant);
  return status == FX_OK ? fx_flush_output(0) : fx_report(status);
}

int fx_cmd_kernel(int argc, char **argv) {
  static const struct option rows[] = {{"layer", required_argument, NULL, 'l'},
                                       {"compile", no_argument, NULL, 'c'},
                                       {"json", no_argument, NULL, 'j'},
                                       {"help", no_argument, NULL, 'h'},
                                       {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  arguments a = {0};
  return fx_options_run(&options, "kernel", argc, argv, &a, show);
}
