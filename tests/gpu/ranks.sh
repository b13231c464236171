#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two GPUs, in every layout: the losses of one GPU within rounding, the same bits in a second run, without CUDA graphs and without
# copy engines, a checkpoint of two ranks that one resumes, data, tensor and ring over sockets as between nodes, and a job that
# ends when a rank stands still. Skipped (77) where there are fewer than two GPUs. FLEXION_BIN: another binary than the build's.
source "$(dirname "$0")/../integration/setup.bash"
FLEXION=${FLEXION_BIN:-$FLEXION}
gpus=$("$FLEXION" doctor --json | tail -1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["cuda_devices"])')
[ "$gpus" -ge 2 ] || { echo "skipped: $gpus GPUs, two are needed"; rm -rf "$TMP"; exit 77; }
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 400 5

heads_of_64=(model.hidden_size=128 model.num_attention_heads=2 model.num_key_value_heads=1) # the least that GPUs attend to

train() { # train OUT RANKS overrides...
  local out=$1 ranks=$2
  shift 2
  timeout -k 1 120 mpirun -np "$ranks" --bind-to none "$FLEXION" train "$here/tiny.yaml" data.train="[lines:$TMP/corpus.txt]" \
    runtime.device=cuda runtime.deterministic=true "${heads_of_64[@]}" \
    train.seq_length=512 train.iters=30 train.eval_interval=0 optimizer.lr=1e-3 optimizer.min_lr=1e-4 checkpoint.dir="$TMP/$out" "$@" > "$TMP/$out.log" 2>&1 ||
    { tail -5 "$TMP/$out.log"; return 1; }
}
cat > "$TMP/compare.py" <<'P'
import json, sys
def load(name):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in rows if "loss" in r}
a, b, bound = load(sys.argv[2]), load(sys.argv[3]), float(sys.argv[4])
steps = sorted(a.keys() & b.keys())
assert len(steps) >= int(sys.argv[5]), (len(a), len(b))
worst = max(abs(a[s][0] - b[s][0]) / a[s][0] for s in steps)
print(f"{sys.argv[3]} against {sys.argv[2]}: losses of {len(steps)} steps within {worst:.2e} (bound {bound:g})")
sys.exit(worst > bound)
P
same() { python3 "$TMP/compare.py" "$TMP" "$@"; }

transport() { # transport WANT VARIABLE...: what ranks exchange by
  env "${@:2}" timeout -k 1 60 mpirun -np 2 --bind-to none "$FLEXION" bench comm "$here/tiny.yaml" runtime.device=cuda --json > "$TMP/comm.json" &&
    [ "$(tail -1 "$TMP/comm.json" | python3 -c 'import json, sys; print(json.load(sys.stdin)["transport"])')" = "$1" ]
}
check "GPUs of one host read each other's memory" transport "nccl and copy engines"
check "unless they may not" transport nccl NCCL_P2P_DISABLE=1
check "or are told not to" transport nccl FLEXION_PEER_COPIES=off
check "a value that says nothing" bash -c "! FLEXION_PEER_COPIES=some timeout 60 mpirun -np 2 --bind-to none '$FLEXION' bench comm '$here/tiny.yaml' runtime.device=cuda > '$TMP/some' 2>&1 && grep -q 'FLEXION_PEER_COPIES is \"some\"' '$TMP/some'"
export FLEXION_PEER_COPIES=1 # bytes: these models' messages are small

declare -A layouts=(
  [zero1]="parallel.zero=1" [zero2]="parallel.zero=2 train.micro_batch_size=2"
  [tensor]="parallel.tensor=2 parallel.sequence=false" [sequence]="parallel.tensor=2 parallel.tensor_pieces=2"
  [ring]="parallel.context=2 parallel.context_exchange=ring" [allgather]="parallel.context=2 parallel.context_exchange=allgather")
for dtype in float32 bfloat16; do
  check "$dtype: one rank" train "one-$dtype" 1 runtime.dtype=$dtype
  for layout in "${!layouts[@]}"; do
    check "$dtype: $layout" train "$layout-$dtype" 2 runtime.dtype=$dtype ${layouts[$layout]}
  done
  check "$dtype: two ranks" train "two-$dtype" 2 runtime.dtype=$dtype
  check "$dtype: again" train "again-$dtype" 2 runtime.dtype=$dtype
  check "$dtype: without CUDA graphs" train "eager-$dtype" 2 runtime.dtype=$dtype runtime.mode=eager
done
check "float32 follows one rank" same one-float32 two-float32 1e-5 30
check "bfloat16 follows one rank" same one-bfloat16 two-bfloat16 2e-3 30
for dtype in float32 bfloat16; do
  check "$dtype: a second run gives the same bits" same two-$dtype again-$dtype 0 30
  check "$dtype: eager gives the same bits" same two-$dtype eager-$dtype 0 30
done
for layout in "${!layouts[@]}"; do
  check "float32: $layout follows one rank" same one-float32 "$layout-float32" 1e-5 30
  check "bfloat16: $layout follows one rank" same one-bfloat16 "$layout-bfloat16" 3e-3 30
done
check "one rank, two key heads" train heads-one 1 runtime.dtype=float32 model.num_key_value_heads=2
check "heads divided between context ranks" train heads-two 2 runtime.dtype=float32 model.num_key_value_heads=2 \
  parallel.context=2 parallel.context_exchange=alltoall
check "alltoall follows one rank" same heads-one heads-two 1e-5 30
for layout in sequence ring; do
  check "bfloat16: $layout again" train "$layout-again" 2 ${layouts[$layout]}
  check "bfloat16: $layout without CUDA graphs" train "$layout-eager" 2 runtime.mode=eager ${layouts[$layout]}
  check "$layout: a second run gives the same bits" same "$layout-bfloat16" "$layout-again" 0 30
  check "$layout: eager gives the same bits" same "$layout-bfloat16" "$layout-eager" 0 30
done
for layout in ring sequence; do
  for variant in softcap alibi; do # the rates of ALiBi differ from head to head
    check "one rank, $variant" train variant-one 1 runtime.dtype=float32 attention.variant=$variant
    check "$layout, $variant" train variant-two 2 runtime.dtype=float32 attention.variant=$variant ${layouts[$layout]}
    check "$layout follows one rank" same variant-one variant-two 1e-5 30
    rm -rf "$TMP/variant-one" "$TMP/variant-two"
  done
done
check "another mask is told apart" train mask 1 runtime.dtype=float32 attention.variant=causal
check "by more than 100 times the bound" bash -c "! python3 '$TMP/compare.py' '$TMP' one-float32 mask 1e-3 30"
cp -r "$TMP/two-float32" "$TMP/resumed"
check "one rank resumes what two saved" train resumed 1 runtime.dtype=float32 train.iters=40
check "40 steps in one run" train whole 1 runtime.dtype=float32 train.iters=40
check "and goes on as if it had been alone" same whole resumed 1e-5 40
for layout in sequence ring zero1; do
  FLEXION_PEER_COPIES=off check "float32: $layout through NCCL" train "$layout-nccl" 2 runtime.dtype=float32 ${layouts[$layout]}
  check "$layout: the same bits" same "$layout-float32" "$layout-nccl" 0 30
done
for layout in "" sequence ring; do
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket check "over sockets: ${layout:-data}" train sockets 2 runtime.dtype=float32 \
    ${layout:+${layouts[$layout]}}
  check "${layout:-data}: over sockets the losses are the same" same one-float32 sockets 1e-5 30
  rm -rf "$TMP/sockets"
done

seconds=3
source "$here/signalled.bash"
check "a rank is suspended" signalled stopped 2 STOP runtime.device=cuda parallel.zero=1 "${heads_of_64[@]}"
check "the job ends with code 4" test "$code" -eq 4
check "in time" test "$ms" -ge 3000 -a "$ms" -le 11000
check "and says who" grep -qE 'watchdog: no answer from rank 1 within 3.0 s; the job ends' "$TMP/stopped.log"
check "and what the other had begun" grep -qE 'watchdog: rank 0 in step [0-9]+ .*; collective [0-9]+ of dp_cp#4, [a-z_]+ (float32|bfloat16) x [0-9]+ \([0-9]+ bytes\), was the last to begin' "$TMP/stopped.log"
finish
