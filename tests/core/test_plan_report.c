/* SPDX-License-Identifier: Apache-2.0 */
/* What `flexion plan` says of a step that nobody runs. The stepper keeps what it is told of the topology:
 * ASan sees a text that is gone before the plans are made. */
#include <string.h>

#include "core/bench/plan.h"
#include "tests/harness.h"

static const char k_yaml[] =
    "model: {vocab_size: 256, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, "
    "num_key_value_heads: 1, intermediate_size: 48}\n"
    "train: {seq_length: 128, micro_batch_size: 1, global_batch_size: 4}\nparallel: {zero: 1}\n";

static void two_ranks(void) {
  fx_config *config = NULL;
  fx_bench_plan_report r;
  CHECK_OK(fx_config_parse(k_yaml, "plan.yaml", &config));
  if (CHECK_OK(fx_bench_plan(config, 2, false, &r))) {
    int scatters = 0;
    CHECK_STR(r.topology, "tp:1 cp:1 dp:2");
    CHECK_INT(r.ranks, 2);
    for (int i = 0; i < r.count; i++) {
      bool has = strstr(r.row[i].ledger, "reduce_scatter") != NULL;
      CHECK_MSG(has == (strcmp(r.row[i].name, "micro_last") == 0), "%s: %s", r.row[i].name, r.row[i].ledger);
      scatters += has;
    }
    CHECK_INT(scatters, 1);
  }
  fx_bench_plan_fini(&r);
  fx_config_destroy(config);
}

static const fx_test g_tests[] = {{"two ranks that share the optimizer's state", two_ranks}};
FX_TEST_MAIN("plan report", g_tests)
