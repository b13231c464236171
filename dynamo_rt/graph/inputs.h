/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime inputs: everything that changes from step to step (tokens, learning rate, step, divisor, documents,
 * mask limits) lives here, in a fixed layout, in several slots. The host fills a slot; the first nodes of a
 * plan copy from the slot named at run time. So a new batch never records or plans anything again. */
#ifndef FX_DYNAMO_RT_GRAPH_INPUTS_H
#define FX_DYNAMO_RT_GRAPH_INPUTS_H

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_MAX_INPUTS = 32 };

typedef struct fx_input_info {
  char name[32];
  fx_type type;
  size_t offset; /* bytes from the slot's base */
} fx_input_info;

typedef struct fx_inputs fx_inputs;

fx_status fx_inputs_create(int num_slots, fx_inputs **out);
void fx_inputs_destroy(fx_inputs *inputs); /* NULL is fine */
/* Declares an input (before fx_inputs_allocate); names are unique. */
fx_status fx_inputs_add(fx_inputs *inputs, const char *name, fx_type type);
fx_status fx_inputs_allocate(fx_inputs *inputs); /* zeroed slots */
/* The same in memory from which `device` copies fastest (pinned for a GPU); it outlives the inputs. */
fx_status fx_inputs_allocate_on(fx_inputs *inputs, fx_device *device);
/* Index by name, -1 when absent. */
int fx_inputs_find(const fx_inputs *inputs, const char *name);
const fx_input_info *fx_inputs_info(const fx_inputs *inputs, int index);
int fx_inputs_count(const fx_inputs *inputs);
void *fx_inputs_slot(const fx_inputs *inputs, int slot);                   /* its base */
void *fx_inputs_data(const fx_inputs *inputs, int slot, const char *name); /* asserts that the name exists */
size_t fx_inputs_slot_bytes(const fx_inputs *inputs);

#ifdef __cplusplus
}
#endif
#endif
