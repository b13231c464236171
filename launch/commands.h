/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of the `flexion` binary, one file each. argv[0] is the subcommand's own name; the result is
 * the exit code of the process. A subcommand parses its arguments, calls the layers and prints; it decides
 * nothing that a library user of flexion would have to decide again. */
#ifndef FX_LAUNCH_COMMANDS_H
#define FX_LAUNCH_COMMANDS_H

#ifdef __cplusplus
extern "C" {
#endif

int fx_cmd_train(int argc, char **argv);
int fx_cmd_generate(int argc, char **argv);
int fx_cmd_config(int argc, char **argv);
int fx_cmd_ckpt(int argc, char **argv);
int fx_cmd_doctor(int argc, char **argv);
int fx_cmd_bench(int argc, char **argv);
int fx_cmd_mask(int argc, char **argv);
int fx_cmd_kernel(int argc, char **argv);
int fx_cmd_plan(int argc, char **argv);
/* `bench attention`, `bench context`: argv[0] is the subject. */
int fx_cmd_bench_attention(int argc, char **argv);
int fx_cmd_bench_context(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
