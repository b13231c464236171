/* SPDX-License-Identifier: Apache-2.0 */
/* Handles are closed by the `scope` that collected them, so that a failing call leaks nothing whatever the
 * point; a scope that holds one failed call makes every later one a no-op, and the functions below read as
 * the list of what they build. */
#include "data/h5/h5_file.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hdf5.h>

#include "dynamo_rt/base/memory.h"

enum { REASON_BYTES = 256, ALIGN_FROM = 1 << 16, ALIGN_TO = 4096, IMAGE_STEP = 1 << 20 };

/* HDF5 keeps process-wide state and may be built without its own lock. */
static pthread_mutex_t g_h5_lock = PTHREAD_MUTEX_INITIALIZER;

static void enter(void) {
  pthread_mutex_lock(&g_h5_lock);
  H5dont_atexit();                       /* only effective before the first other call; harmless later */
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* a setting of the calling thread in a thread-safe build */
}

static void leave(void) {
  pthread_mutex_unlock(&g_h5_lock);
}

/* ---- why a call failed ---- */

static herr_t first_reason(unsigned n, const H5E_error2_t *error, void *reason) {
  static const char mark[] = "error message = '";
  if (n > 0) return 0; /* the innermost one knows best */
  const char *text = error->desc ? error->desc : "no reason given";
  const char *inner = strstr(text, mark);
  if (inner) {
    inner += sizeof mark - 1;
    const char *end = strchr(inner, '\'');
    snprintf(reason, REASON_BYTES, "%.*s", end ? (int)(end - inner) : REASON_BYTES - 1, inner);
  } else {
    snprintf(reason, REASON_BYTES, "%s", text);
  }
  return 0;
}

static void read_reason(char reason[REASON_BYTES]) {
  snprintf(reason, REASON_BYTES, "no reason given");
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_reason, reason);
}

/* ---- handles ---- */

typedef struct scope {
  hid_t ids[8];
  int count;
  bool failed;
  char reason[REASON_BYTES];
} scope;

static void scope_fail(scope *s) {
  if (s->failed) return;
  s->failed = true;
  read_reason(s->reason);
}

/* Takes over a fresh handle; negative: the call failed. */
static hid_t hold(scope *s, hid_t id) {
  if (id < 0) {
    scope_fail(s);
    return id;
  }
  FX_ASSERT(s->count < (int)(sizeof s->ids / sizeof s->ids[0]));
  s->ids[s->count++] = id;
  return id;
}

static bool ok(scope *s, herr_t result) {
  if (result < 0) scope_fail(s);
  return !s->failed;
}

static void close_id(hid_t id) {
  switch (H5Iget_type(id)) {
  case H5I_DATATYPE:
    H5Tclose(id);
    break;
  case H5I_DATASPACE:
    H5Sclose(id);
    break;
  case H5I_DATASET:
    H5Dclose(id);
    break;
  case H5I_GROUP:
    H5Gclose(id);
    break;
  case H5I_ATTR:
    H5Aclose(id);
    break;
  case H5I_FILE:
    H5Fclose(id);
    break;
  case H5I_GENPROP_LST:
    H5Pclose(id);
    break;
  default:
    break;
  }
}

/* Closes what was taken after the first `keep` handles, latest first. */
static void scope_close(scope *s, int keep) {
  while (s->count > keep) close_id(s->ids[--s->count]);
}

/* ---- element types ---- */

/* A copy of the 32-bit float shrunk to 16 bits: sign at 15, exponent above the mantissa. */
static hid_t half_type(size_t exponent, size_t mantissa, size_t bias) {
  hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  if (type < 0) return type;
  if (H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa) < 0 || H5Tset_size(type, 2) < 0 ||
      H5Tset_precision(type, 16) < 0 || H5Tset_ebias(type, bias) < 0) {
    H5Tclose(type);
    return H5I_INVALID_HID;
  }
  return type;
}

static hid_t type_create(fx_dtype dtype) {
  switch (dtype) {
  case FX_F32:
    return H5Tcopy(H5T_IEEE_F32LE);
  case FX_F64:
    return H5Tcopy(H5T_IEEE_F64LE);
  case FX_I32:
    return H5Tcopy(H5T_STD_I32LE);
  case FX_I64:
    return H5Tcopy(H5T_STD_I64LE);
  case FX_U8:
    return H5Tcopy(H5T_STD_U8LE);
  case FX_BF16:
    return half_type(8, 7, 127);
  case FX_F16:
    return half_type(5, 10, 15);
  default:
    return H5I_INVALID_HID;
  }
}

/* FX_DTYPE_COUNT for a type that is none of ours. */
static fx_dtype dtype_of(hid_t type) {
  for (int i = 0; i < FX_DTYPE_COUNT; i++) {
    hid_t known = type_create((fx_dtype)i);
    bool same = known >= 0 && H5Tequal(known, type) > 0;
    if (known >= 0) H5Tclose(known);
    if (same) return (fx_dtype)i;
  }
  return FX_DTYPE_COUNT;
}

static bool set_nan_fill(scope *s, hid_t plist, hid_t type, fx_dtype dtype) {
  const float f32 = NAN;
  const double f64 = NAN;
  const uint16_t bf16 = 0x7FC0, f16 = 0x7E00;
  switch (dtype) {
  case FX_F32:
    return ok(s, H5Pset_fill_value(plist, type, &f32));
  case FX_F64:
    return ok(s, H5Pset_fill_value(plist, type, &f64));
  case FX_BF16:
    return ok(s, H5Pset_fill_value(plist, type, &bf16));
  case FX_F16:
    return ok(s, H5Pset_fill_value(plist, type, &f16));
  default:
    return true;
  }
}

/* ---- pieces of a file ---- */

static hid_t space_create(int ndim, const int64_t *dim) {
  hsize_t sizes[FX_H5_DIMS] = {0};
  for (int i = 0; i < ndim; i++) sizes[i] = (hsize_t)dim[i];
  return ndim == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(ndim, sizes, NULL);
}

static int64_t elements_of(int ndim, const int64_t *dim) {
  int64_t count = 1;
  for (int i = 0; i < ndim; i++) count *= dim[i];
  return count;
}

static hid_t access_plist(scope *s) {
  hid_t fapl = hold(s, H5Pcreate(H5P_FILE_ACCESS));
  if (s->failed) return fapl;
  /* Not V18: H5Fget_file_image of 1.10 clears a flag in its superblock and leaves the checksum stale. */
  ok(s, H5Pset_libver_bounds(fapl, H5F_LIBVER_EARLIEST, H5F_LIBVER_V110));
  ok(s, H5Pset_file_locking(fapl, false, true));
  ok(s, H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG));
  ok(s, H5Pset_alignment(fapl, ALIGN_FROM, ALIGN_TO));
  return fapl;
}

static hid_t link_plist(scope *s) {
  hid_t lcpl = hold(s, H5Pcreate(H5P_LINK_CREATE));
  if (!s->failed) ok(s, H5Pset_create_intermediate_group(lcpl, 1));
  return lcpl;
}

static void layout_dataset(scope *s, hid_t file, hid_t lcpl, fx_h5_dataset *set) {
  int keep = s->count;
  hid_t type = hold(s, type_create(set->dtype));
  hid_t space = hold(s, space_create(set->ndim, set->dim));
  hid_t plist = hold(s, H5Pcreate(H5P_DATASET_CREATE));
  if (!s->failed) {
    ok(s, H5Pset_layout(plist, H5D_CONTIGUOUS));
    ok(s, H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY));
    ok(s, H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER));
  }
  hid_t id = s->failed ? H5I_INVALID_HID
                       : hold(s, H5Dcreate2(file, set->path, type, space, lcpl, plist, H5P_DEFAULT));
  set->offset = -1;
  if (!s->failed && elements_of(set->ndim, set->dim) > 0) {
    haddr_t address = H5Dget_offset(id);
    if (address == HADDR_UNDEF)
      scope_fail(s);
    else
      set->offset = (int64_t)address;
  }
  scope_close(s, keep);
}

fx_status fx_h5_layout(const char *path, fx_h5_dataset *datasets, int64_t count) {
  scope s = {.count = 0};
  enter();
  hid_t fapl = access_plist(&s);
  hid_t lcpl = link_plist(&s);
  hid_t file = s.failed ? H5I_INVALID_HID : H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
  if (file < 0) scope_fail(&s);
  for (int64_t i = 0; i < count && !s.failed; i++) layout_dataset(&s, file, lcpl, &datasets[i]);
  /* Metadata is written here, so a full disk shows. HDF5 then keeps the descriptor, and nothing can be done
   * about it: were it closed, a later file with the same inode would be taken for this one. */
  if (file >= 0) ok(&s, H5Fclose(file));
  scope_close(&s, 0);
  leave();
  return s.failed ? fx_error(FX_ERR_IO, "%s cannot be laid out: %s", path, s.reason) : FX_OK;
}

static void map_source(scope *s, hid_t plist, const fx_h5_dataset *tensor, hid_t whole,
                       const fx_h5_source *source) {
  int keep = s->count;
  hsize_t start[FX_H5_DIMS] = {0}, size[FX_H5_DIMS] = {0};
  for (int i = 0; i < tensor->ndim; i++) {
    start[i] = (hsize_t)source->start[i];
    size[i] = (hsize_t)source->count[i];
  }
  hid_t part = hold(s, space_create(tensor->ndim, source->count));
  if (!s->failed && tensor->ndim > 0)
    ok(s, H5Sselect_hyperslab(whole, H5S_SELECT_SET, start, NULL, size, NULL));
  if (!s->failed) ok(s, H5Pset_virtual(plist, whole, source->file, source->dataset, part));
  scope_close(s, keep);
}

/* Sources of one tensor follow each other; *next is the first not yet used. */
static void index_tensor(scope *s, hid_t file, hid_t lcpl, const fx_h5_index *index, int64_t t,
                         int64_t *next) {
  int keep = s->count;
  const fx_h5_dataset *tensor = &index->tensors[t];
  hid_t type = hold(s, type_create(tensor->dtype));
  hid_t space = hold(s, space_create(tensor->ndim, tensor->dim));
  hid_t plist = hold(s, H5Pcreate(H5P_DATASET_CREATE));
  hid_t whole = s->failed ? H5I_INVALID_HID : hold(s, H5Scopy(space));
  if (!s->failed) set_nan_fill(s, plist, type, tensor->dtype);
  for (; *next < index->n_sources && index->sources[*next].tensor == t && !s->failed; ++*next)
    map_source(s, plist, tensor, whole, &index->sources[*next]);
  if (!s->failed) hold(s, H5Dcreate2(file, tensor->path, type, space, lcpl, plist, H5P_DEFAULT));
  scope_close(s, keep);
}

static void index_text(scope *s, hid_t file, hid_t lcpl, const fx_h5_text *text) {
  int keep = s->count;
  hid_t type = hold(s, H5Tcopy(H5T_C_S1));
  if (!s->failed) {
    ok(s, H5Tset_size(type, strlen(text->text) + 1));
    ok(s, H5Tset_cset(type, H5T_CSET_UTF8));
  }
  hid_t space = hold(s, H5Screate(H5S_SCALAR));
  hid_t id = s->failed ? H5I_INVALID_HID
                       : hold(s, H5Dcreate2(file, text->path, type, space, lcpl, H5P_DEFAULT, H5P_DEFAULT));
  if (!s->failed) ok(s, H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text->text));
  scope_close(s, keep);
}

static hid_t attribute_type(const fx_h5_attribute *attribute) {
  if (attribute->kind == FX_H5_I64) return H5Tcopy(H5T_STD_I64LE);
  if (attribute->kind == FX_H5_F64) return H5Tcopy(H5T_IEEE_F64LE);
  hid_t type = H5Tcopy(H5T_C_S1);
  if (type >= 0 &&
      (H5Tset_size(type, strlen(attribute->text) + 1) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0)) {
    H5Tclose(type);
    return H5I_INVALID_HID;
  }
  return type;
}

static void index_attribute(scope *s, hid_t file, hid_t lcpl, const fx_h5_attribute *attribute) {
  int keep = s->count;
  const void *value = attribute->kind == FX_H5_I64   ? (const void *)&attribute->i64
                      : attribute->kind == FX_H5_F64 ? (const void *)&attribute->f64
                                                     : (const void *)attribute->text;
  htri_t there = H5Lexists(file, attribute->group, H5P_DEFAULT);
  hid_t group = hold(s, there > 0 ? H5Gopen2(file, attribute->group, H5P_DEFAULT)
                                  : H5Gcreate2(file, attribute->group, lcpl, H5P_DEFAULT, H5P_DEFAULT));
  hid_t type = hold(s, attribute_type(attribute));
  hid_t space = hold(s, H5Screate(H5S_SCALAR));
  hid_t id = s->failed ? H5I_INVALID_HID
                       : hold(s, H5Acreate2(group, attribute->name, type, space, H5P_DEFAULT, H5P_DEFAULT));
  if (!s->failed) ok(s, H5Awrite(id, type, value));
  scope_close(s, keep);
}

static void take_image(scope *s, hid_t file, void **image, size_t *bytes) {
  if (!ok(s, H5Fflush(file, H5F_SCOPE_GLOBAL))) return;
  ssize_t size = H5Fget_file_image(file, NULL, 0);
  char *buffer = size > 0 ? malloc((size_t)size) : NULL;
  if (!buffer || H5Fget_file_image(file, buffer, (size_t)size) != size) {
    scope_fail(s);
    free(buffer);
    return;
  }
  *image = buffer;
  *bytes = (size_t)size;
}

fx_status fx_h5_index_build(const fx_h5_index *index, void **image, size_t *bytes) {
  scope s = {.count = 0};
  void *built = NULL;
  size_t built_bytes = 0;
  int64_t next = 0;
  enter();
  hid_t fapl = access_plist(&s);
  if (!s.failed) ok(&s, H5Pset_fapl_core(fapl, IMAGE_STEP, false)); /* memory only, never on disk */
  hid_t lcpl = link_plist(&s);
  hid_t file = s.failed ? H5I_INVALID_HID : hold(&s, H5Fcreate("index.h5", H5F_ACC_TRUNC, H5P_DEFAULT, fapl));
  for (int64_t i = 0; i < index->n_tensors && !s.failed; i++) index_tensor(&s, file, lcpl, index, i, &next);
  for (int64_t i = 0; i < index->n_attributes && !s.failed; i++)
    index_attribute(&s, file, lcpl, &index->attributes[i]);
  for (int64_t i = 0; i < index->n_texts && !s.failed; i++) index_text(&s, file, lcpl, &index->texts[i]);
  if (!s.failed) take_image(&s, file, &built, &built_bytes);
  scope_close(&s, 0);
  leave();
  if (s.failed) return fx_error(FX_ERR_DATA, "the HDF5 index cannot be built: %s", s.reason);
  FX_ASSERT(next == index->n_sources);
  *image = built;
  *bytes = built_bytes;
  return FX_OK;
}

/* ---- reading ---- */

static bool read_shape(scope *s, hid_t space, fx_h5_dataset *found) {
  hsize_t dim[H5S_MAX_RANK];
  found->ndim = H5Sget_simple_extent_ndims(space);
  if (found->ndim < 0 || found->ndim > FX_H5_DIMS) {
    s->failed = true;
    snprintf(s->reason, sizeof s->reason, "%d dimensions, at most %d are expected", found->ndim, FX_H5_DIMS);
    return false;
  }
  if (found->ndim > 0 && !ok(s, H5Sget_simple_extent_dims(space, dim, NULL))) return false;
  for (int i = 0; i < found->ndim; i++) found->dim[i] = (int64_t)dim[i];
  return true;
}

static void read_values(scope *s, hid_t set, fx_h5_dataset *found, void **values) {
  hid_t type = hold(s, H5Dget_type(set));
  hid_t space = hold(s, H5Dget_space(set));
  if (s->failed || !read_shape(s, space, found)) return;
  found->dtype = dtype_of(type);
  hssize_t points = H5Sget_simple_extent_npoints(space);
  if (found->dtype == FX_DTYPE_COUNT || points < 0) {
    s->failed = true;
    snprintf(s->reason, sizeof s->reason, "its element type is none of flexion's");
    return;
  }
  size_t wanted = (size_t)points * fx_dtype_bytes(found->dtype);
  *values = malloc(wanted ? wanted : 1);
  if (!*values) {
    s->failed = true;
    snprintf(s->reason, sizeof s->reason, "out of host memory for %zu bytes", wanted);
  } else if (points > 0) {
    ok(s, H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *values));
  }
}

fx_status fx_h5_read(const char *file, const char *dataset, fx_h5_dataset *info, void **data) {
  scope s = {.count = 0};
  fx_h5_dataset found = {.path = dataset, .offset = -1};
  void *values = NULL;
  enter();
  hid_t fapl = access_plist(&s);
  hid_t id = s.failed ? H5I_INVALID_HID : hold(&s, H5Fopen(file, H5F_ACC_RDONLY, fapl));
  hid_t set = s.failed ? H5I_INVALID_HID : hold(&s, H5Dopen2(id, dataset, H5P_DEFAULT));
  if (!s.failed) read_values(&s, set, &found, &values);
  scope_close(&s, 0);
  leave();
  if (s.failed) {
    free(values);
    return fx_error(FX_ERR_DATA, "%s cannot be read from %s: %s", dataset, file, s.reason);
  }
  *info = found;
  *data = values;
  return FX_OK;
}

void fx_h5_version(char *text, size_t capacity) {
  unsigned major = 0, minor = 0, release = 0;
  enter();
  herr_t result = H5get_libversion(&major, &minor, &release);
  leave();
  if (result < 0)
    snprintf(text, capacity, "unknown");
  else
    snprintf(text, capacity, "%u.%u.%u", major, minor, release);
}
