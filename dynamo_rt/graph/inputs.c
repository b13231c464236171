/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/graph/inputs.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

struct fx_inputs {
  fx_input_info info[FX_MAX_INPUTS];
  int count, num_slots;
  size_t slot_bytes;
  char *slots;
  fx_device *device; /* that allocated the slots, or NULL */
};

fx_status fx_inputs_create(int num_slots, fx_inputs **out) {
  fx_inputs *inputs = NULL;
  FX_TRY(fx_calloc(&inputs, 1, sizeof *inputs));
  inputs->num_slots = num_slots;
  *out = inputs;
  return FX_OK;
}

void fx_inputs_destroy(fx_inputs *inputs) {
  if (!inputs) return;
  if (inputs->device)
    fx_device_release_host(inputs->device, inputs->slots);
  else
    free(inputs->slots);
  free(inputs);
}

fx_status fx_inputs_add(fx_inputs *inputs, const char *name, fx_type type) {
  FX_ASSERT(!inputs->slots);
  if (inputs->count == FX_MAX_INPUTS)
    return fx_error(FX_ERR_GRAPH, "too many runtime inputs: %s would be number %d", name, inputs->count + 1);
  if (fx_inputs_find(inputs, name) >= 0)
    return fx_error(FX_ERR_GRAPH, "runtime input %s is declared twice", name);
  fx_input_info *info = &inputs->info[inputs->count++];
  strncpy(info->name, name, sizeof info->name - 1);
  info->type = type;
  info->offset = inputs->slot_bytes;
  inputs->slot_bytes += fx_align_up(fx_type_bytes(&type), FX_ALIGN);
  return FX_OK;
}

static size_t bytes_of_slots(const fx_inputs *inputs) {
  return inputs->slot_bytes * (size_t)inputs->num_slots;
}

fx_status fx_inputs_allocate(fx_inputs *inputs) {
  FX_TRY(fx_alloc_aligned(&inputs->slots, bytes_of_slots(inputs)));
  memset(inputs->slots, 0, bytes_of_slots(inputs));
  return FX_OK;
}

fx_status fx_inputs_allocate_on(fx_inputs *inputs, fx_device *device) {
  void *slots = NULL;
  FX_TRY(fx_device_alloc_host(device, bytes_of_slots(inputs), &slots));
  memset(slots, 0, bytes_of_slots(inputs));
  inputs->device = device;
  inputs->slots = slots;
  return FX_OK;
}

int fx_inputs_find(const fx_inputs *inputs, const char *name) {
  for (int i = 0; inputs && i < inputs->count; i++)
    if (strcmp(inputs->info[i].name, name) == 0) return i;
  return -1;
}

const fx_input_info *fx_inputs_info(const fx_inputs *inputs, int index) {
  return &inputs->info[index];
}

int fx_inputs_count(const fx_inputs *inputs) {
  return inputs->count;
}

void *fx_inputs_slot(const fx_inputs *inputs, int slot) {
  FX_ASSERT(slot >= 0 && slot < inputs->num_slots);
  return inputs->slots + (size_t)slot * inputs->slot_bytes;
}

void *fx_inputs_data(const fx_inputs *inputs, int slot, const char *name) {
  int index = fx_inputs_find(inputs, name);
  FX_ASSERT(index >= 0);
  return (char *)fx_inputs_slot(inputs, slot) + inputs->info[index].offset;
}

size_t fx_inputs_slot_bytes(const fx_inputs *inputs) {
  return inputs->slot_bytes;
}
