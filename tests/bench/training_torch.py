#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flexion's training step beside PyTorch's on one GPU, bfloat16, in one run: forward, backward, clip, fused AdamW.

The two alternate, so that what the GPU's clock does it does to both; figures are medians over rounds. PyTorch trains the
same shapes through torch.compile under autocast, with scaled_dot_product_attention (cuDNN or FlashAttention, whichever it
takes). Random tokens on both sides.

  python3 tests/bench/training_torch.py [--flexion build/flexion] [--rounds 3] [--steps 20] [--eager] [MODEL...]
MODEL: gpt2-124m (B=32, T=1024), llama-1b (B=4, T=4096). Prints a table, and one JSON object a model before it.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    "gpt2-124m": dict(layers=12, width=768, heads=12, kv_heads=12, ffn=3072, vocab=50304, T=1024, B=32, llama=False),
    "llama-1b": dict(layers=22, width=2048, heads=32, kv_heads=4, ffn=5632, vocab=32000, T=4096, B=4, llama=True),
}


def build(torch, c):
    """The model as a function of (tokens, targets) -> loss, and its parameters."""
    nn, F = torch.nn, torch.nn.functional
    head = c["width"] // c["heads"]
    norm = nn.RMSNorm if c["llama"] else nn.LayerNorm

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width, bias = c["width"], not c["llama"]
            self.norm1, self.norm2 = norm(width), norm(width)
            self.qkv = nn.Linear(width, (c["heads"] + 2 * c["kv_heads"]) * head, bias=bias)
            self.proj = nn.Linear(width, width, bias=bias)
            self.up = nn.Linear(width, c["ffn"] * (2 if c["llama"] else 1), bias=bias)
            self.down = nn.Linear(c["ffn"], width, bias=bias)

        def forward(self, x, cosine, sine):
            B, T, width = x.shape
            parts = self.qkv(self.norm1(x)).split([c["heads"] * head] + 2 * [c["kv_heads"] * head], dim=-1)
            q, k, v = (p.view(B, T, -1, head).transpose(1, 2) for p in parts)
            if c["llama"]:
                q, k = (self.turn(t, cosine, sine) for t in (q, k))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=c["heads"] != c["kv_heads"])
            x = x + self.proj(a.transpose(1, 2).reshape(B, T, width))
            h = self.up(self.norm2(x))
            if c["llama"]:
                gate, value = h.chunk(2, dim=-1)
                h = F.silu(gate) * value
            else:
                h = F.gelu(h, approximate="tanh")
            return x + self.down(h)

        @staticmethod
        def turn(t, cosine, sine):
            low, high = t.chunk(2, dim=-1)
            return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).type_as(t)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(c["vocab"], c["width"])
            self.position = None if c["llama"] else nn.Embedding(c["T"], c["width"])
            self.layers = nn.ModuleList(Layer() for _ in range(c["layers"]))
            self.norm = norm(c["width"])
            self.head = nn.Linear(c["width"], c["vocab"], bias=False)
            if not c["llama"]:
                self.head.weight = self.embed.weight
            frequency = 10000.0 ** (-torch.arange(0, head, 2) / head)
            angle = torch.outer(torch.arange(c["T"]), frequency)
            self.register_buffer("cosine", angle.cos())
            self.register_buffer("sine", angle.sin())
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            if self.position is not None:
                x = x + self.position.weight[: tokens.shape[1]]
            for layer in self.layers:
                x = layer(x, self.cosine, self.sine)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    return Model().cuda()


class Torch:
    def __init__(self, c, eager):
        import torch

        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        self.torch, self.model = torch, build(torch, c)
        self.step_function = self.model if eager else torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.tokens = torch.randint(0, c["vocab"], (c["B"], c["T"]), device="cuda")
        self.targets = torch.randint(0, c["vocab"], (c["B"], c["T"]), device="cuda")
        begin = time.perf_counter()
        self.step()
        torch.cuda.synchronize()
        self.first_s = time.perf_counter() - begin
        for _ in range(4):
            self.step()
        torch.cuda.synchronize()

    def step(self):
        torch = self.torch
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.step_function(self.tokens, self.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def measure(self, steps):
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            self.step()
            self.torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        return times


def flexion(binary, name, c, steps):
    command = [binary, "bench", "step", str(ROOT / "configs/models" / f"{name}.yaml"), "runtime.device=cuda",
               f"train.micro_batch_size={c['B']}", f"train.global_batch_size={c['B']}", f"train.seq_length={c['T']}",
               "--steps", str(steps), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flexion", default=str(ROOT / "build/flexion"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true", help="PyTorch without torch.compile")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    args = parser.parse_args()
    rows = []
    for name in args.models or MODELS:
        c = MODELS[name]
        other = Torch(c, args.eager)
        ours, theirs, last = [], [], None
        for _ in range(args.rounds):
            theirs += other.measure(args.steps)
            other.torch.cuda.empty_cache()
            last = flexion(args.flexion, name, c, args.steps)
            ours.append(last["step_ms"])
        step, torch_step = statistics.median(ours), statistics.median(theirs)
        tokens = c["B"] * c["T"]
        row = dict(model=name, step_ms=step, torch_step_ms=torch_step, tokens_per_s=1e3 * tokens / step,
                   torch_tokens_per_s=1e3 * tokens / torch_step, ratio=torch_step / step, mfu_percent=last["mfu_percent"],
                   launch_us=last["launch_us"], torch_first_step_s=other.first_s,
                   gpu_excess_percent=100 * (last["gpu_peak_bytes"] / last["gpu_planned_bytes"] - 1))
        print(json.dumps({k: round(v, 4) if isinstance(v, float) and math.isfinite(v) else v for k, v in row.items()}),
              flush=True)
        rows.append(row)
        del other
    print(f"{'model':<12} {'flexion':>10} {'PyTorch':>10} {'ratio':>7} {'MFU':>7}   tokens/s")
    for r in rows:
        print(f"{r['model']:<12} {r['tokens_per_s']:>10.0f} {r['torch_tokens_per_s']:>10.0f} {r['ratio']:>6.3f}x "
              f"{r['mfu_percent'] or 0:>6.1f}%")


main()
