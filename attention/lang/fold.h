/* SPDX-License-Identifier: Apache-2.0 */
/* Constant folding and identities that hold bit for bit. Private to attention/lang. */
#ifndef FX_ATTENTION_LANG_FOLD_H
#define FX_ATTENTION_LANG_FOLD_H

#include "attention/lang/expr.h"

/* An operator node whose arguments have the right types: a constant, an argument, or a node of its own. */
fx_ex fx_ex_simplify(fx_ex_pool *pool, fx_ex_node node);

/* An operator applied to constants; types are those of the node. */
fx_ex_value fx_ex_evaluate(const fx_ex_node *node, const fx_ex_type arg_type[3], const fx_ex_value arg[3]);

#endif
