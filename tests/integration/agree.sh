#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank that records other collectives than the rest ends the job in seconds, with both entries named on every rank,
# and exit code 5; under real mpirun.
set -euo pipefail
exe="${FX_BUILD_DIR:?the build folder}/tests/mpi_agree"
[ -x "$exe" ] || { echo "FAIL: $exe is missing" >&2; exit 1; }
export OMP_NUM_THREADS=1
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # Open MPI leaves its own
limit_ms=5000                                          # of the whole job, start included
mpi=(mpirun --bind-to none --oversubscribe)
[ "$(id -u)" -ne 0 ] || mpi+=(--allow-run-as-root)
output=$(mktemp)
trap 'rm -f "$output"' EXIT

fail() {
  echo "FAIL: $*" >&2
  cat "$output" >&2
  exit 1
}

# launch RANKS MODE CODE: runs, checks exit code and time
launch() {
  local ranks=$1 mode=$2 code=$3 got=0 begin took
  begin=$(date +%s%3N)
  timeout 60 "${mpi[@]}" -np "$ranks" "$exe" "$mode" >"$output" 2>&1 || got=$?
  took=$(($(date +%s%3N) - begin))
  [ "$got" -eq "$code" ] || fail "$mode at $ranks ranks: exit code $got, expected $code"
  [ "$took" -le "$limit_ms" ] || fail "$mode at $ranks ranks took $took ms, at most $limit_ms"
  echo "ok: $mode at $ranks ranks, exit code $got, $took ms"
}

# every rank printed a sentence, all the same, with each of the given texts
sentences() {
  local ranks=$1 text
  shift
  [ "$(grep -c '^flexion: plan agreement: ' "$output")" -eq "$ranks" ] || fail "expected $ranks sentences"
  [ "$(grep '^flexion: ' "$output" | sort -u | wc -l)" -eq 1 ] || fail "the sentences differ"
  for text in "$@"; do
    grep '^flexion: ' "$output" | head -1 | grep -q -- "$text" || fail "expected in the sentence: $text"
  done
}

for ranks in 2 3 4; do
  launch "$ranks" none 0
  launch "$ranks" drop 5
  sentences "$ranks" 'differ at entry 2 of plan micro_only' \
    'rank 0 has "dp#3 all_reduce sum float32 x 1000 comm.bulk (.*mpi_agree.c:[0-9]*, layer' \
    'rank 1 has "dp#3 all_reduce max float32 x 16 comm.bulk (.*mpi_agree.c:[0-9]*, layer'
  launch "$ranks" drop_last 5
  sentences "$ranks" 'rank 0 has "dp#3 all_reduce max float32 x 16 .*mpi_agree.c:[0-9]*' 'rank 1 has no entry 3'
  launch "$ranks" swap 5
  sentences "$ranks" 'differ at entry 2' 'rank 0 has "dp#3 all_reduce sum .*mpi_agree.c:[0-9]*' \
    'rank 1 has "dp#3 all_reduce max .*mpi_agree.c:[0-9]*'
  launch "$ranks" reshape 5
  sentences "$ranks" 'rank 0 has "dp#3 all_reduce sum float32 x 1000 .*mpi_agree.c:[0-9]*' \
    'rank 1 has "dp#3 all_reduce sum float32 x 999 .*mpi_agree.c:[0-9]*'
done
launch 3 late 4
grep -q 'missing: rank 1' "$output" || fail "the missing rank is not named"
