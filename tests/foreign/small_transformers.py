"""Transformers in a few lines: like GPT-2 and like Llama, with attention product by product or as torch's function."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOKENS, WIDTH, HEADS, VOCABULARY, LAYERS = 12, 16, 4, 23, 2


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of (batch, heads, tokens, features), with heads of keys for several heads of queries."""
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(3) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as one operation."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])


class GPTBlock(nn.Module):
    """Attention and two linear layers, each after a layer normalisation."""

    def __init__(self, attend) -> None:
        super().__init__()
        self.attend = attend
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, 2)
        q, k, v = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in parts)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LlamaBlock(nn.Module):
    """Rotated queries and keys, two heads of queries for each of keys, and SwiGLU, each after an RMS normalisation."""

    def __init__(self, attend) -> None:
        super().__init__()
        self.attend = attend
        self.norm, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.q, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y, each = self.norm(x), WIDTH // HEADS
        q, k, v = (part(y).unflatten(2, (-1, each)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.out(self.attend(rotated(q), rotated(k), v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor) -> Tensor:
    """Rotary embedding of (batch, heads, tokens, features)."""
    half = x.shape[-1] // 2
    speeds = 1e4 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[2], device=x.device)[:, None] * speeds
    left, right = x.chunk(2, 3)
    return torch.cat([left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], 3)


class Transformer(nn.Module):
    """Logits (batch, vocabulary, tokens) of tokens (batch, tokens), which may be floats. `again`: recompute blocks."""

    def __init__(self, block: type[nn.Module], attend, again: bool = False, reentrant: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(block(attend) for _ in range(LAYERS))
        self.norm, self.head, self.again = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False), again
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x.long()) + self.places(torch.arange(TOKENS, device=x.device))
        for block in self.blocks:
            y = checkpoint(block, y, use_reentrant=self.reentrant) if self.again else block(y)
        return self.head(self.norm(y)).transpose(1, 2)
