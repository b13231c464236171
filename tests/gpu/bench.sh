#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `flexion bench attention|gemm|step|comm` and `flexion doctor` on a GPU, at small sizes: they name the device, what they achieved
# and its bound are there and positive, nothing is more than 1.05 times its bound, MFU is a number where the peak is known; with
# one GPU bench comm says that it needs more. Skipped (77) without a GPU. FLEXION_BIN: another binary than the build's.
# FX_BENCH_DEVICE=cpu tries the checks themselves where there is none; FX_BENCH_SLACK then takes the place of 1.05.
source "$(dirname "$0")/../integration/setup.bash"
FLEXION=${FLEXION_BIN:-$FLEXION}
device=${FX_BENCH_DEVICE:-cuda}
gpus=$("$FLEXION" doctor --json | tail -1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["cuda_devices"])')
[ "$device" = cpu ] || [ "$gpus" -ge 1 ] || { echo "skipped: no GPU"; rm -rf "$TMP"; exit 77; }
models=$FX_SOURCE_DIR/configs/models
if [ "$device" = cpu ]; then
  step=(train.micro_batch_size=1 train.seq_length=64 runtime.threads=1) length=512
else
  step=(train.micro_batch_size=8 train.seq_length=1024) length=4096
fi
# AdamW's state of 46 M parameters is far larger than the caches of any GPU.
gpt2=("$models/gpt2-124m.yaml" model.num_hidden_layers=1 runtime.device="$device" "${step[@]}")
llama=("$models/llama-tiny.yaml" model.num_attention_heads=8 model.num_key_value_heads=2 model.head_dim=128 runtime.device="$device")

# bounds.py KIND FILE DOCTOR: of the JSON on the last line of FILE and the text before it; DOCTOR: `doctor --json`.
cat > "$TMP/bounds.py" <<'P'
import json, math, os, re, sys
kind, lines = sys.argv[1], open(sys.argv[2]).read().splitlines()
r, text = json.loads(lines[-1]), lines[:-1]
doctor = json.loads(open(sys.argv[3]).read().splitlines()[-1])
gpu = os.environ["FX_BENCH_DEVICE"] == "cuda"
slack = 1.05 if gpu else float(os.environ.get("FX_BENCH_SLACK", 1.05))
name = doctor["cuda_gpus"][0]["name"] if gpu else None
listed = gpu and "MIG" not in name and re.search(r"\b(A100|H100|H200|GH200|B200)\b", name)
worst = 0.0

def need(held, what):
    if not held:
        sys.exit(f"{kind}: {what}\n" + "\n".join(lines))
def positive(row, *keys):
    for key in keys:
        need(isinstance(row.get(key), (int, float)) and math.isfinite(row[key]) and row[key] > 0, f"{key} is {row.get(key)}, expected a positive number")
def below(what, achieved, bound):
    global worst
    need(math.isfinite(achieved) and 0 < achieved <= slack * bound, f"{what}: {achieved:g} of a bound of {bound:g}")
    worst = max(worst, achieved / bound)
def named(where):
    need(not gpu or name in where, f"{name} is not named in: {where}")
def known(bound): # a peak: there, or not known of this GPU
    need(bound is not None or not listed, f"the peak of {name} is not known")
    return bound is not None
def table(first): # rows of words behind a header, to the next empty line
    rows = [line.split() for line in text + [""]]
    begin = next(i for i, row in enumerate(rows) if row[:1] == [first])
    return rows[begin + 1:rows.index([], begin)]

if kind == "attention":
    named(text[0])
    need(r["dtype"] == ("bfloat16" if gpu else "float32"), r["dtype"])
    positive(r, "forward_ms", "backward_ms", "gemm_gflops", "workspace_bytes", "peak_bytes", "visible_pairs", "mask_build_ms")
    for way in "forward", "backward":
        below(way, r[f"{way}_gflops"], r["gemm_gflops"])
        need(abs(r[f"{way}_of_gemm"] - r[f"{way}_gflops"] / r["gemm_gflops"]) < 1e-3, f"{way}_of_gemm")
elif kind == "gemm":
    named(text[0])
    positive(r, "step_ms")
    rows = table("product")
    need(len(r["products"]) == len(rows) == 15, "15 products")
    for product, row in zip(r["products"], rows):
        positive(product, "ms", "gflops")
        need(row[:2] == [product["product"], product["pass"]], f"columns {row}")
        if known(r["bound_gflops"]):
            below(" ".join(row[:2]), product["gflops"], r["bound_gflops"])
            need(abs(float(row[7].rstrip("%")) - 100 * product["gflops"] / r["bound_gflops"]) < 0.1, f"columns {row}")
elif kind == "step":
    named(text[0])
    positive(r, "params", "step_ms", "best_step_ms", "tokens_per_s", "kernel_ms", "gflops", "bound_gbps", "arena_bytes", "planned_bytes")
    if known(r["bound_gflops"]):
        below("arithmetic", r["gflops"], r["bound_gflops"])
    if gpu:
        positive(r, "launch_us", "launched_step_ms", "gpu_planned_bytes", "gpu_peak_bytes")
        need((r["mfu_percent"] is None) == (r["bound_gflops"] is None), f"MFU is {r['mfu_percent']}, the peak {r['bound_gflops']}")
        mfu = next(line for line in text if line.startswith("MFU")).split()[1]
        if r["mfu_percent"] is not None:
            below("MFU", r["mfu_percent"], 100)
            need(abs(float(mfu) - r["mfu_percent"]) < 0.1, f"MFU is printed as {mfu}")
    *rows, bound = table("op")
    ops = {row[0]: [float(word.rstrip("%")) for word in row[1:]] for row in rows}
    need(bound[0] == "bound" and abs(float(bound[-1]) - r["bound_gbps"]) < 0.1, f"columns {bound}")
    for op in "linear", "flex_attention", "head_ce", "adamw":
        need(op in ops and ops[op][1] > 0 and ops[op][4] > 0, f"{op} is not among {sorted(ops)}, or took no time")
        if r["bound_gflops"] is not None:
            below(op, ops[op][4], r["bound_gflops"])
    below("adamw, GB/s", ops["adamw"][5], r["bound_gbps"])
elif kind == "comm":
    named(text[0])
    need(r["ranks"] == 2 and ("nccl" in r["transport"]) == gpu, f"{r['ranks']} ranks by {r['transport']}")
    positive(r, "copy_gbps")
    need({c["collective"] for c in r["collectives"]} == {"all_reduce", "all_gather", "reduce_scatter", "send_recv"}, "four collectives")
    need(len(table("collective")) == len(r["collectives"]) == 16, "16 rows")
    for c in r["collectives"]:
        positive(c, "bytes", "us")
        below(f"{c['collective']} of {c['bytes']}", c["gbps"], r["copy_gbps"])
elif kind == "doctor":
    positive(r, "threads", "gemm_gflops")
    if gpu:
        need(len(r["cuda_gpus"]) == r["cuda_devices"], "as many GPUs as devices")
        for one in r["cuda_gpus"]:
            positive(one, "sm", "multiprocessors", "memory_bytes")
        positive(r, "gpu_copy_gbps", "gpu_gemm_gflops")
        need(r["cuda_driver"] and r["nvrtc"] and "cuBLASLt" in r["gpu_gemm"], "driver, NVRTC, cuBLASLt")
        need(not any("GPU" in warning for warning in r["warnings"]), r["warnings"])
        named("\n".join(text))
        rate = next(line for line in text if line.startswith("gpu rate"))
        nominal = re.search(r"of (\d+) nominal", rate)
        need(nominal or not listed, rate)
        if nominal:
            below("gemm", r["gpu_gemm_gflops"] / 1e3, float(nominal.group(1)))
print(f"{kind}: at most {100 * worst:.1f}% of a bound" if worst else f"{kind}: there")
P
export FX_BENCH_DEVICE=$device

bench() { # bench KIND COMMAND...: its output has what it promises
  local kind=$1
  shift
  timeout -k 1 240 "$@" > "$TMP/$kind" 2> "$TMP/err" || { tail -5 "$TMP/err"; return 1; }
  python3 "$TMP/bounds.py" "$kind" "$TMP/$kind" "$TMP/doctor"
}
doctor() { { "$FLEXION" doctor && "$FLEXION" doctor --json; } > "$TMP/doctor" && python3 "$TMP/bounds.py" doctor "$TMP/doctor" "$TMP/doctor"; }
refused() { # refused CODE PATTERN COMMAND...
  local want=$1 pattern=$2 code=0
  shift 2
  timeout -k 1 120 "$@" > "$TMP/refused" 2>&1 || code=$?
  [ "$code" -eq "$want" ] && grep -qE "$pattern" "$TMP/refused" && return
  echo "code $code, expected $want and \"$pattern\":"
  tail -5 "$TMP/refused"
  return 1
}

check "doctor" doctor
check "attention" bench attention "$FLEXION" bench attention "${llama[@]}" --length "$length" --batch 2 --steps 3 --json
check "attention of documents" bench attention "$FLEXION" bench attention "${llama[@]}" attention.variant=document_causal --length "$length" --documents 500 --steps 3 --json
check "gemm" bench gemm "$FLEXION" bench gemm "${gpt2[@]}" --json
check "step" bench step "$FLEXION" bench step "${gpt2[@]}" --steps 3 --json
check "comm of one rank" refused 2 'bench comm needs at least 2 ranks' "$FLEXION" bench comm "${llama[@]}"
if [ "$device" = cpu ] || [ "$gpus" -ge 2 ]; then
  check "comm" bench comm mpirun -np 2 --bind-to none --oversubscribe "$FLEXION" bench comm "${llama[@]}" --json
else
  check "comm of two ranks and one GPU" refused 4 'ranks 0 and 1 would share a GPU' mpirun -np 2 --bind-to none --oversubscribe "$FLEXION" bench comm "${llama[@]}"
fi
finish
