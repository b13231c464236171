/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/layer_options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

void fx_layer_arguments_explain(FILE *stream) {
  fputs("  --length N        positions (default train.seq_length)\n"
        "  --batch B         samples (default 1)\n"
        "  --documents MEAN  tokens a document has on average, packed into the sequence (default: one "
        "document)\n"
        "  --seed S          of what is made up (default 1)\n"
        "  --dtype TYPE      float32 or bfloat16: q, k, v, out and their gradients (default bfloat16 on a "
        "GPU, else\n"
        "                    float32)\n"
        "  --layer L         layer, from 0 (default 0)\n",
        stream);
}

static fx_status read_number(const fx_layer_arguments *a, const char *option, int64_t least, int64_t *value) {
  char *end;
  long long number = strtoll(optarg, &end, 10);
  if (end == optarg || *end || number < least)
    return fx_error(FX_ERR_USAGE, "--%s takes a number from %lld, got \"%s\"; see flexion %s --help", option,
                    (long long)least, optarg, a->command);
  *value = number;
  return FX_OK;
}

static fx_status read_dtype(fx_dtype *dtype) {
  if (strcmp(optarg, "float32") == 0)
    *dtype = FX_F32;
  else if (strcmp(optarg, "bfloat16") == 0)
    *dtype = FX_BF16;
  else
    return fx_error(FX_ERR_USAGE, "--dtype takes float32 or bfloat16, got \"%s\"", optarg);
  return FX_OK;
}

static fx_status refuse(const fx_layer_arguments *a, const char *word) {
  return fx_error(FX_ERR_USAGE,
                  "%s does not know the option %s, or it lacks its value; see flexion %s --help", a->command,
                  word, a->command);
}

static fx_status read_option(int option, const char *word, fx_layer_arguments *a) {
  int64_t number = 0;
  switch (option) {
  case 'n':
    return read_number(a, "length", 1, &a->options.length);
  case 'b':
    return read_number(a, "batch", 1, &a->options.batch);
  case 'd':
    return read_number(a, "documents", 1, &a->options.documents);
  case 'l':
    return read_number(a, "layer", 0, &a->options.layer);
  case 's':
    FX_TRY(read_number(a, "seed", 0, &number));
    a->options.seed = (uint64_t)number;
    return FX_OK;
  case 't':
    return read_dtype(&a->options.dtype);
  case 'i':
    FX_TRY(read_number(a, "steps", 1, &number));
    a->options.steps = number > INT32_MAX ? INT32_MAX : (int)number;
    return FX_OK;
  case 'm':
    a->memory = true;
    return a->takes_memory ? FX_OK : refuse(a, word);
  case 'j':
    a->json = true;
    return FX_OK;
  case 'h':
    a->help = true;
    return FX_OK;
  default:
    return refuse(a, word);
  }
}

fx_status fx_layer_arguments_read(int argc, char **argv, fx_layer_arguments *a) {
  static const struct option options[] = {{"length", required_argument, NULL, 'n'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"documents", required_argument, NULL, 'd'},
                                          {"layer", required_argument, NULL, 'l'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"dtype", required_argument, NULL, 't'},
                                          {"steps", required_argument, NULL, 'i'},
                                          {"memory", no_argument, NULL, 'm'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
  a->options = (fx_bench_layer_options){.batch = 1, .seed = 1, .dtype = FX_DTYPE_COUNT};
  optind = 0;
  opterr = 0;
  for (int option; !a->help && (option = getopt_long(argc, argv, "h", options, NULL)) != -1;)
    FX_TRY(read_option(option, argv[optind - 1], a));
  return FX_OK;
}
