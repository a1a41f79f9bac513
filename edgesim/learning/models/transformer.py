"""A transformer that reads a text token by token and gives the logits of the next one at every position.

Samples are tokens as numbers, (batch, positions); outputs (batch, tokens, positions), as objective `next_token` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, Depth
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.next_token import NextToken

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class TransformerChar(ModelPlugin):
    """Decoder-only transformer, normalised before each part of a block: 824,144 parameters for 80 characters.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), GPT-2, for the layers and for
    weights that start smaller by the root of the number of places where blocks add to their input, 2 a block; Radford
    et al., "Improving Language Understanding by Generative Pre-Training" (2018) for the others, N(0, 0.02^2), learned
    positions and GELU; nanoGPT (Karpathy), its example for a CPU, for layers, heads, width and no dropout (of 0.1 in
    2018). So it is about as large as `lstm_char`.
    Differs: the output has weights and a bias of its own, not the embedding's weights; GELU is exact, not by tanh.
    """

    native_input_shape = (80,)  # characters of a sample, as `lstm_char`
    native_classes = 80  # different characters
    native_objective: ClassVar[Objective] = NextToken()

    layers: Depth = 4  # blocks of attention and two linear layers
    width: Count = 128  # numbers that stand for a token, a multiple of `heads`
    heads: Count = 4  # of attention, each with width / heads numbers of a token
    expansion: Count = 4  # the linear layers of a block have so many times `width` units between them, 4 in GPT-2
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # of embeddings, shares of attention and what blocks add

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        from edgesim.learning.models.transformer_modules import TransformerNetwork

        if len(input_shape) != 1:
            given = "x".join(map(str, input_shape))
            raise ConfigError(f"model.name: transformer_char reads rows of tokens, data gives {given}")
        if self.width % self.heads:
            raise ConfigError(f"model.width: must be a multiple of model.heads, {self.heads}, found {self.width}")
        return TransformerNetwork(
            classes, input_shape[0], self.width, self.layers, self.heads, self.expansion, self.dropout
        )


PLUGINS = {"transformer_char": TransformerChar}
