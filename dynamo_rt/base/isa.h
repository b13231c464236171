/* SPDX-License-Identifier: Apache-2.0 */
/* Leaf functions compiled for several instruction sets and chosen by the loader. */
#ifndef FX_DYNAMO_RT_BASE_ISA_H
#define FX_DYNAMO_RT_BASE_ISA_H

/* OpenMP outlines a parallel body into a function without the attribute, so a loop over rows stays in the
 * caller. Sanitizers instrument the resolvers, which run before their run time is ready: no clones there. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FX_ISA_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#else
#define FX_ISA_CLONES
#endif

#endif
