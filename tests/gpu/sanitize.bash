#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The GPU suites under compute-sanitizer, as many at a time as half the cores, dealt to the GPUs in turn. Reported are
# accesses and races in kernels of flexion: cuBLASLt's own (nvjet_*, which racecheck suspects, too) and failed driver
# calls, of which a test makes one on purpose, are not. cuda_trap, whose kernel dies on purpose, is left out. Asserts may
# fail here without an error: a control of cuda_lanes needs kernels that overlap, cuda_ops looks at free memory, which
# others take.
#   tests/gpu/sanitize.bash [--suites DIR] [--limit SECONDS] [--jobs N] [memcheck|racecheck...]
set -eu

suites=$(cd "$(dirname "$0")/../.." && pwd)/build/tests
limit=580
jobs=$((($(nproc) + 1) / 2))
tools=()
while [ $# -gt 0 ]; do
  case $1 in
    --suites | --limit | --jobs) # each takes a value
      [ $# -ge 2 ] || { echo "sanitize.bash: $1 takes a value" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    memcheck | racecheck) tools+=("$1"); shift ;;
    *) echo "sanitize.bash: $1 is not memcheck, racecheck or an option" >&2; exit 2 ;;
  esac
done
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c .) || { echo "skipped: no GPU"; exit 77; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs suites limit gpus OMP_NUM_THREADS=1

one() { # one NUMBER TOOL SUITE SLICE: a line of the table; 1 for an error or no end
  local log=$logs/$1 begin=$SECONDS code=0 found asserts
  FX_SLICE=$4 CUDA_VISIBLE_DEVICES=$(($1 % gpus)) timeout -k 1 "$limit" compute-sanitizer --tool "$2" --report-api-errors no \
    "$suites/test-gpu-$3" >"$log" 2>&1 || code=$?
  found=$(grep -aoE '(Invalid|Misaligned|Race reported|Uninitialized|Leaked).*' "$log" | grep -avc ' nvjet_') || true
  asserts=$(awk '$1 == "asserts" {print $2 " asserts, " $5 " failed"}' "$log")
  printf '%-9s %-15s %6s %4d s  %s errors, %s\n' "$2" "$3" "$4" $((SECONDS - begin)) "$found" "${asserts:-did not end (code $code)}"
  [ "$found" -eq 0 ] && [ -n "$asserts" ] && return
  grep -a -A4 -E 'Invalid|Misaligned|Race reported|did not|terminate' "$log" | grep -av nvjet_ | head -12
  return 1
}
export -f one

number=0
for tool in "${tools[@]}"; do
  for suite in cuda_attention:32 cuda_ops:8 cuda_step:18 cuda_skip:10 cuda_faults:9 cuda_ring:4 cuda_gemm:1 cuda_train:1 cuda_semantics:1 cuda_lanes:1; do
    of=${suite#*:}
    # Races in products of the library are its own, and looking for them takes long.
    [ "$tool $suite" != "racecheck cuda_gemm:1" ] || continue
    for ((i = 0; i < of; i++)); do echo "$((number++)) $tool ${suite%:*} $i/$of"; done
  done
done | xargs -P "$jobs" -L 1 bash -c 'one "$@"' _ || { echo "errors, or suites that did not end"; exit 1; }
echo "no errors"
