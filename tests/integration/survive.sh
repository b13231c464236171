#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a run survives: saving beside training changes nothing, a signal saves and ends with its code, a killed rank leaves a
# good checkpoint at every one of many random moments, a bounded number of restarts finishes the job, and the result is
# bitwise the one of a run that nothing happened to.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
run=$FX_SOURCE_DIR/launch/run.sh
export FLEXION_BIN=$FLEXION
python3 "$here/corpus.py" "$TMP/corpus.txt" 120 6
args() { printf '%s\n' train "$here/tiny.yaml" "data.train=[lines:$TMP/corpus.txt]" runtime.threads=1 train.eval_interval=0 "checkpoint.dir=$TMP/$1"; }
start() { # (124 when it hangs) start DIR RUN-OPTIONS... -- overrides...
  local dir=$1 options=()
  shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  mapfile -t words < <(args "$dir")
  exec timeout 300 "$run" -np 2 "${options[@]}" "${words[@]}" "$@" > "$TMP/$dir.log" 2>&1
}
identical() { "$FLEXION" ckpt diff "$1" "$2" 2>&1 | tail -1 | grep -q '^identical' || { "$FLEXION" ckpt diff "$1" "$2" | grep -v identical | tail -5; return 1; }; }
same_tensors() { # the configurations may differ in where and when they save
  "$FLEXION" ckpt diff "$1" "$2" --json 2>/dev/null | tail -1 | python3 -c 'import json,sys; d = json.load(sys.stdin); sys.exit(not (d["different_tensors"] == 0 and d["different_state"] == 0 and d["tensors"] == 63))'
}

ranks_of() { pgrep -f "^$FLEXION train .*checkpoint.dir=$TMP/$1( |\$)"; } # processes of a job

(start calm -- checkpoint.interval=0); check "the calm run" test $? -eq 0
(start beside -- checkpoint.interval=7); check "saving beside training" test $? -eq 0
check "it saved at 7, 14, 21, 28, 35 and 40" test "$(ls "$TMP/beside" | grep -c '^step_000000[0-9]*$')" -eq 6
(start at_once -- checkpoint.interval=7 checkpoint.async=false); check "saving at once" test $? -eq 0
for step in 07 21 40; do check "step $step: beside = at once" same_tensors "$TMP/beside/step_000000$step" "$TMP/at_once/step_000000$step"; done
check "saving changed nothing" same_tensors "$TMP/beside/step_00000040" "$TMP/calm/step_00000040"

signalled() { # SIGNAL CODE: a long run is told to stop after some steps
  local dir=sig$1
  (start "$dir" -- train.iters=100000 schedule.decay_iters=400 checkpoint.interval=50) &
  local pid=$!
  await "$TMP/$dir.log" 'step 20/' $pid && kill -"$1" $pid
  wait $pid
  local code=$?
  [ $code -eq "$2" ] || { echo "code $code"; cat "$TMP/$dir.log" | tail -5; return 1; }
  grep -q 'stopped by a signal after step' "$TMP/$dir.log" && "$FLEXION" ckpt verify "$TMP/$dir" > /dev/null
}
check "TERM saves, 143" signalled TERM 143
check "INT saves, 130" signalled INT 130

alone() { # alone DIR SECONDS overrides...: one process is told to stop so long after its 20th step
  local dir=$1 words pid
  mapfile -t words < <(args "$dir")
  rm -rf "$TMP/$dir" "$TMP/$dir.log" # the last one's log has its steps already
  timeout 300 "$FLEXION" "${words[@]}" train.iters=100000 schedule.decay_iters=400 "${@:3}" > "$TMP/$dir.log" 2>&1 &
  pid=$!
  await "$TMP/$dir.log" 'step 20/' $pid && sleep "$2" && kill -USR1 "$(pgrep -P $pid)"
  wait $pid
  [ $? -eq 143 ] && "$FLEXION" ckpt verify "$TMP/$dir" > /dev/null
}
check "USR1 to one process saves, 143" alone usr1 0
stopped=$(ls "$TMP/usr1" | grep -c '^step_')
check "one step was saved" test "$stopped" -eq 1

# A handler that runs on the stack of a product corrupts it about once in seven signals: twenty at other moments each.
lost=0
for ((i = 0; i < 20; i++)); do alone moment "0.0$((10 + i * 4))" checkpoint.interval=0 || lost=$((lost + 1)); done
check "a signal at any moment of a step saves ($lost of 20 did not)" test $lost -eq 0

# A rank is killed at random moments, most of them around saves (every second step is one), in every tenth round from its
# start on. mpirun kills the other rank at once, in as many rounds after the two seconds that are its default.
rounds=${FX_KILL_ROUNDS:-100}
RANDOM=7
kills=0
for ((i = 0; i < rounds; i++)); do
  if ((i % 10)); then export OMPI_MCA_odls_base_sigkill_timeout=0; else unset OMPI_MCA_odls_base_sigkill_timeout; fi
  rm -f "$TMP/killed.log"
  (start killed -- train.iters=100000 schedule.decay_iters=400 checkpoint.interval=2 checkpoint.keep=3) &
  pid=$!
  if ((i % 10 == 5)); then
    while kill -0 $pid 2>/dev/null && [ -z "$(ranks_of killed)" ]; do sleep 0.02; done
  else
    await "$TMP/killed.log" 'step [0-9]*/' $pid
  fi
  sleep "0.$(printf '%03d' $((RANDOM % 600)))"
  victim=$(ranks_of killed | shuf -n 1 --random-source=<(yes $i))
  if [ -n "$victim" ]; then kill -9 "$victim" && kills=$((kills + 1)); else kill -TERM $pid; fi
  wait $pid
  code=$?
  if [ $code -eq 124 ]; then check "round $i ends" false; tail -n 20 "$TMP/killed.log"; fi
  [ -z "$victim" ] || [ $code -ne 0 ] || check "round $i: a killed rank is an error" false
  if ls "$TMP/killed" 2>/dev/null | grep -q '^step_[0-9]*$'; then
    "$FLEXION" ckpt verify "$TMP/killed" > "$TMP/verify.log" 2>&1 || { check "round $i leaves a good checkpoint" false; cat "$TMP/verify.log"; }
  fi
done
check "kills hit: $kills of $rounds" test "$kills" -ge $((rounds * 8 / 10))
check "steps were saved in between" "$FLEXION" ckpt verify "$TMP/killed" > /dev/null
check "none of them went bad" bash -c "! ls '$TMP/killed' | grep -q bad"

unset OMPI_MCA_odls_base_sigkill_timeout

# A rank dies once, in the middle of a run that is long enough to be met there; --restarts finishes the job with the
# result of a calm one.
(start whole -- train.iters=400 checkpoint.interval=0); check "a longer calm run" test $? -eq 0
(start restarted --restarts 2 -- train.iters=400 checkpoint.interval=10) &
pid=$!
check "it has saved twice" await "$TMP/restarted.log" 'saved .*step_00000020' $pid
kill -9 "$(ranks_of restarted | tail -1)"
wait $pid
check "the restarted job ends well" test $? -eq 0
check "one restart" test "$(grep -c 'run.sh: .*restart' "$TMP/restarted.log")" -eq 1
check "with the calm run's result" same_tensors "$TMP/restarted/step_00000400" "$TMP/whole/step_00000400"
(start hopeless --restarts 2 -- optimizer.lr=1000 optimizer.min_lr=1000 train.iters=60) # decay alone multiplies weights by -99 a step
check "a run that always diverges ends with 5, after its restarts" test $? -eq 5
check "and was restarted twice" test "$(grep -c 'run.sh: .*restart' "$TMP/hopeless.log")" -eq 2
finish
