/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a manifest. The seal is checked on the raw bytes first; the JSON behind it is still believed in
 * nothing: member names, types, ranges, file names and arithmetic are all checked, and an object with a
 * member too many is refused. */
#include "core/checkpoint/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

/* Where the reader is; messages begin with it. */
typedef struct reader {
  const char *name; /* of the file */
  char place[64];   /* "fragments[12]" */
} reader;

static fx_status fault(const reader *r, const char *what, const char *expected) {
  fx_error(FX_ERR_CHECKPOINT, "%s: %s%s%s: expected %s; the manifest is damaged or was edited", r->name,
           r->place, r->place[0] ? "." : "", what, expected);
  return FX_ERR_CHECKPOINT; /* said here, so that a static analyser sees it, too */
}

static fx_status get_object(const reader *r, const json_t *value, size_t members) {
  if (json_is_object(value) && json_object_size(value) == members) return FX_OK;
  char expected[64];
  snprintf(expected, sizeof expected, "an object of %zu members", members);
  return fault(r, "value", expected);
}

static fx_status get_array(const reader *r, const json_t *object, const char *key, json_t **out) {
  *out = json_object_get(object, key);
  return json_is_array(*out) ? FX_OK : fault(r, key, "an array");
}

static fx_status get_i64(const reader *r, const json_t *object, const char *key, int64_t *out) {
  const json_t *value = json_object_get(object, key);
  if (!json_is_integer(value) || json_integer_value(value) < 0)
    return fault(r, key, "an integer that is not negative");
  *out = json_integer_value(value);
  return FX_OK;
}

static fx_status get_text(const reader *r, const json_t *object, const char *key, const char **out) {
  const json_t *value = json_object_get(object, key);
  const char *text = json_string_value(value); /* NULL for anything else */
  if (!text || strlen(text) != json_string_length(value)) return fault(r, key, "a text");
  *out = text;
  return FX_OK;
}

static fx_status get_exact(const reader *r, const json_t *object, const char *key, const char *wanted) {
  const char *text = "";
  FX_TRY(get_text(r, object, key, &text));
  return strcmp(text, wanted) == 0 ? FX_OK : fault(r, key, wanted);
}

static fx_status get_copy(const reader *r, const json_t *object, const char *key, char **out) {
  const char *text = "";
  FX_TRY(get_text(r, object, key, &text));
  *out = fx_strdup(text);
  return *out ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory for %s", r->name);
}

static fx_status read_hash(const reader *r, const char *key, const json_t *value, fx_hash128 *out) {
  const char *text = json_string_value(value);
  uint64_t word[2] = {0, 0};
  if (!text || json_string_length(value) != 32 || strspn(text, "0123456789abcdef") != 32)
    return fault(r, key, "32 lower-case hexadecimal digits");
  for (int i = 0; i < 32; i++) {
    uint64_t digit = (uint64_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    word[i / 16] = word[i / 16] << 4 | digit;
  }
  *out = (fx_hash128){.high = word[0], .low = word[1]};
  return FX_OK;
}

/* Of the fragment's bytes: a text is the hash of all of them, an array has one a block. */
static fx_status get_hashes(const reader *r, const json_t *object, fx_manifest_fragment *fragment,
                            fx_manifest *m) {
  static const char key[] = "xxh3_128";
  const json_t *value = json_object_get(object, key);
  const bool blocks = json_is_array(value);
  fragment->first_hash = m->n_hashes;
  fragment->hashes = blocks ? (int64_t)json_array_size(value) : 1;
  if (blocks && fragment->hashes != fx_manifest_blocks(fragment->bytes))
    return fault(r, key, "a hash for each block of the fragment");
  FX_TRY(fx_grow(&m->hashes, &m->hashes_room, m->n_hashes + fragment->hashes, sizeof *m->hashes));
  for (int64_t i = 0; i < fragment->hashes; i++)
    FX_TRY(read_hash(r, key, blocks ? json_array_get(value, (size_t)i) : value, &m->hashes[m->n_hashes++]));
  return FX_OK;
}

/* `ndim` numbers, or up to FX_CKPT_DIMS when *ndim is -1. */
static fx_status get_sizes(const reader *r, const json_t *object, const char *key, int *ndim, int64_t *out) {
  json_t *array = NULL;
  FX_TRY(get_array(r, object, key, &array));
  size_t length = json_array_size(array);
  if (*ndim < 0 ? length > FX_CKPT_DIMS : length != (size_t)*ndim)
    return fault(r, key, "one number a dimension of the tensor, at most 4");
  for (size_t i = 0; i < length; i++) {
    const json_t *value = json_array_get(array, i);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
      return fault(r, key, "integers that are not negative");
    out[i] = json_integer_value(value);
  }
  *ndim = (int)length;
  return FX_OK;
}

/* Exactly the name that fx_manifest_shard_name makes; anything else could lead out of the directory. */
static fx_status shard_number(const reader *r, const char *key, const char *text, int64_t *out) {
  char name[FX_MANIFEST_SHARD_BYTES];
  for (int64_t s = 0; s < FX_CKPT_FILES && strlen(text) == 14; s++) {
    if (text[10] != (char)('0' + s % 10)) continue;
    fx_manifest_shard_name(s, name);
    if (strcmp(name, text) != 0) continue;
    *out = s;
    return FX_OK;
  }
  return fault(r, key, "a shard_00000.h5 ... shard_00255.h5");
}

static fx_status parse_shards(reader *r, const json_t *root, fx_manifest *m) {
  json_t *array = NULL;
  FX_TRY(get_array(r, root, "shards", &array));
  for (size_t i = 0; i < json_array_size(array); i++) {
    const char *text = json_string_value(json_array_get(array, i));
    int64_t shard = 0;
    if (!text) return fault(r, "shards", "texts");
    FX_TRY(shard_number(r, "shards", text, &shard));
    if (m->has_shard[shard]) return fault(r, "shards", "each file once");
    m->has_shard[shard] = true;
    m->n_shards++;
  }
  return FX_OK;
}

static fx_status parse_tensor(reader *r, const json_t *object, fx_manifest *m) {
  static const int64_t zeros[FX_CKPT_DIMS];
  const char *path = "", *dtype_name = "";
  int64_t dim[FX_CKPT_DIMS] = {0};
  int ndim = -1;
  FX_TRY(get_object(r, object, 3));
  FX_TRY(get_text(r, object, "path", &path));
  FX_TRY(get_text(r, object, "dtype", &dtype_name));
  FX_TRY(get_sizes(r, object, "shape", &ndim, dim));
  fx_dtype dtype = fx_dtype_from_name(dtype_name);
  const char *wrong = fx_manifest_box_fault(path, dtype, ndim, dim, zeros, dim);
  if (wrong) return fx_error(FX_ERR_CHECKPOINT, "%s: %s: tensor \"%s\" %s", r->name, r->place, path, wrong);
  if (m->n_tensors > 0 && strcmp(m->tensors[m->n_tensors - 1].path, path) >= 0)
    return fault(r, "path", "tensors sorted by path, each once");
  return fx_manifest_add_tensor(m, path, dtype, ndim, dim);
}

static fx_status parse_fragment(reader *r, const json_t *object, fx_manifest *m) {
  fx_manifest_fragment fragment = {0};
  const char *path = "", *file = "";
  int64_t end = 0;
  FX_TRY(get_object(r, object, 7));
  FX_TRY(get_text(r, object, "tensor", &path));
  int64_t index = fx_manifest_find(m, path);
  if (index < 0) return fault(r, "tensor", "one of the tensors");
  const fx_manifest_tensor *tensor = &m->tensors[index];
  int ndim = tensor->ndim;
  FX_TRY(get_sizes(r, object, "start", &ndim, fragment.start));
  FX_TRY(get_sizes(r, object, "count", &ndim, fragment.count));
  FX_TRY(get_text(r, object, "file", &file));
  FX_TRY(shard_number(r, "file", file, &fragment.shard));
  if (!m->has_shard[fragment.shard]) return fault(r, "file", "one of the shards");
  FX_TRY(get_i64(r, object, "offset", &fragment.offset));
  FX_TRY(get_i64(r, object, "bytes", &fragment.bytes));
  const char *wrong =
      fx_manifest_box_fault(path, tensor->dtype, ndim, tensor->dim, fragment.start, fragment.count);
  if (wrong) return fx_error(FX_ERR_CHECKPOINT, "%s: %s: tensor \"%s\" %s", r->name, r->place, path, wrong);
  int64_t elements = fx_manifest_elements(ndim, fragment.count);
  if (elements == 0) return fault(r, "count", "no empty fragment");
  if (fragment.bytes != elements * (int64_t)fx_dtype_bytes(tensor->dtype))
    return fault(r, "bytes", "count times the size of the dtype");
  if (__builtin_add_overflow(fragment.offset, fragment.bytes, &end))
    return fault(r, "offset", "a place within a file");
  FX_TRY(get_hashes(r, object, &fragment, m));
  FX_TRY(fx_manifest_add_fragment(m, &fragment));
  m->fragments[m->n_fragments - 1].tensor = index;
  return FX_OK;
}

static fx_status parse_list(reader *r, const json_t *root, const char *key, fx_manifest *m,
                            fx_status (*parse)(reader *, const json_t *, fx_manifest *)) {
  json_t *array = NULL;
  FX_TRY(get_array(r, root, key, &array));
  for (size_t i = 0; i < json_array_size(array); i++) {
    snprintf(r->place, sizeof r->place, "%s[%zu]", key, i);
    FX_TRY(parse(r, json_array_get(array, i), m));
  }
  r->place[0] = '\0';
  return FX_OK;
}

static fx_status parse_trainer(reader *r, const json_t *root, fx_manifest *m) {
  const json_t *trainer = json_object_get(root, "trainer");
  FX_TRY(get_i64(r, root, "step", &m->state.step));
  snprintf(r->place, sizeof r->place, "trainer");
  FX_TRY(get_object(r, trainer, 4));
  FX_TRY(get_i64(r, trainer, "consumed_samples", &m->state.consumed_samples));
  FX_TRY(get_i64(r, trainer, "optimizer_step", &m->state.optimizer_step));
  FX_TRY(get_i64(r, trainer, "skipped", &m->state.skipped));
  const json_t *scale = json_object_get(trainer, "loss_scale");
  if (!json_is_number(scale) || !isfinite(json_number_value(scale)))
    return fault(r, "loss_scale", "a finite number");
  m->state.loss_scale = json_number_value(scale);
  r->place[0] = '\0';
  return FX_OK;
}

static fx_status parse_root(reader *r, const json_t *root, fx_manifest *m) {
  int64_t version = 0;
  FX_TRY(get_object(r, root, 11));
  FX_TRY(get_exact(r, root, "format", "flexion-checkpoint"));
  FX_TRY(get_i64(r, root, "version", &version));
  if (version < 1 || version > FX_MANIFEST_VERSION)
    return fx_error(FX_ERR_CHECKPOINT,
                    "%s: format version %" PRId64 " is not known (this flexion reads 1 to %d); use the "
                    "flexion that wrote it",
                    r->name, version, FX_MANIFEST_VERSION);
  FX_TRY(get_copy(r, root, "code_version", &m->code_version));
  FX_TRY(parse_trainer(r, root, m));
  FX_TRY(get_copy(r, root, "config", &m->config));
  const json_t *index = json_object_get(root, "index");
  snprintf(r->place, sizeof r->place, "index");
  FX_TRY(get_object(r, index, 2));
  FX_TRY(get_exact(r, index, "file", "index.h5"));
  FX_TRY(read_hash(r, "xxh3_128", json_object_get(index, "xxh3_128"), &m->index_hash));
  r->place[0] = '\0';
  FX_TRY(parse_shards(r, root, m));
  FX_TRY(parse_list(r, root, "tensors", m, parse_tensor));
  FX_TRY(parse_list(r, root, "fragments", m, parse_fragment));
  fx_status status = fx_manifest_finish(m);
  return status == FX_OK ? FX_OK : fx_error_prefix(status, "%s", r->name);
}

static bool seal_holds(const char *text, size_t bytes) {
  static const char opening[] = ",\n\"manifest_xxh3_128\": \"";
  const size_t tail = sizeof opening - 1 + 32 + 3;
  size_t again_bytes = 0;
  if (bytes <= tail) return false;
  char *again = fx_manifest_seal(text, bytes - tail, &again_bytes);
  bool held = again && again_bytes == bytes && memcmp(again, text, bytes) == 0;
  free(again);
  return held;
}

fx_status fx_manifest_parse(const char *text, size_t bytes, const char *name, fx_manifest *out) {
  reader r = {.name = name};
  fx_manifest fresh = {.n_shards = 0};
  json_error_t error;
  if (!seal_holds(text, bytes))
    return fx_error(FX_ERR_CHECKPOINT,
                    "%s: its content does not match the hash at its end; it is damaged, cut or was edited",
                    name);
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
  if (!root)
    return fx_error(FX_ERR_CHECKPOINT, "%s:%d:%d: not the JSON of a manifest: %s", name, error.line,
                    error.column, error.text);
  fx_status status = parse_root(&r, root, &fresh);
  json_decref(root);
  if (status != FX_OK) {
    fx_manifest_fini(&fresh);
    return status;
  }
  *out = fresh;
  return FX_OK;
}
