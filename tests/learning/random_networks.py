"""Networks drawn at random, of the kinds that people write: what prices have to be right for without having seen it.

Tokens, shape (batch, tokens, WIDTH), go through a few blocks. A block reads one or two earlier results, so networks
have several branches; some share weights, some have operations of several operands, some are partly frozen.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from edgesim.core.rng import Key

FEATURES, TOKENS, WIDTH, HEADS, CLASSES = 32, 8, 12, 3, 5


class Embedded(nn.Module):
    """Whole numbers as entries of a table, which no gradient goes through to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x[:, ::4].long().clamp(0, 15))


class Patches(nn.Module):
    """Four features a token, changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x.mul_(0.5).view(len(x), TOKENS, 4))


class Convolved(nn.Module):
    """A convolution and a normalisation, each of which may be frozen by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, WIDTH, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x.view(len(x), 1, 4, FEATURES // 4))).relu().flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Separate layers for queries, keys and values of two results, by products or by PyTorch's function."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.fused = fused

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in (self.q(h), self.k(other), self.v(other)))
        if self.fused:
            found = F.scaled_dot_product_attention(q, k, v)
        else:
            found = (q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)).softmax(3) @ v
        return self.o(found.transpose(1, 2).flatten(2))


class Multihead(nn.Module):
    """PyTorch's layer, whose weights for queries, keys and values are one tensor."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.weights = weights

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return self.attend(h, other, other, need_weights=self.weights)[0]


class LearnedQuery(nn.Module):
    """Queries that are parameters, which a layer is given bare: once for all samples, or once for each."""

    def __init__(self, repeated: bool) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.project, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.repeated = repeated

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        query = self.project(self.query.expand(len(h), -1, -1) if self.repeated else self.query)
        return (query @ self.k(h).transpose(1, 2)).softmax(2) @ other


class Prompt(nn.Module):
    """Gives a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(TOKENS, WIDTH))

    def forward(self) -> Tensor:
        return self.tokens


class Prompted(nn.Module):
    """Adds what a submodule returns, and mixes tokens with it by a product of three operands."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.mix = Prompt(), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return torch.einsum("btc,sc,bsd->btd", self.mix(h + self.prompt()), self.prompt(), other) / WIDTH


class Einsum(nn.Module):
    """Products with parameters of the module's own, over channels and over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.channels = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.inner = Prompt()

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        mixed = torch.einsum("btc,cd->btd", h, self.channels)
        return torch.einsum("btc,sc,bsd->btd", mixed, self.inner(), other).tanh()


class Gate(nn.Module):
    """Two branches multiplied with each other, by element and as matrices."""

    def __init__(self, matrices: bool) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.matrices = matrices

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        one, two = self.one(h), self.other(other)
        return (
            one.transpose(1, 2).bmm(two).softmax(2).matmul(h.transpose(1, 2)).transpose(1, 2)
            if self.matrices
            else one * two
        )


class Tied(nn.Module):
    """Layers that share one weight, and one layer under two names."""

    def __init__(self, alias: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if alias:
            self.c = self.a
        else:
            self.c = nn.Linear(WIDTH, WIDTH)
            self.c.weight = self.a.weight

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return self.c(self.b(self.a(h)).relu() + other)


class LowRank(nn.Module):
    """A weight that is a product of two, one for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, WIDTH, bias=False), nn.Linear(WIDTH, 3, bias=False)

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return F.linear(h, self.left.weight @ self.right.weight) + other


class Parametrised(nn.Module):
    """A weight that PyTorch derives from others."""

    def __init__(self, derive: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.layer = derive(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return self.layer(h) + other


class Mixer(nn.Module):
    """Grouped convolution over tokens, a two-operand layer, a recurrent one and normalisations."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=(1, 3, WIDTH)[kind])
        self.norm = (nn.BatchNorm1d(WIDTH), nn.GroupNorm(3, WIDTH), nn.Identity())[kind]
        self.last = (nn.Bilinear(WIDTH, WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True))[
            kind
        ]

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        h = self.norm(self.conv(h.transpose(1, 2))).transpose(1, 2).contiguous()
        if isinstance(self.last, nn.Bilinear):
            return self.last(h, other.contiguous())
        found = self.last(h)
        return (found[0] if isinstance(self.last, nn.GRU) else found) + other


class Cut(nn.Module):
    """A branch that learns nothing from what comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, other: Tensor) -> Tensor:
        return self.one(h).detach() * self.other(other)


STEMS: tuple[Callable[[], nn.Module], ...] = (Embedded, Patches, Convolved)
BLOCKS: tuple[Callable[[], nn.Module], ...] = (
    *(lambda fused=fused: Attention(fused) for fused in (False, True)),
    *(lambda weights=weights: Multihead(weights) for weights in (False, True)),
    *(lambda repeated=repeated: LearnedQuery(repeated) for repeated in (False, True)),
    Prompted,
    Einsum,
    *(lambda matrices=matrices: Gate(matrices) for matrices in (False, True)),
    *(lambda alias=alias: Tied(alias) for alias in (False, True)),
    LowRank,
    *(lambda derive=derive: Parametrised(derive) for derive in (weight_norm, spectral_norm)),
    *(lambda kind=kind: Mixer(kind) for kind in range(3)),
    Cut,
)


class RandomNetwork(nn.Module):
    """A stem, two to four blocks that read any earlier results, and a head; some parameters do not require gradients.

    Networks of consecutive numbers have every stem and every block among them.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        draws = Key(11).at(number).numpy()
        self.stem = STEMS[number % len(STEMS)]()
        kinds = [number % len(BLOCKS), *draws.integers(len(BLOCKS), size=draws.integers(1, 4))]
        self.blocks = nn.ModuleList(BLOCKS[kind]() for kind in kinds)
        self.reads = [[place, int(draws.integers(place + 1))] for place in range(len(kinds))]
        self.head = nn.Linear(WIDTH, CLASSES)
        if draws.random() < 0.2:
            twin = nn.Linear(WIDTH, WIDTH)
            self.blocks.append(twin)  # never used
        if number % 4 == 3:
            for value in self.parameters():
                value.requires_grad_(bool(draws.random() < 0.7))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, CLASSES), of features in [0, 16), shape (batch, FEATURES)."""
        found = [self.stem(x)]
        for block, (one, other) in zip(self.blocks, self.reads, strict=False):
            found.append(block(found[one], found[other]))
        return self.head(found[-1].mean(1))
