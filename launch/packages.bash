# SPDX-License-Identifier: Apache-2.0
# Debian packages, for test.sh and quickstart.sh. Sourced; the caller defines `step TEXT`, which announces what follows.

BUILD_PACKAGES=(cmake ninja-build gcc g++ pkg-config openmpi-bin libopenmpi-dev libhdf5-dev libyaml-dev libcunit1-dev
  libopenblas-dev libxxhash-dev libjansson-dev libpng-dev)
OPTIONAL_PACKAGES=(libdnnl-dev) # without oneDNN flexion computes with OpenBLAS

missing_packages() {
  local name
  for name in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
  done
}

# install_packages SCRIPT PACKAGE...: installs what is missing of them and of OPTIONAL_PACKAGES; SCRIPT speaks in messages.
# Returns 1, after one sentence, when a package that is not optional cannot be had. Without apt-get it only says what is needed.
install_packages() {
  local script=$1 as_root=() missing optional name
  shift
  if ! command -v apt-get >/dev/null; then
    echo "$script: no apt-get here; going on with what is installed (needed: $*)" >&2
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  mapfile -t optional < <(missing_packages "${OPTIONAL_PACKAGES[@]}")
  [ $((${#missing[@]} + ${#optional[@]})) -gt 0 ] || return 0
  step "packages: ${missing[*]} ${optional[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
    [ ! -t 0 ] || as_root=(sudo) # somebody is there to type a password
  fi
  # A package list may be stale or a mirror busy: one more try.
  "${as_root[@]}" apt-get update -qq || { sleep 5; "${as_root[@]}" apt-get update -qq; } ||
    echo "$script: apt-get update failed; trying with the lists that are here" >&2
  for name in "${optional[@]}"; do
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$name" ||
      echo "$script: $name is not to be had here; flexion does without it" >&2
  done
  [ ${#missing[@]} -eq 0 ] ||
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
    { echo "$script: these packages could not be installed: ${missing[*]}" >&2; return 1; }
}
