/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/png.h"

#include <errno.h>
#include <png.h>
#include <stdio.h>
#include <string.h>

fx_status fx_png_write(const char *path, int32_t width, int32_t height, const uint8_t *pixels) {
  png_image image;
  memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.width = (png_uint_32)width;
  image.height = (png_uint_32)height;
  image.format = PNG_FORMAT_GRAY;
  errno = 0;
  if (png_image_write_to_file(&image, path, 0, pixels, 0, NULL)) return FX_OK;
  int error = errno;
  png_image_free(&image);
  return fx_error(FX_ERR_IO, "%s: the picture cannot be written: %s", path,
                  error ? strerror(error) : image.message);
}
