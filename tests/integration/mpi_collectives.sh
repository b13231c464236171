#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The MPI transport under real mpirun: the battery at 1 to 4 ranks, an aborted communicator, a missing rank; and one
# process without mpirun.
set -euo pipefail
exe="${FX_BUILD_DIR:?the build folder}/tests/mpi_collectives"
[ -x "$exe" ] || { echo "FAIL: $exe is missing" >&2; exit 1; }
export OMP_NUM_THREADS=1
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # Open MPI leaves its own
mpi=(mpirun --bind-to none --oversubscribe)
[ "$(id -u)" -ne 0 ] || mpi+=(--allow-run-as-root)
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# expect CODE SECONDS TEXT RANKS MODE: the exit code, within the time, with the text
expect() {
  local code=$1 seconds=$2 text=$3 ranks=$4 mode=$5 got=0 begin=$SECONDS
  timeout 1200 "${mpi[@]}" -np "$ranks" "$exe" "$mode" >"$output" 2>&1 || got=$?
  if [ "$got" -ne "$code" ] || [ $((SECONDS - begin)) -gt "$seconds" ] || ! grep -q "$text" "$output"; then
    echo "FAIL: $mode at $ranks ranks: exit code $got (expected $code), $((SECONDS - begin)) s (at most $seconds), expected text: $text" >&2
    cat "$output" >&2
    exit 1
  fi
  echo "ok: $mode at $ranks ranks, exit code $got, $((SECONDS - begin)) s"
}

"$exe" battery >"$output" 2>&1 || { echo "FAIL: without mpirun" >&2; cat "$output" >&2; exit 1; }
grep "1 ranks passed" "$output"
for ranks in 1 2 3 4; do expect 0 1000 "$ranks ranks passed" "$ranks" battery; done
for ranks in 2 3 4; do expect 0 1000 "$ranks ranks passed" "$ranks" abort; done
for ranks in 2 3 4; do
  expect 4 50 "$((ranks - 1)) of $ranks ranks answered within 2000 ms; missing: rank $((ranks - 1))" "$ranks" missing
done
