"""Abstract class of cost models, which give the floating-point operations of device work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from edgesim.core.arrays import Arr
from edgesim.core.task import Pass, Submodel


class CostModel(ABC):
    """Floating-point operations of device work: a frozen dataclass of pure functions."""

    networks: ClassVar[bool] = False  # True: it prices several networks in one run

    @property
    def is_counted(self) -> bool:
        """True if its FLOPs are those that a counter finds in a training."""
        return False

    @property
    def charged_as(self) -> str | None:
        """Name of the network whose prices are charged. None: those of the scenario's own."""
        return None

    def check(self, *, widths: int) -> None:
        """Raise ConfigError if a method with this many partial widths cannot be priced."""

    @abstractmethod
    def flops(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps."""

    def amounts(
        self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> Mapping[str, Arr] | None:
        """Return the amount of each kind of work of `edgesim.core.work.KINDS` in one pass, shape (k,).

        None: the model knows only FLOPs, so that devices take all of them at one speed.
        """
        return None
