/* SPDX-License-Identifier: Apache-2.0 */
/* The memory account of a run on the host: what flexion planned, line by line, against what the kernel
 * counted. */
#ifndef FX_CORE_BENCH_MEMORY_H
#define FX_CORE_BENCH_MEMORY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes from /proc/self/status, 0 where it cannot be read. */
int64_t fx_memory_peak(void);     /* VmHWM: the most that was ever resident */
int64_t fx_memory_resident(void); /* VmRSS: resident now */

/* Makes VmHWM what is resident now, after freed memory has gone back to the system; without the rights for
 * that it stays what it was. */
void fx_memory_reset_peak(void);

#ifdef __cplusplus
}
#endif
#endif
