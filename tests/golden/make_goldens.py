#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values from an independent implementation: Hugging Face transformers on PyTorch, float32, CPU.

usage: python3 make_goldens.py OUTPUT_DIRECTORY      (needs: torch, transformers, numpy)

For a tiny GQA Llama and a tiny GPT-2: weights, logits, loss, every gradient, and the weights after three AdamW steps
(clip 1.0, decay on matrices only; eps 1e-4, because Adam divides a gradient by its own size: at eps 1e-8 the rounding noise
of a gradient that is mathematically zero, as of GPT-2's key bias, would become a full step in a random direction). Each model becomes NAME.bin (little-endian float32 / int32, one tensor after
another) and NAME.txt (one line a tensor: name dtype offset-in-bytes dims...). Weights are drawn large enough that
logits are spread (sigma about 1): at tiny weights every mask and every bug gives the same loss.
"""
import os, sys
import numpy as np, torch, transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
B, T, V = 2, 13, 61

def llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="eager"))

def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=16, n_embd=32, n_layer=2, n_head=4, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, attn_implementation="eager"))

class Writer:
    def __init__(self, path):
        self.bin, self.txt, self.offset = open(path + ".bin", "wb"), open(path + ".txt", "w"), 0
    def add(self, name, array):
        array = np.ascontiguousarray(array)
        kind = {"float32": "float32", "int32": "int32"}[str(array.dtype)]
        self.bin.write(array.tobytes())
        self.txt.write(" ".join([name, kind, str(self.offset)] + [str(d) for d in array.shape]) + "\n")
        self.offset += array.nbytes

def hf_name(name):
    return name[len("transformer."):] if name.startswith("transformer.") else name

def make(model, path):
    rng = np.random.default_rng(7)
    model = model.float().eval()
    out = Writer(path)
    params = {hf_name(n): p for n, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in params.items():
            if p.dim() == 2:
                p.copy_(torch.from_numpy(rng.normal(0, 0.18, tuple(p.shape)).astype(np.float32)))
            elif name.endswith("bias"):
                p.copy_(torch.from_numpy(rng.normal(0, 0.1, tuple(p.shape)).astype(np.float32)))
            else:
                p.copy_(torch.from_numpy(rng.normal(1, 0.1, tuple(p.shape)).astype(np.float32)))
    tokens = rng.integers(0, V, (B, T))
    targets = rng.integers(0, V, (B, T))
    targets[0, 3] = targets[1, 12] = targets[1, 0] = -1  # masked: unequal numbers of valid targets
    out.add("tokens", tokens.astype(np.int32))
    out.add("targets", targets.astype(np.int32))
    for name, p in params.items():
        out.add("weight/" + name, p.detach().numpy())
    x, y = torch.from_numpy(tokens), torch.from_numpy(targets).flatten()

    def loss_of():
        logits = model(x).logits
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), y, ignore_index=-1)

    groups = [{"params": [p for p in params.values() if p.dim() == 2], "weight_decay": 0.1},
              {"params": [p for p in params.values() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-4)
    losses, norms = [], []
    for step in range(3):
        optimizer.zero_grad()
        logits, loss = loss_of()
        loss.backward()
        if step == 0:
            out.add("logits", logits.detach().numpy())
            for name, p in params.items():
                out.add("grad/" + name, p.grad.numpy())
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(list(params.values()), 1.0).item())
        optimizer.step()
    out.add("losses", np.array(losses, np.float32))
    out.add("grad_norms", np.array(norms, np.float32))
    for name, p in params.items():
        out.add("after/" + name, p.detach().numpy())
    print(path, "losses", losses, "norms", norms, "torch", torch.__version__, "transformers", transformers.__version__)

os.makedirs(sys.argv[1], exist_ok=True)
make(llama(), os.path.join(sys.argv[1], "tiny_llama"))
make(gpt2(), os.path.join(sys.argv[1], "tiny_gpt2"))
