#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lines of the parsers, and of what is done with every accepted expression, that the fuzz drivers reach: builds the
# drivers alone with gcc's --coverage in a folder of their own ($1, default build-coverage), runs each as ctest does, and
# fails when a file is below 80%.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build-coverage}
LEAST=80
FILES=(core/config/{source,value,load,resolve,lookup,tree,specs,spec_parts,spec_files}.c core/checkpoint/manifest_parse.c data/reader.c
  attention/lang/{lexer,parser,print,fault,fold,range,derive}.c attention/variant/build.c)
mkdir -p "$build"
iterations=${FX_FUZZ_ITERATIONS:-6000}
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="--coverage -O0" >"$build/coverage.log" 2>&1 ||
  { tail -20 "$build/coverage.log"; exit 1; }
cmake --build "$build" -j "$(nproc)" --target fuzz-config fuzz-manifest fuzz-jsonl fuzz-expression >>"$build/coverage.log" 2>&1 ||
  { tail -20 "$build/coverage.log"; exit 1; }
find "$build" -name '*.gcda' -delete
for name in config manifest jsonl expression; do
  "$build/tests/fuzz-$name" "$root/tests/fuzz/seeds/$name" "$iterations"
done
low=0
for file in "${FILES[@]}"; do
  layer=${file%%/*}
  share=$(cd "$build" && gcov -n -o "CMakeFiles/fx_$layer.dir/$file.gcda" "$root/$file" 2>/dev/null |
    grep -A1 "File '.*$file'" | sed -nE 's/Lines executed:([0-9.]+)% of ([0-9]+).*/\1 \2/p')
  [ -n "$share" ] || { echo "$file: gcov knows nothing of it"; low=1; continue; }
  read -r percent lines <<<"$share"
  printf '%-34s %6.2f%% of %d lines\n' "$file" "$percent" "$lines"
  if [ "${percent%.*}" -lt "$LEAST" ]; then echo "$file: below $LEAST%"; low=1; fi
done
exit $low
