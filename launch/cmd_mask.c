/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion mask CONFIG`: what the attention mask of a configuration looks like, how it is represented, and
 * what building it takes. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/context.h"
#include "core/bench/mask.h"
#include "dynamo_rt/base/memory.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/png.h"
#include "launch/report.h"

enum { COLUMNS = 64, ROWS = 32, MAX_PIXELS = 1024 };

typedef struct arguments {
  fx_bench_mask_options options;
  int64_t ranks; /* 0: not asked for */
  const char *png;
  bool json;
} arguments;

static void print_usage(FILE *stream) {
  fputs(
      "usage: flexion mask CONFIG [key=value...] [--length N] [--documents MEAN] [--layer L] [--head H] "
      "[--tile QxK]\n"
      "                    [--ranks N] [--seed S] [--png FILE] [--json]\n"
      "\n"
      "What queries (down) see of keys (across), how that is represented, how many tiles a kernel visits, "
      "and the "
      "time and\n"
      "memory that limits and run lists take on one core. Documents, turns and tokens are made up; no data "
      "is "
      "read.\n"
      "\n"
      "  --length N        positions (default train.seq_length)\n"
      "  --documents MEAN  tokens a document has on average, packed into the sequence (default: one "
      "document)\n"
      "  --layer L         layer, from 0 (default 0)\n"
      "  --head H          query head, from 0 (default 0)\n"
      "  --tile QxK        queries x keys of a tile (default 128x128)\n"
      "  --ranks N         also how N ranks that share the sequence (parallel.context) would share the work\n"
      "  --seed S          of what is made up (default 1)\n"
      "  --png FILE        the picture, one pixel a pair up to 1024 positions\n"
      "  --json            one JSON object on the last line\n"
      "  --help            this text\n",
      stream);
}

/* ---- arguments ---- */

static fx_status read_tile(const char *text, fx_bench_mask_options *options) {
  char *end, *last = NULL;
  long q = strtol(text, &end, 10), kv = *end == 'x' ? strtol(end + 1, &last, 10) : 0;
  if (!last || *last || q < 1 || kv < 1 || q > 65536 || kv > 65536)
    return fx_error(FX_ERR_USAGE,
                    "--tile takes queries x keys, as 128x64, got \"%s\"; see flexion mask --help", text);
  options->tile_q = (int32_t)q, options->tile_kv = (int32_t)kv;
  return FX_OK;
}

static fx_status read_option(int option, const char *word, void *words) {
  arguments *a = words;
  int64_t seed = 0;
  switch (option) {
  case 'n':
    return fx_option_number("mask", "length", 1, &a->options.length);
  case 'd':
    return fx_option_number("mask", "documents", 1, &a->options.documents);
  case 'l':
    return fx_option_number("mask", "layer", 0, &a->options.layer);
  case 'e':
    return fx_option_number("mask", "head", 0, &a->options.head);
  case 's':
    FX_TRY(fx_option_number("mask", "seed", 0, &seed));
    a->options.seed = (uint64_t)seed;
    return FX_OK;
  case 't':
    return read_tile(optarg, &a->options);
  case 'r':
    return fx_option_number("mask", "ranks", 2, &a->ranks);
  case 'p':
    a->png = optarg;
    return FX_OK;
  case 'j':
    a->json = true;
    return FX_OK;
  default:
    return fx_option_unreadable("mask", word);
  }
}

/* ---- output ---- */

static const char *form_of(const fx_bench_mask_report *r) {
  static const char *const forms[] = {"nothing: every query sees every key", "limits", "an expression"};
  return forms[r->form];
}

static void print_report(const fx_bench_mask_report *r, const arguments *a) {
  printf("%s, layer %lld, head %lld, %lld positions, %lld documents\n", r->name, (long long)a->options.layer,
         (long long)a->options.head, (long long)r->length, (long long)r->documents);
  printf("%s%s\n", r->text, r->text[0] && r->text[strlen(r->text) - 1] == '\n' ? "" : "\n");
  printf("represented as  %s", form_of(r));
  if (r->form == FX_MASK_FORM_LIMITS) printf(", %d interval%s a query", r->R, r->R == 1 ? "" : "s");
  if (r->form != FX_MASK_FORM_NONE)
    printf(", %s, %s", r->per_sample ? "for each sample" : "the same for all samples",
           r->per_head ? "for each head" : "the same for all heads");
  printf("\ndensity         %.4f%%%s\n", 100 * r->density, r->density_exact ? "" : " (estimated)");
  double tiles = (double)(r->full + r->partial + r->empty);
  printf("tiles %5dx%-5d %lld full (%.2f%%), %lld partial (%.2f%%), %lld empty (%.2f%%)\n", a->options.tile_q,
         a->options.tile_kv, (long long)r->full, 100 * (double)r->full / tiles, (long long)r->partial,
         100 * (double)r->partial / tiles, (long long)r->empty, 100 * (double)r->empty / tiles);
  if (r->joined)
    printf("                %lld joins: some lists are longer than the memory for them\n",
           (long long)r->joined);
  printf("memory          %.3f MiB limits, %.3f MiB run lists, %.3f MiB scratch\n", fx_mib(r->limit_bytes),
         fx_mib(r->run_bytes), fx_mib(r->scratch_bytes));
  printf("time            %.3f ms analysis, once; %.3f ms a batch: inputs %.3f, limits %.3f, rows %.3f, "
         "transposed "
         "%.3f\n",
         r->analysis_ms, r->check_ms + r->limits_ms + r->rows_ms + r->columns_ms, r->check_ms, r->limits_ms,
         r->rows_ms, r->columns_ms);
}

enum { SHARES_SHOWN = 64 };

static void print_context(const fx_bench_context *c) {
  printf("context         %d ranks of %lld blocks by %s: imbalance %.4f (neighbouring blocks: %.4f)\n",
         c->ranks, (long long)c->blocks, c->exchange, c->imbalance, c->contiguous);
  printf("travelling      at most %d of a rank's %lld blocks (%.1f%%), to the next %d of %d other ranks\n",
         c->need.blocks, (long long)c->blocks, 100.0 * c->need.blocks / (double)c->blocks, c->need.hops,
         c->ranks - 1);
  printf("shares         ");
  for (int r = 0; r < c->ranks && r < SHARES_SHOWN; r++)
    printf("%s %d: %.3f%%", r && r % 8 == 0 ? "\n               " : "", r, 100 * c->share[r]);
  printf("%s\n", c->ranks > SHARES_SHOWN ? " ..." : "");
}

static fx_status draw_text(const fx_bench_mask *mask, int64_t length) {
  static const char shades[] = " .:-=+*#%@";
  float *density = NULL;
  int32_t columns = length < COLUMNS ? (int32_t)length : COLUMNS, rows = columns > 1 ? columns / 2 : 1;
  if (length < COLUMNS / 2) rows = columns; /* every pair has a character */
  density = malloc((size_t)rows * (size_t)columns * sizeof *density);
  if (!density) return fx_error(FX_ERR_MEMORY, "no memory for a picture");
  fx_status status = fx_bench_mask_draw(mask, rows, columns, density);
  for (int32_t i = 0; status == FX_OK && i < rows; i++) {
    char line[COLUMNS + 1];
    for (int32_t j = 0; j < columns; j++) {
      float part = density[i * columns + j];
      line[j] = shades[part <= 0 ? 0 : part >= 1 ? 9 : 1 + (int)(part * 8)];
    }
    line[columns] = 0;
    printf("|%s|\n", line);
  }
  free(density);
  return status;
}

static fx_status draw_png(const fx_bench_mask *mask, int64_t length, const char *path) {
  int32_t size = length < MAX_PIXELS ? (int32_t)length : MAX_PIXELS;
  size_t count = (size_t)size * (size_t)size;
  float *density = malloc(count * sizeof *density);
  uint8_t *pixels = malloc(count);
  fx_status status;
  if (density && pixels) {
    status = fx_bench_mask_draw(mask, size, size, density);
    for (size_t i = 0; status == FX_OK && i < count; i++) pixels[i] = (uint8_t)(255.5f - 255.0f * density[i]);
    if (status == FX_OK) status = fx_png_write(path, size, size, pixels);
  } else {
    status = fx_error(FX_ERR_MEMORY, "no memory for a picture");
  }
  free(density);
  free(pixels);
  return status;
}

/* {"ranks", "blocks_a_rank", "travelling_blocks", "hops", "imbalance", "imbalance_neighbours", "exchange",
 * "shares"}; NULL without --ranks. */
static json_t *context_json(const fx_bench_context *c) {
  if (!c->share) return NULL;
  json_t *shares = json_array();
  for (int r = 0; r < c->ranks; r++) json_array_append_new(shares, json_real(c->share[r]));
  return json_pack("{s:i, s:I, s:I, s:i, s:f, s:f, s:s, s:o}", "ranks", c->ranks, "blocks_a_rank",
                   (json_int_t)c->blocks, "travelling_blocks", (json_int_t)c->need.blocks, "hops",
                   c->need.hops, "imbalance", c->imbalance, "imbalance_neighbours", c->contiguous, "exchange",
                   c->exchange, "shares", shares);
}

static void print_json(const fx_bench_mask_report *r, const fx_bench_context *c, const arguments *a) {
  static const char *const forms[] = {"none", "limits", "expression"};
  json_t *row =
      json_pack("{s:s, s:s, s:i, s:b, s:b, s:I, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:b}", "variant",
                r->name, "form", forms[r->form], "intervals", r->R, "per_sample", r->per_sample, "per_head",
                r->per_head, "length", (json_int_t)r->length, "documents", (json_int_t)r->documents, "tile_q",
                a->options.tile_q, "tile_kv", a->options.tile_kv, "full", (json_int_t)r->full, "partial",
                (json_int_t)r->partial, "empty", (json_int_t)r->empty, "joined", (json_int_t)r->joined,
                "density", r->density, "density_exact", r->density_exact);
  json_t *cost =
      json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "limit_bytes", (json_int_t)r->limit_bytes,
                "run_bytes", (json_int_t)r->run_bytes, "scratch_bytes", (json_int_t)r->scratch_bytes,
                "analysis_ms", r->analysis_ms, "check_ms", r->check_ms, "limits_ms", r->limits_ms, "rows_ms",
                r->rows_ms, "transposed_ms", r->columns_ms);
  json_t *context = context_json(c);
  if (row && cost) json_object_update(row, cost);
  if (row && context) json_object_update(row, context);
  fx_print_json(row);
  json_decref(context);
  json_decref(cost);
}

static int show(const fx_config *config, const void *words) {
  const arguments *a = words;
  fx_bench_mask *mask = NULL;
  fx_bench_context context = {.ranks = 0};
  const fx_bench_mask_options *o = &a->options;
  fx_status status = fx_bench_mask_create(config, o, &mask);
  if (status == FX_OK && a->ranks)
    status = fx_bench_context_init(config, (int)a->ranks, o->length, o->documents, o->seed, &context);
  if (status != FX_OK) {
    fx_bench_mask_destroy(mask);
    return fx_report(status);
  }
  const fx_bench_mask_report *r = fx_bench_mask_get(mask);
  print_report(r, a);
  if (a->ranks) print_context(&context);
  printf("\n");
  status = draw_text(mask, r->length);
  if (status == FX_OK && a->png) status = draw_png(mask, r->length, a->png);
  if (status == FX_OK && a->json) print_json(r, &context, a);
  fx_bench_context_fini(&context);
  fx_bench_mask_destroy(mask);
  return status == FX_OK ? fx_flush_output(0) : fx_report(status);
}

int fx_cmd_mask(int argc, char **argv) {
  static const struct option rows[] = {{"length", required_argument, NULL, 'n'},
                                       {"documents", required_argument, NULL, 'd'},
                                       {"layer", required_argument, NULL, 'l'},
                                       {"head", required_argument, NULL, 'e'},
                                       {"tile", required_argument, NULL, 't'},
                                       {"seed", required_argument, NULL, 's'},
                                       {"ranks", required_argument, NULL, 'r'},
                                       {"png", required_argument, NULL, 'p'},
                                       {"json", no_argument, NULL, 'j'},
                                       {"help", no_argument, NULL, 'h'},
                                       {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  arguments a = {.options = {.seed = 1, .tile_q = 128, .tile_kv = 128}};
  return fx_options_run(&options, "mask", argc, argv, &a, show);
}
