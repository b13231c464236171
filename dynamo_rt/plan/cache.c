/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/plan/cache.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"

typedef struct entry {
  uint64_t hash;
  fx_plan_key key;
  fx_plan *plan;
  char reason[160]; /* why it was made */
} entry;

struct fx_plan_cache {
  entry *entries;
  int64_t count, capacity, hits, misses;
  char reason[160]; /* of the last miss */
};

static const char *const g_fields[] = {
#define FX_PLAN_KEY_TEXT(name, text) text,
    FX_PLAN_KEY_FIELDS(FX_PLAN_KEY_TEXT)
#undef FX_PLAN_KEY_TEXT
};
enum { NUM_FIELDS = sizeof g_fields / sizeof g_fields[0] };
_Static_assert(sizeof(fx_plan_key) == NUM_FIELDS * sizeof(uint64_t), "a plan key is a packed record");

fx_status fx_plan_cache_create(fx_plan_cache **out) {
  return fx_calloc(out, 1, sizeof(fx_plan_cache));
}

void fx_plan_cache_destroy(fx_plan_cache *cache) {
  if (!cache) return;
  for (int64_t i = 0; i < cache->count; i++) fx_plan_destroy(cache->entries[i].plan);
  free(cache->entries);
  free(cache);
}

static int differences(const fx_plan_key *a, const fx_plan_key *b, int *first) {
  const uint64_t *x = (const uint64_t *)(const void *)a, *y = (const uint64_t *)(const void *)b;
  int count = 0;
  for (int i = NUM_FIELDS - 1; i >= 0; i--) {
    if (x[i] == y[i]) continue;
    count++;
    *first = i;
  }
  return count;
}

static void explain(fx_plan_cache *cache, const fx_plan_key *key) {
  const entry *nearest = NULL;
  int fewest = NUM_FIELDS + 1, field = 0;
  for (int64_t i = 0; i < cache->count; i++) {
    int first = 0, count = differences(&cache->entries[i].key, key, &first);
    if (cache->entries[i].key.site != key->site || count >= fewest) continue;
    fewest = count;
    field = first;
    nearest = &cache->entries[i];
  }
  if (!nearest) {
    snprintf(cache->reason, sizeof cache->reason, "no plan yet");
    return;
  }
  uint64_t was = ((const uint64_t *)(const void *)&nearest->key)[field],
           is = ((const uint64_t *)(const void *)key)[field];
  if (was < 1u << 31 && is < 1u << 31)
    snprintf(cache->reason, sizeof cache->reason, "%s %llu -> %llu", g_fields[field], (unsigned long long)was,
             (unsigned long long)is);
  else
    snprintf(cache->reason, sizeof cache->reason, "%s changed", g_fields[field]);
}

fx_plan *fx_plan_cache_find(fx_plan_cache *cache, const fx_plan_key *key, const char **reason) {
  uint64_t hash = fx_hash64(key, sizeof *key, 0);
  for (int64_t i = 0; i < cache->count; i++)
    if (cache->entries[i].hash == hash && memcmp(&cache->entries[i].key, key, sizeof *key) == 0) {
      cache->hits++;
      return cache->entries[i].plan;
    }
  cache->misses++;
  explain(cache, key);
  if (reason) *reason = cache->reason;
  return NULL;
}

fx_status fx_plan_cache_add(fx_plan_cache *cache, const fx_plan_key *key, fx_plan *plan) {
  char reasons[1200] = "";
  int at_site = 0;
  for (int64_t i = 0; i < cache->count; i++) {
    if (cache->entries[i].key.site != key->site || cache->entries[i].key.phase != key->phase) continue;
    size_t used = strlen(reasons);
    snprintf(reasons + used, sizeof reasons - used, "%s%s", at_site ? "; " : "", cache->entries[i].reason);
    at_site++;
  }
  if (at_site >= FX_PLANS_PER_SITE) {
    fx_error(FX_ERR_GRAPH, "plan %s would be number %d at its call site, made because of: %s; now: %s",
             fx_plan_name(plan), at_site + 1, reasons, cache->reason);
    fx_plan_destroy(plan);
    return FX_ERR_GRAPH;
  }
  fx_status status = fx_grow(&cache->entries, &cache->capacity, cache->count + 1, sizeof *cache->entries);
  if (status != FX_OK) {
    fx_plan_destroy(plan);
    return status;
  }
  entry *fresh = &cache->entries[cache->count++];
  fresh->hash = fx_hash64(key, sizeof *key, 0);
  fresh->key = *key;
  fresh->plan = plan;
  memcpy(fresh->reason, cache->reason, sizeof fresh->reason);
  return FX_OK;
}

int64_t fx_plan_cache_hits(const fx_plan_cache *cache) {
  return cache->hits;
}
int64_t fx_plan_cache_misses(const fx_plan_cache *cache) {
  return cache->misses;
}
