#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# flexion generate: text of a model that was trained here, streamed byte for byte; the same twice, longer than the window; words
# of the corpus; what a user can get wrong.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
cd "$TMP" || exit 1
python3 "$here/corpus.py" corpus.txt 300 8
check "a run of 2 ranks" mpi 2 "$FLEXION" train "$here/tiny.yaml" "data.train=[lines:corpus.txt]" checkpoint.dir=run train.iters=300 \
  train.seq_length=64 train.eval_interval=0 train.log_interval=100 checkpoint.interval=100 > train.log 2>&1

text() { # text FILE arguments...
  local file=$1
  shift
  "$FLEXION" generate run "$@" > "$file" 2> err.txt && [ ! -s err.txt ] || { echo "generate $*:"; cat err.txt; return 1; }
}
bytes() { [ "$(wc -c < "$1")" -eq "$2" ] || { echo "$1: expected $2 bytes, got $(wc -c < "$1")"; return 1; }; }
differ() { ! cmp -s "$1" "$2"; }

check "longer than the window" text a --prompt "the ring " --tokens 200
check "a prompt and 200 bytes" bytes a 209
check "the prompt is echoed" [ "$(head -c 9 a)" = "the ring " ]
check "again" text b --prompt "the ring " --tokens 200
check "the same text twice" cmp a b
check "a step is a checkpoint too" bash -c "'$FLEXION' generate run/step_00000300 --prompt 'the ring ' --tokens 200 | cmp - a"
check "another seed" text c --prompt "the ring " --tokens 200 --seed 5
check "is another text" differ a c
check "an earlier step" bash -c "'$FLEXION' generate run/step_00000100 --prompt 'the ring ' --tokens 200 > d"
check "is another text" differ a d
check "a short text is the beginning of the long one" bash -c "'$FLEXION' generate run --prompt 'the ring ' --tokens 20 | cmp - <(head -c 29 a)"
check "temperature 0" text e --prompt "the ring " --tokens 100 --temperature 0
check "and a seed" text f --prompt "the ring " --tokens 100 --temperature 0 --seed 9
check "no seed matters" cmp e f
check "top-k 1" text g --prompt "the ring " --tokens 100 --top-k 1
check "is temperature 0" cmp e g
check "a tiny top-p" text h --prompt "the ring " --tokens 100 --top-p 0.000001
check "is temperature 0" cmp e h
check "no prompt" text i --tokens 150
check "prints what was drawn alone" bytes i 150
check "an empty prompt" text j --tokens 150 --prompt ""
check "is no prompt" cmp i j
check "a prompt longer than the window" text k --prompt "$(head -c 500 corpus.txt)" --tokens 5
check "is echoed whole" bytes k "$(($(head -c 500 corpus.txt | wc -c) + 5))"
check "bytes above 127" text l --prompt "é€" --tokens 1
check "are echoed" bytes l 6

# Most of what a trained model draws is words of the corpus; what a model of one step draws is not.
words() { # words FILE PERCENT
  python3 - "$1" "$here/corpus.py" "$2" <<'P'
import re, sys
known = set(re.search(r'WORDS = "(.*?)"', open(sys.argv[2]).read()).group(1).split())
drawn = open(sys.argv[1], errors="replace").read().split()[:-1]
share = 100 * sum(word in known for word in drawn) / len(drawn)
print(f"{share:.0f} % of {len(drawn)} words are known")
sys.exit(share < float(sys.argv[3]))
P
}
check "its words are those of the corpus" words a 80
check "a run of one step" "$FLEXION" train "$here/tiny.yaml" "data.train=[lines:corpus.txt]" checkpoint.dir=fresh train.iters=1 > /dev/null 2>&1
check "text of a fresh model" bash -c "'$FLEXION' generate fresh --tokens 400 > m"
not_words() { ! words m 20; }
check "is no words" not_words

check "figures" text n --prompt "the ring" --tokens 30 --json
check "are JSON on the last line, and the tokens are the text" python3 - <<'P'
import json
text, _, last = open("n", "rb").read().rstrip(b"\n").rpartition(b"\n")
row = json.loads(last)
assert row["generated_tokens"] == 30 == len(row["tokens"]), row
assert b"the ring" + bytes(row["tokens"]) == text, (text, row)
assert row["path"] == "run/step_00000300" and row["seed"] == 1234 and row["tokens_per_s"] > 0, row
P

refused() { # refused CODE PATTERN arguments...
  local code=$1 pattern=$2 got
  shift 2
  "$FLEXION" generate "$@" > out.txt 2> err.txt
  got=$?
  [ $got -eq "$code" ] && [ "$(wc -l < err.txt)" -eq 1 ] && [ ! -s out.txt ] && grep -q -E -- "$pattern" err.txt ||
    { echo "generate $*: expected code $code and one sentence with \"$pattern\"; got code $got and:"; cat err.txt; return 1; }
}
check "no checkpoint named" refused 2 'usage error: generate expects one checkpoint'
check "two checkpoints" refused 2 'several' run run
check "unknown option" refused 2 '--temprature' run --temprature 1
check "option without a value" refused 2 '--tokens takes a value' run --tokens
check "no tokens" refused 2 '--tokens takes an integer from 1' run --tokens 0
check "tokens in words" refused 2 'got "many"' run --tokens many
check "negative temperature" refused 2 'temperature -1' run --temperature -1
check "temperature in words" refused 2 '--temperature takes a number' run --temperature hot
check "top-p above 1" refused 2 'top-p 1.5' run --top-p 1.5
check "top-p 0" refused 2 'top-p 0' run --top-p 0
check "negative top-k" refused 2 '--top-k takes an integer from 0' run --top-k -1
check "negative seed" refused 2 '--seed' run --seed -1
check "missing path" refused 3 'nowhere.*no complete step' nowhere
mkdir void
check "folder without a step" refused 3 'void.*no complete step' void
cp -r run/step_00000300 damaged
python3 - <<'P'
import glob
for name in glob.glob("damaged/shard_*.h5"):
    data = bytearray(open(name, "rb").read())
    for i in range(4096, len(data), 64):  # everywhere: generation reads the weights only
        data[i] ^= 1
    open(name, "wb").write(data)
P
check "a damaged checkpoint" refused 3 "damaged" damaged
check "help" bash -c "'$FLEXION' generate --help | grep -q -- '--temperature X'"
finish
