/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a job compare their configurations before anything follows from them: a rank with another
 * clip_grad would train on with the same collectives, and wrongly. */
#ifndef FX_CORE_CONFIG_AGREE_H
#define FX_CORE_CONFIG_AGREE_H

#include "core/config/config.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compares every resolved key of all ranks, contents of variant files included, but for the few that may
 * differ by host (a table in agree.c). Collective over the control channel; one exchange of a digest when all
 * are alike. FX_ERR_DIVERGED: the sentence, the same on every rank, names the first key that differs, down to
 * the entry of a mapping, both ranks and both values. FX_ERR_COMM: a rank did not arrive within timeout_ms;
 * named. */
fx_status fx_config_agree(const fx_config *cfg, fx_control *control, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
