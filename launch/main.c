/* SPDX-License-Identifier: Apache-2.0 */
/* flexion COMMAND ...: a table of subcommands. */
#include <stdio.h>
#include <string.h>

#include "launch/commands.h"

static const struct {
  const char *name, *help;
  int (*run)(int argc, char **argv);
} g_commands[] = {
    {"train", "train a model from a configuration (start it with mpirun or launch/run.sh)", fx_cmd_train},
    {"generate", "continue a prompt with the model of a checkpoint", fx_cmd_generate},
    {"config", "show or check a configuration", fx_cmd_config},
    {"ckpt", "inspect, compare or verify checkpoints", fx_cmd_ckpt},
    {"mask", "what an attention mask looks like and what it costs", fx_cmd_mask},
    {"kernel", "the C code that is generated for an attention variant", fx_cmd_kernel},
    {"plan", "what a training step would run, and the memory of a rank in any layout", fx_cmd_plan},
    {"bench", "time a training step, its products or its attention against the machine's bounds",
     fx_cmd_bench},
    {"doctor", "what this machine offers: processors, libraries, devices", fx_cmd_doctor},
};
enum { NUM_COMMANDS = sizeof g_commands / sizeof g_commands[0] };

static void usage(FILE *stream) {
  fprintf(stream, "usage: flexion COMMAND [arguments]\n\n");
  for (int i = 0; i < NUM_COMMANDS; i++)
    fprintf(stream, "  %-8s %s\n", g_commands[i].name, g_commands[i].help);
  fprintf(stream, "\n`flexion COMMAND --help` explains each. Exit codes: 0 ok, 2 usage or configuration, 3 "
                  "data or checkpoint,\n"
                  "4 device or communicator, 5 diverged.\n");
}

int main(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return 2;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    usage(stdout);
    return 0;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("flexion %s\n", FX_VERSION);
    return 0;
  }
  for (int i = 0; i < NUM_COMMANDS; i++)
    if (strcmp(argv[1], g_commands[i].name) == 0) return g_commands[i].run(argc - 1, argv + 1);
  fprintf(stderr, "flexion: usage error: there is no command \"%s\"; `flexion --help` lists them\n", argv[1]);
  return 2;
}
