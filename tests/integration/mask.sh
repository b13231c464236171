#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `flexion mask`: figures against counts made by hand, the picture in the terminal and as a PNG, and what is refused.
source "$(dirname "$0")/setup.bash"
cd "$TMP" || exit 1
config=$FX_SOURCE_DIR/tests/integration/tiny.yaml

field() { tail -n 1 out.txt | sed -nE "s/.*\"$1\":\"?([^,\"}]*).*/\1/p"; }
shows() { # shows FIELD=VALUE... -- ARGUMENTS
  local -a want=()
  while [ "$1" != -- ]; do want+=("$1"); shift; done
  shift
  "$FLEXION" mask "$config" "$@" --json > out.txt 2> err.txt || { cat err.txt; return 1; }
  for pair in "${want[@]}"; do
    [ "$(field "${pair%%=*}")" = "${pair#*=}" ] || { echo "mask $*: expected $pair, got $(field "${pair%%=*}")"; return 1; }
  done
}
refuses() { # refuses CODE PATTERN ARGUMENTS
  local code=$1 pattern=$2 got
  shift 2
  "$FLEXION" mask "$@" > out.txt 2> err.txt
  got=$?
  [ "$got" -eq "$code" ] && [ "$(grep -c "^flexion: " err.txt)" -eq 1 ] && grep -q -E -- "$pattern" err.txt ||
    { echo "mask $*: expected code $code and \"$pattern\"; got $got and:"; cat err.txt; return 1; }
}

# 1024 positions in 128 x 128: a triangle of 8 partial and 28 full tiles, 1024 * 1025 / 2 pairs.
check "causal" shows form=limits intervals=1 full=28 partial=8 empty=28 density=0.500488281 -- attention.variant=causal --length 1024
check "tiles of other sizes" shows full=12 partial=8 empty=12 tile_q=256 -- attention.variant=causal --length 1024 --tile 256x128
check "full" shows form=none full=64 partial=0 density=1.0 -- attention.variant=full --length 1024
check "an expression" shows form=expression partial=64 full=0 density=0.5 density_exact=true -- \
  'attention.mask="(q + kv) % 2 == 0"' --length 1024
check "two intervals" shows form=limits intervals=2 -- 'attention.mask="kv <= q && (q - kv < 64 || kv < 4)"' --length 1000
check "a document a sample" shows per_sample=true documents=1 full=28 -- attention.variant=document_causal --length 1024
check "packed documents" shows form=limits per_sample=true -- attention.variant=document_causal --length 5000 --documents 300 --seed 7
check "several documents" test "$(field documents)" -gt 5
check "the same again from the same seed" cmp <(field density) <("$FLEXION" mask "$config" attention.variant=document_causal \
  --length 5000 --documents 300 --seed 7 --json > again.txt; tail -n 1 again.txt | sed -nE 's/.*"density":([^,]*).*/\1/p')

check "a picture in the terminal" shows form=limits -- attention.variant=causal --length 8 --png small.png
printf '|%-8s|\n' '@' '@@' '@@@' '@@@@' '@@@@@' '@@@@@@' '@@@@@@@' '@@@@@@@@' > want.txt
check "one character a pair" diff want.txt <(grep '^|' out.txt)
check "a PNG of 8 x 8" test "$(head -c 24 small.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a0000000d494844520000000800000008

# 8 blocks of 128, block i sees 128 * 128 i + 128 * 129 / 2 pairs: to and fro is even for 2 and 4 ranks; 3 blocks a rank are not.
check "a causal mask shared by 4 ranks" shows imbalance=1.0 ranks=4 blocks_a_rank=2 travelling_blocks=2 hops=3 -- attention.variant=causal --length 1024 --ranks 4
check "neighbouring blocks would not be even" test "$(field imbalance_neighbours)" = 1.74926829
check "three blocks a rank" shows ranks=2 imbalance=1.05548331 -- attention.variant=causal --length 768 --ranks 2
check "documents are dealt by area" shows ranks=4 -- attention.variant=document_causal --length 65536 --documents 3000 --ranks 4
check "and evenly" awk -v x="$(field imbalance)" -v y="$(field imbalance_neighbours)" 'BEGIN { exit !(x >= 1 && x < 1.001 && y > 1.01) }'
check "shares in the text" grep -q "shares          0: 25\.0" out.txt
# A window of 512 reaches back 4 blocks: with neighbouring blocks on each of 4 ranks, that many of one are seen by the next.
check "few keys travel for a window" shows travelling_blocks=4 hops=1 blocks_a_rank=16 -- attention.variant=sliding_window \
  attention.params.window=512 parallel.context_exchange=ring --length 8192 --ranks 4
check "and the text says so" grep -q "travelling      at most 4 of a rank's 16 blocks (25.0%), to the next 1 of 3 other ranks" out.txt
check "all are gathered otherwise" shows travelling_blocks=16 hops=3 -- attention.variant=sliding_window \
  attention.params.window=512 parallel.context_exchange=allgather --length 8192 --ranks 4
check "heads are dealt, not rows" shows exchange=alltoall imbalance=1.0 -- attention.variant=causal parallel.context_exchange=alltoall \
  model.num_attention_heads=4 model.num_key_value_heads=4 --length 8192 --ranks 4
check "a sequence that does not divide" refuses 2 '1000 is not a multiple of 128 x parallel.context=3' "$config" --length 1000 --ranks 3
check "one rank shares nothing" refuses 2 'ranks takes a number from 2' "$config" --ranks 1

check "no configuration" refuses 2 'expects a YAML file'
check "an unknown option" refuses 2 'does not know the option --bogus' "$config" --bogus
check "a tile without an x" refuses 2 'tile takes queries x keys, as 128x64' "$config" --tile 128
check "a length of nothing" refuses 2 'length takes a number from 1' "$config" --length 0
check "too long" refuses 2 'expected 1..16777216' "$config" --length 20000000
check "a layer that is not there" refuses 2 'there is no layer 99' "$config" --layer 99
check "a head that is not there" refuses 2 'there is no head 99' "$config" --head 99
check "a bad expression" refuses 2 'got the end' "$config" 'attention.mask="kv <="'
check "a folder that is not there" refuses 3 'nowhere/x.png: the picture cannot be written' "$config" --png nowhere/x.png
finish
