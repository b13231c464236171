/* SPDX-License-Identifier: Apache-2.0 */
/* The attention variants of configs/attention, compiled into the program by embed.cmake: nothing is
 * searched for at run time. Private to core/config. */
#ifndef FX_CORE_CONFIG_BUILTIN_H
#define FX_CORE_CONFIG_BUILTIN_H

#include <stddef.h>

typedef struct fx_builtin_variant {
  const char *name; /* of the file, without .yaml */
  const char *text; /* its contents, NUL-terminated */
  size_t bytes;
} fx_builtin_variant;

extern const fx_builtin_variant fx_builtin_variants[]; /* by name */
extern const int fx_builtin_variants_count;

#endif
