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
