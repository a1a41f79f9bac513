"""The modules of an LSTM, made of matrix products that have a price each.

Dimensions: B samples, P positions, E numbers of an embedding, G = 4 H gates, H units of a layer, V tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LstmLayer(nn.Module):
    """An LSTM layer, the function of `torch.nn.LSTM` with one layer and `batch_first`, started likewise.

    The gates of all positions take one product with the inputs and then, position by position, one with the state.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.of_input = nn.Linear(inputs, 4 * hidden)  # gates i, f, g, o in this order, as torch has them
        self.of_state = nn.Linear(hidden, 4 * hidden)
        bound = 1 / math.sqrt(hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_BPE: Tensor) -> Tensor:
        """Return the outputs of all positions, (B, P, H), from a state of zeros."""
        gates_BPG = self.of_input(x_BPE)
        h_BH = c_BH = x_BPE.new_zeros(len(x_BPE), self.hidden)
        outputs = []
        for place in range(x_BPE.shape[1]):
            i, f, g, o = (gates_BPG[:, place] + self.of_state(h_BH)).chunk(4, 1)
            c_BH = f.sigmoid() * c_BH + i.sigmoid() * g.tanh()
            h_BH = o.sigmoid() * c_BH.tanh()
            outputs.append(h_BH)
        return torch.stack(outputs, 1)


class LstmNetwork(nn.Module):
    """Embedding, LSTM layers lstm1, lstm2, ..., linear layer."""

    def __init__(self, tokens: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.embedding = nn.Embedding(tokens, embedding)
        widths = [embedding, *[hidden] * layers]
        for number in range(layers):
            self.add_module(f"lstm{number + 1}", LstmLayer(widths[number], hidden))
        self.output = nn.Linear(hidden, tokens)

    def forward(self, x_BP: Tensor) -> Tensor:
        """Return the logits of the token after each, (B, V, P)."""
        x_BPE = self.embedding(x_BP.to(torch.int64))
        for number in range(self.layers):
            x_BPE = self.get_submodule(f"lstm{number + 1}")(x_BPE)
        logits: Tensor = self.output(x_BPE)
        return logits.transpose(1, 2)
