/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct fx_hasher {
  XXH3_state_t *state;
};

uint64_t fx_hash64(const void *data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t fx_hash64_text(const char *text) {
  return fx_hash64(text, strlen(text), 0);
}

static fx_hash128 from_xxh(XXH128_hash_t hash) {
  return (fx_hash128){hash.low64, hash.high64};
}

fx_hash128 fx_hash128_of(const void *data, size_t bytes) {
  return from_xxh(XXH3_128bits(data, bytes));
}

void fx_hash128_hex(fx_hash128 hash, char hex[33]) {
  snprintf(hex, 33, "%016llx%016llx", (unsigned long long)hash.high, (unsigned long long)hash.low);
}

fx_hasher *fx_hasher_create(void) {
  fx_hasher *hasher = malloc(sizeof *hasher);
  if (!hasher) return NULL;
  hasher->state = XXH3_createState();
  if (!hasher->state) {
    free(hasher);
    return NULL;
  }
  XXH3_128bits_reset(hasher->state);
  return hasher;
}

void fx_hasher_add(fx_hasher *hasher, const void *data, size_t bytes) {
  XXH3_128bits_update(hasher->state, data, bytes);
}

fx_hash128 fx_hasher_get(const fx_hasher *hasher) {
  return from_xxh(XXH3_128bits_digest(hasher->state));
}

void fx_hasher_destroy(fx_hasher *hasher) {
  if (!hasher) return;
  XXH3_freeState(hasher->state);
  free(hasher);
}
