#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 40 steps = 20, a new process, 20 more, bitwise, across an epoch and evaluations, with dropout on, on 1 and 2 ranks; ckpt diff
# says so, and says otherwise where a run really differs.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6
run() { # run RANKS DIR overrides...
  local ranks=$1 dir=$2
  shift 2
  [[ $ranks == *zero* ]] && set -- parallel.zero="${ranks#*zero}" "$@" # "2zero1": 2 ranks, ZeRO 1
  mpi "${ranks%zero*}" "$FLEXION" train "$here/tiny.yaml" data.train="[lines:$TMP/corpus.txt]" runtime.threads=1 model.dropout=0.1 \
    checkpoint.dir="$TMP/$dir" "$@" > "$TMP/$dir.log" 2>&1 || { cat "$TMP/$dir.log"; return 1; }
}
crosses_epoch() { # 480 samples are consumed in 40 steps
  local samples
  samples=$(grep -oE '\([0-9]+ samples an epoch' "$1" | grep -oE '[0-9]+')
  [ "$samples" -lt 400 ] && [ $((240 % samples)) -ne 0 ]
}
equal() { "$FLEXION" ckpt diff "$1" "$2" > "$TMP/diff.txt" 2>&1 && tail -1 "$TMP/diff.txt" | grep -q "^identical: 63 tensors"; }
different() { "$FLEXION" ckpt diff "$1" "$2" > "$TMP/diff.txt" 2>&1; [ $? -eq 1 ] && tail -1 "$TMP/diff.txt" | grep -q "^different"; }
for ranks in 1 2 2zero1 2zero2; do
  check "40 steps on $ranks" run "$ranks" "whole$ranks"
  check "20 steps on $ranks" run "$ranks" "parts$ranks" train.iters=20
  check "20 more on $ranks" run "$ranks" "parts$ranks" train.iters=40
  check "an epoch was crossed" crosses_epoch "$TMP/parts$ranks.log"
  check "the second process resumed" grep -q "resuming from .*step_00000020: step 20, 240 samples" "$TMP/parts$ranks.log"
  check "bitwise equal on $ranks" equal "$TMP/whole$ranks/step_00000040" "$TMP/parts$ranks/step_00000040"
  check "steps differ from each other" different "$TMP/parts$ranks/step_00000020" "$TMP/parts$ranks/step_00000040"
  check "metrics are whole: 40 steps once each, 4 evaluations" python3 - "$TMP/whole$ranks/metrics.jsonl" "$TMP/parts$ranks/metrics.jsonl" <<'P'
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:])
for rows in (a, b):
    assert [r["step"] for r in rows if "loss" in r] == list(range(1, 41)), rows
    assert sum("valid_loss" in r for r in rows) == 4 + (rows is b and 0), rows
drop = ("tokens_per_s", "step_ms")
assert [{k: v for k, v in r.items() if k not in drop} for r in a] == [{k: v for k, v in r.items() if k not in drop} for r in b]
P
done
mkdir "$TMP/parts2/step_00000010.tmp" "$TMP/parts2/step_00000099.tmp"
check "a start after a crash while pruning" run 2 parts2 train.iters=44
check "what that crash left is gone" test ! -e "$TMP/parts2/step_00000010.tmp"
check "a newer unfinished step is left alone" test -e "$TMP/parts2/step_00000099.tmp"
check "another seed differs" run 1 seed train.seed=12
check "and diff says so" different "$TMP/whole1/step_00000040" "$TMP/seed/step_00000040"
check "ZeRO 1 gives the bits of ZeRO 0" bash -c "'$FLEXION' ckpt diff '$TMP/whole2/step_00000040' '$TMP/whole2zero1/step_00000040' | grep -q '0 of 63 tensors, 0 state values'"
check "saved on 2 ranks, goes on on 3" run 3 "parts2" train.iters=50
check "and on 2 under ZeRO 2" run 2zero2 "parts2" train.iters=56
check "and on 1" run 1 "parts2" train.iters=60
check "its checkpoint is sound" "$FLEXION" ckpt verify "$TMP/parts2/step_00000060"
finish
