"""Any image model of the library timm, as "timm:<its name there>", drawn at random: nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short, quoted
from edgesim.learning.models.base import ModelPlugin

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class TimmModel(ModelPlugin):
    """The image model that timm calls `member`, such as "resnet18" or "vit_tiny_patch16_224". Needs edgesim[timm].

    Models of a fixed input size, such as vision transformers, are built for the images of the data.
    """

    member: str
    native_input_shape = (3, 224, 224)  # ImageNet, as most models of timm were trained
    native_classes = 1000

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network. Raises ConfigError if timm is missing, has no such model, or cannot build it."""
        try:
            import timm
        except ImportError as error:
            raise ConfigError(
                f'model.name: timm:{self.member} needs timm; pip install "edgesim[timm]" ({in_short(error)})'
            ) from error
        members = timm.list_models()
        if self.member not in members:
            offer = meant(self.member, members) or "; timm.list_models() lists them"
            raise ConfigError(f"model.name: timm has no model {quoted(self.member)}{offer}")
        if len(input_shape) != 3:
            given = "x".join(map(str, input_shape))
            raise ConfigError(f"model.name: timm:{self.member} reads images, data gives {given}")
        options: dict[str, Any] = {"in_chans": input_shape[0], "num_classes": classes}
        known = timm.get_pretrained_cfg(self.member)
        if known is not None and known.fixed_input_size:
            options["img_size"] = tuple(input_shape[1:])
        try:
            network: nn.Module = timm.create_model(self.member, pretrained=False, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError) as error:  # sizes that it does not take
            raise ConfigError(f"model.name: timm:{self.member} cannot be built: {in_short(error)}") from error
        return network


PLUGINS: dict[str, type[ModelPlugin]] = {"timm:": TimmModel}
