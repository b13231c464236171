/* SPDX-License-Identifier: Apache-2.0 */
/* Never T x T: 65,536 positions under a limit of the address space, in a child process. This file has no
 * other test, as a child forked after OpenMP has started threads could not start its own. */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/attention/attention_case.h"

enum { T = 65536, D = 64, WINDOW = 256 };
static const size_t g_room = (size_t)1 << 30; /* a matrix of scores would be 16 GiB */

static bool limit_address_space(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (!file || fscanf(file, "%lu", &pages) != 1) return false; // NOLINT
  fclose(file);
  size_t most = pages * (size_t)sysconf(_SC_PAGESIZE) + g_room;
  struct rlimit limit = {most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return false;
#ifndef __SANITIZE_ADDRESS__ /* its malloc ends the process where this one returns NULL */
  void *matrix = malloc((size_t)T * T * sizeof(float));
  bool refused = !matrix;
  free(matrix);
  return refused;
#else
  return true;
#endif
}

/* out of row q against a double-precision softmax over its window */
static double row_error(const attention_case *c, int q) {
  double p[WINDOW], sum = 0, error = 0, norm = 0;
  int from = q < WINDOW - 1 ? 0 : q - WINDOW + 1;
  for (int n = from; n <= q; n++) {
    double score = 0;
    for (int d = 0; d < D; d++)
      score += (double)((const float *)c->q.data)[q * c->q.time + d] *
               (double)((const float *)c->k.data)[n * c->k.time + d];
    sum += p[n - from] = exp(score * (double)c->shape.scale);
  }
  for (int d = 0; d < D; d++) {
    double want = 0;
    for (int n = from; n <= q; n++)
      want += p[n - from] / sum * (double)((const float *)c->v.data)[n * c->v.time + d];
    error += pow((double)c->out[q * c->o.time + d] - want, 2);
    norm += want * want;
  }
  return sqrt(error / norm);
}

/* The sum over keys of dv is, column by column, the sum over rows of dout, as rows of P add up to one. */
static double dv_error(const attention_case *c) {
  double error = 0, norm = 0;
  for (int d = 0; d < D; d++) {
    double got = 0, want = 0;
    for (int t = 0; t < T; t++) {
      got += (double)((const float *)c->dv.data)[t * c->dv.time + d];
      want += (double)c->dout[t * c->o.time + d];
    }
    error += pow(got - want, 2);
    norm += want * want;
  }
  return sqrt(error / norm);
}

static int child(void) {
  if (!limit_address_space()) return 2;
  attention_case c = case_create((attention_spec){"sliding_window", 1, T, T, 1, 1, D, WINDOW, true, false});
  case_run(&c, 2, FX_ISA_AUTO);
  double worst = 0;
  for (int q = 0; q < T; q += 1021) worst = fx_worse(worst, row_error(&c, q));
  double dv = dv_error(&c);
  printf("[out off by %.2g, dv by %.2g] ", worst, dv);
  fflush(stdout);
  return worst < 1e-5 && worst > 0 && dv < 1e-5 ? 0 : 3;
}

static void sixty_four_thousand_positions(void) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(child());
  int status = 0;
  CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0,
            "the child ended with status %x (2: no limit, 3: wrong result, a signal: out of memory)",
            (unsigned)status);
}

static const fx_test g_tests[] = {{"65,536 positions in 1 GiB", sixty_four_thousand_positions}};
FX_TEST_MAIN("flash attention on the CPU: memory", g_tests)
