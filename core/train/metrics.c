/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dynamo_rt/base/memory.h"

struct fx_metrics {
  const fx_log *log;
  FILE *file;
  char *path;
};

static fx_status write_failed(const char *path) {
  return fx_error(FX_ERR_IO, "cannot write %s: %s; check checkpoint.dir and the free space there", path,
                  strerror(errno));
}

/* Makes dir and its parents. */
static fx_status make_directories(const char *dir) {
  char *path = fx_strdup(dir);
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory");
  fx_status status = FX_OK;
  for (char *p = path + 1; status == FX_OK; p++) {
    char c = *p;
    if (c != '/' && c != '\0') continue;
    *p = '\0';
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
      status = fx_error(FX_ERR_IO, "cannot make the directory %s: %s; check checkpoint.dir", path,
                        strerror(errno));
    *p = c;
    if (c == '\0') break;
  }
  free(path);
  return status;
}

static int64_t step_of(const char *line) {
  json_t *row = json_loads(line, 0, NULL);
  json_t *step = row ? json_object_get(row, "step") : NULL;
  int64_t value =
      json_is_integer(step) ? json_integer_value(step) : INT64_MAX; /* a torn last line is dropped */
  json_decref(row);
  return value;
}

/* Rewrites the file without rows after `resumed_step`, through a temporary beside it. */
static fx_status trim(const char *path, int64_t resumed_step) {
  FILE *in = fopen(path, "r");
  if (!in) return FX_OK;
  char *fresh = fx_strfmt("%s.tmp", path), *line = NULL;
  size_t capacity = 0;
  FILE *out = fresh ? fopen(fresh, "w") : NULL;
  bool good = out != NULL;
  while (good && getline(&line, &capacity, in) > 0)
    if (step_of(line) <= resumed_step) good = fputs(line, out) >= 0;
  if (out && fclose(out) != 0) good = false;
  fclose(in);
  if (good) good = rename(fresh, path) == 0;
  fx_status status = good ? FX_OK : write_failed(path);
  free(line);
  free(fresh);
  return status;
}

fx_status fx_metrics_open(const char *dir, int64_t resumed_step, const fx_log *log, fx_metrics **out) {
  fx_metrics *metrics = NULL;
  fx_status status = FX_OK;
  FX_TRY(make_directories(dir));
  FX_TRY(fx_calloc(&metrics, 1, sizeof *metrics));
  metrics->log = log;
  metrics->path = fx_strfmt("%s/metrics.jsonl", dir);
  if (!metrics->path) {
    status = fx_error(FX_ERR_MEMORY, "out of host memory");
    goto close_metrics;
  }
  FX_TRY_GOTO(trim(metrics->path, resumed_step), close_metrics);
  metrics->file = fopen(metrics->path, "a");
  if (!metrics->file) {
    status = write_failed(metrics->path);
    goto close_metrics;
  }
  *out = metrics;
  return FX_OK;
close_metrics:
  fx_metrics_close(metrics);
  return status;
}

void fx_metrics_close(fx_metrics *metrics) {
  if (!metrics) return;
  if (metrics->file) fclose(metrics->file);
  free(metrics->path);
  free(metrics);
}

/* JSON has no NaN or infinity: they become null. */
static void put_number(json_t *row, const char *key, double value) {
  json_object_set_new(row, key, isfinite(value) ? json_real(value) : json_null());
}

static fx_status put_row(fx_metrics *metrics, json_t *row) {
  char *text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
  json_decref(row);
  if (!text) return fx_error(FX_ERR_MEMORY, "out of host memory");
  bool good = fprintf(metrics->file, "%s\n", text) > 0 && fflush(metrics->file) == 0;
  free(text);
  return good ? FX_OK : write_failed(metrics->path);
}

fx_status fx_metrics_train(fx_metrics *metrics, const fx_metrics_row *r) {
  char mfu[32] = "";
  if (isfinite(r->mfu)) snprintf(mfu, sizeof mfu, " | MFU %.1f%%", 100 * r->mfu);
  char skipped[80] = "";
  if (!isfinite(r->grad_norm))
    snprintf(skipped, sizeof skipped, " | skipped, %lld so far: the gradient is not finite",
             (long long)r->skipped);
  long eta = (long)((double)(r->iters - r->step) * r->step_ms / 1000.0 + 0.5);
  fx_info(metrics->log,
          "step %lld/%lld | loss %.4f | lr %.2e | grad_norm %.3f | %.0f tokens/s%s | %.1f ms | ETA "
          "%ld:%02ld:%02ld%s",
          (long long)r->step, (long long)r->iters, r->loss, r->lr, r->grad_norm, r->tokens_per_s, mfu,
          r->step_ms, eta / 3600, eta / 60 % 60, eta % 60, skipped);
  json_t *row = json_object();
  json_object_set_new(row, "step", json_integer(r->step));
  put_number(row, "loss", r->loss);
  put_number(row, "lr", r->lr);
  put_number(row, "grad_norm", r->grad_norm);
  put_number(row, "tokens_per_s", r->tokens_per_s);
  put_number(row, "step_ms", r->step_ms);
  if (isfinite(r->mfu)) put_number(row, "mfu", r->mfu);
  json_object_set_new(row, "consumed_samples", json_integer(r->consumed_samples));
  if (r->skipped) json_object_set_new(row, "skipped", json_integer(r->skipped));
  return put_row(metrics, row);
}

fx_status fx_metrics_valid(fx_metrics *metrics, int64_t step, double valid_loss, int64_t valid_targets) {
  fx_info(metrics->log, "step %lld | valid_loss %.4f over %lld targets", (long long)step, valid_loss,
          (long long)valid_targets);
  json_t *row = json_object();
  json_object_set_new(row, "step", json_integer(step));
  put_number(row, "valid_loss", valid_loss);
  return put_row(metrics, row);
}
