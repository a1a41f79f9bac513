"""FedAdp against numbers on paper and against plain NumPy.

Source: H. Wu, PhD thesis, York University (2023), chapter 3; Wu and Wang (2021), the FedAdp paper.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.methods.fedadp import FedAdp, contribution
from tests.conftest import digits_scenario, frames
from tests.contracts.support import MODELS, fingerprint, merge_arguments, mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

LR = 0.01
NAMES = ("angle_rad", "smoothed_angle_rad", "weight", "divergence")
START = [0.2, -0.1, 0.4]
ROUND_1 = [[-0.010, -0.020, 0.005], [-0.012, -0.016, 0.001], [0.015, -0.002, -0.020]]
ROUND_2 = [[-0.008, -0.015, 0.004], [-0.011, -0.012, 0.002], [-0.010, -0.001, -0.018]]


class Server:
    """A server with a model of one layer that devices move; no state: it has seen nobody."""

    def __init__(self, w, samples, state=None, **settings):
        self.w = np.array(w)
        self.method = FedAdp(**settings)
        self.setting = setting_of(samples, {"w": len(w)}, training=Training(lr=LR, lr_decay=0.995))
        self.state = state or self.method.init(self.setting, KEY)
        self.round = 0

    def merge(self, moves, weights=None, skip=0):
        """Merge these moves, by device, `skip` rounds later; return what the method notes."""
        got = [
            message_of(k, int(self.setting.samples[k]), {"w": (self.w + np.array(move)).tolist()})._replace(
                weight=(weights or {}).get(k, 1.0)
            )
            for k, move in moves.items()
        ]
        self.round += skip
        view = view_of(self.setting, self.round)
        merged = self.method.aggregate(self.state, model_of({"w": self.w.tolist()}), got, server_of(view), KEY)
        self.round += 1
        self.state = merged.state
        if merged.model is not None:
            self.w = merged.model["params"]["w.weight"].numpy().astype(float)
        return {name: list(merged.metrics[name].values()) for name in NAMES if name in merged.metrics}, merged


def knowing(angles):
    """Return the state of a server that has seen each device once, at these angles."""
    return {"angle_rad": dict(enumerate(angles)), "updates": dict.fromkeys(range(len(angles)), 1)}


def by_numpy(moves, samples, before=(), n=1, lr=LR):
    """Return angles, smoothed angles, weights and divergences of moves, straight from the thesis's formulas."""
    g = -np.array(moves) / lr
    mean = np.average(g, axis=0, weights=samples)
    angle = np.arccos(g @ mean / (np.linalg.norm(g, axis=1) * np.linalg.norm(mean)))
    smoothed = angle if n == 1 else (n - 1) / n * np.array(before) + angle / n
    f = 5 * (1 - np.exp(-np.exp(-5 * (smoothed - 1))))
    weights = np.array(samples) * np.exp(f)
    return angle, smoothed, weights / weights.sum(), np.linalg.norm(mean - g, axis=1)


# --- the function of the angle ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "angles_rad", "values"),
    [
        (5, [0, 0.5, 0.8, 1, 1.2, math.pi / 2, 2, math.pi],
         [5.0, 4.999974, 4.670060, 3.160603, 1.538997, 0.279931, 0.033576, 0.000112]),
        (1, [0.2, 1, math.pi / 2], [0.891991, 0.632121, 0.431683]),
        (10, [0, 1, math.pi / 2], [10.0, 6.321206, 0.033139]),
    ],
)  # fmt: skip
def test_contribution(alpha, angles_rad, values):
    """Values by the plain formula in Python's own floats, and printed to six digits; f(1) = alpha (1 - 1/e)."""
    plain = [alpha * (1 - math.exp(-math.exp(-alpha * (angle - 1)))) for angle in angles_rad]
    assert plain == pytest.approx(values, abs=1e-6)
    assert contribution(np.array(angles_rad), alpha).tolist() == pytest.approx(plain, abs=1e-14)


def test_contribution_does_not_overflow():
    """At the largest `alpha` exp(100) is a number: f falls from 100 to 0."""
    with np.errstate(all="raise", under="ignore"):
        assert contribution(np.array([0.0, math.pi]), 100).tolist() == pytest.approx([100.0, 0.0], abs=1e-12)


# --- weights ----------------------------------------------------------------------------------------------------


def moves_at(angles):
    """Return moves in the plane at these angles to the mean of all, whatever they weigh: the rest is a mirror image.

    Each angle stands there twice, above and below the axis, so that the mean of moves of equal weight is on it.
    """
    return [[math.cos(a), sign * math.sin(a)] for a in angles for sign in (1, -1)]


@pytest.mark.parametrize(
    ("samples", "alpha", "expected"),
    [
        ((600, 600, 600, 600), 5, [0.568067, 0.408421, 0.017836, 0.005676]),
        ((600, 600, 300, 1200), 5, [0.569914, 0.409749, 0.008947, 0.011389]),
        ((600, 600, 600, 600), 1, [0.307808, 0.261948, 0.226325, 0.203919]),
    ],
)
def test_weights_of_known_angles(samples, alpha, expected):
    """Angles 0.3, 0.8, 1.2, 1.5: shares of D exp(f). Each twice, in mirror images, so that the mean is the axis."""
    angles = np.array([0.3, 0.8, 1.2, 1.5])
    importance = np.array(samples) * np.exp(alpha * (1 - np.exp(-np.exp(-alpha * (angles - 1)))))
    assert importance / importance.sum() == pytest.approx(expected, abs=1e-6)
    server = Server([0.0, 0.0], np.repeat(samples, 2).tolist(), alpha=alpha)
    metrics, _ = server.merge(dict(enumerate(moves_at(angles))))
    assert metrics["angle_rad"] == pytest.approx(np.repeat(angles, 2).tolist(), abs=1e-6)
    assert np.reshape(metrics["weight"], (4, 2)).sum(axis=1) == pytest.approx(expected, abs=2e-6)


def test_two_rounds():
    """Three devices, the third astray in the first round and less so in the second; angles are averaged over both.

    FedAvg would go to (0.197667, -0.112667, 0.395333) in the first round.
    """
    server = Server(START, (600, 600, 600))
    first, merged = server.merge(dict(enumerate(ROUND_1)))
    angle, smoothed, weights, divergence = by_numpy(ROUND_1, (1, 1, 1))
    assert -np.mean(ROUND_1, axis=0) / LR == pytest.approx([0.233333, 1.266667, 0.466667], abs=1e-6)
    assert angle == pytest.approx([0.631599, 0.602644, 1.324803], abs=1e-6)
    assert weights == pytest.approx([0.494476, 0.497299, 0.008224], abs=1e-6)
    assert divergence.mean() == pytest.approx(1.717506, abs=1e-6)
    for name, column in zip(NAMES, (angle, smoothed, weights, divergence), strict=True):
        assert first[name] == pytest.approx(column.tolist(), rel=1e-4)  # moves of 0.01 from 0.4 in float32
    assert merged.metrics["mean_divergence"] == pytest.approx(1.717506, rel=1e-4)
    assert server.w == pytest.approx([0.189211, -0.117863, 0.402805], abs=1e-6)
    assert np.mean(ROUND_1, axis=0) + START == pytest.approx([0.197667, -0.112667, 0.395333], abs=1e-6)

    second, _ = server.merge(dict(enumerate(ROUND_2)))
    angle, smoothed, weights, divergence = by_numpy(ROUND_2, (1, 1, 1), smoothed, n=2, lr=0.995 * LR)
    assert angle == pytest.approx([0.605379, 0.415976, 0.907318], abs=1e-6)
    assert smoothed == pytest.approx([0.618489, 0.509310, 1.116061], abs=1e-6)
    assert weights == pytest.approx([0.484567, 0.487429, 0.028005], abs=1e-6)
    for name, column in zip(NAMES, (angle, smoothed, weights, divergence), strict=True):
        assert second[name] == pytest.approx(column.tolist(), rel=1e-4)
    assert server.w == pytest.approx([0.179693, -0.131008, 0.405214], abs=1e-6)


def test_the_mean_that_angles_are_taken_to_goes_by_data_size():
    """A device with 3 of 4 samples: the mean of (1, 0) and (0, 1) points to (3, 1), atan(1/3) from the large one."""
    metrics, _ = Server([0.0, 0.0], (300, 100)).merge({0: [1, 0], 1: [0, 1]})
    assert metrics["angle_rad"] == pytest.approx([math.atan(1 / 3), math.atan(3)], abs=1e-12)


def test_the_protocol_s_weight_counts():
    """400 samples of weight 1/4 are worth 100, in the mean and in the weights."""
    late, _ = Server([0.0, 0.0], (300, 400)).merge({0: [1, 0], 1: [0, 1]}, weights={1: 0.25})
    timely, _ = Server([0.0, 0.0], (300, 100)).merge({0: [1, 0], 1: [0, 1]})
    assert [late[name] for name in NAMES] == [pytest.approx(timely[name], rel=1e-12) for name in NAMES]


def test_all_layers_are_one_vector():
    """Two layers whose angles to their means differ: the angle is that of the joined vectors."""
    moves = [([1.0, 0.0], [[0.0], [2.0]]), ([0.0, 1.0], [[1.0], [2.0]])]
    base = {"params": {"a": torch.zeros(2), "b": torch.zeros(2, 1)}, "buffers": {"c": torch.zeros(1)}}
    got = [
        message_of(k, 1, {})._replace(
            body={"params": {"a": torch.tensor(a), "b": torch.tensor(b)}, "buffers": {"c": torch.tensor([9.0 * k])}}
        )
        for k, (a, b) in enumerate(moves)
    ]
    server = Server([0.0, 0.0], (1, 1))
    merged = server.method.aggregate(server.state, base, got, server_of(view_of(server.setting)), KEY)
    joined = np.array([[*a, *np.ravel(b)] for a, b in moves])
    angle, _, weights, _ = by_numpy(joined, (1, 1))
    assert list(merged.metrics["angle_rad"].values()) == pytest.approx(angle.tolist(), abs=1e-12)
    assert merged.model["params"]["b"].ravel().numpy() == pytest.approx((weights @ joined)[2:], rel=1e-6)
    assert merged.model["buffers"]["c"].item() == pytest.approx(9 * weights[1], rel=1e-6)


# --- what the papers leave open ---------------------------------------------------------------------------------


def test_who_did_not_move_is_at_a_right_angle():
    """Of (1, 0) and (0, 0) the angles are 0 and pi / 2, so that f = 5 and 0.279931; or what the setting says."""
    importance = np.exp([5.0, 0.279931])
    assert importance / importance.sum() == pytest.approx([0.991164, 0.008836], abs=1e-6)
    metrics, _ = Server([0.0, 0.0], (1, 1)).merge({0: [1, 0], 1: [0, 0]})
    assert metrics["angle_rad"] == [0.0, math.pi / 2]
    assert metrics["weight"] == pytest.approx([0.991164, 0.008836], abs=1e-6)
    metrics, _ = Server([0.0, 0.0], (1, 1), zero_angle_rad=0.0).merge({0: [1, 0], 1: [0, 0]})
    assert metrics["weight"] == [0.5, 0.5]


def test_moves_that_cancel_out_point_nowhere():
    """(1, 0) and (-1, 0): the mean is zero and both are at right angles to it."""
    metrics, _ = Server([0.0, 0.0], (1, 1)).merge({0: [1, 0], 1: [-1, 0]})
    assert metrics["angle_rad"] == [math.pi / 2] * 2
    assert metrics["weight"] == [0.5, 0.5]


@pytest.mark.parametrize(("lone_update", "smoothed_rad", "updates"), [("counts", 0.4, 2), ("ignored", 0.8, 1)])
def test_an_update_alone(lone_update, smoothed_rad, updates):
    """It is taken as it is; its angle of 0 halves the device's 0.8, or leaves it."""
    server = Server([0.0, 0.0], (1, 1), knowing([0.3, 0.8]), lone_update=lone_update)
    metrics, _ = server.merge({1: [3, 4]})
    assert server.w.tolist() == [3.0, 4.0]
    assert (metrics["weight"], metrics["divergence"]) == ([1.0], [0.0])
    assert metrics.get("angle_rad") == {"counts": [0.0], "ignored": None}[lone_update]
    assert server.state["angle_rad"] == {0: 0.3, 1: pytest.approx(smoothed_rad)}
    assert server.state["updates"] == {0: 1, 1: updates}


def test_an_update_alone_that_did_not_move():
    """Where all of one arrive there is nothing to differ from: 0, not the angle of a zero among others."""
    metrics, _ = Server([0.0, 0.0], (1, 1)).merge({0: [0, 0]})
    assert (metrics["angle_rad"], metrics["weight"]) == ([0.0], [1.0])


def test_nobody_came():
    """The model and all that is known stay."""
    server = Server([0.0, 0.0], (1, 1), knowing([0.3, 0.8]))
    _, merged = server.merge({})
    assert merged.model is None
    assert merged.state == knowing([0.3, 0.8])


@pytest.mark.parametrize(("smooth_over", "share"), [("updates", 1 / 2), ("rounds", 1 / 6)])
def test_a_device_that_missed_rounds(smooth_over, share):
    """Seen at 0 in round 1 and at atan(1) in round 6: its second update, the run's sixth round. Others do not change.

    A device first seen in round 6 is smoothed by nothing.
    """
    server = Server([0.0, 0.0], (1, 1, 1), smooth_over=smooth_over)
    server.merge({0: [1, 0], 2: [1, 0]})
    before = fingerprint(server.state)
    known = server.state
    metrics, _ = server.merge({0: [1, 0], 1: [0, 1]}, skip=4)
    assert metrics["angle_rad"] == pytest.approx([math.pi / 4] * 2)
    assert metrics["smoothed_angle_rad"] == pytest.approx([share * math.pi / 4, math.pi / 4])
    assert server.state["angle_rad"][2] == 0.0
    assert server.state["updates"] == {0: 2, 2: 1, 1: 1}
    assert fingerprint(known) == before


def test_angles_of_the_rounds_before():
    """Known at 0 and 1.5, two devices now point alike, 45 degrees off: "previous" weighs them by what was known."""
    moves = {0: [1, 0], 1: [0, 1]}
    for weigh_by, angles in (("current", [math.pi / 8, (1.5 + math.pi / 4) / 2]), ("previous", [0.0, 1.5])):
        server = Server([0.0, 0.0], (1, 1), knowing([0.0, 1.5]), weigh_by=weigh_by)
        metrics, _ = server.merge(moves)
        importance = np.exp([5 * (1 - math.exp(-math.exp(-5 * (a - 1)))) for a in angles])
        assert metrics["weight"] == pytest.approx((importance / importance.sum()).tolist(), rel=1e-9)
        assert metrics["smoothed_angle_rad"] == pytest.approx([math.pi / 8, (1.5 + math.pi / 4) / 2])


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 0},
        {"alpha": 2.5},
        {"alpha": 101},
        {"smooth_over": "time"},
        {"weigh_by": "next"},
        {"lone_update": "skipped"},
        {"zero_angle_rad": 3.2},
    ],
)
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedadp", **wrong})


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_moves_of_real_training(model):
    """NumPy's angles and weights of the arrived models, all parameters in a row, are those of the notes."""
    simulation = prepare(mixed_scenario(method="fedadp", model=model))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, got, server, key)

    def flat(model_state):
        return np.concatenate([t.double().numpy().ravel() for t in model_state["params"].values()])

    moves = [flat(message.body) - flat(base) for message in got]
    angle, _, weights, divergence = by_numpy(moves, [m.samples for m in got], lr=server.setting.training.lr)
    for name, column in zip(NAMES, (angle, angle, weights, divergence), strict=True):
        assert list(merged.metrics[name].values()) == pytest.approx(column.tolist(), rel=1e-9)
    assert flat(merged.model) == pytest.approx(flat(base) + weights @ np.array(moves), abs=1e-6)


def test_notes_are_written():
    """A row for every device and round, and one for the mean of the divergences; weights of a round sum to 1."""
    simulation = run(mixed_scenario(method="fedadp", selection={"name": "uniform", "count": 3}, stop={"rounds": 4}))
    metrics = frames(simulation)["metrics"]
    by_device = metrics[metrics["device"] >= 0]
    assert set(by_device["name"]) == set(NAMES)
    assert by_device.groupby(["name", "round"]).size().tolist() == [3] * 16
    sums = by_device[by_device["name"] == "weight"].groupby("round")["value"].sum()
    assert sums.tolist() == pytest.approx([1.0] * 4)
    means = metrics[metrics["name"] == "mean_divergence"].set_index("round")
    of_devices = by_device[by_device["name"] == "divergence"].groupby("round")["value"].mean()
    assert set(means["device"]) == {-1}
    assert means["value"].tolist() == pytest.approx(of_devices.tolist())


def test_devices_do_what_they_do_in_fedavg():
    """The same jobs, to the last byte and joule."""
    tables = [frames(run(mixed_scenario(method=method, backend="null"))) for method in ("fedadp", "fedavg")]
    assert tables[0]["jobs"].equals(tables[1]["jobs"])


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedadp": {
        "alpha": "test_contribution",
        "smooth_over": "test_a_device_that_missed_rounds",
        "weigh_by": "test_angles_of_the_rounds_before",
        "lone_update": "test_an_update_alone",
        "zero_angle_rad": "test_who_did_not_move_is_at_a_right_angle",
    },
}
