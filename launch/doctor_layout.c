/* SPDX-License-Identifier: Apache-2.0 */
/* How a configuration places the ranks of a job: its topology and who is with whom in a group. */
#include <stdlib.h>
#include <string.h>

#include "core/model/model.h"
#include "dynamo_rt/base/memory.h"
#include "launch/doctor.h"
#include "parallel/topology.h"

enum { LINE_BYTES = 200 };

/* Groups as arrays, and as a line "0 1 | 2 3" that ends where it gets long. */
typedef struct listing {
  json_t *groups;
  char line[LINE_BYTES];
  bool full;
} listing;

static void list_group(listing *list, const int *ranks, int count) {
  char text[LINE_BYTES];
  size_t used = 0, have = strlen(list->line);
  json_t *group = json_array();
  for (int i = 0; i < count; i++) {
    json_array_append_new(group, json_integer(ranks[i]));
    if (used < sizeof text)
      used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", ranks[i]);
  }
  json_array_append_new(list->groups, group);
  if (list->full) return;
  list->full = have + used + sizeof " | ..." > sizeof list->line;
  int shown = list->full ? LINE_BYTES - (int)sizeof "..." : LINE_BYTES;
  if (list->full && have > 0) shown = 0;
  snprintf(list->line + have, sizeof list->line - have, "%s%.*s%s", have ? " | " : "", shown, text,
           list->full ? "..." : "");
}

static void tell(fx_doctor *doctor, json_t *all, const char *name, listing *list) {
  json_object_set_new(all, name, list->groups);
  json_array_append_new(doctor->texts, json_pack("[ss]", name, list->line));
}

static void kinds(fx_doctor *doctor, json_t *all, fx_topology_shape shape, int *ranks) {
  int size = shape.tp * shape.cp * shape.dp;
  for (int kind = FX_TOPOLOGY_KIND_tp; kind < FX_TOPOLOGY_KINDS; kind++) {
    listing list = {.groups = json_array()};
    for (int r = 0; r < size; r++) {
      int count = fx_topology_group(shape, (fx_topology_kind)kind, r, ranks);
      if (ranks[0] == r) list_group(&list, ranks, count);
    }
    tell(doctor, all, fx_topology_kind_name((fx_topology_kind)kind), &list);
  }
}

/* Neighbours of a tp group that hold the same key heads. */
static void key_heads(fx_doctor *doctor, json_t *all, int size, int share, int *ranks) {
  listing list = {.groups = json_array()};
  for (int first = 0; first < size; first += share) {
    for (int i = 0; i < share; i++) ranks[i] = first + i;
    list_group(&list, ranks, share);
  }
  tell(doctor, all, "kv", &list);
}

fx_status fx_doctor_layout(fx_doctor *doctor, const fx_config *config, int size) {
  fx_topology_shape shape = {(int)config->parallel.tensor, (int)config->parallel.context, 1};
  char text[64];
  int *ranks = NULL, share = fx_model_kv_ranks(config);
  if (size == 0) size = shape.tp * shape.cp;
  FX_TRY(fx_config_check_ranks(config, size));
  shape.dp = size / (shape.tp * shape.cp);
  FX_TRY(fx_calloc(&ranks, (size_t)size, sizeof *ranks));
  fx_topology_text(shape, text, sizeof text);
  json_t *groups = json_object();
  fx_doctor_fact(doctor, "layout",
                 json_pack("{s:i, s:s, s:o}", "ranks", size, "topology", text, "groups", groups), "layout",
                 "%d rank%s, %s", size, size == 1 ? "" : "s", text);
  kinds(doctor, groups, shape, ranks);
  if (share > 1) key_heads(doctor, groups, size, share, ranks);
  free(ranks);
  return FX_OK;
}
