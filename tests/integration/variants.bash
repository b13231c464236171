# SPDX-License-Identifier: Apache-2.0
# Training under every variant of configs/attention. Sourced behind setup.bash; needs params, by name what a variant wants
# of parameters, and $TMP/corpus.txt.
here=$FX_SOURCE_DIR/tests/integration
export XDG_CACHE_HOME=$TMP/cache

train() { # train RANKS DIR overrides...
  local launch=()
  [ "$1" = 1 ] || launch=(mpi "$1")
  "${launch[@]}" "$FLEXION" train "$here/tiny.yaml" "data.train=[lines:$TMP/corpus.txt]" runtime.threads=1 train.eval_interval=0 \
    checkpoint.dir="$TMP/$2" "${@:3}" > "$TMP/$2.log" 2>&1 || { tail -n 3 "$TMP/$2.log"; return 1; }
}

each_variant() { # each_variant COMMAND: with a name and its overrides
  local file name p options count=0
  for file in "$FX_SOURCE_DIR"/configs/attention/*.yaml; do
    name=$(basename "$file" .yaml)
    count=$((count + 1))
    options=("attention.variant=$name")
    for p in ${params[$name]-}; do options+=("attention.params.$p"); done
    "$1" "$name" "${options[@]}"
  done
  check "all variants were there" test $count -ge 20
}
