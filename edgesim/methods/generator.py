"""A generator of features: a small network that turns a label and noise into inputs of a classifier's last layer.

Source: Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning" (ICML 2021), and
their published code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.errors import ConfigError
from edgesim.core.model_state import ModelState, unflattened
from edgesim.core.rng import Key
from edgesim.core.task import TENSORS, TensorSpec
from edgesim.learning.models.build import applied, model_state_of
from edgesim.learning.models.seeding import seeded

_OF, _FIRST = "generator.", ".hidden.weight"  # before and after the layer's name in the name of the first tensor


class Generator(nn.Module):
    """A hidden layer with batch normalisation and ReLU, and a linear one."""

    def __init__(self, noise: int, classes: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        self.hidden = nn.Linear(noise + classes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, features)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Return features (batch, features) of noise (batch, noise) and labels (batch,), int64."""
        told = torch.cat([noise, F.one_hot(labels, self.classes).to(noise)], dim=1)
        made: Tensor = self.out(F.relu(self.norm(self.hidden(told))))
        return made


@dataclass(frozen=True)
class Shape:
    """Sizes of a generator, and the name of the classifier's last layer."""

    noise: int
    classes: int
    hidden: int
    features: int
    head: str  # name of the layer

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Tensors of a generator for the declaration of a payload."""
        inputs, n = self.noise + self.classes, self.hidden
        shapes = {
            "hidden.weight": (n, inputs),
            "hidden.bias": (n,),
            "norm.weight": (n,),
            "norm.bias": (n,),
            "out.weight": (self.features, n),
            "out.bias": (self.features,),
            "norm.running_mean": (n,),
            "norm.running_var": (n,),
        }
        return tuple(TensorSpec(self.prefix + name, shape) for name, shape in shapes.items())

    @classmethod
    def of(cls, specs: Sequence[TensorSpec], noise: int) -> Shape:
        """Return the shape of the generator with these tensors and `noise` numbers of noise."""
        by_name = {spec.name: spec.shape for spec in specs}
        (first,) = [name for name in by_name if name.startswith(_OF) and name.endswith(_FIRST)]
        head = first.removeprefix(_OF).removesuffix(_FIRST)
        (hidden, inputs), (features, _) = by_name[first], by_name[f"{_OF}{head}.out.weight"]
        return cls(noise, inputs - noise, hidden, features, head)

    @property
    def prefix(self) -> str:
        """Prefix of the names of a generator's tensors."""
        return f"{_OF}{self.head}."

    @property
    def forward_flops(self) -> float:
        """FLOPs of generating one sample, by PyTorch's counter."""
        return 2.0 * self.hidden * (self.noise + self.classes + self.features)

    @property
    def head_flops(self) -> float:
        """Forward FLOPs of the last layer for one sample. The gradient of its weights takes the same number."""
        return 2.0 * self.features * self.classes

    def first(self, key: Key) -> Generator:
        """Return a new generator. Equal keys give equal weights."""
        with seeded(key):
            return Generator(self.noise, self.classes, self.hidden, self.features)

    def without_weights(self) -> Generator:
        """Return a generator in evaluation mode on the meta device: callers pass its weights."""
        with torch.device("meta"):
            return Generator(self.noise, self.classes, self.hidden, self.features).eval()


def shape_for(cost_profile: Any, noise: int, hidden: int) -> Shape:
    """Return the shape of a generator for a model. Raises ConfigError unless a linear layer gives the logits."""
    layers = [layer for layer in cost_profile.layers if layer.params]
    last, classes = layers[-1], cost_profile.classes
    features = last.weights // classes
    linear = last.kind == "Linear" and last.weights == features * classes and last.params - last.weights in (0, classes)
    if not linear or len(layers) == 1:
        raise ConfigError(
            f"model.name: {cost_profile.model} ends in {last.name} ({last.kind}), found {len(layers)} layers; "
            "this method needs at least two, of which the last is linear and gives the logits"
        )
    return Shape(noise, classes, hidden, features, last.name)


def head_of(params: Mapping[str, Tensor], shape: Shape) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of a model's last layer; None: it has no bias."""
    return params[f"{shape.head}.weight"], params.get(f"{shape.head}.bias")


def unpacked(global_model: ModelState, shape: Shape, first: Generator) -> ModelState:
    """Return the generator of a global model, or `first` if the model has none yet."""
    return unflattened(global_model.get(TENSORS, {}), shape.prefix, like=model_state_of(first))


def made(module: Generator, weights: Mapping[str, Tensor], noise: Tensor, labels: Tensor) -> Tensor:
    """Return the features of a generator with these weights by name, in evaluation mode and without gradients."""
    with torch.no_grad():
        features: Tensor = applied(module, weights, noise, labels)
    return features


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(-mean of |e_i - e_j|^2 |z_i - z_j|), each a mean over dimensions, over all pairs of a batch.

    It is small where different noise gives different features. Source: the published code. Section 4.2 of the paper
    asks for diverse samples without a formula.
    """
    apart = (noise[:, None] - noise[None]).square().mean(2)
    return torch.exp(-(apart * (features[:, None] - features[None]).abs().mean(2)).mean())
