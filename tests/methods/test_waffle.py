"""WAFFLE against numbers on paper and the whole algorithm once more in PyTorch.

Source: Beaussart et al. (2021), by a summary of their formulas.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.waffle import Waffle, alphas_of
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import DEVICES, rounds_of, three_devices
from tests.methods.recorded import close_to, record
from tests.methods.test_scaffold import in_pytorch

PARAMS = 6090  # of cnn_digits


def curve(round_, rounds, slope=3.2):
    """Return W."""
    return 1 / (1 + math.exp(slope * (round_ / (rounds / 2) - 1)))


def squared(one, other):
    """Return the squared distance of two sets of parameters."""
    return sum(float((one[n].double() - other[n].double()).square().sum()) for n in one)


def plain_alphas(models, target, w):
    """Return the weights of three devices, by their formulas: numbers one by one."""
    d = {k: squared(m, models[target]) for k, m in enumerate(models) if k != target}
    least, largest = min(d.values()), max(d.values())
    d[target] = least * (1 - (largest - least) / largest * (1 - w))
    raw = [max(w - (d[k] - d[target]) / (largest - d[target]), 0.0) for k in range(len(models))]
    return [a / sum(raw) for a in raw]


def test_the_whole_algorithm(monkeypatch):
    """Three devices, four rounds: models, control variates, and weights that are means of the last two rounds."""
    jobs = record(monkeypatch)
    method = {"name": "waffle", "target": 1, "rounds": 4, "average": 2, "eta_g": 0.7}
    simulation = run(three_devices(method, stop={"rounds": 4}, training={"batch": 32, "lr": 0.05}))
    x = jobs[0].assignment.global_model["params"]
    zeros = {name: torch.zeros_like(t) for name, t in x.items()}
    c, own, history, used = zeros, [zeros] * DEVICES, [], []
    for round_, at_work in enumerate(rounds_of(jobs)):
        models, moved = [], []
        for device, job in enumerate(at_work):
            model, new, _ = in_pytorch(job, c, own[device], "II")
            models.append({name: t.detach() for name, t in model.items()})
            moved.append({name: new[name] - own[device][name] for name in new})
            own[device] = new
        history.append(plain_alphas(models, 1, curve(round_, 4)))
        alpha = np.mean(history[-2:], axis=0)
        used.append(alpha.tolist())
        x = {n: old + 0.7 * (sum(a * m[n] for a, m in zip(alpha, models, strict=True)) - old) for n, old in x.items()}
        c = {n: old + sum(a * m[n] for a, m in zip(alpha, moved, strict=True)) for n, old in c.items()}
    close_to(simulation.learner.weights()["params"], x, atol=2e-5)
    close_to(simulation.learner.weights()["control"], c, atol=1e-4)
    metrics = simulation.tables["metrics"].frame().query("name == 'alpha'").sort_values(["round", "device"])
    assert metrics["value"].to_numpy().reshape(4, DEVICES) == pytest.approx(np.array(used), abs=1e-3)


def test_weights_on_paper():
    """d = 2, 4 and, of the target at W = 1/2, 2 (1 - 1/2 x 1/2) = 1.5: 1/2 - 0.5 / 2.5 = 0.3, -1/2 and 1/2."""
    assert alphas_of(np.array([2.0, 4.0, 0.0]), 2, 0.5).tolist() == pytest.approx([0.375, 0.0, 0.625])
    assert alphas_of(np.array([0.0, 2.0, 4.0]), 0, 0.5).tolist() == pytest.approx([0.625, 0.375, 0.0])


def test_weights_where_nobody_differs():
    """Equally far ones, and ones that are where the target is, count like it; alone it has all."""
    assert alphas_of(np.array([3.0, 0.0, 3.0]), 1, 0.9).tolist() == pytest.approx([1 / 3] * 3)
    assert alphas_of(np.zeros(4), 1, 0.1).tolist() == pytest.approx([0.25] * 4)
    assert alphas_of(np.zeros(1), 0, 0.5).tolist() == [1.0]


def test_in_the_end_the_target_is_alone():
    """At W near 0 whoever is not next to it has no weight."""
    assert alphas_of(np.array([1.0, 0.0, 4.0]), 1, 0.05).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("slope", [3.2, 1e4])
def test_the_curve(slope):
    """1 / (1 + e^(3.2 (r / (R / 2) - 1))): 0.96, 1/2 and 0.04, where it stays; steep ones end above 0."""
    method = Waffle(slope=slope, rounds=10)
    assert method.openness(5) == 0.5
    assert method.openness(12) == method.openness(10) > 0
    if slope == 3.2:
        found = [method.openness(r) for r in (0, 3, 10)]
        assert found == pytest.approx([1 / (1 + math.exp(-3.2)), 1 / (1 + math.exp(-1.28)), 1 / (1 + math.exp(3.2))])


@pytest.mark.parametrize("weights", ["equal", "samples"])
def test_a_merge_on_paper(weights):
    """The target 2 is at 0, others at sqrt 2 and 2: weights 0.375, 0, 0.625; by data size 30 x 0.375 and 70 x 0.625.

    A round without the target goes by these, one with others than any that have been seen by equal ones; of the last
    two rounds the mean counts: of 0.375 and 0 for the first, which then is the one farther away.
    """
    setting = setting_of((30, 10, 70), {"a": 1})
    method, server = Waffle(target=2, weights=weights, rounds=2, average=2), server_of(view_of(setting, 1))
    at = {0: 2**0.5, 1: -2.0, 2: 0.0}

    def merged(state, places):
        updates = [message_of(k, int(setting.samples[k]), {"a": [value]}) for k, value in places.items()]
        return method.combine(state, model_of({"a": [1.0]}), updates, server, KEY)

    first = merged(method.init(setting, KEY), at)
    share = 0.375 if weights == "equal" else 30 * 0.375 / (30 * 0.375 + 70 * 0.625)
    assert first.model["params"]["a.weight"].item() == pytest.approx(share * 2**0.5)
    assert first.metrics["alpha"] == pytest.approx({0: 0.375, 1: 0.0, 2: 0.625})
    assert merged(first.state, {0: 1.0, 1: 3.0}).metrics["alpha"] == {0: 1.0, 1: 0.0}
    assert merged(method.init(setting, KEY), {0: 1.0, 1: 3.0}).metrics["alpha"] == {0: 0.5, 1: 0.5}
    then = merged(first.state, {0: 2.0, 1: 2**0.5, 2: 0.0})
    assert then.metrics["alpha"] == pytest.approx({0: 0.1875, 1: 0.1875, 2: 0.625})
    third = merged(then.state, {0: 2.0, 1: 2**0.5, 2: 0.0})
    assert third.metrics["alpha"] == pytest.approx({0: 0.0, 1: 0.375, 2: 0.625})


def test_the_target_takes_part():
    """Two of six in each of eight rounds, one of which is device 4; the other is not always the same."""
    scenario = digits_scenario(
        method={"name": "waffle", "target": 4},
        selection={"name": "uniform", "count": 2},
        stop={"rounds": 8},
        backend="null",
    )
    jobs = frames(simulate_null(scenario))["jobs"]
    asked = jobs.groupby("round")["device"].agg(set)
    assert len(asked) == 8
    assert all(4 in devices and len(devices) == 2 for devices in asked)
    assert len(set().union(*asked)) > 2


def test_the_server_pays_for_distances():
    """Five others of six: 5 x 3 x 6,090 FLOPs on top of SCAFFOLD's, at 1 MFLOP/s."""
    server, seconds = {"flops_per_s": "1 MFLOP/s"}, []
    for name in ("scaffold", {"name": "waffle", "target": 2}):
        scenario = mixed_scenario(method=name, server=server, protocol={"name": "sync"}, backend="null")
        seconds.append(frames(simulate_null(scenario))["rounds"]["server_s"].to_numpy())
    assert seconds[1] - seconds[0] == pytest.approx(5 * 3 * PARAMS / 1e6)


@pytest.mark.parametrize("wrong", [{"target": -1}, {"slope": 0}, {"rounds": 0}, {"average": 0}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "waffle", **wrong})


def test_a_target_that_is_not_there():
    with pytest.raises(ConfigError, match=r"method\.target: must be one of the 6 devices .* 0 to 5; found 6"):
        run(mixed_scenario(method={"name": "waffle", "target": 6}, backend="null"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "waffle": {
        "option": "test_scaffold.py::test_the_whole_algorithm",
        "eta_g": "test_scaffold.py::test_server",
        "weights": "test_a_merge_on_paper",
        "target": "test_the_target_takes_part",
        "slope": "test_the_curve",
        "rounds": "test_the_curve",
        "average": "test_a_merge_on_paper",
    },
}
