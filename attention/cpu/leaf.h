/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves: the inner loops of the CPU attention kernels, one table an instruction set.
 *
 * leaf_body.h holds their only text; leaf_avx512.c, leaf_avx2.c and leaf_portable.c compile it for one vector
 * width each. They are leaves so that the OpenMP regions that call them need no target attribute (an outlined
 * region does not inherit one).
 *
 * Score tiles are stored transposed, [keys][rows], so that a vector holds one key of several query rows: row
 * maximum, sum and limits are then lane-wise, and no product but the packing of Q needs a transposition.
 * Sizes along vectors are multiples of 8, pointers need no alignment. Not for use outside attention/cpu. */
#ifndef FX_ATTENTION_CPU_LEAF_H
#define FX_ATTENTION_CPU_LEAF_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/cpu/flash.h"

enum { FX_LEAF_GROUP = 32 }; /* query rows that softmax and gradient treat at once */

/* The rows of a group as vectors see them; arrays of FX_LEAF_GROUP. */
typedef struct fx_leaf_mask {
  const int32_t *lo, *hi; /* row r sees keys [lo, hi) */
  int32_t base;           /* key number of the tile's first key */
  const uint32_t *bits;   /* NULL, or instead: bit r of word n, row r sees the tile's key n */
} fx_leaf_mask;

typedef struct fx_leaf {
  const char *name;
  /* C[m][n] = A B, or C += A B when `add`. A(i, s) = a[i * a_row + s * a_step], where a_row or a_step is 1;
   * B [k][n] with rows b_row apart. Each element is one chain of fused multiply-adds in ascending s. */
  void (*gemm)(int m, int n, int k, const float *a, int64_t a_row, int64_t a_step, const float *b,
               int64_t b_row, float *c, int64_t c_row, bool add);
  /* For limits only (no bits): C[i] += sum of A(i, s) B[s] over the keys s of [0, k) that row i sees (mask
   * arrays of length m). Terms of other keys are skipped, not multiplied by zero: 0 * NaN is NaN. A(i, s) =
   * a[i + s * a_step]. */
  void (*gemm_masked)(int m, int n, int k, const float *a, int64_t a_step, const float *b, int64_t b_row,
                      float *c, int64_t c_row, const fx_leaf_mask *mask);
  /* One step of online softmax for a group: s [keys][group] base-2 scores become P = exp2(s - m'); m, l are
   * updated; alpha = exp2(m - m') is the factor earlier sums are multiplied by. mask NULL: all visible. */
  void (*softmax)(int keys, float *s, int64_t s_row, const fx_leaf_mask *mask, float *m, float *l,
                  float *alpha);
  /* For a group: s becomes P = exp2(s - lse2), dp becomes dS = P * (dp - delta), selected to 0 where P is. */
  void (*gradient)(int keys, float *s, float *dp, int64_t row, const fx_leaf_mask *mask, const float *lse2,
                   const float *delta);
  /* For a group: ds *= slope where p is not 0, else 0. */
  void (*slope)(int keys, const float *p, float *ds, int64_t row, const float *slope);
  /* out[r] = in[r] * factor[r] for rows of n; out may be in. */
  void (*scale_rows)(int rows, int n, const float *factor, const float *in, int64_t in_row, float *out,
                     int64_t out_row);
  /* out[r] = in[r] * factor */
  void (*copy_rows)(int rows, int n, float factor, const float *in, int64_t in_row, float *out,
                    int64_t out_row);
  /* The same from and to bfloat16 (upper halves of floats; rounded to nearest even, NaN stays NaN). */
  void (*widen_rows)(int rows, int n, float factor, const uint16_t *in, int64_t in_row, float *out,
                     int64_t out_row);
  void (*narrow_rows)(int rows, int n, float factor, const float *in, int64_t in_row, uint16_t *out,
                      int64_t out_row);
  /* out[c][r] = in[r][c], rows and n multiples of 4 */
  void (*transpose)(int rows, int n, const float *in, int64_t in_row, float *out, int64_t out_row);
  float (*dot)(int n, const float *a, const float *b);
} fx_leaf;

/* The table of an instruction set; NULL where this build or processor lacks it. AUTO never gives NULL. */
const fx_leaf *fx_leaf_get(fx_attention_isa isa);

/* One a file; NULL when it was compiled for another processor family. */
const fx_leaf *fx_leaf_avx512(void);
const fx_leaf *fx_leaf_avx2(void);
const fx_leaf *fx_leaf_portable(void);

#endif
