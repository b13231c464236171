/* SPDX-License-Identifier: Apache-2.0 */
/* Text from a checkpoint: its configuration, its weights (nothing else of it is read) and one recorded
 * forward over a window of train.seq_length tokens, replayed for every token.
 *
 * The window holds the last seq_length tokens of the text as one document with positions from 0, as a
 * training sample does. Masks are causal, so what lies behind the last token of a short text is never seen; a
 * variant that looks ahead is refused. One process. */
#ifndef FX_CORE_GENERATE_GENERATOR_H
#define FX_CORE_GENERATE_GENERATOR_H

#include <stdbool.h>

#include "core/config/config.h"
#include "core/generate/draw.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_generator fx_generator;

/* path: a step, or a checkpoint directory, which stands for its newest step. threads: of a CPU, 0 for all
 * processors. device: whatever the model was trained on. FX_ERR_CHECKPOINT: none there, or damaged.
 * FX_ERR_UNSUPPORTED: attention that looks ahead. */
fx_status fx_generator_create(const char *path, int threads, fx_runtime_device device, fx_generator **out);
void fx_generator_destroy(fx_generator *generator); /* NULL is fine */

/* Borrowed for the generator's life. */
const char *fx_generator_path(const fx_generator *generator); /* of the step */
const fx_config *fx_generator_config(const fx_generator *generator);

/* Logits of the token after tokens [count >= 1], of which the last seq_length count. *logits: [vocab_size],
 * borrowed until the next call. FX_ERR_DATA: a token outside the vocabulary. */
fx_status fx_generator_logits(fx_generator *generator, const int32_t *tokens, int64_t count,
                              const float **logits);

/* Takes one generated token's text; false ends the generation. */
typedef bool (*fx_generator_sink)(void *ctx, int32_t token, const char *text, size_t bytes);

/* Draws up to `count` tokens after `prompt` (bytes, not NUL-terminated) and hands each to the sink as soon as
 * it is known. An empty prompt starts from the tokenizer's end of document, or from a newline where it has
 * none; that token is not handed out. *drawn: how many the sink got; fewer than count after an end of
 * document. */
fx_status fx_generator_run(fx_generator *generator, const char *prompt, size_t prompt_bytes, int64_t count,
                           const fx_draw_options *options, fx_generator_sink sink, void *ctx, int64_t *drawn);

#ifdef __cplusplus
}
#endif
#endif
