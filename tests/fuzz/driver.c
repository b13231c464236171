/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz-NAME SEEDS ITERATIONS [FIRST]: every seed as it is, then ITERATIONS mutations of them. Iteration i
 * depends on i alone, so that a failure is repeated by `fuzz-NAME SEEDS 1 i`. */
#include <dirent.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "dynamo_rt/base/philox.h"
#include "tests/fuzz/fuzz.h"

enum { MAX_SEEDS = 64, MAX_BYTES = 1 << 16, HANG_SECONDS = 10 /* of the processor */ };

typedef struct text {
  char *data; /* [MAX_BYTES] */
  size_t size;
} text;

static text g_seeds[MAX_SEEDS];
static int g_count;
static char g_place[64]; /* of the input that is running, ready for the signal handler */

static void tell(int number) {
  (void)number;
  _exit(write(2, g_place, strlen(g_place)) < 0 ? 2 : 1);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
  return strcmp((*a)->d_name, (*b)->d_name); /* not by locale */
}

static void read_seeds(const char *dir) {
  struct dirent **entries = NULL;
  int n = scandir(dir, &entries, NULL, by_name);
  for (int i = 0; i < n; i++) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.' && g_count < MAX_SEEDS) {
      text *seed = &g_seeds[g_count++];
      FILE *file = fopen(path, "rb");
      seed->data = calloc(1, MAX_BYTES);
      if (!file || !seed->data) abort();
      seed->size = fread(seed->data, 1, MAX_BYTES, file);
      fclose(file);
    }
    free(entries[i]);
  }
  free(entries);
}

typedef struct dice {
  uint64_t iteration, next;
} dice;

static size_t roll(dice *d, size_t below) {
  return fx_philox_at(d->iteration, 0xF022u, d->next++, 0).word[0] % (below ? below : 1);
}

/* Replaces `cut` bytes at `at` by the bytes given, as far as there is room. */
static void replace(text *t, size_t at, size_t cut, const char *with, size_t size) {
  if (cut > t->size - at) cut = t->size - at;
  if (t->size - cut + size > MAX_BYTES) return;
  memmove(t->data + at + size, t->data + at + cut, t->size - at - cut);
  if (size) memcpy(t->data + at, with, size);
  t->size = t->size - cut + size;
}

static size_t line_at(const text *t, size_t at, size_t *bytes) {
  while (at > 0 && t->data[at - 1] != '\n') at--;
  const char *end = memchr(t->data + at, '\n', t->size - at);
  *bytes = end ? (size_t)(end - t->data) - at + 1 : t->size - at;
  return at;
}

static void mutate(dice *d, text *t) {
  static char piece[MAX_BYTES];
  const text *other = &g_seeds[roll(d, (size_t)g_count)];
  size_t at = roll(d, t->size + 1), from, bytes;
  int words = 0;
  while (fx_fuzz_words[words]) words++;
  const char *word = fx_fuzz_words[roll(d, (size_t)words)];
  switch (roll(d, 9)) {
  case 0:
    piece[0] = (char)roll(d, 256);
    replace(t, at, 1, piece, 1);
    break;
  case 1:
    if (at < t->size) t->data[at] ^= (char)(1 << roll(d, 8));
    break;
  case 2: /* truncation */
    t->size = at;
    break;
  case 3: /* a piece cut out */
    replace(t, at, roll(d, 40), "", 0);
    break;
  case 4: /* splice: a piece of any seed */
    from = roll(d, other->size + 1);
    bytes = roll(d, other->size - from + 1) % 200;
    memcpy(piece, other->data + from, bytes);
    replace(t, at, roll(d, 20), piece, bytes);
    break;
  case 5: /* a line twice */
  case 6: /* a line moved here from another seed */
    from = roll(d, 2) ? line_at(other, roll(d, other->size + 1), &bytes) : line_at(other, 0, &bytes);
    memcpy(piece, other->data + from, bytes);
    replace(t, line_at(t, at, &from), 0, piece, bytes);
    break;
  case 7: /* a word in the place of a number or a word */
    while (at < t->size && strchr(" :,[{\"=\n", t->data[at])) at++;
    for (bytes = 0; at + bytes < t->size && !strchr(" :,]}\"=\n", t->data[at + bytes]);) bytes++;
    replace(t, at, bytes, word, strlen(word));
    break;
  default:
    replace(t, at, 0, word, strlen(word));
    break;
  }
}

static void limit_time(int seconds) {
  setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = seconds}}, NULL);
}

static void run_one(const text *t) {
  limit_time(HANG_SECONDS);
  char *exact =
      malloc(t->size ? t->size : 1); /* exactly as long as the input, so that ASan sees one byte more */
  if (!exact) abort();
  memcpy(exact, t->data, t->size);
  LLVMFuzzerTestOneInput((const uint8_t *)exact, t->size);
  free(exact);
  limit_time(0);
}

int main(int argc, char **argv) {
  char dir[] = "/tmp/flexion-fuzz-XXXXXX", command[64];
  long long iterations = argc > 2 ? strtoll(argv[2], NULL, 10) : 0,
            first = argc > 3 ? strtoll(argv[3], NULL, 10) : 0;
  if (argc < 3 || !mkdtemp(dir)) return 2;
  setenv("FX_FUZZ_DIR", dir, 1);
  signal(SIGPROF, tell);
  signal(SIGABRT, tell);
  read_seeds(argv[1]);
  text t = {calloc(1, MAX_BYTES), 0};
  if (g_count == 0 || !t.data) abort();
  for (int i = 0; i < g_count; i++) {
    snprintf(g_place, sizeof g_place, "stopped at seed number %d\n", i);
    run_one(&g_seeds[i]);
  }
  for (long long i = first; i < first + iterations; i++) {
    dice d = {(uint64_t)i, 0};
    const text *seed = &g_seeds[roll(&d, (size_t)g_count)];
    snprintf(g_place, sizeof g_place, "stopped at iteration %lld\n", i);
    memcpy(t.data, seed->data, seed->size);
    t.size = seed->size;
    for (size_t edits = 1 + roll(&d, 4); edits > 0; edits--) mutate(&d, &t);
    run_one(&t);
  }
  printf("%d seeds and %lld mutations from number %lld: no fault\n", g_count, iterations, first);
  for (int i = 0; i < g_count; i++) free(g_seeds[i].data);
  free(t.data);
  snprintf(command, sizeof command, "rm -rf %s", dir);
  return system(command); // NOLINT: a path this file made itself
}
