"""Jobs of a real run, kept to be trained once more in a few lines of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from edgesim.core.backend import Assignment, Result
from edgesim.core.update import ModelState
from edgesim.learning.train.loop import batch_order
from edgesim.learning.train.trainer import Trainer
from tests.kinks import without_kinks


class Recorded(NamedTuple):
    """A job that was trained, and what came of it."""

    trainer: Trainer
    assignment: Assignment
    result: Result

    def batches(self, place: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield inputs and labels of the steps that the job took, or was to take, in one of its stretches."""
        trainer, assignment = self.trainer, self.assignment
        sgd, shard = assignment.task.local_sgd[place], trainer.shards[assignment.device]
        order = batch_order(assignment.key.at(place).at(0), len(shard), sgd, trainer.cost_profile.drop_single)
        for step, positions in enumerate(order):
            if assignment.steps is None or step < assignment.steps:
                yield trainer.data.batch("train", shard[positions])

    def network(self, weights: ModelState) -> torch.nn.Module:
        """Return the whole network with these parameters, a copy in training mode; it is to have no dropout."""
        network = copy.deepcopy(self.trainer.module)
        for name, parameter in network.named_parameters():
            parameter.data = weights["params"][name].clone()
            parameter.requires_grad_()
        return network.train()


def record(monkeypatch: pytest.MonkeyPatch, kinks: bool = False) -> list[Recorded]:
    """Return a list that every job trained from now on is entered in; networks have no kinks then, or all of theirs."""
    if not kinks:
        without_kinks(monkeypatch)
    seen: list[Recorded] = []
    really_run = Trainer.run

    def recorded(self: Trainer, assignment: Assignment) -> Any:
        result = really_run(self, assignment)
        seen.append(Recorded(self, assignment, result))
        return result

    monkeypatch.setattr(Trainer, "run", recorded)
    return seen


def close_to(found: Any, expected: Any, atol: float = 2e-6) -> None:
    """Assert that tensors of the same names are alike."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=atol, rtol=1e-5, check_stride=False)
