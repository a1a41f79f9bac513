"""HetLoRA by hand: means with zeros, weights by norms, the penalty of tails and pruning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgesim.core.method import LocalState
from edgesim.core.task import Submodel, Task
from edgesim.methods.hetlora import HetLoRA, kept_of
from tests.conftest import frames
from tests.contracts.support import fingerprint, mixed_scenario, prepare, run
from tests.methods.adapted import PROFILE, RANK1, merged, model, update
from tests.methods.hand_made import setting_of
from tests.methods.recorded import record

PLAIN = {"gamma": 1.0, "weights": "samples"}


def test_means_by_hand():
    """Ranks 1 and 2 with norms 4 and 12: a quarter and three quarters; data sizes are the other way round."""
    updates = [
        update(0, 75, [[2, 0, 0]], [[2], [0]], 4.0),
        update(1, 25, [[0, 1, 0], [0, 4, 0]], [[0, 0], [4, 2]]),
    ]
    before = model([[7] * 3] * 2, [[7] * 2] * 2)
    params = merged(HetLoRA(), None, before, updates).model["params"]
    assert params["l.lora_A.default.weight"].tolist() == [[0.5, 0.75, 0], [0, 3, 0]]
    assert params["l.lora_B.default.weight"].tolist() == [[0.5, 0], [3, 1.5]]
    assert params["head.weight"].tolist() == [3]
    params = merged(HetLoRA(weights="samples"), None, before, updates).model["params"]
    assert params["l.lora_A.default.weight"].tolist() == [[1.5, 0.25, 0], [0, 1, 0]]
    nothing = [update(0, 75, [[2, 0, 0]] * 2, [[0] * 2] * 2), update(1, 25, [[4, 0, 0]] * 2, [[0] * 2] * 2)]
    params = merged(HetLoRA(), None, before, nothing).model["params"]
    assert params["l.lora_A.default.weight"].tolist() == [[2.5, 0, 0]] * 2


def test_equal_ranks_are_fedit_bit_for_bit():
    """Without pruning and weights by norm, at the rank of the network and at a smaller one of all devices."""
    fedit, mine = (run(mixed_scenario(method=method)) for method in ("fedit", {"name": "hetlora", **PLAIN}))
    assert fingerprint(fedit.learner.weights()) == fingerprint(mine.learner.weights())
    assert frames(fedit)["jobs"]["flops"].tolist() == frames(mine)["jobs"]["flops"].tolist()


def test_the_tail_by_autograd():
    """The gradient of tail_penalty |B_tail| |A_tail| as autograd has it; of a rank 2 and gamma 1/2 the last one."""
    method = HetLoRA(gamma=0.5, tail_penalty=0.3)
    state = model([[1, 2, 3], [4, 5, 6]], [[1, -2], [3, 4]])["params"]
    names = list(state)
    leaves = {name: t.clone().requires_grad_() for name, t in state.items()}
    a, b = leaves["l.lora_A.default.weight"][1:], leaves["l.lora_B.default.weight"][:, 1:]
    (0.3 * a.norm() * b.norm()).backward()

    class OfNames:
        trained = names

    (phase,) = method.local(Task()).phases
    given = [torch.ones_like(state[name]) for name in names]
    found = phase.adjust_gradients(given, LocalState({"params": state}), OfNames())
    for name, gradient in zip(names, found, strict=True):
        extra = leaves[name].grad
        torch.testing.assert_close(gradient, 1 + (torch.zeros_like(gradient) if extra is None else extra))
    assert all(bool((each == 1).all()) for each in given)
    zero = model([[1, 2, 3], [4, 5, 6]], [[0, 0], [0, 0]])["params"]
    still = phase.adjust_gradients(given, LocalState({"params": zero}), OfNames())
    assert all(bool((each == 1).all()) for each in still)  # at B = 0 there is no slope


def test_a_device_whose_tail_shrank_prunes_it(monkeypatch):
    """With a strong penalty tails shrink from the second round on: they are sent as zeros, and ranks fall."""
    jobs = record(monkeypatch)
    method = {"name": "hetlora", "gamma": 0.5, "tail_penalty": 20.0}
    training = {"batch": 16, "lr": 0.02}
    simulation = run(mixed_scenario(method=method, training=training, stop={"rounds": 6}))
    ranks = [[], [], [], [], [], []]
    for job in jobs:
        params, pruned = job.result.body["params"], job.result.statistics["pruned"]
        rank = len(params["fc1.lora_A.default.weight"])
        ranks[job.assignment.device].append(rank)
        tail = params["fc2.lora_B.default.weight"][:, kept_of(rank, 0.5) :]
        if rank > 1:
            assert bool(pruned) == (not tail.any())
        before, after = (
            sum(
                float(state[f"{x}.lora_A.default.weight"][kept_of(rank, 0.5) :].norm())
                * float(state[f"{x}.lora_B.default.weight"][:, kept_of(rank, 0.5) :].norm())
                for x in ("fc1", "fc2")
            )
            for state in (job.assignment.global_model["params"], params)
        )
        assert pruned or after >= before or rank == 1
    assert all(each[0] == each[1] == 8 for each in ranks)  # B was 0, so that no tail could shrink
    assert all(np.isin(each, [8, 4, 2, 1]).all() and (np.diff(each) <= 0).all() for each in ranks)
    assert min(map(min, ranks)) < 8
    table = frames(simulation)
    assert table["jobs"]["up_bytes"].nunique() > 1
    assert table["jobs"]["submodel"].nunique() > 1


def test_rounding():
    assert [kept_of(rank, 0.99) for rank in (1, 4, 8, 200)] == [1, 3, 7, 198]
    assert [kept_of(rank, 1.0) for rank in (1, 4)] == [1, 4]


def test_ranks_do_not_fall_below_the_smallest():
    """A rank of 2 with gamma 1/2 falls to 1, or stays if 2 is the smallest."""
    updates = [update(0, 25, [[1] * 3] * 2, [[1] * 2] * 2, statistics={"pruned": 1.0})]
    for ranks, expected in ((None, 1), ((2,), 2), ((1, 2), 1)):
        method = HetLoRA(gamma=0.5, ranks=ranks)
        aggregate = merged(method, {"rank": [2, 2]}, updates[0].body, updates)
        assert aggregate.state["rank"] == [expected, 2]
        assert aggregate.metrics == {"rank": {0: expected}}


def test_price_of_the_penalty():
    """4 FLOPs for each number of the tail and step: of rank 8 and gamma 3/4, two ranks of 128 numbers, twice."""
    flops = []
    for penalty in (0.001, 0.0):
        method = {"name": "hetlora", "gamma": 0.75, "tail_penalty": penalty}
        jobs = frames(run(mixed_scenario(method=method, stop={"rounds": 1})))["jobs"]
        flops.append(jobs["flops"].to_numpy())
    steps = 3  # 40 samples in batches of 16
    assert (flops[0] - flops[1]) == pytest.approx([4 * 2 * 128 * 2 * steps] * 6)


def test_prices_without_training():
    """Of two layers 128 numbers a rank, and a classifier of 64 x 10 + 10: each device keeps the rank of its level."""
    method = {"name": "hetlora", "ranks": [2, 4, 8], "tiers": "level"}
    jobs = frames(run(mixed_scenario(method=method, backend="null", stop={"rounds": 2})))["jobs"]
    expected = [4 * (650 + rank * 2 * 128) for rank in (2, 2, 4, 4, 8, 8) for _ in range(2)]
    assert sorted(jobs["up_bytes"]) == sorted(jobs["down_bytes"]) == expected


def test_work_of_the_server():
    """B^T B and A A^T of rank 1 and 2 with 2 outputs and 3 inputs, their product and its sum."""
    setting, tasks = setting_of([1, 1], {}, cost_profile=PROFILE), [Task(submodel=RANK1), Task(submodel=Submodel())]
    assert HetLoRA().merge_flops_of(tasks, setting) == 2 * (1 + 4) * (3 + 2 + 1)
    assert HetLoRA(weights="samples").merge_flops_of(tasks, setting) == 0
    assert prepare(mixed_scenario(method="hetlora")).learner.state == {"rank": [8] * 6}


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "hetlora": {
        "ranks": "test_ranks_do_not_fall_below_the_smallest",
        "tiers": "test_ranks.py::test_level_i_pays_for_the_ith_rank",
        "proportions": "test_ranks.py::test_proportions",
        "gamma": "test_a_device_whose_tail_shrank_prunes_it",
        "tail_penalty": "test_the_tail_by_autograd",
        "weights": "test_means_by_hand",
    },
}
