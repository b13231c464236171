#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `flexion plan`: what it promises is what training prints, activations fall with tensor and context ranks and state with
# ZeRO, ledgers name every collective, and a model of 8 B parameters is planned in little memory.
source "$(dirname "$0")/setup.bash"
here=$FX_SOURCE_DIR/tests/integration
models=$FX_SOURCE_DIR/configs/models
plan() { "$FLEXION" plan "$@" --json > "$TMP/out" 2> "$TMP/err" && tail -1 "$TMP/out" > "$TMP/plan.json"; }
field() { python3 -c "import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2], {'d': d}))" "$TMP/plan.json" "$1"; }
says() { grep -qE -- "$2" "$1" || { echo "  not in $1: $2"; head -3 "$1"; false; }; }
code() { # code EXPECTED COMMAND...
  local expected=$1 got=0
  shift
  timeout 60 "$@" > "$TMP/out" 2> "$TMP/err" || got=$?
  [ "$got" -eq "$expected" ] || { echo "  exit code $got"; head -3 "$TMP/err"; false; }
}

python3 "$here/corpus.py" "$TMP/corpus.txt" 100 5
check "one rank" plan "$here/tiny.yaml"
cp "$TMP/plan.json" "$TMP/one.json"
"$FLEXION" train "$here/tiny.yaml" data.train="[lines:$TMP/corpus.txt]" train.iters=1 train.eval_interval=0 runtime.threads=1 \
  checkpoint.dir="$TMP/run" --json 2> "$TMP/log" | tail -1 > "$TMP/train.json"
check "the arena is the one that training makes" python3 - "$TMP/one.json" "$TMP/train.json" <<'P'
import json, sys
plan, train = (json.load(open(p)) for p in sys.argv[1:])
print(plan["arena_bytes"], train["arena_bytes"])
assert plan["arena_bytes"] == train["arena_bytes"] > 0
micro = {p["plan"]: p for p in plan["plans"]}
assert {"micro_first", "micro_mid", "micro_last", "update", "eval"} == set(micro), set(micro)
assert micro["micro_first"]["kernels"] > 50 and micro["micro_first"]["fused"] >= 4 and micro["update"]["gflop"] > 0
assert all(p["collectives"] == 0 and p["ledger"] == "" for p in plan["plans"])
P
check "four ranks" plan "$here/tiny.yaml" --ranks 4 parallel.tensor=2 parallel.zero=1
check "their layout" [ "$(field 'd["topology"]')" = "tp:2 cp:1 dp:2" ]
check "a line a collective" [ "$(field 'all(p["ledger"].count("\n") == p["collectives"] for p in d["plans"])')" = True ]
check "of tensor and data ranks" [ "$(field 'any("tp#" in p["ledger"] and "reduce_scatter" in p["ledger"] and "dp_cp#" in p["ledger"] for p in d["plans"])')" = True ]

falls() { # falls WHAT FRACTION overrides...: against one rank of the same sequence
  local what=$1 fraction=$2 one
  shift 2
  plan "$models/llama-tiny.yaml" train.seq_length=1024 train.micro_batch_size=2 train.global_batch_size=8 && one=$(field "d['$what']") &&
    plan "$models/llama-tiny.yaml" train.seq_length=1024 train.micro_batch_size=2 train.global_batch_size=8 "$@" &&
    echo "$what with $*: $(field "round(d['$what'] / $one, 3)") of one rank's" && [ "$(field "d['$what'] <= $fraction * $one")" = True ]
}
check "activations fall with context ranks" falls arena_bytes 0.55 parallel.context=2
check "and with more" falls arena_bytes 0.35 parallel.context=4
check "and with tensor ranks" falls arena_bytes 0.53 parallel.tensor=2
check "and with more of them" falls arena_bytes 0.31 parallel.tensor=4
check "weights fall with tensor ranks" falls weight_bytes 0.51 parallel.tensor=2
check "moments fall with ZeRO" falls moment_bytes 0.27 parallel.zero=1 --ranks 4
check "gradients fall with ZeRO 2" falls gradient_bytes 0.27 parallel.zero=2 --ranks 4

check "neighbours that share a key head sum its gradient" bash -c "'$FLEXION' plan '$models/llama-tiny.yaml' parallel.tensor=4 model.num_key_value_heads=2 --ledger | grep -q '^kv#'"
check "thousands of ranks" plan "$here/tiny.yaml" --ranks 4096 parallel.zero=1 train.global_batch_size=16384
check "8 B parameters on a GPU" plan "$models/llama-8b.yaml" --gpu --ranks 8 parallel.zero=1 train.micro_batch_size=1 \
  train.global_batch_size=8 train.seq_length=4096
check "within 512 MiB" python3 - "$FLEXION" "$models/llama-8b.yaml" <<'P'
import resource, subprocess, sys
subprocess.run([sys.argv[1], "plan", sys.argv[2], "train.micro_batch_size=1"], check=True, stdout=subprocess.DEVNULL)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(f"peak {peak:.0f} MiB")
assert 1 < peak < 512
P
check "compute in bfloat16" [ "$(field 'd["dtype"]')" = bfloat16 ]
check "are 8 B" [ "$(field '8.0e9 < d["params"] < 8.1e9')" = True ]
check "moments are an eighth" [ "$(field 'd["moment_bytes"] < d["params"] * 8 / 7.9')" = True ]
check "8 B parameters over 8 GPUs, 2 of them a tensor group" plan "$models/llama-8b.yaml" --gpu --ranks 8 parallel.zero=1 \
  parallel.tensor=2 parallel.sequence=true train.micro_batch_size=1 train.global_batch_size=8 train.seq_length=4096
check "hold half the weights, and of their fp32 masters an eighth" [ "$(field '0.99 < d["weight_bytes"] / (d["params"] * (2 / 2 + 4 / 8)) < 1.01')" = True ]
check "ranks that do not divide" code 2 "$FLEXION" plan "$here/tiny.yaml" parallel.tensor=2 --ranks 3
check "with a sentence" says "$TMP/err" "3 ranks do not divide into parallel.tensor=2"
check "no ranks" code 2 "$FLEXION" plan "$here/tiny.yaml" --ranks none
check "no file" code 2 "$FLEXION" plan
finish
