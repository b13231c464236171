#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank that goes another way than the rest ends the job in seconds, with what differs named and exit code 5; under real
# mpirun. Collectives: in a small step of its own (mpi_agree), then in training with ZeRO (mpi_drop): a rank with another
# setting, and a rank that leaves out a reduce_scatter. Configurations, before that: a key that changes no collective, the
# contents of a variant's file, what may differ. A rank that compiles for longer is waited for.
set -euo pipefail
tests="${FX_BUILD_DIR:?the build folder}/tests"
here="${FX_SOURCE_DIR:?the source folder}/tests/integration"
flexion="$FX_BUILD_DIR/flexion"
for exe in "$tests/mpi_agree" "$tests/mpi_drop" "$flexion"; do
  [ -x "$exe" ] || { echo "FAIL: $exe is missing" >&2; exit 1; }
done
export OMP_NUM_THREADS=1
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" # Open MPI leaves its own
limit_ms=5000                                          # of a job that ends with an error, beyond what a good one takes
good_ms=0                                              # the last that ended well: what starting takes on this machine
mpi=(mpirun --bind-to none --oversubscribe)
[ "$(id -u)" -ne 0 ] || mpi+=(--allow-run-as-root)
folder=$(mktemp -d)
output=$folder/output
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "FAIL: $*" >&2
  cat "$output" >&2
  exit 1
}

# launch WHAT CODE MPIRUN-WORDS...: runs, checks the exit code and how long an error took to end the job. One that a busy
# machine has held up is fast enough when it is run again; one that waits for a timeout is not.
launch() {
  local what=$1 code=$2 got begin took
  shift 2
  for _ in 1 2 3; do
    got=0 begin=$(date +%s%3N)
    timeout -k 1 120 "${mpi[@]}" "$@" >"$output" 2>&1 || got=$?
    took=$(($(date +%s%3N) - begin))
    [ "$got" -eq "$code" ] || fail "$what: exit code $got, expected $code"
    [ "$code" -ne 0 ] || good_ms=$took
    [ "$took" -gt $((good_ms + limit_ms)) ] || break
  done
  [ "$took" -le $((good_ms + limit_ms)) ] || fail "$what took $took ms, at most $((good_ms + limit_ms))"
  echo "ok: $what, exit code $got, $took ms"
}

# small RANKS MODE CODE
small() { launch "$2 at $1 ranks" "$3" -np "$1" "$tests/mpi_agree" "$2"; }

# COUNT sentences were printed, all the same, with each of the given texts
sentences() {
  local count=$1 text
  shift
  [ "$(grep -c '^flexion: .*plan agreement: ' "$output")" -eq "$count" ] || fail "expected $count sentences"
  [ "$(grep '^flexion: ' "$output" | sort -u | wc -l)" -eq 1 ] || fail "the sentences differ"
  for text in "$@"; do
    grep '^flexion: ' "$output" | head -1 | grep -q -- "$text" || fail "expected in the sentence: $text"
  done
}

for ranks in 2 3 4; do
  small "$ranks" none 0
  small "$ranks" drop 5
  sentences "$ranks" 'differ at entry 2 of plan micro_only' \
    'rank 0 has "dp#3 all_reduce sum float32 x 1000 comm.bulk (tests/parallel/mpi_agree.c:[0-9]*, layer' \
    'rank 1 has "dp#3 all_reduce max float32 x 16 comm.bulk (tests/parallel/mpi_agree.c:[0-9]*, layer'
  small "$ranks" drop_last 5
  sentences "$ranks" 'rank 0 has "dp#3 all_reduce max float32 x 16 .*mpi_agree.c:[0-9]*' 'rank 1 has no entry 3'
  small "$ranks" swap 5
  sentences "$ranks" 'differ at entry 2' 'rank 0 has "dp#3 all_reduce sum .*mpi_agree.c:[0-9]*' \
    'rank 1 has "dp#3 all_reduce max .*mpi_agree.c:[0-9]*'
  small "$ranks" reshape 5
  sentences "$ranks" 'rank 0 has "dp#3 all_reduce sum float32 x 1000 .*mpi_agree.c:[0-9]*' \
    'rank 1 has "dp#3 all_reduce sum float32 x 999 .*mpi_agree.c:[0-9]*'
done
small 3 late 4
grep -q 'missing: rank 1' "$output" || fail "the missing rank is not named"

python3 "$here/corpus.py" "$folder/corpus.txt" 120 6
run=("$here/tiny.yaml" "data.train=[lines:$folder/corpus.txt]" runtime.threads=1 train.iters=2 train.eval_interval=0
  checkpoint.interval=0 checkpoint.resume=none "checkpoint.dir=$folder/run")

# odd RANKS CODE SETTING COMMAND...: rank 1 has one setting more
odd() {
  local ranks=$1 code=$2 setting=$3 rest=()
  shift 3
  [ "$ranks" -eq 2 ] || rest=(: -np $((ranks - 2)) "$@")
  launch "$(basename "$1"), $ranks ranks, one of them with ${setting//"$folder"\//}" "$code" -np 1 "$@" : -np 1 "$@" "$setting" "${rest[@]}"
}

# another RANKS ZERO SETTING: in spite of it rank 1 goes on to its plans
another() { odd "$1" 5 "$3" "$tests/mpi_drop" 0 "${run[@]}" "parallel.zero=$2"; }

# configured RANKS KEY LEFT RIGHT SETTING OVERRIDES...: rank 0 says for all that it has LEFT and rank 1, with SETTING, RIGHT
configured() {
  local ranks=$1 key=$2 left=$3 right=$4 setting=$5
  shift 5
  odd "$ranks" 5 "$setting" "$flexion" train "${run[@]}" "checkpoint.dir=$folder/none" "$@"
  [ "$(grep '^flexion: ' "$output")" = "flexion: diverged: ranks 0 and 1 were given different configurations: $key is $left on \
rank 0 and $right on rank 1; start all ranks with the same config and overrides" ] || fail "another sentence was expected"
  [ ! -e "$folder/none" ] || fail "something was written"
}

# configured_alike RANKS SETTING OVERRIDES...: rank 1 has SETTING, and nobody minds
configured_alike() { odd "$1" 0 "$2" "$flexion" train "${run[@]}" "${@:3}"; }

# drop RANKS ZERO NTH CODE: rank 1 leaves out its NTH reduce_scatter, or none
drop() { launch "parallel.zero=$2 at $1 ranks, reduce_scatter $3 left out" "$4" -np "$1" "$tests/mpi_drop" "$3" "${run[@]}" "parallel.zero=$2"; }

gather='"dp_cp#4 all_gather sum float32 x [0-9]* comm.bulk (core/train/record_update.c:[0-9]*, layer'
scatter='"dp_cp#4 reduce_scatter sum float32 x [0-9]* comm.bulk (core/train/record_gradients.c:[0-9]*, layer'
reduce='"dp_cp#4 all_reduce sum float32 x [0-9]* comm.bulk (.*record'
for ranks in 2 3; do
  for zero in 1 2; do drop "$ranks" "$zero" 0 0; done
  another "$ranks" 1 parallel.zero=0
  sentences "$ranks" 'differ at entry 1 of plan micro_first' "rank 0 has $gather" 'rank 1 has no entry 1'
  another "$ranks" 1 parallel.bucket_elements=9000
  sentences "$ranks" 'differ at entry [0-9] of plan micro_first' "rank 0 has $gather" "rank 1 has $gather"
  another "$ranks" 2 parallel.zero=1
  sentences "$ranks" 'of plan micro_first' "rank 0 has $scatter" 'rank 1 has no entry 3'
  drop "$ranks" 1 1 5
  sentences "$ranks" 'differ at entry 1 of plan micro_last' "rank 0 has $scatter" "rank 1 has $reduce"
  drop "$ranks" 2 2 5
  sentences "$ranks" 'differ at entry 4 of plan micro_first' "rank 0 has $scatter" 'rank 1 has no entry 4'
done

# Two hosts' folders with a file of the same name, and a third that says the same in other words.
mkdir "$folder"/host_{a,b,c}
printf 'mask: "q >= kv"\nscore: tanh(score / cap) * cap\nparams: {cap: 30.0}\n' >"$folder/host_a/mine.yaml"
printf 'mask: "q >= kv"\nscore: tanh(score / cap) * cap * 2\nparams: {cap: 30.0}\n' >"$folder/host_b/mine.yaml"
printf 'mask: |\n  # as the others\n  q >=\n    kv\nscore: "tanh(score / cap) * cap"\nparams:\n  cap: 30.0\n' >"$folder/host_c/mine.yaml"
variant=attention.variant=$folder/host_
for ranks in 2 3; do
  configured "$ranks" optimizer.clip_grad 1.0 0.5 optimizer.clip_grad=0.5
  configured "$ranks" parallel.zero 1 0 parallel.zero=0 parallel.zero=1
  configured "$ranks" parallel.tensor 1 4 parallel.tensor=4 # wrong for so few ranks: the difference comes first
  configured "$ranks" attention.variants.mine.score '"tanh(score / cap) * cap"' '"tanh(score / cap) * cap * 2"' \
    "${variant}b/mine.yaml" "${variant}a/mine.yaml"
  configured_alike "$ranks" optimizer.clip_grad=1.0
  configured_alike "$ranks" "${variant}c/mine.yaml" "${variant}a/mine.yaml"
  configured_alike "$ranks" runtime.threads=2
  configured_alike "$ranks" runtime.log_level=error
done

# The same name, another file on the other host: folders in place of hosts, which ranks start in.
for host in a b c; do cp "$folder/corpus.txt" "$folder/host_$host/corpus.txt"; done
echo 'one line more' >>"$folder/host_b/corpus.txt"
sed 's/e/x/' "$folder/corpus.txt" >"$folder/host_c/corpus.txt"
train=("$flexion" train "${run[@]}" 'data.train=[lines:corpus.txt]' "checkpoint.dir=$folder/none")
hosts() { launch "files of hosts a and $1" "$2" -np 1 --wdir "$folder/host_a" "${train[@]}" : -np 1 --wdir "$folder/host_$1" "${train[@]}"; }
hosts b 5
grep -q '^flexion: diverged: ranks 0 and 1 have read different data: data.train has .* on rank 0 and .* on rank 1' "$output" ||
  fail "the data are not named"
hosts c 5
grep -q '^flexion: diverged: ranks 0 and 1 have read different data: data.train has .* on both, but not the same ones' "$output" ||
  fail "the data are not named"
[ ! -e "$folder/none" ] || fail "something was written"
hosts a 0

# Slow is not diverged: the compiler of rank 1 takes its time.
cat >"$folder/slow-cc" <<'C'
#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" != 1 ] || sleep 4.6
exec cc "$@"
C
chmod +x "$folder/slow-cc"
XDG_CACHE_HOME=$folder/cache launch "a rank that compiles slowly" 0 -np 3 "$flexion" train "${run[@]}" attention.variant=softcap "runtime.compiler=$folder/slow-cc"
[ "$(grep -c 'waiting [2-6][.0-9]* s for rank 1 to get ready' "$output")" -eq 1 ] || fail "nobody says whom it waits for"
