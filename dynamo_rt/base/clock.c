/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/clock.h"

enum { NS_A_SECOND = 1000000000 };

int64_t fx_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * NS_A_SECOND + now.tv_nsec;
}

struct timespec fx_time_after_ms(int ms) {
  int64_t ns = fx_now_ns() + (int64_t)ms * 1000000;
  return (struct timespec){.tv_sec = (time_t)(ns / NS_A_SECOND), .tv_nsec = (long)(ns % NS_A_SECOND)};
}
