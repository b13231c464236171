#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the flexion binary, its configurations and start script, and every shared library that a bare GPU host may lack
# into one folder that runs wherever it is put. Left to the host: the C library, Open MPI with what belongs to it, the
# CUDA driver and toolkit (NVRTC, cuBLASLt), NCCL.
set -eu

usage() {
  cat <<'TEXT'
usage: launch/bundle.sh [--build DIR] [--archive] FOLDER

Packs the build in DIR (default build/ of this tree; cmake --preset release && cmake --build build makes it) into
FOLDER, which must not exist: FOLDER/bin/flexion, FOLDER/share/flexion/run.sh, FOLDER/share/flexion/configs,
FOLDER/lib/flexion.

  --build DIR   the build directory
  --archive     also writes FOLDER.tar.gz
  --help        this text

A bundle made on Debian 12 runs on Ubuntu 24.04 and later hosts with Open MPI 4, and on their GPUs with CUDA 12.4 or
later. Exit code 2: wrong arguments; 1: something could not be packed.
TEXT
}

fail() {
  echo "bundle.sh: $1" >&2
  exit "${2-2}"
}

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$source_dir/build
archive=no
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --archive) archive=yes; shift ;;
    --build)
      [ $# -ge 2 ] || fail "--build takes a directory"
      build=$2
      shift 2
      ;;
    -*) fail "there is no option \"$1\"; see launch/bundle.sh --help" ;;
    *) break ;;
  esac
done
[ $# -eq 1 ] || fail "expected one folder, got $#; see launch/bundle.sh --help"
out=$1
[ ! -e "$out" ] || fail "$out exists; name a folder that does not, or remove it"
[ -x "$build/flexion" ] || fail "there is no $build/flexion; build it first, or name the build with --build"

# What every host has: the C and C++ run time and the loader; what must be the host's own: Open MPI and its helpers, which speak
# with the host's mpirun and network drivers.
left_out='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc[+][+]|libgcc_s|libmpi|libopen-rte|libopen-pal|libhwloc|libevent.*|libpmix|libudev|libcap|libsystemd)[.-]'

# Prints "NAME PATH" of the shared libraries that a file loads.
libraries_of() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3} $2 == "=>" && $3 == "not" {print $1, "missing"}'; }

copy_libraries() { # copy_libraries FILE
  local name path
  while read -r name path; do
    [[ $name =~ $left_out ]] && continue
    [ "$path" != missing ] || fail "$1 needs $name, which is not found here" 1
    [ -e "$out/lib/flexion/$name" ] || install -m 755 "$path" "$out/lib/flexion/$name"
  done < <(libraries_of "$1")
}

cmake --install "$build" --prefix "$out" --strip > /dev/null || fail "the build in $build cannot be installed" 1
rm -rf "$out/include" "$out/lib"
mkdir -p "$out/lib/flexion"
copy_libraries "$out/bin/flexion"
# Opened at run time: the CPU's matrix products.
gemm=$(ldconfig -p | awk '$1 ~ /^libdnnl[.]so[.][0-9]+$/ {print $NF; exit}')
if [ -n "$gemm" ]; then
  install -m 755 "$gemm" "$out/lib/flexion/$(basename "$gemm")"
  copy_libraries "$gemm"
fi
version=$(for file in "$out/bin/flexion" "$out"/lib/flexion/*; do objdump -T "$file" 2> /dev/null; done |
  grep -o 'GLIBC_2[.0-9]*' | sort -uV | tail -1)
echo "$out: $(du -sh "$out" | cut -f1), $(find "$out/lib/flexion" -type f | wc -l) libraries; needs ${version:-an unknown C library} and Open MPI's $(libraries_of "$out/bin/flexion" | awk '$1 ~ /^libmpi[.]/ {print $1}')"
if [ "$archive" = yes ]; then
  tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")" || fail "$out.tar.gz cannot be written" 1
  echo "$out.tar.gz: $(du -h "$out.tar.gz" | cut -f1)"
fi
