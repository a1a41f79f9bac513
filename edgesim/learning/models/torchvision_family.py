"""Any classification network of torchvision, as "torchvision:<its name there>", drawn at random: nothing is fetched."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted
from edgesim.learning.models.base import ModelPlugin

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class TorchvisionModel(ModelPlugin):
    """The classification network that torchvision calls `member`, such as "resnet18".

    Networks with auxiliary classifiers are built without them, as `aux_logits` may say: only the main output trains.
    """

    member: str
    aux_logits: Literal[False] = False
    native_input_shape = (3, 224, 224)  # ImageNet as torchvision trains it
    native_classes = 1000

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; whether inputs of `input_shape` fit is for `check_fits` to find out.

        Raises ConfigError that offers the nearest name if torchvision has no such network.
        """
        import torchvision  # costs 150 MB, which other models can do without

        members = torchvision.models.list_models(module=torchvision.models)
        if self.member not in members:
            offer = meant(self.member, members) or "; torchvision.models.list_models() lists them"
            raise ConfigError(f"model.name: torchvision has no classification model {quoted(self.member)}{offer}")
        builder = torchvision.models.get_model_builder(self.member)
        taken = inspect.signature(inspect.signature(builder).return_annotation).parameters
        options = {"aux_logits": self.aux_logits, "init_weights": True} if "aux_logits" in taken else {}
        network: nn.Module = builder(weights=None, num_classes=classes, **options)
        return network


PLUGINS: dict[str, type[ModelPlugin]] = {"torchvision:": TorchvisionModel}
