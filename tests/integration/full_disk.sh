#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A disk that fills up while two ranks save, at once and beside training: one sentence, flexion's exit code, and the step
# before is still good. The disk is a small tmpfs in a mount namespace of this script's.
if [ -z "${FX_FULL_DISK-}" ]; then
  for options in "--mount" "--mount --map-root-user"; do
    # shellcheck disable=SC2086
    if unshare $options mount -t tmpfs tmpfs /mnt 2>/dev/null; then FX_FULL_DISK=yes exec unshare $options bash "$0"; fi
  done
  [ "$(id -u)" -ne 0 ] || { echo "FAILED: root may not mount a tmpfs here"; exit 1; }
  echo "NOT TESTED: a full disk needs root or user namespaces"
  exit 0
fi
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6
mkdir "$TMP/disk"

train() { # (124 when it hangs) LOG overrides...
  local log=$1
  shift
  timeout 300 mpirun -np 2 --bind-to none --oversubscribe "$FLEXION" train "$here/tiny.yaml" "data.train=[lines:$TMP/corpus.txt]" \
    runtime.threads=1 train.eval_interval=0 train.iters=400 checkpoint.dir="$TMP/disk/run" checkpoint.interval=4 "$@" >"$TMP/$log.log" 2>&1
}
one_sentence() { # LOG PATTERN
  [ "$(grep -c '^flexion: ' "$TMP/$1.log")" -eq 1 ] && grep -q -E -- "^flexion: .*$2" "$TMP/$1.log" || { cat "$TMP/$1.log"; return 1; }
}

# A step takes about 1.4 MiB: two fit.
for way in true false; do
  check "a disk of 3500 KiB" mount -t tmpfs -o size=3500k tmpfs "$TMP/disk"
  train "async_$way" checkpoint.async=$way checkpoint.keep=0
  code=$?
  check "async=$way: exit code 3, got $code" test $code -eq 3
  check "async=$way: one sentence names the disk" one_sentence "async_$way" 'cannot be written: No space left on device'
  check "async=$way: the step before is good" "$FLEXION" ckpt verify "$TMP/disk/run" >/dev/null
  check "async=$way: what was begun is gone" test -z "$(find "$TMP/disk/run" -name '*.tmp')"
  check "async=$way: unmounting" umount "$TMP/disk"
done

# The directory is taken away under a running job, and a file stands in its place.
check "a disk of 20 MiB" mount -t tmpfs -o size=20m tmpfs "$TMP/disk"
train gone train.iters=100000 schedule.decay_iters=400 checkpoint.keep=2 checkpoint.interval=100 checkpoint.async=false &
pid=$!
check "steps are saved" await "$TMP/gone.log" 'saved .*step_00000100' $pid
mv "$TMP/disk/run" "$TMP/disk/moved" && echo none >"$TMP/disk/run"
wait $pid
code=$?
check "no directory: exit code 3, got $code" test $code -eq 3
check "no directory: one sentence" one_sentence gone "disk/run"
check "no directory: the step before is good" "$FLEXION" ckpt verify "$TMP/disk/moved" >/dev/null
check "unmounting" umount "$TMP/disk"
finish
