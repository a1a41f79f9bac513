"""The option of backends that can compile the steps of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgesim.core.backend import BackendPart
from edgesim.core.errors import ConfigError
from edgesim.learning.train.torch_settings import check_device

if TYPE_CHECKING:
    from edgesim.learning.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Compiling(BackendPart):
    """A backend that compiles the steps of training if it is told to."""

    compile: bool = False  # compile gradients with a C++ compiler: faster steps after some 10 s, kept for later runs

    def check(self) -> None:
        """Raise ConfigError if torch has no such device, or steps are to be compiled for another one than a CPU."""
        check_device(self.device)
        if self.compile and self.device != "cpu":
            raise ConfigError(f"backend.compile: steps are compiled for device cpu only, not for {self.device}")

    @property
    def rounding(self) -> str:
        """The compiler, if steps are compiled."""
        if not self.compile:
            return ""
        from edgesim.learning.compiled.program import compiler

        return f"compiled by {compiler() or 'nothing'}"

    def compiling(self, trainer: Trainer) -> Trainer:
        """Return a trainer that compiles its steps if they shall be."""
        if not self.compile:
            return trainer
        from edgesim.learning.compiled.programs import Programs

        return replace(trainer, programs=Programs())


def told(trainer: Trainer) -> list[str]:
    """Return a line for each reason why steps of a trainer were not compiled so far."""
    eager = [] if trainer.programs is None else trainer.programs.eager
    return [f"backend.compile: some steps are not compiled: {why}" for why in eager]
