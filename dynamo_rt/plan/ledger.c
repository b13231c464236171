/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/plan/ledger.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/plan/plan_internal.h"

static char *entry(const fx_plan *plan, const fx_node *node) {
  const fx_collective_attr *a = node->attr;
  const fx_type *type = &plan->graph->values[node->in[0]].type;
  char peers[48] = "";
  if (a->kind == FX_BROADCAST) snprintf(peers, sizeof peers, " root %d", a->peer);
  if (a->kind == FX_SEND || a->kind == FX_RECV)
    snprintf(peers, sizeof peers, " peer %+d", (a->peer - a->comm->rank + a->comm->size) % a->comm->size);
  if (a->kind == FX_SEND_RECV) /* relative, so that a ring shift reads alike on every rank */
    snprintf(peers, sizeof peers, " to %+d from %+d",
             (a->peer - a->comm->rank + a->comm->size) % a->comm->size,
             (a->peer_from - a->comm->rank + a->comm->size) % a->comm->size);
  return fx_strfmt("%s#%d %s %s %s x %lld%s %s (%s:%d, layer %d)\n", a->comm->name, a->comm->id,
                   fx_collective_name((fx_collective)a->kind), a->reduce == FX_REDUCE_MAX ? "max" : "sum",
                   fx_dtype_name(type->dtype), (long long)fx_type_numel(type), peers,
                   fx_lane_name((fx_lane)a->lane), node->file, node->line, node->layer);
}

char *fx_plan_ledger(const fx_plan *plan) {
  size_t length = 0;
  char *text = fx_strdup("");
  for (int32_t i = 0; text && i < plan->num_steps; i++) {
    const fx_node *node = &plan->graph->nodes[plan->steps[i].node];
    if (!(node->op->effects & FX_EFFECT_COLLECTIVE)) continue;
    char *line = entry(plan, node);
    size_t more = line ? strlen(line) : 0;
    char *grown = line ? realloc(text, length + more + 1) : NULL;
    if (!grown) {
      free(line);
      free(text);
      return NULL;
    }
    text = grown;
    memcpy(text + length, line, more + 1);
    length += more;
    free(line);
  }
  return text;
}
