"""Networks as users write them, of torch's own layers: texts in, the next token at every position out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.next_token import NextToken


class _Texts(nn.Module):
    """An embedding, layers over (batch, positions, width), a linear layer."""

    def __init__(self, tokens: int, width: int, body: nn.Module, out: int) -> None:
        super().__init__()
        self.embedding, self.body, self.output = nn.Embedding(tokens, width), body, nn.Linear(out, tokens)

    def forward(self, x_BP: Tensor) -> Tensor:
        """Return logits of the token after each, (batch, tokens, positions)."""
        found = self.body(self.embedding(x_BP.to(torch.int64)))
        logits: Tensor = self.output(found[0] if isinstance(found, tuple) else found)
        return logits.transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class OwnLstm(ModelPlugin):
    """Two layers of `torch.nn.LSTM` with 256 units."""

    native_input_shape = (40,)
    native_classes = 90
    native_objective: ClassVar[Objective] = NextToken()

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        return _Texts(classes, 64, nn.LSTM(64, 256, 2, batch_first=True), 256)


@dataclass(frozen=True, kw_only=True)
class OwnEncoder(ModelPlugin):
    """Four layers of `torch.nn.TransformerEncoder`, 192 numbers a token, 6 heads, no dropout."""

    native_input_shape = (64,)
    native_classes = 90
    native_objective: ClassVar[Objective] = NextToken()

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True)
        return _Texts(classes, 192, nn.TransformerEncoder(layer, 4), 192)
