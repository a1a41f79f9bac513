"""Lets a run that was cut off go on: what was learned so far lies in a file, and the rest is simulated again.

The clock, the links and the tables of a run depend on what is learned only through what the learner tells the
protocol: plans, merges and scores. So the file has these, and the weights and memories of its moment. A run that
goes on starts at its beginning, is told the same again without any training, and comes to the same moment bit for bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from safetensors import SafetensorError

from edgesim.core.backend import Assignment, Backend, Result, Score
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.job import Completion, Job
from edgesim.core.learner import ServerStep
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Plan
from edgesim.core.update import ModelRef, ModelState, Update
from edgesim.core.view import View
from edgesim.files.atomic import checkpoint_of, remove_checkpoint, whole_file
from edgesim.files.reading import in_short
from edgesim.runtime.learner import FederatedLearner
from edgesim.runtime.tree_file import Records, check_tree, read_tree, records_in, write_tree

# The modules of what plans, messages and packed tensors are made of.
_MODULES = (
    *("edgesim.core.task", "edgesim.core.update", "edgesim.core.backend", "edgesim.core.learner", "edgesim.core.rng"),
    "edgesim.learning.codec.packed",
)

_Answer = TypeVar("_Answer")


class Told(NamedTuple):
    """One answer of the learner: to which question, and when. Plans that need no feedback can be made again."""

    question: str
    now_s: float | None
    answer: Any


class Saved(NamedTuple):
    """What a checkpoint file holds."""

    told: list[Told]
    values: Mapping[str, Any]  # of the learner after the last answer
    host_s: float  # that it took until then


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is saved, how often, and what has to be the same for another one to go on from there.

    The file is an edgesim.runtime.tree_file: nothing in it is run when it is read, and it is refused if a byte has
    changed.
    """

    file: Path
    every_s: float  # of the host's time; saved after the next merge
    stamp: Mapping[str, Any]

    @classmethod
    def beside(cls, folder: Path, every_s: float, stamp: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint of a run folder: a hidden file beside it."""
        return cls(checkpoint_of(folder), every_s, stamp)

    def is_outdated(self) -> bool:
        """Return whether there is a file that was written for another stamp or version of torch.

        Raises DataError if it cannot be read.
        """
        return self.file.exists() and bool(self._differences(self._content({}, "stamp")[0]))

    def is_unfit(self) -> bool:
        """Return whether there is a file that no run of this stamp can go on from, damaged ones included."""
        try:
            return self.is_outdated()
        except DataError:
            return True

    def load(self, method: Method | None = None) -> Saved | None:
        """Return what the file holds, None if there is none; `method`: whose state may have records of its module.

        Raises ConfigError if it was written for another stamp or version of torch, DataError if it cannot be read.
        """
        if not self.file.exists():
            return None
        stamp, saved = self._content(_records(method), "stamp", "saved")
        if others := self._differences(stamp):
            raise ConfigError(f"{self.file}: was saved with another {', '.join(others)}; remove it to begin anew")
        return Saved([Told(*told) for told in saved["told"]], saved["values"], saved["host_s"])

    def save(self, saved: Saved, method: Method | None = None) -> None:
        """Write the file; a reader finds the one before or this one. Raises ConfigError if that is not possible."""
        content = {"stamp": self._stamp(), "saved": saved._asdict() | {"told": [tuple(told) for told in saved.told]}}
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.file) as growing, growing.open("wb") as file:
                write_tree(file, content, _records(method))
                file.flush()
                os.fsync(file.fileno())  # or a machine that goes down may leave neither this file nor the one before
        except (OSError, TypeError) as error:
            raise ConfigError(f"{self.file}: cannot be written: {error}") from error

    def check(self, state: Any, method: Method) -> None:
        """Raise ConfigError, before anything is trained, if a method's state is nothing that can be saved."""
        try:
            check_tree(state, _records(method))
        except TypeError as error:
            raise ConfigError(f"{self.file}: cannot be written: {error}") from error

    def remove(self) -> None:
        """Remove the file, if there is one, and one that was cut off while it was written."""
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


def _records(method: Method | None) -> Records:
    """Return the classes that may be in a file: edgesim's own, and those of the modules of a method."""
    own = {cls.__module__ for cls in type(method).__mro__} - {"builtins"} if method else set[str]()
    return records_in(*_MODULES, *sorted(own))


class ResumableLearner:
    """A learner that is saved every so often, and that goes on from where it was saved."""

    trains: bool = True

    def __init__(self, learner: FederatedLearner, checkpoint: Checkpoint) -> None:
        self._learner = learner
        self._checkpoint = checkpoint
        self._parts = learner.method, learner.backend
        checkpoint.check(learner.state, learner.method)
        self._saved = checkpoint.load(learner.method)
        self._told = list(self._saved.told) if self._saved else []
        self._repeated = 0  # answers that were given again so far
        self._stand_in = _StandIn(learner.method)
        self.host_s = self._saved.host_s if self._saved else 0.0  # of the runs before this one
        self._started_s = self._looked_s = time.perf_counter()
        if self._saved:
            learner.method, learner.backend = cast(Method, self._stand_in), cast(Backend, self._stand_in)

    @property
    def repeats(self) -> bool:
        """Whether the run has not yet come to where it was saved: until then there are no weights."""
        return self._saved is not None

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange."""
        if not self._learner.method.needs.feedback:
            return self._learner.plan(view)
        return self._answer("plan", view.now_s, lambda: self._learner.plan(view))

    def start(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the backend; nothing is trained yet."""
        self._learner.start(jobs)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver; train only what a device's memory depends on."""
        self._learner.cancel(completions)

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Let the method look at what an exchange delivered that others of the same round follow."""
        self._learner.on_exchange(completions, view)

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Train and merge the completions that delivered. Saves if it is time to."""
        again = self.repeats
        merged = self._answer("aggregate", view.now_s, lambda: self._learner.aggregate(completions, view))
        if not again and time.perf_counter() - self._looked_s >= self._checkpoint.every_s:
            host_s = self.host_s + time.perf_counter() - self._started_s
            self._checkpoint.save(Saved(self._told, self._learner.values(), host_s), self._learner.method)
            self._looked_s = time.perf_counter()
        return merged

    def evaluate(self, model: ModelRef) -> Mapping[str, Score]:
        """Score a global model."""
        return self._answer("evaluate", None, lambda: self._learner.evaluate(model))

    def evaluate_personal(self) -> Mapping[int, Score]:
        """Score the model that each device would use now on the device's own test set."""
        return self._answer("evaluate_personal", None, self._learner.evaluate_personal)

    def _answer(self, question: str, now_s: float | None, ask: Callable[[], _Answer]) -> _Answer:
        if self._saved is None:
            answer = ask()
            self._told.append(Told(question, now_s, answer))
            return answer
        told = self._told[self._repeated]
        if (told.question, told.now_s) != (question, now_s):
            raise DataError(
                f"{self._checkpoint.file}: does not fit the run, which asks for {question} at {now_s} s and not for "
                f"{told.question} at {told.now_s} s; remove it to begin anew"
            )
        self._stand_in.answer = told.answer
        answer = ask()
        self._repeated += 1
        if self._repeated == len(self._told):
            self._learner.method, self._learner.backend = self._parts
            self._learner.restore(self._saved.values)
            self._saved = None
        return answer


class _StandIn:
    """Method and backend while a run is told again what it was told before: weights are empty, nothing is trained.

    It has what a learner asks of the two.
    """

    def __init__(self, method: Method) -> None:
        self.needs = method.needs
        self.sees_exchanges = method.sees_exchanges
        self.answer: Any = None
        self.version = 0  # global models so far
        self._method = method

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the plan that was told; without feedback the method makes it again, for which `init`'s state does."""
        plan: Plan = self.answer if self.needs.feedback else self._method.plan(state, view, key)
        return plan

    def on_exchange(self, state: Any, updates: Sequence[Update], view: View, key: Key) -> Any:
        return state

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        return global_model

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        told: ServerStep = self.answer
        model: ModelState | None = None if told.model.version == self.version else {}
        self.version = told.model.version
        return Aggregate(state, model, told.server_flops, told.metrics)

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        return [Result({}, None, {}, 0) for _ in assignments]

    def evaluate(self, model: ModelState) -> Mapping[str, Score]:
        scores: Mapping[str, Score] = self.answer
        return scores

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        scores: Mapping[int, Score] = self.answer
        return scores


class NewRounds:
    """Tells an observer only of the rounds that are not repeated; `before`: how many were."""

    def __init__(self, observer: Any, learner: ResumableLearner) -> None:
        self._observer = observer
        self._learner = learner
        self._before = 0

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Take note of a round, or tell the observer."""
        if self._learner.repeats:
            self._before = info["round"]
        else:
            self._observer.round_closed({**info, "before": self._before})
