/* SPDX-License-Identifier: Apache-2.0 */
/* How far a misspelt name is from a known one: for sentences that say which name was probably meant. */
#ifndef FX_DYNAMO_RT_BASE_NEAREST_H
#define FX_DYNAMO_RT_BASE_NEAREST_H

#ifdef __cplusplus
extern "C" {
#endif

/* Insertions, deletions and substitutions that make one name the other; where one is a part of the other
 * (batch_size) at most 3, where one begins with the other (sliding) at most 2. Longer names than 64 bytes are
 * compared by their start. */
int fx_name_distance(const char *a, const char *b);

#ifdef __cplusplus
}
#endif
#endif
