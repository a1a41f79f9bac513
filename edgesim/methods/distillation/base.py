"""Base of methods whose devices keep models of their own and learn from each other's answers on public samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import Count
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerSet
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Pass, Payload, Plan, Task, TensorSpec
from edgesim.core.update import Update
from edgesim.core.view import View
from edgesim.learning.train.context import Context
from edgesim.learning.train.public import learn_public, public_logits

ANSWERS = "answers"  # name of the tensor that devices send
NOTHING_KEPT = frozenset[str]()
BEGIN, AGREE = "begin", "agree"  # names of tasks: before there are answers, and with answers to learn from


@dataclass(frozen=True, kw_only=True)
class PublicAnswers(Method):
    """Base of methods in which devices learn from others' answers on public samples, and send only their own answers.

    A device may take steps on public samples before it trains on its own data, with the optimiser, rate and batch of
    the scenario's training.
    """

    public_samples: Count = 500  # samples that the server and all devices have
    needs: ClassVar[Needs] = Needs(device_state="delivered", networks=True)
    uses_kept_model: ClassVar[bool] = True

    @property
    def needs_classes(self) -> str:
        """The reason why labels have to be classes."""
        return "compares what models say of each class"

    @property
    def server_set(self) -> ServerSet:
        """Training samples that all devices also have, and that are not part of any device's own data."""
        return ServerSet(self.public_samples, "train", "random", reserved=True, public=True, option="public_samples")

    @abstractmethod
    def answer(self, logits: Tensor) -> Tensor:
        """Return a device's answers on public samples, with the same shape as its logits on them."""

    @abstractmethod
    def distance(self, logits: Tensor, told: Tensor) -> Tensor:
        """Return the loss, a scalar, of the logits of a batch against the answers `told` of others."""

    # --- tasks ----------------------------------------------------------------------------------------------------

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices. Devices that receive the same tensor share a task."""
        ids = view.choose(key).tolist()
        told_to = [self.told_to(device, state, view) for device in ids]
        return Plan.by_kind(ids, told_to, lambda told: self.task_of(view, told))

    def told_to(self, device: int, state: Any, view: View) -> str:
        """Return the name of the tensor of the global model that a device receives; "": there is none yet."""
        return ANSWERS if view.version else ""

    def task(self, view: View) -> Task:
        """Return the task of a device that receives the answers of all, if there are answers yet."""
        return self.task_of(view, ANSWERS if view.version else "")

    def task_of(self, view: View, told: str) -> Task:
        """Return the task of devices that receive the tensor of this name; "": none."""
        shape = (self.public_samples, view.setting.cost_profile.classes)
        up = Payload(collections=NOTHING_KEPT, tensors=(TensorSpec(ANSWERS, shape),))
        down = Payload(collections=NOTHING_KEPT, tensors=(TensorSpec(told, shape),)) if told else None
        passes = [Pass(), Pass("forward", samples=self.public_samples)]
        train = super().task(view)
        digest = (self.digest_sgd if told else self.begin_sgd)(train.local_sgd[0])
        if digest is not None:
            drop_single = view.setting.cost_profile.drop_single
            (seen,), _ = digest.amount(np.array([self.public_samples]), drop_single)
            passes.append(Pass("train", samples=int(seen)))
        name = AGREE if told else BEGIN
        return replace(train, name=name, down=down, up=up, passes=tuple(passes))

    def digest_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps on public samples towards the answers of others; None: no steps."""
        return None

    def begin_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps on the labels of public samples, before there are answers; None: no steps."""
        return None

    # --- on the device --------------------------------------------------------------------------------------------

    def local(self, task: Task) -> LocalRule:
        """Return the training on public samples, then on the device's own."""
        return LocalRule((LocalPhase(),), on_start=self._start, on_finish=self._finish)

    def own_model(self, context: Context) -> LocalState:
        """Return the model that a device has kept, or the common first model before its first job."""
        return LocalState(context.copy(context.device_state or context.first))

    def _start(self, context: Context) -> LocalState:
        weights = self.own_model(context).weights
        training, key = context.task.local_sgd[0], context.key.at(JobStream.PUBLIC)
        if context.task.name == BEGIN:
            labels, sgd = context.public.y, self.begin_sgd(training)
            if sgd is not None:
                learn_public(weights, context, sgd, lambda x, at: F.cross_entropy(x, labels[at]), key)
            return LocalState(weights)
        told, sgd = self.told(context), self.digest_sgd(training)
        if sgd is not None:
            learn_public(weights, context, sgd, lambda logits, places: self.distance(logits, told[places]), key)
        return LocalState(weights)

    def told(self, context: Context) -> Tensor:
        """Return the answers that the device received: the only tensor of its payload."""
        assert context.task.down is not None
        found: Tensor = context.global_model[TENSORS][context.task.down.tensors[0].name]
        return found.to(context.public.x.device)

    def _finish(self, local: LocalState, context: Context) -> Finished:
        said = self.answer(public_logits(local.weights, context))
        return Finished({TENSORS: {ANSWERS: said}}, local.weights, own_model=local.weights)


def said_by(updates: Sequence[Update]) -> Tensor:
    """Return the answers of devices, shape (updates, samples, classes)."""
    return torch.stack([update.body[TENSORS][ANSWERS] for update in updates])
