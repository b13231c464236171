#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 1, 2, 3 and 4 ranks under real mpirun, from a trained checkpoint, with unequal numbers of valid targets: losses within 1e-5
# at each of 20 steps, every named gradient's norm within 1e-5 plus 1e-7 of the global norm. Two controls, so that the
# comparison could fail: another mask moves the losses by 100 times the tolerance, and so does a missing reduction's worth
# of data (half a batch). And ranks that share sequences (parallel.context), by ring and by allgather, against one rank on
# the same longer sequences.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 400 5
data=(data.train="[lines:$TMP/corpus.txt]" runtime.threads=1)
"$FLEXION" train "$here/tiny.yaml" "${data[@]}" checkpoint.dir="$TMP/start" train.iters=200 train.eval_interval=0 train.log_interval=50 || exit 1

steps() { # steps OUT RANKS overrides...: 20 steps from the checkpoint
  local out=$1 ranks=$2
  shift 2
  mpi "$ranks" "$FX_BUILD_DIR/tests/mpi_train" "$TMP/$out" "$here/tiny.yaml" "${data[@]}" checkpoint.resume="$TMP/start/step_00000200" \
    checkpoint.dir="$TMP/$out.dir" train.iters=220 train.eval_interval=0 \
    optimizer.lr=1e-3 optimizer.min_lr=1e-4 "$@" # a rate at which rounding does not grow tenfold in 20 steps
}
for n in 1 2 3 4; do check "$n ranks run" steps "np$n" "$n"; done
check "accumulation runs" steps whole 1 train.micro_batch_size=12
check "eager runs" steps eager 3 runtime.mode=eager
check "control runs" steps mask 1 attention.variant=causal
check "control runs" steps half 1 train.global_batch_size=6
long=(train.seq_length=512 train.global_batch_size=4)
check "one rank on long sequences runs" steps long 1 "${long[@]}"
check "2 context ranks, ring, run" steps ring2 2 "${long[@]}" parallel.context=2 parallel.context_exchange=ring
check "2 context ranks, allgather, run" steps gather2 2 "${long[@]}" parallel.context=2 parallel.context_exchange=allgather
check "2 x 2 ranks run" steps ring2x2 4 "${long[@]}" parallel.context=2 parallel.context_exchange=ring
check "control runs" steps longmask 1 "${long[@]}" attention.variant=causal
cat > "$TMP/compare.py" <<'P'
import json, sys
def load(name):
    return [json.loads(l) for l in open(f"{sys.argv[1]}/{name}")]
base, longer = load("np1"), load("long")
assert len(base) == 20 and base[0]["step"] == 200, (len(base), base[0]["step"])
assert len(longer) == 20, len(longer)
def worst(name, base):
    other = load(name); assert len(other) == 20, name
    loss = max(abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in zip(base, other))
    grad, where = 0.0, ""
    for a, b in zip(base, other):
        total = sum(v * v for v in a["grads"].values()) ** 0.5
        assert a["grads"].keys() == b["grads"].keys() and len(a["grads"]) == 21, len(a["grads"])
        for k, v in a["grads"].items():
            excess = abs(v - b["grads"][k]) / (1e-5 * v + 1e-7 * total)
            if excess > grad: grad, where = excess, f"{k} at step {a['step']}"
    return loss, grad, where
bad = 0
several = [(n, base) for n in ("np2", "np3", "np4", "whole", "eager")] + [(n, longer) for n in ("ring2", "gather2", "ring2x2")]
for name, one in several:
    loss, grad, where = worst(name, one)
    print(f"{name}: losses within {loss:.2e}, gradient norms at {grad:.3f} of the tolerance ({where})")
    bad += loss > 1e-5 or grad > 1
for name, one in (("mask", base), ("half", base), ("longmask", longer)):
    loss = abs(one[0]["loss"] - load(name)[0]["loss"]) / one[0]["loss"]
    print(f"control {name}: the first loss moves by {loss:.2e}")
    bad += loss < 1e-3
sys.exit(bad > 0)
P
check "losses and gradients agree" python3 "$TMP/compare.py" "$TMP"
finish
