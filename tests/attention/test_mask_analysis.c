/* SPDX-License-Identifier: Apache-2.0 */
/* Masks written as expressions: how they are represented, and that limits and tiles are exactly what every
 * pair says. */
#include "attention/lang/parser.h"
#include "attention/tile/interp.h"
#include "tests/attention/mask_case.h"
#include "tests/attention/random_expr.h"

enum { B = 2, H = 3, START = 0, END, ID, TURN, SPEAKER, BRANCH, SLOT, SPAN, NUM_BUFFERS };

/* Documents of odd lengths, and what hangs on them; positions up to the longer side. */
typedef struct texts {
  int32_t length;
  int32_t *data[NUM_BUFFERS];          /* [B][length] */
  const void *buffer[NUM_BUFFERS + 2]; /* and two constant tables */
  fx_ex_pool *pool;
} texts;

static void fill_documents(texts *t, int32_t b) {
  static const int32_t lengths[] = {1, 127, 2, 129, 60, 1, 1, 33, 128, 5, 77, 300};
  int32_t n = t->length, at = b * n;
  for (int32_t start = 0, d = 0; start < n; d++) {
    int32_t end = (int32_t)fx_min_i64(start + lengths[(d + 5 * b) % 12], n);
    for (int32_t i = start; i < end; i++) {
      t->data[START][at + i] = start;
      t->data[END][at + i] = end;
      t->data[ID][at + i] = 3 * d + b; /* ids need not be dense */
      t->data[TURN][at + i] = (i - start) / 11;
      t->data[SPEAKER][at + i] = (i - start) / 11 % 2;
    }
    start = end;
  }
  for (int32_t i = 0; i < n; i++) {
    t->data[BRANCH][at + i] = i < 40 ? 0 : 1 + (i - 40) / 51;
    t->data[SLOT][at + i] = (int32_t)((uint32_t)(i + b) * 2654435761u >> 29); /* 0..7, no order */
    t->data[SPAN][at + i] = 1 + i % 50 * (1 + b);
  }
}

static void texts_create(texts *t, int32_t T, int32_t T_kv) {
  static const char *const names[] = {"doc_start", "doc_end", "doc_id", "turn",
                                      "speaker",   "branch",  "slot",   "span"};
  t->length = T > T_kv ? T : T_kv;
  t->pool = fx_ex_pool_create(&(fx_ex_ranges){H, T, T_kv});
  for (int i = 0; i < NUM_BUFFERS; i++) {
    fx_ex_buffer declared = {
        .type = FX_EX_INT, .ndim = 1, .dim = {t->length}, .per_batch = true, .hi = 10000};
    snprintf(declared.name, sizeof declared.name, "%s", names[i]);
    declared.segment = i == START, declared.segment_end = i == END;
    declared.monotone = i == ID || i == BRANCH;
    if (i == START) declared.hi = t->length - 1;
    if (i == END) declared.lo = 1, declared.hi = t->length;
    CHECK_INT(fx_ex_declare_buffer(t->pool, &declared), i);
    t->buffer[i] = t->data[i] = malloc((size_t)(B * t->length) * sizeof(int32_t));
  }
  for (int32_t b = 0; b < B; b++) fill_documents(t, b);
  static const int32_t chunk[H] = {7, 64, 19}, flags[H] = {0, 1, 1};
  fx_ex_buffer heads = {.name = "chunk", .type = FX_EX_INT, .ndim = 1, .dim = {H}, .constant = chunk};
  CHECK_INT(fx_ex_declare_buffer(t->pool, &heads), NUM_BUFFERS);
  heads = (fx_ex_buffer){.name = "is_local", .type = FX_EX_INT, .ndim = 1, .dim = {H}, .constant = flags};
  CHECK_INT(fx_ex_declare_buffer(t->pool, &heads), NUM_BUFFERS + 1);
  CHECK_INT(fx_ex_declare_param(t->pool, "scale", 2.5f), 0);
}

static void texts_destroy(texts *t) {
  for (int i = 0; i < NUM_BUFFERS; i++) free(t->data[i]);
  fx_ex_pool_destroy(t->pool);
}

static fx_ex parse(fx_ex_pool *pool, const char *text) {
  fx_ex node = fx_ex_parse(pool, &(fx_ex_text){.text = text}, NULL);
  CHECK_MSG(node != FX_EX_NONE, "%s: %s", text, fx_error_text());
  return node;
}

/* ---- the named masks, each beside a plain predicate ---- */

#define AT(name, i) (t->data[name][b * t->length + (i)])
#define MASKS(X)                                                                                            \
  X(full, NONE, 0, "true", true)                                                                            \
  X(nothing, LIMITS, 1, "kv > q + 3 && kv <= q", false)                                                     \
  X(causal, LIMITS, 1, "kv <= q", kv <= q)                                                                  \
  X(strictly_later, LIMITS, 1, "!(kv <= q)", kv > q)                                                        \
  X(window, LIMITS, 1, "kv <= q && q - kv < 50", kv <= q && q - kv < 50)                                    \
  X(window_both, LIMITS, 1, "abs(q - kv) <= 30", abs(q - kv) <= 30)                                         \
  X(outside, LIMITS, 2, "abs(q - kv) > 30", abs(q - kv) > 30)                                               \
  X(dilated, EXPRESSION, 0, "kv <= q && (q - kv) % 5 == 0", kv <= q && (q - kv) % 5 == 0)                   \
  X(dilated_window, EXPRESSION, 0, "kv <= q && q - kv < 90 && (q - kv) % 16 == 0",                          \
    kv <= q && q - kv < 90 && (q - kv) % 16 == 0)                                                           \
  X(chunked, LIMITS, 1, "q / 64 == kv / 64 && kv <= q", q / 64 == kv / 64 && kv <= q)                       \
  X(chunk_start, LIMITS, 1, "kv - kv % 37 <= q - 5", kv - kv % 37 <= q - 5)                                 \
  X(chunk_bits, LIMITS, 2, "(kv & ~31) == (q & ~31) || kv >> 3 == q >> 3", kv / 32 == q / 32)               \
  X(shifted, LIMITS, 1, "kv << 1 <= q && -kv / -3 < 40", 2 * kv <= q && kv / 3 < 40)                        \
  X(scaled, LIMITS, 1, "3 * kv - 7 < 2 * q && (5 - kv) / 4 >= -30", 3 * kv - 7 < 2 * q && kv <= 125)        \
  X(chunk_of_head, LIMITS, 1, "kv / chunk[h] == q / chunk[h]", kv / chunk[h] == q / chunk[h])               \
  X(local_heads, LIMITS, 1, "kv <= q && (q - kv < 40 || !is_local[h])", kv <= q && (q - kv < 40 || h == 0)) \
  X(prefix, LIMITS, 1, "kv <= q || kv < 70", kv <= q || kv < 70)                                            \
  X(document_causal, LIMITS, 1, "doc_start[q] <= kv && kv <= q", AT(START, q) <= kv && kv <= q)             \
  X(document, LIMITS, 1, "doc_start[q] <= kv && kv < doc_end[q]", AT(START, q) <= kv && kv < AT(END, q))    \
  X(document_by_id, LIMITS, 1, "doc_id[q] == doc_id[kv]", AT(ID, q) == AT(ID, kv))                          \
  X(document_by_start, LIMITS, 1, "doc_start[q] == doc_start[kv]", AT(ID, q) == AT(ID, kv))                 \
  X(document_by_end, LIMITS, 1, "doc_end[q] == doc_end[kv] && kv <= q", AT(ID, q) == AT(ID, kv) && kv <= q) \
  X(other_documents, LIMITS, 2, "doc_id[q] != doc_id[kv]", AT(ID, q) != AT(ID, kv))                         \
  X(document_prefix, LIMITS, 1, "doc_id[q] == doc_id[kv] && (kv <= q || kv < doc_start[q] + 20)",           \
    AT(ID, q) == AT(ID, kv) && (kv <= q || kv < AT(START, q) + 20))                                         \
  X(document_window, LIMITS, 1, "doc_start[q] <= kv && kv <= q && q - kv < 60",                             \
    AT(START, q) <= kv && kv <= q && q - kv < 60)                                                           \
  X(document_chunked, LIMITS, 1,                                                                            \
    "doc_id[q] == doc_id[kv] && (q - doc_start[q]) / 16 == (kv - doc_start[q]) / 16",                       \
    AT(ID, q) == AT(ID, kv) && (q - AT(START, q)) / 16 == (kv - AT(START, kv)) / 16)                        \
  X(global_sliding, LIMITS, 2, "kv <= q && (q - kv < 40 || kv < 8)", kv <= q && (q - kv < 40 || kv < 8))    \
  X(global_both, EXPRESSION, 0, "q < 8 || kv < 8 || abs(q - kv) < 40 || kv >= 250 && kv < 260",             \
    q < 8 || kv < 8 || abs(q - kv) < 40 || (kv >= 250 && kv < 260))                                         \
  X(document_sink, LIMITS, 2, "doc_start[q] <= kv && kv <= q && (q - kv < 30 || kv < doc_start[q] + 4)",    \
    AT(START, q) <= kv && kv <= q && (q - kv < 30 || kv < AT(START, q) + 4))                                \
  X(shared_prefix, LIMITS, 2, "kv < 40 && kv <= q || branch[q] == branch[kv] && kv <= q",                   \
    kv <= q && (kv < 40 || AT(BRANCH, q) == AT(BRANCH, kv)))                                                \
  X(neighbourhood, EXPRESSION, 0, "abs(q / 32 - kv / 32) <= 2 && abs(q % 32 - kv % 32) <= 2",               \
    abs(q / 32 - kv / 32) <= 2 && abs(q % 32 - kv % 32) <= 2)                                               \
  X(odd_neighbourhood, EXPRESSION, 0, "abs(q / 19 - kv / 19) <= 1 && abs(q % 19 - kv % 19) <= 3",           \
    abs(q / 19 - kv / 19) <= 1 && abs(q % 19 - kv % 19) <= 3)                                               \
  X(block_diffusion, LIMITS, 2,                                                                             \
    "where(kv >= 160, kv - 160, kv) / 8 == where(q >= 160, q - 160, q) / 8 && (kv >= 160) == (q >= 160)"    \
    " || q < 160 && kv >= 160 && (kv - 160) / 8 < q / 8"                                                    \
    " || q >= 160 && kv >= 160 && (kv - 160) / 8 <= (q - 160) / 8",                                         \
    block_diffusion(q, kv))                                                                                 \
  X(block_diffusion_halves, LIMITS, 2,                                                                      \
    "(q < 167) == (kv < 167) && q % 167 / 8 == kv % 167 / 8 || kv >= 167 && kv % 167 / 8 < q % 167 / 8",    \
    q % 167 / 8 == kv % 167 / 8 ? (q < 167) == (kv < 167) : kv >= 167 && kv % 167 / 8 < q % 167 / 8)        \
  X(conversation, EXPRESSION, 0, "doc_id[q] == doc_id[kv] && (kv <= q || turn[q] == turn[kv])",             \
    AT(ID, q) == AT(ID, kv) && (kv <= q || AT(TURN, q) == AT(TURN, kv)))                                    \
  X(same_speaker, EXPRESSION, 0, "doc_start[q] <= kv && kv <= q && speaker[kv] == speaker[q]",              \
    AT(START, q) <= kv && kv <= q && AT(SPEAKER, kv) == AT(SPEAKER, q))                                     \
  X(slots, EXPRESSION, 0, "slot[q] == slot[kv] || kv == q", AT(SLOT, q) == AT(SLOT, kv) || kv == q)         \
  X(span_of_row, LIMITS, 1, "kv <= q && q - kv < span[q]", kv <= q && q - kv < AT(SPAN, q))                 \
  X(span_of_key, EXPRESSION, 0, "kv <= q && q - kv < span[kv]", kv <= q && q - kv < AT(SPAN, kv))           \
  X(distance, EXPRESSION, 0, "kv <= q && float(q - kv) * scale < 100.0",                                    \
    kv <= q && (float)(q - kv) * 2.5f < 100.0f)                                                             \
  X(smooth, EXPRESSION, 0, "exp(float(kv - q) / 40.0) > 0.5 && kv <= q", kv <= q && q - kv < 28)            \
  X(table, EXPRESSION, 0, "kv <= q && slot[q - kv] < 3", kv <= q && AT(SLOT, q - kv) < 3)                   \
  X(either_side, LIMITS, 1, "q < 100 ? kv < 100 : kv >= 100", q < 100 ? kv < 100 : kv >= 100)               \
  X(of_max, LIMITS, 1, "max(kv, 20) <= q && min(kv + 5, 200) < q + 3",                                      \
    (kv > 20 ? kv : 20) <= q && (kv + 5 < 200 ? kv + 5 : 200) < q + 3)                                      \
  X(exclusive_or, LIMITS, 2, "(kv <= q) != (kv < 90)", (kv <= q) != (kv < 90))                              \
  X(parity_of_row, LIMITS, 1, "q % 2 == 0 && kv <= q || q % 2 != 0 && q - kv < 9 && kv <= q + 2",           \
    q % 2 == 0 ? kv <= q : q - kv < 9 && kv <= q + 2)                                                       \
  X(tree, EXPRESSION, 0, "kv <= q && (q >> kv / 64 & 1) == 1", kv <= q && ((q >> (kv / 64 & 31)) & 1) == 1) \
  X(three_pieces, LIMITS, 1, "kv < q - 20 || kv == q || kv > q - 21 && kv < q + 9 || kv == 0",              \
    kv < q + 9 || kv == 0)                                                                                  \
  X(wrapping, EXPRESSION, 0, "kv * 100000000 + q * 7 < 1000000000",                                         \
    (int32_t)((uint32_t)kv * 100000000u + (uint32_t)q * 7u) < 1000000000)                                   \
  X(huge_window, LIMITS, 1, "kv <= q && q - kv < 2147483647", kv <= q)                                      \
  X(huge_sum, EXPRESSION, 0, "kv + 2147483640 <= q + 2147483640",                                           \
    (int32_t)((uint32_t)kv + 2147483640u) <= (int32_t)((uint32_t)q + 2147483640u))

static const int32_t chunk[H] = {7, 64, 19};

static bool block_diffusion(int32_t q, int32_t kv) {
  bool noised_q = q < 160, noised_kv = kv < 160;
  int32_t block_q = (noised_q ? q : q - 160) / 8, block_kv = (noised_kv ? kv : kv - 160) / 8;
  if (noised_q == noised_kv && block_q == block_kv) return true;
  return !noised_kv && (noised_q ? block_kv < block_q : block_kv <= block_q);
}

#define DEFINE_ORACLE(name, form, R, text, predicate)                                        \
  static bool oracle_##name(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) { \
    const texts *t = self;                                                                   \
    (void)t, (void)b, (void)h, (void)q, (void)kv;                                            \
    return predicate;                                                                        \
  }
MASKS(DEFINE_ORACLE)

#define ROW(name, form, R, text, predicate) {#name, text, FX_MASK_FORM_##form, R, oracle_##name},
static const struct {
  const char *name, *text;
  fx_mask_form form;
  int32_t R;
  mask_oracle oracle;
} g_masks[] = {MASKS(ROW)};
enum { NUM_MASKS = sizeof g_masks / sizeof g_masks[0] };

static mask_case case_of(texts *t, int m, fx_mask_program **program) {
  fx_ex node = parse(t->pool, g_masks[m].text);
  CHECK_OK(fx_mask_program_create(t->pool, node, program));
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(t->pool);
  return (mask_case){.name = g_masks[m].name,
                     .program = *program,
                     .batch = {.B = B, .buffer = t->buffer},
                     .H = H,
                     .T = ranges->T,
                     .T_kv = ranges->T_kv,
                     .oracle = g_masks[m].oracle,
                     .self = t};
}

static void named_masks(void) {
  static const int32_t shapes[][2] = {{333, 333}, {1, 1},    {2, 2},    {129, 129},
                                      {100, 37},  {37, 100}, {300, 411}};
  for (int i = 0; i < 7; i++)
    for (int m = 0; m < NUM_MASKS; m++) {
      texts t = {0};
      texts_create(&t, shapes[i][0], shapes[i][1]);
      fx_mask_program *program;
      mask_case c = case_of(&t, m, &program);
      mask_case_check(&c);
      fx_mask_program_destroy(program);
      texts_destroy(&t);
    }
}

static void forms(void) {
  for (int m = 0; m < NUM_MASKS; m++) {
    texts t = {0};
    texts_create(&t, 333, 333);
    fx_mask_program *program;
    case_of(&t, m, &program);
    const fx_mask_facts *facts = fx_mask_program_facts(program);
    CHECK_MSG(facts->form == g_masks[m].form && facts->R == g_masks[m].R, "%s: form %d R %d, expected %d %d",
              g_masks[m].name, (int)facts->form, facts->R, (int)g_masks[m].form, g_masks[m].R);
    bool heads = strstr(g_masks[m].text, "[h]") != NULL,
         samples = strstr(g_masks[m].text, "[q") != NULL || strstr(g_masks[m].text, "[kv]") != NULL;
    CHECK_INT(facts->per_head, heads);
    CHECK_INT(facts->per_sample, samples);
    fx_mask_program_destroy(program);
    texts_destroy(&t);
  }
}

/* Rows and keys in segments of the sequence, out of order; a rank that holds some heads. */
static void segments(void) {
  static const int32_t q_base[] = {384, 0, 128}, kv_base[] = {128, 256, 512, 0};
  for (int m = 0; m < NUM_MASKS; m++)
    for (int rank = 0; rank < 3; rank++) {
      texts t = {0};
      texts_create(&t, 650, 650);
      fx_mask_program *program;
      mask_case c = case_of(&t, m, &program);
      c.H = 2, c.batch.first_head = 1;
      c.T = rank == 0 ? 300 : 201, c.T_kv = rank == 2 ? 130 : 450;
      if (rank != 1) c.batch.q.base = q_base;
      if (rank != 2) c.batch.kv.base = kv_base;
      if (rank == 1) c.batch.q.first = 333;
      if (rank == 2) c.batch.kv.first = 77;
      mask_case_check(&c);
      fx_mask_program_destroy(program);
      texts_destroy(&t);
    }
}

/* ---- random masks: the interpreter at every pair is the oracle ---- */

typedef struct pair_values {
  int32_t H, T, T_kv;
  int32_t *value; /* [B][H][T][T_kv] */
} pair_values;

static bool oracle_values(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv) {
  const pair_values *v = self;
  return v->value[(((int64_t)b * v->H + h) * v->T + q) * v->T_kv + kv] != 0;
}

/* buffer: of B samples; per_batch ones in turn. */
static pair_values evaluate(const fx_ex_pool *pool, fx_ex mask, int32_t samples, const void *const *buffer,
                            const float *uniform) {
  fx_ex_ranges r = *fx_ex_pool_ranges(pool);
  pair_values v = {r.H, r.T, r.T_kv, NULL};
  int64_t row = r.T_kv, n = (int64_t)samples * r.H * r.T * row;
  v.value = malloc((size_t)n * sizeof(int32_t));
  int32_t *q = malloc((size_t)row * sizeof *q), *kv = malloc((size_t)row * sizeof *kv);
  fx_interp *interp = NULL;
  CHECK_OK(fx_interp_create(pool, &mask, 1, &interp));
  for (int64_t at = 0; at < n; at += row) {
    int64_t line = at / row, b = line / r.T / r.H;
    const void *of_sample[FX_EX_MAX_BUFFERS];
    for (int32_t i = 0; i < fx_ex_num_buffers(pool); i++) {
      const fx_ex_buffer *declared = fx_ex_buffer_at(pool, i);
      int64_t size = 1;
      for (int k = 0; k < declared->ndim; k++) size *= declared->dim[k];
      of_sample[i] = declared->constant ? declared->constant
                                        : (const char *)buffer[i] + (declared->per_batch ? b * size * 4 : 0);
    }
    for (int32_t i = 0; i < row; i++) q[i] = (int32_t)(line % r.T), kv[i] = i;
    void *out = v.value + at;
    fx_interp_run(interp, &(fx_interp_inputs){uniform, of_sample}, (int32_t)(line / r.T % r.H), row, q, kv,
                  NULL, &out);
  }
  fx_interp_destroy(interp);
  free(q), free(kv);
  return v;
}

static int g_forms[3];

static void check_random(const fx_ex_pool *pool, fx_ex mask, int32_t samples, const void *const *buffer,
                         const float *uniform, uint64_t seed, const char *text) {
  fx_ex_ranges r = *fx_ex_pool_ranges(pool);
  char name[4200];
  snprintf(name, sizeof name, "random mask, seed %llu: %s", (unsigned long long)seed, text);
  pair_values v = evaluate(pool, mask, samples, buffer, uniform);
  fx_mask_program *program = NULL;
  if (CHECK_OK(fx_mask_program_create(pool, mask, &program))) {
    g_forms[fx_mask_program_facts(program)->form]++;
    mask_case c = {.name = name, .program = program, .H = r.H, .T = r.T, .T_kv = r.T_kv};
    c.batch = (fx_mask_batch){.B = samples, .buffer = buffer, .uniform = uniform};
    c.oracle = oracle_values, c.self = &v;
    mask_case_check(&c);
  }
  fx_mask_program_destroy(program);
  free(v.value);
}

/* Any expressions: floats, wrapping ints, indices of every kind. */
static void random_expressions(void) {
  memset(g_forms, 0, sizeof g_forms);
  for (uint64_t seed = 1; seed <= FX_TEST_CASES(400); seed++) {
    random_expr r;
    random_create(&r, seed * 7919);
    fx_ex mask = random_make(&r, FX_EX_BOOL, 3 + (int)(seed % 4), false);
    if (mask != FX_EX_NONE) check_random(r.pool, mask, 1, r.buffer, r.uniform, seed, "any");
    random_destroy(&r);
  }
  CHECK_MSG(g_forms[FX_MASK_FORM_EXPRESSION] > FX_TEST_CASES(50), "only %d expressions",
            g_forms[FX_MASK_FORM_EXPRESSION]);
}

static uint64_t g_random;
static int32_t below(int32_t n) {
  g_random += 0x9e3779b97f4a7c15ull;
  uint64_t z = (g_random ^ (g_random >> 30)) * 0xbf58476d1ce4e5b9ull;
  return (int32_t)(((z ^ (z >> 27)) >> 33) % (uint64_t)n);
}

/* Texts that are mostly limits. */
static void mask_text(char *out, size_t size, int depth) {
  static const char *const sides[] = {"q",
                                      "kv",
                                      "kv",
                                      "q - kv",
                                      "kv - q",
                                      "kv / 13",
                                      "q / 13",
                                      "kv >> 4",
                                      "doc_start[q]",
                                      "doc_end[q]",
                                      "doc_id[kv]",
                                      "doc_id[q]",
                                      "branch[kv]",
                                      "doc_start[kv]",
                                      "abs(q - kv)",
                                      "max(kv, q / 2)",
                                      "min(kv, q)",
                                      "slot[q]",
                                      "kv - kv % 24",
                                      "-kv",
                                      "2 * kv",
                                      "span[q]",
                                      "q % 7",
                                      "doc_end[kv]",
                                      "kv % 150",
                                      "doc_id[kv + 7]",
                                      "branch[kv - 9]",
                                      "(kv + 40) % 97",
                                      "where(q < 70, kv, kv - 9)",
                                      "(kv & ~7)",
                                      "chunk[h]",
                                      "-3 * kv",
                                      "kv / -5",
                                      "where(kv < 50, kv, q)"};
  static const char *const compares[] = {"<", "<=", ">", ">=", "==", "!="};
  static const char *const joins[] = {"&&", "&&", "||", "!="};
  enum { SIDES = sizeof sides / sizeof sides[0] };
  if (depth == 0 || below(6) == 0) {
    char right[32];
    snprintf(right, sizeof right, "%d", below(160) - 20);
    snprintf(out, size, "%s %s %s", sides[below(SIDES)], compares[below(6)],
             below(2) ? sides[below(SIDES)] : right);
    return;
  }
  char a[1024], b[1024];
  mask_text(a, sizeof a / 2, depth - 1);
  mask_text(b, sizeof b / 2, depth - 1);
  snprintf(out, size, "%s((%s) %s (%s))", below(4) ? "" : "!", a, joins[below(4)], b);
}

static void random_limits(void) {
  memset(g_forms, 0, sizeof g_forms);
  for (uint64_t seed = 1; seed <= FX_TEST_CASES(1500); seed++) {
    g_random = seed * 104729;
    texts t = {0};
    texts_create(&t, 1 + below(260), 1 + below(260));
    char text[4096];
    mask_text(text, sizeof text, 1 + below(3));
    fx_ex mask = parse(t.pool, text);
    check_random(t.pool, mask, B, t.buffer, NULL, seed, text);
    texts_destroy(&t);
  }
  CHECK_MSG(g_forms[FX_MASK_FORM_LIMITS] > FX_TEST_CASES(400), "only %d are limits",
            g_forms[FX_MASK_FORM_LIMITS]);
  CHECK_MSG(g_forms[FX_MASK_FORM_EXPRESSION] > FX_TEST_CASES(100), "only %d expressions",
            g_forms[FX_MASK_FORM_EXPRESSION]);
}

static const fx_test g_tests[] = {
    {"forms", forms},
    {"named masks", named_masks},
    {"segments", segments},
    {"random limits", random_limits},
    {"random expressions", random_expressions},
};
FX_TEST_MAIN("mask analysis", g_tests)
