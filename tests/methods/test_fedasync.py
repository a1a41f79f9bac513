"""FedAsync against numbers on paper.

Source: Xie et al. (2019), algorithm 1 and its functions of staleness.
"""

from __future__ import annotations

import pytest

from edgesim.core.errors import ConfigError
from edgesim.engine.protocols.buffered import Buffered
from edgesim.methods.fedasync import FedAsync
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of
from tests.plugins.one_number import JOB_FLOPS, moved, numbers, scenario

EACH = {"name": "buffered", "concurrency": 2, "buffer": 1, "reassign": "same"}
ALONE = {**EACH, "concurrency": 1}


def mixed(x, arrived, **settings):
    """Return what FedAsync makes of the number x and (model, weight) pairs, in the order of their jobs."""
    got = [message_of(k, 100, {"w": [w]})._replace(weight=s) for k, (w, s) in enumerate(arrived)]
    merged = FedAsync(**settings).aggregate({}, model_of({"w": [x]}), got, server_of(), KEY)
    return None if merged.model is None else merged.model["params"]["w.weight"].item()


@pytest.mark.parametrize(
    ("rule", "staleness", "share"),
    [
        ({"staleness": "constant"}, 99, 0.6),
        ({"staleness": "polynomial", "a": 0.5}, 3, 0.3),  # 0.6 / sqrt(4)
        ({}, 3, 0.3),  # the defaults
        ({"staleness": "hinge", "a": 10, "b": 4}, 6, 0.028571),  # 0.6 / (10 x 2 + 1)
        ({"staleness": "hinge"}, 4, 0.6),
        ({"staleness": "hinge"}, 6, 0.028571),
    ],
)
def test_shares(rule, staleness, share):
    """alpha = 0.6 times the function of staleness."""
    assert 0.6 * Buffered(concurrency=1, **rule).weight(staleness) == pytest.approx(share, abs=5e-7)


def test_a_model_is_mixed_in():
    """x = 10, w = 20: 0.3 of the way is 13, all of the way exactly 20."""
    assert mixed(10.0, [(20.0, 0.5)], alpha=0.6) == pytest.approx(13, rel=1e-6)
    assert mixed(10.0, [(20.0, 1.0)], alpha=1.0) == 20


def test_models_of_one_merge_come_one_after_the_other():
    """0 -> 0.5 x 1 = 0.5, then a quarter of the way to 3: 1.125. The other way round: 0.75, then 0.875."""
    assert mixed(0.0, [(1.0, 1.0), (3.0, 0.5)], alpha=0.5) == 1.125
    assert mixed(0.0, [(3.0, 0.5), (1.0, 1.0)], alpha=0.5) == 0.875


def test_a_diverged_model_is_left_out():
    """A model that is not finite counts as if it had not come; nothing at all leaves the old one."""
    assert mixed(0.0, [(float("nan"), 1.0), (1.0, 1.0)], alpha=0.5) == 0.5
    assert mixed(0.0, [(float("inf"), 1.0)]) is None
    assert mixed(0.0, []) is None


@pytest.mark.parametrize(
    ("seconds", "moves", "expected"),
    [
        ([1, 3], [1, -2], [(1, 0.5), (2, 1.0), (3, 1.5), (3, 0.625), (4, 1.287912)]),
        ([3, 1], [-2, 1], [(1, 0.5), (2, 1.0), (3, 0.133975), (3, 0.793714)]),
    ],
)
def test_timeline(seconds, moves, expected):
    """A needs 1 s and returns start + 1, B needs 3 s and returns start - 2; alpha 0.5, polynomial staleness.

    If A is device 0 it goes first at 3 s: (1.0 + 2.0) / 2 = 1.5, and gets that model; then B, three merges old, counts
    0.5 / 2: 0.75 x 1.5 - 0.25 x 2 = 0.625. At 4 s A, now one merge old: 0.625 + (2.5 - 0.625) 0.5 / sqrt(2).
    If B is device 0, though A's job is the older one: 1.0 - 3.0 x 0.5 / sqrt(3), then 2.0 counts 0.5 / sqrt(2).
    """
    method = moved("Async", moves, alpha=0.5, rho=0)
    given = scenario(seconds, method=method, protocol=EACH, backend="serial", stop={"rounds": len(expected)})
    assert numbers(given)[1] == [pytest.approx(pair, abs=1e-6) for pair in expected]


def test_alpha_stays_as_it_is():
    """One device, never stale: 0, then half of the way to start + 1 every time, not a quarter or an eighth."""
    given = scenario(
        [1], method=moved("Async", [1], alpha=0.5, rho=0), protocol=ALONE, backend="serial", stop={"rounds": 5}
    )
    assert [number for _, number in numbers(given)[1]] == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_the_proximal_term_holds_a_device_back():
    """Three steps of +1 with rho = 0.5: 1, 1 + 1 - 0.5, 1.5 + 1 - 0.75 = 1.75. A step costs 2 FLOPs a parameter."""
    steps = {}
    for rho in (0.0, 0.5):
        method = moved("Async", [1], alpha=1.0, rho=rho)
        training = {"batch": 1, "lr": 1.0}
        given = scenario([1], method=method, protocol=ALONE, backend="serial", training=training, stop={"rounds": 1})
        simulation, seen = numbers(given)
        steps[rho] = (seen[0][1], frames(simulation)["jobs"]["flops"][0])
    assert steps == {0.0: (3.0, JOB_FLOPS), 0.5: (1.75, JOB_FLOPS + 3 * 2)}


def test_the_learning_rate_falls_with_the_merges():
    """1, then half of a step, then a quarter."""
    given = scenario(
        [1], method=moved("Async", [1], alpha=1.0, rho=0), protocol=ALONE, backend="serial",
        training={"batch": 3, "lr": 1.0, "lr_decay": 0.5}, stop={"rounds": 3},
    )  # fmt: skip
    assert [number for _, number in numbers(given)[1]] == [1.0, 1.5, 1.75]


def test_one_device_that_counts_in_full_is_fedavg():
    """With alpha 1, without the proximal term and with nobody else, every merge takes the device's model as it is."""
    fleet = [{"cpu": {"flops_per_s": "100 MFLOP/s"}}]
    given = {"fleet": fleet, "selection": "all", "partition": {"name": "iid", "samples_per_device": 60}}
    runs = [
        run(digits_scenario(method=method, protocol=protocol, **given))
        for method, protocol in (({"name": "fedasync", "alpha": 1, "rho": 0}, ALONE), ("fedavg", "sync"))
    ]
    assert fingerprint(runs[0].learner.weights()) == fingerprint(runs[1].learner.weights())


def test_it_sends_models_and_nothing_else():
    """What holds a device back stays on it; running statistics travel and are mixed."""
    method = {"name": "fedasync", "alpha": 0.5}
    given = digits_scenario(
        model="tests.plugins.networks:TinyNorm", method=method, protocol={**EACH, "concurrency": 1},
        partition={"name": "iid", "samples_per_device": 40}, stop={"rounds": 1},
    )  # fmt: skip
    simulation = prepare(given)
    before = simulation.learner.weights()
    bodies, really_train = [], simulation.learner.backend.train
    simulation.learner.backend.train = lambda given: [bodies.append(r.body) or r for r in really_train(given)]
    simulation.run()
    assert [body.keys() for body in bodies] == [{"params", "buffers"}]
    for kind, tensors in simulation.learner.weights().items():
        for name, tensor in tensors.items():
            half_way = (before[kind][name].double() + bodies[0][kind][name].double()) / 2
            assert tensor.double().numpy() == pytest.approx(half_way.numpy(), abs=1e-6)


def test_rounds_are_refused():
    """It is a method without rounds."""
    with pytest.raises(ConfigError, match=r"protocol\.name: fedasync runs on buffered, found sync"):
        prepare(digits_scenario(method="fedasync"))


@pytest.mark.parametrize("wrong", [{"alpha": 0}, {"alpha": 1.1}, {"rho": -0.1}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedasync", **wrong}, protocol=EACH)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedasync": {
        "alpha": "test_a_model_is_mixed_in",
        "rho": "test_the_proximal_term_holds_a_device_back",
    },
}
