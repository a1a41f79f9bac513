"""Polls before a method's exchange: whom they choose, by losses computed apart, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.contracts.support import METHODS, UNDISTURBED, mixed_scenario, needs_of, run
from tests.sizes import spread

SELECTING = [
    name
    for name in METHODS
    if needs_of(name).peers is None and "sync" in needs_of(name).protocols and name not in UNDISTURBED
]


def polled(**changes):
    """Return a run of pow-d: of six devices four are polled and two train."""
    rule = {"name": "pow_d", "count": 2, "candidates": 4, **changes.pop("rule", {})}
    return run(mixed_scenario(selection=rule, **{"stop": {"rounds": 1}, **changes}))


def losses_of(simulation):
    """Return the loss of the first model on all samples of each device."""
    parts, found = simulation.parts, []
    first = simulation.learner.graph.value(simulation.learner._first)
    for shard in parts.split.train:
        x, y = parts.data.batch("train", torch.from_numpy(shard))
        with torch.no_grad():
            found.append(float(F.cross_entropy(torch.func.functional_call(parts.module, first["params"], x), y)))
    return np.array(found)


def test_the_highest_losses_of_the_candidates_train():
    simulation = polled()
    jobs, losses = simulation.tables["jobs"].frame(), losses_of(simulation)
    polls, trained = jobs[jobs["task"] == "poll"], jobs[jobs["task"] != "poll"]
    assert len(polls) == 4
    by_loss = sorted(polls["device"], key=lambda device: -losses[device])
    assert sorted(trained["device"]) == sorted(by_loss[:2])


@pytest.mark.parametrize("batch", [None, 10])
def test_a_poll_is_charged(batch):
    """The model goes down once, 4 bytes come up, and a forward pass is computed for as many samples as are polled.

    Training waits for the slowest poll.
    """
    simulation = polled(rule={"batch": batch} if batch else {})
    jobs, setting = simulation.tables["jobs"].frame(), simulation.parts.setting
    polls, trained = jobs[jobs["task"] == "poll"], jobs[jobs["task"] != "poll"]
    model_bytes = trained["up_bytes"].iloc[0]
    assert (set(polls["down_bytes"]), set(polls["up_bytes"])) == ({model_bytes}, {4})
    assert set(trained["down_bytes"]) == {0}
    forward = sum(layer.forward_flops for layer in setting.cost_profile.layers)
    assert polls["flops"].tolist() == pytest.approx([forward * (batch or 40)] * 4, rel=1e-12)
    assert (trained["sent_s"] == polls["end_s"].max()).all()
    assert polls["compute_s"].to_numpy() == pytest.approx(
        polls["flops"] / setting.flops_per_s[polls["device"]], rel=1e-12
    )


def test_an_encoded_model_is_sent_again():
    """What training starts from is the decoded model, which the rule of a poll does not keep."""
    jobs = polled(encoding={"down": {"values": "float16"}}).tables["jobs"].frame()
    assert (jobs["down_bytes"] > 0).all()


@pytest.mark.parametrize("method", spread(SELECTING, 6))
def test_polls_go_with_every_method(method):
    """Rounds bring updates of as many devices as are to train, and a method of two exchanges has three."""
    simulation = polled(method=method, stop={"rounds": 2})
    jobs = simulation.tables["jobs"].frame()
    assert jobs[jobs["task"] == "poll"].groupby("round").size().tolist() == [4, 4]
    trained = jobs[jobs["task"] != "poll"]
    assert trained.groupby("round")["device"].nunique().tolist() == [2, 2]
