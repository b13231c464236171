/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/emit_c.h"

#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/tile/ops.h"
#include "attention/tile/outputs.h"
#include "attention/tile/tile.h"

/* ISO C promises strings of 4095 characters; every compiler that this is built with takes longer ones. */
#pragma GCC diagnostic ignored "-Woverlength-strings"
#define FX_EMIT_TEXT(...) #__VA_ARGS__
static const char g_semantics[] = FX_SEMANTICS(FX_EMIT_TEXT);

static const char g_structs[] =
    "typedef struct fx_tile_args {\n"
    "  const void *self;\n"
    "  const float *uniform;\n"
    "  const void *const *buffer;\n"
    "  float *const *table_grad;\n"
    "  int32_t h, keys;\n"
    "  const int32_t *q, *kv;\n"
    "} fx_tile_args;\n"
    "typedef struct fx_tile_functions {\n"
    "  const void *self;\n"
    "  void (*mask)(const fx_tile_args *, uint32_t *);\n"
    "  void (*score)(const fx_tile_args *, float *, int64_t, float);\n"
    "  void (*score_slope)(const fx_tile_args *, float *, float *, int64_t, float);\n"
    "  void (*tables)(const fx_tile_args *, const uint32_t *, const float *, const float *, int64_t);\n"
    "  _Bool (*in_bounds)(const fx_tile_args *, const uint32_t *, const float *, int64_t);\n"
    "} fx_tile_functions;\n"
    "static inline __attribute__((always_inline)) int32_t fx_clamp(int32_t index, int32_t extent) {\n"
    "  int32_t from = index < 0 ? 0 : index;\n"
    "  return from < extent ? from : extent - 1;\n"
    "}\n";

static const char *const g_heads[FX_TILE_FUNCTION_COUNT] = {
    [FX_TILE_MASK] = "void fx_tile%d_mask(const fx_tile_args *args, uint32_t *bits)",
    [FX_TILE_SCORE] =
        "void fx_tile%d_score(const fx_tile_args *args, float *s, int64_t stride, float factor)",
    [FX_TILE_SCORE_SLOPE] = "void fx_tile%d_score_slope(const fx_tile_args *args, float *s, float *slope, "
                            "int64_t stride, float factor)",
    [FX_TILE_TABLES] =
        "void fx_tile%d_tables(const fx_tile_args *args, const uint32_t *bits, const float *raw, "
        "const float *ds, int64_t stride)",
    [FX_TILE_IN_BOUNDS] = "_Bool fx_tile%d_in_bounds(const fx_tile_args *args, const uint32_t *bits, "
                          "const float *raw, int64_t stride)",
};

/* ---- one function ---- */

typedef struct writer {
  FILE *out;
  const fx_code *code;
  const fx_tile_read *reads;
  int32_t num_reads;
  fx_tile_function function;
  bool comments;
} writer;

static void float_literal(FILE *out, float value) {
  if (isnan(value))
    fputs("__builtin_nanf(\"\")", out);
  else if (isinf(value))
    fputs(value < 0.0f ? "(-__builtin_inff())" : "__builtin_inff()", out);
  else
    fprintf(out, signbit(value) ? "(%af)" : "%af", (double)value);
}

/* What instruction i is called in a loop of the given rate. */
static void name(const writer *w, int32_t i, fx_code_rate loop) {
  const fx_code_instr *instr = &w->code->instr[i];
  if (instr->op == FX_EX_CONST && instr->type == FX_EX_FLOAT) {
    float_literal(w->out, instr->value.f);
  } else if (instr->op == FX_EX_CONST) {
    fx_tile_int_literal(w->out, instr->value.i);
  } else if (instr->op == FX_EX_VAR) {
    static const char *const names[FX_EX_VAR_COUNT] = {"score[r]", "h", "q[r]", "kv"};
    fputs(names[instr->index], w->out);
  } else if (instr->op == FX_EX_PARAM) {
    fprintf(w->out, "p%d", instr->index);
  } else {
    fprintf(w->out, instr->rate == FX_CODE_Q && loop != FX_CODE_Q ? "a%d[r]" : "v%d", i);
  }
}

/* A text of semantics with its a and b replaced. */
static void apply(const writer *w, const fx_code_instr *instr, const char *text) {
  for (const char *c = text; *c; c++) {
    bool alone = (c == text || (!isalnum((unsigned char)c[-1]) && c[-1] != '_')) &&
                 !isalnum((unsigned char)c[1]) && c[1] != '_';
    if (alone && (*c == 'a' || *c == 'b'))
      name(w, instr->arg[*c - 'a'], instr->rate);
    else
      fputc(*c, w->out);
  }
}

/* Indices arg[0..count) as one, clamped where they could leave. args(k) are instructions. */
static void flat_index(const writer *w, const fx_ex_buffer *declared, const int32_t *arg,
                       const bool *in_range, fx_code_rate loop) {
  for (int k = 1; k < declared->ndim; k++) fputc('(', w->out);
  for (int k = 0; k < declared->ndim; k++) {
    if (k) fprintf(w->out, " * %d + ", declared->dim[k]);
    bool clamp = !in_range || !in_range[k];
    fputs(clamp ? "fx_clamp(" : "(", w->out);
    name(w, arg[k], loop);
    if (clamp) fprintf(w->out, ", %d", declared->dim[k]);
    fputs(k ? "))" : ")", w->out);
  }
}

static bool divides_by_literal(const writer *w, const fx_code_instr *instr) {
  bool divides = (instr->op == FX_EX_DIV || instr->op == FX_EX_MOD) && instr->type == FX_EX_INT;
  return divides && fx_code_is_positive(&w->code->instr[instr->arg[1]]);
}

static void value(const writer *w, const fx_code_instr *instr) {
  if (instr->op == FX_EX_LOAD) {
    fprintf(w->out, "b%d[(", instr->index);
    flat_index(w, &w->code->buffer[instr->index], instr->arg, instr->in_range, instr->rate);
    fputs(") & all]", w->out);
  } else if (instr->op == FX_EX_SELECT) {
    name(w, instr->arg[0], instr->rate);
    fputs(" ? ", w->out);
    name(w, instr->arg[1], instr->rate);
    fputs(" : ", w->out);
    name(w, instr->arg[2], instr->rate);
  } else if (!divides_by_literal(w, instr)) {
    apply(w, instr, fx_tile_op_text(instr->op, instr->arg_type));
  } else if (instr->natural) {
    apply(w, instr, instr->op == FX_EX_DIV ? "(int32_t)((uint32_t)a / b)" : "(int32_t)((uint32_t)a % b)");
  } else {
    apply(w, instr, instr->op == FX_EX_DIV ? "fx_sem_div_by(a, b)" : "fx_sem_mod_by(a, b)");
  }
}

/* gcc 12 takes a comparison that becomes an index for a vector of offsets when it is a vector mask (AVX-512),
 * and gathers with garbage. A mask of ones of which it cannot know stands between. */
static const char g_all[] = "  int32_t all = -1;\n  __asm__(\"\" : \"+r\"(all));\n";

/* All instructions of a rate, one line each. */
static void statements(const writer *w, fx_code_rate rate, const char *indent) {
  for (int32_t i = 0; i < w->code->num_instrs; i++) {
    const fx_code_instr *instr = &w->code->instr[i];
    if (instr->rate != rate || instr->num_args == 0) continue;
    fprintf(w->out, "%sconst %s v%d = ", indent, fx_tile_c_type(instr->type), i);
    value(w, instr);
    fputs(";\n", w->out);
    if (rate == FX_CODE_Q) fprintf(w->out, "%sa%d[r] = v%d;\n", indent, i, i);
  }
}

static void declared_name(const writer *w, const char *declared) {
  fprintf(w->out, w->comments ? " /* %s */\n" : "\n", declared);
}

static void once_a_tile(const writer *w) {
  const fx_code *code = w->code;
  bool param[FX_EX_MAX_PARAMS] = {false}, buffer[FX_EX_MAX_BUFFERS] = {false}, rows = false, loads = false;
  for (int32_t i = 0; i < code->num_instrs; i++) {
    const fx_code_instr *instr = &code->instr[i];
    if (instr->op == FX_EX_PARAM) param[instr->index] = true;
    if (instr->op == FX_EX_LOAD) buffer[instr->index] = loads = true;
    if (instr->rate != FX_CODE_Q || instr->num_args == 0) continue;
    fprintf(w->out, "  %s a%d[32];\n", fx_tile_c_type(instr->type), i);
    rows = true;
  }
  if (loads) fputs(g_all, w->out);
  if ((code->depends >> FX_EX_H) & 1) fputs("  const int32_t h = args->h;\n", w->out);
  if ((code->depends >> FX_EX_Q) & 1) fputs("  const int32_t *const q = args->q;\n", w->out);
  for (int i = 0; i < code->num_params; i++) {
    if (!param[i]) continue;
    fprintf(w->out, "  const float p%d = args->uniform[%d];", i, i);
    declared_name(w, code->param[i].name);
  }
  for (int i = 0; i < code->num_buffers; i++) {
    if (!buffer[i]) continue;
    fprintf(w->out, "  const %s *const b%d = args->buffer[%d];", fx_tile_c_type(code->buffer[i].type), i, i);
    declared_name(w, code->buffer[i].name);
  }
  statements(w, FX_CODE_UNIFORM, "  ");
  if (!rows) return;
  fputs("#pragma omp simd\n  for (int32_t r = 0; r < 32; r++) {\n", w->out);
  statements(w, FX_CODE_Q, "    ");
  fputs("  }\n", w->out);
}

static void output(const writer *w, int number) {
  name(w, w->code->output[number], FX_CODE_BOTH);
}

/* What the loop over rows leaves behind. */
static void results(const writer *w) {
  switch (w->function) {
  case FX_TILE_MASK:
    fputs("      word |= (uint32_t)", w->out);
    output(w, 0);
    fputs(" << r;\n", w->out);
    break;
  case FX_TILE_SCORE:
  case FX_TILE_SCORE_SLOPE:
    if (w->function == FX_TILE_SCORE_SLOPE) {
      fputs("      to_slope[r] = ", w->out);
      output(w, 1);
      fputs(";\n", w->out);
    }
    fputs("      to[r] = ", w->out);
    output(w, 0);
    fputs(" * factor;\n", w->out);
    break;
  case FX_TILE_TABLES:
    for (int32_t i = 0; i < w->num_reads; i++) {
      const fx_ex_buffer *declared = &w->code->buffer[w->reads[i].buffer];
      fprintf(w->out, "      flat%d[r] = ", i);
      flat_index(w, declared, w->code->output + w->reads[i].first_output, NULL, FX_CODE_BOTH);
      fprintf(w->out, ";\n      slope%d[r] = ", i);
      output(w, w->reads[i].first_output + declared->ndim);
      fputs(";\n", w->out);
    }
    break;
  default:
    for (int i = 0; i < w->code->num_outputs; i++) {
      fputs("      any |= (uint32_t)", w->out);
      output(w, i);
      fputs(" & (word >> r);\n", w->out);
    }
    break;
  }
}

static const char *const g_before_rows[FX_TILE_FUNCTION_COUNT] = {
    [FX_TILE_MASK] = "    uint32_t word = 0;\n#pragma omp simd reduction(| : word)\n",
    [FX_TILE_SCORE] = "    float *const to = s + k * stride;\n#pragma omp simd\n",
    [FX_TILE_SCORE_SLOPE] =
        "    float *const to = s + k * stride, *const to_slope = slope + k * stride;\n#pragma omp simd\n",
    [FX_TILE_TABLES] = "#pragma omp simd\n",
    [FX_TILE_IN_BOUNDS] = "    const uint32_t word = bits[k];\n#pragma omp simd reduction(| : any)\n",
};

static void once_a_key(const writer *w) {
  FILE *out = w->out;
  fputs("  for (int32_t k = 0; k < args->keys; k++) {\n", out);
  if ((w->code->depends >> FX_EX_KV) & 1) fputs("    const int32_t kv = args->kv[k];\n", out);
  if ((w->code->depends >> FX_EX_SCORE) & 1)
    fprintf(out, "    const float *const score = %s + k * stride;\n",
            w->function == FX_TILE_SCORE || w->function == FX_TILE_SCORE_SLOPE ? "s" : "raw");
  for (int32_t i = 0; i < w->num_reads; i++)
    fprintf(out, "    int32_t flat%d[32];\n    float slope%d[32];\n", i, i);
  statements(w, FX_CODE_KV, "    ");
  fputs(g_before_rows[w->function], out);
  fputs("    for (int32_t r = 0; r < 32; r++) {\n", out);
  statements(w, FX_CODE_BOTH, "      ");
  results(w);
  fputs("    }\n", out);
  if (w->function == FX_TILE_MASK) fputs("    bits[k] = word;\n", out);
  for (int32_t i = 0; i < w->num_reads; i++)
    fprintf(
        out,
        "    for (int32_t r = 0; r < 32; r++)\n"
        "      if ((bits[k] >> r) & 1) args->table_grad[%d][flat%d[r]] += ds[k * stride + r] * slope%d[r];\n",
        w->reads[i].buffer, i, i);
  fputs("  }\n", out);
}

static fx_status function(FILE *out, const fx_variant *variant, int number, fx_tile_function which,
                          bool comments, bool *made) {
  fx_code *code = NULL;
  fx_tile_read *reads = NULL;
  FX_TRY(fx_tile_code(variant, which, &code));
  *made = code != NULL;
  if (!code) return FX_OK;
  fx_status status;
  FX_TRY_GOTO(fx_tile_reads(variant, &reads), destroy_code);
  writer w = {out, code, reads, which == FX_TILE_TABLES ? variant->num_reads : 0, which, comments};
  fputs("static ", out);
  fprintf(out, g_heads[which], number); // NOLINT: the formats above
  fputs(" {\n", out);
  once_a_tile(&w);
  if (which == FX_TILE_IN_BOUNDS) fputs("  uint32_t any = 0;\n", out);
  once_a_key(&w);
  if (which == FX_TILE_IN_BOUNDS) fputs("  return !(any & 1);\n", out);
  fputs("}\n\n", out);
destroy_code:
  free(reads);
  fx_code_destroy(code);
  return status;
}

/* ---- the whole ---- */

static void comment(FILE *out, const char *text) {
  fputs("/* ", out);
  for (const char *c = text; *c; c++) {
    fputc(*c, out);
    if (c[0] == '*' && c[1] == '/') fputc(' ', out);
  }
  fputs(" */\n", out);
}

/* Breaks the text, which the preprocessor made one line, behind functions. */
static void semantics(FILE *out) {
  int depth = 0;
  for (const char *c = g_semantics; *c; c++) {
    fputc(*c, out);
    depth += *c == '{';
    if (*c == '}' && --depth == 0) fputc('\n', out);
  }
  fputc('\n', out);
}

static void prelude(FILE *out) {
  fputs("/* Generated. */\n#include <stdint.h>\n\n", out);
  semantics(out);
  fputs(g_structs, out);
  fprintf(out,
          "_Static_assert(sizeof(fx_tile_args) == %zu && sizeof(fx_tile_functions) == %zu, \"layout\");\n\n",
          sizeof(fx_tile_args), sizeof(fx_tile_functions));
}

static fx_status variant_text(FILE *out, const fx_variant *variant, int number, bool comments) {
  bool made[FX_TILE_FUNCTION_COUNT];
  if (comments) comment(out, variant->text ? variant->text : variant->name);
  for (int i = 0; i < FX_TILE_FUNCTION_COUNT; i++)
    FX_TRY(function(out, variant, number, i, comments, &made[i]));
  fprintf(out, "const fx_tile_functions fx_tile%d = {0", number);
  static const char *const names[] = {
#define FX_EMIT_NAME(upper, lower) #lower,
      FX_TILE_FUNCTIONS(FX_EMIT_NAME)
#undef FX_EMIT_NAME
  };
  for (int i = 0; i < FX_TILE_FUNCTION_COUNT; i++)
    if (made[i])
      fprintf(out, ", fx_tile%d_%s", number, names[i]);
    else
      fputs(", 0", out);
  fputs("};\n", out);
  return FX_OK;
}

fx_status fx_emit_c(const fx_variant *const *variants, int count, bool comments, char **source) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  if (!out) return fx_error(FX_ERR_MEMORY, "no memory for generated code");
  fx_status status = FX_OK;
  prelude(out);
  for (int i = 0; i < count && status == FX_OK; i++) status = variant_text(out, variants[i], i, comments);
  bool failed = ferror(out) != 0;
  if ((fclose(out) != 0 || failed) && status == FX_OK)
    status = fx_error(FX_ERR_MEMORY, "no memory for generated code");
  if (status == FX_OK)
    *source = text;
  else
    free(text);
  return status;
}
