#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A training run of the TSan build in one process: prefetch, lanes and the checkpoint writer beside each other, saving
# every third step. Reports from inside MPI, which is not instrumented, are left out: they name a library, not a source.
# usage: train.sh BUILD_DIR
set -u
here=$(cd "$(dirname "$0")" && pwd)
flexion=$1/flexion
nm "$flexion" | grep -q __tsan_init || { echo "$flexion is no TSan build"; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 "$here/../integration/corpus.py" "$scratch/corpus.txt" 120 6
OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=0:exitcode=0 timeout 300 "$flexion" train "$here/../integration/tiny.yaml" \
  "data.train=[lines:$scratch/corpus.txt]" runtime.threads=1 checkpoint.dir="$scratch/run" checkpoint.interval=3 \
  >"$scratch/log" 2>&1 || { echo "the run failed"; tail -n 20 "$scratch/log"; exit 1; }
[ -d "$scratch/run/step_00000039" ] || { echo "nothing was saved"; exit 1; }
own=$(grep '^SUMMARY: ThreadSanitizer' "$scratch/log" | grep -vc '(/[^ ]*\.so[^ ]*+0x')
if [ "$own" -gt 0 ]; then
  echo "$own reports from flexion's own code"
  grep '^SUMMARY' "$scratch/log" | sort | uniq -c
  exit 1
fi
echo "no report from flexion's own code"
