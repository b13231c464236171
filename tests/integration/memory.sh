#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The memory that is planned is the memory that is used: VmHWM within 10% of the account, in a measured step and in training,
# with the copy that checkpoints beside training need and without it.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6
# 20 M parameters: 300 MiB, beside which the libraries' own growth is small.
model=("$here/tiny.yaml" model.hidden_size=512 model.num_hidden_layers=7 model.num_attention_heads=8 model.num_key_value_heads=8
  model.intermediate_size=1360 runtime.threads=1 train.micro_batch_size=2 train.global_batch_size=2)

bench() { # SNAPSHOT-BYTES-A-PARAMETER OPTIONS...
  local bytes=$1
  shift
  "$FLEXION" bench step "${model[@]}" --steps 1 --json "$@" >"$TMP/bench.txt" &&
    tail -1 "$TMP/bench.txt" | python3 -c '
import json, sys
row, bytes = json.load(sys.stdin), int(sys.argv[1])
excess = row["peak_bytes"] / row["planned_bytes"] - 1
print("planned %.1f MiB, used %+.1f%%" % (row["planned_bytes"] / 2**20, 100 * excess))
assert row["params"] > 15e6 and row["param_bytes"] >= 16 * row["params"]
assert bytes * row["params"] <= row["snapshot_bytes"] <= 1.01 * bytes * row["params"], row
assert abs(excess) < 0.10, row' "$bytes"
}
check "a step" bench 0
check "a step that copies its state aside" bench 12 --snapshot
check "bench gemm knows no --snapshot" bash -c "! '$FLEXION' bench gemm ${model[0]} --snapshot 2>/dev/null"

train() { # ASYNC
  "$FLEXION" train "${model[@]}" "data.train=[lines:$TMP/corpus.txt]" train.iters=3 train.eval_interval=0 checkpoint.interval=2 \
    checkpoint.async="$1" checkpoint.dir="$TMP/async_$1" >"$TMP/train.log" 2>&1 || { cat "$TMP/train.log"; return 1; }
  grep 'memory' "$TMP/train.log"
  [ "$(grep -c 'memory planned' "$TMP/train.log")" -eq 1 ] &&
    [ "$(sed -nE 's/.*\(VmHWM\) .* MiB, [+-]([0-9]+)\..*/\1/p' "$TMP/train.log")" -lt 10 ]
}
check "training, saving beside it" train true
check "its snapshot is in the plan" grep -q 'memory planned.* + snapshot ' "$TMP/train.log"
check "training, saving at once" train false
check "no snapshot in that plan" bash -c "! grep -q snapshot '$TMP/train.log'"

# 4 ranks under ZeRO: bytes a parameter that each plans, against 4 of weights, 4 of gradients and 8 of moments without it.
zero() { # STAGE GRADIENTS MOMENTS SNAPSHOT: parts of what stage 0 plans; 1.25: what ZeRO 1 sums into comes on top
  mpi 4 "$FLEXION" train "${model[@]}" train.global_batch_size=8 "data.train=[lines:$TMP/corpus.txt]" train.iters=3 \
    train.eval_interval=0 checkpoint.interval=2 parallel.zero="$1" checkpoint.dir="$TMP/zero_$1" >"$TMP/zero.log" 2>&1 || { cat "$TMP/zero.log"; return 1; }
  grep 'memory' "$TMP/zero.log"
  [ "$(sed -nE 's/.*\(VmHWM\) .* MiB, [+-]([0-9]+)\..*/\1/p' "$TMP/zero.log")" -lt 10 ] || return 1
  grep 'memory planned' "$TMP/zero.log" | python3 -c '
import re, sys
line, parts = sys.stdin.read(), dict(zip(("gradients", "moments", "snapshot"), map(float, sys.argv[1:])))
got = {k: float(v) for k, v in re.findall(r"(weights|gradients|moments|snapshot) ([0-9.]+)", line)}
whole = {"gradients": got["weights"], "moments": 2 * got["weights"], "snapshot": 3 * got["weights"]}
for k, part in parts.items():
    assert abs(got[k] / whole[k] - part) < 0.02, (k, got, part)' "$2" "$3" "$4"
}
check "4 ranks, ZeRO 0" zero 0 1 1 1
check "4 ranks, ZeRO 1" zero 1 1.25 0.25 0.25
check "4 ranks, ZeRO 2" zero 2 0.25 0.25 0.25
finish
