/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions as text, for people and for keys. */
#ifndef FX_ATTENTION_LANG_PRINT_H
#define FX_ATTENTION_LANG_PRINT_H

#include "attention/lang/expr.h"
#include "dynamo_rt/base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

/* malloc'ed text with as few parentheses as it takes, by the pool's names; fx_ex_parse in the same pool gives
 * the same node. NULL with a sentence when it would be longer than 1 MiB (nodes are shared, text is not),
 * nested deeper than 8192, or memory is short. */
char *fx_ex_print(const fx_ex_pool *pool, fx_ex node);

/* malloc'ed text that is equal exactly when kernels for these expressions are: the ranges, one line a buffer
 * and one an operation, in an order that does not depend on when nodes were made. Parameters and buffers are
 * known by number (kernels find them by it), not by name; parameter values and contents of tables are left
 * out. roots[i] may be FX_EX_NONE. Linear in the number of nodes. NULL with a sentence when memory is short.
 */
char *fx_ex_canonical(const fx_ex_pool *pool, const fx_ex *roots, int num_roots);

#ifdef __cplusplus
}
#endif
#endif
