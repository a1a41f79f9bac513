"""Modules of a decoder-only transformer, whose attention consists of products that each have a price.

Dimensions: B samples, P positions, E numbers of a token, H heads, D = E / H numbers of a head, V tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_DEVIATION = 0.02  # of the weights at the start; Radford et al., 2018


class Positions(nn.Module):
    """A learned vector for each position, added to the vector of its token."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, width))
        nn.init.normal_(self.weight, std=_DEVIATION)

    def forward(self, x_BPE: Tensor) -> Tensor:
        """Return the sum, (B, P, E). P may be smaller than the number of vectors."""
        return x_BPE + self.weight[: x_BPE.shape[1]]


class CausalAttention(nn.Module):
    """Self-attention in which a position attends to itself and to earlier positions.

    Scores of all pairs of positions are computed, and scores of later positions are then masked, as in the plain
    products of `torch.nn.functional.scaled_dot_product_attention`. The price is the price of these products.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)  # queries, keys, values of all heads, in this order
        self.out = nn.Linear(width, width)
        self.dropout = _dropout(dropout)

    def forward(self, x_BPE: Tensor, later_PP: Tensor) -> Tensor:
        """Return the attention output of each position, (B, P, E). `later_PP`: true where attention is masked."""
        q_BHPD, k_BHPD, v_BHPD = self.qkv(x_BPE).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores_BHPP = (q_BHPD / math.sqrt(q_BHPD.shape[3])) @ k_BHPD.mT
        shares_BHPP = self.dropout(scores_BHPP.masked_fill(later_PP, -math.inf).softmax(3))
        mixed: Tensor = self.out((shares_BHPP @ v_BHPD).transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention, then two linear layers with GELU between them. Each part reads normalised inputs and adds to them."""

    def __init__(self, width: int, heads: int, expansion: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, expansion * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(expansion * width, width)
        self.dropout = _dropout(dropout)

    def forward(self, x_BPE: Tensor, later_PP: Tensor) -> Tensor:
        """Return the vector of each token after the block, (B, P, E)."""
        x_BPE = x_BPE + self.dropout(self.attention(self.norm1(x_BPE), later_PP))
        return x_BPE + self.dropout(self.down(self.gelu(self.up(self.norm2(x_BPE)))))


class TransformerNetwork(nn.Module):
    """Embedding, learned positions, blocks block1, block2, ..., layer normalisation, linear layer."""

    def __init__(
        self, tokens: int, positions: int, width: int, layers: int, heads: int, expansion: int, dropout: float
    ) -> None:
        super().__init__()
        self.layers = layers
        self.embedding = nn.Embedding(tokens, width)
        self.positions = Positions(positions, width)
        self.dropout = _dropout(dropout)
        for number in range(layers):
            self.add_module(f"block{number + 1}", TransformerBlock(width, heads, expansion, dropout))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, tokens)
        for name, layer in self.named_modules():
            adds = name.endswith((".attention.out", ".down"))  # layers that add to a block's input start smaller
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                nn.init.normal_(layer.weight, std=_DEVIATION / math.sqrt(2 * self.layers) if adds else _DEVIATION)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def forward(self, x_BP: Tensor) -> Tensor:
        """Return the logits of the token after each position, (B, V, P)."""
        positions = x_BP.shape[1]
        later_PP = torch.ones(positions, positions, dtype=torch.bool, device=x_BP.device).triu(1)
        x_BPE = self.dropout(self.positions(self.embedding(x_BP.to(torch.int64))))
        for number in range(self.layers):
            x_BPE = self.get_submodule(f"block{number + 1}")(x_BPE, later_PP)
        logits: Tensor = self.output(self.norm(x_BPE))
        return logits.transpose(1, 2)


def _dropout(share: float) -> nn.Module:
    """Return a dropout layer, or an identity without dropout, so that such a network draws no random numbers."""
    return nn.Dropout(share) if share else nn.Identity()
