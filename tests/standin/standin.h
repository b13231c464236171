/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that computes nothing, behind the interfaces of the CUDA driver, NVRTC, cuBLASLt and NCCL: one shared
 * library under their four names. What flexion's host side does with a GPU runs where there is none: memory
 * and copies are real (also those that a graph has recorded, at its launch), kernels and products are not,
 * but for the one by which a stream tells the host where it is.
 *
 * It is strict where drivers are, or sloppier than they may be: device memory cannot be read by the host,
 * ranges must lie in what is allocated, nothing is allocated or waited for in a capture, a capture's streams
 * are joined before its end, launches and tensor maps are within limits. What is not prints a line and fails.
 * What kernels would have written is zero.
 *
 * FLEXION_STANDIN_GPUS: how many there are (1). FLEXION_STANDIN_LAUNCH_US: what the launch of a kernel takes
 * outside of a graph (0), so that who measures finds graphs faster. FLEXION_STANDIN_HANG=R:N: the N-th
 * collective of rank R never ends. FLEXION_STANDIN_LOG: a file to which every launch of a graph adds the
 * counts so far; ".R" is appended, the rank under mpirun. */
#ifndef FX_TESTS_STANDIN_H
#define FX_TESTS_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  STANDIN_OK = 0,
  STANDIN_INVALID = 1,
  STANDIN_MEMORY = 2,
  STANDIN_NOT_FOUND = 500,
  STANDIN_UNSUPPORTED = 801,
  STANDIN_IN_CAPTURE = 900,
  STANDIN_UNJOINED = 904
};
enum { STANDIN_MIB = 8192 }; /* of memory */

#define STANDIN_EXPORT __attribute__((visibility("default")))

/* Prints what is wrong; returns code. */
int standin_fault(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int standin_not_in_capture(const char *what);
/* Whether [address, address + bytes) lies in one allocation of device or pinned memory. */
int standin_check(const char *what, const void *address, size_t bytes);
/* On a stream (or into its capture): copies; fills; only takes its place. */
int standin_copy(const void *to, const void *from, size_t bytes, void *stream);
int standin_fill(const void *to, int byte, size_t bytes, void *stream);
int standin_kernel(void *stream);
int standin_word(uint64_t to, uint32_t word, void *stream);
/* The same for a collective, which may be the one that never ends; what waits for it waits until an abort. */
int standin_collective(void *stream);
void standin_abort(void);

#endif
