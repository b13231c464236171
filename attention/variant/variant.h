/* SPDX-License-Identifier: Apache-2.0 */
/* A variant of attention: what a query sees and how its scores change, as expressions with their
 * declarations.
 *
 * Built from texts (YAML, by core/config) or by C code that makes nodes in the pool. Immutable afterwards,
 * and shared by the analysis (mask/), the tile functions (tile/), the op and the tools. */
#ifndef FX_ATTENTION_VARIANT_VARIANT_H
#define FX_ATTENTION_VARIANT_VARIANT_H

#include "attention/lang/expr.h"
#include "dynamo_rt/base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_VARIANT_MAX_TABLES = 4 };

/* A learnable table and, for every place where the score reads it, the derivative of the score by that read.
 */
typedef struct fx_variant_read {
  int32_t buffer;
  fx_ex load;  /* the LOAD node: its arguments are the indices */
  fx_ex slope; /* d score / d load, a float node */
} fx_variant_read;

/* A learnable table as a parameter of the model. */
typedef enum fx_table_init {
  FX_TABLE_INIT_ZEROS,
  FX_TABLE_INIT_NORMAL,  /* mean 0, standard deviation `value` */
  FX_TABLE_INIT_CONSTANT /* `value` */
} fx_table_init;

typedef struct fx_variant_table {
  int32_t buffer; /* its declaration has name and shape */
  fx_table_init init;
  float value;
  bool weight_decay;
} fx_variant_table;

typedef struct fx_variant {
  char name[64];
  fx_ex_pool *pool;
  fx_ex mask;        /* bool over h, q, kv; FX_EX_NONE: everything is visible */
  fx_ex score;       /* float over score, h, q, kv; FX_EX_NONE: the score is kept */
  fx_ex slope;       /* d score / d score; FX_EX_NONE where it is 1 everywhere */
  fx_ex mask_fault;  /* bool: an index of the mask leaves its buffer here; FX_EX_NONE: proven not to */
  fx_ex score_fault; /* the same of the score, asked where the mask is true only */
  bool guarded;      /* the score may be -inf or NaN, or its slope not finite: kernels select where P is 0 */
  bool sinks;        /* one learnable logit a head joins the softmax's denominator */
  int32_t num_reads;
  fx_variant_read *reads; /* of learnable tables, where the derivative is not 0 everywhere */
  int32_t num_tables;
  fx_variant_table tables[FX_VARIANT_MAX_TABLES]; /* that the score reads */
  fx_hash128
      hash;   /* of what kernels see: canonical expressions and declarations, not names or parameter values */
  char *text; /* the canonical form, parameters by value: what plan keys, checkpoints and people are given */
} fx_variant;

/* What a variant is made of; the rest of fx_variant follows from it. */
typedef struct fx_variant_parts {
  const char *name;
  fx_ex mask;  /* FX_EX_NONE: everything is visible */
  fx_ex score; /* FX_EX_NONE: the score is kept */
  bool sinks;
  const fx_variant_table *tables; /* learnable ones that are not listed start from zeros, without decay */
  int32_t num_tables;
} fx_variant_parts;

/* From nodes of `pool`, which the variant owns from then on (on failure it stays the caller's).
 * FX_ERR_CONFIG: the mask is no condition, or reads the score or a learnable table; the score is no number; a
 * learnable table is read in an index; more than FX_VARIANT_MAX_TABLES of them; the pool is full. */
fx_status fx_variant_create(fx_ex_pool *pool, const fx_variant_parts *parts, fx_variant **out);
void fx_variant_destroy(fx_variant *variant);

/* The rules that a mask, and a score, must keep by themselves: FX_ERR_CONFIG with the reason. */
fx_status fx_variant_check_mask(const fx_ex_pool *pool, fx_ex mask);
fx_status fx_variant_check_score(const fx_ex_pool *pool, fx_ex score);

#ifdef __cplusplus
}
#endif
#endif
