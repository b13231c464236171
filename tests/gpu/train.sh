#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training on one GPU beside the CPU: 50 steps of a Llama and of a GPT-2 follow the CPU's losses to 1e-4 in float32, and to
# 5e-3 and 5e-2 in bfloat16 (this GPT-2, without warm-up, makes hundreds of times more of a rounding than this Llama); a checkpoint of one is resumed by the other and back; stochastic rounding trains; the same text is
# generated. Skipped (77) without a GPU. FLEXION_BIN: another binary than the build's.
source "$(dirname "$0")/../integration/setup.bash"
FLEXION=${FLEXION_BIN:-$FLEXION}
gpus=$("$FLEXION" doctor --json | tail -1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["cuda_devices"])')
[ "$gpus" -ge 1 ] || { echo "skipped: no GPU"; rm -rf "$TMP"; exit 77; }
export OMP_NUM_THREADS=1
here=$FX_SOURCE_DIR/tests/integration
python3 "$here/corpus.py" "$TMP/corpus.txt" 400 5
llama=(model.hidden_size=128 model.num_attention_heads=2 model.num_key_value_heads=1 attention.variant=document_causal)
gpt2=(model.model_type=gpt2 model.hidden_size=128 model.num_attention_heads=2 model.bias=true model.tie_word_embeddings=true
  model.dropout=0.1 attention.variant=causal)

train() { # train OUT DEVICE DTYPE overrides...
  local out=$1 device=$2 dtype=$3
  shift 3
  timeout -k 1 120 "$FLEXION" train "$here/tiny.yaml" data.train="[lines:$TMP/corpus.txt]" runtime.device="$device" \
    runtime.dtype="$dtype" runtime.deterministic=true runtime.threads=1 train.micro_batch_size=4 train.iters=50 train.eval_interval=0 \
    optimizer.lr=1e-3 optimizer.min_lr=1e-4 checkpoint.dir="$TMP/$out" "$@" > "$TMP/$out.log" 2>&1 || { tail -5 "$TMP/$out.log"; return 1; }
}
cat > "$TMP/compare.py" <<'P'
import json, sys
def load(name):
    rows = [json.loads(line) for line in open(f"{sys.argv[1]}/{name}/metrics.jsonl")]
    return {r["step"]: r["loss"] for r in rows if "loss" in r}
a, b, bound = load(sys.argv[2]), load(sys.argv[3]), float(sys.argv[4])
steps = sorted(a.keys() & b.keys())
assert len(steps) >= int(sys.argv[5]), (len(a), len(b))
worst = max(abs(a[s] - b[s]) / a[s] for s in steps)
print(f"{sys.argv[3]} against {sys.argv[2]}: losses of {len(steps)} steps within {worst:.2e} (bound {bound:g}), {a[steps[0]]:.3f} -> {a[steps[-1]]:.3f}")
assert a[steps[-1]] < a[steps[0]] - 0.5, "it did not learn"
sys.exit(worst > bound)
P
same() { python3 "$TMP/compare.py" "$TMP" "$@"; }

declare -A bound=([llama]=5e-3 [gpt2]=5e-2)
for model in llama gpt2; do
  declare -n options=$model
  check "$model on the CPU" train $model-cpu cpu float32 "${options[@]}"
  check "$model in float32" train $model-f32 cuda float32 "${options[@]}"
  check "$model in bfloat16" train $model-bf16 cuda auto "${options[@]}"
  check "$model in bfloat16, kernel by kernel" train $model-eager cuda auto runtime.mode=eager "${options[@]}"
  check "$model in float32 follows the CPU" same $model-cpu $model-f32 1e-4 50
  check "$model in bfloat16 follows the CPU" same $model-cpu $model-bf16 "${bound[$model]}" 50
  check "$model: replay and eager give the same bits" same $model-bf16 $model-eager 0 50
done
check "another learning rate is told apart" train llama-lr cuda float32 optimizer.lr=2e-3 "${llama[@]}"
check "by more than the bounds" bash -c "! python3 '$TMP/compare.py' '$TMP' llama-cpu llama-lr 5e-3 50"
check "stochastic rounding trains" train llama-sr cuda auto optimizer.stochastic_rounding=true "${llama[@]}"
check "close to rounding to nearest" same llama-bf16 llama-sr 1e-2 50
cp -r "$TMP/llama-cpu" "$TMP/there"
check "the GPU resumes what the CPU saved" train there cuda float32 train.iters=60 "${llama[@]}"
check "and the CPU what the GPU saved" train there cpu float32 train.iters=70 "${llama[@]}"
check "70 steps on the CPU" train llama-70 cpu float32 train.iters=70 "${llama[@]}"
check "as if there had been no change" same llama-70 there 1e-4 70
for device in cpu cuda; do
  check "text by $device" bash -c "timeout 60 '$FLEXION' generate '$TMP/llama-f32' --tokens 24 --temperature 0 --device $device > '$TMP/$device.txt'"
done
check "the same text" cmp "$TMP/cpu.txt" "$TMP/cuda.txt"
check "text of a model of bfloat16" bash -c "timeout 60 '$FLEXION' generate '$TMP/llama-bf16' --tokens 24 --temperature 0 > '$TMP/text'"
check "the memory is the planned one" bash -c "grep -oE 'GPU memory in use.*' '$TMP/llama-bf16.log' && grep -qE 'in use .*, [+-][0-2][.][0-9]% of what was planned' '$TMP/llama-bf16.log'"
finish
