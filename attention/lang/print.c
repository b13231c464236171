/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/lang/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 1 << 20, MAX_DEPTH = 8192 };

/* How tightly a text binds, as in parser.c. */
enum { TERNARY, OR, AND, BIT_OR, BIT_XOR, BIT_AND, COMPARE, SHIFT, SUM, PRODUCT, UNARY, PRIMARY };

typedef struct printer {
  const fx_ex_pool *pool;
  FILE *stream;
  int depth;
  long bytes;
  bool failed;
} printer;

static const fx_ex_node *get(const printer *p, fx_ex node) {
  return fx_ex_get(p->pool, node);
}

static void put(printer *p, const char *text) {
  int n = fprintf(p->stream, "%s", text);
  p->bytes += n;
  p->failed = p->failed || n < 0 || p->bytes > MAX_BYTES;
}

static bool is_bool(const printer *p, fx_ex node) {
  return get(p, node)->type == FX_EX_BOOL;
}

static int level_of(const printer *p, const fx_ex_node *n) {
  switch ((fx_ex_op)n->op) {
  case FX_EX_CONST:
    if (n->type == FX_EX_FLOAT && isnan(n->value.f)) return SUM; /* inf - inf */
    if (n->type == FX_EX_FLOAT) return signbit(n->value.f) ? UNARY : PRIMARY;
    return n->value.i < 0 ? UNARY : PRIMARY;
  case FX_EX_SELECT:
    return TERNARY;
  case FX_EX_OR:
    return OR;
  case FX_EX_AND:
    return AND;
  case FX_EX_BIT_OR:
    return BIT_OR;
  case FX_EX_BIT_XOR:
    return BIT_XOR;
  case FX_EX_BIT_AND:
    return BIT_AND;
  case FX_EX_NE:
    return is_bool(p, n->arg[0]) ? BIT_XOR : COMPARE; /* conditions that differ are written a ^ b */
  case FX_EX_LT:
  case FX_EX_LE:
  case FX_EX_EQ:
    return COMPARE;
  case FX_EX_SHL:
  case FX_EX_SHR:
    return SHIFT;
  case FX_EX_ADD:
  case FX_EX_SUB:
    return SUM;
  case FX_EX_MUL:
  case FX_EX_DIV:
  case FX_EX_MOD:
    return PRODUCT;
  case FX_EX_NEG:
  case FX_EX_NOT:
  case FX_EX_BIT_NOT:
    return UNARY;
  default:
    return PRIMARY;
  }
}

static void print_constant(printer *p, const fx_ex_node *n) {
  char text[40];
  if (n->type == FX_EX_BOOL) {
    put(p, n->value.i ? "true" : "false");
    return;
  }
  if (n->type == FX_EX_INT) {
    snprintf(text, sizeof text, "%d", n->value.i);
    put(p, text);
    return;
  }
  float f = n->value.f;
  if (isnan(f) || isinf(f)) {
    put(p, isnan(f) ? "inf - inf" : f < 0 ? "-inf" : "inf");
    return;
  }
  for (int digits = 1; digits <= 9; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, (double)f);
    if (strtof(text, NULL) == f) break;
  }
  bool real = false;
  for (const char *c = text; *c; c++) real = real || *c == '.' || *c == 'e';
  put(p, text);
  if (!real) put(p, ".0");
}

static void print_node(printer *p, fx_ex node, int least);

/* The argument of a conversion that the reader of the text makes again. */
static fx_ex implicit(const printer *p, fx_ex node) {
  return get(p, node)->op == FX_EX_TO_FLOAT ? get(p, node)->arg[0] : node;
}

/* Two sides that meet in one type: the second's conversion to float is left out beside a float, else the
 * first's. */
static void elide(const printer *p, fx_ex *a, fx_ex *b) {
  fx_ex other = implicit(p, *b);
  if (other != *b)
    *b = other;
  else if (get(p, *b)->type == FX_EX_FLOAT)
    *a = implicit(p, *a);
}

static bool commutes(const fx_ex_node *n) {
  fx_ex_op op = (fx_ex_op)n->op;
  return op == FX_EX_ADD || op == FX_EX_MUL || op == FX_EX_BIT_AND || op == FX_EX_BIT_OR ||
         op == FX_EX_BIT_XOR || op == FX_EX_EQ || op == FX_EX_NE ||
         ((op == FX_EX_MIN || op == FX_EX_MAX) && n->type == FX_EX_INT);
}

static void print_binary(printer *p, const fx_ex_node *n) {
  fx_ex a = n->arg[0], b = n->arg[1];
  int level = level_of(p, n);
  elide(p, &a, &b);
  bool nests = level_of(p, get(p, b)) == level && level_of(p, get(p, a)) != level;
  bool constant = get(p, a)->op == FX_EX_CONST && get(p, b)->op != FX_EX_CONST;
  if (commutes(n) && (nests || constant)) {
    fx_ex first = a;
    a = b;
    b = first;
  }
  const char *sign = n->op == FX_EX_NE && level == BIT_XOR ? "^" : fx_ex_op_spelling((fx_ex_op)n->op);
  print_node(p, a, level == COMPARE ? level + 1 : level);
  put(p, " ");
  put(p, sign);
  put(p, " ");
  print_node(p, b, level + 1);
}

/* min(min(a, b), c) is min(a, b, c). */
static void print_least(printer *p, const fx_ex_node *n) {
  fx_ex a = n->arg[0], b = n->arg[1];
  elide(p, &a, &b);
  if (commutes(n) && get(p, b)->op == n->op && get(p, a)->op != n->op) {
    fx_ex first = a;
    a = b;
    b = first;
  }
  if (++p->depth > MAX_DEPTH) p->failed = true;
  if (p->failed) return;
  if (get(p, a)->op == n->op && get(p, a)->type == n->type)
    print_least(p, get(p, a));
  else
    print_node(p, a, TERNARY);
  p->depth--;
  put(p, ", ");
  print_node(p, b, TERNARY);
}

static void print_call(printer *p, const fx_ex_node *n) {
  bool load = n->op == FX_EX_LOAD;
  fx_ex_op op = (fx_ex_op)n->op;
  put(p, load ? fx_ex_buffer_at(p->pool, n->index)->name : fx_ex_op_spelling(op));
  put(p, load ? "[" : "(");
  if (op == FX_EX_MIN || op == FX_EX_MAX) {
    print_least(p, n);
  } else {
    for (int i = 0; i < n->num_args; i++) {
      bool floats = op >= FX_EX_EXP && op <= FX_EX_FLOOR;
      if (i) put(p, ", ");
      print_node(p, floats ? implicit(p, n->arg[i]) : n->arg[i], TERNARY);
    }
  }
  put(p, load ? "]" : ")");
}

static void print_select(printer *p, const fx_ex_node *n) {
  fx_ex a = n->arg[1], b = n->arg[2];
  elide(p, &a, &b);
  print_node(p, n->arg[0], OR);
  put(p, " ? ");
  print_node(p, a, TERNARY);
  put(p, " : ");
  print_node(p, b, TERNARY);
}

static void print_node(printer *p, fx_ex node, int least) {
  if (++p->depth > MAX_DEPTH) p->failed = true;
  if (p->failed) return;
  const fx_ex_node *n = get(p, node);
  int level = level_of(p, n);
  if (level < least) put(p, "(");
  if (n->op == FX_EX_CONST) {
    print_constant(p, n);
  } else if (n->op == FX_EX_VAR) {
    put(p, fx_ex_var_name((fx_ex_var)n->index));
  } else if (n->op == FX_EX_PARAM) {
    put(p, fx_ex_param_at(p->pool, n->index)->name);
  } else if (level == UNARY) {
    put(p, fx_ex_op_spelling((fx_ex_op)n->op));
    print_node(p, n->arg[0], UNARY);
  } else if (level == TERNARY) {
    print_select(p, n);
  } else if (level == PRIMARY) {
    print_call(p, n);
  } else {
    print_binary(p, n);
  }
  if (level < least) put(p, ")");
  p->depth--;
}

char *fx_ex_print(const fx_ex_pool *pool, fx_ex node) {
  char *text = NULL;
  size_t bytes = 0;
  printer p = {.pool = pool, .stream = open_memstream(&text, &bytes)};
  if (p.stream) print_node(&p, node, TERNARY);
  if (!p.stream || fclose(p.stream) != 0) {
    free(text);
    fx_error(FX_ERR_MEMORY, "no memory for the text of an expression");
    return NULL;
  }
  if (p.failed) {
    free(text);
    fx_error(FX_ERR_CONFIG, "the expression is too large to be written out");
    return NULL;
  }
  return text;
}

/* ---- canonical form ---- */

static void canonical_buffers(const fx_ex_pool *pool, const bool *needed, fx_ex last, FILE *stream) {
  bool used[FX_EX_MAX_BUFFERS] = {false};
  for (fx_ex i = 0; i <= last; i++)
    if (needed[i] && fx_ex_get(pool, i)->op == FX_EX_LOAD) used[fx_ex_get(pool, i)->index] = true;
  for (int b = 0; b < fx_ex_num_buffers(pool); b++) {
    if (!used[b]) continue;
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, b);
    fprintf(stream, "b%d %s", b, fx_ex_type_name(buffer->type));
    for (int i = 0; i < buffer->ndim; i++) fprintf(stream, "%s%d", i ? "x" : " ", buffer->dim[i]);
    fprintf(stream, "%s%s%s%s%s%s", buffer->per_batch ? " per_batch" : "",
            buffer->learnable ? " learnable" : "", buffer->monotone ? " monotone" : "",
            buffer->segment ? " segment" : "", buffer->segment_end ? " segment_end" : "",
            buffer->constant ? " constant" : "");
    if (buffer->type == FX_EX_INT) fprintf(stream, " %d..%d", buffer->lo, buffer->hi);
    fputc('\n', stream);
  }
}

static void canonical_node(const fx_ex_pool *pool, const fx_ex_node *n, const int32_t *number, FILE *stream) {
  fprintf(stream, "%s %s", fx_ex_op_name((fx_ex_op)n->op), fx_ex_type_name((fx_ex_type)n->type));
  if (n->op == FX_EX_CONST) fprintf(stream, " %08x", (unsigned)n->value.i);
  if (n->op == FX_EX_VAR) fprintf(stream, " %s", fx_ex_var_name((fx_ex_var)n->index));
  if (n->op == FX_EX_PARAM) fprintf(stream, " p%d", n->index);
  if (n->op == FX_EX_LOAD) fprintf(stream, " b%d", n->index);
  for (int k = 0; k < n->num_args; k++) fprintf(stream, " %d", number[n->arg[k]]);
  fputc('\n', stream);
  (void)pool;
}

/* Post-order from the roots with an explicit stack: an argument's number is known before its user is written.
 */
static bool canonical_nodes(const fx_ex_pool *pool, const fx_ex *roots, int num_roots, fx_ex last,
                            FILE *stream) {
  int32_t *number = malloc(((size_t)last + 1) * sizeof *number), next = 0, depth;
  fx_ex *stack = malloc(3 * ((size_t)last + 2) * sizeof *stack);
  for (fx_ex i = 0; number && i <= last; i++) number[i] = -1;
  for (int r = 0; number && stack && r < num_roots; r++) {
    if (roots[r] == FX_EX_NONE) {
      fputs("none\n", stream);
      continue;
    }
    stack[0] = roots[r];
    for (depth = 1; depth > 0;) {
      fx_ex i = stack[depth - 1];
      const fx_ex_node *n = fx_ex_get(pool, i);
      int32_t before = depth;
      if (number[i] < 0)
        for (int k = n->num_args - 1; k >= 0; k--)
          if (number[n->arg[k]] < 0) stack[depth++] = n->arg[k];
      if (depth > before) continue;
      depth--;
      if (number[i] >= 0) continue;
      number[i] = next++;
      canonical_node(pool, n, number, stream);
    }
    fprintf(stream, "root %d\n", number[roots[r]]);
  }
  bool done = number && stack;
  free(number);
  free(stack);
  return done;
}

char *fx_ex_canonical(const fx_ex_pool *pool, const fx_ex *roots, int num_roots) {
  char *text = NULL;
  size_t bytes = 0;
  fx_ex last = 0;
  for (int i = 0; i < num_roots; i++) last = roots[i] > last ? roots[i] : last;
  bool *needed = fx_ex_reachable(pool, roots, num_roots);
  FILE *stream = needed ? open_memstream(&text, &bytes) : NULL;
  if (!stream) {
    free(needed);
    fx_error(FX_ERR_MEMORY, "no memory for the text of an expression");
    return NULL;
  }
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(pool);
  fprintf(stream, "H %d T %d T_kv %d\n", ranges->H, ranges->T, ranges->T_kv);
  canonical_buffers(pool, needed, last, stream);
  bool done = canonical_nodes(pool, roots, num_roots, last, stream);
  free(needed);
  if (fclose(stream) == 0 && done) return text;
  free(text);
  fx_error(FX_ERR_MEMORY, "no memory for the text of an expression");
  return NULL;
}
