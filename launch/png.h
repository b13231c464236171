/* SPDX-License-Identifier: Apache-2.0 */
/* Grey pictures as PNG files, through libpng. */
#ifndef FX_LAUNCH_PNG_H
#define FX_LAUNCH_PNG_H

#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* pixels[height][width], 0 black, 255 white. FX_ERR_IO: the file cannot be written; FX_ERR_MEMORY. */
fx_status fx_png_write(const char *path, int32_t width, int32_t height, const uint8_t *pixels);

#ifdef __cplusplus
}
#endif
#endif
