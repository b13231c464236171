/* SPDX-License-Identifier: Apache-2.0 */
/* Variants from texts: a plain description, borrowed, and what is made of it for a model of H heads and
 * sequences of T positions. Where descriptions come from (YAML, a table in C) is the caller's business.
 *
 * Names. A text sees the parameters and buffers of its own spec and the inputs of every batch (inputs.h).
 * What a spec refers to keeps its own names; but a parameter or a buffer of the referring spec replaces the
 * one of the same name below it, so that {window: 64} beside {all: [sliding_window, document]} sets the
 * window. A buffer's shape is made of H, T, T_kv and the int parameters of the spec that declares it. */
#ifndef FX_ATTENTION_VARIANT_BUILD_H
#define FX_ATTENTION_VARIANT_BUILD_H

#include "attention/lang/parser.h"
#include "attention/variant/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_variant_spec fx_variant_spec;

typedef enum fx_mask_kind {
  FX_MASK_TEXT, /* a condition */
  FX_MASK_SPEC, /* the mask of another spec */
  FX_MASK_ALL,  /* && of the parts; of none: true */
  FX_MASK_ANY,  /* || of the parts; of none: false */
  FX_MASK_NOT   /* of its one part */
} fx_mask_kind;

typedef struct fx_mask_tree {
  fx_mask_kind kind;
  fx_ex_text text;             /* TEXT; elsewhere only its place counts */
  const fx_variant_spec *spec; /* SPEC */
  const struct fx_mask_tree *part;
  int32_t num_parts;
} fx_mask_tree;

typedef struct fx_score_part {
  fx_ex_text text;             /* of a score over the score so far; spec: only its place counts */
  const fx_variant_spec *spec; /* or all scores of another spec */
} fx_score_part;

typedef struct fx_param_spec {
  char name[32];
  bool is_int;
  bool has_value;      /* false: the user has to give one */
  double value;        /* ints exactly */
  double min, max;     /* inclusive; 0, 0: no limits */
  const char *example; /* what a sentence proposes as its value; may be NULL */
  fx_ex_text at;       /* of the value */
} fx_param_spec;

typedef enum fx_buffer_kind {
  FX_BUFFER_INPUT,      /* ints or floats of the batch, per sample */
  FX_BUFFER_VALUES,     /* a constant: `values`, row-major */
  FX_BUFFER_EXPRESSION, /* a constant: `expression` over the indices i, j, k */
  FX_BUFFER_LEARNABLE
} fx_buffer_kind;

typedef struct fx_buffer_spec {
  char name[32];
  fx_buffer_kind kind;
  fx_ex_type type;
  int32_t ndim;
  fx_ex_text shape[3]; /* ints over H, T, T_kv and int parameters */
  const double *values;
  int64_t num_values;
  fx_ex_text expression;
  fx_table_init init;
  float init_value;
  bool weight_decay;
  bool has_range;
  fx_ex_text lo, hi; /* of an INPUT's ints, as texts like `shape` */
  bool monotone;     /* an INPUT's promise */
  fx_ex_text at;
} fx_buffer_spec;

struct fx_variant_spec {
  const char *name;
  const char *title;          /* in messages; NULL: the name */
  const char *path;           /* where its parameters are set: "attention", for "attention.params.window" */
  const fx_mask_tree *mask;   /* NULL: everything is visible */
  const fx_score_part *score; /* applied in order */
  int32_t num_scores;
  const fx_param_spec *param;
  int32_t num_params;
  const fx_buffer_spec *buffer;
  int32_t num_buffers;
  bool sinks;
  fx_ex_text at; /* where the variant was chosen */
};

typedef struct fx_variant_warnings {
  void (*warn)(void *self, const char *sentence);
  void *self;
} fx_variant_warnings;

/* warnings may be NULL. FX_ERR_CONFIG: a sentence that starts at the place of what is wrong. */
fx_status fx_variant_build(const fx_variant_spec *spec, const fx_ex_ranges *ranges,
                           const fx_variant_warnings *warnings, fx_variant **out);

#ifdef __cplusplus
}
#endif
#endif
