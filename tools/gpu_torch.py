#!/usr/bin/env python3
"""One training step of PyTorch AMP on the GPU, for tools/gpu_check.sh.

    gpu_torch.py mlp|gpt2|bert BATCH

The networks are those of tests/gpu/make_model.c. float16 autocast, GradScaler and
fused AdamW, eager; the median of five timings of as many steps as fill 50 ms. The last line tells it.
"""
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attention(self, x):
        b, t, w = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(w, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, w))

    def forward(self, x):
        if self.causal:  # GPT-2: layer norm first
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Net(nn.Module):
    def __init__(self, causal, words, tokens, layers=12, width=768, heads=12):
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        if not self.causal:
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        if self.causal:
            return F.linear(self.norm(x), self.words.weight)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def make(kind, batch):
    """Network, its input and its labels."""
    device = "cuda"
    if kind == "mlp":
        net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        return net.to(device), torch.rand(batch, 784, device=device), torch.randint(10, (batch,), device=device)
    words, tokens = (50257, 256) if kind == "gpt2" else (30522, 128)
    net = Net(kind == "gpt2", words, tokens)
    ids = torch.randint(words, (batch, tokens), device=device)
    labels = torch.randint(words, (batch * tokens,), device=device) if kind == "gpt2" else torch.randint(2, (batch,), device=device)
    return net.to(device), ids, labels


def main():
    kind, batch = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(1)
    net, x, labels = make(kind, batch)
    optimizer = torch.optim.AdamW((p for p in net.parameters()), lr=1e-4, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            logits = net(x)
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def timing(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    timing(3)
    steps = max(1, min(200, int(0.05 / timing(1))))
    seconds = statistics.median(timing(steps) for _ in range(5))
    rows = x.numel() if kind != "mlp" else batch
    print(f"{seconds * 1e3:.3f} ms a step, {rows / seconds:.0f} a second, PyTorch {torch.__version__} eager, fp16")


if __name__ == "__main__":
    main()
