"""Networks that read a text token by token and give the logits of the next one at every position.

Samples are tokens as numbers, (batch, positions); outputs (batch, tokens, positions), as objective `next_token` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Le

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, Depth
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.next_token import NextToken

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class LstmChar(ModelPlugin):
    """Embedding, stacked LSTM, linear layer: 819,920 parameters for 80 characters.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017),
    and LEAF (Caldas et al., 2018): an embedding of 8, two layers of 256 units, 80 characters a sample. McMahan et al.
    count 866,578 parameters and do not say how many characters their output tells apart.
    """

    native_input_shape = (80,)  # characters of a sample
    native_classes = 80  # different characters, of LEAF's Shakespeare
    native_objective: ClassVar[Objective] = NextToken()

    embedding: Count = 8  # numbers that stand for a token
    hidden: Count = 256  # units of each LSTM layer
    layers: Annotated[Depth, Le(8)] = 2  # LSTM layers, each reading the outputs of the one before

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        from edgesim.learning.models.lstm_modules import LstmNetwork

        if len(input_shape) != 1:
            given = "x".join(map(str, input_shape))
            raise ConfigError(f"model.name: lstm_char reads rows of tokens, data gives {given}")
        return LstmNetwork(classes, self.embedding, self.hidden, self.layers)


PLUGINS = {"lstm_char": LstmChar}
