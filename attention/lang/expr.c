/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/lang/expr.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/fold.h"
#include "attention/lang/pool.h"

typedef enum op_kind { LEAF, ARITH, INTS, FLOATS, BITS, COMPARE, LOGIC, OTHER } op_kind;

static const struct {
  const char *name, *spelling;
  int8_t arity, kind;
} g_ops[FX_EX_OP_COUNT] = {
#define FX_EX_ROW(name, spelling, arity, kind) {#name, spelling, arity, kind},
    FX_EX_OPS(FX_EX_ROW)
#undef FX_EX_ROW
};

static const char *const g_types[FX_EX_TYPE_COUNT] = {"bool", "int", "float"};
static const char *const g_vars[FX_EX_VAR_COUNT] = {"score", "h", "q", "kv"};

const char *fx_ex_op_name(fx_ex_op op) {
  return g_ops[op].name;
}
const char *fx_ex_op_spelling(fx_ex_op op) {
  return g_ops[op].spelling;
}
const char *fx_ex_type_name(fx_ex_type type) {
  return g_types[type];
}
const char *fx_ex_var_name(fx_ex_var var) {
  return g_vars[var];
}

bool fx_ex_is_reserved(const char *name) {
  static const char *const words[] = {"b",   "T",   "T_kv", "H",  "true", "false", "bool", "inf",
                                      "min", "max", "and",  "or", "not",  "if",    "else"};
  for (int i = 0; i < FX_EX_VAR_COUNT; i++)
    if (strcmp(name, g_vars[i]) == 0) return true;
  for (int i = 0; i < FX_EX_OP_COUNT; i++)
    if (strcmp(name, g_ops[i].spelling) == 0) return true;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcmp(name, words[i]) == 0) return true;
  return false;
}

/* ---- the pool ---- */

fx_ex_pool *fx_ex_pool_create(const fx_ex_ranges *ranges) {
  fx_ex_pool *pool = calloc(1, sizeof *pool);
  if (!pool) {
    fx_error(FX_ERR_MEMORY, "no memory for an expression pool");
    return NULL;
  }
  pool->ranges = *ranges;
  return pool;
}

void fx_ex_pool_destroy(fx_ex_pool *pool) {
  if (!pool) return;
  for (int i = 0; i < pool->num_buffers; i++) free((void *)(uintptr_t)pool->buffers[i].constant);
  free(pool->nodes);
  free(pool->table);
  free(pool);
}

const fx_ex_ranges *fx_ex_pool_ranges(const fx_ex_pool *pool) {
  return &pool->ranges;
}
int32_t fx_ex_pool_count(const fx_ex_pool *pool) {
  return pool->num_nodes;
}
const fx_ex_node *fx_ex_get(const fx_ex_pool *pool, fx_ex node) {
  FX_ASSERT(node >= 0 && node < pool->num_nodes);
  return &pool->nodes[node];
}
int32_t fx_ex_num_params(const fx_ex_pool *pool) {
  return pool->num_params;
}
int32_t fx_ex_num_buffers(const fx_ex_pool *pool) {
  return pool->num_buffers;
}
const fx_ex_param *fx_ex_param_at(const fx_ex_pool *pool, int32_t index) {
  FX_ASSERT(index >= 0 && index < pool->num_params);
  return &pool->params[index];
}
const fx_ex_buffer *fx_ex_buffer_at(const fx_ex_pool *pool, int32_t index) {
  FX_ASSERT(index >= 0 && index < pool->num_buffers);
  return &pool->buffers[index];
}

static bool name_is_free(const fx_ex_pool *pool, const char *name) {
  size_t length = strnlen(name, 32);
  bool good = length > 0 && length < 32 && !isdigit((unsigned char)name[0]);
  for (size_t i = 0; i < length; i++) good = good && (isalnum((unsigned char)name[i]) || name[i] == '_');
  if (!good) {
    fx_error(FX_ERR_CONFIG, "\"%.40s\" is no name: letters, digits and _, at most 31, not a digit first",
             name);
    return false;
  }
  bool known = fx_ex_is_reserved(name);
  for (int i = 0; i < pool->num_params; i++) known = known || strcmp(pool->params[i].name, name) == 0;
  for (int i = 0; i < pool->num_buffers; i++) known = known || strcmp(pool->buffers[i].name, name) == 0;
  if (known) fx_error(FX_ERR_CONFIG, "the name \"%s\" is taken; choose another one", name);
  return !known;
}

int32_t fx_ex_declare_param(fx_ex_pool *pool, const char *name, float value) {
  if (!name_is_free(pool, name)) return -1;
  if (pool->num_params == FX_EX_MAX_PARAMS) {
    fx_error(FX_ERR_CONFIG, "more than %d parameters", FX_EX_MAX_PARAMS);
    return -1;
  }
  fx_ex_param *param = &pool->params[pool->num_params];
  memcpy(param->name, name, strlen(name) + 1);
  param->value = value;
  return pool->num_params++;
}

int32_t fx_ex_declare_buffer(fx_ex_pool *pool, const fx_ex_buffer *buffer) {
  if (!name_is_free(pool, buffer->name)) return -1;
  if (pool->num_buffers == FX_EX_MAX_BUFFERS) {
    fx_error(FX_ERR_CONFIG, "more than %d buffers", FX_EX_MAX_BUFFERS);
    return -1;
  }
  int64_t count = 1;
  bool fits = buffer->ndim >= 1 && buffer->ndim <= 3;
  for (int i = 0; fits && i < buffer->ndim; i++) {
    fits = buffer->dim[i] >= 1;
    count *= buffer->dim[i];
    fits = fits && count <= INT32_MAX;
  }
  if (!fits || buffer->type == FX_EX_BOOL) {
    fx_error(FX_ERR_CONFIG, "buffer \"%s\": 1 to 3 extents from 1, at most 2147483647 ints or floats in all",
             buffer->name);
    return -1;
  }
  if (buffer->learnable && (buffer->type != FX_EX_FLOAT || buffer->per_batch || buffer->constant)) {
    fx_error(FX_ERR_CONFIG, "buffer \"%s\": a learnable table holds floats, one set for all samples",
             buffer->name);
    return -1;
  }
  if ((buffer->monotone || buffer->segment || buffer->segment_end) &&
      (buffer->type != FX_EX_INT || buffer->ndim != 1)) {
    fx_error(FX_ERR_CONFIG, "buffer \"%s\": monotone and segment buffers hold ints under one index",
             buffer->name);
    return -1;
  }
  fx_ex_buffer *own = &pool->buffers[pool->num_buffers];
  *own = *buffer;
  own->monotone = own->monotone || own->segment || own->segment_end;
  if (buffer->constant) {
    void *copy = malloc((size_t)count * 4);
    if (!copy) {
      fx_error(FX_ERR_MEMORY, "no memory for the table \"%s\"", buffer->name);
      return -1;
    }
    memcpy(copy, buffer->constant, (size_t)count * 4);
    own->constant = copy;
  }
  return pool->num_buffers++;
}

/* ---- hash-consing ---- */

static uint64_t mix(uint64_t hash, uint64_t word) { /* splitmix64's finaliser */
  hash += 0x9e3779b97f4a7c15ull + word;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
  return hash ^ (hash >> 31);
}

static bool same_node(const fx_ex_node *a, const fx_ex_node *b) {
  return a->op == b->op && a->type == b->type && a->index == b->index && a->value.i == b->value.i &&
         memcmp(a->arg, b->arg, sizeof a->arg) == 0;
}

static bool grow(fx_ex_pool *pool) {
  int32_t capacity = pool->capacity ? 2 * pool->capacity : 256;
  fx_ex_node *nodes = realloc(pool->nodes, (size_t)capacity * sizeof *nodes);
  if (!nodes) return false;
  pool->nodes = nodes;
  int32_t *table = malloc(2 * (size_t)capacity * sizeof *table);
  if (!table) return false;
  memset(table, 0xff, 2 * (size_t)capacity * sizeof *table);
  free(pool->table);
  pool->table = table;
  pool->capacity = capacity;
  for (int32_t i = 0; i < pool->num_nodes; i++) {
    uint64_t at = pool->nodes[i].hash;
    while (table[at & (uint64_t)(2 * capacity - 1)] >= 0) at++;
    table[at & (uint64_t)(2 * capacity - 1)] = i;
  }
  return true;
}

/* Declarations enter a hash by what a kernel sees of them, not by name. */
static uint64_t hash_of(const fx_ex_pool *pool, const fx_ex_node *node) {
  uint64_t hash = mix(node->op, node->type);
  hash = mix(hash, (uint64_t)(uint32_t)node->index);
  hash = mix(hash, (uint32_t)node->value.i);
  for (int i = 0; i < node->num_args; i++) hash = mix(hash, pool->nodes[node->arg[i]].hash);
  return hash;
}

fx_ex fx_ex_intern(fx_ex_pool *pool, fx_ex_node node) {
  for (int i = node.num_args; i < 3; i++) node.arg[i] = FX_EX_NONE;
  node.depends = node.op == FX_EX_VAR ? (uint8_t)(1u << node.index) : 0;
  for (int i = 0; i < node.num_args; i++) node.depends |= pool->nodes[node.arg[i]].depends;
  node.hash = hash_of(pool, &node);
  if (pool->num_nodes == pool->capacity && !grow(pool)) {
    fx_error(FX_ERR_MEMORY, "no memory for an expression");
    return FX_EX_NONE;
  }
  uint64_t at = node.hash, last = (uint64_t)(2 * pool->capacity - 1);
  for (; pool->table[at & last] >= 0; at++)
    if (same_node(&pool->nodes[pool->table[at & last]], &node)) return pool->table[at & last];
  if (pool->num_nodes == FX_EX_MAX_NODES) {
    fx_error(FX_ERR_CONFIG, "the expression is larger than %d operations; simplify it", FX_EX_MAX_NODES);
    return FX_EX_NONE;
  }
  pool->table[at & last] = pool->num_nodes;
  pool->nodes[pool->num_nodes] = node;
  return pool->num_nodes++;
}

/* ---- leaves ---- */

fx_ex fx_ex_int(fx_ex_pool *pool, int32_t value) {
  return fx_ex_intern(pool, (fx_ex_node){.op = FX_EX_CONST, .type = FX_EX_INT, .value.i = value});
}
fx_ex fx_ex_float(fx_ex_pool *pool, float value) {
  if (value != value) value = __builtin_nanf(""); /* one NaN */
  return fx_ex_intern(pool, (fx_ex_node){.op = FX_EX_CONST, .type = FX_EX_FLOAT, .value.f = value});
}
fx_ex fx_ex_bool(fx_ex_pool *pool, bool value) {
  return fx_ex_intern(pool, (fx_ex_node){.op = FX_EX_CONST, .type = FX_EX_BOOL, .value.i = value});
}
fx_ex fx_ex_variable(fx_ex_pool *pool, fx_ex_var var) {
  uint8_t type = var == FX_EX_SCORE ? FX_EX_FLOAT : FX_EX_INT;
  return fx_ex_intern(pool, (fx_ex_node){.op = FX_EX_VAR, .type = type, .index = (int32_t)var});
}
fx_ex fx_ex_parameter(fx_ex_pool *pool, int32_t index) {
  FX_ASSERT(index >= 0 && index < pool->num_params);
  return fx_ex_intern(pool, (fx_ex_node){.op = FX_EX_PARAM, .type = FX_EX_FLOAT, .index = index});
}

fx_ex fx_ex_load(fx_ex_pool *pool, int32_t buffer, const fx_ex *index) {
  const fx_ex_buffer *declared = fx_ex_buffer_at(pool, buffer);
  fx_ex_node node = {.op = FX_EX_LOAD, .type = (uint8_t)declared->type, .index = buffer};
  node.num_args = (uint8_t)declared->ndim;
  for (int i = 0; i < declared->ndim; i++) {
    node.arg[i] = fx_ex_convert(pool, index[i], FX_EX_INT);
    if (node.arg[i] == FX_EX_NONE) return FX_EX_NONE;
  }
  return fx_ex_intern(pool, node);
}

/* ---- operators ---- */

fx_ex fx_ex_convert(fx_ex_pool *pool, fx_ex a, fx_ex_type type) {
  if (a == FX_EX_NONE) return a;
  fx_ex_type have = pool->nodes[a].type;
  if (have == type) return a;
  if (type == FX_EX_BOOL && have == FX_EX_INT) return fx_ex_binary(pool, FX_EX_NE, a, fx_ex_int(pool, 0));
  if (type == FX_EX_INT && have == FX_EX_BOOL) return fx_ex_unary(pool, FX_EX_TO_INT, a);
  if (type == FX_EX_FLOAT) return fx_ex_unary(pool, FX_EX_TO_FLOAT, a);
  fx_error(FX_ERR_CONFIG, type == FX_EX_INT
                              ? "a float stands where an int is needed; write int(...) to truncate it"
                              : "a float stands where a condition is needed; compare it, e.g. with != 0.0");
  return FX_EX_NONE;
}

/* The type that two arguments meet in, at least `least`. */
static fx_ex_type meet(const fx_ex_pool *pool, fx_ex a, fx_ex b, fx_ex_type least) {
  fx_ex_type type = pool->nodes[a].type > least ? pool->nodes[a].type : least;
  return pool->nodes[b].type > type ? pool->nodes[b].type : type;
}

/* Types that an operator's arguments take and that it gives; false: no such operator on these. */
static bool types_of(const fx_ex_pool *pool, fx_ex_op op, fx_ex a, fx_ex b, fx_ex_type *takes,
                     fx_ex_type *gives) {
  fx_ex_type have = pool->nodes[a].type;
  switch ((op_kind)g_ops[op].kind) {
  case ARITH:
    *takes = *gives = meet(pool, a, b, FX_EX_INT);
    return true;
  case INTS:
    *takes = *gives = FX_EX_INT;
    return true;
  case FLOATS:
    *takes = *gives = FX_EX_FLOAT;
    return true;
  case BITS:
    *takes = *gives = meet(pool, a, b, FX_EX_BOOL);
    return *takes != FX_EX_FLOAT;
  case COMPARE:
    *takes = meet(pool, a, b, FX_EX_BOOL);
    if (*takes == FX_EX_BOOL) *takes = FX_EX_INT;
    *gives = FX_EX_BOOL;
    return true;
  case LOGIC:
    *takes = *gives = FX_EX_BOOL;
    return true;
  case LEAF:
  case OTHER:
  default:
    *takes = have;
    *gives = op == FX_EX_TO_INT ? FX_EX_INT : FX_EX_FLOAT;
    return op == FX_EX_TO_INT || op == FX_EX_TO_FLOAT;
  }
}

static fx_ex operate(fx_ex_pool *pool, fx_ex_op op, int arity, fx_ex a, fx_ex b) {
  if (a == FX_EX_NONE || b == FX_EX_NONE) return FX_EX_NONE;
  FX_ASSERT(g_ops[op].arity == arity);
  fx_ex_type takes, gives;
  if (!types_of(pool, op, a, b, &takes, &gives)) {
    fx_error(FX_ERR_CONFIG, "%s takes ints or conditions, not a float", g_ops[op].spelling);
    return FX_EX_NONE;
  }
  a = fx_ex_convert(pool, a, takes);
  b = arity == 2 ? fx_ex_convert(pool, b, takes) : a;
  if (a == FX_EX_NONE || b == FX_EX_NONE) return FX_EX_NONE;
  if (gives == FX_EX_BOOL && g_ops[op].kind == BITS) /* on conditions they are the logical operators */
    switch (op) {
    case FX_EX_BIT_NOT:
      op = FX_EX_NOT;
      break;
    case FX_EX_BIT_AND:
      op = FX_EX_AND;
      break;
    case FX_EX_BIT_OR:
      op = FX_EX_OR;
      break;
    default:
      op = FX_EX_NE;
      break;
    }
  return fx_ex_simplify(pool, (fx_ex_node){.op = (uint8_t)op,
                                           .type = (uint8_t)gives,
                                           .num_args = (uint8_t)arity,
                                           .arg = {a, arity == 2 ? b : FX_EX_NONE, FX_EX_NONE}});
}

fx_ex fx_ex_unary(fx_ex_pool *pool, fx_ex_op op, fx_ex a) {
  return operate(pool, op, 1, a, a);
}
fx_ex fx_ex_binary(fx_ex_pool *pool, fx_ex_op op, fx_ex a, fx_ex b) {
  return operate(pool, op, 2, a, b);
}
fx_ex fx_ex_greater(fx_ex_pool *pool, fx_ex a, fx_ex b) {
  return operate(pool, FX_EX_LT, 2, b, a);
}
fx_ex fx_ex_greater_equal(fx_ex_pool *pool, fx_ex a, fx_ex b) {
  return operate(pool, FX_EX_LE, 2, b, a);
}

fx_ex fx_ex_select(fx_ex_pool *pool, fx_ex condition, fx_ex a, fx_ex b) {
  if (condition == FX_EX_NONE || a == FX_EX_NONE || b == FX_EX_NONE) return FX_EX_NONE;
  fx_ex_type type = meet(pool, a, b, FX_EX_BOOL);
  condition = fx_ex_convert(pool, condition, FX_EX_BOOL);
  a = fx_ex_convert(pool, a, type);
  b = fx_ex_convert(pool, b, type);
  if (condition == FX_EX_NONE || a == FX_EX_NONE || b == FX_EX_NONE) return FX_EX_NONE;
  return fx_ex_simplify(
      pool, (fx_ex_node){.op = FX_EX_SELECT, .type = (uint8_t)type, .num_args = 3, .arg = {condition, a, b}});
}

/* Arguments have smaller numbers, so one pass in order rebuilds everything; `made` is indexed by old number.
 */
fx_ex fx_ex_substitute(fx_ex_pool *pool, fx_ex node, const fx_ex with[FX_EX_VAR_COUNT]) {
  if (node == FX_EX_NONE) return node;
  fx_ex *made = malloc(((size_t)node + 1) * sizeof *made);
  if (!made) {
    fx_error(FX_ERR_MEMORY, "no memory for an expression");
    return FX_EX_NONE;
  }
  memset(made, 0xff, ((size_t)node + 1) * sizeof *made);
  bool *needed = fx_ex_reachable(pool, &node, 1);
  fx_ex result = FX_EX_NONE;
  for (fx_ex i = 0; needed && i <= node; i++) {
    if (!needed[i]) continue;
    fx_ex_node n = pool->nodes[i];
    if (n.op == FX_EX_VAR) {
      made[i] = with[n.index] == FX_EX_NONE ? i : with[n.index];
    } else {
      for (int k = 0; k < n.num_args; k++) n.arg[k] = made[n.arg[k]];
      made[i] = fx_ex_simplify(pool, n);
    }
    if (made[i] == FX_EX_NONE) break;
    result = made[i];
  }
  bool done = needed && made[node] != FX_EX_NONE;
  free(needed);
  free(made);
  return done ? result : FX_EX_NONE;
}

bool *fx_ex_reachable(const fx_ex_pool *pool, const fx_ex *roots, int num_roots) {
  fx_ex last = 0;
  for (int i = 0; i < num_roots; i++) last = roots[i] > last ? roots[i] : last;
  bool *needed = calloc((size_t)last + 1, sizeof *needed);
  if (!needed) {
    fx_error(FX_ERR_MEMORY, "no memory for an expression");
    return NULL;
  }
  for (int i = 0; i < num_roots; i++)
    if (roots[i] != FX_EX_NONE) needed[roots[i]] = true;
  for (fx_ex i = last; i >= 0; i--)
    for (int k = 0; needed[i] && k < pool->nodes[i].num_args; k++) needed[pool->nodes[i].arg[k]] = true;
  return needed;
}
