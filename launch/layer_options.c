/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/layer_options.h"

#include <string.h>

#include "launch/options.h"

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

static fx_status read_dtype(fx_dtype *dtype) {
  if (strcmp(optarg, "float32") == 0)
    *dtype = FX_F32;
  else if (strcmp(optarg, "bfloat16") == 0)
    *dtype = FX_BF16;
  else
    return fx_error(FX_ERR_USAGE, "--dtype takes float32 or bfloat16, got \"%s\"", optarg);
  return FX_OK;
}

static fx_status read_option(int option, const char *word, void *arguments) {
  fx_layer_arguments *a = arguments;
  int64_t number = 0;
  switch (option) {
  case 'n':
    return fx_option_number(a->command, "length", 1, &a->options.length);
  case 'b':
    return fx_option_number(a->command, "batch", 1, &a->options.batch);
  case 'd':
    return fx_option_number(a->command, "documents", 1, &a->options.documents);
  case 'l':
    return fx_option_number(a->command, "layer", 0, &a->options.layer);
  case 's':
    FX_TRY(fx_option_number(a->command, "seed", 0, &number));
    a->options.seed = (uint64_t)number;
    return FX_OK;
  case 't':
    return read_dtype(&a->options.dtype);
  case 'i':
    FX_TRY(fx_option_number(a->command, "steps", 1, &number));
    a->options.steps = number > INT32_MAX ? INT32_MAX : (int)number;
    return FX_OK;
  case 'm':
    a->memory = true;
    return a->takes_memory ? FX_OK : fx_option_unreadable(a->command, word);
  case 'r':
    a->options.trace = optarg;
    return a->takes_trace ? FX_OK : fx_option_unreadable(a->command, "--trace");
  case 'j':
    a->json = true;
    return FX_OK;
  default:
    return fx_option_unreadable(a->command, word);
  }
}

int fx_layer_arguments_read(int argc, char **argv, void (*print_usage)(FILE *stream), fx_layer_arguments *a) {
  static const struct option rows[] = {{"length", required_argument, NULL, 'n'},
                                       {"batch", required_argument, NULL, 'b'},
                                       {"documents", required_argument, NULL, 'd'},
                                       {"layer", required_argument, NULL, 'l'},
                                       {"seed", required_argument, NULL, 's'},
                                       {"dtype", required_argument, NULL, 't'},
                                       {"steps", required_argument, NULL, 'i'},
                                       {"memory", no_argument, NULL, 'm'},
                                       {"trace", required_argument, NULL, 'r'},
                                       {"json", no_argument, NULL, 'j'},
                                       {"help", no_argument, NULL, 'h'},
                                       {NULL, 0, NULL, 0}};
  a->options = (fx_bench_layer_options){.batch = 1, .seed = 1, .dtype = FX_DTYPE_COUNT};
  const fx_options options = {rows, read_option, print_usage};
  return fx_options_read(&options, argc, argv, a);
}
