/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that compare the documents they have read: the same, other numbers of them, the same number of other
 * ones, and the same tokens cut into documents elsewhere. */
#include <stdio.h>
#include <string.h>

#include "core/train/corpus_agree.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"

enum { MAX_RANKS = 4, TOKENS = 12, DOCUMENTS = 3 };

typedef struct text {
  int32_t tokens[TOKENS];
  int64_t lengths[DOCUMENTS], documents;
} text;

static const text g_usual = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {4, 4, 4}, 3};
static const text g_other_token = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13}, {4, 4, 4}, 3};
static const text g_other_cut = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {4, 3, 5}, 3};
static const text g_fewer = {{1, 2, 3, 4, 5, 6, 7, 8}, {4, 4}, 2};

typedef struct agree_case {
  const text *train, *odd_train, *valid, *odd_valid; /* of all ranks, of the odd one; valid may be NULL */
  int odd;
  fx_status status[MAX_RANKS];
  char said[MAX_RANKS][512];
} agree_case;

static fx_status agree_rank(fx_control *control, void *ctx) {
  agree_case *c = ctx;
  int r = control->rank;
  const text *wanted[2] = {r == c->odd ? c->odd_train : c->train, r == c->odd ? c->odd_valid : c->valid};
  fx_corpus *corpus[2] = {NULL, NULL};
  for (int i = 0; i < 2; i++)
    if (wanted[i])
      FX_TRY(fx_corpus_from_tokens(wanted[i]->tokens, wanted[i]->lengths, wanted[i]->documents, 256,
                                   &corpus[i]));
  c->status[r] = fx_corpus_agree(corpus[0], corpus[1], control, 20000);
  snprintf(c->said[r], sizeof c->said[r], "%s", c->status[r] == FX_OK ? "" : fx_error_text());
  fx_corpus_destroy(corpus[0]);
  fx_corpus_destroy(corpus[1]);
  return FX_OK;
}

/* The last of 2, 3 and 4 ranks is the odd one; sentence: with its number for %d, NULL: all agree. */
static void run(const text *train, const text *odd_train, const text *valid, const text *odd_valid,
                const char *before, const char *after) {
  agree_case c = {.train = train, .odd_train = odd_train, .valid = valid, .odd_valid = odd_valid};
  char sentence[512];
  for (int ranks = 2; ranks <= MAX_RANKS; ranks++) {
    c.odd = ranks - 1;
    snprintf(sentence, sizeof sentence, "ranks 0 and %d have read different data: %s", c.odd,
             before ? before : "");
    if (after)
      snprintf(sentence + strlen(sentence), sizeof sentence - strlen(sentence), "%d%s", c.odd, after);
    if (!CHECK_OK(fx_local_run(ranks, agree_rank, &c))) return;
    for (int r = 0; r < ranks; r++) {
      CHECK_STATUS(c.status[r], before ? FX_ERR_DIVERGED : FX_OK);
      CHECK_STR(c.said[r], before ? sentence : "");
    }
  }
}

static void the_same_documents(void) {
  run(&g_usual, &g_usual, NULL, NULL, NULL, NULL);
  run(&g_usual, &g_usual, &g_fewer, &g_fewer, NULL, NULL);
}

static void other_documents(void) {
  run(&g_usual, &g_fewer, NULL, NULL, "data.train has 3 documents of 12 tokens on rank 0 and 2 of 8 on rank ",
      "; give all hosts the same files");
  run(&g_usual, &g_other_token, NULL, NULL,
      "data.train has 3 documents of 12 tokens on both, but not the same ones; give all hosts the same files",
      NULL);
  run(&g_usual, &g_other_cut, NULL, NULL,
      "data.train has 3 documents of 12 tokens on both, but not the same ones; give all hosts the same files",
      NULL);
  run(&g_usual, &g_usual, &g_fewer, &g_usual,
      "data.valid has 2 documents of 8 tokens on rank 0 and 3 of 12 on rank ",
      "; give all hosts the same files");
}

static const fx_test tests[] = {{"the same documents", the_same_documents},
                                {"other documents", other_documents}};
FX_TEST_MAIN("ranks compare their data", tests)
