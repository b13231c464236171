#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every variant of configs/attention with its sequence shared by two ranks of a ring, under real mpirun, against one rank: two
# steps after a short training, losses and gradient norms within 1e-5. Windows, chunks and prefixes reach over the blocks
# of 128 that ranks are dealt. A control: another mask moves the first loss by 100 times that.
source "$(dirname "$0")/setup.bash"
source "$(dirname "$0")/variants.bash"
python3 "$here/corpus.py" "$TMP/corpus.txt" 200 6

declare -A params=([sliding_window]=window=140 [dilated_window]=window=150 [chunked]=chunk=100 [prefix_lm]=prefix=150
  [document_prefix]=prefix=8 [global_sliding]=window=100 [shared_prefix]=prefix=40 [neighbourhood_2d]=width=16
  [block_diffusion]=block=8 [soft_sliding_window]=window=90)

run() { # RANKS DIR overrides...: to step 42, with a checkpoint at step 40
  train "$1" "$2" train.iters=42 train.seq_length=256 train.global_batch_size=2 checkpoint.interval=40 "${@:3}"
}
shared() { # VARIANT DIR overrides...: its last two steps, by a ring of two
  run 2 "$2" parallel.context=2 parallel.context_exchange=ring checkpoint.resume="$TMP/$1/step_00000040" "${@:3}"
}
cat > "$TMP/off.py" <<'P'
import json, sys
a, b = ([json.loads(l) for l in open(f"{d}/metrics.jsonl")][-2:] for d in sys.argv[1:])
assert [x["step"] for x in a] == [x["step"] for x in b] == [41, 42], (a, b)
print(*(max(abs(x[k] / y[k] - 1) for x, y in zip(a, b)) for k in ("loss", "grad_norm")))
P
off() { python3 "$TMP/off.py" "$TMP/$1" "$TMP/$2"; } # how far losses and gradient norms are, relatively
within() { python3 -c 'import sys; x = sys.argv[1].split(); sys.exit(not (len(x) == 2 and all(float(v) <= 1e-5 for v in x)))' "$1"; }
moved() { python3 -c 'import sys; sys.exit(not float(sys.argv[1].split()[0]) >= 1e-3)' "$1"; }

together() { # NAME overrides...
  local difference
  check "$1 on one rank" run 1 "$@"
  check "$1 on two" shared "$1" "$1-2" "${@:2}"
  check "$1 shares its sequence" grep -q '| tp:1 cp:2 dp:1 |' "$TMP/$1-2.log"
  difference=$(off "$1" "$1-2")
  check "$1: one rank and a ring of two agree: $difference" within "$difference"
}
each_variant together
check "another mask" shared document_causal control attention.variant=causal
difference=$(off document_causal control)
check "has another loss: $difference" moved "$difference"
finish
