/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of pieces: intervals of keys [lo, hi) whose ends are terms over the row, each under guards
 * (conditions on the row). What a mask becomes while it is recognised. Private to attention/mask. */
#ifndef FX_ATTENTION_MASK_PIECES_H
#define FX_ATTENTION_MASK_PIECES_H

#include "attention/mask/bound.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FX_PIECE_UNBOUNDED = -2, /* an end that reaches the end of the keys */
  FX_PIECES_MAX = 16,
  FX_PIECE_GUARDS = 6
};

/* A condition on the row (0 or 1), or its opposite. */
typedef struct fx_guard {
  fx_bound condition;
  bool negated;
} fx_guard;

/* [lo, hi) where all guards hold; guards in the order of their conditions' numbers. */
typedef struct fx_piece {
  fx_bound lo, hi;
  int guards;
  fx_guard guard[FX_PIECE_GUARDS];
} fx_piece;

/* The union; `failed`: not of this form, or too long. Functions pass failures on. */
typedef struct fx_pieces {
  int count;
  bool failed;
  fx_piece v[FX_PIECES_MAX];
} fx_pieces;

extern const fx_pieces fx_pieces_failed, fx_pieces_nothing, fx_pieces_everything;

/* The greater of two ends lo, the lesser of two ends hi. */
fx_bound fx_piece_greater(fx_bounds *bounds, fx_bound a, fx_bound b);
fx_bound fx_piece_lesser(fx_bounds *bounds, fx_bound a, fx_bound b);

/* All keys of the rows where the condition holds (or does not); [lo, hi) in all rows. FX_BOUND_NONE fails. */
fx_pieces fx_pieces_guarded(fx_bounds *bounds, fx_bound condition, bool negated);
fx_pieces fx_pieces_between(fx_bounds *bounds, fx_bound lo, fx_bound hi);
/* Union and intersection, without what is provably empty. */
fx_pieces fx_pieces_either(fx_bounds *bounds, const fx_pieces *a, const fx_pieces *b);
fx_pieces fx_pieces_both(fx_bounds *bounds, const fx_pieces *a, const fx_pieces *b);
/* The same as few pieces without guards: those that share an end become one (with `across`, under different
 * guards too), and so do those whose guards exclude each other. */
fx_pieces fx_pieces_reduce(fx_bounds *bounds, fx_pieces all, bool across);

#ifdef __cplusplus
}
#endif
#endif
