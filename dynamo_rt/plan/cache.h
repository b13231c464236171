/* SPDX-License-Identifier: Apache-2.0 */
/* Guards and the in-memory plan cache.
 *
 * A plan is valid for one *key*: a packed record of everything its kernels and schedule were built from. Data
 * never is in it (that is what runtime inputs are for). Looking a key up is a hash and a memcmp; a miss names
 * the first field that differs from the closest plan, so that an unexpected recapture explains itself. A call
 * site and phase holds at most FX_PLANS_PER_SITE plans; one more is an error that lists why each was made. */
#ifndef FX_DYNAMO_RT_PLAN_CACHE_H
#define FX_DYNAMO_RT_PLAN_CACHE_H

#include "dynamo_rt/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_PLANS_PER_SITE = 8 };

/* X(field, text): all are 64-bit; texts are hashed (fx_hash64_text). */
#define FX_PLAN_KEY_FIELDS(X)     \
  X(site, "call site")            \
  X(phase, "phase")               \
  X(batch, "micro-batch size")    \
  X(length, "sequence length")    \
  X(dtype, "compute dtype")       \
  X(variant, "attention variant") \
  X(capacity, "capacity")         \
  X(hops, "hops")                 \
  X(config, "configuration")      \
  X(topology, "topology")         \
  X(threads, "threads")           \
  X(isa, "instruction set")       \
  X(mode, "execution mode")

typedef struct fx_plan_key {
#define FX_PLAN_KEY_FIELD(name, text) uint64_t name;
  FX_PLAN_KEY_FIELDS(FX_PLAN_KEY_FIELD)
#undef FX_PLAN_KEY_FIELD
} fx_plan_key;

typedef struct fx_plan_cache fx_plan_cache;

fx_status fx_plan_cache_create(fx_plan_cache **out);
void fx_plan_cache_destroy(fx_plan_cache *cache); /* with its plans; NULL is fine */
/* The plan of `key`, or NULL; then *reason (static storage of the cache, valid until the next call) says
 * which field differs from the nearest plan of the same site: "sequence length 64 -> 128", or "no plan yet".
 */
fx_plan *fx_plan_cache_find(fx_plan_cache *cache, const fx_plan_key *key, const char **reason);
/* Takes the plan. FX_ERR_GRAPH with the list of reasons when its site and phase are full (the plan is
 * destroyed). */
fx_status fx_plan_cache_add(fx_plan_cache *cache, const fx_plan_key *key, fx_plan *plan);
int64_t fx_plan_cache_hits(const fx_plan_cache *cache);
int64_t fx_plan_cache_misses(const fx_plan_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
