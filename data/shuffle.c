/* SPDX-License-Identifier: Apache-2.0 */
#include "data/shuffle.h"

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/philox.h"

__extension__ typedef unsigned __int128 wide;

static int64_t draw(uint64_t seed, uint64_t site, int64_t index, int64_t epoch, int64_t bound) {
  fx_philox r = fx_philox_at(seed, site, (uint64_t)index, (uint64_t)epoch);
  uint64_t word = (uint64_t)r.word[1] << 32 | r.word[0];
  return (int64_t)((wide)word * (uint64_t)bound >> 64);
}

int64_t fx_draw_below(uint64_t seed, const char *site, int64_t index, int64_t epoch, int64_t bound) {
  return draw(seed, fx_hash64_text(site), index, epoch, bound);
}

void fx_shuffle(int64_t *order, int64_t count, uint64_t seed, const char *site, int64_t epoch) {
  uint64_t key = fx_hash64_text(site);
  for (int64_t i = 0; i < count; i++) order[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    int64_t j = draw(seed, key, i, epoch, i + 1), kept = order[i];
    order[i] = order[j];
    order[j] = kept;
  }
}
