"""IFCA against plain PyTorch, FedAvg and prices on paper.

Source: Ghosh et al. (2020), algorithm 1, option II.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from edgesim.core.errors import ConfigError
from edgesim.methods.ifca import IFCA, models_of
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, results_of, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import (
    DEVICES,
    NORMED_UNITS,
    PARAMS,
    flat,
    mean,
    network_of,
    rounds_of,
    samples_of,
    three_devices,
    trained,
)
from tests.methods.recorded import close_to, record
from tests.sizes import thinned

TRAIN, FORWARD = 168448 + 168448 + 150016, 168448  # FLOPs a sample of cnn_digits


@pytest.mark.parametrize("model", thinned(["cnn_digits", NORMED_UNITS], [NORMED_UNITS]))
def test_three_rounds_in_plain_torch(monkeypatch, model):
    """Each device trains what has the least loss on all of its data, and each cluster is the mean by data size."""
    jobs = record(monkeypatch)
    simulation = run(three_devices({"name": "ifca", "clusters": 3}, model=model))
    learner = simulation.learner
    seed = learner.state["seed"]
    models = [flat(each) for each in models_of(jobs[0].assignment.global_model, 3, seed)]
    chosen = []
    for round_ in rounds_of(jobs):
        choices, new = [], []
        for job in round_:
            x, y = job.trainer.data.batch("train", job.trainer.shards[job.assignment.device])
            with torch.no_grad():
                losses = [float(cross_entropy(network_of(job, each).eval()(x), y)) for each in models]
            choices.append(int(np.argmin(losses)))
            new.append(trained(job, models[choices[-1]]))
        for number in set(choices):
            own = [place for place, choice in enumerate(choices) if choice == number]
            models[number] = mean([new[p] for p in own], [samples_of(round_[p]) for p in own])
        chosen.append(choices)
    for found, expected in zip(models_of(learner.weights(), 3, seed), models, strict=True):
        close_to(flat(found), expected, atol=1e-5)
    assert len({choice for choices in chosen for choice in choices}) > 1
    metrics = simulation.tables["metrics"].frame().query("name == 'cluster'").sort_values(["round", "device"])
    assert metrics["value"].tolist() == [float(choice) for choices in chosen for choice in choices]
    for device in range(DEVICES):
        used = learner.method.personal_model(learner.weights(), learner.memory[device])
        close_to(flat(used), models[chosen[-1][device]], atol=1e-5)


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_one_cluster_is_fedavg(model):
    """Tables and weights, bit for bit."""
    runs = [
        results_of(run(mixed_scenario(model=model, method=method)))
        for method in ("fedavg", {"name": "ifca", "clusters": 1})
    ]
    assert {name: runs[0][name] for name in runs[0] if name != "memory"} == {
        name: runs[1][name] for name in runs[1] if name != "memory"
    }


def test_first_models_are_draws_of_their_own():
    """The same numbers in another order, tensor by tensor: the same from the same seed, others from another."""
    first = {"params": {"a.weight": torch.randn(4, 5), "a.bias": torch.arange(3.0)}, "buffers": {"a.m": torch.ones(2)}}
    one, two, three = models_of(first, 3, 7)
    assert fingerprint(one) == fingerprint(first)
    for each in (two, three):
        for name, t in first["params"].items():
            assert each["params"][name].flatten().sort().values.equal(t.flatten().sort().values)
        assert not each["params"]["a.weight"].equal(first["params"]["a.weight"])
        assert each["buffers"] is first["buffers"]
    assert not two["params"]["a.weight"].equal(three["params"]["a.weight"])
    assert fingerprint(models_of(first, 3, 7)) == fingerprint([one, two, three])
    assert fingerprint(models_of(first, 3, 8)[1]) != fingerprint(two)


def test_a_cluster_is_the_mean_of_who_chose_it():
    """10 and 30 samples at 1 and 5 are 4; the second cluster got 7 from one device; nobody chose the third."""
    setting, method = setting_of((10, 30, 20), {"a": 1}), IFCA(clusters=3)
    updates = [
        message_of(device, samples, {"a": [value]})._replace(statistics={"cluster": cluster})
        for device, samples, value, cluster in ((0, 10, 1.0, 0), (1, 30, 5.0, 0), (2, 20, 7.0, 1))
    ]
    state, old = method.init(setting, KEY), model_of({"a": [9.0]})
    merged = method.aggregate(state, old, updates, server_of(view_of(setting)), KEY)
    models = models_of(merged.model, 3, state["seed"])
    assert [each["params"]["a.weight"].tolist() for each in models] == [[4.0], [7.0], [9.0]]
    assert merged.metrics["cluster"] == {0: 0, 1: 0, 2: 1}


@pytest.mark.parametrize("clusters", [2, 4])
@pytest.mark.parametrize(("model", "params", "statistics"), [("cnn_digits", 6090, 0), (NORMED, 418, 8)])
def test_bytes(clusters, model, params, statistics):
    """All models come down, running statistics too; one goes up, with a byte for its number."""
    scenario = digits_scenario(method={"name": "ifca", "clusters": clusters}, model=model, backend="null")
    jobs = frames(simulate_null(scenario))["jobs"]
    assert set(jobs["down_bytes"]) == {4 * clusters * (params + statistics)}
    assert set(jobs["up_bytes"]) == {4 * (params + statistics) + 1}


@pytest.mark.parametrize("clusters", [1, 2, 4])
def test_work(clusters):
    """Each of 40 samples runs forward through every model, unless there is only one, and one is trained."""
    scenario = digits_scenario(
        method={"name": "ifca", "clusters": clusters},
        partition={"name": "iid", "samples_per_device": 40},
        backend="null",
    )
    jobs = frames(simulate_null(scenario))["jobs"]
    assert set(jobs["flops"]) == {40 * (TRAIN + (clusters * FORWARD if clusters > 1 else 0))}
    assert sum(PARAMS.values()) == 6090


def test_settings_out_of_range():
    with pytest.raises(ConfigError, match=r"method\.clusters"):
        digits_scenario(method={"name": "ifca", "clusters": 0})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "ifca": {
        "clusters": "test_three_rounds_in_plain_torch",
    },
}
