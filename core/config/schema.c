/* SPDX-License-Identifier: Apache-2.0 */
/* The rows themselves, and nothing else: what a key means, not how YAML is read. Defaults are YAML text and
 * go through the same reader as a user's file, so a default that its own range refuses cannot ship. */
#include "core/config/schema.h"

#include "core/config/config.h"

#define AT(field) offsetof(fx_config, field)
#define BOOL(section, name) #section, #name, FX_KEY_BOOL, AT(section.name)
#define INT(section, name) #section, #name, FX_KEY_INT, AT(section.name)
#define FLOAT(section, name) #section, #name, FX_KEY_FLOAT, AT(section.name)
#define PAIR(section, name) #section, #name, FX_KEY_PAIR, AT(section.name)
#define ENUM(section, name) #section, #name, FX_KEY_ENUM, AT(section.name)
#define STRING(section, name) #section, #name, FX_KEY_STRING, AT(section.name)
#define STRINGS(section, name) #section, #name, FX_KEY_STRINGS, AT(section.name)
#define TREE(section, name) #section, #name, FX_KEY_TREE, AT(section.name)
#define RANGE(low, high) .min = (low), .max = (high)
#define AUTO .accepts_auto = true
#define GPT2(text) .initial_gpt2 = (text)
#define VALUES(words) .values = (words)
#define LENGTH(least) .min = (least), .max = 4096
#define HELP(text) .help = (text)

enum { MILLION = 1000000 };
static const double any_count = 1e12; /* iterations and the like */

const char *const fx_schema_sections[] = {"model",    "attention", "parallel",   "data",    "optimizer",
                                          "schedule", "train",     "checkpoint", "runtime", NULL};

/* clang-format off */
const fx_key fx_schema[] = {
  {STRING(model, name), "\"\"", HELP("a name for messages and checkpoints")},
  {ENUM(model, model_type), "llama", VALUES("llama|gpt2"), HELP("decides the Hugging Face tensor names and some defaults")},
  {INT(model, vocab_size), "256", RANGE(1, 16 * MILLION), HELP("token ids; padded to 128 x parallel.tensor inside")},
  {INT(model, hidden_size), "128", RANGE(1, MILLION), HELP("width of the residual stream")},
  {INT(model, num_hidden_layers), "4", RANGE(1, 10000), HELP("transformer blocks")},
  {INT(model, num_attention_heads), "4", RANGE(1, 10000), HELP("query heads")},
  {INT(model, num_key_value_heads), "auto", RANGE(1, 10000), AUTO, HELP("key and value heads; auto: num_attention_heads")},
  {INT(model, head_dim), "auto", RANGE(1, 256), AUTO, HELP("a multiple of 8; auto: hidden_size / num_attention_heads")},
  {INT(model, intermediate_size), "auto", RANGE(1, 10 * MILLION), AUTO, HELP("MLP width; auto: gpt2 4 x hidden_size, llama 8/3 x hidden_size rounded up to 32")},
  {INT(model, max_position_embeddings), "auto", RANGE(1, 1000 * MILLION), AUTO, HELP("longest sequence; auto: train.seq_length")},
  {ENUM(model, norm), "rmsnorm", GPT2("layernorm"), VALUES("rmsnorm|layernorm"), HELP("normalisation")},
  {FLOAT(model, norm_eps), "1.0e-5", RANGE(FX_ABOVE_0, 1), HELP("added to the variance")},
  {ENUM(model, activation), "swiglu", GPT2("gelu_tanh"), VALUES("swiglu|gelu|gelu_tanh"), HELP("MLP activation; gelu is the exact one")},
  {ENUM(model, position), "rope", GPT2("learned"), VALUES("rope|learned|none"), HELP("position encoding")},
  {FLOAT(model, rope_theta), "10000.0", RANGE(FX_ABOVE_0, 1e12), HELP("base of the rotary frequencies")},
  {BOOL(model, tie_word_embeddings), "false", GPT2("true"), HELP("the output projection is the embedding")},
  {FLOAT(model, dropout), "0.0", RANGE(0, FX_BELOW_1), HELP("probability of dropping")},
  {BOOL(model, bias), "false", HELP("biases in linear layers and layernorm")},
  {FLOAT(model, initializer_range), "0.02", RANGE(0, 10), HELP("standard deviation of initial weights")},

  {STRING(attention, variant), "causal", LENGTH(1), HELP("which queries see which keys and how scores change: a name, or a file that ends with .yaml")},
  {TREE(attention, mask), "null", HELP("in the place of the variant's mask: a condition over q, kv, h, a name, or {all: [...]}, {any: [...]}, {not: ...}")},
  {TREE(attention, score), "null", HELP("in the place of the variant's score: an expression over score, h, q, kv, a name, or a list applied in order")},
  {TREE(attention, params), "null", HELP("parameters of the variant, of what it refers to and of the texts here, e.g. {window: 1024}")},
  {TREE(attention, buffers), "null", HELP("tables of the texts here, e.g. {bias: {shape: [H, 32], learnable: true}}")},
  {ENUM(attention, sinks), "auto", VALUES("auto|true|false"), HELP("one learnable logit a head in the softmax's denominator; auto: as the variant says")},
  {TREE(attention, layers), "null", HELP("variants that layers take in turn, e.g. [local, local, global]; null: all as above")},
  {TREE(attention, variants), "null", HELP("variants defined here, by name, each with keys as above")},
  {INT(attention, turn_token), "10", RANGE(0, 16 * MILLION), HELP("the token that ends a turn, for turn and role in expressions")},

  {INT(parallel, tensor), "1", RANGE(1, 4096), HELP("ranks that share every layer")},
  {BOOL(parallel, sequence), "true", HELP("split the sequence between tensor ranks outside matrix products")},
  {INT(parallel, tensor_pieces), "1", RANGE(1, 8), HELP("pieces of the rows that travel apart between tensor ranks in feed-forward layers, one while another is computed; pays off where links are slow")},
  {BOOL(parallel, gather_again), "true", HELP("with parallel.sequence gather rows again in the backward instead of keeping them: less memory, more to travel")},
  {INT(parallel, context), "1", RANGE(1, 4096), HELP("ranks that share every sequence")},
  {ENUM(parallel, context_exchange), "auto", VALUES("auto|ring|allgather|alltoall"), HELP("how those ranks see each other's keys; auto: what costs least by an estimate; alltoall divides the heads")},
  {INT(parallel, zero), "0", RANGE(0, 3), HELP("ZeRO stage over data x context ranks: 1 shares masters, moments and summed gradients, 2 all gradients")},
  {INT(parallel, bucket_elements), "4194304", RANGE(1, 1 << 30), HELP("gradients that a collective over data x context ranks carries, about")},
  {INT(parallel, watchdog), "600", RANGE(0, 1 << 20), HELP("seconds that a collective may take before the job ends and says what every rank waits for; 0: any time")},

  {STRINGS(data, train), "[]", LENGTH(1), HELP("training files")},
  {STRINGS(data, valid), "[]", LENGTH(1), HELP("validation files; empty: valid_fraction of train")},
  {FLOAT(data, valid_fraction), "0.1", RANGE(0, FX_BELOW_1), HELP("share of train held out when valid is empty")},
  {ENUM(data, split), "documents", VALUES("documents|tokens"), HELP("what valid_fraction counts")},
  {ENUM(data, tokenizer), "byte", VALUES("byte"), HELP("byte: 256 ids, one a byte")},
  {ENUM(data, packing), "documents", VALUES("documents|none"), HELP("documents: whole documents side by side, none: one stream of tokens")},
  {INT(data, prefetch), "2", RANGE(1, 1024), HELP("batches prepared ahead")},

  {ENUM(optimizer, name), "adamw", VALUES("adamw"), HELP("optimizer")},
  {FLOAT(optimizer, lr), "1.0e-3", RANGE(0, 1000), HELP("peak learning rate")},
  {FLOAT(optimizer, min_lr), "1.0e-4", RANGE(0, 1000), HELP("learning rate after the decay")},
  {PAIR(optimizer, betas), "[0.9, 0.95]", RANGE(0, FX_BELOW_1), HELP("decay of the two moments")},
  {FLOAT(optimizer, eps), "1.0e-8", RANGE(FX_ABOVE_0, 1), HELP("added to the root of the second moment")},
  {FLOAT(optimizer, weight_decay), "0.1", RANGE(0, 1000), HELP("decoupled; not on norms, biases")},
  {FLOAT(optimizer, clip_grad), "1.0", RANGE(0, 1e9), HELP("largest global gradient norm; 0: off")},
  {BOOL(optimizer, stochastic_rounding), "false", HELP("round bfloat16 weights stochastically after each update, not to nearest")},

  {ENUM(schedule, decay), "cosine", VALUES("cosine|linear|constant|wsd"), HELP("shape of the learning rate after warm-up")},
  {INT(schedule, warmup_iters), "auto", RANGE(0, any_count), AUTO, HELP("linear warm-up; auto: 100, or a tenth of decay_iters when that is less")},
  {INT(schedule, decay_iters), "auto", RANGE(1, any_count), AUTO, HELP("iteration that reaches min_lr; auto: train.iters")},
  {INT(schedule, wsd_decay_iters), "auto", RANGE(0, any_count), AUTO, HELP("last iterations in which wsd decays; auto: a tenth of decay_iters")},

  {INT(train, iters), "2000", RANGE(1, any_count), HELP("optimizer steps, skipped ones included")},
  {INT(train, seq_length), "256", RANGE(1, 1000 * MILLION), HELP("tokens a sample")},
  {INT(train, micro_batch_size), "8", RANGE(1, MILLION), HELP("samples a data rank computes at once")},
  {INT(train, global_batch_size), "16", RANGE(1, 1000 * MILLION), HELP("samples a step, all ranks together")},
  {INT(train, seed), "1234", RANGE(0, 9007199254740992.0), HELP("of every random choice")},
  {INT(train, eval_interval), "200", RANGE(0, any_count), HELP("steps between evaluations; 0: never")},
  {INT(train, eval_iters), "20", RANGE(0, any_count), HELP("batches an evaluation; 0: the whole validation split")},
  {INT(train, log_interval), "10", RANGE(1, any_count), HELP("steps between log lines")},

  {STRING(checkpoint, dir), "runs/default", LENGTH(1), HELP("where steps and metrics.jsonl go")},
  {INT(checkpoint, interval), "500", RANGE(0, any_count), HELP("steps between checkpoints; 0: only at the end")},
  {INT(checkpoint, keep), "0", RANGE(0, MILLION), HELP("newest checkpoints kept; 0: all")},
  {BOOL(checkpoint, async), "true", HELP("write checkpoints beside training: 12 bytes a parameter more memory")},
  {STRING(checkpoint, resume), "auto", LENGTH(1), HELP("auto: the latest in dir, if any; none; or a path")},

  {ENUM(runtime, device), "auto", VALUES("auto|cpu|cuda"), HELP("where the model runs")},
  {ENUM(runtime, mode), "replay", VALUES("replay|eager"), HELP("replay the captured plan, or run node by node")},
  {ENUM(runtime, dtype), "auto", VALUES("auto|float32|bfloat16"), HELP("of activations and matrix products; auto: bfloat16 on GPUs, float32 on CPUs")},
  {BOOL(runtime, deterministic), "false", HELP("bitwise repeatable on GPUs too")},
  {BOOL(runtime, autotune), "true", HELP("GPUs: time several algorithms of each matrix product in the first step; not under deterministic")},
  {INT(runtime, threads), "auto", RANGE(1, 4096), AUTO, HELP("compute threads a rank; auto: the rank's cores")},
  {STRING(runtime, compiler), "cc", LENGTH(1), HELP("C compiler for attention variants, by name or path; none: interpret them")},
  {ENUM(runtime, log_level), "info", VALUES("debug|info|warn|error"), HELP("least severe line that is printed")},
};

/* clang-format on */

const int fx_schema_count = (int)(sizeof fx_schema / sizeof fx_schema[0]);
