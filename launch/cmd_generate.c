/* SPDX-License-Identifier: Apache-2.0 */
/* flexion generate PATH: text from a checkpoint, token by token to standard output. */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/generate/generator.h"
#include "dynamo_rt/base/clock.h"
#include "launch/commands.h"
#include "launch/report.h"

static void usage(FILE *stream) {
  fputs(
      "usage: flexion generate PATH [--prompt TEXT] [--tokens N] [--temperature X] [--top-k K] [--top-p P]\n"
      "                        [--seed S] [--device auto|cpu|cuda] [--json]\n\n"
      "Continues TEXT with the model of a checkpoint; PATH is a step (runs/a/step_00001000) or a checkpoint\n"
      "directory, which stands for its newest step. Prints the prompt and then each token as it is drawn.\n"
      "Equal arguments give equal text.\n\n"
      "  --prompt TEXT     what to continue (default: none, the text starts on a fresh line)\n"
      "  --tokens N        how many tokens to draw, from 1 (default 256)\n"
      "  --temperature X   0 always takes the likeliest token, 1 the model's own odds (default 0.8)\n"
      "  --top-k K         only the K likeliest tokens; 0: all (default 0)\n"
      "  --top-p P         only the likeliest tokens that together reach probability P (default 1)\n"
      "  --seed S          of the draw (default 1234)\n"
      "  --device D        auto, cpu or cuda (default auto)\n"
      "  --json            one JSON object with tokens and figures on the last line\n",
      stream);
}

/* ---- arguments ---- */

typedef struct arguments {
  const char *path, *prompt;
  int64_t tokens;
  fx_draw_options draw;
  fx_runtime_device device;
  bool json, help;
} arguments;

static fx_status read_integer(const char *option, const char *text, int64_t least, int64_t most,
                              int64_t *out) {
  char *end = NULL;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || value < least || value > most)
    return fx_error(FX_ERR_USAGE, "--%s takes an integer from %lld to %lld, got \"%s\"", option,
                    (long long)least, (long long)most, text);
  *out = value;
  return FX_OK;
}

static fx_status read_number(const char *option, const char *text, double *out) {
  char *end = NULL;
  double value = strtod(text, &end);
  if (end == text || *end || !isfinite(value))
    return fx_error(FX_ERR_USAGE, "--%s takes a number, got \"%s\"", option, text);
  *out = value;
  return FX_OK;
}

static fx_status read_device(const char *text, fx_runtime_device *out) {
  static const char *const names[] = {
      [FX_RUNTIME_DEVICE_AUTO] = "auto", [FX_RUNTIME_DEVICE_CPU] = "cpu", [FX_RUNTIME_DEVICE_CUDA] = "cuda"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(text, names[i]) == 0) {
      *out = (fx_runtime_device)i;
      return FX_OK;
    }
  return fx_error(FX_ERR_USAGE, "--device takes auto, cpu or cuda, got \"%s\"", text);
}

static fx_status take_option(int option, const char *text, arguments *out) {
  int64_t value = 0;
  switch (option) {
  case 'n':
    return read_integer("tokens", text, 1, 1000000000, &out->tokens);
  case 't':
    return read_number("temperature", text, &out->draw.temperature);
  case 'k':
    FX_TRY(read_integer("top-k", text, 0, INT32_MAX, &value));
    out->draw.top_k = (int32_t)value;
    return FX_OK;
  case 'd':
    return read_device(text, &out->device);
  case 'p':
    return read_number("top-p", text, &out->draw.top_p);
  default:
    FX_TRY(read_integer("seed", text, 0, 1ll << 53, &value)); /* exact in JSON */
    out->draw.seed = (uint64_t)value;
    return FX_OK;
  }
}

static fx_status parse(int argc, char **argv, arguments *out) {
  static const struct option options[] = {{"prompt", required_argument, NULL, 'x'},
                                          {"tokens", required_argument, NULL, 'n'},
                                          {"temperature", required_argument, NULL, 't'},
                                          {"top-k", required_argument, NULL, 'k'},
                                          {"top-p", required_argument, NULL, 'p'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  *out = (arguments){.prompt = "", .tokens = 256, .draw = {.temperature = 0.8, .top_p = 1, .seed = 1234}};
  optind = 0; /* glibc: start over, main has parsed its own options */
  opterr = 0;
  for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
    if (option == ':')
      return fx_error(FX_ERR_USAGE, "%s takes a value; see flexion generate --help", argv[optind - 1]);
    if (option == '?')
      return fx_error(FX_ERR_USAGE, "generate does not know the option %s; see flexion generate --help",
                      argv[optind - 1]);
    if (option == 'h')
      out->help = true;
    else if (option == 'j')
      out->json = true;
    else if (option == 'x')
      out->prompt = optarg;
    else
      FX_TRY(take_option(option, optarg, out));
  }
  if (out->help) return FX_OK;
  if (argc - optind != 1)
    return fx_error(FX_ERR_USAGE, "generate expects one checkpoint, got %s; see flexion generate --help",
                    argc == optind ? "none" : "several");
  out->path = argv[optind];
  return FX_OK;
}

/* ---- output ---- */

typedef struct output {
  json_t *tokens;
  char last;
  bool failed;
} output;

static bool print_token(void *ctx, int32_t token, const char *text, size_t bytes) {
  output *out = ctx;
  json_array_append_new(out->tokens, json_integer(token));
  out->failed = fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0;
  if (bytes) out->last = text[bytes - 1];
  return !out->failed;
}

static bool print_json(const arguments *args, const fx_generator *generator, json_t *tokens, double seconds) {
  int64_t count = (int64_t)json_array_size(tokens);
  json_t *row = json_pack("{s:s, s:I, s:O, s:I, s:f, s:f, s:i, s:f}", "path", fx_generator_path(generator),
                          "generated_tokens", (json_int_t)count, "tokens", tokens, "seed",
                          (json_int_t)args->draw.seed, "tokens_per_s", (double)count / seconds, "temperature",
                          args->draw.temperature, "top_k", (int)args->draw.top_k, "top_p", args->draw.top_p);
  char *text = row ? json_dumps(row, JSON_COMPACT) : NULL;
  bool good = text && puts(text) >= 0;
  free(text);
  json_decref(row);
  return good;
}

static fx_status generate(const arguments *args, fx_generator *generator) {
  output out = {.tokens = json_array()};
  size_t prompt_bytes = strlen(args->prompt);
  int64_t drawn = 0;
  if (prompt_bytes) out.last = args->prompt[prompt_bytes - 1];
  fputs(args->prompt, stdout);
  fflush(stdout);
  int64_t begin = fx_now_ns();
  fx_status status = fx_generator_run(generator, args->prompt, prompt_bytes, args->tokens, &args->draw,
                                      print_token, &out, &drawn);
  double seconds = (double)(fx_now_ns() - begin) / 1e9;
  /* A pipe gets the text alone; a terminal and a JSON line begin on a fresh line. */
  if (status == FX_OK && (args->json || isatty(STDOUT_FILENO)) && out.last != '\n') putchar('\n');
  if (status == FX_OK && args->json) out.failed |= !print_json(args, generator, out.tokens, seconds);
  json_decref(out.tokens);
  if (status == FX_OK && (out.failed || fflush(stdout) != 0 || ferror(stdout)))
    status = fx_error(FX_ERR_IO, "standard output cannot be written; check the disk or pipe behind it");
  return status;
}

int fx_cmd_generate(int argc, char **argv) {
  arguments args;
  fx_generator *generator = NULL;
  fx_draw probe;
  fx_status status = parse(argc, argv, &args);
  if (status == FX_OK && args.help) {
    usage(stdout);
    return fx_flush_output(0);
  }
  if (status == FX_OK) status = fx_draw_init(&probe, &args.draw, 1); /* wrong options before a long load */
  if (status != FX_OK) return fx_report(status);
  fx_draw_fini(&probe);
  status = fx_generator_create(args.path, 0, args.device, &generator);
  if (status == FX_OK) status = generate(&args, generator);
  fx_generator_destroy(generator);
  return status == FX_OK ? 0 : fx_report(status);
}
