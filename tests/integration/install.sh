#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The installed tree, moved away from where it was installed, is enough: another program builds against it with
# pkg-config alone, or by find_package in CMake, and trains; every installed header stands on its own; the binary runs.
source "$(dirname "$0")/setup.bash"
cmake --install "$FX_BUILD_DIR" --prefix "$TMP/first" >"$TMP/install.log" 2>&1 || { cat "$TMP/install.log"; exit 1; }
mkdir "$TMP/a place"
mv "$TMP/first" "$TMP/a place/moved"
ln -s "a place/moved" "$TMP/prefix" # make and cc flags do not survive blanks; the file names behind them do
P=$TMP/prefix
I=$P/include/flexion
export PKG_CONFIG_PATH=$P/lib/pkgconfig
flags() { pkg-config "$@" flexion; }

for file in bin/flexion lib/libflexion.so lib/pkgconfig/flexion.pc lib/cmake/flexion/flexion-config.cmake share/flexion/run.sh \
  share/flexion/configs/quickstart.yaml include/flexion/core/train/step.h; do
  check "$file is installed" test -e "$P/$file"
done
no_path_left() { ! grep -rIl -e "$TMP/first" -e "$FX_SOURCE_DIR" -e "$FX_BUILD_DIR" "$P/lib/pkgconfig" "$P/lib/cmake" "$P/include" "$P/share"; }
check "no path of the build in the installed text" no_path_left
check "the version of the pkg-config file" test "$(flags --modversion)" = "$("$P/bin/flexion" --version | cut -d' ' -f2)"
soname() { readelf -d "$P/lib/libflexion.so" | grep -q 'SONAME.*libflexion\.so\.[0-9]'; }
check "the library has a soname" soname
resolved() { ! ldd "$P/lib/libflexion.so" "$P/bin/flexion" | grep 'not found' && ! ldd -r "$P/lib/libflexion.so" | grep undefined; }
check "the library names everything it needs" resolved
for needed in libmpi libhdf5 libyaml libjansson libgomp; do
  check "$needed is declared" grep -q "NEEDED.*$needed" <(readelf -d "$P/lib/libflexion.so")
done

# Headers: none includes one of ours that is not there, none is internal, each compiles alone.
mapfile -t headers < <(cd "$I" && find . -name '*.h' | sed 's|^\./||' | sort)
check "there are headers" test "${#headers[@]}" -gt 40
internal='_internal\.h|_body\.h|train/(state|record)\.h|config/(schema|source|value|origins)\.h|checkpoint/(save|manifest|files)\.h'
check "no internal header" test -z "$(printf '%s\n' "${headers[@]}" | grep -E "$internal")"
reaches() { # header
  local name
  while read -r name; do
    [ -f "$I/$name" ] || { echo "$1 includes $name, which is not installed"; return 1; }
  done < <(sed -nE 's/^ *# *include "([^"]+)".*/\1/p' "$I/$1")
  ! grep -nE '# *include <(mpi|hdf5|yaml|jansson|omp)\.h>' "$I/$1"
}
compiles() { # header
  # shellcheck disable=SC2046
  cc -x c -std=c11 -fsyntax-only -Wall -Werror -Wno-unused $(flags --cflags) "$I/$1" &&
    c++ -x c++ -std=c++17 -fsyntax-only -Wall -Werror -Wno-unused $(flags --cflags) "$I/$1"
}
for header in "${headers[@]}"; do
  check "$header reaches only installed headers" reaches "$header"
  check "$header compiles alone as C11 and C++17" compiles "$header"
done

# shellcheck disable=SC2046
check "the program builds" cc -std=c11 -D_ISOC11_SOURCE -Wall -Wextra -Werror "$FX_SOURCE_DIR/tests/install/train_and_attend.c" \
  -o "$TMP/program" $(flags --cflags --libs) -lm
check "the program trains and attends" env -C "$TMP" LD_LIBRARY_PATH="$P/lib" "$TMP/program"

# The same through CMake, which is told nothing but the prefix.
with_cmake() { # VERSION: exit code of configuring
  rm -rf "$TMP/cmake"
  env -u PKG_CONFIG_PATH cmake -S "$FX_SOURCE_DIR/tests/install" -B "$TMP/cmake" -DCMAKE_PREFIX_PATH="$P" -DWANTED="$1" >"$TMP/cmake.log" 2>&1
}
check "find_package finds this version" with_cmake "$(flags --modversion)" || cat "$TMP/cmake.log"
check "the program builds by CMake" cmake --build "$TMP/cmake" >"$TMP/cmake-build.log" 2>&1 || cat "$TMP/cmake-build.log"
check "it finds the library by itself, trains and attends" env -C "$TMP" -u LD_LIBRARY_PATH "$TMP/cmake/program"
refuses() { ! with_cmake "$1" && grep -q 'compatible with requested version' "$TMP/cmake.log"; }
check "a newer version is refused" refuses 99.0

# The installed binary and script, from another folder, with nothing of flexion on PATH.
python3 "$FX_SOURCE_DIR/tests/integration/corpus.py" "$TMP/text.txt" 60 5
train() {
  (cd "$TMP" && ! command -v flexion && env -u FLEXION_BIN "$P/share/flexion/run.sh" -np 2 train "$P/share/flexion/configs/quickstart.yaml" \
    "data.train=[lines:text.txt]" train.iters=2 train.global_batch_size=16 train.eval_interval=0 train.seq_length=32 runtime.threads=1 \
    checkpoint.dir=run >"$TMP/train.log" 2>&1) || { cat "$TMP/train.log"; return 1; }
}
check "run.sh of the installed tree finds its binary and trains" train
check "it trained to the last step" grep -q 'step 2/2' "$TMP/train.log"
finish
