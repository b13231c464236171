/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/classify.h"

#include <stdlib.h>
#include <string.h>

#include "attention/mask/cuts.h"
#include "attention/mask/interval.h"
#include "dynamo_rt/base/memory.h"

enum {
  FAN = FX_INTERVAL_LANES, /* children of a node of the pyramid, and lanes of a run */
  MAX_LEVELS = 8,
  PARTS = FX_CUT_PARTS, /* a tile's rows and keys are cut into 4 quarters, these into 4 pieces */
  MAX_POINTS = 256,     /* pairs asked at once */
  SAMPLES = 4           /* points tried of a cell */
};

/* What of a block of rows: all of it, its first position, its last one, before and after its jump, a quarter;
 * then, of each quarter, its pieces, one for four lanes each. */
enum {
  BLOCK = 0,
  FIRST = 1,
  LAST = 2,
  HEAD = 3,
  TAIL = 4,
  QUARTER = 5,
  PIECES = QUARTER + PARTS,
  NUM_SETS = PIECES + PARTS
};

struct fx_classifier {
  fx_interval_code *code;
  fx_interp *points;
  int32_t num_buffers;
  int64_t summarised[FX_EX_MAX_BUFFERS]; /* values of the buffers that the mask reads, else 0 */
  bool floats[FX_EX_MAX_BUFFERS], monotone[FX_EX_MAX_BUFFERS];
  fx_cut_rules q_rules, kv_rules;
};

/* What depends on keys only, for the nodes of one level. */
typedef struct level {
  int32_t count, padded;
  fx_interval_end *table; /* [live registers][lo, hi][padded] */
  uint8_t *filled;        /* [padded / 16], where it is filled by need */
} level;

typedef struct work {
  const fx_classifier *classifier;
  const fx_interp_inputs *sample;
  int32_t h;
  const fx_positions *q, *kv;
  fx_runs *runs;
  int64_t list;
  fx_cuts rows;               /* the block */
  bool has_pieces;            /* its rows' pieces are computed */
  fx_interval_run pair, side; /* both sides at once; one side at a time */
  level level[MAX_LEVELS];    /* tiles, 16 tiles, ... */
  level end[TAIL + 1];        /* FIRST and LAST keys of tiles; HEAD and TAIL, filled by need */
  level quarter, piece;       /* 4 and 16 of each tile; those that do not exist repeat another one */
  fx_cuts *cuts;              /* [tiles], filled with HEAD and TAIL */
  uint16_t *jumps;            /* [tiles / 16] bits of tiles with a jump */
  int levels;
  fx_interval_end *set[NUM_SETS]; /* what depends on rows only: [live registers][lo, hi][lanes] */
  fx_interval_end *keys;          /* pieces of a quarter, four times: [live registers][lo, hi][lanes] */
  const int32_t *live_q, *live_kv;
  int32_t num_q, num_kv;
  int64_t corners_tried, corners_found, batches; /* corners are left out where they rarely help */
} work;

static void find_reads(fx_classifier *made, const fx_ex_pool *pool, const bool *needed, fx_ex mask) {
  made->num_buffers = fx_ex_num_buffers(pool);
  for (fx_ex i = 0; i <= mask; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    if (!needed[i] || n->op != FX_EX_LOAD) continue;
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
    made->summarised[n->index] = 1;
    for (int k = 0; k < buffer->ndim; k++) made->summarised[n->index] *= buffer->dim[k];
    made->floats[n->index] = buffer->type == FX_EX_FLOAT;
    made->monotone[n->index] = buffer->monotone;
  }
}

fx_status fx_classifier_create(const fx_ex_pool *pool, fx_ex mask, fx_classifier **classifier) {
  fx_classifier *made = NULL;
  bool *needed = fx_ex_reachable(pool, &mask, 1);
  fx_status status = needed ? fx_calloc(&made, 1, sizeof *made) : FX_ERR_MEMORY;
  if (status == FX_OK) status = fx_interval_create(pool, mask, &made->code);
  if (status == FX_OK) status = fx_interp_create(pool, &mask, 1, &made->points);
  if (status == FX_OK) {
    find_reads(made, pool, needed, mask);
    fx_cut_rules_find(pool, needed, mask, FX_EX_Q, &made->q_rules);
    fx_cut_rules_find(pool, needed, mask, FX_EX_KV, &made->kv_rules);
    *classifier = made;
  } else {
    fx_classifier_destroy(made);
  }
  free(needed);
  return status;
}

void fx_classifier_destroy(fx_classifier *classifier) {
  if (!classifier) return;
  fx_interval_destroy(classifier->code);
  fx_interp_destroy(classifier->points);
  free(classifier);
}

/* ---- scratch ---- */

/* Cuts `bytes` off; with base NULL only *at advances. */
static void *take(char *base, size_t *at, size_t bytes) {
  void *part = base ? base + *at : NULL;
  *at += fx_align_up(bytes, FX_ALIGN);
  return part;
}

/* Summaries come first, where both begin and build find them. */
static fx_summary *take_summaries(const fx_classifier *c, char *base, size_t *at, void **memory) {
  fx_summary *summary = take(base, at, (size_t)c->num_buffers * sizeof *summary);
  for (int32_t i = 0; i < c->num_buffers; i++) {
    bool pyramid = c->summarised[i] > 0 && !c->monotone[i];
    void *room = take(base, at, pyramid ? fx_summary_bytes(c->summarised[i]) : 0);
    if (memory) memory[i] = room;
  }
  return summary;
}

static void plan_level(const work *w, level *l, int32_t count, bool by_need, char *base, size_t *at) {
  l->count = count;
  l->padded = (int32_t)fx_align_up((size_t)count, FAN);
  l->table = take(base, at, (size_t)w->num_kv * 2 * (size_t)l->padded * sizeof *l->table);
  l->filled = take(base, at, by_need ? (size_t)l->padded / FAN : 0);
}

/* Lays out everything; with base NULL only measures. */
static size_t lay_out(work *w, const fx_classifier *c, const fx_runs *runs, char *base) {
  size_t at = 0;
  FX_ASSERT(runs->tiles <= INT32_MAX / (PARTS * PARTS) - FAN);
  fx_summary *summary = take_summaries(c, base, &at, NULL);
  w->classifier = c;
  w->live_q = fx_interval_live(c->code, FX_PART_Q, &w->num_q);
  w->live_kv = fx_interval_live(c->code, FX_PART_KV, &w->num_kv);
  void *pair = take(base, &at, fx_interval_bytes(c->code)),
       *side = take(base, &at, fx_interval_bytes(c->code));
  if (base) {
    const float *uniform = w->sample->uniform;
    fx_interval_bind(&w->pair, c->code, summary, uniform, pair);
    fx_interval_bind(&w->side, c->code, summary, uniform, side);
  }
  int32_t count = runs->tiles;
  w->levels = 0;
  do {
    if (w->levels) count = (int32_t)fx_ceil_div(count, FAN);
    plan_level(w, &w->level[w->levels++], count, false, base, &at);
  } while (count > FAN);
  for (int end = FIRST; end <= LAST; end++) plan_level(w, &w->end[end], runs->tiles, false, base, &at);
  for (int end = HEAD; end <= TAIL; end++) plan_level(w, &w->end[end], runs->tiles, true, base, &at);
  plan_level(w, &w->quarter, runs->tiles * PARTS, true, base, &at);
  plan_level(w, &w->piece, runs->tiles * PARTS * PARTS, true, base, &at);
  w->cuts = take(base, &at, (size_t)runs->tiles * sizeof *w->cuts);
  w->jumps = take(base, &at, (size_t)w->level[0].padded / FAN * sizeof *w->jumps);
  for (int what = 0; what < NUM_SETS; what++)
    w->set[what] = take(base, &at, (size_t)w->num_q * 2 * FAN * sizeof(fx_interval_end));
  w->keys = take(base, &at, (size_t)w->num_kv * 2 * FAN * sizeof(fx_interval_end));
  return at;
}

size_t fx_classify_scratch(const fx_classifier *classifier, const fx_runs *runs) {
  work w;
  return lay_out(&w, classifier, runs, NULL);
}

void fx_classify_begin(const fx_classifier *c, const fx_interp_inputs *sample, void *scratch) {
  void *memory[FX_EX_MAX_BUFFERS];
  size_t at = 0;
  fx_summary *summary = take_summaries(c, scratch, &at, memory);
  for (int32_t i = 0; i < c->num_buffers; i++) {
    summary[i].data = NULL;
    if (c->summarised[i] > 0)
      fx_summary_build(&summary[i], sample->buffer[i], c->summarised[i], c->floats[i], c->monotone[i],
                       memory[i]);
  }
}

/* ---- one side ---- */

static void set_keys(work *w, int lane, fx_span keys, int what) {
  int32_t lo, hi;
  if (what == BLOCK)
    fx_positions_range(w->kv, keys.from, keys.to, &lo, &hi);
  else
    lo = hi = fx_position(w->kv, what == FIRST ? keys.from : keys.to - 1);
  fx_interval_set(&w->side, FX_EX_KV, lane, lo, hi);
}

/* The lanes of `side` to nodes first .. + 16. */
static void store_keys(work *w, level *l, int64_t first) {
  fx_interval_eval(&w->side, FX_PART_KV);
  for (int32_t i = 0; i < w->num_kv; i++)
    for (int end = 0; end < 2; end++)
      memcpy(l->table + ((int64_t)i * 2 + end) * l->padded + first,
             fx_interval_own(&w->side, w->live_kv[i], end), FAN * sizeof(fx_interval_end));
}

static void fill_level(work *w, level *l, int64_t tiles, int what) {
  int64_t size = tiles * w->runs->tile;
  for (int32_t first = 0; first < l->padded; first += FAN) {
    for (int lane = 0; lane < FAN; lane++) {
      int64_t from = fx_min_i64(first + lane, l->count - 1) * size;
      set_keys(w, lane, (fx_span){from, fx_min_i64(from + size, w->runs->tile_length)}, what);
    }
    store_keys(w, l, first);
  }
}

/* Cuts of 16 tiles, and their keys before and after a jump (all of them where there is none). */
static void need_cuts(work *w, int32_t first) {
  if (w->end[TAIL].filled[first / FAN]) return;
  uint32_t jumps = 0;
  int count = (int)fx_min_i64(FAN, w->runs->tiles - first);
  for (int lane = 0; lane < count; lane++) {
    int64_t from = (int64_t)(first + lane) * w->runs->tile,
            to = fx_min_i64(from + w->runs->tile, w->runs->tile_length);
    fx_cuts *cuts = &w->cuts[first + lane];
    fx_cuts_make(&w->classifier->kv_rules, w->kv, from, to, cuts);
    jumps |= (uint32_t)(cuts->jump > from) << lane;
  }
  for (int end = HEAD; end <= TAIL; end++) {
    for (int lane = 0; lane < FAN; lane++) {
      const fx_cuts *cuts = &w->cuts[first + (lane < count ? lane : 0)];
      int64_t from = cuts->at[0], to = cuts->at[PARTS];
      if (cuts->jump > from && end == HEAD) to = cuts->jump;
      if (cuts->jump > from && end == TAIL) from = cuts->jump;
      set_keys(w, lane, (fx_span){from, to}, BLOCK);
    }
    store_keys(w, &w->end[end], first);
  }
  w->jumps[first / FAN] = (uint16_t)jumps;
  w->end[TAIL].filled[first / FAN] = 1;
}

/* Quarters of tiles 4 n .. 4 n + 3. */
static void need_quarters(work *w, int64_t n) {
  if (w->quarter.filled[n]) return;
  for (int lane = 0; lane < FAN; lane++) {
    const fx_cuts *cuts = &w->cuts[fx_min_i64(n * PARTS + lane / PARTS, w->runs->tiles - 1)];
    fx_span part = fx_cut_quarter(cuts, lane % PARTS);
    set_keys(w, lane, fx_span_exists(part) ? part : fx_cut_quarter(cuts, 0), BLOCK);
  }
  store_keys(w, &w->quarter, n * FAN);
  w->quarter.filled[n] = 1;
}

static void need_pieces(work *w, int64_t tile) {
  if (w->piece.filled[tile]) return;
  for (int lane = 0; lane < FAN; lane++)
    set_keys(w, lane, fx_cut_piece(&w->cuts[tile], w->cuts[tile].pieces >> lane & 1 ? lane : 0), BLOCK);
  store_keys(w, &w->piece, tile * FAN);
  w->piece.filled[tile] = 1;
}

static void set_rows(work *w, int lane, fx_span rows) {
  int32_t lo, hi;
  fx_positions_range(w->q, rows.from, rows.to, &lo, &hi);
  fx_interval_set(&w->side, FX_EX_Q, lane, lo, hi);
}

/* Set `what` gets, in lane k, lane `from + k / repeat` of `side`; repeat 0: lane `from` everywhere. */
static void store_rows(work *w, int what, int from, int repeat) {
  for (int32_t i = 0; i < w->num_q; i++)
    for (int end = 0; end < 2; end++)
      for (int k = 0; k < FAN; k++)
        w->set[what][(i * 2 + end) * FAN + k] =
            fx_interval_own(&w->side, w->live_q[i], end)[from + (repeat ? k / repeat : 0)];
}

static void set_block(work *w, int64_t from, int64_t to) {
  fx_cuts_make(&w->classifier->q_rules, w->q, from, to, &w->rows);
  w->has_pieces = false;
  for (int lane = 0; lane < FAN; lane++) set_rows(w, lane, (fx_span){from, to});
  set_rows(w, FIRST, (fx_span){from, from + 1});
  set_rows(w, LAST, (fx_span){to - 1, to});
  if (w->rows.jump > from) {
    set_rows(w, HEAD, (fx_span){from, w->rows.jump});
    set_rows(w, TAIL, (fx_span){w->rows.jump, to});
  }
  for (int part = 0; part < PARTS; part++) {
    fx_span quarter = fx_cut_quarter(&w->rows, part);
    if (fx_span_exists(quarter)) set_rows(w, QUARTER + part, quarter);
  }
  fx_interval_eval(&w->side, FX_PART_Q);
  for (int what = 0; what < PIECES; what++) store_rows(w, what, what, 0);
}

static void need_row_pieces(work *w) {
  if (w->has_pieces) return;
  for (int lane = 0; lane < FAN; lane++)
    set_rows(w, lane, fx_cut_piece(&w->rows, w->rows.pieces >> lane & 1 ? lane : 0));
  fx_interval_eval(&w->side, FX_PART_Q);
  for (int part = 0; part < PARTS; part++) store_rows(w, PIECES + part, part * PARTS, PARTS);
  w->has_pieces = true;
}

/* ---- intervals ---- */

/* Lanes where the mask always holds, and lanes where it never does. */
typedef struct verdict {
  uint32_t always, never;
} verdict;

static verdict ask_pair(work *w, int what, const fx_interval_end *keys, int32_t stride) {
  for (int32_t i = 0; i < w->num_q; i++)
    for (int end = 0; end < 2; end++)
      w->pair.read[w->live_q[i]][end] = w->set[what] + ((int64_t)i * 2 + end) * FAN;
  for (int32_t i = 0; i < w->num_kv; i++)
    for (int end = 0; end < 2; end++)
      w->pair.read[w->live_kv[i]][end] = keys + ((int64_t)i * 2 + end) * stride;
  fx_interval_eval(&w->pair, FX_PART_PAIR);
  const fx_interval_end *const *root = fx_interval_root(&w->pair);
  uint32_t always = 0, never = 0;
  for (uint32_t lane = 0; lane < FAN; lane++) {
    always |= (uint32_t)root[0][lane].i << lane; /* 0 or 1 */
    never |= (uint32_t)root[1][lane].i << lane;
  }
  return (verdict){always, never ^ 0xffff};
}

/* A set of rows against nodes first .. + 16 of a level. */
static verdict ask(work *w, int what, const level *l, int64_t first) {
  return ask_pair(w, what, l->table + first, l->padded);
}

/* The 4 x 4 pieces of a cell (quarter rows, quarter keys): lane 4 * rows + keys. */
static verdict ask_cell(work *w, int64_t tile, int rows, int keys) {
  need_row_pieces(w);
  need_pieces(w, tile);
  for (int32_t i = 0; i < w->num_kv; i++)
    for (int end = 0; end < 2; end++)
      for (int copy = 0; copy < PARTS; copy++)
        memcpy(w->keys + (i * 2 + end) * FAN + copy * PARTS,
               w->piece.table + ((int64_t)i * 2 + end) * w->piece.padded + tile * FAN + keys * PARTS,
               PARTS * sizeof(fx_interval_end));
  return ask_pair(w, PIECES + rows, w->keys, FAN);
}

/* ---- tiles that intervals leave open ---- */

/* What is known of a tile so far. */
typedef struct seen {
  bool visible, hidden;
} seen;

typedef struct open_tile {
  int64_t tile;
  seen seen;
  uint32_t cells; /* 4 * quarter of rows + quarter of keys: not decided */
} open_tile;

static bool is_partial(const open_tile *t) {
  return t->seen.visible && t->seen.hidden;
}

/* Lanes that are real pieces of a cell. */
static uint32_t real_pieces(const work *w, int64_t tile, int rows, int keys) {
  uint32_t some_rows = w->rows.pieces >> (rows * PARTS) & 15,
           some_keys = w->cuts[tile].pieces >> (keys * PARTS) & 15;
  uint32_t real = 0;
  for (int k = 0; k < PARTS; k++)
    if (some_rows >> k & 1) real |= some_keys << (k * PARTS);
  return real;
}

/* Pairs to ask, and whose they are. */
typedef struct points {
  int n;
  int32_t q[MAX_POINTS], kv[MAX_POINTS];
  open_tile *of[MAX_POINTS];
} points;

static void add_point(const work *w, points *p, int64_t row, int64_t key, open_tile *of) {
  p->q[p->n] = fx_position(w->q, row);
  p->kv[p->n] = fx_position(w->kv, key);
  p->of[p->n++] = of;
}

static void ask_points(const work *w, points *p) {
  int32_t out[MAX_POINTS];
  void *output = out;
  fx_interp_run(w->classifier->points, w->sample, w->h, p->n, p->q, p->kv, NULL, &output);
  for (int i = 0; i < p->n; i++) {
    p->of[i]->seen.visible |= out[i] != 0;
    p->of[i]->seen.hidden |= out[i] == 0;
  }
  p->n = 0;
}

/* A quarter of the rows against the quarters of four neighbours, up to 4 of which are in t. */
static void ask_quarters(work *w, int rows, open_tile *t, int count) {
  int64_t group = t[0].tile / PARTS;
  need_quarters(w, group);
  verdict v = ask(w, QUARTER + rows, &w->quarter, group * FAN);
  for (int i = 0; i < count; i++) {
    uint32_t pieces = w->cuts[t[i].tile].pieces, real = 0; /* a quarter is there if its first piece is */
    for (int keys = 0; keys < PARTS; keys++) real |= (pieces >> (keys * PARTS) & 1) << keys;
    int lane = (int)(t[i].tile % PARTS) * PARTS;
    uint32_t always = v.always >> lane & real, never = v.never >> lane & real;
    t[i].seen.visible |= always != 0;
    t[i].seen.hidden |= never != 0;
    t[i].cells |= (real & ~(always | never)) << (rows * PARTS);
  }
}

/* A cell's pieces by intervals; returns the open ones. */
static uint32_t look_into(work *w, open_tile *t, int cell) {
  uint32_t real = real_pieces(w, t->tile, cell / PARTS, cell % PARTS);
  verdict v = ask_cell(w, t->tile, cell / PARTS, cell % PARTS);
  t->seen.visible |= (v.always & real) != 0;
  t->seen.hidden |= (v.never & real) != 0;
  return real & ~(v.always | v.never);
}

/* The rows and keys of piece `lane` of a cell. */
static void piece_spans(const work *w, const open_tile *t, int cell, int lane, fx_span *rows, fx_span *keys) {
  *rows = fx_cut_piece(&w->rows, cell / PARTS * PARTS + lane / PARTS);
  *keys = fx_cut_piece(&w->cuts[t->tile], cell % PARTS * PARTS + lane % PARTS);
}

/* Number k (from 0) of the set bits. */
static int bit_at(uint32_t bits, int k) {
  while (k-- > 0) bits &= bits - 1;
  return __builtin_ctz(bits);
}

/* A few points, at changing offsets, of open pieces of one of the open cells in a quarter of the rows. */
static void add_samples(work *w, open_tile *t, int quarter, points *p) {
  uint32_t cells = t->cells & (15u << (quarter * PARTS));
  if (!cells) return;
  int cell = bit_at(cells, __builtin_popcount(cells) / 2);
  uint32_t open = look_into(w, t, cell);
  int count = __builtin_popcount(open);
  for (int k = 0; k < SAMPLES && k < count && !is_partial(t); k++) {
    fx_span rows, keys;
    piece_spans(w, t, cell, bit_at(open, count > SAMPLES ? k * count / SAMPLES : k), &rows, &keys);
    uint32_t row = (uint32_t)(2 + 5 * k) % (uint32_t)(rows.to - rows.from),
             key = (uint32_t)(3 + 3 * k) % (uint32_t)(keys.to - keys.from);
    add_point(w, p, rows.from + row, keys.from + key, t);
  }
}

/* All pairs of what is open, until both kinds are seen. */
static void ask_all(work *w, open_tile *t, points *p) {
  for (uint32_t cells = t->cells; cells && !is_partial(t); cells &= cells - 1) {
    int cell = __builtin_ctz(cells);
    for (uint32_t open = look_into(w, t, cell); open && !is_partial(t); open &= open - 1) {
      fx_span rows, keys;
      piece_spans(w, t, cell, __builtin_ctz(open), &rows, &keys);
      for (int64_t i = rows.from; i < rows.to; i++)
        for (int64_t j = keys.from; j < keys.to; j++) {
          add_point(w, p, i, j, t);
          if (p->n == MAX_POINTS) ask_points(w, p);
        }
    }
    if (p->n) ask_points(w, p);
  }
}

/* Quarter by quarter of the rows, the middle ones first: mostly one is enough. */
static void resolve(work *w, open_tile *t, int count) {
  static const int order[PARTS] = {1, 2, 0, 3};
  points p;
  p.n = 0; /* the rest is written before it is read */
  for (int k = 0; k < PARTS; k++) {
    int rows = order[k];
    if (!fx_span_exists(fx_cut_quarter(&w->rows, rows))) continue;
    for (int i = 0, n; i < count; i += n) {
      bool open = !is_partial(&t[i]);
      for (n = 1; i + n < count && t[i + n].tile / PARTS == t[i].tile / PARTS; n++)
        open |= !is_partial(&t[i + n]);
      if (open) ask_quarters(w, rows, t + i, n);
    }
    for (int i = 0; i < count; i++)
      if (!is_partial(&t[i])) add_samples(w, &t[i], rows, &p);
    if (p.n) ask_points(w, &p);
  }
  for (int i = 0; i < count; i++) ask_all(w, &t[i], &p);
}

/* Lanes that the intervals left open, once more on either side of jumps: nothing is exact across one. */
static void look_aside(work *w, int32_t first, verdict *v, uint32_t *open, uint32_t *visible,
                       uint32_t *hidden) {
  need_cuts(w, first);
  bool rows_jump = w->rows.jump > w->rows.at[0], keys_jump = w->jumps[first / FAN] & *open;
  if (!rows_jump && !keys_jump) return;
  verdict all = {*open, *open};
  for (int r = rows_jump ? HEAD : BLOCK; r <= (rows_jump ? TAIL : BLOCK); r++)
    for (int k = keys_jump ? HEAD : BLOCK; k <= (keys_jump ? TAIL : BLOCK); k++) {
      verdict part = ask(w, r, k == BLOCK ? &w->level[0] : &w->end[k], first);
      all.always &= part.always, all.never &= part.never;
      *visible |= part.always & *open, *hidden |= part.never & *open;
    }
  v->always |= all.always, v->never |= all.never;
  *open &= ~(all.always | all.never);
}

/* 16 tiles, of which the intervals decided `v`. */
static void finish_tiles(work *w, int32_t first, int lanes, verdict v) {
  static const struct {
    int row, key;
  } corner[4] = {{LAST, FIRST}, {FIRST, LAST}, {FIRST, FIRST}, {LAST, LAST}};
  uint32_t open = ~(v.always | v.never) & (uint32_t)((1ull << lanes) - 1), visible = v.always,
           hidden = v.never;
  if (open) look_aside(w, first, &v, &open, &visible, &hidden);
  bool useful = w->corners_found * 8 >= w->corners_tried || w->batches++ % 16 == 0;
  for (int i = 0; i < 4 && useful && (open & ~(visible & hidden)); i++) {
    verdict at = ask(w, corner[i].row, &w->end[corner[i].key], first);
    visible |= at.always & open;
    hidden |= at.never & open;
  }
  if (useful) {
    w->corners_tried += __builtin_popcount(open);
    w->corners_found += __builtin_popcount(open & visible & hidden);
  }
  open_tile left[FAN];
  int count = 0;
  for (uint32_t bits = open & ~(visible & hidden); bits; bits &= bits - 1) {
    int lane = __builtin_ctz(bits);
    left[count++] = (open_tile){.tile = first + lane, .seen = {visible >> lane & 1, hidden >> lane & 1}};
  }
  if (count) resolve(w, left, count);
  for (int i = 0; i < count; i++) {
    visible |= (uint32_t)left[i].seen.visible << (left[i].tile - first);
    hidden |= (uint32_t)left[i].seen.hidden << (left[i].tile - first);
  }
  for (int lane = 0; lane < lanes; lane++)
    if (visible >> lane & 1)
      fx_runs_append(w->runs, w->list, first + lane, first + lane + 1,
                     hidden >> lane & 1 ? FX_RUN_PARTIAL : FX_RUN_FULL);
}

static void descend(work *w, int depth, int32_t first, int lanes) {
  verdict v = ask(w, BLOCK, &w->level[depth], first);
  if (depth == 0) {
    finish_tiles(w, first, lanes, v);
    return;
  }
  int64_t size = (int64_t)1 << (4 * depth); /* tiles of a node: FAN is 16 */
  for (int lane = 0; lane < lanes; lane++) {
    int64_t node = first + lane;
    if (v.always >> lane & 1)
      fx_runs_append(w->runs, w->list, (int32_t)(node * size),
                     (int32_t)fx_min_i64((node + 1) * size, w->runs->tiles), FX_RUN_FULL);
    else if (!(v.never >> lane & 1))
      descend(w, depth - 1, (int32_t)(node * FAN),
              (int)fx_min_i64(FAN, w->level[depth - 1].count - node * FAN));
  }
}

void fx_classify_build(const fx_classifier *classifier, const fx_interp_inputs *sample, int32_t h,
                       const fx_positions *q, const fx_positions *kv, fx_runs *runs, int64_t first_list,
                       void *scratch) {
  work w = {.sample = sample, .h = h, .q = q, .kv = kv, .runs = runs};
  lay_out(&w, classifier, runs, scratch);
  fx_interval_fix(&w.pair, h, h);
  fx_interval_fix(&w.side, h, h);
  memset(w.quarter.filled, 0, (size_t)w.quarter.padded / FAN);
  memset(w.end[TAIL].filled, 0, (size_t)w.end[TAIL].padded / FAN);
  memset(w.piece.filled, 0, (size_t)w.piece.padded / FAN);
  int64_t tiles = 1;
  for (int i = 0; i < w.levels; i++, tiles *= FAN) fill_level(&w, &w.level[i], tiles, BLOCK);
  for (int end = FIRST; end <= LAST; end++) fill_level(&w, &w.end[end], 1, end);
  for (int32_t i = 0; i < runs->blocks; i++) {
    int64_t from = (int64_t)i * runs->block;
    set_block(&w, from, fx_min_i64(from + runs->block, runs->block_length));
    w.list = first_list + i;
    descend(&w, w.levels - 1, 0, w.level[w.levels - 1].count);
  }
}
