#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What TAB offers: the completion function is called as bash calls it, and its answers are compared with the binary's own.
source "$(dirname "$0")/setup.bash"
source "$FX_SOURCE_DIR/launch/completion.bash"
cd "$TMP" || exit 1
mkdir -p configs/models runs
touch configs/a.yaml configs/b.txt notes.txt run.yaml

# offered WORD...: the candidates for the last word, sorted, on one line. `=` is a word of its own, as in COMP_WORDBREAKS.
offered() {
  COMP_WORDS=("$FLEXION" "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _flexion "$FLEXION" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  printf '%s\n' "${COMPREPLY[@]}" | sort | xargs
}
offers() { # offers EXPECTED WORD...
  local want=$1 got
  shift
  got=$(offered "$@")
  [ "$got" = "$want" ] || { echo "flexion $*: expected \"$want\", got \"$got\""; return 1; }
}

check "a command by its first letters" offers "generate" gen
check "several commands" offers "config" con
check "every command of the binary" offers "$("$FLEXION" --help | sed -nE 's/^  ([a-z]+) .*/\1/p' | cat - <(printf '%s\n' --help --version) | sort | xargs)" ''
check "options of the binary itself" offers "--help --version" --
check "actions of config" offers "check show" config ''
check "actions of ckpt" offers "diff inspect verify" ckpt ''
check "one action" offers "verify" ckpt v
check "options of train" offers "--json --trace --trace-step" train --
check "actions of bench" offers "attention comm context gemm step" bench ''
check "options of bench" offers "--help --json --snapshot --steps" bench step --
check "options of bench attention" offers "--documents --dtype" bench attention --d
check "options of bench context" offers "--seed --steps" bench context --s
check "options of kernel" offers "--compile" kernel run.yaml --c
check "options of generate" offers "--temperature --tokens --top-k --top-p" generate --t
check "--keys of config show" offers "--keys" config show --k
check "configurations and folders, no other files" offers "configs/ run.yaml runs/" train ''
check "configurations for kernel" offers "configs/ run.yaml runs/" kernel ''
check "configurations for plan" offers "configs/ run.yaml runs/" plan ''
check "options of plan" offers "--gpu" plan run.yaml --g
check "configurations for doctor" offers "configs/ run.yaml runs/" doctor ''
check "options of doctor" offers "--ranks" doctor run.yaml --r
check "a configuration in a folder" offers "configs/a.yaml configs/models/" train configs/
check "folders for generate" offers "configs runs" generate ''
check "keys after a configuration" offers "train.iters=" train run.yaml train.it
check "keys of one section" offers "parallel.bucket_elements= parallel.context= parallel.context_exchange= parallel.gather_again= parallel.sequence= parallel.tensor= parallel.tensor_pieces= parallel.watchdog= parallel.zero=" config show run.yaml parallel.
check "words of a key" offers "layernorm rmsnorm" train run.yaml model.norm =
check "words of a key, begun" offers "rmsnorm" train run.yaml model.norm = r
check "a key that takes no words offers files" offers "run.yaml runs" train run.yaml data.train = ru
check "a key that does not exist" offers "" train run.yaml train.itrs
check "a command that does not exist" offers "" trian x

# Every key that a resolved configuration prints is offered, and every key offered is one that it can set.
keys() { _flexion_keys "$FLEXION" | sed 's/=$//' | sort; }
printed() { "$FLEXION" config show "$FX_SOURCE_DIR/tests/integration/tiny.yaml" | sed -nE '/^[a-z]+:$/{s/://;h}; /^  [a-z_]+:/{s/^  ([a-z_]+):.*/\1/;G;s/(.*)\n(.*)/\2.\1/p}' | sort; }
same_keys() { [ "$(keys | wc -l)" -gt 40 ] && diff <(keys) <(printed); }
check "keys are those of the configuration" same_keys
check "the function is registered" bash -c "source '$FX_SOURCE_DIR/launch/completion.bash'; complete -p flexion | grep -q _flexion"
finish
