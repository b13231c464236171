/* SPDX-License-Identifier: Apache-2.0 */
/* Where to cut a block of positions so that intervals over its parts are tight: `q / 1000` and `q % 1000`
 * jump at multiples of 1000, and positions jump between segments. A block becomes four quarters, cut there
 * first and in the middle of the longest else; a quarter becomes four equal pieces.
 *
 * Must not know: tiles, intervals. Private to attention/mask. */
#ifndef FX_ATTENTION_MASK_CUTS_H
#define FX_ATTENTION_MASK_CUTS_H

#include "attention/lang/expr.h"
#include "attention/mask/positions.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_CUT_PARTS = 4, FX_CUT_MAX_RULES = 4 };

/* Jumps where position + offset is a multiple of the divisor. */
typedef struct fx_cut_rule {
  int32_t divisor, offset;
} fx_cut_rule;
typedef struct fx_cut_rules {
  int32_t count;
  fx_cut_rule rule[FX_CUT_MAX_RULES];
} fx_cut_rules;

/* Jumps that nodes 0..last, of those needed, have along `var` (q or kv). */
void fx_cut_rules_find(const fx_ex_pool *pool, const bool *needed, fx_ex last, fx_ex_var var,
                       fx_cut_rules *rules);

typedef struct fx_cuts {
  int64_t at[FX_CUT_PARTS + 1]; /* quarter i is [at[i], at[i + 1]), empty only in blocks shorter than 4 */
  uint32_t pieces;              /* bit 4 * quarter + piece: it is not empty */
  int64_t jump; /* the only place where something jumps; at[0] where there is none or are several */
} fx_cuts;

/* Of [from, to), from < to. */
void fx_cuts_make(const fx_cut_rules *rules, const fx_positions *positions, int64_t from, int64_t to,
                  fx_cuts *cuts);

typedef struct fx_span {
  int64_t from, to;
} fx_span;

static inline fx_span fx_cut_quarter(const fx_cuts *cuts, int quarter) {
  return (fx_span){cuts->at[quarter], cuts->at[quarter + 1]};
}
/* number: 4 * quarter + piece */
static inline fx_span fx_cut_piece(const fx_cuts *cuts, int number) {
  fx_span whole = fx_cut_quarter(cuts, number / FX_CUT_PARTS);
  int64_t size = (whole.to - whole.from + FX_CUT_PARTS - 1) / FX_CUT_PARTS;
  int64_t from = whole.from + number % FX_CUT_PARTS * size, to = from + size;
  return (fx_span){from < whole.to ? from : whole.to, to < whole.to ? to : whole.to};
}
static inline bool fx_span_exists(fx_span span) {
  return span.from < span.to;
}

#ifdef __cplusplus
}
#endif
#endif
