/* SPDX-License-Identifier: Apache-2.0 */
/* The only door to HDF5. Three uses: lay out a file of contiguous datasets and learn where their bytes go
 * (the caller writes them itself), build an index file whose virtual datasets present tensors whole, and read
 * one dataset back.
 *
 * bfloat16 and float16 are stored as custom 16-bit floats, which h5py reads as float32 and float16. All data
 * is little-endian. Calls are serialised inside; HDF5 prints nothing and does nothing at process exit (after
 * a full disk its own cleanup may crash); its file locks are off (they fail on network file systems). */
#ifndef FX_DATA_H5_H5_FILE_H
#define FX_DATA_H5_H5_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_H5_DIMS = 5 };

typedef struct fx_h5_dataset {
  const char *path; /* "/group/name"; groups are made as needed */
  fx_dtype dtype;
  int ndim; /* 0: one element */
  int64_t dim[FX_H5_DIMS];
  int64_t offset; /* out, by fx_h5_layout: where its first byte lies in the file; -1 when it has no bytes */
} fx_h5_dataset;

/* A box of a tensor in another file. */
typedef struct fx_h5_source {
  int64_t tensor; /* index into the tensors */
  int64_t start[FX_H5_DIMS], count[FX_H5_DIMS];
  const char *file;    /* beside the index */
  const char *dataset; /* in that file, of shape count */
} fx_h5_source;

typedef enum fx_h5_kind { FX_H5_I64, FX_H5_F64, FX_H5_TEXT } fx_h5_kind;

/* A figure or short text kept as an attribute of a group. */
typedef struct fx_h5_attribute {
  const char *group, *name;
  fx_h5_kind kind;
  int64_t i64;
  double f64;
  const char *text;
} fx_h5_attribute;

/* A text dataset of any length. */
typedef struct fx_h5_text {
  const char *path, *text;
} fx_h5_text;

typedef struct fx_h5_index {
  const fx_h5_dataset *tensors;
  int64_t n_tensors;
  const fx_h5_source *sources;
  int64_t n_sources;
  const fx_h5_attribute *attributes;
  int64_t n_attributes;
  const fx_h5_text *texts;
  int64_t n_texts;
} fx_h5_index;

/* Creates (or truncates) a file with these datasets, allocated but not written, and closes it; fills in each
 * offset. The file has its full length (sparse). FX_ERR_IO with HDF5's reason. */
fx_status fx_h5_layout(const char *path, fx_h5_dataset *datasets, int64_t count);

/* Builds the index in memory, so that writing it is the caller's plain write. Elements of a float tensor that
 * no source covers, or whose source is missing, read as NaN. *image is malloc'ed. FX_ERR_DATA. */
fx_status fx_h5_index_build(const fx_h5_index *index, void **image, size_t *bytes);

/* Reads one dataset whole, virtual ones included; *info gets dtype and shape (path stays as given, offset
 * -1). *data is malloc'ed. For tests and inspection: HDF5 reports a missing source of a virtual dataset as
 * fill values with success. FX_ERR_DATA. */
fx_status fx_h5_read(const char *file, const char *dataset, fx_h5_dataset *info, void **data);

/* "1.10.8": of the library that is loaded, which may differ from the headers'. */
void fx_h5_version(char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
