/* SPDX-License-Identifier: Apache-2.0 */
/* The attention section as descriptions for attention/variant/build.h: which keys a variant may have, what
 * its names refer to, and which layers are of one kind. Private to core/config. */
#ifndef FX_CORE_CONFIG_SPECS_H
#define FX_CORE_CONFIG_SPECS_H

#include "attention/variant/build.h"
#include "core/config/config.h"
#include "core/config/tree.h"

typedef struct fx_specs fx_specs;

/* The descriptions borrow from cfg and live until fx_specs_close. */
fx_status fx_specs_open(const fx_config *cfg, fx_specs **out);
void fx_specs_close(fx_specs *specs);

/* What the layers of a kind do. FX_ERR_CONFIG names the place of a key that does not exist, a name that
 * nothing has, a value of another shape. */
fx_status fx_specs_of_kind(fx_specs *specs, int32_t kind, const fx_variant_spec **out);

/* Puts the contents of files that are named as variants into attention.variants, under the file's name, so
 * that the configuration needs no other file from then on. */
fx_status fx_specs_take_files(fx_config *cfg);

/* Builds every kind for the model's heads and train.seq_length: what is wrong is said while loading. Warnings
 * go to cfg->warnings. */
fx_status fx_specs_check(fx_config *cfg);

/* Shared by specs.c and spec_parts.c. */
void *fx_specs_alloc(fx_specs *specs, size_t count,
                     size_t size); /* zeroed, freed with specs; NULL with a sentence */
fx_ex_text fx_specs_text(const fx_tree *tree);
fx_status fx_specs_params(fx_specs *specs, const fx_tree *tree, fx_variant_spec *spec);
fx_status fx_specs_buffers(fx_specs *specs, const fx_tree *tree, fx_variant_spec *spec);
/* "x is not a key of a buffer; the nearest is y". keys: "a|b|c" */
fx_status fx_specs_unknown_key(const fx_tree *tree, const char *what, const char *keys);

#endif
