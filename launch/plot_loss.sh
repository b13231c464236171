#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the losses of a run: metrics.jsonl to a PNG, with gnuplot.
set -u

fail() {
  echo "plot_loss.sh: $2" >&2
  exit "$1"
}

[ $# -eq 2 ] || fail 2 "usage: launch/plot_loss.sh METRICS.jsonl PICTURE.png"
[ -r "$1" ] || fail 3 "$1 cannot be read"
command -v gnuplot >/dev/null || fail 2 "gnuplot was not found: install gnuplot-nox"
scratch=$(mktemp -d) || fail 3 "there is no room for scratch files"
trap 'rm -rf "$scratch"' EXIT

# step and loss of the rows that hold one; a loss that is not finite is null and left out.
number='(-?[0-9][0-9.eE+-]*)'
for name in loss valid_loss; do
  sed -nE "s/.*\"step\": ?([0-9]+).*\"$name\": ?$number.*/\1 \2/p" "$1" >"$scratch/$name" || fail 3 "$1 cannot be read"
done
[ -s "$scratch/loss" ] || fail 3 "$1 holds no training loss"

curves="'$scratch/loss' with lines lw 1 lc rgb '#9ec5e8' title 'training, one step'"
# A mean of up to 21 rows, the middle one at its step.
awk '{ x[NR] = $1; y[NR] = $2 }
  END { for (i = 1; i <= NR; i++) {
    half = i - 1 < NR - i ? i - 1 : NR - i; if (half > 10) half = 10
    sum = 0; for (j = i - half; j <= i + half; j++) sum += y[j]
    if (half == 10 || i <= 10) print x[i], sum / (2 * half + 1) } }' "$scratch/loss" >"$scratch/mean"
if [ "$(wc -l <"$scratch/loss")" -ge 40 ]; then
  curves+=", '$scratch/mean' with lines lw 2 lc rgb '#1f77b4' title 'training, mean of 21'"
fi
if [ -s "$scratch/valid_loss" ]; then
  curves+=", '$scratch/valid_loss' with linespoints lw 2 pt 7 ps 1 lc rgb '#d62728' title 'validation'"
fi
gnuplot >"$scratch/log" 2>&1 <<TEXT || fail 1 "gnuplot: $(head -3 "$scratch/log")"
set terminal $(gnuplot -e 'set print "-"; print GPVAL_TERMINALS' | grep -qw pngcairo && echo pngcairo || echo png) size 960,600
set output '$scratch/plot.png'
set xlabel 'step'
set ylabel 'loss, nats a token'
set grid back lt 1 lc rgb '#dddddd'
set key top right
set xrange [0:*]
plot $curves
TEXT
cp "$scratch/plot.png" "$2" || fail 3 "$2 cannot be written"
