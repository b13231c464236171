#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flexion's attention beside PyTorch's scaled_dot_product_attention on the CPU, float32, in one run.

Rounds alternate between the two, a few short runs each, so that what disturbs the machine disturbs both; figures are
medians over rounds. PyTorch gets contiguous [B, H, S, D] tensors, and for documents the dense mask that it needs, as bool
or as float, whichever is faster; flexion reads views of a fused projection, as a training step does. Both see the same
documents: flexion's are made up from a seed, and made here again.

  python3 tests/bench/attention_torch.py [--flexion build/flexion] [--rounds 7]
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORD = (1 << 64) - 1


def uniform_at(state):
    """The next number in (0, 1] of core/bench/synthetic.c, and the state after it."""
    state = state + 0x9E3779B97F4A7C15 & WORD
    z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return ((z ^ z >> 31) >> 11) * 2.0**-53 + 2.0**-53, state


def document_starts(length, mean, seed):
    starts, start, state = [], 0, seed
    while start < length:
        number, state = uniform_at(state)
        end = min(start + 1 + int(-math.log(number) * (mean - 0.5)), length)
        starts += [start] * (end - start)
        start = end
    return starts


def run_flexion(args, variant, documents):
    command = [args.flexion, "bench", "attention", str(ROOT / "configs/models/gpt2-124m.yaml"),
               f"model.num_attention_heads={args.heads}", f"model.num_key_value_heads={args.heads}",
               f"model.head_dim={args.dim}", f"runtime.threads={args.threads}", f"attention.variant={variant}",
               "--length", str(args.length), "--seed", str(args.seed), "--steps", str(args.steps), "--json"]
    if documents:
        command += ["--documents", str(documents)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


class Torch:
    """One case: tensors, mask, and medians of a few runs."""

    def __init__(self, args, documents):
        import torch
        self.torch, self.args = torch, args
        torch.set_num_threads(args.threads)
        torch.manual_seed(1)
        shape = (1, args.heads, args.length, args.dim)
        self.q, self.k, self.v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        self.dout = torch.randn(shape)
        self.masks = [None]
        self.pairs = args.length * (args.length + 1) // 2
        if documents:
            start = torch.tensor(document_starts(args.length, documents, args.seed))
            at = torch.arange(args.length)
            sees = (at[None, :] <= at[:, None]) & (at[None, :] >= start[:, None])
            self.pairs = int(sees.sum())
            added = torch.zeros(args.length, args.length).masked_fill(~sees, -math.inf)
            self.masks = [sees, added]

    def once(self, mask):
        attend = self.torch.nn.functional.scaled_dot_product_attention
        for x in (self.q, self.k, self.v):
            x.grad = None
        begin = time.perf_counter()
        out = attend(self.q, self.k, self.v, attn_mask=mask, is_causal=mask is None)
        middle = time.perf_counter()
        out.backward(self.dout)
        return 1e3 * (middle - begin), 1e3 * (time.perf_counter() - middle)

    def run(self):
        best = None
        for mask in self.masks:
            self.once(mask)
            times = [self.once(mask) for _ in range(self.args.steps)]
            medians = [statistics.median(t[i] for t in times) for i in range(2)]
            best = medians if best is None else [min(a, b) for a, b in zip(best, medians)]
        return best


def compare(args, name, variant, documents):
    other = Torch(args, documents)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run_flexion(args, variant, documents))
        theirs.append(other.run())
    if ours[0]["visible_pairs"] != other.pairs:
        raise SystemExit(f"{name}: flexion sees {ours[0]['visible_pairs']} pairs, PyTorch {other.pairs}")
    row = {"case": name, "visible_pairs": other.pairs}
    for i, what in enumerate(("forward", "backward")):
        mine = [r[f"{what}_ms"] for r in ours]
        his = [t[i] for t in theirs]
        ratios = sorted(b / a for a, b in zip(mine, his))
        row[f"{what}_ms"] = statistics.median(mine)
        row[f"{what}_torch_ms"] = statistics.median(his)
        row[f"{what}_ratio"] = statistics.median(ratios)
        row[f"{what}_of_gemm"] = statistics.median(r[f"{what}_of_gemm"] for r in ours)
        print(f"{name:10} {what:9} flexion {row[f'{what}_ms']:9.2f} ms  torch {row[f'{what}_torch_ms']:9.2f} ms  "
              f"{row[f'{what}_ratio']:6.2f} x ({ratios[0]:.2f}-{ratios[-1]:.2f})  "
              f"{100 * row[f'{what}_of_gemm']:5.1f}% of the product's rate")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flexion", default=str(ROOT / "build/flexion"))
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--documents", type=int, default=1000, help="tokens a document has on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="timed runs a round")
    args = parser.parse_args()
    rows = [compare(args, "causal", "causal", 0),
            compare(args, "documents", "document_causal", args.documents)]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
