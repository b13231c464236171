#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a GPU of sm_80 runs, on a later one: the suites of attention, of its chunks and of whole steps under
# FLEXION_CUDA_ARCH=compute_80, in slices as many at a time as half the cores. Each has to end well, and to say that its kernels
# come from that PTX. Skipped (77) without a GPU.
source "$(dirname "$0")/../integration/setup.bash"
gpus=$("$FLEXION" doctor --json | tail -1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["cuda_devices"])')
[ "$gpus" -ge 1 ] || { echo "skipped: no GPU"; rm -rf "$TMP"; exit 77; }
suites=$FX_BUILD_DIR/tests
export TMP suites FX_SOURCE_DIR

one() { # one SUITE SLICE: a line of the table
  local log=$TMP/$1-${2%/*} begin=$SECONDS code=0 asserts
  FX_SLICE=$2 FLEXION_CUDA_ARCH=compute_80 timeout -k 1 600 "$suites/test-gpu-$1" > "$log" 2>&1 || code=$?
  asserts=$(awk '$1 == "asserts" {print $2 " asserts, " $5 " failed"}' "$log")
  printf '%-15s %6s %4d s  %s\n' "$1" "$2" $((SECONDS - begin)) "${asserts:-did not end (code $code)}"
  [ "$code" -eq 0 ] && grep -qa 'kernels of compute_80 on' "$log" && grep -qa 'flex_bwd_keys: PTX 80' "$log" && return
  tail -20 "$log"
  return 1
}
export -f one

all() {
  local suite i
  for suite in cuda_attention:16 cuda_ring:4 cuda_step:6; do
    for ((i = 0; i < ${suite#*:}; i++)); do echo "${suite%:*} $i/${suite#*:}"; done
  done | xargs -P $((($(nproc) + 1) / 2)) -L 1 bash -c 'one "$@"' _
}
own() { # without the variable the GPU's own code runs
  FX_SLICE=99/100 env -u FLEXION_CUDA_ARCH timeout -k 1 120 "$suites/test-gpu-cuda_ring" > "$TMP/own" 2>&1 && grep -qa 'kernels of sm_' "$TMP/own"
}
check "what sm_80 runs" all
check "the GPU's own code without the variable" own
check "another word is refused" bash -c "! FLEXION_CUDA_ARCH=sm_80 '$suites/test-gpu-cuda_ring' > '$TMP/word' 2>&1 && grep -q 'expected compute_80 to compute_' '$TMP/word'"
finish
