/* SPDX-License-Identifier: Apache-2.0 */
/* Content hashes (XXH3 of the xxHash library): plan keys, ledgers, checkpoint fragments. Not cryptographic.
 */
#ifndef FX_DYNAMO_RT_BASE_HASH_H
#define FX_DYNAMO_RT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_hash128 {
  uint64_t low, high;
} fx_hash128;

typedef struct fx_hasher fx_hasher; /* a running XXH3-128 */

uint64_t fx_hash64(const void *data, size_t bytes, uint64_t seed);
uint64_t fx_hash64_text(const char *text);
fx_hash128 fx_hash128_of(const void *data, size_t bytes);
/* 32 lower-case hex digits, high word first (the canonical XXH128 form), and a final NUL. */
void fx_hash128_hex(fx_hash128 hash, char hex[33]);

fx_hasher *fx_hasher_create(void); /* NULL when out of memory */
void fx_hasher_add(fx_hasher *hasher, const void *data, size_t bytes);
fx_hash128 fx_hasher_get(const fx_hasher *hasher);
void fx_hasher_destroy(fx_hasher *hasher);

#ifdef __cplusplus
}
#endif
#endif
