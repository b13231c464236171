#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the host does with a GPU, on one that computes nothing (tests/standin): the step is recorded and replayed, nothing is
# allocated meanwhile, state goes up and comes down bit for bit in every layout of two ranks, GPUs are dealt to ranks.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
cd "$TMP" || exit 1
mkdir cache
python3 "$here/corpus.py" corpus.txt 120 6
export XDG_CACHE_HOME=$TMP/cache
small=("$here/tiny.yaml" "data.train=[lines:$TMP/corpus.txt]" model.head_dim=64 runtime.threads=1 train.eval_interval=0 checkpoint.interval=0)

gpus=1
standin() { # standin COMMAND...: with $gpus stand-ins
  LD_LIBRARY_PATH=$FX_BUILD_DIR/tests/standin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} FLEXION_STANDIN_GPUS=$gpus timeout -k 1 300 "$@"
}
trains() { # trains RANKS NAME OVERRIDES...: what it says in NAME.log, what it saves in NAME
  local ranks=$1 name=$2
  shift 2
  standin mpirun -np "$ranks" --bind-to none --oversubscribe "$FLEXION" train "${small[@]}" "checkpoint.dir=$TMP/$name" "$@" >"$name.log" 2>&1
}
well() { # well RANKS NAME OVERRIDES...: the same, and it must succeed
  trains "$@" || { cat "$2.log"; return 1; }
}
constant() { # constant WHAT: at every launch of a graph, after the steps that record, compare and choose
  [ "$(tail -n 24 count.0 | grep -oE " $1 [0-9]+" | sort -u | wc -l)" -eq 1 ] && [ "$(wc -l <count.0)" -gt 60 ]
}
sound() { # sound LOG: the stand-in had nothing to complain about
  ! grep 'stand-in: ' "$1"
}
same() { # same A B: two saved steps, bit for bit
  "$FLEXION" ckpt diff "$TMP/$1" "$TMP/$2" >diff.txt 2>&1
  tail -n 1 diff.txt | grep -qE '(different: 0 of|identical:) 63 tensors' || { cat diff.txt; return 1; }
}

check "doctor sees it" standin "$FLEXION" doctor >doctor.txt 2>&1
check "and names it" grep -q 'gpu  *0: stand-in 0, sm_90, 132 multiprocessors, 8.0 GiB' doctor.txt

FLEXION_STANDIN_LAUNCH_US=100 FLEXION_STANDIN_LOG=$TMP/count check "twelve steps" well 1 graphs runtime.device=cuda train.iters=12
check "are found to be faster as graphs" grep -q 'the run goes on with graphs' graphs.log
check "are replayed" constant kernels
check "allocate nothing" constant allocations
check "nothing is out of place" sound graphs.log
check "memory is what was planned" grep -qE 'GPU memory in use .*, [+-]0\.[0-9]% of what was planned' graphs.log

# A suite for GPUs, of which the losses are wrong here.
standin "$FX_BUILD_DIR/tests/test-gpu-cuda_step" >suite.txt 2>&1
check "hundreds of steps allocate nothing" grep -q 'steps allocate nothing .*recordings, 300 steps.*launched kernels, 300 steps.* passed' suite.txt
check "and have nothing out of place" sound suite.txt
check "computing nothing is noticed" grep -q 'loss 0, the CPU has 4' suite.txt

# A checkpoint of the CPU, with moments: nothing changes what a stand-in has read.
check "the CPU trains" "$FLEXION" train "${small[@]}" runtime.device=cpu train.iters=3 "checkpoint.dir=$TMP/cpu" >cpu.log 2>&1
goes_on() { # goes_on NAME RANKS OVERRIDES...: from the CPU's step on, launched and replayed
  gpus=$2
  well "$2" "$1" runtime.device=cuda train.iters=12 "checkpoint.resume=$TMP/cpu" "${@:3}"
}
layout() { # layout NAME RANKS OVERRIDES...
  check "$*: goes on" goes_on "$@"
  check "$*: nothing is out of place" sound "$1.log"
  check "$*: the state is the CPU's" same cpu/step_00000003 "$1/step_00000012"
}
layout one 1
layout eager 1 runtime.mode=eager
layout fp32 1 runtime.dtype=float32
layout data 2
layout zero0 2 parallel.zero=0
layout zero2 2 parallel.zero=2
layout tensor 2 parallel.tensor=2
layout pieces 2 parallel.tensor=2 parallel.tensor_pieces=2
layout rows 2 parallel.tensor=2 parallel.sequence=false
for exchange in ring allgather alltoall; do
  layout "$exchange" 2 parallel.context=2 parallel.context_exchange=$exchange train.seq_length=256
done
layout four 4 parallel.tensor=2 parallel.context=2 train.seq_length=256

# A collective of a replay never ends: the watchdog says which, though the host issued it many steps ago.
hangs() { # hangs NTH GROUP OVERRIDES...: of rank 1; its number in the table
  local group=$2 code=0
  FLEXION_STANDIN_HANG=1:$1 trains 2 hangs runtime.device=cuda train.iters=10000000 train.log_interval=100000 parallel.watchdog=2 "${@:3}" || code=$?
  [ "$code" -eq 4 ] || { cat hangs.log >&2; return 1; }
  sed -nE "s/.*watchdog: rank 1 in step [0-9]+ for [0-9.]+ s;(.*;)? collective ([0-9]+) of $group, [a-z_]+ (bfloat16|float32) x [0-9]+ \([0-9]+ bytes\), was the last to begin on its GPU.*/\2/p" hangs.log
}
names() { # names GROUP OVERRIDES...: one collective, and the next
  local first second
  first=$(hangs 5000 "$@") && second=$(hangs 5001 "$@") || return 1
  [ -n "$first" ] && [ "$second" -eq $((first + 1)) ] || { echo "collectives \"$first\" and \"$second\""; cat hangs.log; return 1; }
}
gpus=2
check "a collective among tensor ranks that never ends" names 'tp#1' parallel.tensor=2
check "one among data ranks" names 'dp_cp#4' parallel.zero=2

# Fewer GPUs than ranks: auto leaves them and says why, cuda does not begin.
gpus=1
check "two ranks and one GPU" well 2 two runtime.device=auto train.iters=1
check "are told why it is left" grep -q 'ranks 0 and 1 would share a GPU' two.log
refused() {
  local code=0
  trains 2 two runtime.device=cuda train.iters=1 || code=$?
  if [ "$code" -ne 4 ] || [ "$(grep -c '^flexion: .*share' two.log)" -ne 1 ]; then cat two.log; return 1; fi
}
check "and refused" refused
finish
