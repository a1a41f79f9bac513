"""The FedPMT paper's own count of operations: its table, its slips and what is left without them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, LayerCost, ProductCost
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.fedpmt_paper import FedPMTPaper, counted_layers
from edgesim.learning.cost_models.measured import Measured
from edgesim.runs.assembly import assemble
from tests.conftest import SPEEDS, frames, simulate_null, timing_scenario
from tests.sizes import full

FILE = Path(__file__).parents[1] / "world" / "data" / "fedpmt_table_5_2.csv"
MODELS = {"FCNN-MNIST": "fcnn", "CNN-MNIST": "cnn_mnist", "CNN-CIFAR10": "cnn_cifar10"}
PUBLISHED, CORRECTED = FedPMTPaper(), FedPMTPaper(count="corrected")

with FILE.open(encoding="utf-8") as lines:
    TABLE = list(csv.DictReader(line for line in lines if not line.startswith("#")))
WHOLE = [row for row in TABLE if row["keep_rate"] == "1"]
FEDDROP = [row for row in TABLE if row["keep_rate"] != "1"]


@cache
def cost_profile_of(model: str) -> CostProfile:
    """Return the cost profile of a shipped model on its own images."""
    cost_profile: CostProfile = assemble(timing_scenario(model=model)).setting.cost_profile
    return cost_profile


def last(cost_profile: CostProfile, count: int) -> Submodel:
    """Return the part that trains the last layers."""
    return Submodel(frozen=frozenset(cost_profile.layer_names[: len(cost_profile.layers) - count]))


def price(cost: FedPMTPaper, model: str, submodel: Submodel, batch: float, work: Pass | None = None) -> float:
    """Return the operations of one SGD step."""
    priced = cost.flops(cost_profile_of(model), work or Pass(), submodel, np.array([float(batch)]), np.array([1.0]))
    return float(priced[0])


def kept_of(cost_profile: CostProfile, row: dict[str, str]) -> Iterable[tuple[str, Fraction, int]]:
    """Yield the hidden linear layers, of which FedDrop keeps a share, as (group, units, of so many)."""
    linear = {layer.name for layer in cost_profile.layers if layer.kind == "Linear"}
    for group in cost_profile.groups:
        if group.name in linear:
            yield group.name, Fraction(row["keep_rate"]) * group.size, group.size


# --- the table --------------------------------------------------------------------------------------------------


def test_the_table_has_all_entries() -> None:
    assert (len(WHOLE), len(FEDDROP)) == (13, 10)
    assert (len({tuple(row.values()) for row in TABLE}), {row["network"] for row in TABLE}) == (23, {*MODELS})


@pytest.mark.parametrize("row", WHOLE, ids=lambda row: f"{row['network']} last {row['trained_layers']}")
def test_published_widths(row: dict[str, str]) -> None:
    model = MODELS[row["network"]]
    submodel = last(cost_profile_of(model), int(row["trained_layers"]))
    assert price(PUBLISHED, model, submodel, int(row["batch"])) == int(row["operations"])


@pytest.mark.parametrize("row", FEDDROP, ids=lambda row: f"{row['network']} keeps {row['keep_rate']}")
def test_published_feddrop(row: dict[str, str]) -> None:
    """The paper keeps fractions of units and cuts the result to a whole number; where units are whole a part does."""
    cost_profile, batch = cost_profile_of(MODELS[row["network"]]), int(row["batch"])
    kept = list(kept_of(cost_profile, row))
    layers = counted_layers(cost_profile, {name: (float(channels), size) for name, channels, size in kept})
    counted = PUBLISHED.operations(layers, frozenset(), np.array([float(batch)]), np.ones(1))
    assert math.floor(counted[0]) == int(row["operations"])
    if all(channels.denominator == 1 for _, channels, _ in kept):
        submodel = Submodel(channels=tuple((name, tuple(range(int(channels)))) for name, channels, _ in kept))
        assert price(PUBLISHED, MODELS[row["network"]], submodel, batch) == int(row["operations"])


def test_the_papers_ratios_are_these_rounded_up() -> None:
    """0.46, 0.58, 0.88, 0.94 and 1 of the full cost: what the paper's round times are made of."""
    counts = [price(PUBLISHED, "cnn_cifar10", last(cost_profile_of("cnn_cifar10"), width), 20) for width in range(1, 6)]
    assert [math.ceil(100 * count / counts[-1]) for count in counts] == [46, 58, 88, 94, 100]


# --- without the slips ------------------------------------------------------------------------------------------

# Multiply-adds of CNN-CIFAR10 on one image, forward and backward, by hand: 28x28 and 10x10 maps, kernels of 5x5.
CONV1, CONV2 = 28 * 28 * 25 * 3 * 16, 10 * 10 * 25 * 16 * 32
FC1, FC2, OUT = 800 * 500, 500 * 300, 300 * 10
FORWARD = CONV1 + CONV2 + FC1 + FC2 + OUT
# Each width adds one layer's weight gradient and the way back through the layer behind it.
MULTIPLY_ADDS = np.cumsum([FORWARD + OUT, OUT + FC2, FC2 + FC1, FC1 + CONV2, CONV2 + CONV1])
# Its errors (two operations an output, one a hidden unit) and, once a step, its linear layers' updates.
ERRORS = np.cumsum([2 * 10, 300, 500, 0, 0])
UPDATES = np.cumsum([OUT, FC2, FC1, 0, 0])


def test_multiply_adds_are_those_of_pytorch() -> None:
    cost_profile = cost_profile_of("cnn_cifar10")
    assert MULTIPLY_ADDS.tolist() == [2_776_800, 2_929_800, 3_479_800, 5_159_800, 7_380_600]
    assert MULTIPLY_ADDS.tolist() == [cost_profile.train_flops(last(cost_profile, width)) / 2 for width in range(1, 6)]


@pytest.mark.parametrize("batch", [1, 20, 33])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_corrected_is_batch_times_multiply_adds(width: int, batch: int) -> None:
    submodel = last(cost_profile_of("cnn_cifar10"), width)
    expected = batch * (MULTIPLY_ADDS + ERRORS) + UPDATES
    assert price(CORRECTED, "cnn_cifar10", submodel, batch) == expected[width - 1]


@pytest.mark.parametrize("model", MODELS.values())
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_corrected_multiply_adds_of_every_network(model: str, width: int) -> None:
    """Between batches of 8 and 7 lies one sample: its multiply-adds, errors and, without convolutions, activations."""
    cost_profile = cost_profile_of(model)
    submodel = last(cost_profile, width)
    difference = price(CORRECTED, model, submodel, 8) - price(CORRECTED, model, submodel, 7)
    outputs = [layer.params - layer.weights for layer in cost_profile.layers]
    linear = [layer.kind == "Linear" for layer in cost_profile.layers]
    errors = outputs[-1] + sum(n for n, is_linear in zip(outputs[-width:], linear[-width:], strict=True) if is_linear)
    activations = sum(outputs) if all(linear) else 0
    assert difference == cost_profile.train_flops(submodel) / 2 + errors + activations


@pytest.mark.parametrize(
    ("model", "batch", "slips"),
    [
        # 784 for 400 in the error of the first layer, which only the last of the four widths trains
        ("fcnn", 12, [0, 0, 0, 0, 12 * (784 - 400)]),
        # one image for 12; and 2 F of a convolution for its gradient and the way back from the layer behind
        (
            "cnn_mnist",
            12,
            np.cumsum([-11 * 320_000, 0, 2 * 204_800 - 12 * (204_800 + 32_768), 2 * 115_200 - 12 * 320_000]),
        ),
        (
            "cnn_cifar10",
            20,
            np.cumsum(
                [
                    (CONV1 + CONV2 * 10 // 16) - 20 * (CONV1 + CONV2),  # a map of height 10 for 16 channels
                    300 * 10 - 300 * 20,  # classes for the batch
                    20 * 500 * (10 - 300),  # classes for the units of the next layer
                    2 * CONV2 * 10 // 16 - 20 * (CONV2 + FC1),
                    2 * CONV1 - 20 * (CONV1 + CONV2),
                ]
            ),
        ),
    ],
)
def test_every_slip_by_itself(model: str, batch: int, slips: Any) -> None:
    widths = [last(cost_profile_of(model), width) for width in range(1, len(slips) + 1)]
    found = [price(PUBLISHED, model, submodel, batch) - price(CORRECTED, model, submodel, batch) for submodel in widths]
    assert found == list(slips)


@pytest.mark.parametrize("cost", [PUBLISHED, CORRECTED])
@pytest.mark.parametrize("model", [*MODELS.values(), "cnn_digits", "lenet5", "mlr"])
def test_wider_costs_more(cost: FedPMTPaper, model: str) -> None:
    cost_profile = cost_profile_of(model)
    prices = [price(cost, model, last(cost_profile, width), 16) for width in range(1, len(cost_profile.layers) + 1)]
    assert price(cost, model, Submodel(), 16, Pass("forward")) < prices[0]
    assert (np.diff(prices) > 0).all()


# --- other work -------------------------------------------------------------------------------------------------


def test_a_forward_pass_by_hand() -> None:
    submodel = last(cost_profile_of("cnn_cifar10"), 2)
    linear = FC1 + FC2 + OUT
    assert price(CORRECTED, "cnn_cifar10", submodel, 20, Pass("forward")) == 20 * FORWARD
    assert price(PUBLISHED, "cnn_cifar10", submodel, 20, Pass("forward")) == CONV1 + CONV2 * 10 // 16 + 20 * linear
    assert price(CORRECTED, "fcnn", Submodel(), 12, Pass("forward")) == 12 * (514_600 + 1010)  # weights and activations


def test_a_pass_over_its_own_samples_is_one_batch_without_update() -> None:
    work = Pass(samples=6, times=2.0)
    expected = 2 * 6 * (MULTIPLY_ADDS + ERRORS)[-1]
    assert price(CORRECTED, "cnn_cifar10", Submodel(), 20, work) == expected


def test_a_frozen_layer_between_trained_ones_hands_its_error_on() -> None:
    """Only the second convolution and fc2 are trained: no gradients and updates of fc1, fc3 and the first."""
    submodel = Submodel(frozen=frozenset({"conv1", "fc1", "fc3"}))
    multiply_adds = FORWARD + (OUT + FC2 + FC1) + (FC2 + CONV2)
    expected = 20 * (multiply_adds + 2 * 10 + 300 + 500) + FC2
    assert price(CORRECTED, "cnn_cifar10", submodel, 20) == expected


@pytest.mark.parametrize("work", [Pass("param_step", times=3.0), Pass("flops", times=5.0)])
def test_work_outside_the_model_is_measured(work: Pass) -> None:
    cost_profile, samples, steps = cost_profile_of("cnn_mnist"), np.array([12.0, 24.0]), np.array([1.0, 2.0])
    expected = Measured().flops(cost_profile, work, Submodel(), samples, steps)
    assert PUBLISHED.flops(cost_profile, work, Submodel(), samples, steps).tolist() == expected.tolist()


# --- in a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [500, 507])
def test_jobs_of_a_run_cost_what_the_table_says(samples: int) -> None:
    """25 batches of 20; with 507 samples a batch of 7 more, for which a network's convolutions count as much."""
    changes = {"partition": {"name": "sizes", "samples_per_device": samples}, "cost": "fedpmt_paper"}
    jobs = frames(simulate_null(timing_scenario(method="fedpmt", **changes)))["jobs"].sort_values("device")
    published = [12_864_200, 16_077_200, 24_587_200, 26_187_200, 28_068_800]
    parts = [last(cost_profile_of("cnn_cifar10"), width) for width in range(1, 6)]
    rest = [price(PUBLISHED, "cnn_cifar10", submodel, samples - 500) if samples > 500 else 0 for submodel in parts]
    expected = [25 * whole + more for whole, more in zip(published, rest, strict=True)]
    assert jobs["flops"].tolist() == expected
    assert jobs["compute_s"].tolist() == pytest.approx(np.array(expected) / SPEEDS, rel=1e-12)


def test_a_run_may_be_priced_without_slips() -> None:
    cost = {"name": "fedpmt_paper", "count": "corrected"}
    jobs = frames(simulate_null(timing_scenario(method="fedpmt", cost=cost)))["jobs"].sort_values("device")
    assert jobs["flops"].tolist() == (500 * (MULTIPLY_ADDS + ERRORS) + 25 * UPDATES).tolist()


@pytest.mark.parametrize(
    ("count", "seconds"),
    [("published", [22.92, 22.91, 26.28, 18.66, 10.0]), ("corrected", [18.74, 15.86, 14.21, 14.01, 10.0])],
)
def test_round_times_by_level(count: str, seconds: list[float]) -> None:
    """Speeds of 1/5, 1/4, 1/3, 1/2 and 1 of that which does the full model of this count in 10 s."""
    full = {"published": 25 * 28_068_800, "corrected": 500 * (MULTIPLY_ADDS + ERRORS)[-1] + 25 * UPDATES[-1]}[count]
    speeds = [float(full) / 10 / share for share in (5, 4, 3, 2, 1)]
    fleet = [{"level": place, "cpu": {"flops_per_s": speed}} for place, speed in enumerate(speeds, start=1)]
    cost = {"name": "fedpmt_paper", "count": count}
    jobs = frames(simulate_null(timing_scenario(method="fedpmt", cost=cost, fleet=fleet)))["jobs"]
    assert jobs.sort_values("device")["compute_s"].tolist() == pytest.approx(seconds, abs=0.0051)


# --- what is refused --------------------------------------------------------------------------------------------

CONV = LayerCost("conv1", "Conv2d", 20, 0, 1152.0, 1152.0, 1152.0, frozenset(), weights=18, rows="conv1")
LINEAR = LayerCost("fc1", "Linear", 99, 0, 192.0, 192.0, 192.0, frozenset({"conv1"}), weights=96, columns="conv1")
CHAIN = CostProfile("hand", (1, 6, 6), 3, (CONV, LINEAR))


@pytest.mark.parametrize(
    ("cost_profile", "found"),
    [
        (replace(CHAIN, layers=(CONV, replace(LINEAR, kind="LSTM"))), r"hand has fc1 \(LSTM\)"),
        (replace(CHAIN, layers=(CONV, replace(CONV, name="norm1", kind="GroupNorm"), LINEAR)), r"norm1 \(GroupNorm\)"),
        (replace(CHAIN, layers=(replace(LINEAR, upstream=frozenset()), CONV)), r"conv1 \(Conv2d\)"),
        (replace(CHAIN, layers=(CONV, replace(LINEAR, params=96))), r"fc1 \(Linear\) without bias"),
        (replace(CHAIN, layers=(CONV, replace(LINEAR, upstream=frozenset()))), r"fc1 \(Linear\) beside the chain"),
        (replace(CHAIN, layers=(CONV, replace(LINEAR, forward_flops=384.0))), "several vectors a sample"),
        (replace(CHAIN, layers=(CONV,)), "no linear layer"),
        (replace(CHAIN, products=(ProductCost(8.0, frozenset({"fc1"})),)), "work outside its layers"),
        (replace(CHAIN, other_forward_flops=8.0), "work outside its layers"),
    ],
)
def test_models_that_the_formulas_do_not_cover(cost_profile: CostProfile, found: str) -> None:
    one = np.ones(1)
    assert PUBLISHED.flops(CHAIN, Pass(), Submodel(), one, one) > 0
    with pytest.raises(ConfigError, match=rf"^cost\.name: 'fedpmt_paper' counts .*{found}"):
        PUBLISHED.flops(cost_profile, Pass(), Submodel(), one, one)


@full
def test_a_run_with_such_a_model_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"cost\.name: 'fedpmt_paper' .*; model resnet18_gn has conv1 \(Conv2d\) without bias"
    ):
        simulate_null(timing_scenario(model="resnet18_gn", cost="fedpmt_paper"))


def test_an_unknown_count_is_refused() -> None:
    with pytest.raises(ValidationError, match="count"):
        TypeAdapter(FedPMTPaper).validate_python({"count": "printed"})
