#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/sanitize.bash with a stand-in for compute-sanitizer and for the suites: every slice of every suite is run once under
# each tool, no kernel is left out, and a race, an access or a suite that does not end is an error; the library's own are not.
source "$(dirname "$0")/setup.bash"
mkdir "$TMP/bin" "$TMP/suites"
printf '#!/bin/sh\necho "GPU 0: a stand-in"\n' > "$TMP/bin/nvidia-smi"
cat > "$TMP/bin/compute-sanitizer" <<'SH'
#!/bin/bash
tool=$2
[ "$1" = --tool ] && [ "$3 $4" = "--report-api-errors no" ] && [ $# -eq 5 ] || exit 9
echo "$tool ${5##*/test-gpu-} $FX_SLICE $*" >> "$FX_TMP/calls"
exec "$5"
SH
cat > "$TMP/suites/suite" <<'SH'
#!/bin/bash
name=${0##*/test-gpu-}
case $FX_FAULT in
  "$name $FX_SLICE "*) eval "${FX_FAULT#"$name $FX_SLICE "}" ;;
esac
echo "             asserts      7      7      7      0      n/a"
SH
chmod +x "$TMP/bin/"* "$TMP/suites/suite"
for suite in "$FX_BUILD_DIR"/tests/test-gpu-*; do ln -s suite "$TMP/suites/${suite##*/}"; done
export PATH=$TMP/bin:$PATH FX_TMP=$TMP FX_FAULT=

run() { # run CODE WORDS ARGUMENTS...: how sanitize.bash ends, and a line of what it says
  local want=$1 words=$2 code=0
  shift 2
  : > "$TMP/calls"
  "$FX_SOURCE_DIR/tests/gpu/sanitize.bash" --suites "$TMP/suites" --jobs 8 "$@" > "$TMP/out" 2>&1 || code=$?
  [ "$code" -eq "$want" ] && grep -qE "$words" "$TMP/out" && return
  echo "code $code, expected $want and \"$words\":"
  head -20 "$TMP/out"
  return 1
}
slices() { # slices TOOL SUITE COUNT: each once
  local i
  [ "$(grep -c "^$1 $2 " "$TMP/calls")" -eq "$3" ] || { echo "$1 $2: $(grep -c "^$1 $2 " "$TMP/calls") calls, expected $3"; return 1; }
  for ((i = 0; i < $3; i++)); do grep -q "^$1 $2 $i/$3 " "$TMP/calls" || { echo "no $1 $2 $i/$3"; return 1; }; done
}
check "both tools" run 0 '^no errors$'
for tool in memcheck racecheck; do
  check "$tool: ops in slices" slices $tool cuda_ops 8
  check "$tool: steps in slices" slices $tool cuda_step 18
  check "$tool: bad steps in slices" slices $tool cuda_skip 10
done
check "no races of the library's products" slices racecheck cuda_gemm 0
check "no kernel is left out" bash -c "! grep -q -- '--kernel-name' '$TMP/calls'"
FX_FAULT='cuda_step 5/18 echo "========= Error: Race reported between Write access at adamw and Read access"' \
  check "a race" run 1 '^racecheck cuda_step +5/18 .* 1 errors, 7 asserts' racecheck
FX_FAULT='cuda_ops 7/8 echo "========= Invalid __global__ read of size 4 bytes at norm"' \
  check "an access" run 1 '^memcheck +cuda_ops +7/8 .* 1 errors, 7 asserts' memcheck
FX_FAULT='cuda_step 2/18 echo "========= Error: Race reported between Write access at nvjet_x and Read access at nvjet_x"' \
  check "a race of the library" run 0 '^no errors$' racecheck
FX_FAULT='cuda_step 4/18 sleep 30' check "a suite that does not end" run 1 'cuda_step +4/18 .*did not end \(code 124\)' racecheck --limit 1
FX_FAULT='cuda_ring 1/4 exit 3' check "a suite that ends early" run 1 'cuda_ring +1/4 .*did not end \(code 3\)' racecheck
check "no such option" run 2 'kernel-name-exclude is not memcheck, racecheck or an option' --kernel-name-exclude kns=nvjet
printf '#!/bin/sh\nexit 1\n' > "$TMP/bin/nvidia-smi"
check "no GPU" run 77 '^skipped: no GPU$'
finish
