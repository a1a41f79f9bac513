"""A small transformer with LoRA adapters of peft on its queries and values; all else is frozen."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a layer normalisation, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return features, shape (batch, positions, width)."""
        seen = self.before(x)
        q, k, v = (of(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2) for of in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrower(F.gelu(self.wider(self.between(x))))


class Digits(nn.Module):
    """A transformer that reads an 8x8 digit as 8 rows, with adapters of rank `rank`."""

    def __init__(self, width: int = 64, layers: int = 2, rank: int = 8) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        super().__init__()
        self.rows, self.head = nn.Linear(8, width), nn.Linear(width, 10)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q", "v"]), self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        logits: Tensor = self.head(self.blocks(self.rows(x.reshape(-1, 8, 8))).mean(1))
        return logits
