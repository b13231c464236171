/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/outputs.h"

#include <stdlib.h>

#include "dynamo_rt/base/memory.h"

static fx_status code_of_tables(const fx_variant *variant, fx_code **code) {
  fx_ex *output;
  FX_TRY(fx_calloc(&output, (size_t)variant->num_reads * 4, sizeof *output));
  int count = 0;
  for (int32_t i = 0; i < variant->num_reads; i++) {
    const fx_ex_node *load = fx_ex_get(variant->pool, variant->reads[i].load);
    for (int k = 0; k < load->num_args; k++) output[count++] = load->arg[k];
    output[count++] = variant->reads[i].slope;
  }
  fx_status status = fx_code_create(variant->pool, output, count, code);
  free(output);
  return status;
}

/* The nodes among a and b that exist; nothing unless all `required` do. */
static fx_status code_of_nodes(const fx_variant *variant, fx_ex a, fx_ex b, int required, fx_code **code) {
  fx_ex output[2];
  int count = 0;
  if (a != FX_EX_NONE) output[count++] = a;
  if (b != FX_EX_NONE) output[count++] = b;
  if (count < required) return FX_OK;
  return fx_code_create(variant->pool, output, count, code);
}

fx_status fx_tile_code(const fx_variant *variant, fx_tile_function function, fx_code **code) {
  *code = NULL;
  switch (function) {
  case FX_TILE_MASK:
    return code_of_nodes(variant, variant->mask, FX_EX_NONE, 1, code);
  case FX_TILE_SCORE:
    return code_of_nodes(variant, variant->score, FX_EX_NONE, 1, code);
  case FX_TILE_SCORE_SLOPE:
    return code_of_nodes(variant, variant->score, variant->slope, 2, code);
  case FX_TILE_TABLES:
    return variant->num_reads ? code_of_tables(variant, code) : FX_OK;
  default:
    return code_of_nodes(variant, variant->mask_fault, variant->score_fault, 1, code);
  }
}

fx_status fx_tile_reads(const fx_variant *variant, fx_tile_read **reads) {
  FX_TRY(fx_calloc(reads, (size_t)variant->num_reads + 1, sizeof **reads));
  int32_t output = 0;
  for (int32_t i = 0; i < variant->num_reads; i++) {
    (*reads)[i] = (fx_tile_read){variant->reads[i].buffer, output};
    output += fx_ex_get(variant->pool, variant->reads[i].load)->num_args + 1;
  }
  return FX_OK;
}
