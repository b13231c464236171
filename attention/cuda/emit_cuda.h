/* SPDX-License-Identifier: Apache-2.0 */
/* A variant as CUDA C: device functions of one pair (query, key) each.
 *
 *   bool  fx_mask(args, b, h, q, kv)
 *   float fx_score(args, b, h, q, kv, score)
 *   float fx_score_slope(args, b, h, q, kv, score, &slope)
 *   void  fx_tables(args, b, h, q, kv, score, df)      adds df * slope of every read to args->table_grad
 *   bool  fx_fault(args, b, h, q, kv, score)           an index leaves its buffer here
 *
 * and macros FX_HAS_MASK, FX_HAS_SCORE, FX_HAS_SLOPE, FX_HAS_TABLES, FX_HAS_FAULT of 0 or 1 that say which
 * there are. The operators' text is that of the CPU (lang/semantics.h), straight SSA; compiled with
 * --fmad=false and without fast-math the values are those of the interpreter, bit for bit. Float parameters
 * are read from args->uniform, ints are literals, constant tables are part of the text, loads clamp indices
 * that are not proven to stay inside.
 *
 * fx_tables adds with fp32 atomics: the sum's order, and so its last bits, differ from run to run. */
#ifndef FX_ATTENTION_CUDA_EMIT_CUDA_H
#define FX_ATTENTION_CUDA_EMIT_CUDA_H

#include "attention/variant/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *source is a malloc'ed text without comments, equal where kernels are; it uses fx_flash_args and the types
 * of <stdint.h>. variant NULL: all macros 0. FX_ERR_MEMORY. */
fx_status fx_emit_cuda(const fx_variant *variant, char **source);

#ifdef __cplusplus
}
#endif
#endif
