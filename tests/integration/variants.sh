#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every variant of configs/attention trains: swapping its name is the only change. Losses are finite and fall, compiled
# and interpreted kernels give the same bits, and two ranks the same loss as one.
source "$(dirname "$0")/setup.bash"
source "$(dirname "$0")/variants.bash"
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6

declare -A params=([sliding_window]=window=16 [dilated_window]=window=24 [chunked]=chunk=16 [prefix_lm]=prefix=8
  [document_prefix]=prefix=8 [global_sliding]=window=12 [shared_prefix]=prefix=8 [neighbourhood_2d]=width=8
  [block_diffusion]=block=8 [soft_sliding_window]=window=16)

run() { train "$1" "$2" train.iters=6 checkpoint.interval=0 "${@:3}"; } # RANKS DIR overrides...
losses() { python3 -c 'import json,sys; print(*(json.loads(l)["loss"] for l in open(sys.argv[1])))' "$TMP/$1/metrics.jsonl"; }
sane() { python3 -c 'import sys; x = [float(v) for v in sys.argv[1:]]; sys.exit(not (len(x) == 6 and all(0 < v < 7 for v in x) and x[-1] < x[0]))' $1; }
close() { python3 -c 'import sys; a, b = ([float(v) for v in t.split()] for t in sys.argv[1:]); sys.exit(not all(abs(x - y) <= 1e-5 * abs(x) for x, y in zip(a, b)))' "$1" "$2"; }

alone() { # NAME overrides...
  check "$1 trains" run 1 "$@"
  check "$1: finite losses that fall: $(losses "$1")" sane "$(losses "$1")"
  check "$1, interpreted, trains" run 1 "$1-interpreted" "${@:2}" runtime.compiler=none
  check "$1: the interpreter gives the same losses" test "$(losses "$1")" = "$(losses "$1-interpreted")"
}
each_variant alone
for name in document_causal t5_bias sinks conversation; do
  check "$name on two ranks" run 2 "$name-2" "attention.variant=$name"
  check "$name: one and two ranks agree" close "$(losses "$name")" "$(losses "$name-2")"
done
check "a pattern over layers, composed in place" run 2 pattern 'attention.layers=[near, near, far]' \
  'attention.variants={near: {mask: {all: [sliding_window, document_causal]}, params: {window: 12}, score: [softcap, alibi], sinks: true}, far: {variant: document_causal}}' \
  model.num_hidden_layers=4
check "its losses fall" sane "$(losses pattern)"
# Learnable tables and sinks are parameters: they are saved, restored and trained on.
learnt=(attention.mask=document_causal 'attention.score=[softcap, "score + bias[h, min(q - kv, 15)]"]' attention.sinks=true
  'attention.buffers={bias: {shape: [H, 16], learnable: true}}' schedule.decay_iters=6)
check "a run with tables and sinks" run 1 whole "${learnt[@]}" checkpoint.interval=6
check "its first half" run 1 halves "${learnt[@]}" checkpoint.interval=3 train.iters=3
check "its second half, in another process" run 1 halves "${learnt[@]}" checkpoint.interval=3
check "both halves = the whole" bash -c "'$FLEXION' ckpt diff '$TMP/whole/step_00000006' '$TMP/halves/step_00000006' --json | tail -1 |
  python3 -c 'import json,sys; d = json.load(sys.stdin); sys.exit(not (d[\"different_tensors\"] == 0 and d[\"different_state\"] == 0 and d[\"tensors\"] > 60))'"
check "the table has moved from zero, and the sinks" /usr/bin/python3 -c "
import h5py, sys
with h5py.File('$TMP/whole/step_00000006/index.h5') as f:
    bias, sinks = f['model/model.layers.0.self_attn.bias'][:], f['model/model.layers.1.self_attn.sinks'][:]
sys.exit(not (bias.shape == (4, 16) and sinks.shape == (4,) and abs(bias).min() > 0 and abs(sinks).min() > 0))"
check "a compiler that is not there is no reason to stop" run 1 no-compiler attention.variant=softcap runtime.compiler=no-such-compiler
check "it is said" grep -q 'is interpreted, which is slower: ' "$TMP/no-compiler.log"
check "and changes nothing" test "$(losses no-compiler)" = "$(losses softcap)"
finish
