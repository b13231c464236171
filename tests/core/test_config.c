/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration: every class of error with its exact place, defaults, includes and overrides, and the
 * round trip of printing and parsing. Sentences are compared from the place up to the first words that
 * matter, so that a wrong line, column, key or advice fails while wording elsewhere may change. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config.h"
#include "core/config/schema.h"
#include "tests/harness.h"

typedef struct bad {
  const char *yaml, *place; /* place: ":line:column" after the file's name, or a whole override place */
  const char *says[3];
} bad;

/* Parsing must fail with exactly this place in front and every one of the parts. */
static void check_bad(const bad *row) {
  fx_config *cfg = NULL;
  fx_error_clear();
  fx_status status = fx_config_parse(row->yaml, "x.yaml", &cfg);
  char start[64];
  snprintf(start, sizeof start, "x.yaml%s: ", row->place);
  CHECK_MSG(status == FX_ERR_CONFIG, "%s: expected FX_ERR_CONFIG, got %s", row->yaml, fx_status_name(status));
  CHECK_MSG(cfg == NULL, "%s: out was written on failure", row->yaml);
  CHECK_MSG(strncmp(fx_error_text(), start, strlen(start)) == 0, "%s: expected place %s, got \"%s\"",
            row->yaml, start, fx_error_text());
  for (int i = 0; i < 3 && row->says[i]; i++) CHECK_HAS(fx_error_text(), row->says[i]);
  CHECK_MSG(!strchr(fx_error_text(), '\n'), "one line expected, got \"%s\"", fx_error_text());
  fx_config_destroy(cfg);
}

#define CHECK_BAD(rows) \
  for (size_t row_ = 0; row_ < sizeof(rows) / sizeof((rows)[0]); row_++) check_bad(&(rows)[row_])

static void names(void) {
  static const bad rows[] = {
      {"model:\n  hiden_size: 3\n",
       ":2:3",
       {"model.hiden_size is not a key", "nearest is model.hidden_size"}},
      {"train:\n  seq_length: 8\n  lr: 1.0\n", ":3:3", {"train.lr", "nearest is optimizer.lr"}},
      {"train: {batch_size: 8}\n", ":1:9", {"nearest is train.micro_batch_size"}},
      {"train: {seq_lenght: 8}\n", ":1:9", {"nearest is train.seq_length"}},
      {"\nmodle: {}\n", ":2:1", {"\"modle\" is not a section", "nearest is model"}},
      {"train: {}\nvocab_size: 3\n", ":2:1", {"write it as model.vocab_size"}},
      {"model:\n  bias: true\n  bias: true\n", ":3:3", {"\"bias\" is given twice", "x.yaml:2:3"}},
      {"train: {}\nmodel: {}\ntrain: {}\n", ":3:1", {"\"train\" is given twice", "x.yaml:1:1"}},
      {"attention: {params: {window: 1, window: 2}}\n", ":1:33", {"\"window\" is given twice", "1:22"}},
      {"? [a]\n: b\n", ":1:3", {"plain name"}},
      {"model:\n  ? {a: b}\n  : c\n", ":2:5", {"plain name"}},
      {"include: [a.yaml]\n", ":1:10", {"include is not followed"}},
  };
  CHECK_BAD(rows);
}

static void shapes_and_syntax(void) {
  static const bad rows[] = {
      {"- a\n", ":1:1", {"a mapping of sections", "got a list of 1"}},
      {"hello\n", ":1:1", {"a mapping of sections", "got hello"}},
      {"model: [a]\n", ":1:8", {"section model expects a mapping"}},
      {"model:\n  bias: true\n name: a\n", ":3:2", {"not valid YAML", "did not find expected key"}},
      {"model: {bias: true\n", ":2:1", {"not valid YAML"}},
      {"model:\n\tbias: true\n", ":2:1", {"not valid YAML", "cannot start any token"}},
      {"model: {name: *gone}\n", ":1:15", {"not valid YAML", "undefined alias"}},
      {"model:\n  name: \xff\n", ":2:9", {"not valid YAML", "UTF-8"}},
      {"train: {iters: 5}\n---\ntrain: {}\n", ":3:1", {"a second YAML document"}},
      {"train: {iters: 5}\n---\n{\n", ":4:1", {"not valid YAML"}},
      {"model: {name: \"a\\0b\"}\n", ":1:15", {"model.name"}},
  };
  CHECK_BAD(rows);
}

static void types_and_ranges(void) {
  static const bad rows[] = {
      {"model: {vocab_size: lots}\n",
       ":1:21",
       {"model.vocab_size expects an integer, at least 1", "got lots"}},
      {"model: {vocab_size: 0}\n", ":1:21", {"at least 1", "got 0", "write for example vocab_size: 256"}},
      {"model: {vocab_size: -5}\n", ":1:21", {"got -5"}},
      {"model: {vocab_size: auto}\n", ":1:21", {"got auto"}},
      {"model: {vocab_size: \"5\"}\n", ":1:21", {"got the quoted text \"5\""}},
      {"model: {vocab_size: 5.0}\n", ":1:21", {"got 5.0"}},
      {"model: {vocab_size: 99999999999999999999}\n", ":1:21", {"at most 16000000"}},
      {"model: {vocab_size: [5]}\n", ":1:21", {"got a list"}},
      {"model: {vocab_size: }\n", ":1:21", {"got nothing"}},
      {"model: {head_dim: none}\n", ":1:19", {"an integer, at least 1 and at most 256, or auto"}},
      {"model: {head_dim: 264}\n", ":1:19", {"at most 256", "got 264"}},
      {"model: {bias: yes}\n", ":1:15", {"model.bias expects true or false, got yes"}},
      {"model: {bias: \"true\"}\n", ":1:15", {"quoted text"}},
      {"model: {norm: rmsnrom}\n",
       ":1:15",
       {"rmsnorm or layernorm, got rmsnrom", "nearest value is rmsnorm"}},
      {"model: {norm: {}}\n", ":1:15", {"got a mapping"}},
      {"model: {dropout: 1.0}\n", ":1:18", {"at least 0 and below 1", "got 1.0"}},
      {"model: {norm_eps: 0}\n", ":1:19", {"above 0 and at most 1", "got 0"}},
      {"model: {norm_eps: nan}\n", ":1:19", {"got nan"}},
      {"model: {norm_eps: 0x1p-3}\n", ":1:19", {"got 0x1p-3"}},
      {"optimizer: {lr: 1e999}\n", ":1:17", {"optimizer.lr expects a number"}},
      {"optimizer: {betas: 0.9}\n", ":1:20", {"a list of two numbers, each at least 0 and below 1"}},
      {"optimizer: {betas: [0.9]}\n", ":1:20", {"got a list of 1"}},
      {"optimizer: {betas: [0.9, 1.0]}\n", ":1:26", {"got 1.0"}},
      {"data:\n  train:\n    - a\n    -\n",
       ":4:6",
       {"data.train expects a list of non-empty texts, got nothing"}},
      {"data: {train: [[a]]}\n", ":1:16", {"got a list"}},
      {"data: {train: {a: b}}\n", ":1:15", {"got a mapping"}},
      {"checkpoint: {dir: \"\"}\n", ":1:19", {"checkpoint.dir expects a non-empty text"}},
      {"attention: {params: [window]}\n", ":1:21", {"a mapping of parameter names to numbers"}},
      {"attention: {variant: sliding_window, params: {window: 0}}\n",
       ":1:55",
       {"attention.params.window expects an integer, at least 1"}},
      {"runtime: {threads: 0}\n", ":1:20", {"or auto", "got 0"}},
  };
  CHECK_BAD(rows);
}

static void relations(void) {
  static const bad rows[] = {
      {"model: {hidden_size: 130}\n",
       ":1:22",
       {"model.hidden_size=130", "model.num_attention_heads=4", "head_dim"}},
      {"model: {num_attention_heads: 3}\n",
       ":1:30",
       {"model.hidden_size=128", "model.num_attention_heads=3"}},
      {"model: {num_key_value_heads: 3}\n",
       ":1:30",
       {"model.num_attention_heads=4", "num_key_value_heads=3"}},
      {"model: {head_dim: 33}\n", ":1:19", {"model.head_dim=33 is odd", "model.position=rope"}},
      {"model: {head_dim: 33, position: none}\n", ":1:19", {"model.head_dim=33 is not a multiple of 8"}},
      {"model: {head_dim: 12}\n", ":1:19", {"model.head_dim=12 is not a multiple of 8"}},
      {"model: {hidden_size: 2048}\n", ":1:22", {"model.head_dim=512", "model.num_attention_heads"}},
      {"model: {max_position_embeddings: 10}\n",
       ":1:34",
       {"train.seq_length=256", "max_position_embeddings=10"}},
      {"model: {max_position_embeddings: 10, position: learned}\n", ":1:34", {"train.seq_length=256"}},
      {"optimizer: {lr: 1.0e-5}\n", ":1:17", {"optimizer.min_lr=0.0001", "optimizer.lr=1e-05"}},
      {"schedule: {warmup_iters: 2001}\n",
       ":1:26",
       {"schedule.warmup_iters=2001", "schedule.decay_iters=2000"}},
      {"schedule: {decay: wsd, warmup_iters: 9, decay_iters: 10, wsd_decay_iters: 2}\n",
       ":1:75",
       {"schedule.warmup_iters=9", "schedule.wsd_decay_iters=2", "schedule.decay_iters=10"}},
      {"model: {model_type: gpt2, activation: swiglu}\n",
       ":1:39",
       {"model.activation=swiglu", "gelu or gelu_tanh"}},
      {"attention: {variant: causl}\n", ":1:22", {"attention.variant=causl", "nearest is causal"}},
      {"attention: {variant: sliding}\n", ":1:22", {"nearest is sliding_window"}},
      {"attention: {variant: sliding_window}\n", ":1:22", {"needs attention.params.window"}},
      {"attention: {params: {window: 8}}\n",
       ":1:30",
       {"attention.variant=causal takes no parameter attention.params.window"}},
      {"parallel: {tensor: 3}\n",
       ":1:20",
       {"model.num_attention_heads=4 is not a multiple of parallel.tensor=3",
        "set parallel.tensor to a divisor"}},
      {"parallel: {tensor: 4}\nmodel: {hidden_size: 192, num_attention_heads: 12, num_key_value_heads: 6}\n",
       ":1:20",
       {"model.num_key_value_heads=6 is neither a multiple nor a divisor of parallel.tensor=4"}},
      {"parallel: {tensor: 4}\nmodel: {intermediate_size: 98}\n",
       ":1:20",
       {"model.intermediate_size=98 is not a multiple of parallel.tensor=4; change one of them"}},
      {"parallel: {tensor: 4}\ntrain: {micro_batch_size: 1, seq_length: 130}\n",
       ":1:20",
       {"train.micro_batch_size=1 x train.seq_length=130 rows are not a multiple of parallel.tensor=4",
        "parallel.sequence=false"}},
      {"parallel: {zero: 3}\n", ":1:18", {"parallel.zero=3 is not available yet", "parallel.zero=2"}},
      {"parallel: {context: 2}\ntrain: {seq_length: 384}\n",
       ":2:21",
       {"train.seq_length=384 is not a multiple of 128 x parallel.context=2", "multiple of 256"}},
      {"parallel: {context: 2, context_exchange: alltoall}\nmodel: {num_attention_heads: 6, "
       "num_key_value_heads: 3, head_dim: 16}\n",
       ":1:42",
       {"parallel.context=2 does not divide the 6 query and 3 key heads", "ring, allgather or auto"}},
      {"parallel: {context_exchange: rnig}\n", ":1:30", {"rnig", "ring"}},
  };
  CHECK_BAD(rows);
  fx_config *cfg = NULL;
  CHECK_OK(fx_config_parse("model: {max_position_embeddings: 10, position: none}", "x", &cfg));
  fx_config_destroy(cfg);
  CHECK_OK(fx_config_parse("parallel: {tensor: 4, sequence: false}\n"
                           "train: {micro_batch_size: 1, seq_length: 130}",
                           "x", &cfg));
  fx_config_destroy(cfg);
}

static void defaults(void) {
  fx_config *cfg = NULL;
  if (!CHECK_OK(fx_config_parse("", "x.yaml", &cfg))) return;
  CHECK_INT(cfg->model.model_type, FX_MODEL_TYPE_LLAMA);
  CHECK_INT(cfg->model.num_key_value_heads, 4);
  CHECK_INT(cfg->model.head_dim, 32);
  CHECK_INT(cfg->model.intermediate_size, 352);
  CHECK_INT(cfg->model.max_position_embeddings, 256);
  CHECK_INT(cfg->model.norm, FX_MODEL_NORM_RMSNORM);
  CHECK(!cfg->model.tie_word_embeddings);
  CHECK(cfg->model.norm_eps == 1e-5 && cfg->model.rope_theta == 10000 &&
        cfg->model.initializer_range == 0.02);
  CHECK_STR(cfg->attention.variant, "causal");
  CHECK(fx_config_attention_param(cfg, "window", -3) == -3);
  CHECK(cfg->parallel.sequence && cfg->parallel.tensor == 1 && cfg->parallel.zero == 0);
  CHECK_INT(cfg->data.train.count, 0);
  CHECK(cfg->optimizer.betas[0] == 0.9 && cfg->optimizer.betas[1] == 0.95 && cfg->optimizer.lr == 1e-3);
  CHECK_INT(cfg->schedule.warmup_iters, 100);
  CHECK_INT(cfg->schedule.decay_iters, 2000);
  CHECK_INT(cfg->schedule.wsd_decay_iters, 200);
  CHECK_STR(cfg->checkpoint.dir, "runs/default");
  CHECK_STR(cfg->checkpoint.resume, "auto");
  CHECK_INT(cfg->runtime.threads, FX_CONFIG_AUTO);
  CHECK_INT(cfg->runtime.log_level, FX_LOG_INFO);
  CHECK_STR(fx_config_where(cfg, "model.head_dim"), "default");
  CHECK(fx_config_where(cfg, "model.heads") == NULL && fx_config_where(cfg, "nonsense") == NULL);
  CHECK_STATUS(fx_config_check_train(cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "x.yaml: data.train names no file");
  fx_config_destroy(cfg);
  cfg = NULL;
  if (!CHECK_OK(fx_config_parse("model: {model_type: gpt2}\ntrain: {iters: 50}", "x.yaml", &cfg))) return;
  CHECK_INT(cfg->model.norm, FX_MODEL_NORM_LAYERNORM);
  CHECK_INT(cfg->model.activation, FX_MODEL_ACTIVATION_GELU_TANH);
  CHECK_INT(cfg->model.position, FX_MODEL_POSITION_LEARNED);
  CHECK(cfg->model.tie_word_embeddings);
  CHECK_INT(cfg->model.intermediate_size, 512);
  CHECK_INT(cfg->schedule.decay_iters, 50);
  CHECK_INT(cfg->schedule.warmup_iters, 5);
  fx_config_destroy(cfg);
}

static void includes_and_overrides(void) {
  const char *dir = fx_temp_dir();
  char where[300];
  fx_config *cfg = NULL;
  fx_temp_file(dir, "one.yaml", "model: {name: one, vocab_size: 300, hidden_size: 64}\ntrain: {iters: 7}\n");
  fx_temp_file(dir, "two.yaml", "model: {name: two, vocab_size: 400}\n");
  /* include comes last on purpose: its place in the file must not matter */
  const char *top = fx_temp_file(dir, "top.yaml", "model:\n  name: top\ninclude: [one.yaml, two.yaml]\n");
  const char *overrides[] = {"train.iters=20",
                             "data.train=[a.txt,b.txt]",
                             "train.iters=30",
                             "attention.params.window=9",
                             "attention.variant=sliding_window",
                             "attention.params.window=64",
                             "optimizer.betas=[0.8, 0.9]",
                             "checkpoint.dir=*odd: #name",
                             "model.name="};
  if (CHECK_OK(fx_config_load(top, NULL, 0, &cfg))) {
    CHECK_STR(cfg->model.name, "top");
    CHECK_INT(cfg->model.vocab_size, 400);
    CHECK_INT(cfg->model.hidden_size, 64);
    CHECK_INT(cfg->train.iters, 7);
    snprintf(where, sizeof where, "%s/two.yaml:1:32", dir);
    CHECK_STR(fx_config_where(cfg, "model.vocab_size"), where);
    snprintf(where, sizeof where, "%s/top.yaml:2:9", dir);
    CHECK_STR(fx_config_where(cfg, "model.name"), where);
  }
  fx_config_destroy(cfg);
  cfg = NULL;
  if (CHECK_OK(fx_config_load(top, overrides, (int)(sizeof overrides / sizeof overrides[0]), &cfg))) {
    CHECK_INT(cfg->train.iters, 30);
    CHECK_STR(fx_config_where(cfg, "train.iters"), "command line: train.iters=30");
    CHECK_INT(cfg->data.train.count, 2);
    CHECK_STR(cfg->data.train.items[1], "b.txt");
    CHECK(fx_config_attention_param(cfg, "window", 0) == 64);
    CHECK_STR(fx_config_where(cfg, "attention.params.window"), "command line: attention.params.window=64");
    CHECK(cfg->optimizer.betas[0] == 0.8);
    CHECK_STR(cfg->checkpoint.dir, "*odd: #name");
    CHECK_STR(cfg->model.name, "");
  }
  fx_config_destroy(cfg);
  /* a file in a folder includes its neighbour, not the working directory's file; diamonds are no cycles */
  fx_temp_file(dir, "base.yaml", "train: {seed: 5}\n");
  fx_temp_file(dir, "left.yaml", "include: base.yaml\n");
  fx_temp_file(dir, "right.yaml", "include: [base.yaml]\n");
  cfg = NULL;
  if (CHECK_OK(fx_config_load(fx_temp_file(dir, "diamond.yaml", "include: [left.yaml, right.yaml]"), NULL, 0,
                              &cfg)))
    CHECK_INT(cfg->train.seed, 5);
  fx_config_destroy(cfg);
}

static void include_errors(void) {
  const char *dir = fx_temp_dir();
  fx_config *cfg = NULL;
  char expected[1024];
  fx_temp_file(dir, "a.yaml", "train: {}\ninclude: [b.yaml]\n");
  fx_temp_file(dir, "b.yaml", "include:\n  - c.yaml\n");
  fx_temp_file(dir, "c.yaml", "include: [../../../../../../../../..//dev/null, ./b.yaml]\n");
  snprintf(expected, sizeof expected, "%s/a.yaml", dir);
  CHECK_STATUS(fx_config_load(expected, NULL, 0, &cfg), FX_ERR_CONFIG);
  snprintf(expected, sizeof expected, "%s/c.yaml:1:49: include cycle %s/./b.yaml <- %s/c.yaml <- %s/b.yaml; ",
           dir, dir, dir, dir);
  CHECK_MSG(strncmp(fx_error_text(), expected, strlen(expected)) == 0, "expected \"%s\", got \"%s\"",
            expected, fx_error_text());
  const char *missing = fx_temp_file(dir, "d.yaml", "include: [gone.yaml]\n");
  CHECK_STATUS(fx_config_load(missing, NULL, 0, &cfg), FX_ERR_CONFIG);
  snprintf(expected, sizeof expected, "%s/d.yaml:1:11: included file %s/gone.yaml cannot be read", dir, dir);
  CHECK_HAS(fx_error_text(), expected);
  CHECK_STATUS(fx_config_load(fx_temp_file(dir, "e.yaml", "include: [{a: b}]\n"), NULL, 0, &cfg),
               FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "e.yaml:1:11: include expects a list of file names, got a mapping");
  CHECK_STATUS(fx_config_load("/nonexistent/x.yaml", NULL, 0, &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "/nonexistent/x.yaml: the configuration file cannot be read (No such file");
  CHECK_STATUS(fx_config_load(dir, NULL, 0, &cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "it is a directory");
  /* an error inside an included file carries that file's place */
  fx_temp_file(dir, "wrong.yaml", "train:\n  iters: none\n");
  CHECK_STATUS(fx_config_load(fx_temp_file(dir, "f.yaml", "include: [wrong.yaml]\n"), NULL, 0, &cfg),
               FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "/wrong.yaml:2:10: train.iters expects");
  CHECK(cfg == NULL);
}

static void override_errors(void) {
  static const struct {
    const char *override, *says;
  } rows[] = {
      {"train.iters=x", "command line: train.iters=x: train.iters expects an integer"},
      {"train.iters=", "command line: train.iters=: a value is expected after the ="},
      {"train.iters", "command line: train.iters is not section.key=value"},
      {"=3", "command line: =3 is not section.key=value"},
      {"iters=3", "command line: iters=3: \"iters\" is not a section but a key; write it as train.iters"},
      {"train=3", "command line: train=3: only single keys can be set here"},
      {"trian.iters=3", "command line: trian.iters=3: \"trian\" is not a section; the nearest is train"},
      {"train.itres=3", "command line: train.itres=3: train.itres is not a key; the nearest is train.iters"},
      {"data.train=[a,", "command line: data.train=[a,: not valid YAML"},
      {"attention.params.windw=3",
       "windw=3: attention.variant=causal takes no parameter attention.params.windw"},
      {"optimizer.lr=1e-5",
       "command line: optimizer.lr=1e-5: optimizer.min_lr=0.001 is above optimizer.lr=1e-05"},
      {"parallel.zero=3", "command line: parallel.zero=3: parallel.zero=3 is not available yet"},
      {"model.name=\"a\nb\"z", "command line: model.name=\"a?b\"z: not valid YAML"},
  };
  const char *path = fx_temp_file(fx_temp_dir(), "lr.yaml", "optimizer: {min_lr: 0.001}\n");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_config *cfg = NULL;
    CHECK_MSG(fx_config_load(path, &rows[i].override, 1, &cfg) == FX_ERR_CONFIG, "%s was accepted",
              rows[i].override);
    CHECK_HAS(fx_error_text(), rows[i].says);
    CHECK(cfg == NULL);
  }
}

static void check_round_trip(const fx_config *cfg, const char *what) {
  fx_config *again = NULL;
  char *first = fx_config_print(cfg);
  if (first && CHECK_OK(fx_config_parse(first, what, &again))) {
    char *second = fx_config_print(again);
    CHECK_MSG(second && strcmp(first, second) == 0, "%s: expected\n%s\ngot\n%s", what, first,
              second ? second : "");
    free(second);
  }
  /* every key is there */
  for (int i = 0; first && i < fx_schema_count; i++) {
    char line[100];
    snprintf(line, sizeof line, "\n  %s: ", fx_schema[i].name);
    CHECK_HAS(first, line);
  }
  free(first);
  fx_config_destroy(again);
}

static void shipped_files(void) {
  static const char *const files[] = {"configs/quickstart.yaml", "configs/shakespeare_char.yaml",
                                      "configs/models/llama-tiny.yaml", "configs/models/gpt2-124m.yaml"};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    fx_config *cfg = NULL;
    if (CHECK_OK(fx_config_load(fx_source_path(files[i]), NULL, 0, &cfg))) check_round_trip(cfg, files[i]);
    fx_config_destroy(cfg);
  }
  fx_config *cfg = NULL;
  if (CHECK_OK(fx_config_load(fx_source_path(files[1]), NULL, 0, &cfg))) {
    CHECK_INT(cfg->model.activation, FX_MODEL_ACTIVATION_GELU);
    CHECK_INT(cfg->model.intermediate_size, 512);
    CHECK(cfg->optimizer.betas[1] == 0.99);
    CHECK_OK(fx_config_check_train(cfg));
  }
  fx_config_destroy(cfg);
}

/* Values that a lossy printer would change. */
static void round_trip_of_hard_values(void) {
  static const char text[] =
      "model: {name: \"tab\\t quote\\\" back\\\\ nel\\x85 sep\\u2028 caf\\u00e9 \\U0001F600 bell\\a\", "
      "norm_eps: "
      "1.2345678901234567e-7, rope_theta: 123456789012.125, initializer_range: 0.1000000000000000055511}\n"
      "attention: {variant: sliding_window, params: {window: 999999937}}\n"
      "data: {train: [\"true\", \"1.5\", \"a, b\", \"#x\", \"\\n\", auto], valid: one.txt}\n"
      "optimizer: {lr: 0.30000000000000004, min_lr: 4.9406564584124654e-324, betas: [0.9999999999999999, "
      "0]}\n"
      "train: {seed: 9007199254740992}\nruntime: {threads: 3}\n";
  fx_config *cfg = NULL, *again = NULL;
  if (!CHECK_OK(fx_config_parse(text, "hard", &cfg))) return;
  check_round_trip(cfg, "hard");
  char *printed = fx_config_print(cfg);
  if (CHECK_OK(fx_config_parse(printed, "again", &again))) {
    CHECK_STR(again->model.name, cfg->model.name);
    CHECK_STR(again->model.name,
              "tab\t quote\" back\\ nel\xC2\x85 sep\xE2\x80\xA8 caf\xC3\xA9 \xF0\x9F\x98\x80 bell\a");
    CHECK(again->model.norm_eps == 1.2345678901234567e-7 && again->model.rope_theta == 123456789012.125);
    CHECK(again->optimizer.lr == 0.1 + 0.2 && again->optimizer.min_lr == 4.9406564584124654e-324);
    CHECK(again->optimizer.betas[0] == 0.9999999999999999);
    CHECK_INT(again->train.seed, 9007199254740992);
    CHECK_INT(again->data.train.count, 6);
    CHECK_STR(again->data.train.items[4], "\n");
    CHECK_INT(again->data.valid.count, 1);
    CHECK(fx_config_attention_param(again, "window", 0) == 999999937);
  }
  CHECK_HAS(printed, "initializer_range: 0.1\n"); /* shortest */
  CHECK_HAS(printed, "lr: 0.30000000000000004\n");
  CHECK_HAS(printed, "eps: 1.0e-08\n");
  free(printed);
  fx_config_destroy(again);
  fx_config_destroy(cfg);
}

static void ranks(void) {
  fx_config *cfg = NULL;
  if (!CHECK_OK(fx_config_parse("train:\n  global_batch_size: 12\n  micro_batch_size: 2\n", "x.yaml", &cfg)))
    return;
  CHECK_OK(fx_config_check_ranks(cfg, 1));
  CHECK_OK(fx_config_check_ranks(cfg, 3));
  CHECK_STATUS(fx_config_check_ranks(cfg, 4), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(),
            "x.yaml:2:22: train.global_batch_size=12 is not a multiple of train.micro_batch_size=2 x 4 "
            "data ranks; set it to a multiple of 8");
  cfg->parallel.tensor = 2;
  CHECK_OK(fx_config_check_ranks(cfg, 4));
  CHECK_STATUS(fx_config_check_ranks(cfg, 3), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "3 ranks do not divide into parallel.tensor=2 x parallel.context=1");
  cfg->model.vocab_size = 255;
  cfg->data.train.count = 1;
  CHECK_STATUS(fx_config_check_train(cfg), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "model.vocab_size=255 is below the 256 ids of data.tokenizer=byte");
  cfg->data.train.count = 0;
  fx_config_destroy(cfg);
}

/* The rows themselves: names are unique, sections known, defaults of both families readable. */
static void schema_is_sound(void) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&text, &bytes);
  fx_config_help(stream);
  fclose(stream);
  for (int i = 0; i < fx_schema_count; i++) {
    const fx_key *key = &fx_schema[i];
    char line[100];
    CHECK_MSG(fx_schema_find(key->section, key->name) == key, "%s.%s is there twice", key->section,
              key->name);
    CHECK_MSG(fx_schema_is_section(key->section), "%s is not a section", key->section);
    CHECK_MSG(key->help && key->help[0], "%s.%s has no help", key->section, key->name);
    snprintf(line, sizeof line, "\n  %s ", key->name);
    CHECK_HAS(text, line);
  }
  free(text);
}

static const fx_test tests[] = {{"unknown, misplaced and repeated names", names},
                                {"shapes and YAML syntax", shapes_and_syntax},
                                {"types and ranges", types_and_ranges},
                                {"relations between keys", relations},
                                {"defaults and auto", defaults},
                                {"includes and overrides", includes_and_overrides},
                                {"errors of includes", include_errors},
                                {"errors of overrides", override_errors},
                                {"shipped files round trip", shipped_files},
                                {"hard values round trip", round_trip_of_hard_values},
                                {"checks for ranks and training", ranks},
                                {"the schema is sound", schema_is_sound}};
FX_TEST_MAIN("config", tests)
