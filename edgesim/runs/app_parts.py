"""Parts that an app replaces, as a scenario with an app has them: an app brings data, network and method of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from edgesim.core.errors import ContractError
from edgesim.core.method import Method, Needs
from edgesim.core.price_list import CostProfile
from edgesim.learning.data.split import Partition
from edgesim.learning.models.base import ModelPlugin
from edgesim.runs.network import Network

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class AppPartition(Partition):
    """Stands for the data of an app, which it divides among its devices itself."""


@dataclass(frozen=True, kw_only=True)
class AppModel(ModelPlugin):
    """Stands for the network of an app."""

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Raise ContractError."""
        raise ContractError("the network of an app is its own")


@dataclass(frozen=True, kw_only=True)
class AppMethod(Method):
    """Stands for the method of an app, which asks devices and merges itself."""

    needs: ClassVar[Needs] = Needs(protocols=frozenset({"app"}), feedback=True)


NO_NETWORK = Network(
    CostProfile(model="app", input_shape=(), classes=0, layers=(), work=()), partial(AppModel().build, (), 0)
)
