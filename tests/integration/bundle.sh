#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A bundle runs from wherever it lies, with its own copies of the libraries that a bare host lacks and the host's of the rest.
source "$(dirname "$0")/setup.bash"
unset FLEXION_BIN LD_LIBRARY_PATH

says() { grep -qF -- "$2" "$1" || { echo "  not in $1: $2"; head -5 "$1"; false; }; }
code() { # code EXPECTED COMMAND... : its exit code, output in $TMP/out
  local expected=$1 got=0
  shift
  timeout 60 "$@" > "$TMP/out" 2>&1 || got=$?
  [ "$got" -eq "$expected" ] || { echo "  exit code $got"; head -5 "$TMP/out"; false; }
}

made=$TMP/made bundle="$TMP/moved there"
check "a bundle is made" code 0 "$FX_SOURCE_DIR/launch/bundle.sh" --build "$FX_BUILD_DIR" --archive "$made"
check "it says what the host must have" says "$TMP/out" "Open MPI's libmpi.so.40"
mkdir -p "$bundle"
check "the archive unpacks elsewhere" tar -C "$bundle" --strip-components 1 -xzf "$made.tar.gz"
rm -rf "$made"

ldd "$bundle/bin/flexion" > "$TMP/libraries"
own() { grep -qE "^[[:space:]]*$1.* => .*/moved there/bin/../lib/flexion/" "$TMP/libraries"; }
foreign() { ! own "$1" && grep -qE "^[[:space:]]*$1" "$TMP/libraries"; }
for name in libhdf5 libyaml libjansson libpng16 libsz libcurl; do check "$name is the bundle's" own "$name"; done
for name in libc[.] libmpi libopen-pal; do check "$name is the host's" foreign "$name"; done
check "none is missing" bash -c "! grep -q 'not found' '$TMP/libraries'"
check "C++ stays the host's" bash -c "! ls '$bundle/lib/flexion' | grep -q 'libstdc++'"

check "doctor runs" code 0 "$bundle/bin/flexion" doctor
gemm=$(ls "$bundle/lib/flexion" | grep libdnnl)
[ -z "$gemm" ] || check "products are oneDNN's" says "$TMP/out" "oneDNN"
printf 'the quick brown fox jumps over the lazy dog. %.0s' {1..200} > "$TMP/corpus.txt"
check "two ranks train" code 0 "$bundle/share/flexion/run.sh" -np 2 train "$bundle/share/flexion/configs/models/llama-tiny.yaml" \
  data.train="$TMP/corpus.txt" checkpoint.dir="$TMP/run" train.iters=2 train.seq_length=32 train.micro_batch_size=1 \
  train.global_batch_size=2 train.eval_interval=0 data.valid_fraction=0 runtime.device=cpu
check "and leave a checkpoint" code 0 "$bundle/bin/flexion" ckpt verify "$TMP/run"

check "a folder that exists is refused" code 2 "$FX_SOURCE_DIR/launch/bundle.sh" --build "$FX_BUILD_DIR" "$bundle"
check "with a sentence" says "$TMP/out" "exists; name a folder that does not"
check "a missing build is refused" code 2 "$FX_SOURCE_DIR/launch/bundle.sh" --build "$TMP/none" "$TMP/other"
check "with a sentence" says "$TMP/out" "build it first"
check "an unknown option is refused" code 2 "$FX_SOURCE_DIR/launch/bundle.sh" --tar "$TMP/other"
finish
