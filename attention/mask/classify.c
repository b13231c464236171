/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/classify.h"

#include <stdlib.h>
#include <string.h>

#include "attention/mask/interval.h"
#include "dynamo_rt/base/memory.h"

enum {
  FAN = FX_INTERVAL_LANES, /* children of a node of the pyramid, and lanes of a run */
  MAX_LEVELS = 8,
  PARTS = 4,       /* a tile that is left open is cut into PARTS x PARTS */
  EXHAUSTIVE = 64, /* pairs of a part that are asked one by one */
  PROBES = 32,     /* points of the row, and of the column, through a tile's middle */
  BLOCK = 0,
  FIRST = 1,
  LAST = 2 /* what of a block: all of it, its first position, its last one */
};

struct fx_classifier {
  fx_interval_code *code;
  fx_interp *points;
  int32_t num_buffers;
  int64_t summarised[FX_EX_MAX_BUFFERS]; /* values of the buffers that the mask reads, else 0 */
  bool floats[FX_EX_MAX_BUFFERS], monotone[FX_EX_MAX_BUFFERS];
};

/* What depends on keys only, for the nodes of one level. */
typedef struct level {
  int32_t count, padded;
  fx_interval_end *table; /* [live registers][lo, hi][padded] */
} level;

typedef struct work {
  const fx_classifier *classifier;
  const fx_interp_inputs *sample;
  int32_t h;
  const fx_positions *q, *kv;
  fx_runs *runs;
  int64_t list;
  int64_t row_from, row_to;        /* the block */
  fx_interval_run pair, side;      /* whole tiles; one side of them, and their parts */
  level level[MAX_LEVELS], end[3]; /* end: of the FIRST and LAST keys of tiles */
  int levels;
  fx_interval_end *block[3]; /* what depends on rows only: [live registers][lo, hi][lanes] */
  const int32_t *live_q, *live_kv;
  int32_t num_q, num_kv;
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

static void plan_level(const work *w, level *l, int32_t count, char *base, size_t *at) {
  l->count = count;
  l->padded = (int32_t)fx_align_up((size_t)count, FAN);
  l->table = take(base, at, (size_t)w->num_kv * 2 * (size_t)l->padded * sizeof *l->table);
}

/* Lays out everything; with base NULL only measures. */
static size_t lay_out(work *w, const fx_classifier *c, const fx_runs *runs, char *base) {
  size_t at = 0;
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
    plan_level(w, &w->level[w->levels++], count, base, &at);
  } while (count > FAN);
  for (int end = FIRST; end <= LAST; end++) plan_level(w, &w->end[end], runs->tiles, base, &at);
  for (int what = BLOCK; what <= LAST; what++)
    w->block[what] = take(base, &at, (size_t)w->num_q * 2 * FAN * sizeof(fx_interval_end));
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

/* Keys [from, to) here of a node; the whole, or its first or last key alone. */
static void set_keys(work *w, int lane, int64_t from, int64_t to, int what) {
  int32_t lo, hi;
  if (what == BLOCK)
    fx_positions_range(w->kv, from, to, &lo, &hi);
  else
    lo = hi = fx_position(w->kv, what == FIRST ? from : to - 1);
  fx_interval_set(&w->side, FX_EX_KV, lane, lo, hi);
}

static void fill_level(work *w, level *l, int64_t tiles, int what) {
  int64_t size = tiles * w->runs->tile;
  for (int32_t first = 0; first < l->padded; first += FAN) {
    for (int lane = 0; lane < FAN; lane++) {
      int64_t node = fx_min_i64(first + lane, l->count - 1);
      set_keys(w, lane, node * size, fx_min_i64((node + 1) * size, w->runs->tile_length), what);
    }
    fx_interval_eval(&w->side, FX_PART_KV);
    for (int32_t i = 0; i < w->num_kv; i++)
      for (int end = 0; end < 2; end++)
        memcpy(l->table + ((int64_t)i * 2 + end) * l->padded + first,
               fx_interval_own(&w->side, w->live_kv[i], end), FAN * sizeof(fx_interval_end));
  }
}

static void set_block(work *w, int64_t from, int64_t to) {
  int32_t lo, hi;
  fx_positions_range(w->q, from, to, &lo, &hi);
  for (int lane = 0; lane < FAN; lane++) fx_interval_set(&w->side, FX_EX_Q, lane, lo, hi);
  for (int what = FIRST; what <= LAST; what++) {
    int32_t at = fx_position(w->q, what == FIRST ? from : to - 1);
    fx_interval_set(&w->side, FX_EX_Q, what, at, at);
  }
  fx_interval_eval(&w->side, FX_PART_Q);
  for (int what = BLOCK; what <= LAST; what++)
    for (int32_t i = 0; i < w->num_q; i++)
      for (int end = 0; end < 2; end++)
        for (int lane = 0; lane < FAN; lane++)
          w->block[what][(i * 2 + end) * FAN + lane] = fx_interval_own(&w->side, w->live_q[i], end)[what];
  w->row_from = from, w->row_to = to;
}

/* ---- tiles ---- */

/* Lanes where the mask always holds, and lanes where it never does. */
typedef struct verdict {
  uint32_t always, never;
} verdict;

static verdict read_verdict(const fx_interval_run *run, int lanes) {
  const fx_interval_end *const *root = fx_interval_root(run);
  verdict v = {0, 0};
  for (int lane = 0; lane < lanes; lane++) {
    v.always |= (uint32_t)(root[0][lane].i != 0) << lane;
    v.never |= (uint32_t)(root[1][lane].i == 0) << lane;
  }
  return v;
}

/* The block (or its first or last row) against nodes first .. + lanes of a level. */
static verdict ask(work *w, int what, const level *l, int32_t first, int lanes) {
  for (int32_t i = 0; i < w->num_q; i++)
    for (int end = 0; end < 2; end++)
      w->pair.read[w->live_q[i]][end] = w->block[what] + ((int64_t)i * 2 + end) * FAN;
  for (int32_t i = 0; i < w->num_kv; i++)
    for (int end = 0; end < 2; end++)
      w->pair.read[w->live_kv[i]][end] = l->table + ((int64_t)i * 2 + end) * l->padded + first;
  fx_interval_eval(&w->pair, FX_PART_PAIR);
  return read_verdict(&w->pair, lanes);
}

/* What is known of a tile so far. */
typedef struct seen {
  bool visible, hidden;
} seen;

/* Rows [q0, q1) and keys [k0, k1) that are here. */
typedef struct part {
  int64_t q0, q1, k0, k1;
} part;

static void ask_points(const work *w, int n, const int32_t *q, const int32_t *kv, seen *s) {
  int32_t out[EXHAUSTIVE];
  void *output = out;
  fx_interp_run(w->classifier->points, w->sample, w->h, n, q, kv, NULL, &output);
  for (int i = 0; i < n; i++) {
    s->visible |= out[i] != 0;
    s->hidden |= out[i] == 0;
  }
}

/* A row and a column through the middle: finds what repeats with short periods. */
static void probe(const work *w, const part *p, seen *s) {
  int32_t q[2 * PROBES], kv[2 * PROBES];
  int64_t rows = p->q1 - p->q0, keys = p->k1 - p->k0;
  for (int i = 0; i < PROBES; i++) {
    q[i] = fx_position(w->q, p->q0 + rows / 2);
    kv[i] = fx_position(w->kv, p->k0 + (keys > PROBES ? (keys - PROBES) / 2 + i : i % keys));
    q[PROBES + i] = fx_position(w->q, p->q0 + (rows > PROBES ? (rows - PROBES) / 2 + i : i % rows));
    kv[PROBES + i] = fx_position(w->kv, p->k0 + keys / 2);
  }
  ask_points(w, 2 * PROBES, q, kv, s);
}

static void ask_all(const work *w, const part *p, seen *s) {
  int32_t q[EXHAUSTIVE] = {0}, kv[EXHAUSTIVE] = {0};
  int n = 0;
  for (int64_t i = p->q0; i < p->q1; i++)
    for (int64_t j = p->k0; j < p->k1; j++, n++) {
      q[n] = fx_position(w->q, i);
      kv[n] = fx_position(w->kv, j);
    }
  ask_points(w, n, q, kv, s);
}

static void cut(work *w, const part *p, seen *s);

static void ask_part(work *w, const part *p, seen *s) {
  if (s->visible && s->hidden) return;
  if ((p->q1 - p->q0) * (p->k1 - p->k0) <= EXHAUSTIVE)
    ask_all(w, p, s);
  else
    cut(w, p, s);
}

/* Asks 4 x 4 parts by intervals, then those left open more closely. */
static void cut(work *w, const part *p, seen *s) {
  part piece[FAN];
  int64_t rows = fx_ceil_div(p->q1 - p->q0, PARTS), keys = fx_ceil_div(p->k1 - p->k0, PARTS);
  int n = 0;
  for (int64_t q0 = p->q0; q0 < p->q1; q0 += rows)
    for (int64_t k0 = p->k0; k0 < p->k1; k0 += keys)
      piece[n++] = (part){q0, fx_min_i64(q0 + rows, p->q1), k0, fx_min_i64(k0 + keys, p->k1)};
  for (int lane = 0; lane < FAN; lane++) {
    const part *of = &piece[lane < n ? lane : 0];
    int32_t lo, hi;
    fx_positions_range(w->q, of->q0, of->q1, &lo, &hi);
    fx_interval_set(&w->side, FX_EX_Q, lane, lo, hi);
    set_keys(w, lane, of->k0, of->k1, BLOCK);
  }
  fx_interval_eval(&w->side, FX_PART_Q);
  fx_interval_eval(&w->side, FX_PART_KV);
  fx_interval_eval(&w->side, FX_PART_PAIR);
  verdict v = read_verdict(&w->side, n);
  s->visible |= v.always != 0;
  s->hidden |= v.never != 0;
  for (int lane = 0; lane < n; lane++)
    if (!((v.always | v.never) >> lane & 1)) ask_part(w, &piece[lane], s);
}

static seen look_closer(work *w, int32_t tile, seen s) {
  int64_t k0 = (int64_t)tile * w->runs->tile;
  part whole = {w->row_from, w->row_to, k0, fx_min_i64(k0 + w->runs->tile, w->runs->tile_length)};
  probe(w, &whole, &s);
  ask_part(w, &whole, &s);
  return s;
}

/* 16 tiles, of which the intervals decided `v`. */
static void finish_tiles(work *w, int32_t first, int lanes, verdict v) {
  static const struct {
    int row, key;
  } corner[4] = {{LAST, FIRST}, {FIRST, LAST}, {FIRST, FIRST}, {LAST, LAST}};
  uint32_t open = ~(v.always | v.never) & (uint32_t)((1ull << lanes) - 1), visible = 0, hidden = 0;
  for (int i = 0; i < 4 && (open & ~(visible & hidden)); i++) {
    verdict at = ask(w, corner[i].row, &w->end[corner[i].key], first, lanes);
    visible |= at.always;
    hidden |= at.never;
  }
  for (int lane = 0; lane < lanes; lane++) {
    bool is_open = open >> lane & 1;
    seen s = {is_open ? visible >> lane & 1 : v.always >> lane & 1,
              is_open ? hidden >> lane & 1 : v.never >> lane & 1};
    if (is_open && !(s.visible && s.hidden)) s = look_closer(w, first + lane, s);
    if (s.visible)
      fx_runs_append(w->runs, w->list, first + lane, first + lane + 1,
                     s.hidden ? FX_RUN_PARTIAL : FX_RUN_FULL);
  }
}

static void descend(work *w, int depth, int32_t first, int lanes) {
  verdict v = ask(w, BLOCK, &w->level[depth], first, lanes);
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
