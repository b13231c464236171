#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launch/quickstart.sh on a tiny corpus: it ends well, with metrics, a picture of them and a sample. And what it refuses.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
export FLEXION_BIN=$FLEXION
cd "$TMP" || exit 1
mkdir "my texts" # a blank in every path
for i in $(seq 12); do python3 "$here/corpus.py" "my texts/$i.txt" 6 "$i"; done

quickstart() { "$FX_SOURCE_DIR/launch/quickstart.sh" --no-install "$@" > out.txt 2> err.txt; }
good() { quickstart "$@" || { tail -5 out.txt err.txt; return 1; }; }
check "a run of 60 steps" good --steps 60 --dir "a run" "my texts" train.eval_interval=20 train.log_interval=1 train.seq_length=64

is_png() { # is_png FILE: signature, size in pixels, every chunk's checksum, more than one colour, as many bytes as pixels need
  python3 - "$1" <<'P'
import struct, sys, zlib
data = open(sys.argv[1], "rb").read()
assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
at, pixels, names = 8, b"", []
while at < len(data):
    length, name = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + length]
    assert zlib.crc32(name + body) == struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0], "checksum"
    names.append(name)
    pixels += body if name == b"IDAT" else b""
    at += 12 + length
assert names[0] == b"IHDR" and names[-1] == b"IEND", names
width, height = struct.unpack(">II", data[16:24])
assert (width, height) == (960, 600), (width, height)
raw = zlib.decompress(pixels)
assert len(raw) >= width * height // 8 and len(set(raw)) > 8, "an empty picture"
assert 3000 < len(data) < 1000000, len(data)
P
}
check "the loss curve is a picture" is_png "a run/loss.png"
check "metrics: 60 steps, 3 evaluations, a loss that fell" python3 - <<'P'
import json
rows = [json.loads(line) for line in open("a run/metrics.jsonl")]
loss = [r["loss"] for r in rows if "loss" in r]
valid = [r["valid_loss"] for r in rows if "valid_loss" in r]
assert len(loss) == 60 and len(valid) == 3 and loss[-1] < loss[0] - 1, (loss, valid)
P
check "live progress" grep -q 'step 60/60 | loss' err.txt
check "the sample is what generate draws" python3 - <<'P'
import os, subprocess
want = subprocess.run([os.environ["FLEXION_BIN"], "generate", "a run", "--tokens", "400"], capture_output=True, check=True).stdout
assert len(want) == 400 and want in open("out.txt", "rb").read(), want
P
check "timings of the stages" grep -q -E '^== done in [0-9]+ s: corpus [0-9]+ s, training [0-9]+ s, plot [0-9]+ s, sample [0-9]+ s$' out.txt
check "the validation loss" bash -c "grep -E '^validation loss +[0-9.]+' out.txt | grep -q -F \"\$(tail -1 'a run/metrics.jsonl' | python3 -c 'import json, sys; print(\"%.4f\" % json.loads(sys.stdin.read())[\"valid_loss\"])')\""
check "the files that it names exist" bash -c "grep -E '^(metrics|loss curve) ' out.txt | sed -E 's/^(metrics|loss curve) +//' | while read -r f; do [ -f \"\$f\" ] || exit 1; done"

# The picture follows the figures: other losses, another picture; the same, the same.
check "drawn again" "$FX_SOURCE_DIR/launch/plot_loss.sh" "a run/metrics.jsonl" again.png
check "is the same picture" cmp again.png "a run/loss.png"
sed -E 's/"valid_loss":/"val":/' "a run/metrics.jsonl" > training.jsonl
check "without validation" "$FX_SOURCE_DIR/launch/plot_loss.sh" training.jsonl training.png
check "is a picture" is_png training.png
differ() { ! cmp -s "$1" "$2"; }
check "another one" differ training.png again.png

# One file: its last tenth is held out. A run in the same folder starts over.
check "one file" good --steps 2 --dir "a run" "my texts/3.txt" train.seq_length=16
check "starts over" bash -c "grep -q 'step 2/2 | loss' err.txt && [ \$(grep -c '\"loss\"' 'a run/metrics.jsonl') -eq 1 ]"

refused() { # refused CODE PATTERN arguments...
  local code=$1 pattern=$2 got
  shift 2
  quickstart "$@"
  got=$?
  [ $got -eq "$code" ] && grep -q -E -- "$pattern" err.txt || { echo "quickstart $*: expected code $code and \"$pattern\"; got code $got and:"; cat err.txt; return 1; }
}
check "an unknown option" refused 2 'no option "--step"' --step 3
check "steps in words" refused 2 '--steps takes a number' --steps many
check "a missing path" refused 3 'nowhere does not exist' nowhere
check "two paths" refused 2 'two paths' "my texts" "my texts/1.txt"
check "an override that flexion refuses" refused 2 'train.itrs' --dir b "my texts" train.itrs=3
check "plot: no metrics" bash -c "'$FX_SOURCE_DIR/launch/plot_loss.sh' nowhere.jsonl x.png 2> err.txt; [ \$? -eq 3 ] && grep -q nowhere.jsonl err.txt"
check "plot: no losses" bash -c "echo '{}' > empty.jsonl; '$FX_SOURCE_DIR/launch/plot_loss.sh' empty.jsonl x.png 2> err.txt; [ \$? -eq 3 ] && [ ! -e x.png ]"
finish
