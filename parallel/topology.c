/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/topology.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "parallel/comm/cuda/comm_nccl.h"

enum { MAX_DIGITS = 6 }; /* a million ranks along one dimension are a typing error */

/* Reads "key:number" at *text and moves past it. */
static fx_status parse_entry(const char *whole, const char **text, int *const value[3]) {
  static const char *const keys[3] = {"tp", "cp", "dp"};
  const char *p = *text;
  for (int k = 0; k < 3; k++) {
    if (strncmp(p, keys[k], 2) != 0 || p[2] != ':') continue;
    if (*value[k])
      return fx_error(FX_ERR_CONFIG, "topology \"%s\": %s is given twice; give each of tp, cp, dp once",
                      whole, keys[k]);
    int digits = 0, number = 0;
    for (p += 3; isdigit((unsigned char)*p) && digits <= MAX_DIGITS; p++, digits++)
      number = number * 10 + (*p - '0');
    if (digits > MAX_DIGITS || number < 1 || (*p && !isspace((unsigned char)*p)))
      return fx_error(FX_ERR_CONFIG,
                      "topology \"%s\": %s: expected a number from 1 to 999999 after the colon, as in "
                      "\"tp:2 cp:2 dp:2\"",
                      whole, keys[k]);
    *value[k] = number;
    *text = p;
    return FX_OK;
  }
  return fx_error(FX_ERR_CONFIG,
                  "topology \"%s\": \"%.20s\" is none of tp:N, cp:N, dp:N; write it as \"tp:2 cp:2 dp:2\"",
                  whole, p);
}

fx_status fx_topology_parse(const char *text, fx_topology_shape *out) {
  fx_topology_shape shape = {0, 0, 0};
  int *const value[3] = {&shape.tp, &shape.cp, &shape.dp};
  const char *p = text;
  for (;;) {
    while (isspace((unsigned char)*p)) p++;
    if (!*p) break;
    FX_TRY(parse_entry(text, &p, value));
  }
  for (int k = 0; k < 3; k++)
    if (!*value[k]) *value[k] = 1;
  *out = shape;
  return FX_OK;
}

const char *fx_topology_text(fx_topology_shape shape, char *text, size_t capacity) {
  snprintf(text, capacity, "tp:%d cp:%d dp:%d", shape.tp, shape.cp, shape.dp);
  return text;
}

void fx_topology_coordinates(fx_topology_shape shape, int rank, int *tp_rank, int *cp_rank, int *dp_rank) {
  *tp_rank = rank % shape.tp;
  *cp_rank = rank / shape.tp % shape.cp;
  *dp_rank = rank / shape.tp / shape.cp;
}

int fx_topology_rank(fx_topology_shape shape, int tp_rank, int cp_rank, int dp_rank) {
  return tp_rank + shape.tp * (cp_rank + shape.cp * dp_rank);
}

const char *fx_topology_kind_name(fx_topology_kind kind) {
  static const char *const names[] = {
#define KIND_NAME(field, name) [FX_TOPOLOGY_KIND_##field] = name,
      FX_TOPOLOGY_COMM_LIST(KIND_NAME)
#undef KIND_NAME
  };
  return names[kind];
}

/* In rank order, which is the group order of every kind: cp runs faster than dp. */
int fx_topology_group(fx_topology_shape shape, fx_topology_kind kind, int rank, int *ranks) {
  static const struct {
    bool tp, cp, dp; /* the dimensions along which the group extends */
  } extent[] = {[FX_TOPOLOGY_KIND_world] = {true, true, true},
                [FX_TOPOLOGY_KIND_tp] = {true, false, false},
                [FX_TOPOLOGY_KIND_cp] = {false, true, false},
                [FX_TOPOLOGY_KIND_dp] = {false, false, true},
                [FX_TOPOLOGY_KIND_dp_cp] = {false, true, true}};
  int tp_rank, cp_rank, dp_rank, count = 0;
  fx_topology_coordinates(shape, rank, &tp_rank, &cp_rank, &dp_rank);
  for (int r = 0; r < shape.tp * shape.cp * shape.dp; r++) {
    int tp, cp, dp;
    fx_topology_coordinates(shape, r, &tp, &cp, &dp);
    if ((extent[kind].tp || tp == tp_rank) && (extent[kind].cp || cp == cp_rank) &&
        (extent[kind].dp || dp == dp_rank))
      ranks[count++] = r;
  }
  return count;
}

static fx_status split(fx_control *control, fx_device *device, const char *name, int id, const int *ranks,
                       int count, fx_comm **out) {
  if (device && device->backend == FX_BACKEND_CUDA)
    return fx_nccl_split(control, device, name, id, ranks, count, out);
  return fx_control_split(control, name, id, ranks, count, out);
}

static fx_status make_comms(fx_control *control, fx_device *device, fx_topology *t) {
  fx_topology_shape shape = {t->tp, t->cp, t->dp};
  int *ranks = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&ranks, (size_t)t->size, sizeof *ranks));
#define MAKE_COMM(field, name)                                                                     \
  if (status == FX_OK) {                                                                           \
    int count = fx_topology_group(shape, FX_TOPOLOGY_KIND_##field, t->rank, ranks);                \
    status = split(control, device, name, FX_TOPOLOGY_KIND_##field, ranks, count, &t->comm.field); \
  }
  FX_TOPOLOGY_COMM_LIST(MAKE_COMM)
#undef MAKE_COMM
  free(ranks);
  return status;
}

fx_status fx_topology_create(fx_control *control, int tp, int cp, fx_topology **out) {
  return fx_topology_create_on(control, NULL, tp, cp, out);
}

fx_status fx_topology_create_on(fx_control *control, fx_device *device, int tp, int cp, fx_topology **out) {
  int size = control->size;
  if (tp < 1 || size % tp)
    return fx_error(
        FX_ERR_CONFIG,
        "parallel.tensor: %d does not divide the %d rank%s of this job; choose a divisor of %d or "
        "start another number of ranks",
        tp, size, size == 1 ? "" : "s", size);
  if (cp < 1 || size / tp % cp)
    return fx_error(FX_ERR_CONFIG,
                    "parallel.context: %d does not divide the %d rank%s that parallel.tensor: %d leaves of "
                    "%d; choose a divisor of %d or start another number of ranks",
                    cp, size / tp, size / tp == 1 ? "" : "s", tp, size, size / tp);
  fx_topology *t = NULL;
  FX_TRY(fx_calloc(&t, 1, sizeof *t));
  t->rank = control->rank;
  t->size = size;
  t->tp = tp;
  t->cp = cp;
  t->dp = size / (tp * cp);
  fx_topology_coordinates((fx_topology_shape){t->tp, t->cp, t->dp}, t->rank, &t->tp_rank, &t->cp_rank,
                          &t->dp_rank);
  fx_status status = make_comms(control, device, t);
  if (status != FX_OK) {
    fx_topology_destroy(t);
    return status;
  }
  *out = t;
  return FX_OK;
}

fx_status fx_topology_share_heads(fx_control *control, fx_device *device, fx_topology *t, int share) {
  FX_ASSERT(share >= 1 && t->tp % share == 0 && !t->kv);
  if (share == 1) return FX_OK;
  int *ranks = NULL, first = t->tp_rank / share * share;
  FX_TRY(fx_calloc(&ranks, (size_t)share, sizeof *ranks));
  for (int i = 0; i < share; i++)
    ranks[i] = fx_topology_rank((fx_topology_shape){t->tp, t->cp, t->dp}, first + i, t->cp_rank, t->dp_rank);
  fx_status status = split(control, device, "kv", FX_TOPOLOGY_KINDS, ranks, share, &t->kv);
  free(ranks);
  return status;
}

void fx_topology_destroy(fx_topology *topology) {
  if (!topology) return;
#define DESTROY_COMM(field, name) fx_comm_destroy(topology->comm.field);
  FX_TOPOLOGY_COMM_LIST(DESTROY_COMM)
#undef DESTROY_COMM
  fx_comm_destroy(topology->kv);
  free(topology);
}
