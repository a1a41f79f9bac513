"""Methods with personal layers against the same federation in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.contracts.support import run
from tests.methods.plain_torch import (
    DEVICES,
    Weights,
    flat,
    mean,
    only,
    rounds_of,
    samples_of,
    three_devices,
    trained,
    without,
)
from tests.methods.recorded import Recorded, close_to, record

Train = Callable[[Recorded, Weights], Weights]


def agrees_with_plain_torch(
    monkeypatch: pytest.MonkeyPatch, method: Any, own: Sequence[str], train: Train = trained, **changes: Any
) -> None:
    """Assert that three rounds give the shared layers, and each device the own ones, of a loop in plain PyTorch.

    `own`: the layers that stay on devices; `train`: what a device does from the shared layers received and its own.
    """
    jobs = record(monkeypatch)
    simulation = run(three_devices(method, **changes))
    server: Weights = flat(jobs[0].assignment.global_model)
    first, kept = dict(server), [only(server, own) for _ in range(DEVICES)]
    for round_ in rounds_of(jobs):
        sent = []
        for job in round_:
            device = job.assignment.device
            new = train(job, {**server, **kept[device]})
            kept[device] = only(new, own)
            sent.append(without(new, own))
        server = {**server, **mean(sent, [samples_of(job) for job in round_])}
    learner, personal = simulation.learner, simulation.learner.method.personal_model
    close_to(flat(learner.weights()), server)
    for device, state in learner.memory.items():
        close_to(flat(state), kept[device])
        close_to(flat(personal(learner.weights(), state)), {**server, **kept[device]})
    assert len(learner.memory) == DEVICES
    moved = [n for n in server if not (server[n] == first[n]).all()]
    assert {n.rpartition(".")[0] for n in moved}.isdisjoint(own)
    assert moved
