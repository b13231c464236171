/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps whose gradient is not finite, on CPU ranks. */
#include "tests/core/skipped_case.h"

static void bad_steps_are_skipped_and_told(void) {
  for (int ranks = 1; ranks <= MAX_RANKS; ranks += 2) bad_steps_are_told("cpu", ranks);
}

static void good_runs_tell_of_none(void) {
  static training t;
  const char *dir = fresh_dir();
  if (!train(&t, "cpu", dir, 1, 3, 0)) return;
  CHECK_INT(t.rank[0].report.skipped, 0);
  CHECK_INT(count_of(t.log, "skipped"), 0);
  CHECK_INT(count_of(metrics_of(dir), "skipped"), 0);
  free(t.log);
}

static void ten_in_a_row_end_the_run(void) {
  for (int ranks = 1; ranks <= MAX_RANKS; ranks += 2) ten_in_a_row_end_it("cpu", ranks);
}

/* A good step between them starts the count anew. */
static void nine_in_a_row_do_not(void) {
  static training t;
  const uint32_t nine = (1u << 9) - 1;
  if (!train(&t, "cpu", fresh_dir(), 1, 24, nine << 2 | nine << 12)) return;
  CHECK_STR(t.rank[0].said, "");
  CHECK_INT(t.rank[0].report.skipped, 18);
  step_is_told(&t, 21, 18);
  free(t.log);
}

static const fx_test tests[] = {{"bad steps are skipped and told", bad_steps_are_skipped_and_told},
                                {"good runs tell of none", good_runs_tell_of_none},
                                {"ten in a row end the run", ten_in_a_row_end_the_run},
                                {"nine in a row do not", nine_in_a_row_do_not}};
FX_TEST_MAIN("skipped steps", tests)
