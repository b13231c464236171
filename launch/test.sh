#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 or Ubuntu 24.04 to a verdict: packages, release build, lints, all tests, then the unit
# tests under ASan and UBSan, and those with threads under TSan. Ends with `N passed, N failed`; exit code 1 when anything failed or nothing ran.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null

usage() {
  cat <<'TEXT'
usage: launch/test.sh [--quick] [--jobs N]

  --quick   no clang-tidy and no sanitizer run
  --jobs N  parallel compilers and tests (default: the processors)
TEXT
}

quick=no
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=yes ;;
    --jobs)
      [[ ${2-} =~ ^[1-9][0-9]{0,3}$ ]] || { echo "test.sh: --jobs takes a number from 1, got \"${2-}\"" >&2; exit 2; }
      jobs=$2
      shift
      ;;
    --help | -h) usage; exit 0 ;;
    *) echo "test.sh: there is no option \"$1\"; see launch/test.sh --help" >&2; exit 2 ;;
  esac
  shift
done

source launch/packages.bash
PACKAGES=("${BUILD_PACKAGES[@]}" git hdf5-tools python3 python3-h5py python3-numpy clang-format-14 clang-tidy-14 util-linux
  gnuplot-nox iproute2 procps)

# Unit tests that are left out under sanitizers: they bound the address space (ASan reserves terabytes of it).
ASAN_LEFT_OUT='^attention-flash_memory$'
ASAN_BUDGET=3600 # seconds for them all, a few times what a slow machine takes; what runs longer counts as failed
# Suites with threads of our own: lanes, transports, prefetch, the checkpoint writer. (libgomp is not instrumented, so
# suites that compute on several OpenMP threads would report races that are none.)
TSAN_SUITES='^(parallel-(agree|collectives|local|peer_copy|watchdog)|data-prefetch|core-checkpoint)$'

passed=0
failed=0
began=$SECONDS

# Prints the verdict and ends.
finish() {
  echo "test.sh: $((SECONDS - began)) s"
  [ $((passed + failed)) -gt 0 ] || { echo "test.sh: nothing ran" >&2; failed=1; }
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

step() { echo "== $1 ($((SECONDS - began)) s)"; }

give_up() {
  echo "test.sh: $1" >&2
  failed=$((failed + 1))
  finish
}

build() { # preset folder
  step "build: $1"
  mkdir -p "$2"
  if ! { cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs"; } >"$2/test-build.log" 2>&1; then
    grep -E -A5 'FAILED|error|Error' "$2/test-build.log" | head -60
    give_up "preset $1 does not build; the whole log is $2/test-build.log"
  fi
}

lints() {
  local lint name found=0
  step lints
  for lint in tests/lint/*; do
    [ -f "$lint" ] && [ -x "$lint" ] || continue
    name=${lint##*/}
    if [ "$quick" = yes ] && [ "$name" = tidy ]; then continue; fi
    found=$((found + 1))
    if CI=true "$lint" >"build/lint-$name.log" 2>&1; then
      passed=$((passed + 1))
    else
      failed=$((failed + 1))
    fi
    head -40 "build/lint-$name.log"
  done
  [ $found -gt 0 ] || give_up "tests/lint holds no executable lint"
}

# Adds the figures that ctest wrote; a run without them, or without a single test, is a failure of its own.
count() { # junit-file ctest-exit-code
  local head tests bad skipped
  head=$(grep -m 1 -A 8 '<testsuite' "$1" 2>/dev/null | tr '\n' ' ')
  attribute() { sed -nE "s/.*[[:space:]]$1=\"([0-9]+)\".*/\1/p" <<<"${head%%>*}"; }
  tests=$(attribute tests) bad=$(attribute failures)
  skipped=$(($(attribute skipped) + $(attribute disabled) + 0))
  if [ -z "$tests" ] || [ "$tests" -eq 0 ]; then
    echo "test.sh: $1 tells of no test" >&2
    failed=$((failed + 1))
    return
  fi
  passed=$((passed + tests - bad - skipped))
  failed=$((failed + bad))
  [ "$skipped" -eq 0 ] || echo "test.sh: $skipped skipped"
  if [ "$2" -ne 0 ] && [ "$bad" -eq 0 ]; then failed=$((failed + 1)); fi
}

run_ctest() { # folder ctest-options...
  local folder=$1 junit code
  shift
  junit=$PWD/$folder/ctest.xml
  rm -f "$junit"
  ctest --test-dir "$folder" --no-tests=error --output-on-failure --output-junit "$junit" -j "$jobs" "$@" \
    >"$folder/ctest.log" 2>&1
  code=$?
  if [ $code -eq 0 ]; then
    grep -E '^ *[0-9]+/[0-9]+ Test|tests passed|Total Test time' "$folder/ctest.log"
  else
    tail -n 400 "$folder/ctest.log"
  fi
  count "$junit" $code
}

# LeakSanitizer cannot work where tracing is forbidden (some containers, debuggers): probe.
leaks_work() {
  local probe=build-asan/leak-probe
  echo 'int main(void) { return 0; }' >$probe.c
  gcc -fsanitize=address $probe.c -o $probe && ASAN_OPTIONS=detect_leaks=1 ./$probe >/dev/null 2>&1
}

sanitizers() {
  local leaks=1
  build asan build-asan
  leaks_work || { leaks=0; echo "test.sh: LeakSanitizer does not work here; leaks are not looked for"; }
  step "unit tests under ASan and UBSan (left out: $ASAN_LEFT_OUT)"
  # With intercept_tls_get_addr, gcc 12's LeakSanitizer crashes while it reads the thread-local storage of libraries
  # that were opened at run time ("Tracer caught signal 11").
  export ASAN_OPTIONS=detect_leaks=$leaks:intercept_tls_get_addr=0:strict_string_checks=1:detect_stack_use_after_return=1
  export LSAN_OPTIONS=suppressions=$PWD/tests/asan/lsan.supp:print_suppressions=0
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  run_ctest build-asan -L unit -E "$ASAN_LEFT_OUT" \
    --stop-time "$(date -d "+$ASAN_BUDGET seconds" '+%H:%M:%S')"
  build tsan build-tsan
  step "threads under TSan ($TSAN_SUITES)"
  OMP_NUM_THREADS=1 TSAN_OPTIONS=halt_on_error=1 run_ctest build-tsan -R "$TSAN_SUITES"
  if tests/tsan/train.sh build-tsan; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
export OMPI_MCA_rmaps_base_oversubscribe=1 # more ranks than cores

install_packages test.sh "${PACKAGES[@]}" || { failed=$((failed + 1)); finish; }
build release build
lints
step tests
[ ! -d /usr/local/cuda ] || export FX_REQUIRE_NVRTC=1 # the suite that compiles for GPUs may not skip
run_ctest build
[ "$quick" = yes ] || sanitizers
finish
