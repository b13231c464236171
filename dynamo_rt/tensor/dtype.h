/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, from one table. */
#ifndef FX_DYNAMO_RT_TENSOR_DTYPE_H
#define FX_DYNAMO_RT_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, bytes an element, name in configs, logs and checkpoints) */
#define FX_DTYPE_LIST(X) \
  X(F32, 4, "float32")   \
  X(BF16, 2, "bfloat16") \
  X(F16, 2, "float16")   \
  X(F64, 8, "float64")   \
  X(I32, 4, "int32")     \
  X(I64, 8, "int64")     \
  X(U8, 1, "uint8")

typedef enum fx_dtype {
#define FX_DTYPE_ENUM(name, bytes, text) FX_##name,
  FX_DTYPE_LIST(FX_DTYPE_ENUM)
#undef FX_DTYPE_ENUM
      FX_DTYPE_COUNT
} fx_dtype;

size_t fx_dtype_bytes(fx_dtype dtype);
const char *fx_dtype_name(fx_dtype dtype);
/* FX_DTYPE_COUNT when no dtype has that name. */
fx_dtype fx_dtype_from_name(const char *name);

/* The types that activations may have: F32 and BF16. */
static inline bool fx_is_activation(fx_dtype dtype) {
  return dtype == FX_F32 || dtype == FX_BF16;
}

/* bfloat16 is the upper half of a float; rounding is to nearest even, NaN stays NaN. */
float fx_bf16_to_f32(uint16_t bits);
uint16_t fx_f32_to_bf16(float value);

#ifdef __cplusplus
}
#endif
#endif
