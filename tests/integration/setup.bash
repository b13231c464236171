# SPDX-License-Identifier: Apache-2.0
# What the integration scripts share: a scratch directory, real mpirun, checks that count. Sourced.
set -u
: "${FX_BUILD_DIR:?the build directory}" "${FX_SOURCE_DIR:?the source directory}"
FLEXION=$FX_BUILD_DIR/flexion
[ -x "$FLEXION" ] || { echo "no $FLEXION"; exit 1; }
TMP=$(mktemp -d)
FAILED=0 CHECKS=0
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

check() { # check WHAT COMMAND...
  local what=$1
  shift
  CHECKS=$((CHECKS + 1))
  if ! "$@"; then
    echo "FAILED: $what"
    FAILED=$((FAILED + 1))
  fi
}

await() { # await FILE PATTERN PID: until the file says so; not, where the process has ended or five minutes have passed
  for _ in {1..6000}; do
    ! grep -q -- "$2" "$1" 2>/dev/null || return 0
    kill -0 "$3" 2>/dev/null && sleep 0.05 || return 1
  done
  return 1
}

mpi() { # mpi N COMMAND...
  local n=$1
  shift
  mpirun -np "$n" --bind-to none --oversubscribe "$@"
}

finish() {
  echo "$CHECKS checks, $FAILED failed"
  [ "$CHECKS" -gt 0 ] || exit 1
  [ "$FAILED" -eq 0 ] || { echo "kept: $TMP"; exit 1; }
  rm -rf "$TMP"
}
