#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values of every attention variant from an independent implementation: PyTorch FlexAttention, float64, eager.

usage: python3 make_flex.py OUTPUT_DIRECTORY      (needs: torch >= 2.6, numpy, a GPU: on CPUs FlexAttention has no backward)

One problem (two packed samples, GQA, scores of a standard deviation of about 3) under each variant: out, the natural
log-sum-exp, and the gradients of q, k, v and learnable parameters for given gradients of out and lse. Masks and scores
are written here from their descriptions, as mask_mod and score_mod functions. FlexAttention has no sinks: a sink s makes
lse' = logaddexp(lse, s) and out' = out exp(lse - lse').
flex.bin holds little-endian float32 and int32 tensors one after another, flex.txt one line a tensor: name dtype
offset-in-bytes dims...
"""
import math, os, sys
import numpy as np, torch
from torch.nn.attention.flex_attention import flex_attention, create_block_mask

B, H, K, T, D = 2, 2, 1, 28, 8
LENGTHS = [[9, 1, 18], [13, 2, 13]]
TURN_TOKEN = 10

rng = np.random.default_rng(5)
doc_start = np.zeros((B, T), np.int64); doc_end = np.zeros((B, T), np.int64)
for b in range(B):
    at = 0
    for n in LENGTHS[b]:
        doc_start[b, at:at + n], doc_end[b, at:at + n] = at, at + n
        at += n
    assert at == T
tokens = rng.integers(0, 60, (B, T)); tokens[rng.random((B, T)) < 0.25] = TURN_TOKEN
turn = np.zeros((B, T), np.int64)
for b in range(B):
    for t in range(T):
        if t > doc_start[b, t]:
            turn[b, t] = turn[b, t - 1] + (tokens[b, t - 1] == TURN_TOKEN)
gpu = lambda x: torch.from_numpy(x).to("cuda")
START, END, TURN = (gpu(x) for x in (doc_start, doc_end, turn))
ROLE = TURN % 2

causal = lambda b, h, q, k: k <= q
same = lambda b, q, k: START[b, q] == START[b, k]
def window(w): return lambda b, h, q, k: (k <= q) & (q - k < w)
def half(x): return x % (T // 2)
def block_diffusion(n):
    def mask(b, h, q, k):
        q_noised, k_noised = q < T // 2, k < T // 2
        bq, bk = half(q) // n, half(k) // n
        return ((q_noised == k_noised) & (bq == bk)) | (~k_noised & (bk < bq))
    return mask
def alibi(score, b, h, q, k): return score - 2.0 ** (-8.0 * (h + 1) / H) * (q - k)
def softcap(cap): return lambda score, b, h, q, k: cap * torch.tanh(score / cap)

def t5_bucket(distance, buckets, longest):
    exact = buckets // 2
    far = exact + (torch.log(distance.clamp(min=1).double() / exact) / math.log(longest / exact) * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1)).clamp(min=0)

# name: (mask_mod, score_mod, learnable shape)
def variants():
    v = {
        "full": (None, None),
        "causal": (causal, None),
        "sliding_window": (window(5), None),
        "dilated_window": (lambda b, h, q, k: (k <= q) & (q - k < 4 * 3) & ((q - k) % 3 == 0), None),
        "chunked": (lambda b, h, q, k: (k <= q) & (q // 6 == k // 6), None),
        "prefix_lm": (lambda b, h, q, k: (k <= q) | (k < 5), None),
        "document": (lambda b, h, q, k: same(b, q, k), None),
        "document_causal": (lambda b, h, q, k: same(b, q, k) & (k <= q), None),
        "document_prefix": (lambda b, h, q, k: same(b, q, k) & ((k <= q) | (k - START[b, q] < 4)), None),
        "global_sliding": (lambda b, h, q, k: ((q - k).abs() <= 3) | (q < 2) | (k < 2), None),
        "shared_prefix": (lambda b, h, q, k: (k <= q) & ((k < 4) | same(b, q, k)), None),
        "neighbourhood_2d": (lambda b, h, q, k: ((q // 6 - k // 6).abs() <= 1) & ((q % 6 - k % 6).abs() <= 1), None),
        "block_diffusion": (block_diffusion(4), None),
        "conversation": (lambda b, h, q, k: same(b, q, k) & (k <= q) & ((ROLE[b, k] == 0) | (TURN[b, q] - TURN[b, k] <= 1)), None),
        "soft_sliding_window": (causal, lambda s, b, h, q, k: s - 0.25 * (q - k - 4).clamp(min=0)),
        "alibi": (causal, alibi),
        "softcap": (causal, softcap(2.5)),
        "temperature": (causal, lambda s, b, h, q, k: s / 1.7),
        "window_and_document": (lambda b, h, q, k: window(5)(b, h, q, k) & same(b, q, k), None),
        "not_causal": (lambda b, h, q, k: k > q, None),
        "any_of_two": (lambda b, h, q, k: window(3)(b, h, q, k) | (k < 2), None),
        "softcap_alibi_document": (lambda b, h, q, k: same(b, q, k) & (k <= q),
                                   lambda s, b, h, q, k: alibi(softcap(2.5)(s, b, h, q, k), b, h, q, k)),
    }
    return v

class Writer:
    def __init__(self, path):
        self.bin, self.txt, self.offset = open(path + ".bin", "wb"), open(path + ".txt", "w"), 0
    def add(self, name, array, kind=np.float32):
        if torch.is_tensor(array): array = array.cpu().numpy()
        array = np.ascontiguousarray(array, kind)
        self.bin.write(array.tobytes())
        self.txt.write(" ".join([name, array.dtype.name, str(self.offset)] + [str(d) for d in array.shape]) + "\n")
        self.offset += array.nbytes

def draw(*shape, sigma=1.0):
    return rng.normal(0, sigma, shape).astype(np.float32)

def main(path):
    out = Writer(os.path.join(path, "flex"))
    inputs = {"q": draw(B, T, H, D, sigma=3.0), "k": draw(B, T, K, D), "v": draw(B, T, K, D),
              "dout": draw(B, T, H, D), "dlse": draw(B, H, T)}
    table, sink = draw(H, 8), draw(H)
    for name, x in inputs.items(): out.add(name, x)
    out.add("table", table); out.add("sink", sink)
    for name, x in (("doc_start", doc_start), ("doc_end", doc_end), ("tokens", tokens)): out.add(name, x, np.int32)
    def solve(name, mask, score, learnt=None, sinks=None):
        q, k, v = (gpu(inputs[n]).double().transpose(1, 2).requires_grad_() for n in "qkv")
        block = None if mask is None else create_block_mask(mask, B, H, T, T, device="cuda")
        o, lse = flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=True, return_lse=True)
        if sinks is not None:
            joined = torch.logaddexp(lse, sinks[None, :, None])
            o, lse = o * torch.exp(lse - joined)[..., None], joined
        empty = torch.isinf(lse)
        wanted = [q, k, v] + [x for x in (learnt, sinks) if x is not None]
        dout = gpu(inputs["dout"]).double().transpose(1, 2)
        loss = (o * dout).sum() + (torch.where(empty, 0.0, lse) * gpu(inputs["dlse"]).double()).sum()
        grads = [torch.nan_to_num(g) for g in torch.autograd.grad(loss, wanted)]
        out.add(f"{name}/out", o.detach().transpose(1, 2)); out.add(f"{name}/lse", lse.detach())
        for n, g in zip("qkv", grads): out.add(f"{name}/d{n}", g.transpose(1, 2))
        if learnt is not None: out.add(f"{name}/dtable", grads[3])
        if sinks is not None: out.add(f"{name}/dsink", grads[-1])
    for name, (mask, score) in variants().items(): solve(name, mask, score)
    learnt = gpu(table).double().requires_grad_()
    solve("t5_bias", causal, lambda s, b, h, q, k: s + learnt[h, t5_bucket(q - k, 8, 16)], learnt=learnt)
    solve("sinks", causal, None, sinks=gpu(sink).double().requires_grad_())
    solve("sinks_sparse", lambda b, h, q, k: k > q, None, sinks=gpu(sink).double().requires_grad_())

main(sys.argv[1])
