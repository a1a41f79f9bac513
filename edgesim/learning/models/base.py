"""Base classes of models, and the chain of convolutions and linear layers that most papers use.

A model plug-in is a description: torch is loaded when its network is built.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION

if TYPE_CHECKING:
    from torch import nn

Named: TypeAlias = "tuple[str, nn.Module]"
Norm: TypeAlias = "Callable[[int], nn.Module | None]"  # channels -> normalisation layer; None: there is none


@dataclass(frozen=True, kw_only=True)
class ModelPlugin(ABC):
    """A network by name. `init_from`: safetensors file of a state dict to start from, instead of a random draw.

    `freeze`: patterns of names of layers, such as "conv*" or "layer1". Parameters of these layers and of the layers in
    them do not train; running statistics of normalisations still move.
    """

    init_from: ScenarioPath | None = None
    freeze: tuple[str, ...] = ()
    native_input_shape: ClassVar[tuple[int, ...] | None] = None  # input shape in the source. build() takes others too
    native_classes: ClassVar[int] = 10
    native_objective: ClassVar[Objective] = CLASSIFICATION  # objective of its price where no scenario names another

    @property
    def loads_weights(self) -> bool:
        """True if weights come from files, so that only building the network tells if they fit."""
        return self.init_from is not None

    def priced_by(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of its keys, or files, that decide its price: all but files of weights."""
        return {name: value for name, value in keys.items() if name != "init_from"}

    @property
    def lighter(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Changes of its keys with which a device needs less memory to train it: as text, and the keys."""
        return ()

    def keep_less(self, network: nn.Module) -> None:
        """Let blocks of its network run again in backward, if it has such blocks. No result changes."""

    @abstractmethod
    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return a new network from (batch, *input_shape) to outputs of its objective, such as logits (batch, classes).

        `input_shape`: (channels, height, width), or (features,) if the network has no convolution. Its weights are
        drawn from torch's global generator, which `build_model` seeds. Raises ConfigError if an input of this shape
        does not fit.
        """


class Conv(NamedTuple):
    """One convolution and the layers after it: normalisation, channel dropout, max-pooling, ReLU."""

    channels: int
    kernel: int
    padding: int = 0
    stride: int = 1
    pool: int = 2  # 1 = none
    dropout: float = 0.0

    def size_out(self, size: int) -> int:
        """Return the output height or width, in pixels, for an input height or width."""
        return ((size + 2 * self.padding - self.kernel) // self.stride + 1) // self.pool

    def least_in(self, size: int) -> int:
        """Return the least input height or width for an output of `size` pixels."""
        return max((size * self.pool - 1) * self.stride + self.kernel - 2 * self.padding, 1)


@dataclass(frozen=True, kw_only=True)
class ProjectedPart(ModelPlugin):
    """A network that can have MOON's projection head. `projection`: number of its outputs. Unset: there is no head."""

    projection: Count | None = None

    def headed(self, last: nn.Module) -> nn.Module:
        """Return the last linear layer of a network, or the head and a classifier in its place."""
        from torch import nn

        if self.projection is None:
            return last
        classes, features = last.get_parameter("weight").shape
        return sequential(
            ("project1", nn.Linear(features, features)),
            ("relu_project1", nn.ReLU()),
            ("project2", nn.Linear(features, self.projection)),
            ("classify", nn.Linear(self.projection, classes)),
        )


@dataclass(frozen=True, kw_only=True)
class ChainPart(ProjectedPart):
    """Convolutions, then linear layers, each except the last followed by ReLU: conv1, conv2, ..., fc1, fc2, ...

    A projection head replaces the last linear layer or, with `head_on_convs`, all linear layers.
    """

    convs: ClassVar[tuple[Conv, ...]] = ()
    hidden: ClassVar[tuple[int, ...]] = ()  # widths of the linear layers but the last
    head_on_convs: ClassVar[bool] = False

    def norm(self, channels: int) -> nn.Module | None:
        """Return the normalisation of `channels` channels after a convolution, or None for no normalisation."""
        return None

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network, as ModelPlugin.build describes."""
        from torch import nn

        features = flat_features(type(self).__name__, input_shape, self.convs)
        convs = conv_layers(input_shape[0], self.convs, self.norm)
        hidden = () if self.projection is not None and self.head_on_convs else self.hidden
        module = sequential(*convs, ("flatten", nn.Flatten()), *linear_layers(features, (*hidden, classes)))
        module[-1] = self.headed(module[-1])
        return module


def sequential(*layers: Named) -> nn.Sequential:
    """Return the layers in a row under their names."""
    from torch import nn

    return nn.Sequential(OrderedDict(layers))


def conv_layers(channels: int, convs: Sequence[Conv], norm: Norm = lambda channels: None) -> Iterator[Named]:
    """Yield named modules for inputs of `channels` channels.

    ReLU comes after max-pooling: both are monotone, so the function is the same and a pooled map is cheaper.
    """
    from torch import nn

    for number, conv in enumerate(convs, start=1):
        yield f"conv{number}", nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, conv.padding)
        if (normalising := norm(conv.channels)) is not None:
            yield f"norm{number}", normalising
        if conv.dropout:
            yield f"dropout_conv{number}", nn.Dropout2d(conv.dropout)
        if conv.pool > 1:
            yield f"pool{number}", nn.MaxPool2d(conv.pool)
        yield f"relu_conv{number}", nn.ReLU()
        channels = conv.channels


def linear_layers(features: int, widths: Sequence[int], dropouts: Sequence[float] = ()) -> Iterator[Named]:
    """Yield named modules. `dropouts`: probability before each linear layer, 0 if it ends early."""
    from torch import nn

    for number, (width, dropout) in enumerate(zip_longest(widths, dropouts, fillvalue=0.0), start=1):
        if number > 1:
            yield f"relu_fc{number - 1}", nn.ReLU()
        if dropout:
            yield f"dropout_fc{number}", nn.Dropout(dropout)
        yield f"fc{number}", nn.Linear(features, int(width))
        features = int(width)


def flat_features(model: str, input_shape: Sequence[int], convs: Sequence[Conv]) -> int:
    """Return the number of outputs of the convolutions for one input. Raises ConfigError if the input is too small."""
    if not convs:
        return math.prod(input_shape)
    least = 1
    for conv in reversed(convs):
        least = conv.least_in(least)
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        given = "x".join(map(str, input_shape))
        raise ConfigError(f"model.name: {model} needs images of at least {least}x{least} pixels, data gives {given}")
    height, width = input_shape[1:]
    for conv in convs:
        height, width = conv.size_out(height), conv.size_out(width)
    return convs[-1].channels * height * width
