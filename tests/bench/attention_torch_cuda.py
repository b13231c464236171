#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flexion's attention on a GPU beside PyTorch's, causal, bfloat16, at two training shapes, in one run.

flexion's figures come from bench-cuda-attention; PyTorch's are cuDNN and FlashAttention-2 through
scaled_dot_product_attention and compiled FlexAttention, on contiguous [B, H, T, D] tensors, timed as replays of CUDA
graphs; a backward is forward and backward less the forward. TFLOP/s count visible pairs, a backward 2.5 forwards.
Rounds alternate between the two; figures are medians over rounds.

  python3 tests/bench/attention_torch_cuda.py [--bench build/tests/bench-cuda-attention] [--rounds 3]
"""
import argparse
import pathlib
import re
import statistics
import subprocess

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = ((32, 1024, 12, 12, 64), (4, 4096, 32, 4, 128))


def median_ms(run, times=20):
    """Of replays of a graph of one run."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    spans = []
    for _ in range(times + 3):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end))
    del kept
    return statistics.median(spans[3:])


def backends(T):
    def fused(backend):
        def attend(q, k, v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return attend

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, T, T, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return {"cuDNN": fused(SDPBackend.CUDNN_ATTENTION), "FA2": fused(SDPBackend.FLASH_ATTENTION),
            "FlexAttention": lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])}


def torch_figures(attend, shape):
    B, T, H, K, D = shape
    q, k, v = (torch.randn(B, heads, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for heads in (H, K, K))
    flops = 4 * B * H * D * T * (T + 1) / 2
    dout = torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        forward = median_ms(lambda: attend(q, k, v))
    both = median_ms(lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), dout))
    return flops / forward / 1e9, 2.5 * flops / (both - forward) / 1e9


def flexion_figures(bench, shape):
    done = subprocess.run([bench, *map(str, shape)], check=True, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if "picked" in line)
    return [float(x) for x in re.findall(r"([\d.]+) TFLOP/s", line)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default=str(ROOT / "build/tests/bench-cuda-attention"))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("PyTorch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), torch.cuda.get_device_name())
    for shape in SHAPES:
        runs = {"flexion": lambda shape=shape: flexion_figures(args.bench, shape)}
        for name, attend in backends(shape[1]).items():
            runs[name] = lambda attend=attend, shape=shape: torch_figures(attend, shape)
        figures = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, run in runs.items():
                try:
                    figures[name].append(run())
                except RuntimeError as error:
                    print(f"{name}: {str(error).splitlines()[0]}")
        for name, rows in figures.items():
            if rows:
                forward, backward = (statistics.median(row[i] for row in rows) for i in range(2))
                print("B %d T %d H %d/%d D %d" % shape, f"{name:14} {forward:6.0f} / {backward:.0f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
