/* SPDX-License-Identifier: Apache-2.0 */
/* What `flexion doctor` reports: facts, each with a JSON key and a line of text, and warnings. Printing is
 * cmd_doctor.c's; the collectors below only look, change nothing and cannot fail: what cannot be found out is
 * absent or null. */
#ifndef FX_LAUNCH_DOCTOR_H
#define FX_LAUNCH_DOCTOR_H

#include <jansson.h>

#include "core/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_doctor {
  json_t *facts;    /* object, in the order found */
  json_t *texts;    /* array of [label, text] */
  json_t *warnings; /* array of sentences */
} fx_doctor;

/* Takes `value`; the line of text is left out when `format` is NULL. */
void fx_doctor_fact(fx_doctor *doctor, const char *key, json_t *value, const char *label, const char *format,
                    ...) __attribute__((format(printf, 5, 6)));
void fx_doctor_warn(fx_doctor *doctor, const char *format, ...) __attribute__((format(printf, 2, 3)));

void fx_doctor_machine(fx_doctor *doctor);   /* processors, features, memory, limits */
void fx_doctor_compute(fx_doctor *doctor);   /* instruction set, threads, GEMM and its rate */
void fx_doctor_libraries(fx_doctor *doctor); /* MPI, HDF5, CUDA driver */

/* How a job of `ranks` ranks (0: parallel.tensor x parallel.context) is laid out; this one can fail:
 * FX_ERR_CONFIG where they do not divide, as in training. */
fx_status fx_doctor_layout(fx_doctor *doctor, const fx_config *config, int ranks);

#ifdef __cplusplus
}
#endif
#endif
