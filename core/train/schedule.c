/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/schedule.h"

#include <math.h>

static double clamp01(double x) {
  return x < 0 ? 0 : (x > 1 ? 1 : x);
}

double fx_learning_rate(const fx_config *config, int64_t iteration) {
  const fx_config_schedule *s = &config->schedule;
  double lr = config->optimizer.lr, floor_lr = config->optimizer.min_lr;
  if (iteration < s->warmup_iters) return lr * (double)(iteration + 1) / (double)s->warmup_iters;
  double span = (double)(s->decay_iters - s->warmup_iters);
  double progress = span > 0 ? clamp01((double)(iteration - s->warmup_iters) / span) : 1.0;
  switch (s->decay) {
  case FX_SCHEDULE_DECAY_COSINE:
    return floor_lr + 0.5 * (lr - floor_lr) * (1.0 + cos(M_PI * progress));
  case FX_SCHEDULE_DECAY_LINEAR:
    return floor_lr + (lr - floor_lr) * (1.0 - progress);
  case FX_SCHEDULE_DECAY_WSD: {
    double begin = (double)(s->decay_iters - s->wsd_decay_iters), tail = (double)s->wsd_decay_iters;
    double late =
        tail > 0 ? clamp01(((double)iteration - begin) / tail) : (double)(iteration >= s->decay_iters);
    return lr + (floor_lr - lr) * late;
  }
  case FX_SCHEDULE_DECAY_CONSTANT:
    break;
  }
  return lr;
}
