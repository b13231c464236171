#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts flexion under mpirun with the settings that a training job needs. mpirun runs in a session of its own, so
# that only this script hears the terminal and the scheduler: it turns TERM, INT and HUP into SIGUSR1, which
# Open MPI forwards to the ranks (TERM would have them killed within a second), and waits for the job to end.
set -u

usage() {
  cat <<'TEXT'
usage: launch/run.sh [-np N] [--hostfile FILE] [--restarts N] [MPIRUN_OPTION... --] COMMAND [ARGUMENT...]

Starts N ranks (default 1) of `flexion COMMAND ARGUMENT...` under mpirun:
  launch/run.sh -np 2 train configs/shakespeare_char.yaml data.train=input.txt
  launch/run.sh -np 4 --map-by node -- train run.yaml

  -np N            ranks
  --hostfile FILE  hosts and their slots, as mpirun reads them
  --restarts N     when the job dies (a rank lost, or diverged), start it again from its last good checkpoint, at most
                   N times; not after errors in arguments, configuration or data, nor after a signal
  --help           this text

Ranks are not bound to cores. More ranks than cores are allowed on one host. The binary is $FLEXION_BIN, else
build/flexion of this tree (where run.sh is installed: bin/flexion of that prefix), else flexion on PATH. The exit
code is flexion's; 143, 130 or 129 after TERM, INT or HUP, which reach the ranks as SIGUSR1 (a second one ends the
job at once); 2 for an error in these arguments.
TEXT
}

fail() {
  echo "run.sh: $1" >&2
  exit 2
}

ranks=1
restarts=0
options=()
local_job=yes
found=
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h)
      usage
      exit 0
      ;;
    -np | -n | --np)
      [ $# -ge 2 ] || fail "$1 takes a number of ranks"
      [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || fail "$1 takes a number of ranks from 1, got \"$2\""
      ranks=$2
      shift 2
      ;;
    --hostfile | -hostfile | --machinefile)
      [ $# -ge 2 ] || fail "$1 takes the name of a file"
      [ -r "$2" ] || fail "the hostfile $2 cannot be read"
      options+=(--hostfile "$2")
      local_job=no
      shift 2
      ;;
    --restarts)
      [ $# -ge 2 ] || fail "$1 takes how often the job may be started again"
      [[ $2 =~ ^[0-9]{1,6}$ ]] || fail "$1 takes a number from 0, got \"$2\""
      restarts=$2
      shift 2
      ;;
    -*)
      rest=("$@")
      shift $#
      for i in "${!rest[@]}"; do
        if [ "${rest[$i]}" = -- ]; then
          options+=("${rest[@]:0:$i}")
          set -- "${rest[@]:$((i + 1))}"
          found=yes
          break
        fi
      done
      [ "$found" ] || fail "\"${rest[0]}\" is no option of run.sh; options of mpirun are followed by -- and the command"
      break
      ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || fail "there is no command to start; see launch/run.sh --help"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/*}
if [ -n "${FLEXION_BIN-}" ]; then
  [ -f "$FLEXION_BIN" ] && [ -x "$FLEXION_BIN" ] || fail "FLEXION_BIN=$FLEXION_BIN is no executable file"
  binary=$FLEXION_BIN
elif [ -x "$root/build/flexion" ]; then
  binary=$root/build/flexion
elif [[ $here = */share/flexion ]] && [ -x "${here%/share/flexion}/bin/flexion" ]; then
  binary=${here%/share/flexion}/bin/flexion
else
  binary=$(command -v flexion) ||
    fail "there is no flexion to start: build it (cmake --preset release && cmake --build --preset release) or set FLEXION_BIN"
fi
command -v mpirun >/dev/null || fail "mpirun was not found: install Open MPI (openmpi-bin) or add it to PATH"

options=(-np "$ranks" --bind-to none "${options[@]}")
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
# mpirun counts one slot a core, not a hardware thread.
cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l)
usable=$(nproc)
[ "$cores" -ge 1 ] && [ "$cores" -le "$usable" ] || cores=$usable
if [ $local_job = yes ] && [ "$ranks" -gt "$cores" ]; then options+=(--oversubscribe); fi

job=
signal_code=0
# USR1 until the job is gone: one that comes before mpirun has started its ranks reaches nobody.
ask_to_stop() { (while kill -USR1 "$job" 2>/dev/null; do sleep 0.5; done) & }
forward() {
  if [ "$signal_code" -eq 0 ]; then
    signal_code=$1
    [ -z "$job" ] || ask_to_stop
  else
    [ -z "$job" ] || kill -TERM "$job" 2>/dev/null
  fi
}
trap 'forward 143' TERM
trap 'forward 130' INT
trap 'forward 129' HUP

# One run of the job; its exit code in `status`. A trap ends `wait` early: the job is over when its process is gone.
run_job() {
  setsid mpirun "${options[@]}" "$binary" "$@" <&0 &
  job=$!
  [ "$signal_code" -eq 0 ] || ask_to_stop
  wait "$job"
  status=$?
  while kill -0 "$job" 2>/dev/null; do
    wait "$job"
    status=$?
  done
  job=
}

for ((attempt = 0; ; attempt++)); do
  export FLEXION_RESTART=$attempt
  run_job "$@"
  if [ "$signal_code" -ne 0 ]; then exit "$signal_code"; fi
  case $status in 0 | 2 | 3 | 130 | 143) exit "$status" ;; esac
  [ "$attempt" -lt "$restarts" ] || exit "$status"
  echo "run.sh: the job ended with code $status; restart $((attempt + 1)) of $restarts" >&2
done
