/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks that share a sequence are told of it: which blocks travel in a ring, how far, and the run lists
 * over them, against the mask of every pair; and what a set-up makes room for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/context.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/context_blocks.h"
#include "tests/harness.h"

enum { T = 2048, B = 2, H = 2, BLOCK = 128, BLOCKS = T / BLOCK, MOST_RANKS = 8 };

typedef struct pair {
  int h, q, kv, q_doc, kv_doc; /* doc: where the document begins */
} pair;

static bool see_documents(pair p) {
  return p.q_doc == p.kv_doc && p.kv <= p.q;
}
static bool see_both_ways(pair p) {
  return p.q_doc == p.kv_doc && (p.h == 0 || abs(p.q - p.kv) < 90);
}
static bool see_window(pair p) {
  return p.kv <= p.q && p.q - p.kv < 300;
}
static bool see_window_and_start(pair p) {
  return p.kv <= p.q && (p.q - p.kv < 200 || p.kv < 4);
}
static bool see_some(pair p) {
  return p.kv <= p.q && p.q - p.kv < 260 && (p.q + p.kv) % 3 != 0;
}
static bool see_few(pair p) {
  return p.kv <= p.q && p.q < 150;
}
static bool see_nothing(pair p) {
  return p.kv < 0;
}

static const struct mask {
  const char *attention;
  bool (*sees)(pair);
} k_masks[] = {
    {"{variant: document_causal}", see_documents},
    {"{mask: 'doc_id[q] == doc_id[kv] && (h == 0 || abs(q - kv) < 90)'}", see_both_ways},
    {"{variant: sliding_window, params: {window: 300}}", see_window},
    {"{mask: 'kv <= q && (q - kv < 200 || kv < 4)'}", see_window_and_start},
    {"{mask: 'kv <= q && q - kv < 260 && (q + kv) % 3 != 0'}", see_some},
    {"{mask: 'kv <= q && q < 150'}", see_few},
    {"{mask: 'kv < 0'}", see_nothing},
};

static fx_attention_setup *set_up(const char *attention, const char *exchange, int ranks, int rank) {
  char yaml[1024];
  fx_config *config = NULL;
  fx_attention_setup *setup = NULL;
  snprintf(
      yaml, sizeof yaml,
      "model: {vocab_size: 64, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: %d, "
      "num_key_value_heads: 1, head_dim: 16, intermediate_size: 16}\nattention: %s\n"
      "parallel: {context: %d, context_exchange: %s}\n"
      "train: {seq_length: %d, micro_batch_size: %d, global_batch_size: %d}\nruntime: {compiler: none}\n",
      H, attention, ranks, exchange, T, B, B);
  if (!CHECK_OK(fx_config_parse(yaml, "shared", &config))) return NULL;
  CHECK_OK(fx_attention_setup_create_for(config, FX_BACKEND_CPU, B, T, ranks, rank, &setup));
  fx_config_destroy(config);
  return setup;
}

/* ---- a filled batch ---- */

static int32_t g_tokens[B * T], g_positions[B * T], g_start[B * T], g_end[B * T];

static void make_documents(void) {
  static const int lengths[] = {500, 2, 333, 127, 129, 77, 250, 41};
  for (int b = 0; b < B; b++)
    for (int t = 0, d = b; t < T; d++) {
      int begin = t, end = t + lengths[d % 8] < T ? t + lengths[d % 8] : T;
      for (; t < end; t++) {
        int at = b * T + t;
        g_start[at] = begin, g_end[at] = end, g_positions[at] = t - begin, g_tokens[at] = 1;
      }
    }
}

typedef struct filled {
  fx_attention_setup *setup;
  int32_t *memory[FX_ATTENTION_MAX_FIELDS];
} filled;

static filled fill(const char *attention, int ranks, int rank) {
  filled f = {.setup = set_up(attention, "ring", ranks, rank)};
  void *memory[FX_ATTENTION_MAX_FIELDS];
  char *scratch = NULL;
  fx_attention_batch batch = {g_tokens, g_positions, g_start, g_end};
  if (!f.setup) exit(1);
  for (int i = 0; i < f.setup->num_fields; i++) {
    size_t bytes = (size_t)f.setup->field[i].words * sizeof(int32_t);
    memory[i] = f.memory[i] = malloc(bytes);
    memset(f.memory[i], 0x5a, bytes);
  }
  CHECK_OK(fx_alloc_aligned(&scratch, f.setup->scratch_bytes + FX_ALIGN));
  CHECK_OK(fx_attention_fill(f.setup, &batch, memory, scratch));
  free(scratch);
  return f;
}

static void release(filled *f) {
  for (int i = 0; i < f->setup->num_fields; i++) free(f->memory[i]);
  fx_attention_setup_destroy(f->setup);
}

static bool sees(const struct mask *mask, int b, int h, int q, int kv) {
  return mask->sees((pair){h, q, kv, g_start[b * T + q], g_start[b * T + kv]});
}

/* ---- which blocks travel ---- */

/* By block number: how many ranks on the farthest is whose queries see it. */
static void find_seen(const struct mask *mask, int ranks, const int32_t *owner, int32_t *seen) {
  memset(seen, 0, BLOCKS * sizeof *seen);
  for (int b = 0; b < B; b++)
    for (int h = 0; h < H; h++)
      for (int q = 0; q < T; q++)
        for (int kv = 0; kv < T; kv++) {
          int32_t away = (owner[q / BLOCK] - owner[kv / BLOCK] + ranks) % ranks;
          if (away > seen[kv / BLOCK] && sees(mask, b, h, q, kv)) seen[kv / BLOCK] = away;
        }
}

static void check_shared(const struct mask *mask, const filled *rank, int ranks) {
  const fx_attention_setup *setup = rank[0].setup;
  int32_t share = BLOCKS / ranks, owner[BLOCKS], seen[BLOCKS], missing = 0, wrong = 0;
  const int32_t *blocks = rank[0].memory[setup->blocks];
  fx_attention_shared first = fx_attention_shared_at(setup, rank[0].memory[setup->shared]);
  bool travels[BLOCKS] = {false};
  for (int i = 0; i < BLOCKS; i++) owner[blocks[i] / BLOCK] = i / share;
  find_seen(mask, ranks, owner, seen);
  for (int r = 0; r < ranks; r++) {
    fx_attention_shared s = fx_attention_shared_at(setup, rank[r].memory[setup->shared]);
    int32_t count = s.count[r];
    CHECK(memcmp(rank[r].memory[setup->blocks], blocks, BLOCKS * sizeof *blocks) == 0);
    CHECK(memcmp(s.count, first.count, ((size_t)ranks + 1) * sizeof *s.count) == 0);
    CHECK(memcmp(s.base, first.base, BLOCKS * sizeof *s.base) == 0);
    for (int i = 0; i < share; i++) {
      int32_t at = s.index[i], base = s.base[r * share + i];
      if (i >= count) {
        wrong += at != -1 || base < 0 || base > T - BLOCK;
        continue;
      }
      wrong += at < 0 || at >= share || (i > 0 && at <= s.index[i - 1]) || base != blocks[r * share + at];
      travels[base / BLOCK] = true;
    }
  }
  for (int i = 0; i < BLOCKS; i++) missing += seen[i] && !travels[i], wrong += seen[i] > *first.hops;
  CHECK_MSG(missing == 0 && wrong == 0, "%s, %d ranks: %d blocks that others see stay, %d entries are wrong",
            mask->attention, ranks, missing, wrong);
  int32_t most = 0, rung = fx_attention_rung(setup, (void *const *)rank[0].memory);
  for (int r = 0; r < ranks; r++) most = first.count[r] > most ? first.count[r] : most;
  const fx_ring_room *room = &setup->rung[rung];
  bool less = false;
  for (int i = 0; i < setup->num_rungs; i++)
    less = less || (setup->rung[i].blocks >= most && setup->rung[i].hops >= *first.hops &&
                    setup->rung[i].blocks * setup->rung[i].hops < room->blocks * room->hops);
  CHECK_MSG(room->blocks >= most && room->hops >= *first.hops && !less,
            "%s, %d ranks: rung %d of %d blocks, %d hops for %d, %d", mask->attention, ranks, rung,
            room->blocks, room->hops, most, *first.hops);
}

/* ---- run lists ---- */

/* Errors of one list: tiles that are not visited though something is visible, visited though nothing is, or
 * called full though they are not. */
static int check_list(const struct mask *mask, const fx_runs *runs, const int32_t *q_base,
                      const int32_t *kv_base, int32_t keys, int b, int h) {
  int errors = 0;
  for (int i = 0; i < runs->blocks; i++) {
    int32_t count, run = 0;
    const fx_run *list = fx_runs_get_head(runs, b, h, i, &count);
    for (int j = 0; j * runs->tile < keys; j++) {
      bool any = false, all = true;
      for (int x = i * runs->block; x < (i + 1) * runs->block && x < runs->block_length; x++)
        for (int y = j * runs->tile; y < (j + 1) * runs->tile && y < keys; y++) {
          bool visible = sees(mask, b, h, q_base[x / BLOCK] + x % BLOCK, kv_base[y / BLOCK] + y % BLOCK);
          any = any || visible, all = all && visible;
        }
      while (run < count && list[run].end <= j) run++;
      bool visited = run < count && list[run].begin <= j;
      errors += visited != any || (visited && (list[run].kind == FX_RUN_FULL) != all);
    }
    errors += count > 0 && list[count - 1].end > (keys + runs->tile - 1) / runs->tile;
  }
  return errors;
}

static void check_lists(const struct mask *mask, const filled *f) {
  const fx_attention_setup *setup = f->setup;
  const fx_attention_kind *kind = &setup->kind[0];
  int32_t share = setup->rows / BLOCK, errors = 0;
  const int32_t *blocks = f->memory[setup->blocks];
  fx_attention_shared shared = fx_attention_shared_at(setup, f->memory[setup->shared]);
  for (int backward = 0; backward < 2; backward++)
    for (int r = 0; r < setup->ranks; r++) {
      const int32_t *tile = setup->tile[backward];
      bool own = r == setup->rank;
      fx_runs runs = fx_mask_runs_plan(kind->program, B, H, setup->rows, setup->rows, tile[0], tile[1],
                                       backward ? kind->attr.capacity_backward : kind->attr.capacity);
      fx_runs_bind(&runs, f->memory[kind->runs + backward] + (size_t)r * fx_runs_bytes(&runs) / 4);
      for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
          errors += check_list(mask, &runs, blocks + setup->rank * share,
                               own ? blocks + r * share : shared.base + r * share,
                               own ? setup->rows : shared.count[r] * BLOCK, b, h);
    }
  CHECK_MSG(errors == 0, "%s, rank %d of %d: %d tiles are wrong", mask->attention, setup->rank, setup->ranks,
            errors);
}

/* Whether blocks are dealt for these rooms. */
static bool dealt_for(const filled *f, const fx_ring_room *rooms, int32_t count) {
  const fx_attention_setup *setup = f->setup;
  const void *found[FX_EX_MAX_BUFFERS];
  const void *const *buffer[1] = {found};
  double area[BLOCKS];
  int32_t first[BLOCKS], last[BLOCKS], order[BLOCKS], equal = 0;
  fx_context_reach reach = {first, last};
  char *scratch = NULL, *work = malloc(fx_context_deal_scratch(BLOCKS, setup->ranks));
  fx_attention_find_buffers(setup, 0, (void *const *)f->memory, found);
  CHECK_OK(fx_alloc_aligned(&scratch, fx_context_scratch(setup)));
  CHECK_OK(fx_context_area(setup, buffer, area, &reach, scratch));
  double block_cost = 195047.0 * B; /* of one key head and layer (core/model/context.c) */
  fx_context_deal(area, first, last, BLOCKS, setup->ranks, block_cost, rooms, count, order, work);
  for (int i = 0; i < BLOCKS; i++) equal += f->memory[setup->blocks][i] == BLOCK * order[i];
  free(scratch);
  free(work);
  return equal == BLOCKS;
}

static void shared_fields(void) {
  int other = 0; /* deals that rooms have changed */
  make_documents();
  for (size_t m = 0; m < sizeof k_masks / sizeof k_masks[0]; m++)
    for (int ranks = 2; ranks <= MOST_RANKS; ranks *= 2) {
      filled rank[MOST_RANKS];
      for (int r = 0; r < ranks; r++) rank[r] = fill(k_masks[m].attention, ranks, r);
      check_shared(&k_masks[m], rank, ranks);
      const fx_attention_setup *setup = rank[0].setup;
      CHECK(dealt_for(&rank[0], setup->rung, setup->fixed ? 0 : setup->num_rungs));
      other += !setup->fixed && !dealt_for(&rank[0], NULL, 0);
      for (int r = 0; r < ranks; r++) {
        check_lists(&k_masks[m], &rank[r]);
        release(&rank[r]);
      }
    }
  CHECK(other > 0);
}

/* ---- rungs ---- */

static void rungs(void) {
  static const struct {
    const char *attention, *exchange;
    int ranks, count;
    fx_ring_room rung[FX_ATTENTION_MAX_RUNGS];
  } rows[] = {{"{variant: document_causal}", "ring", 2, 4, {{8, 1}, {2, 1}, {1, 1}, {0, 0}}},
              {"{variant: document_causal}", "ring", 1, 1, {{16, 0}}},
              {"{variant: document_causal}", "allgather", 2, 1, {{8, 1}}},
              {"{variant: document_causal}", "ring", 4, 4, {{4, 3}, {1, 3}, {2, 1}, {0, 0}}},
              {"{variant: document_causal}", "ring", 16, 3, {{1, 15}, {1, 1}, {0, 0}}},
              {"{variant: causal}", "ring", 4, 1, {{4, 3}}},
              {"{variant: full}", "ring", 4, 1, {{4, 3}}},
              {"{variant: sliding_window, params: {window: 128}}", "ring", 2, 2, {{8, 1}, {1, 1}}},
              {"{variant: sliding_window, params: {window: 300}}", "ring", 2, 2, {{8, 1}, {3, 1}}},
              {"{variant: sliding_window, params: {window: 300}}", "ring", 4, 2, {{4, 3}, {3, 1}}},
              {"{variant: sliding_window, params: {window: 300}}", "ring", 8, 2, {{2, 7}, {2, 2}}},
              {"{mask: 'kv < 0'}", "ring", 4, 2, {{4, 3}, {0, 0}}}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_attention_setup *setup = set_up(rows[i].attention, rows[i].exchange, rows[i].ranks, 0);
    if (!setup) continue;
    const fx_ring_room *last = &setup->rung[setup->num_rungs - 1];
    CHECK_MSG(setup->num_rungs == rows[i].count &&
                  memcmp(setup->rung, rows[i].rung, (size_t)rows[i].count * sizeof *setup->rung) == 0 &&
                  memcmp(&setup->room, setup->rung, sizeof setup->room) == 0,
              "%s, %d ranks, %s: %d rungs, last %d x %d", rows[i].attention, rows[i].ranks, rows[i].exchange,
              setup->num_rungs, last->blocks, last->hops);
    fx_attention_setup_destroy(setup);
  }
}

/* What one batch tells of fixed masks. Two key heads of a layer see the same, and areas of partial tiles are
 * exact where limits represent the mask. */
static void need_of_masks(void) {
  static const struct {
    const char *attention;
    fx_ring_room room;
    double density;
  } rows[] = {{"{variant: causal}", {4, 3}, (T + 1) / (2.0 * T)},
              {"{variant: full}", {4, 3}, 1},
              {"{variant: sliding_window, params: {window: 128}}", {1, 1}, (128 * (T - 63.5)) / T / T},
              {"{mask: 'kv < 0'}", {0, 0}, 0}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_attention_setup *setup = set_up(rows[i].attention, "ring", 4, 0);
    fx_ring_room room = {-1, -1};
    double density = -1;
    if (!setup || !CHECK(setup->fixed) || !CHECK_OK(fx_context_need(setup, &room, &density))) continue;
    CHECK_MSG(room.blocks == rows[i].room.blocks && room.hops == rows[i].room.hops &&
                  fabs(density - rows[i].density) < 1e-12,
              "%s: %d blocks, %d hops, density %.9f for %.9f", rows[i].attention, room.blocks, room.hops,
              density, rows[i].density);
    fx_attention_setup_destroy(setup);
  }
  fx_attention_setup *setup = set_up("{variant: document_causal}", "ring", 4, 0);
  CHECK(setup && !setup->fixed);
  fx_attention_setup_destroy(setup);
}

/* auto looks at the masks, which one batch may tell: nothing travels, or everything. */
static void exchange_of_masks(void) {
  static const struct {
    const char *attention;
    fx_context_exchange exchange;
  } rows[] = {{"{mask: 'kv < 0'}", FX_CONTEXT_RING},
              {"{mask: 'kv <= q && q - kv <= q % 128'}", FX_CONTEXT_RING},
              {"{variant: causal}", FX_CONTEXT_ALLGATHER},
              {"{variant: document_causal}", FX_CONTEXT_ALLGATHER}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_attention_setup *setup = set_up(rows[i].attention, "auto", 4, 0);
    if (!setup) continue;
    CHECK_MSG(setup->exchange == rows[i].exchange, "%s: %s", rows[i].attention,
              fx_context_exchange_name(setup->exchange));
    fx_attention_setup_destroy(setup);
  }
}

static const fx_test g_tests[] = {{"rungs of a set-up", rungs},
                                  {"what one batch tells", need_of_masks},
                                  {"auto looks at the masks", exchange_of_masks},
                                  {"what travels, and run lists over it", shared_fields}};
FX_TEST_MAIN("blocks that travel between context ranks", g_tests)
