#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `flexion bench context`: 2 and 4 ranks give the numbers of one by both exchanges, for several masks and parameters; its
# JSON has the figures it promises; what a user gets wrong ends with one sentence of one rank and code 2.
source "$(dirname "$0")/setup.bash"
cd "$TMP" || exit 1
export XDG_CACHE_HOME=$TMP/cache
tiny=$FX_SOURCE_DIR/tests/integration/tiny.yaml
bench() { # bench RANKS ARGUMENTS...
  timeout -k 1 60 mpirun -np "$1" --bind-to none --oversubscribe "$FLEXION" bench context "$tiny" "${@:2}" > out.txt 2> err.txt
}
# holds RANKS EXPRESSION ARGUMENTS...: of the JSON object on the last line, as r
holds() {
  bench "$1" "${@:3}" --json || { cat err.txt; return 1; }
  python3 - "$1" "$2" <<'PYTHON'
import json, math, sys
r = json.loads(open("out.txt").read().splitlines()[-1])
n, bound = int(sys.argv[1]), {"float32": 1e-5, "bfloat16": 2e-2}[r["dtype"]]
figures = ("single_ms", "shared_ms", "single_tflops", "shared_tflops", "efficiency", "visible_pairs", "imbalance")
near = lambda a, b: abs(a - b) <= 1e-6 * abs(b)
rules = {
    "positive": all(math.isfinite(r[f]) and r[f] > 0 for f in figures),
    "ranks": r["ranks"] == n and r["transport"] == "mpi" and not r["gpu"],
    "bounded": r["bound"] == bound and all(0 <= r["differences"][x] < bound for x in ("out", "dq", "dk", "dv")),
    # keys of other ranks are added in another order, so gradients of keys cannot have the same bits everywhere
    "compared": r["difference"] == max(r["differences"].values()) > 0,
    "efficiency": near(r["efficiency"], r["single_ms"] / (n * r["shared_ms"])),
    "rate": near(r["shared_tflops"], 14e-9 * r["visible_pairs"] * r["heads"] * r["head_dim"] / n / r["shared_ms"]),
    "balance": 1 <= r["imbalance"] < n,
    "room": 0 <= r["capacity_blocks"] <= r["blocks"] == r["length"] // 128 // n and 0 <= r["hops"] < n,
    sys.argv[2]: eval(sys.argv[2]),
}
broken = [rule for rule, kept in rules.items() if not kept]
sys.exit(f"not so: {broken}\n{r}" if broken else 0)
PYTHON
}
window='attention.params={window: 200}'
for n in 2 4; do
  for exchange in ring allgather; do
    way="parallel.context_exchange=$exchange"
    check "$n ranks, $exchange: causal" holds $n "r['exchange'] == '$exchange' and r['visible_pairs'] == 1024 * 1025 // 2 and near(r['imbalance'], 1)" \
      attention.variant=causal --length 1024 --steps 2 "$way"
    check "$n ranks, $exchange: a window" holds $n "r['visible_pairs'] == 200 * 201 // 2 + (1024 - 200) * 200" \
      attention.variant=sliding_window "$window" --length 1024 --steps 1 "$way"
    check "$n ranks, $exchange: documents" holds $n "r['documents'] > 8 and r['batch'] == 2 and r['visible_pairs'] < 2**19" \
      --length 1024 --documents 90 --batch 2 --steps 1 "$way"
    check "$n ranks, $exchange: bfloat16, a score, a table, sinks" holds $n "r['dtype'] == 'bfloat16' and r['variant'] == 't5_bias'" \
      attention.variant=t5_bias attention.sinks=true --length 512 --dtype bfloat16 --steps 1 "$way"
  done
done
check "by default" holds 2 "r['steps'] == 7 and r['length'] == 256 and r['exchange'] == 'allgather'" train.seq_length=256
check "the variant of another layer" holds 2 "r['variant'] == 'near' and r['visible_pairs'] == 128 * 129 // 2 + (512 - 128) * 128" \
  'attention.layers=[far, near]' "attention.variants={near: {variant: sliding_window, params: {window: 128}}, far: {variant: causal}}" --layer 1 --length 512 --steps 1
check "a table for people" bench 2 --length 256 --steps 1
check "with its room" grep -q "room for 1 of a rank's 1 blocks of keys" out.txt
check "a trace of every rank" bench 2 --length 256 --steps 1 --trace "$TMP/trace%d.json"
check "also of the second" test -s "$TMP/trace1.json"
check "of both sides" python3 -c 'import json, sys; names = [e["name"] for e in json.load(open(sys.argv[1]))["traceEvents"]]; assert names.index("flex_attention") < names.index("collective"), names' "$TMP/trace0.json"
check "with its difference" grep -qE 'difference: out .*e-.*at most 1.0e-05' out.txt

refused() { # refused PATTERN GOT: code 2, no figures, one sentence
  [ "$2" -eq 2 ] && [ "$(grep -c '^flexion: ' err.txt)" -eq 1 ] && grep -q -E -- "$1" err.txt && [ ! -s out.txt ] && return
  echo "expected code 2 and one sentence with \"$1\"; got code $2 and:"
  cat err.txt
  return 1
}
together() { # together PATTERN ARGUMENTS...
  bench 2 "${@:2}"
  refused "$1" $?
}
alone() { # alone PATTERN ARGUMENTS...: without mpirun
  timeout -k 1 60 "$FLEXION" bench context "${@:2}" > out.txt 2> err.txt
  refused "$1" $?
}
check "a length that cannot be dealt" together '1000 positions cannot be dealt to 2 ranks .* multiple of 256' --length 1000
check "a wrong configuration" together 'nearest' attention.variant=causl
check "one rank" alone 'at least 2 ranks' "$tiny"
check "no configuration" alone 'bench context expects a YAML file'
check "an option of bench attention" alone 'bench context does not know the option --memory' "$tiny" --memory
check "a trace of bench attention" bash -c "! timeout 60 '$FLEXION' bench attention '$tiny' --trace x > out.txt 2> err.txt && grep -q 'does not know the option --trace' err.txt"
check "no number" alone 'steps takes a number from 1, got "x"; see flexion bench context' "$tiny" --steps x
finish
