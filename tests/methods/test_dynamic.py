"""Weights by degrees of non-IID data and the gradient of the loss to them, against vectors and finite differences.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedDH). The loss
of the vectors is |w - c|^2 / 2, so that its gradient at w is w - c.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.measure.step import measure
from edgesim.learning.submodel.slicing import extract
from edgesim.methods.weighting.dynamic import (
    Degrees,
    Rates,
    degree_slopes,
    gains,
    js_divergence,
    pseudo_gradient,
    shares_of,
    stepped,
    weights_of,
)
from tests.methods.hand_made import message_of, model_of
from tests.sizes import examples

COUNTS = np.array([[10, 0, 0, 0], [5, 5, 5, 5], [0, 2, 8, 10]])
SIZES = COUNTS.sum(axis=1).astype(float)
MEAN = np.array([0.3, 0.14, 0.26, 0.3])
JS = js_divergence(shares_of(COUNTS), MEAN)
LEARNED = Degrees(JS, np.array([1.2, 0.8, 1.0]), np.array([0.05, 0.03, 0.1]))

MODELS = [(1.0, 0.0), (0.0, 1.0), (-1.0, 2.0)]
C = np.array([0.5, 0.5])
EVERYTHING = ({"x", "y"},) * 3
SOME = ({"x"}, {"x", "y"}, {"y"})  # device 1 lacks the second coordinate, device 3 the first


def in_float64(model):
    """Return a bundle in double precision."""
    return {kind: {n: t.double() for n, t in tensors.items()} for kind, tensors in model.items()}


def messages(held=EVERYTHING, steps=1):
    """Return what the three devices sent: the coordinates that they hold, each a layer of its own."""
    sent = [
        message_of(
            k, int(SIZES[k]), {name: [value] for name, value in zip("xy", model, strict=True) if name in held[k]}
        )
        for k, model in enumerate(MODELS)
    ]
    return [m._replace(body=in_float64(m.body), steps=steps) for m in sent]


BASE = in_float64(model_of({"x": [0.0], "y": [0.0]}))


def coordinates(model):
    """Return a model as a point in the plane."""
    return np.array([float(model["params"][f"{name}.weight"]) for name in "xy"])


def as_gradient(x, y):
    """Return a point in the plane as a gradient."""
    return in_float64(model_of({"x": [x], "y": [y]}))["params"]


def loss(w):
    """Return |w - c|^2 / 2."""
    return float(((w - C) ** 2).sum() / 2)


# --- divergences ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "values"), [(math.e, [0.342014, 0.010188, 0.125761]), (2, [0.493423, 0.014698, 0.181435])]
)
def test_divergences_of_three_devices(base, values):
    """Of histograms from their mean by size, in nats and in bits."""
    assert (SIZES @ shares_of(COUNTS) / SIZES.sum()).tolist() == pytest.approx(MEAN.tolist())
    assert js_divergence(shares_of(COUNTS), MEAN, base).tolist() == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "q", "value"),
    [
        ([1, 0], [0, 1], 0.693147),
        ([0.5, 0.5, 0], [0.5, 0.5, 0], 0.0),
        ([0.7, 0.3, 0], [0.2, 0.8, 0], 0.132505),
    ],
)
def test_classes_that_nobody_has_add_nothing(p, q, value):
    """Nothing in common is log 2, the most there is."""
    assert js_divergence(np.array([p], dtype=float), np.array(q, dtype=float))[0] == pytest.approx(value, abs=1e-6)


def test_a_device_without_samples_has_no_shares():
    """Zeros, not a division by zero."""
    with np.errstate(all="raise"):
        assert shares_of(np.array([[0, 0], [1, 3]])).tolist() == [[0.0, 0.0], [0.25, 0.75]]


# --- weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("v", "b", "floor", "q"),
    [
        ([1, 1, 1], [0, 0, 0], 1e-4, [0.013590, 0.912491, 0.073918]),
        ([1.2, 0.8, 1.0], [0.05, 0.03, 0.1], 1e-2, [0.034228, 0.826164, 0.139609]),
        ([1.2, 0.8, 1.0], [0.05, -0.10, 0.1], 1e-2, [0.010292, 0.947729, 0.041979]),
        ([1.2, 0.8, 1.0], [0.05, -0.10, 0.1], 1e-4, [0.000109, 0.999449, 0.000443]),
    ],
)
def test_weights_of_three_devices(v, b, floor, q):
    """Also where a degree is negative and counts as the floor."""
    degree = Degrees(JS, np.array(v), np.array(b)).value
    assert weights_of(SIZES, degree, floor).tolist() == pytest.approx(q, abs=1e-6)


def test_degrees_of_three_devices():
    """D = v JS + b. In the base of the logarithm weights of JS alone do not change."""
    assert LEARNED.value.tolist() == pytest.approx([0.460417, 0.038150, 0.225761], abs=1e-6)
    in_bits = js_divergence(shares_of(COUNTS), MEAN, 2)
    assert weights_of(SIZES, in_bits, 1e-4) == pytest.approx(weights_of(SIZES, JS, 1e-4), rel=1e-12)


def test_equal_divergences_leave_the_sizes():
    """As FedAvg has them; also where all are below the floor, and nobody weighs anything if nobody has samples."""
    for degree in (0.3, 0.0):
        assert weights_of(SIZES, np.full(3, degree), 0.01).tolist() == pytest.approx([0.2, 0.4, 0.4])
    assert weights_of(np.zeros(2), np.ones(2), 0.01).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("most", "q"),
    [
        (1.0, [0.6, 0.3, 0.1]),
        (0.5, [0.5, 0.375, 0.125]),  # 0.1 in the ratio 3 : 1
        (0.4, [0.4, 0.4, 0.2]),  # first [0.4, 0.45, 0.15], so the second is cut too
        (0.2, [1 / 3, 1 / 3, 1 / 3]),  # three cannot all be below it
    ],
)
def test_no_weight_is_above_the_cap(most, q):
    """What is cut off goes to the others in proportion."""
    assert weights_of(np.array([6.0, 3.0, 1.0]), np.ones(3), 0.01, most).tolist() == pytest.approx(q)


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "w", "value", "gamma", "by_v", "by_b"),
    [
        (
            EVERYTHING, [-0.105381, 1.105381], 0.366486, [-1.338352, -0.127591, 1.083171],
            [0.034028, 0.028149, -0.084238], [0.099494, 2.763063, -0.669823],
        ),
        (
            SOME, [0.039782, 1.144556], 0.313627, [-0.513615, -0.075198, 0.570923],
            [0.013059, 0.016590, -0.044400], [0.038183, 1.628460, -0.353054],
        ),
    ],
)  # fmt: skip
def test_gradient_of_three_devices(held, w, value, gamma, by_v, by_b):
    """Full models, and models that each lack a layer."""
    got, q = messages(held), weights_of(SIZES, LEARNED.value, 0.01)
    model = mean_of_holders(BASE, got, q.tolist())
    found = gains(as_gradient(*(coordinates(model) - C)), BASE, model, got, q)
    slopes = degree_slopes(LEARNED.value, 0.01, q, found)
    assert coordinates(model).tolist() == pytest.approx(w, abs=1e-6)
    assert loss(coordinates(model)) == pytest.approx(value, abs=1e-6)
    assert found.tolist() == pytest.approx(gamma, abs=1e-6)
    assert (JS * slopes).tolist() == pytest.approx(by_v, abs=1e-6)
    assert slopes.tolist() == pytest.approx(by_b, abs=1e-6)
    assert q @ found == pytest.approx(0, abs=1e-12)
    assert LEARNED.value @ slopes == pytest.approx(0, abs=1e-12)


def test_a_step_of_three_devices():
    """Learning rates of 0.01, steps as long as they are: the loss falls from 0.366486 to 0.282982."""
    q = weights_of(SIZES, LEARNED.value, 0.01)
    model = mean_of_holders(BASE, messages(), q.tolist())
    gamma = gains(as_gradient(*(coordinates(model) - C)), BASE, model, messages(), q)
    after = stepped(LEARNED, degree_slopes(LEARNED.value, 0.01, q, gamma), Rates(0.01, 0.01), 0.01, math.inf)
    assert after.v.tolist() == pytest.approx([1.199660, 0.799719, 1.000842], abs=1e-6)
    assert after.b.tolist() == pytest.approx([0.049005, 0.002369, 0.106698], abs=1e-6)
    q = weights_of(SIZES, after.value, 1e-4)
    assert q.tolist() == pytest.approx([0.010834, 0.946371, 0.042795], abs=1e-6)
    assert loss(coordinates(mean_of_holders(BASE, messages(), q.tolist()))) == pytest.approx(0.282982, abs=1e-6)


def test_pseudo_gradient_of_three_devices():
    """Five steps at 0.1 from zero; then gamma and dF/dD as from any gradient."""
    got, q = messages(steps=5), weights_of(SIZES, LEARNED.value, 0.01)
    gradient = pseudo_gradient(BASE, got, SIZES, 0.1)
    assert [float(g) for g in gradient.values()] == pytest.approx([0.4, -2.4], abs=1e-9)
    gamma = gains(gradient, BASE, mean_of_holders(BASE, got, q.tolist()), got, q)
    assert gamma.tolist() == pytest.approx([3.095066, 0.295066, -2.504934], abs=1e-6)
    slopes = degree_slopes(LEARNED.value, 0.01, q, gamma)
    assert slopes.tolist() == pytest.approx([-0.230090, -6.389844, 1.549028], abs=1e-6)


def test_pseudo_gradient_is_of_holders_who_moved():
    """By hand: x is held by devices 1 and 2 with 10 and 20 samples, y by 2 and 3 with 20 each; 2 steps at 0.5.

    A device that took no step saw no gradient, so that y is device 2's alone; and a layer that nobody has has none.
    """
    some = messages(SOME, steps=2)
    for got, y in ((some, -(20 * 1 + 20 * 2) / 40), ([*some[:2], some[2]._replace(steps=0)], -1.0)):
        gradient = pseudo_gradient(BASE, got, SIZES, 0.5)
        assert [float(g) for g in gradient.values()] == pytest.approx([-(10 * 1 + 20 * 0) / 30, y])
    assert float(pseudo_gradient(BASE, some[2:], SIZES[2:], 0.5)["x.weight"]) == 0.0


def test_at_a_rate_of_zero_nobody_saw_a_gradient():
    """Rates decay until a float holds no smaller one."""
    assert all(float(g.abs().max()) == 0 for g in pseudo_gradient(BASE, messages(steps=5), SIZES, 0.0).values())


# --- any model, any parts ---------------------------------------------------------------------------------------

NETWORK = nn.Sequential(
    OrderedDict(a=nn.Linear(3, 4), ra=nn.ReLU(), b=nn.Linear(4, 3), rb=nn.ReLU(), c=nn.Linear(3, 2))
)
CARD = measure(NETWORK, "by hand", (3,), 2)
LAYERS = ("a", "b", "c")


def kept(size):
    """Units of a group that a device keeps: some, or None for all."""
    return st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True).map(sorted)


DEVICE = st.tuples(kept(4), kept(3), st.frozensets(st.sampled_from(LAYERS), min_size=1))


def some_model(generator):
    """Return a float64 bundle of the network's shapes."""
    return {
        "params": {n: torch.from_numpy(generator.normal(size=p.shape)) for n, p in NETWORK.named_parameters()},
        "buffers": {},
    }


def sent_by(device, place, generator):
    """Return a message with the kept units of the layers that a device has."""
    *channels, layers = device
    submodel = Submodel(
        channels=tuple((name, tuple(u)) for name, u in zip("ab", channels, strict=True) if u is not None)
    )
    thin = extract(some_model(generator), submodel, CARD)["params"]
    body = {"params": {n: t for n, t in thin.items() if n[0] in layers}, "buffers": {}}
    return Update(place, place, Task(submodel=submodel), body, 1, 1, 0, {})


@settings(deadline=None, max_examples=examples(60, short=8))
@given(
    devices=st.lists(DEVICE, min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    absent=st.sampled_from(["average_over_holders", "include_absent"]),
)
def test_gradient_equals_finite_differences(devices, seed, absent):
    """dF/dv and dF/db of F = sum sin(w - c) over all parameters, by central differences; both invariants hold.

    Devices have any units of any layers; the mean in the differences is the one that methods use.
    """
    generator = Key(seed).numpy()
    k = len(devices)
    base, center = some_model(generator), some_model(generator)["params"]
    got = [sent_by(device, place, generator) for place, device in enumerate(devices)]
    sizes = generator.uniform(10, 100, k)
    js, v, b = generator.uniform(0.1, 0.69, k), generator.uniform(0.5, 1.5, k), generator.uniform(0, 0.3, k)

    def mean(v, b):
        q = weights_of(sizes, v * js + b, 0.01)
        return mean_of_holders(base, got, q.tolist(), absent=absent, cost_profile=CARD), q

    def value(v, b):
        return sum(float((t - center[n]).sin().sum()) for n, t in mean(v, b)[0]["params"].items())

    model, q = mean(v, b)
    gradient = {n: (t - center[n]).cos() for n, t in model["params"].items()}
    gamma = gains(gradient, base, model, got, q, CARD, absent=absent)
    slopes = degree_slopes(v * js + b, 0.01, q, gamma)
    h = 1e-6
    for i, e in enumerate(np.eye(k) * h):
        assert js[i] * slopes[i] == pytest.approx((value(v + e, b) - value(v - e, b)) / (2 * h), abs=1e-6)
        assert slopes[i] == pytest.approx((value(v, b + e) - value(v, b - e)) / (2 * h), abs=1e-6)
    assert q @ gamma == pytest.approx(0, abs=1e-10)
    assert (v * js + b) @ slopes == pytest.approx(0, abs=1e-10)


@settings(deadline=None, max_examples=examples(30))
@given(devices=st.lists(DEVICE, min_size=2, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_pseudo_gradient_of_one_step_is_the_mean_gradient(devices, seed):
    """After one SGD step from the base, entry by entry over holders, as the mean of the gradients themselves."""
    generator = Key(seed).numpy()
    base = some_model(generator)
    gradients = [sent_by(device, place, generator) for place, device in enumerate(devices)]
    got = [
        m._replace(body={"params": {n: extract(base, m.task.submodel, CARD)["params"][n] - 0.1 * g
                                    for n, g in m.body["params"].items()}})
        for m in gradients
    ]  # fmt: skip
    sizes = generator.uniform(10, 100, len(devices))
    nothing = {kind: {n: torch.zeros_like(t) for n, t in tensors.items()} for kind, tensors in base.items()}
    expected = mean_of_holders(nothing, gradients, sizes.tolist(), cost_profile=CARD)["params"]
    found = pseudo_gradient(base, got, sizes, 0.1, CARD)
    assert all(torch.allclose(found[n], g, atol=1e-12) for n, g in expected.items())


# --- steps ------------------------------------------------------------------------------------------------------


def one(v, b, js=0.5):
    """Return the degrees of one device."""
    return Degrees(np.array([js]), np.array([v]), np.array([b]))


@pytest.mark.parametrize("slope", [40.0, -40.0])
def test_a_step_is_limited(slope):
    """D = 0.5 would change by 40 (0.1 x 0.25 + 0.2) = 9; half of D is allowed, so both steps are 0.25 / 9 as long."""
    after = stepped(one(1.0, 0.0), np.array([slope]), Rates(0.1, 0.2), 0.01, 0.5)
    assert after.value[0] == pytest.approx(0.5 - math.copysign(0.25, slope))
    assert after.v[0] - 1 == pytest.approx(-0.1 * 0.5 * slope * 0.25 / 9)
    assert after.b[0] == pytest.approx(-0.2 * slope * 0.25 / 9)


@pytest.mark.parametrize(("slope", "moves"), [(0.01, False), (-0.01, True)])
def test_below_the_floor_a_degree_only_rises(slope, moves):
    """D = -0.1 counts as 0.01: a slope that would lower it further does nothing; upwards goes half of 0.01 at most."""
    after = stepped(one(0.0, -0.1), np.array([slope]), Rates(1.0, 1.0), 0.01, 0.5)
    assert after.value[0] == pytest.approx(-0.1 + 0.005 * moves)


def test_a_slope_that_is_no_number_moves_nothing():
    """Nor does a slope of zero, with which there is no change to divide by."""
    degrees = Degrees(np.full(3, 0.5), np.ones(3), np.zeros(3))
    with np.errstate(all="raise"):
        after = stepped(degrees, np.array([np.nan, np.inf, 0.0]), Rates(0.1, 0.1), 0.01, 0.5)
    assert (after.v.tolist(), after.b.tolist()) == ([1.0] * 3, [0.0] * 3)
