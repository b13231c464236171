#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Under real mpirun: a rank that is suspended in the middle of training ends the job in the configured time, with a table of
# what every rank was doing and exit code 4, without ZeRO, under it, and where ranks share layers or sequences; a rank that is killed ends the job with a message and
# a code that is not 0; a calm run says nothing.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6
seconds=3

source "$here/signalled.bash"

says() { grep -qE -- "$2" "$TMP/$1.log" || { grep -E 'watchdog|flexion:' "$TMP/$1.log"; return 1; }; }

for zero in 0 2; do
  dir=stopped$zero
  check "zero $zero, suspended" signalled $dir 3 STOP parallel.zero=$zero parallel.bucket_elements=9000
  check "zero $zero: exit code 4" test "$code" -eq 4
  check "zero $zero: in time" test "$ms" -ge $((seconds * 1000)) -a "$ms" -le $((seconds * 1000 + 8000))
  check "zero $zero: who" says $dir 'watchdog: no answer from rank 1 within 3.0 s; the job ends'
  check "zero $zero: the table" says $dir 'watchdog: rank 1 does not answer$'
  check "zero $zero: rank 0" says $dir 'watchdog: rank 0 in step [0-9]+ for [0-9.]+ s; collective [0-9]+ of dp_cp#4, (all_reduce|reduce_scatter|all_gather) float(32|64) x [0-9]+ \([0-9]+ bytes\), not complete for [0-9.]+ s'
  check "zero $zero: one rank speaks" test "$(grep -c 'the job ends' "$TMP/$dir.log")" -eq 1
done
grep watchdog "$TMP/stopped2.log"

stopped_in() { # stopped_in GROUPS RANKS overrides...: what rank 0 waits for is named with its group, one of these
  local dir=stopped_${1%%|*}
  check "$1, suspended" signalled "$dir" "$2" STOP "${@:3}"
  check "$1: exit code 4" test "$code" -eq 4
  check "$1: the table" says "$dir" "watchdog: rank 0 in step [0-9]+ for [0-9.]+ s; collective [0-9]+ of ($1)#[0-9]+, [a-z_]+ .*\\([0-9]+ bytes\\), not complete for [0-9.]+ s"
}
stopped_in 'tp|kv|world' 4 parallel.tensor=4
stopped_in 'cp|dp_cp|world' 2 parallel.context=2 train.seq_length=256

check "a killed rank" signalled killed 2 KILL parallel.watchdog=60
check "its job fails" test "$code" -ne 0 -a "$code" -ne 124
check "and says why" says killed 'signal 9'
check "at once, not when the watchdog bites" test "$ms" -le 20000

(start calm 3 train.iters=600 parallel.zero=2 parallel.watchdog=5)
check "a calm run" test $? -eq 0
check "it says nothing" bash -c "! grep -q watchdog '$TMP/calm.log'"
(start off 2 train.iters=10 parallel.watchdog=0)
check "without a watchdog" test $? -eq 0
finish
