"""Checkpoints: a file with the answers of a run so far and the weights of that moment, to continue a run cut off.

The clock, the links and the tables of a run depend on learning only through answers: plans, scores, and facts of
aggregations. A continued run is simulated from its beginning, and gets saved answers by identity without any training,
until it asks for one that is not saved. Then it goes on from the saved values, bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError

from edgesim.core import backend, encoding, learner, rng, task, update
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.method import Method
from edgesim.execution.serialization import Records, check_tree, read_tree, records_in, write_tree
from edgesim.files.atomic import (
    checkpoint_of,
    checkpoint_of_session,
    checkpoints_of_run,
    remove_checkpoint,
    whole_file,
)
from edgesim.files.reading import in_short
from edgesim.learning.codec import packed

# Modules of the classes of plans, messages and packed tensors, imported here because a reader may have loaded none.
_MODULES = tuple(module.__name__ for module in (task, encoding, update, backend, learner, rng, packed))


class Saved(NamedTuple):
    """Contents of a checkpoint file, by identity."""

    answers: Mapping[bytes, Any]  # all answers that the run has got
    values: Mapping[bytes, Any]  # values on which later nodes may build
    host_s: float  # host time of the run until then


@dataclass(frozen=True)
class Checkpoint:
    """The file in which a run is saved, the interval, and the stamp that a run must have to continue from it.

    Format: edgesim.execution.serialization. Reading runs no code, and a file with a changed byte is refused.
    """

    file: Path
    every_s: float  # interval in host time; saved after the next merge
    stamp: Mapping[str, Any]

    @classmethod
    def beside(cls, folder: Path, every_s: float, stamp: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint of a run folder: a hidden file beside it."""
        return cls(checkpoint_of(folder), every_s, stamp)

    def of_session(self, name: str) -> Checkpoint:
        """Return the checkpoint of a further session of the same run."""
        return replace(self, file=checkpoint_of_session(self.file, name))

    def is_outdated(self) -> bool:
        """Return True if a file of the run exists that was written for another stamp or version of torch.

        Raises DataError if one cannot be read.
        """
        of_run = [replace(self, file=file) for file in checkpoints_of_run(self.file)]
        return any(each._differences(each._content({}, "stamp")[0]) for each in of_run)

    def is_unfit(self) -> bool:
        """Return True if a file exists from which no run of this stamp can continue, also if it is damaged."""
        try:
            return self.is_outdated()
        except DataError:
            return True

    def load(self, method: Method | None = None) -> Saved | None:
        """Return the contents of the file, None if there is none; `method`: its state may hold records of its module.

        Raises ConfigError if it was written for another stamp or version of torch, DataError if it cannot be read.
        """
        if not self.file.exists():
            return None
        stamp, saved = self._content(records_of(method), "stamp", "saved")
        if others := self._differences(stamp):
            raise ConfigError(f"{self.file}: was saved with another {', '.join(others)}; remove it to begin anew")
        answers, values = (
            {bytes.fromhex(id_): each for id_, each in saved[of].items()} for of in ("answers", "values")
        )
        return Saved(answers, values, saved["host_s"])

    def save(self, saved: Saved, method: Method | None = None) -> None:
        """Replace the file atomically. Raises ConfigError if it cannot be written."""
        answers, values = ({id_.hex(): each for id_, each in of.items()} for of in (saved.answers, saved.values))
        kept = {"answers": answers, "values": values, "host_s": saved.host_s}
        content = {"stamp": self._stamp(), "saved": kept}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.file) as growing, growing.open("wb") as file:
                write_tree(file, content, records_of(method))
                file.flush()
                os.fsync(file.fileno())  # without it, a crash of the machine may leave neither the old nor the new file
        except (OSError, TypeError) as error:
            raise ConfigError(f"{self.file}: cannot be written: {error}") from error

    def check(self, state: Any, method: Method) -> None:
        """Raise ConfigError, before anything is trained, if a method's state cannot be saved."""
        try:
            check_tree(state, records_of(method))
        except TypeError as error:
            raise ConfigError(f"{self.file}: cannot be written: {error}") from error

    def remove(self) -> None:
        """Remove the file if it exists, those of further sessions, and partly written ones."""
        remove_checkpoint(self.file)

    def _content(self, records: Records, *names: str) -> list[Any]:
        try:
            return read_tree(self.file, records, *names)
        except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise DataError(f"{self.file}: cannot be read; remove it to begin anew: {in_short(error)}") from error

    def _differences(self, stamp: Mapping[str, Any]) -> list[str]:
        return [key for key, value in self._stamp().items() if stamp.get(key) != value]

    def _stamp(self) -> dict[str, Any]:
        return {**self.stamp, "torch": str(torch.__version__)}


def records_of(method: Method | None) -> Records:
    """Return the classes that a file may hold: edgesim's own, and those in the modules of a method."""
    return records_in(*_MODULES, *sorted(method.modules if method else ()))
