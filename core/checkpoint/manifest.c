/* SPDX-License-Identifier: Apache-2.0 */
/* Building, checking and printing a manifest; reading one back is manifest_parse.c. */
#include "core/checkpoint/manifest.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

void fx_manifest_fini(fx_manifest *manifest) {
  for (int64_t i = 0; i < manifest->n_tensors; i++) free(manifest->tensors[i].path);
  free(manifest->tensors);
  free(manifest->fragments);
  free(manifest->hashes);
  free(manifest->config);
  free(manifest->code_version);
  memset(manifest, 0, sizeof *manifest);
}

void fx_manifest_shard_name(int64_t shard, char name[FX_MANIFEST_SHARD_BYTES]) {
  snprintf(name, FX_MANIFEST_SHARD_BYTES, "shard_%05" PRId64 ".h5", shard);
}

void fx_manifest_dataset_name(const char *path, int ndim, const int64_t *start,
                              char name[FX_MANIFEST_DATASET_BYTES]) {
  int used = snprintf(name, FX_MANIFEST_DATASET_BYTES, "%s@", path);
  for (int i = 0; i < ndim; i++)
    used += snprintf(name + used, (size_t)(FX_MANIFEST_DATASET_BYTES - used), "%s%" PRId64, i ? "," : "",
                     start[i]);
}

void fx_manifest_shape_text(int ndim, const int64_t *dim, char text[96]) {
  int used = snprintf(text, 96, "[");
  for (int i = 0; i < ndim; i++)
    used += snprintf(text + used, (size_t)(96 - used), "%s%" PRId64, i ? ", " : "", dim[i]);
  snprintf(text + used, (size_t)(96 - used), "]");
}

/* ---- checks ---- */

static bool path_in_order(const char *path) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (strlen(path) >= FX_CKPT_PATH_BYTES || path[0] != '/') return false;
  if (strcmp(path, "/trainer") == 0 || strncmp(path, "/trainer/", 9) == 0) return false;
  for (const char *part = path; *part;) {
    size_t length = strspn(++part, allowed); /* `part` stood on a slash */
    bool dots = (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.');
    if (length == 0 || dots || (part[length] && part[length] != '/')) return false;
    part += length;
  }
  return true;
}

const char *fx_manifest_box_fault(const char *path, fx_dtype dtype, int ndim, const int64_t *dim,
                                  const int64_t *start, const int64_t *count) {
  int64_t bytes = (int64_t)fx_dtype_bytes(dtype);
  if (!path || !path_in_order(path))
    return "is no tensor path (slashes between letters, digits and _.-, at most 255 bytes, not /trainer)";
  if (bytes == 0) return "has an unknown dtype";
  if (ndim < 0 || ndim > FX_CKPT_DIMS) return "has more dimensions than 4";
  for (int i = 0; i < ndim; i++) {
    if (dim[i] < 0 || start[i] < 0 || count[i] < 0) return "has a negative size or position";
    if (dim[i] > 0 && __builtin_mul_overflow(bytes, dim[i], &bytes)) return "is larger than 2^63 bytes";
    if (start[i] > dim[i] || count[i] > dim[i] - start[i]) return "has a part that reaches outside of it";
  }
  return NULL;
}

int64_t fx_manifest_elements(int ndim, const int64_t *count) {
  int64_t elements = 1;
  for (int i = 0; i < ndim; i++) elements *= count[i];
  return elements;
}

int64_t fx_manifest_block_bytes(int64_t bytes) {
  int64_t block = 64 << 10;
  while (block < FX_MANIFEST_BLOCK_BYTES && 32 * block < bytes) block *= 2;
  return block;
}

int64_t fx_manifest_blocks(int64_t bytes) {
  int64_t block = fx_manifest_block_bytes(bytes);
  return bytes / block + (bytes % block != 0);
}

/* ---- building ---- */

fx_status fx_manifest_add_tensor(fx_manifest *manifest, const char *path, fx_dtype dtype, int ndim,
                                 const int64_t *dim) {
  FX_TRY(fx_grow(&manifest->tensors, &manifest->tensors_room, manifest->n_tensors + 1,
                 sizeof *manifest->tensors));
  fx_manifest_tensor *tensor = &manifest->tensors[manifest->n_tensors];
  *tensor = (fx_manifest_tensor){.path = fx_strdup(path), .dtype = dtype, .ndim = ndim};
  if (!tensor->path) return fx_error(FX_ERR_MEMORY, "out of host memory for the manifest");
  for (int i = 0; i < ndim; i++) tensor->dim[i] = dim[i];
  tensor->elements = fx_manifest_elements(ndim, dim);
  manifest->n_tensors++;
  return FX_OK;
}

fx_status fx_manifest_add_fragment(fx_manifest *manifest, const fx_manifest_fragment *fragment) {
  FX_TRY(fx_grow(&manifest->fragments, &manifest->fragments_room, manifest->n_fragments + 1,
                 sizeof *manifest->fragments));
  fx_manifest_fragment *last = &manifest->fragments[manifest->n_fragments++];
  *last = *fragment;
  last->tensor = manifest->n_tensors - 1;
  return FX_OK;
}

/* While sorting, `first` is a tensor's number before sorting. */
static int by_path(const void *a, const void *b) {
  const fx_manifest_tensor *x = a, *y = b;
  int order = strcmp(x->path, y->path);
  return order ? order : (x->first > y->first) - (x->first < y->first);
}

static int by_place(const void *a, const void *b) {
  const fx_manifest_fragment *x = a, *y = b;
  if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
  for (int i = 0; i < FX_CKPT_DIMS; i++)
    if (x->start[i] != y->start[i]) return x->start[i] < y->start[i] ? -1 : 1;
  return 0;
}

static bool same_shape(const fx_manifest_tensor *a, const fx_manifest_tensor *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

/* Sorts the tensors and drops repetitions; now_at[old number] is where each went. */
static fx_status merge_tensors(fx_manifest *manifest, int64_t *now_at) {
  fx_manifest_tensor *tensors = manifest->tensors;
  int64_t n = manifest->n_tensors, kept = 0;
  fx_status status = FX_OK;
  for (int64_t i = 0; i < n; i++) tensors[i].first = i;
  if (n > 0) qsort(tensors, (size_t)n, sizeof *tensors, by_path);
  for (int64_t i = 0; i < n; i++) {
    bool again = kept > 0 && strcmp(tensors[kept - 1].path, tensors[i].path) == 0;
    now_at[tensors[i].first] = again ? kept - 1 : kept;
    if (!again) {
      tensors[kept++] = tensors[i];
      continue;
    }
    if (status == FX_OK && !same_shape(&tensors[kept - 1], &tensors[i])) {
      char a[96], b[96];
      fx_manifest_shape_text(tensors[kept - 1].ndim, tensors[kept - 1].dim, a);
      fx_manifest_shape_text(tensors[i].ndim, tensors[i].dim, b);
      status =
          fx_error(FX_ERR_CHECKPOINT, "tensor %s is %s %s in one place and %s %s in another", tensors[i].path,
                   fx_dtype_name(tensors[kept - 1].dtype), a, fx_dtype_name(tensors[i].dtype), b);
    }
    free(tensors[i].path);
  }
  manifest->n_tensors = kept;
  return status;
}

static bool boxes_meet(const fx_manifest_fragment *a, const fx_manifest_fragment *b, int ndim) {
  for (int i = 0; i < ndim; i++)
    if (a->start[i] >= b->start[i] + b->count[i] || b->start[i] >= a->start[i] + a->count[i]) return false;
  return true;
}

/* No two fragments of the tensor meet and together they have its size: so each element is there once. */
static fx_status check_cover(const fx_manifest *manifest, const fx_manifest_tensor *tensor) {
  const fx_manifest_fragment *all = manifest->fragments + tensor->first;
  int64_t covered = 0;
  char shape[96];
  for (int64_t i = 0; i < tensor->fragments; i++) {
    covered += fx_manifest_elements(tensor->ndim, all[i].count);
    if (covered > tensor->elements) break; /* before it can overflow; the message below says so */
    for (int64_t j = i + 1; j < tensor->fragments; j++) {
      if (tensor->ndim > 0 && all[j].start[0] >= all[i].start[0] + all[i].count[0]) break;
      if (!boxes_meet(&all[i], &all[j], tensor->ndim)) continue;
      fx_manifest_shape_text(tensor->ndim, all[j].start, shape);
      return fx_error(FX_ERR_CHECKPOINT, "tensor %s is held twice, among others at %s", tensor->path, shape);
    }
  }
  if (covered == tensor->elements) return FX_OK;
  fx_manifest_shape_text(tensor->ndim, tensor->dim, shape);
  return fx_error(FX_ERR_CHECKPOINT,
                  "tensor %s of shape %s has %" PRId64 " elements, its parts have %s%" PRId64, tensor->path,
                  shape, tensor->elements, covered > tensor->elements ? "at least " : "", covered);
}

int64_t fx_manifest_find(const fx_manifest *manifest, const char *path) {
  int64_t low = 0, high = manifest->n_tensors;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    int order = strcmp(manifest->tensors[middle].path, path);
    if (order == 0) return middle;
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return -1;
}

/* HDF5 cannot have a group and a dataset of one name. */
static fx_status check_prefixes(const fx_manifest *manifest, const char *path) {
  char prefix[FX_CKPT_PATH_BYTES];
  for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    snprintf(prefix, sizeof prefix, "%.*s", (int)(slash - path), path);
    if (fx_manifest_find(manifest, prefix) >= 0)
      return fx_error(FX_ERR_CHECKPOINT, "tensor %s lies below another tensor, %s", path, prefix);
  }
  return FX_OK;
}

fx_status fx_manifest_finish(fx_manifest *manifest) {
  int64_t *now_at = NULL;
  FX_TRY(fx_calloc(&now_at, (size_t)manifest->n_tensors, sizeof *now_at));
  fx_status status = merge_tensors(manifest, now_at);
  int64_t n = manifest->n_fragments, next = 0;
  for (int64_t i = 0; i < n; i++) manifest->fragments[i].tensor = now_at[manifest->fragments[i].tensor];
  free(now_at);
  if (n > 0) qsort(manifest->fragments, (size_t)n, sizeof *manifest->fragments, by_place);
  for (int64_t t = 0; t < manifest->n_tensors; t++) {
    fx_manifest_tensor *tensor = &manifest->tensors[t];
    tensor->first = next;
    while (next < n && manifest->fragments[next].tensor == t) next++;
    tensor->fragments = next - tensor->first;
    if (status == FX_OK) status = check_prefixes(manifest, tensor->path);
    if (status == FX_OK) status = check_cover(manifest, tensor);
  }
  return status;
}

/* ---- printing ---- */

/* A JSON string with quotes, or false when the text is not UTF-8. */
static bool print_string(FILE *out, const char *text) {
  json_t *value = json_string(text);
  char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
  bool held = quoted && fputs(quoted, out) >= 0;
  free(quoted);
  json_decref(value);
  return held;
}

static void print_tensors(FILE *out, const fx_manifest *manifest) {
  char shape[96];
  fputs("\"tensors\": [", out);
  for (int64_t i = 0; i < manifest->n_tensors; i++) {
    const fx_manifest_tensor *tensor = &manifest->tensors[i];
    fx_manifest_shape_text(tensor->ndim, tensor->dim, shape);
    fprintf(out, "%s\n{\"path\": \"%s\", \"dtype\": \"%s\", \"shape\": %s}", i ? "," : "", tensor->path,
            fx_dtype_name(tensor->dtype), shape);
  }
  fputs("],\n", out);
}

static void print_hashes(FILE *out, const fx_hash128 *hashes, int64_t n) {
  char hex[33];
  if (n > 1) fputs("[", out);
  for (int64_t i = 0; i < n; i++) {
    fx_hash128_hex(hashes[i], hex);
    fprintf(out, "%s\"%s\"", i ? ", " : "", hex);
  }
  if (n > 1) fputs("]", out);
}

static void print_fragments(FILE *out, const fx_manifest *manifest) {
  char start[96], count[96], file[FX_MANIFEST_SHARD_BYTES];
  fputs("\"fragments\": [", out);
  for (int64_t i = 0; i < manifest->n_fragments; i++) {
    const fx_manifest_fragment *fragment = &manifest->fragments[i];
    const fx_manifest_tensor *tensor = &manifest->tensors[fragment->tensor];
    fx_manifest_shape_text(tensor->ndim, fragment->start, start);
    fx_manifest_shape_text(tensor->ndim, fragment->count, count);
    fx_manifest_shard_name(fragment->shard, file);
    fprintf(out,
            "%s\n{\"tensor\": \"%s\", \"start\": %s, \"count\": %s, \"file\": \"%s\", \"offset\": %" PRId64
            ", \"bytes\": %" PRId64 ", \"xxh3_128\": ",
            i ? "," : "", tensor->path, start, count, file, fragment->offset, fragment->bytes);
    print_hashes(out, manifest->hashes + fragment->first_hash, fragment->hashes);
    fputs("}", out);
  }
  fputs("]", out);
}

static bool print_body(FILE *out, const fx_manifest *manifest) {
  const fx_ckpt_state *state = &manifest->state;
  char file[FX_MANIFEST_SHARD_BYTES], hex[33];
  fprintf(out,
          "{\"format\": \"flexion-checkpoint\",\n\"version\": %d,\n\"code_version\": ", FX_MANIFEST_VERSION);
  bool held = print_string(out, manifest->code_version);
  fprintf(out,
          ",\n\"step\": %" PRId64 ",\n\"trainer\": {\"consumed_samples\": %" PRId64
          ", \"optimizer_step\": %" PRId64 ", \"skipped\": %" PRId64
          ", \"loss_scale\": %.17g},\n\"config\": ",
          state->step, state->consumed_samples, state->optimizer_step, state->skipped, state->loss_scale);
  held = held && print_string(out, manifest->config);
  fx_hash128_hex(manifest->index_hash, hex);
  fprintf(out, ",\n\"index\": {\"file\": \"index.h5\", \"xxh3_128\": \"%s\"},\n\"shards\": [", hex);
  const char *comma = "";
  for (int s = 0; s < FX_CKPT_FILES; s++) {
    if (!manifest->has_shard[s]) continue;
    fx_manifest_shard_name(s, file);
    fprintf(out, "%s\"%s\"", comma, file);
    comma = ", ";
  }
  fputs("],\n", out);
  print_tensors(out, manifest);
  print_fragments(out, manifest);
  return held && !ferror(out);
}

char *fx_manifest_seal(const char *body, size_t body_bytes, size_t *bytes) {
  char hex[33], tail[128];
  fx_hash128_hex(fx_hash128_of(body, body_bytes), hex);
  int tail_bytes = snprintf(tail, sizeof tail, ",\n\"manifest_xxh3_128\": \"%s\"}\n", hex);
  char *text = malloc(body_bytes + (size_t)tail_bytes + 1);
  if (!text) return NULL;
  memcpy(text, body, body_bytes);
  memcpy(text + body_bytes, tail, (size_t)tail_bytes + 1);
  *bytes = body_bytes + (size_t)tail_bytes;
  return text;
}

fx_status fx_manifest_print(const fx_manifest *manifest, char **text, size_t *bytes) {
  char *body = NULL;
  size_t body_bytes = 0;
  if (!isfinite(manifest->state.loss_scale))
    return fx_error(FX_ERR_CHECKPOINT, "the loss scale %g is not finite and cannot be saved",
                    manifest->state.loss_scale);
  FILE *out = open_memstream(&body, &body_bytes);
  if (!out) return fx_error(FX_ERR_MEMORY, "out of host memory for the manifest");
  bool held = print_body(out, manifest);
  if (fclose(out) != 0 || !held) {
    free(body);
    return fx_error(FX_ERR_CHECKPOINT, "the manifest cannot be printed; is the configuration text UTF-8?");
  }
  char *sealed = fx_manifest_seal(body, body_bytes, bytes);
  free(body);
  if (!sealed) return fx_error(FX_ERR_MEMORY, "out of host memory for the manifest");
  *text = sealed;
  return FX_OK;
}
