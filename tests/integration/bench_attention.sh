#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `flexion bench attention` and `flexion kernel`: their JSON has the figures it promises, the counts are those of the mask,
# memory grows with the length and not with its square, the source shows the expression and compiles, and what a user gets
# wrong ends with one sentence and code 2.
source "$(dirname "$0")/setup.bash"
cd "$TMP" || exit 1
export XDG_CACHE_HOME=$TMP/cache
preset=$FX_SOURCE_DIR/configs/models/llama-tiny.yaml
small=("$preset" model.num_attention_heads=4 model.num_key_value_heads=2 model.head_dim=32 runtime.threads=2)
window='attention.params={window: 128}'

# holds FILE EXPRESSION: of the JSON object on the last line of FILE, as r.
holds() {
  python3 - "$1" "$2" <<'PYTHON'
import json, math, sys
r = json.loads(open(sys.argv[1]).read().splitlines()[-1])
positive = lambda *names: all(math.isfinite(r[n]) and r[n] > 0 for n in names)
if not eval(sys.argv[2]):
    sys.exit(f"not so: {sys.argv[2]}\n{r}")
PYTHON
}
bench() { "$FLEXION" bench attention "$@" --json > out.txt 2> err.txt || { cat err.txt; return 1; }; }
bench_holds() { # bench_holds EXPRESSION ARGUMENTS...
  bench "${@:2}" && holds out.txt "$1"
}

times='positive("forward_ms", "backward_ms", "forward_gflops", "backward_gflops", "gemm_gflops", "forward_of_gemm", "backward_of_gemm", "workspace_bytes", "peak_bytes")'
check "a preset alone" bench_holds "$times and r['kernels'] == 'none'" "$preset" --length 512 --steps 1
check "causal" bench_holds "$times and positive('mask_build_ms') and r['visible_pairs'] == 2 * 512 * 513 // 2 and r['form'] == 'limits' and abs(r['density'] - 513 / 1024) < 1e-6 and r['mask_bytes'] > 0 and r['compile_ms'] == 0" \
  "${small[@]}" --length 512 --batch 2 --steps 2
check "documents" bench_holds "$times and 0 < r['density'] < 0.3 and r['documents'] > 4" \
  "${small[@]}" attention.variant=document_causal --length 512 --documents 50 --batch 2 --steps 2
one=$(python3 -c 'import json; print(json.loads(open("out.txt").read().splitlines()[-1])["visible_pairs"])')
check "another seed, other documents" bench_holds "r['visible_pairs'] != $one" \
  "${small[@]}" attention.variant=document_causal --length 512 --documents 50 --batch 2 --steps 1 --seed 77
check "everything" bench_holds "$times and r['form'] == 'none' and r['density'] == 1 and r['mask_bytes'] == 0" \
  "${small[@]}" attention.variant=full --length 500 --steps 1
check "a score, compiled" bench_holds "$times and r['kernels'] == 'compiled' and r['compile_ms'] > r['cached_ms'] > 0" \
  "${small[@]}" attention.variant=softcap --length 512 --steps 1
check "a score, interpreted" bench_holds "$times and r['kernels'] == 'interpreted' and r['compile_ms'] == 0" \
  "${small[@]}" attention.variant=softcap runtime.compiler=none --length 512 --steps 1
check "a learnable table and sinks" bench_holds "$times" \
  "${small[@]}" attention.variant=t5_bias attention.sinks=true --length 512 --steps 1
width='attention.params={width: 32, radius: 2}'
check "an expression, bfloat16" bench_holds "$times and r['dtype'] == 'bfloat16' and r['form'] == 'expression' and r['visible_pairs'] == sum(min(31, x + 2) - max(0, x - 2) + 1 for x in range(32)) * sum(min(15, y + 2) - max(0, y - 2) + 1 for y in range(16))" \
  "${small[@]}" attention.variant=neighbourhood_2d "$width" --length 512 --dtype bfloat16 --steps 1
check "the variant of another layer" bench_holds "r['variant'] == 'near' and r['visible_pairs'] == 128 * 129 // 2 + (512 - 128) * 128" \
  "${small[@]}" 'attention.layers=[far, near]' "attention.variants={near: {variant: sliding_window, params: {window: 128}}, far: {variant: causal}}" --layer 1 --length 512 --steps 1
check "memory grows with the length" bench_holds \
  "r['half']['length'] == 8192 and all(r[n] <= 2.1 * r['half'][n] for n in ('workspace_bytes', 'mask_bytes', 'lse_bytes')) and r['peak_bytes'] - r['io_bytes'] < 48 * 2**20" \
  "${small[@]}" model.num_attention_heads=1 model.num_key_value_heads=1 attention.variant=sliding_window "$window" --length 16384 --memory

shows() { "$FLEXION" kernel "${small[@]}" attention.variant=softcap > source.c && grep -q '/\*.*tanh(score / cap) \* cap' source.c; }
check "the source shows the expression" shows
check "the source compiles" cc -std=gnu11 -Wall -fopenmp-simd -c source.c -o source.o
compiles() { # compiles EXPRESSION
  "$FLEXION" kernel "${small[@]}" attention.variant=alibi --compile --json > out.txt 2> err.txt || { cat err.txt; return 1; }
  holds out.txt "$1"
}
check "compiled" compiles "not r['from_cache'] and positive('compile_ms', 'library_bytes', 'source_bytes') and '-O3' in r['flags'] and r['variant'] == 'alibi'"
check "found in the cache" compiles "r['from_cache']"

expect() { # expect PATTERN ARGUMENTS...: code 2 and one sentence
  local pattern=$1 got
  shift
  "$FLEXION" "$@" > out.txt 2> err.txt
  got=$?
  [ "$got" -eq 2 ] && [ "$(wc -l < err.txt)" -eq 1 ] && grep -q -E -- "$pattern" err.txt && [ ! -s out.txt ] && return
  echo "$*: expected code 2 and one sentence with \"$pattern\"; got code $got and:"
  cat err.txt
  return 1
}
check "no configuration" expect 'expects a YAML file' bench attention
check "no such action" expect 'step, gemm, comm, attention or context' bench atention "$preset"
check "no such option" expect '--lenght' bench attention "$preset" --lenght 5
check "no value" expect 'lacks its value' bench attention "$preset" --length
check "no number" expect 'length takes a number from 1, got "x"' bench attention "$preset" --length x
check "no such type" expect 'float32 or bfloat16, got "int8"' bench attention "$preset" --dtype int8
check "no such layer" expect 'no layer 99' bench attention "$preset" --layer 99
check "too long" expect 'length of' bench attention "$preset" --length 999999999
check "too many steps" expect 'steps' bench attention "$preset" --steps 99999
check "no such variant" expect 'nearest' bench attention "$preset" attention.variant=causl
check "kernel without a configuration" expect 'expects a YAML file' kernel
check "kernel: no such layer" expect 'no layer 99' kernel "$preset" --layer 99
check "kernel: no number" expect 'layer takes a number' kernel "$preset" --layer x
check "kernel: no such option" expect '--compil' kernel "$preset" --compil=3
check "kernel: no compiler" expect 'runtime.compiler is none' kernel "$preset" --compile runtime.compiler=none
check "kernel: a compiler that is not there" expect 'no C compiler' kernel "$preset" --compile runtime.compiler=/nowhere/cc attention.variant=alibi
finish
