#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 or Ubuntu 24.04 to a trained model: packages, build, corpus, training on 2 ranks, the loss curve as a
# picture, a sample of generated text.
set -u
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
source launch/packages.bash

usage() {
  cat <<'TEXT'
usage: launch/quickstart.sh [--no-install] [--steps N] [--dir DIR] [PATH] [section.key=value...]

Trains configs/quickstart.yaml on PATH, a file or a folder of plain text (one document a file); without PATH on Perl's
manual, which the package perl-doc brings (9 MB of English).

  --no-install         install no packages (the others are root's or sudo's to install)
  --steps N            train N steps; short for train.iters=N
  --dir DIR            where everything goes (default: runs/quickstart in this tree)
  section.key=value    overrides the configuration, e.g. optimizer.lr=2e-3

FLEXION_BIN names a binary to use; then nothing is built. Exit codes are flexion's: 2 usage or configuration, 3 data,
4 device or communicator, 5 diverged; 1 when packages or build fail.
TEXT
}

fail() { # code sentence
  echo "quickstart.sh: $2" >&2
  exit "$1"
}

from_here() { # a path of the caller's working directory, absolute
  case $1 in /*) echo "$1" ;; *) echo "$here/$1" ;; esac
}

install=yes
path=
dir=$PWD/runs/quickstart
overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=no ;;
    --steps)
      [[ ${2-} =~ ^[1-9][0-9]{0,8}$ ]] || fail 2 "--steps takes a number from 1, got \"${2-}\""
      overrides+=("train.iters=$2")
      shift
      ;;
    --dir)
      [ -n "${2-}" ] || fail 2 "--dir takes a folder"
      dir=$(from_here "$2")
      shift
      ;;
    --help | -h) usage; exit 0 ;;
    -*) fail 2 "there is no option \"$1\"; see launch/quickstart.sh --help" ;;
    *)
      if [[ $1 =~ ^[a-z]+\.[a-z_.]+= ]]; then
        overrides+=("$1")
      else
        [ -z "$path" ] || fail 2 "there are two paths, \"$path\" and \"$1\"; one file or folder is expected"
        [ -e "$(from_here "$1")" ] || fail 3 "$1 does not exist"
        path=$(from_here "$1")
      fi
      ;;
  esac
  shift
done

began=$SECONDS
stage=
stage_began=$SECONDS
timings=()

# Announces a stage and closes the one before.
step() {
  if [ -n "$stage" ]; then timings+=("$stage $((SECONDS - stage_began)) s"); fi
  stage=${1%%:*}
  stage_began=$SECONDS
  [ "$1" = end ] || echo "== $1"
}

build() {
  if [ -n "${FLEXION_BIN-}" ]; then return; fi
  step "build: build/flexion, release"
  mkdir -p build
  { cmake --preset release && cmake --build --preset release --target flexion -j "$(nproc)"; } >build/quickstart.log 2>&1 || {
    tail -20 build/quickstart.log >&2
    fail 1 "flexion does not build; the whole log is build/quickstart.log"
  }
  FLEXION_BIN=$PWD/build/flexion
  export FLEXION_BIN
}

# Perl's manual, one file a document, without the four pages that are not English. Sets `path`.
perl_manual() {
  local file pods=()
  mapfile -t pods < <(dpkg -L perl-doc 2>/dev/null | grep '\.pod$')
  [ ${#pods[@]} -gt 0 ] || pods=(/usr/share/perl/5.*/pod/*.pod)
  path=$dir/corpus
  rm -rf "$path"
  mkdir -p "$path" || fail 3 "$path cannot be made"
  for file in "${pods[@]}"; do
    case $file in */perlcn.pod | */perljp.pod | */perlko.pod | */perltw.pod) continue ;; esac
    [ ! -r "$file" ] || cp "$file" "$path/" || fail 3 "$path cannot be written"
  done
  [ -n "$(ls "$path")" ] || fail 3 "there is no text: install the package perl-doc, or give a file or folder of your own"
}

sample() {
  local prompt=()
  if [ "$manual" = yes ]; then prompt=(--prompt $'=head1 NAME\n\nperl'); fi
  "$FLEXION_BIN" generate "$dir" "${prompt[@]}" --tokens 400 || exit
  echo
}

if [ $install = yes ]; then
  packages=("${BUILD_PACKAGES[@]}" gnuplot-nox)
  [ -n "$path" ] || packages+=(perl-doc)
  install_packages quickstart.sh "${packages[@]}" || exit 1
fi
build

manual=no
if [ -z "$path" ]; then manual=yes; fi
step "corpus: ${path:-"Perl's manual"}"
mkdir -p "$dir" || fail 3 "$dir cannot be made"
[ $manual = no ] || perl_manual
files=$(find -L "$path" -type f ! -path '*/.*' | wc -l)
echo "$files files, $(find -L "$path" -type f ! -path '*/.*' -exec cat {} + | wc -c) bytes in $path"
# One document cannot be held out whole; its last tenth can.
split=documents
if [ "$files" -le 1 ] && [[ $path != *.jsonl ]]; then split=tokens; fi

step "training: configs/quickstart.yaml on 2 ranks"
launch/run.sh -np 2 train configs/quickstart.yaml "data.train=['${path//\'/\'\'}']" "data.split=$split" "checkpoint.dir=$dir" \
  checkpoint.resume=none "${overrides[@]}" || exit

step "plot: $dir/loss.png"
launch/plot_loss.sh "$dir/metrics.jsonl" "$dir/loss.png" || exit

step "sample: flexion generate $dir"
sample

step end
valid=$(sed -nE 's/.*"valid_loss": ?([0-9.]+).*/\1/p' "$dir/metrics.jsonl" | tail -1)
echo "== done in $((SECONDS - began)) s: $(IFS=,; echo "${timings[*]}" | sed 's/,/, /g')"
if [ -n "$valid" ]; then printf 'validation loss  %.4f nats a byte\n' "$valid"; fi
printf '%-16s %s\n' checkpoints "$dir/step_*" metrics "$dir/metrics.jsonl" 'loss curve' "$dir/loss.png"
echo "more text        $FLEXION_BIN generate $dir --prompt 'The '"
