#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flexion's attention of a sequence that GPUs share beside PyTorch's context_parallel, forward and backward, in one run.

Causal, bfloat16, one sample, 32 heads of 128. flexion's figures come from `flexion bench context`, by both exchanges;
PyTorch's from cuDNN's scaled_dot_product_attention, alone and under context_parallel with both of its rotate methods.
Each side's efficiency is its own time on one GPU over N times that on N. TFLOP/s a GPU count visible pairs, a backward
2.5 forwards. Rounds alternate between the two; figures are medians over rounds. Packed documents of 2,000 tokens at the
longest length are flexion's alone: context_parallel takes no mask.

  python3 tests/bench/context_torch.py [--flexion build/flexion] [--configs configs/models] [--ranks 2] [--rounds 3]
                                       [--steps 7] [--lengths 16384,65536]
"""
import argparse
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADS, HEAD_DIM, DOCUMENTS = 32, 128, 2000
ROTATE = ("alltoall", "allgather")
EXCHANGES = ("ring", "allgather")
SPAN_MS, MOST_REPEATS = 1000, 1000  # of a timed step, as in bench context


# ---- PyTorch: this file again, a process a GPU ----

def timed(torch, dist, run, steps):
    """Milliseconds of one run on the slowest rank, median over steps of several runs back to back."""
    def step(repeats):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeats):
            run()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) / repeats], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.item()

    for _ in range(2):
        step(1)
    repeats = min(max(math.ceil(SPAN_MS / step(1)), 1), MOST_REPEATS)
    return statistics.median(step(repeats) for _ in range(steps))


def torch_rank(rank, ranks, length, steps, folder):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cuda", (ranks,))
    figures = {}

    def operands():
        torch.manual_seed(0)
        return [torch.randn(1, HEADS, length, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def attend(q, k, v, dout):
        q.grad = k.grad = v.grad = None
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if not dout:
            dout.append(torch.randn_like(out))
        out.backward(dout[0])

    def measure(q, k, v):
        for x in (q, k, v):
            x.requires_grad_()
        dout = []
        return timed(torch, dist, lambda: attend(q, k, v, dout), steps)

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        figures["single"] = measure(*operands())
        for method in ROTATE:
            set_rotate_method(method)
            q, k, v = operands()
            with context_parallel(mesh, buffers=(q, k, v), buffer_seq_dims=(2, 2, 2), no_restore_buffers={q, k, v}):
                figures[method] = measure(q, k, v)
    if rank == 0:
        version = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}"
        pathlib.Path(folder, "figures.json").write_text(json.dumps({"ms": figures, "version": version}))
    dist.destroy_process_group()


def torch_side(ranks, length, steps, folder):
    import torch.multiprocessing

    torch.multiprocessing.spawn(torch_rank, (ranks, length, steps, folder), ranks)


# ---- both sides from here ----

def finished(command, limit):
    """Standard output of a command; all its processes end with it."""
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = run.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()
        raise RuntimeError(f"not finished within {limit} s") from None
    if run.returncode != 0:
        lines = [line for line in err.splitlines() if line.strip()]
        said = [line for line in lines if line.startswith("flexion: ")] or lines[-1:] or [f"code {run.returncode}"]
        raise RuntimeError(said[0])
    return out


def tflops(pairs, ranks, ms):
    return 14e-9 * pairs * HEADS * HEAD_DIM / ranks / ms


def flexion_rows(args, length, exchange, documents=None):
    overrides = (f"model.num_attention_heads={HEADS}", f"model.num_key_value_heads={HEADS}", f"model.head_dim={HEAD_DIM}",
                 f"parallel.context_exchange={exchange}", f"attention.variant={'document_causal' if documents else 'causal'}")
    options = ("--length", str(length), "--steps", str(args.steps), "--json")
    options += ("--documents", str(documents)) if documents else ()
    command = ("mpirun", "-np", str(args.ranks), "--bind-to", "none", args.flexion, "bench", "context",
               str(pathlib.Path(args.configs, "llama-1b.yaml")), *overrides, *options)
    r = json.loads(finished(command, args.limit).splitlines()[-1])
    name = f"flexion {exchange}" + (f", documents of {documents}" if documents else "")
    print(f"T {length} {name}: one {r['single_ms']:.2f} ms, shared {r['shared_ms']:.2f} ms, imbalance {r['imbalance']:.4f}, "
          f"difference {r['difference']:.1e}, {r['device']}, {r['transport']}", flush=True)
    return {name: (r["single_ms"], r["shared_ms"], r["visible_pairs"])}


def torch_rows(args, length):
    with tempfile.TemporaryDirectory() as folder:
        finished((sys.executable, "-u", __file__, "--torch-side", folder, "--lengths", str(length), "--ranks", str(args.ranks),
                  "--steps", str(args.steps)), args.limit)
        result = json.loads(pathlib.Path(folder, "figures.json").read_text())
    ms, pairs = result["ms"], length * (length + 1) / 2
    print(f"T {length} {result['version']}: " + ", ".join(f"{name} {value:.2f} ms" for name, value in ms.items()), flush=True)
    return {f"PyTorch {method}": (ms["single"], ms[method], pairs) for method in ROTATE}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flexion", default=str(ROOT / "build/flexion"))
    parser.add_argument("--configs", default=str(ROOT / "configs/models"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--lengths", default="16384,65536")
    parser.add_argument("--limit", type=int, default=180, help="seconds that one run may take")
    parser.add_argument("--torch-side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.torch_side:
        torch_side(args.ranks, lengths[0], args.steps, args.torch_side)
        return
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    runs = []
    for length in lengths:
        runs += [(length, lambda length=length, e=e: flexion_rows(args, length, e)) for e in EXCHANGES]
        runs.append((length, lambda length=length: torch_rows(args, length)))
    runs += [(lengths[-1], lambda e=e: flexion_rows(args, lengths[-1], e, DOCUMENTS)) for e in EXCHANGES]
    figures = {}
    for _ in range(args.rounds):
        for length, run in runs:
            try:
                for name, row in run().items():
                    figures.setdefault((length, name), []).append(row)
            except (RuntimeError, OSError) as error:
                print(f"T {length}: {error}", flush=True)
    print(f"\n{'T':>6} {'':32} {'one ms':>9} {'shared ms':>9} {'TFLOP/s a GPU':>14} {'efficiency':>10}   {args.ranks} ranks")
    for (length, name), rows in figures.items():
        one, shared = (statistics.median(row[i] for row in rows) for i in range(2))
        print(f"{length:6} {name:32} {one:9.2f} {shared:9.2f} {tflops(rows[0][2], args.ranks, shared):14.1f} "
              f"{one / (args.ranks * shared):10.3f}", flush=True)


if __name__ == "__main__":
    main()
