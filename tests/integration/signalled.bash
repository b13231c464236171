# SPDX-License-Identifier: Apache-2.0
# Training in whose middle a rank gets a signal. Sourced behind setup.bash; needs $here, $seconds (of the watchdog) and
# $TMP/corpus.txt.

start() { # start DIR RANKS overrides...: exec, so that its pid is mpirun's
  local dir=$1 ranks=$2
  shift 2
  exec timeout -k 1 300 mpirun -np "$ranks" --bind-to none --oversubscribe "$FLEXION" train "$here/tiny.yaml" \
    "data.train=[lines:$TMP/corpus.txt]" runtime.threads=1 train.eval_interval=0 checkpoint.interval=0 "checkpoint.dir=$TMP/$dir" \
    schedule.decay_iters=400 parallel.watchdog=$seconds "$@" >"$TMP/$dir.log" 2>&1
}
rank() { # rank DIR R: its process
  local pid
  for pid in $(pgrep -f "^$FLEXION train .*checkpoint.dir=$TMP/$1 "); do
    tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$2" && echo "$pid"
  done
}
signalled() { # signalled DIR RANKS SIGNAL overrides...: after some steps, to rank 1; sets code and, from the signal on, ms
  local dir=$1 ranks=$2 signal=$3 begin victim
  shift 3
  (start "$dir" "$ranks" train.iters=1000000 "$@") &
  local job=$!
  await "$TMP/$dir.log" 'step 20/' $job
  victim=$(rank "$dir" 1)
  begin=$(date +%s%3N)
  kill -"$signal" "$victim" || { cat "$TMP/$dir.log"; kill $job; return 1; }
  wait $job
  code=$? ms=$(($(date +%s%3N) - begin))
  echo "$dir: code $code after $ms ms"
}
