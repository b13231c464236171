/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate as a function of the iteration; no state. */
#ifndef FX_CORE_TRAIN_SCHEDULE_H
#define FX_CORE_TRAIN_SCHEDULE_H

#include "core/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Linear warm-up to optimizer.lr over warmup_iters, then the decay to min_lr at decay_iters and min_lr from
 * there: cosine (Loshchilov and Hutter, arXiv:1608.03983), linear, constant (lr for ever), or WSD (constant,
 * then linear over the last wsd_decay_iters; Hu et al., arXiv:2404.06395). iteration counts from 0. */
double fx_learning_rate(const fx_config *config, int64_t iteration);

#ifdef __cplusplus
}
#endif
#endif
