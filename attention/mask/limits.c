/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/limits.h"

#include <string.h>

#include "dynamo_rt/base/memory.h"

static void rows_full(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi) {
  (void)b;
  for (int32_t q = 0; q < in->T; q++) {
    lo[q] = 0;
    hi[q] = in->T_kv;
  }
}

static void rows_causal(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi) {
  (void)b;
  for (int32_t q = 0; q < in->T; q++) {
    lo[q] = 0;
    hi[q] = q + 1;
  }
}

static void rows_sliding_window(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi) {
  (void)b;
  for (int32_t q = 0; q < in->T; q++) {
    lo[q] = q - in->window + 1; /* q - kv < window; window >= 1, so no overflow */
    hi[q] = q + 1;
  }
}

static void rows_document_causal(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi) {
  const int32_t *start = in->doc_start + (int64_t)b * in->T;
  for (int32_t q = 0; q < in->T; q++) {
    lo[q] = start[q];
    hi[q] = q + 1;
  }
}

static void rows_document(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi) {
  const int32_t *start = in->doc_start + (int64_t)b * in->T, *end = in->doc_end + (int64_t)b * in->T;
  for (int32_t q = 0; q < in->T; q++) {
    lo[q] = start[q];
    hi[q] = end[q];
  }
}

static const fx_mask_variant g_variants[] = {
    /* name, window, doc_start, doc_end, rows */
    {"full", false, false, false, rows_full},
    {"causal", false, false, false, rows_causal},
    {"sliding_window", true, false, false, rows_sliding_window},
    {"document_causal", false, true, false, rows_document_causal},
    {"document", false, true, true, rows_document},
};

const fx_mask_variant *fx_mask_variants(int *count) {
  *count = (int)(sizeof g_variants / sizeof g_variants[0]);
  return g_variants;
}

const fx_mask_variant *fx_mask_variant_find(const char *name) {
  for (size_t i = 0; i < sizeof g_variants / sizeof g_variants[0]; i++)
    if (strcmp(g_variants[i].name, name) == 0) return &g_variants[i];
  return NULL;
}

fx_limits fx_limits_plan(const fx_mask_variant *variant, const fx_mask_inputs *in) {
  bool per_sample = variant->needs_doc_start || variant->needs_doc_end;
  return (fx_limits){
      .R = 1, .Bm = per_sample ? in->B : 1, .T = in->T, .Tpad = fx_attention_tpad(in->T), .T_kv = in->T_kv};
}

static int64_t interval_count(const fx_limits *limits) {
  return (int64_t)limits->R * limits->Bm * fx_limits_heads(limits) * limits->Tpad;
}

size_t fx_limits_bytes(const fx_limits *limits) {
  return 2 * (size_t)interval_count(limits) * sizeof(int32_t); /* Tpad is a multiple of 128: 64-byte halves */
}

void fx_limits_bind(fx_limits *limits, void *memory) {
  limits->lo = memory;
  limits->hi = limits->lo + interval_count(limits);
}

static fx_status check_documents(const fx_mask_variant *variant, const fx_mask_inputs *in) {
  if ((variant->needs_doc_start && !in->doc_start) || (variant->needs_doc_end && !in->doc_end))
    return fx_error(FX_ERR_DATA,
                    "mask \"%s\" needs document bounds, but the batch has none; set data.packing",
                    variant->name);
  for (int32_t b = 0; b < in->B; b++)
    for (int32_t q = 0; q < in->T; q++) {
      int64_t at = (int64_t)b * in->T + q;
      if (variant->needs_doc_start && (in->doc_start[at] < 0 || in->doc_start[at] > q))
        return fx_error(FX_ERR_DATA, "sample %d, position %d: doc_start is %d, expected 0..%d", b, q,
                        in->doc_start[at], q);
      if (variant->needs_doc_end && (in->doc_end[at] <= q || in->doc_end[at] > in->T_kv))
        return fx_error(FX_ERR_DATA, "sample %d, position %d: doc_end is %d, expected %d..%d", b, q,
                        in->doc_end[at], q + 1, in->T_kv);
    }
  return FX_OK;
}

fx_status fx_limits_compute(const fx_mask_variant *variant, const fx_mask_inputs *in, fx_limits *limits) {
  fx_limits expected = fx_limits_plan(variant, in);
  if (in->T < 1 || in->T_kv < 1 || in->B < 1 || limits->R != 1 || limits->Bm != expected.Bm ||
      limits->T != in->T || limits->T_kv != in->T_kv)
    return fx_error(FX_ERR_SHAPE,
                    "limits of mask \"%s\" were planned for %d x (%d, %d), the batch is %d x (%d, %d)",
                    variant->name, limits->Bm, limits->T, limits->T_kv, expected.Bm, in->T, in->T_kv);
  if (variant->needs_window && in->window < 1)
    return fx_error(FX_ERR_CONFIG, "mask \"%s\": window is %d, expected at least 1", variant->name,
                    in->window);
  if (variant->needs_doc_start || variant->needs_doc_end) FX_TRY(check_documents(variant, in));
  for (int32_t b = 0; b < limits->Bm; b++) {
    int32_t *lo = limits->lo + (int64_t)b * limits->Tpad, *hi = limits->hi + (int64_t)b * limits->Tpad;
    variant->rows(in, b, lo, hi);
    for (int32_t q = 0; q < limits->T; q++) {
      int32_t low = lo[q] > 0 ? lo[q] : 0, high = hi[q] < in->T_kv ? hi[q] : in->T_kv;
      lo[q] = low < high ? low : 0;
      hi[q] = low < high ? high : 0;
    }
    for (int32_t q = limits->T; q < limits->Tpad; q++) lo[q] = hi[q] = 0;
  }
  return FX_OK;
}
