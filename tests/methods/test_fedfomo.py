"""FedFomo against plain PyTorch, numbers on paper and prices by hand.

Source: Zhang et al. (2021), equation 3 and section 3.3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Task
from edgesim.methods.fedfomo import BANK, FedFomo, chosen_of, weights_of
from tests.conftest import digits_scenario
from tests.contracts.support import NORMED, mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, server_of, setting_of, view_of
from tests.methods.hand_made import model_of as one_layer
from tests.methods.plain_torch import (
    DEVICES,
    NORMED_UNITS,
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
PARAMS = 6090
CHOSEN = {"name": "fedfomo", "downloads": 2}  # of three devices: all others


def halves(job, seed):
    """Return a job whose device has nothing but its training samples, and the samples that it validates on: a fifth."""
    shard, device = job.trainer.shards[job.assignment.device], job.assignment.device
    order = torch.from_numpy(Key(seed).at(device).numpy().permutation(len(shard)))
    count = max(1, round(0.2 * len(shard)))
    kept = torch.ones(len(shard), dtype=torch.bool)
    kept[order[:count]] = False
    shards = [shard[kept] if place == device else each for place, each in enumerate(job.trainer.shards)]
    return job._replace(trainer=replace(job.trainer, shards=shards)), shard[order[:count]]


def loss_of(job, weights, rows):
    """Return the mean loss of a model in a test on some training samples."""
    x, y = job.trainer.data.batch("train", rows)
    with torch.no_grad():
        return float(cross_entropy(network_of(job, weights).eval()(x), y))


def distance(one, other):
    """Return the Euclidean distance of two models' parameters, as of one vector; running statistics are left out."""
    names = [name for name in one if "running" not in name]
    return float(torch.cat([(one[n].double() - other[n].double()).flatten() for n in names]).norm())


def towards(base, models, weights):
    """Return where a device starts: base + sum of max(w, 0) (model - base) over the sum of max(w, 0)."""
    positive = [max(w, 0.0) for w in weights]
    total = sum(positive) or 1.0
    return {n: t + sum(w / total * (m[n] - t) for w, m in zip(positive, models, strict=True)) for n, t in base.items()}


@pytest.mark.parametrize("model", thinned(["cnn_digits", NORMED_UNITS], [NORMED_UNITS]))
def test_three_rounds_in_plain_torch(monkeypatch, model):
    """Nobody weighs in the first round; then a device goes from its last start towards what is better on its data."""
    jobs = record(monkeypatch)
    similar = {"name": "dirichlet_label", "beta": 3.0}  # so that models of others are of some use
    training = {"batch": 64, "lr": 0.5, "local_epochs": 4}
    simulation = run(three_devices(CHOSEN, model=model, partition=similar, training=training))
    learner = simulation.learner
    state, sums = learner.state, np.zeros((DEVICES, DEVICES))
    starts = [flat(jobs[0].assignment.global_model)] * DEVICES
    own, used, others_count = [None] * DEVICES, [], []
    for number, round_ in enumerate(rounds_of(jobs)):
        new_starts, new_own = [], []
        for device, job in enumerate(round_):
            job, rows = halves(job, state["seed"])
            others = [k for k in range(DEVICES) if k != device]
            candidates = [own[k] for k in (*others, device)] if number else []
            base = loss_of(job, starts[device], rows)
            weights = [(base - loss_of(job, c, rows)) / distance(c, starts[device]) for c in candidates]
            new_starts.append(towards(starts[device], candidates, weights))
            new_own.append(trained(job, new_starts[-1]))
            for other, weight in zip(others, weights, strict=False):
                sums[device, other] += weight
            positive = [max(w, 0.0) for w in weights]
            used.append(sum(positive[:2]) / sum(positive) if sum(positive) else 0.0)
            others_count.append(job.result.statistics["weights"].size)
        starts, own = new_starts, new_own
    assert others_count == [0] * DEVICES + [DEVICES] * 2 * DEVICES
    close_to(flat(learner.weights()), mean(own, [samples_of(job) for job in round_]), atol=1e-5)
    for device in range(DEVICES):
        close_to(flat(learner.method.personal_model(learner.weights(), learner.memory[device])), own[device], 1e-5)
        close_to(flat(BANK.get(learner.weights(), device)), own[device], atol=1e-5)
        for other, found in state["affinity"][device].items():
            assert found == pytest.approx(sums[device, other], rel=1e-2, abs=1e-5)
    metrics = simulation.tables["metrics"].frame().query("name == 'from_others'").sort_values(["round", "device"])
    assert metrics["value"].tolist() == pytest.approx(used, abs=2e-3)
    assert max(used) > 0
    assert min(used[DEVICES:]) < 1


def test_weights_on_paper():
    """(2 - 1) / 2, (2 - 3) / 1, (2 - 1.5) / 0.5; nothing for a model that is where the device is, or has no loss."""
    assert weights_of(2.0, [1.0, 3.0, 1.5], [2.0, 1.0, 0.5]) == [0.5, -1.0, 1.0]
    assert weights_of(2.0, [2.0, float("nan"), float("inf")], [0.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]


def drawn(affinity, count, epsilon, seed=0, others=(0, 2, 3, 5)):
    """Return who is chosen of some others."""
    return chosen_of(others, affinity, count, epsilon, Key(seed).numpy())


def test_the_best_are_chosen():
    """By their sums, unknown ones at 0; all of them if there are no more."""
    assert drawn({0: 0.2, 2: -1.0, 5: 0.3}, 3, 0.0) == [5, 0, 3]
    assert sorted(drawn({0: 0.2}, 9, 0.0)) == [0, 2, 3, 5]
    assert drawn({}, 2, 0.0, others=()) == []
    assert drawn({}, 0, 0.5) == []


def test_equals_are_drawn():
    """Without any weights each of four is among two chosen ones in half of the draws: 600 of 1,200, within 5 sigma."""
    counts = np.zeros(6)
    for seed in range(1200):
        counts[drawn({}, 2, 0.0, seed)] += 1
    assert (np.abs(counts[[0, 2, 3, 5]] - 600) < 5 * np.sqrt(1200 / 4)).all()
    assert counts[[1, 4]].tolist() == [0, 0]


def test_exploring():
    """With probability epsilon any is chosen: of four the best one in 0.6 + 0.4 / 4 = 0.7 of 1,200 draws, 5 sigma."""
    found = [drawn({3: 1.0}, 1, 0.4, seed) for seed in range(1200)]
    assert abs(found.count([3]) - 840) < 5 * np.sqrt(1200 * 0.7 * 0.3)


@pytest.mark.parametrize(("round_", "epsilon"), [(0, 0.3), (2, 0.2), (6, 0.0), (50, 0.0)])
def test_exploring_ends(monkeypatch, round_, epsilon):
    """0.3 less 0.05 a round."""
    seen = []
    monkeypatch.setattr("edgesim.methods.fedfomo.chosen_of", lambda *given: seen.append(given[3]) or [])
    setting, method = setting_of((10, 20), {"a": 1}), FedFomo()
    method.plan(method.init(setting, KEY), view_of(setting, round_), KEY)
    assert seen == pytest.approx([epsilon] * 2)


def sent(device, value, weights, others, samples=10):
    """Return the update of a device that downloaded models of others: weights are theirs, and its own model's."""
    task = Task(down=Payload(collections=frozenset(f"device_{other}" for other in others)))
    update = message_of(device, samples, {"a": [value]})._replace(task=task)
    return update._replace(statistics={"weights": np.array(weights, dtype=np.float32)})


@pytest.mark.parametrize(("offered", "expected"), [("last_round", [1, 2]), ("newest", [0, 1, 2])])
def test_a_merge_on_paper(offered, expected):
    """Means by data size; sums of weights go on; the share of others in 0.5 + 1.5 + 1 is 2/3, that of no weights 0."""
    setting, method = setting_of((10, 30, 10), {"a": 1}), FedFomo(offered=offered)
    server = server_of(view_of(setting))
    first = [sent(0, 4.0, [], []), sent(2, 8.0, [], [])]
    one = method.aggregate(method.init(setting, KEY), one_layer({"a": [1.0]}), first, server, KEY)
    assert (one.state["offered"], one.state["known"]) == ([0, 2], [0, 2])
    then = [sent(1, 2.0, [-1.0, 0.0], [0, 2], 30), sent(2, 6.0, [0.5, 1.0, 1.5], [0, 1], 10)]
    two = method.aggregate(one.state, one.model, then, server, KEY)
    three = method.aggregate(two.state, two.model, then, server, KEY)
    assert two.model["params"]["a.weight"].tolist() == [(30 * 2.0 + 10 * 6.0) / 40]
    assert (two.state["offered"], two.state["known"]) == (expected, [0, 1, 2])
    assert set(two.model) == {"params", "buffers", *(f"device_{k}" for k in expected)}
    values = {0: 4.0, 1: 2.0, 2: 6.0}
    assert [BANK.get(two.model, k)["params"]["a.weight"].item() for k in expected] == [values[k] for k in expected]
    assert two.state["affinity"] == {0: {}, 1: {0: -1.0, 2: 0.0}, 2: {0: 0.5, 1: 1.0}}
    assert three.state["affinity"] == {0: {}, 1: {0: -2.0, 2: 0.0}, 2: {0: 1.0, 1: 2.0}}
    assert two.metrics["from_others"] == {1: 0.0, 2: pytest.approx(0.5)}


@pytest.mark.parametrize(("model", "params", "statistics"), [("cnn_digits", PARAMS, 0), (NORMED, 418, 8)])
def test_prices(model, params, statistics):
    """A new device downloads the global model. Later two others' models, and no more: three with its own are weighed.

    Of 40 samples a device trains on 32 and has 8 for the losses of its start and of three candidates. Each candidate
    takes 5 FLOPs a parameter and its weight 4 bytes.
    """
    fleet = [{"count": 4, "cpu": {"flops_per_s": "50 MFLOP/s"}}]
    scenario = mixed_scenario(method=CHOSEN, model=model, fleet=fleet, protocol={"name": "sync"}, stop={"rounds": 3})
    jobs = run(scenario).tables["jobs"].frame()
    first, later = jobs[jobs["round"] == 0], jobs[jobs["round"] > 0]
    assert (len(first), len(later)) == (4, 8)
    numbers = params + statistics
    assert set(first["down_bytes"]) == {4 * numbers}
    assert set(first["up_bytes"]) == {4 * numbers}
    assert set(later["down_bytes"]) == {2 * 4 * numbers}
    assert set(later["up_bytes"]) == {4 * numbers + 3 * 4}
    if model == "cnn_digits":
        assert set(first["flops"]) == {32 * TRAIN}
        assert set(later["flops"]) == {32 * TRAIN + 4 * 8 * FORWARD + 3 * 5 * PARAMS}


def test_newcomers_weigh_what_they_download():
    """Three of six a round: who comes later downloads the global model and two others', and weighs these two."""
    scenario = mixed_scenario(
        method={**CHOSEN, "offered": "newest"}, protocol={"name": "sync"}, selection={"name": "uniform", "count": 3}
    )
    jobs = run(scenario).tables["jobs"].frame()
    fresh = jobs[~jobs.duplicated("device") & (jobs["round"] > 0)]
    assert len(fresh)
    assert set(fresh["down_bytes"]) == {3 * 4 * PARAMS}
    assert set(fresh["up_bytes"]) == {4 * PARAMS + 2 * 4}
    assert set(fresh["flops"]) == {32 * TRAIN + 3 * 8 * FORWARD + 2 * 5 * PARAMS}


@pytest.mark.parametrize(
    ("samples", "validation", "sizes"), [(40, 0.25, (10, 0, 30)), (1, 0.2, (1, 0, 1)), (40, 0.0, (40, 0, 40))]
)
def test_validation_samples(samples, validation, sizes):
    """A quarter; all for both if there is one alone or none is set apart."""
    setting, method = setting_of((samples,), {"a": 1}), FedFomo(validation=validation)
    looked_at, _, trained_on = sizes
    (order,) = method.plan(method.init(setting, KEY), view_of(setting), KEY).orders
    assert order.task.config["looked_at"] == looked_at
    assert order.task.held_out == samples - trained_on


def test_late_devices_stay_new():
    """Who never delivered keeps no model, and is sent the global one again."""
    simulation = run(mixed_scenario(method=CHOSEN, protocol={"name": "deadline", "deadline": "1.5 s"}))
    jobs = simulation.tables["jobs"].frame()
    late = set(jobs[jobs["outcome"] == "late"]["device"])
    assert late
    assert late.isdisjoint(simulation.learner.memory)
    assert late.isdisjoint(simulation.learner.state["known"])


@pytest.mark.parametrize(
    ("key", "value"), [("downloads", -1), ("validation", 1.0), ("epsilon", 1.5), ("offered", "all")]
)
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedfomo", key: value})


def test_a_task_is_priced_for_what_is_held_out(monkeypatch):
    """A method whose rule leaves out more samples than its task says is refused."""
    task_of = FedFomo._task
    monkeypatch.setattr(FedFomo, "_task", lambda *given: replace(task_of(*given), held_out=3))
    with pytest.raises(ContractError, match="holds out"):
        monkeypatch.setattr(FedFomo, "_sizes", lambda *given: (2, 37))
        run(three_devices(CHOSEN))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedfomo": {
        "downloads": "test_the_best_are_chosen",
        "validation": "test_validation_samples",
        "epsilon": "test_exploring",
        "epsilon_decay": "test_exploring_ends",
        "offered": "test_a_merge_on_paper",
    },
}
