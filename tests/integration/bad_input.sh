#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a user can get wrong: each case ends with the right exit code and exactly one sentence on stderr, which says what the
# case expects, also when two ranks meet the same mistake.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
cd "$TMP" || exit 1
python3 "$here/corpus.py" good.txt 60 5
: > empty.txt
head -c 2000 /dev/zero > binary.bin
mkdir void
printf '{"text": "fine and long enough"}\n{"txt": 1}\n' > bad.jsonl
printf 'model: {hidden_size: 64}\n  train: 3\n' > syntax.yaml
printf 'include: [b.yaml]\n' > a.yaml
printf 'include: [a.yaml]\n' > b.yaml
printf 'model:\n  hidden_sise: 64\n' > typo.yaml

expect() { # expect CODE PATTERN ARGUMENTS-OF-TRAIN...
  local code=$1 pattern=$2 got
  shift 2
  "$FLEXION" train "$@" > out.txt 2> err.txt
  got=$?
  grep -v -E '^(warning: )' err.txt > sentence.txt
  if [ "$got" -ne "$code" ] || [ "$(wc -l < sentence.txt)" -ne 1 ] || ! grep -q -E -- "$pattern" sentence.txt; then
    echo "train $*: expected code $code and one sentence with \"$pattern\"; got code $got and:"
    cat err.txt
    return 1
  fi
}
case_of() { check "$1" expect "${@:2}"; }
good=("$here/tiny.yaml" "data.train=[lines:good.txt]" checkpoint.dir=run train.iters=1)

case_of "unknown key, nearest named" 2 'typo.yaml:2:3: .*hidden_sise.*hidden_size' typo.yaml
case_of "unknown key in an override" 2 'command line.*train.itrs.*train.iters' "${good[@]}" train.itrs=3
case_of "wrong type" 2 'train.iters.*(integer|number)' "${good[@]}" train.iters=many
case_of "out of range" 2 'optimizer.lr' "${good[@]}" optimizer.lr=-1
case_of "include cycle" 2 'cycle|includes itself' a.yaml
case_of "missing config" 2 'nowhere.yaml' nowhere.yaml
case_of "syntax error" 2 'syntax.yaml:2:' syntax.yaml
case_of "heads that do not divide" 2 'num_attention_heads' "${good[@]}" model.num_attention_heads=5 model.num_key_value_heads=5
case_of "KV heads that do not divide" 2 'num_key_value_heads' "${good[@]}" model.num_key_value_heads=3
case_of "batch that does not divide" 2 'train.global_batch_size' "${good[@]}" train.global_batch_size=7 train.micro_batch_size=2
case_of "sequence longer than positions" 2 'max_position_embeddings' "${good[@]}" model.position=learned model.max_position_embeddings=64
case_of "no data" 2 'data.train' "$here/tiny.yaml"
case_of "unknown variant" 2 'attention.variant.*causal|causal.*attention.variant' "${good[@]}" attention.variant=causl
case_of "sliding window without a window" 2 'window' "${good[@]}" attention.variant=sliding_window
case_of "a stage of ZeRO that is not there yet" 2 'parallel.zero=3 is not available yet' "${good[@]}" parallel.zero=3
case_of "fewer ranks than parallel.tensor" 2 '1 ranks do not divide into parallel.tensor=2' "${good[@]}" parallel.tensor=2
case_of "heads that do not divide over tensor ranks" 2 'model.num_attention_heads=4 is not a multiple of parallel.tensor=3' "${good[@]}" parallel.tensor=3
case_of "key heads that do not divide" 2 'model.num_key_value_heads=6 is neither.*parallel.tensor=4' "${good[@]}" parallel.tensor=4 model.hidden_size=192 model.num_attention_heads=12 model.num_key_value_heads=6
case_of "features that do not divide" 2 'model.intermediate_size=98 is not a multiple of parallel.tensor=4' "${good[@]}" parallel.tensor=4 model.intermediate_size=98
case_of "rows that do not divide" 2 'train.micro_batch_size=1 x train.seq_length=130 rows.*parallel.tensor=4' "${good[@]}" parallel.tensor=4 train.seq_length=130
case_of "a sequence that context ranks cannot share" 2 'train.seq_length=128 .*256' "${good[@]}" parallel.context=2
case_of "context ranks that are not there" 2 '1 ranks do not divide.*parallel.context=2' "${good[@]}" parallel.context=2 train.seq_length=256
case_of "an exchange that does not exist" 2 'parallel.context_exchange.*(ring|allgather)' "${good[@]}" parallel.context_exchange=gossip
case_of "heads that context ranks cannot divide" 2 'parallel.context=4 does not divide the 4 query and 2 key heads' "${good[@]}" parallel.context_exchange=alltoall parallel.context=4 train.seq_length=512
case_of "missing corpus" 3 'nowhere.txt' "${good[@]}" data.train=nowhere.txt
case_of "empty corpus" 3 'empty.txt' "${good[@]}" data.train=empty.txt
case_of "binary corpus" 3 'binary.bin' "${good[@]}" data.train=binary.bin
case_of "empty directory" 3 'void' "${good[@]}" data.train=void
case_of "glob without a match" 3 'none\*' "${good[@]}" "data.train=none*"
case_of "bad JSON line" 3 'bad.jsonl:2' "${good[@]}" data.train=bad.jsonl
case_of "one document cannot be split by documents" 3 'data.split' "${good[@]}" data.train=good.txt
case_of "missing checkpoint" 3 'step_00000009' "${good[@]}" checkpoint.resume=run/step_00000009
check "a good run, for the next case" "$FLEXION" train "${good[@]}" > /dev/null 2>&1
case_of "checkpoint of another model" 3 'tensor .* is float32 .256, 64. there, but float32 .256, 32. here' "${good[@]}" model.hidden_size=32 train.iters=2

# A learning rate that no run survives: the gradient is not finite from the second step on, for good.
case_of "a run that diverges" 5 'not finite in 10 steps in a row, up to step [0-9]+: lower optimizer.lr, check the data, or resume' "${good[@]}" checkpoint.dir=diverged train.iters=99 \
  train.global_batch_size=1 train.eval_interval=0 optimizer.lr=1000 optimizer.min_lr=1000 runtime.log_level=error
check "its last rows count the skipped steps" bash -c "tail -1 diverged/metrics.jsonl | grep -q '\"grad_norm\":null.*\"skipped\":9}'"

# Two ranks: one sentence still, and the code of flexion comes through mpirun.
both() {
  mpi 2 "$FLEXION" train "${good[@]}" "$3" > out.txt 2> err.txt
  local got=$?
  [ "$got" -eq "$1" ] && [ "$(grep -c -E '^flexion: ' err.txt)" -eq 1 ] && grep -q -E -- "$2" err.txt || { echo "code $got"; cat err.txt; return 1; }
}
check "two ranks, bad key" both 2 'train.iters' train.itrs=3
check "two ranks, batch that does not divide" both 2 'train.global_batch_size' train.global_batch_size=3
check "two ranks, missing corpus" both 3 'nowhere.txt' data.train=nowhere.txt

# The other commands.
code_of() { local want=$1; shift; "$@" > out.txt 2> err.txt; local got=$?; [ "$got" -eq "$want" ] || { echo "$*: code $got"; cat err.txt; return 1; }; }
check "no command" code_of 2 "$FLEXION"
check "unknown command" code_of 2 "$FLEXION" trian
check "help" code_of 0 "$FLEXION" --help
to_full_disk() { "$FLEXION" "$@" > /dev/full 2> err.txt; [ $? -eq 3 ] && grep -q 'standard output cannot be written' err.txt; }
for c in train generate config ckpt doctor bench 'bench attention' 'bench context' mask kernel plan; do
  check "$c --help" code_of 0 "$FLEXION" $c --help
  check "$c --help that cannot be written" to_full_disk $c --help
done
check "config check" code_of 0 "$FLEXION" config check "$here/tiny.yaml"
check "config show" code_of 0 "$FLEXION" config show "$here/tiny.yaml"
check "what show prints is valid" bash -c "'$FLEXION' config show '$here/tiny.yaml' train.seed=5 > shown.yaml && '$FLEXION' config show shown.yaml | cmp - shown.yaml"
check "config check finds the typo" code_of 2 "$FLEXION" config check typo.yaml
check "ckpt inspect" code_of 0 "$FLEXION" ckpt inspect run
check "ckpt inspect of nothing" code_of 3 "$FLEXION" ckpt inspect nowhere
check "doctor" code_of 0 "$FLEXION" doctor --json
check "doctor's last line is JSON" bash -c "tail -1 out.txt | python3 -m json.tool > /dev/null"
check "doctor tells HDF5's version" grep -qE '"hdf5":"1\.[0-9]+\.[0-9]+"' out.txt
check "doctor without a forced kernel" code_of 0 env -u OPENBLAS_CORETYPE "$FLEXION" doctor --json
check "tells that none is" grep -q '"openblas_coretype":null' out.txt
check "doctor with one" code_of 0 env OPENBLAS_CORETYPE=Haswell "$FLEXION" doctor --json
check "tells which" grep -q '"openblas_coretype":"Haswell"' out.txt
coretype() { OPENBLAS_CORETYPE=Haswell "$FLEXION" doctor > out.txt && grep -q '^coretype *OPENBLAS_CORETYPE is Haswell' out.txt && grep -q '^warning: OPENBLAS_CORETYPE=Haswell' out.txt; }
check "doctor warns of OPENBLAS_CORETYPE" coretype
bad() { code_of 2 "$FLEXION" "${@:2}" && grep -q -- "$1" err.txt; }
layout() { "$FLEXION" doctor "$FX_SOURCE_DIR/configs/models/llama-1b.yaml" "${@:2}" > out.txt && [ "$(grep -E '^(layout|tp|cp|dp|dp_cp|kv) ' out.txt | tr -s ' ' | tr '\n' ';')" = "$1" ]; }
check "doctor lays out ranks" layout 'layout 16 ranks, tp:8 cp:1 dp:2;tp 0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15;cp 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15;dp 0 8 | 1 9 | 2 10 | 3 11 | 4 12 | 5 13 | 6 14 | 7 15;dp_cp 0 8 | 1 9 | 2 10 | 3 11 | 4 12 | 5 13 | 6 14 | 7 15;kv 0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11 | 12 13 | 14 15;' parallel.tensor=8 --ranks 16
check "ranks of one sequence" layout 'layout 4 ranks, tp:2 cp:2 dp:1;tp 0 1 | 2 3;cp 0 2 | 1 3;dp 0 | 1 | 2 | 3;dp_cp 0 2 | 1 3;' parallel.tensor=2 parallel.context=2
check "many ranks" bash -c "'$FLEXION' doctor '$FX_SOURCE_DIR/configs/models/llama-1b.yaml' train.global_batch_size=4096 --ranks 512 | grep -qE '^dp  *0 1 2 .* [0-9]+\.\.\.\$'"
check "one rank" layout 'layout 1 rank, tp:1 cp:1 dp:1;tp 0;cp 0;dp 0;dp_cp 0;'
whole() { "$FLEXION" doctor "$FX_SOURCE_DIR/configs/models/llama-1b.yaml" train.global_batch_size=512 "$@" --json | tail -1 | python3 -c '
import json, sys
layout = json.load(sys.stdin)["layout"]
groups = layout["groups"]
assert layout["ranks"] == 512 and layout["topology"] == "tp:8 cp:2 dp:32", layout
assert groups["tp"] == [list(range(r, r + 8)) for r in range(0, 512, 8)], groups["tp"]
assert groups["cp"] == [[r, r + 8] for r in range(512) if r % 16 < 8], groups["cp"]
assert groups["dp"] == [list(range(r, 512, 16)) for r in range(16)], groups["dp"]
assert groups["dp_cp"] == [list(range(r, 512, 8)) for r in range(8)], groups["dp_cp"]
assert groups["kv"] == [[r, r + 1] for r in range(0, 512, 2)], groups["kv"]'; }
check "all of them in JSON, where the text is cut" whole parallel.tensor=8 parallel.context=2 --ranks 512
check "ranks that do not divide" bad "3 ranks do not divide into parallel.tensor=2" doctor "$FX_SOURCE_DIR/configs/models/llama-1b.yaml" parallel.tensor=2 --ranks 3
check "ranks of no configuration" bad "--ranks needs a configuration" doctor --ranks 3
check "too many ranks" bad "--ranks takes a number up to 4096" doctor "$here/tiny.yaml" --ranks 5000
for preset in "$FX_SOURCE_DIR"/configs/*.yaml "$FX_SOURCE_DIR"/configs/models/*.yaml; do check "$preset is valid" code_of 0 "$FLEXION" config check "$preset"; done
finish
