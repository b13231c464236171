/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock. */
#ifndef FX_DYNAMO_RT_BASE_CLOCK_H
#define FX_DYNAMO_RT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

int64_t fx_now_ns(void);
static inline int64_t fx_now_ms(void) {
  return fx_now_ns() / 1000000;
}

/* The time `ms` milliseconds from now, for waits on conditions that use this clock. */
struct timespec fx_time_after_ms(int ms);

#ifdef __cplusplus
}
#endif
#endif
