/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cuda/emit_cuda.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "attention/tile/ops.h"
#include "attention/tile/outputs.h"

/* ISO C promises strings of 4095 characters; every compiler that this is built with takes longer ones. */
#pragma GCC diagnostic ignored "-Woverlength-strings"
#define FX_EMIT_TEXT(...) #__VA_ARGS__
static const char g_semantics[] = FX_SEMANTICS(FX_EMIT_TEXT);

/* The compiler's builtins that the operators' text names, in CUDA's words. */
static const char g_builtins[] = "#define INT32_MAX 2147483647\n"
                                 "#define __builtin_fabsf fabsf\n"
                                 "#define __builtin_sqrtf sqrtf\n"
                                 "#define __builtin_floorf floorf\n"
                                 "#define __builtin_copysignf copysignf\n"
                                 "#define __builtin_inff() __int_as_float(0x7f800000)\n"
                                 "#define __builtin_nanf(text) __int_as_float(0x7fc00000)\n";

static const char g_clamp[] =
    "static __forceinline__ __device__ int32_t fx_clamp(int32_t index, int32_t extent) {\n"
    "  int32_t from = index < 0 ? 0 : index;\n"
    "  return from < extent ? from : extent - 1;\n"
    "}\n";

#define FX_EMIT_PAIR "const fx_flash_args *args, int32_t b, int32_t h, int32_t q, int32_t kv"
static const struct {
  const char *macro, *head;
} g_functions[FX_TILE_FUNCTION_COUNT] = {
    [FX_TILE_MASK] = {"FX_HAS_MASK", "bool fx_mask(" FX_EMIT_PAIR ")"},
    [FX_TILE_SCORE] = {"FX_HAS_SCORE", "float fx_score(" FX_EMIT_PAIR ", float score)"},
    [FX_TILE_SCORE_SLOPE] = {"FX_HAS_SLOPE",
                             "float fx_score_slope(" FX_EMIT_PAIR ", float score, float *slope)"},
    [FX_TILE_TABLES] = {"FX_HAS_TABLES", "void fx_tables(" FX_EMIT_PAIR ", float score, float df)"},
    [FX_TILE_IN_BOUNDS] = {"FX_HAS_FAULT", "bool fx_fault(" FX_EMIT_PAIR ", float score)"},
};

/* By its bits: exact, whatever the compiler makes of decimal or hexadecimal floats. */
static void float_literal(FILE *out, float value) {
  if (isnan(value) || isinf(value))
    fprintf(out, "__int_as_float(0x%08x)", (unsigned)fx_sem_bits(value));
  else
    fprintf(out, signbit(value) ? "(%af)" : "%af", (double)value);
}

static void name(FILE *out, const fx_code *code, int32_t i) {
  static const char *const variables[FX_EX_VAR_COUNT] = {"score", "(args->first_head + h)", "q", "kv"};
  const fx_code_instr *instr = &code->instr[i];
  if (instr->op == FX_EX_CONST && instr->type == FX_EX_FLOAT)
    float_literal(out, instr->value.f);
  else if (instr->op == FX_EX_CONST)
    fx_tile_int_literal(out, instr->value.i);
  else if (instr->op == FX_EX_VAR)
    fputs(variables[instr->index], out);
  else if (instr->op == FX_EX_PARAM)
    fprintf(out, "args->uniform[%d]", instr->index);
  else
    fprintf(out, "v%d", i);
}

/* A text of semantics with its a and b replaced. */
static void apply(FILE *out, const fx_code *code, const fx_code_instr *instr, const char *text) {
  for (const char *c = text; *c; c++) {
    bool alone = (c == text || (!isalnum((unsigned char)c[-1]) && c[-1] != '_')) &&
                 !isalnum((unsigned char)c[1]) && c[1] != '_';
    if (alone && (*c == 'a' || *c == 'b'))
      name(out, code, instr->arg[*c - 'a']);
    else
      fputc(*c, out);
  }
}

/* Indices arg[0..ndim) as one, clamped where they could leave; in_range NULL: all of them. */
static void flat_index(FILE *out, const fx_code *code, const fx_ex_buffer *declared, const int32_t *arg,
                       const bool *in_range) {
  for (int k = 1; k < declared->ndim; k++) fputc('(', out);
  for (int k = 0; k < declared->ndim; k++) {
    bool clamp = !in_range || !in_range[k];
    if (k) fprintf(out, " * %d + ", declared->dim[k]);
    fputs(clamp ? "fx_clamp(" : "(", out);
    name(out, code, arg[k]);
    if (clamp) fprintf(out, ", %d", declared->dim[k]);
    fputs(k ? "))" : ")", out);
  }
}

static void load(FILE *out, const fx_code *code, const fx_code_instr *instr) {
  const fx_ex_buffer *declared = &code->buffer[instr->index];
  fprintf(out,
          declared->constant ? "__ldg((const %s *)fx_constant%d + "
                             : "__ldg((const %s *)args->buffer[%d].data + ",
          fx_tile_c_type(declared->type), instr->index); // NOLINT: both take a text and an int
  if (declared->per_batch) fprintf(out, "b * args->buffer[%d].batch + ", instr->index);
  flat_index(out, code, declared, instr->arg, instr->in_range);
  fputc(')', out);
}

static void value(FILE *out, const fx_code *code, const fx_code_instr *instr) {
  bool divides = (instr->op == FX_EX_DIV || instr->op == FX_EX_MOD) && instr->type == FX_EX_INT;
  bool is_div = instr->op == FX_EX_DIV;
  if (instr->op == FX_EX_LOAD)
    load(out, code, instr);
  else if (instr->op == FX_EX_SELECT) {
    name(out, code, instr->arg[0]);
    fputs(" ? ", out);
    name(out, code, instr->arg[1]);
    fputs(" : ", out);
    name(out, code, instr->arg[2]);
  } else if (!divides || !fx_code_is_positive(&code->instr[instr->arg[1]]))
    apply(out, code, instr, fx_tile_op_text(instr->op, instr->arg_type));
  else if (instr->natural)
    apply(out, code, instr, is_div ? "(int32_t)((uint32_t)a / b)" : "(int32_t)((uint32_t)a % b)");
  else
    apply(out, code, instr, is_div ? "fx_sem_div_by(a, b)" : "fx_sem_mod_by(a, b)");
}

static void statements(FILE *out, const fx_code *code) {
  for (int32_t i = 0; i < code->num_instrs; i++) {
    if (code->instr[i].num_args == 0) continue;
    fprintf(out, "  const %s v%d = ", fx_tile_c_type(code->instr[i].type), i);
    value(out, code, &code->instr[i]);
    fputs(";\n", out);
  }
}

static void tables(FILE *out, const fx_code *code, const fx_tile_read *reads, int32_t num_reads) {
  for (int32_t i = 0; i < num_reads; i++) {
    const fx_ex_buffer *declared = &code->buffer[reads[i].buffer];
    fprintf(out, "  if (args->table_grad[%d]) atomicAdd(args->table_grad[%d] + ", reads[i].buffer,
            reads[i].buffer);
    flat_index(out, code, declared, code->output + reads[i].first_output, NULL);
    fputs(", df * ", out);
    name(out, code, code->output[reads[i].first_output + declared->ndim]);
    fputs(");\n", out);
  }
}

static void results(FILE *out, const fx_code *code, fx_tile_function which) {
  if (which == FX_TILE_SCORE_SLOPE) {
    fputs("  *slope = ", out);
    name(out, code, code->output[1]);
    fputs(";\n", out);
  }
  fputs("  return ", out);
  name(out, code, code->output[0]);
  for (int i = 1; which == FX_TILE_IN_BOUNDS && i < code->num_outputs; i++) {
    fputs(" | ", out);
    name(out, code, code->output[i]);
  }
  fputs(";\n", out);
}

static fx_status function(FILE *out, const fx_variant *variant, fx_tile_function which) {
  fx_code *code = NULL;
  fx_tile_read *reads = NULL;
  if (variant) FX_TRY(fx_tile_code(variant, which, &code));
  fprintf(out, "#define %s %d\n", g_functions[which].macro, code != NULL);
  if (!code) return FX_OK;
  fx_status status;
  FX_TRY_GOTO(fx_tile_reads(variant, &reads), destroy_code);
  fprintf(out, "static __forceinline__ __device__ %s {\n", g_functions[which].head);
  statements(out, code);
  if (which == FX_TILE_TABLES)
    tables(out, code, reads, variant->num_reads);
  else
    results(out, code, which);
  fputs("}\n", out);
destroy_code:
  free(reads);
  fx_code_destroy(code);
  return status;
}

/* Breaks the text, which the preprocessor made one line, behind functions. */
static void semantics(FILE *out) {
  int depth = 0;
  fputs(g_builtins, out);
  for (const char *c = g_semantics; *c; c++) {
    fputc(*c, out);
    depth += *c == '{';
    if (*c == '}' && --depth == 0) fputc('\n', out);
  }
  fputc('\n', out);
  fputs(g_clamp, out);
}

/* Constant tables that are read, by their bits. */
static void constants(FILE *out, const fx_variant *variant) {
  for (int32_t i = 0; variant && i < fx_ex_num_buffers(variant->pool); i++) {
    const fx_ex_buffer *declared = fx_ex_buffer_at(variant->pool, i);
    if (!declared->constant) continue;
    int64_t count = 1;
    for (int k = 0; k < declared->ndim; k++) count *= declared->dim[k];
    fprintf(out, "static __device__ const int32_t fx_constant%d[%lld] = {", i, (long long)count);
    for (int64_t k = 0; k < count; k++) fprintf(out, "%d,", ((const int32_t *)declared->constant)[k]);
    fputs("};\n", out);
  }
}

fx_status fx_emit_cuda(const fx_variant *variant, char **source) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return fx_error(FX_ERR_MEMORY, "no memory for generated code");
  fx_status status = FX_OK;
  semantics(out);
  constants(out, variant);
  for (int i = 0; i < FX_TILE_FUNCTION_COUNT && status == FX_OK; i++) status = function(out, variant, i);
  bool failed = ferror(out) != 0;
  if ((fclose(out) != 0 || failed) && status == FX_OK)
    status = fx_error(FX_ERR_MEMORY, "no memory for generated code");
  if (status == FX_OK)
    *source = text;
  else
    free(text);
  return status;
}
