"""Costs as the FedDHAD paper counts them: three forward passes to train, and the size of the models trained."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.config.plugins import find
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.cost_models.x3 import X3
from edgesim.runs.network import cost_profile_of
from edgesim.studies.column import parse_column
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.sizes import full, spread

# Forward multiply-accumulates per sample as printed, of convolutions and linear layers alone, on which inputs.
MODELS = {
    ("lenet5", 10): (651720, 651720),
    ("lenet5", 100): (659280, 659280),
    ("cnn_3conv", 10): (4548608, 4548608),
    ("cnn_3conv", 100): (4554368, 4554368),
    ("vgg11", 10): (153293824, 153293824),
    ("resnet18_bn", 200): (557977600, 555520000),
}
NORMALISED = 614400  # elements that the batch normalisations of resnet18_bn give out
INNER = 245760  # of these, behind the first convolution of each block: 2 (64 32^2 + 128 16^2 + 256 8^2 + 512 4^2)


@cache
def cost_profile(name: str, classes: int = 10) -> CostProfile:
    """Return the cost profile of a model on images of 3x32x32."""
    cls, fixed = find("model", name)
    found: CostProfile = cost_profile_of(cls(**fixed), name, (3, 32, 32), classes, Key(1))[1]
    return found


def inner(of: CostProfile, share: float) -> Submodel:
    """Return the part that keeps this share of the units that one layer makes."""
    makers = [layer.rows for layer in of.layers if layer.weights]
    groups = [group for group in of.groups if makers.count(group.name) == 1]
    return Submodel(channels=tuple((group.name, tuple(range(int(share * group.size)))) for group in groups))


# --- the size of a model ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "classes"), spread(MODELS, 1))
def test_multiply_accumulates_are_those_printed(name: str, classes: int) -> None:
    """SVHN has the images and classes of CIFAR-10, so these are all eight pairs of the paper."""
    of = cost_profile(name, classes)
    assert (of.forward_macs(), of.forward_flops() / 2) == MODELS[name, classes]


@full
def test_multiply_accumulates_of_thinner_networks() -> None:
    """Channels that are left out are not normalised either; what normalisation takes is beside the sheet's numbers."""
    lenet, vgg, resnet = cost_profile("lenet5"), cost_profile("vgg11"), cost_profile("resnet18_bn", 200)
    kept = {"conv1": 5, "conv2": 13, "fc1": 100, "fc2": 70}
    assert lenet.forward_macs(Submodel(channels=tuple((name, tuple(range(n))) for name, n in kept.items()))) == 496700
    assert vgg.forward_macs(inner(vgg, 0.5)) == 38767104
    for share, macs in {0.75: 418680832, 0.5: 281841664}.items():
        normalised = NORMALISED - INNER + share * INNER
        assert resnet.forward_macs(inner(resnet, share)) == macs + 4 * normalised


def test_frozen_layers_and_zeros_are_part_of_a_model() -> None:
    lenet = cost_profile("lenet5")
    submodel = Submodel(frozen=frozenset({"conv1"}), nnz=(("fc1", 0),))
    assert lenet.forward_macs(submodel) == 651720


# --- the work of training it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gflop"), [("lenet5", 9.7758), ("vgg11", 2299.41), ("resnet18_bn", 8332.8), ("cnn_3conv", 68.2291)]
)
def test_reference_work_of_a_round(name: str, gflop: float) -> None:
    """500 samples, 5 epochs: 6 FLOPs a multiply-accumulate of layers; 8332.8 leaves batch normalisation out."""
    changes: dict[str, Any] = {"model": name, "training": {"batch": 10, "lr": 0.1, "local_epochs": 5}, "cost": "x3"}
    jobs = frames(simulate_null(timing_scenario(**changes)))["jobs"]
    classes = 200 if name == "resnet18_bn" else 10
    assert set(jobs["flops"]) == {6.0 * 2500 * MODELS[name, classes][1]}
    assert jobs["flops"][0] / 1e9 == pytest.approx(gflop, rel=2e-6)


def test_three_forward_passes_of_what_is_held() -> None:
    """Thinner networks included; zeros are free if the scenario says so; all but training is measured."""
    lenet, samples, steps = cost_profile("lenet5"), np.array([20.0, 30.0]), np.array([2.0, 3.0])
    thin = Submodel(channels=(("fc1", tuple(range(100))),))
    macs = 651720 - 20 * (400 + 84)
    assert X3().flops(lenet, Pass(times=2.0), thin, samples, steps).tolist() == [240 * macs, 360 * macs]
    assert X3().flops(lenet, Pass(samples=7, submodel=thin), Submodel(), samples, steps).tolist() == [42 * macs] * 2
    assert X3().flops(lenet, Pass("forward"), thin, samples, steps).tolist() == [40 * macs, 60 * macs]
    frozen, masked = Submodel(frozen=frozenset({"conv1", "fc3"})), Submodel(nnz=(("fc1", 12000),))
    assert X3().flops(lenet, Pass(), frozen, samples, steps)[0] == 120 * 651720
    assert X3().flops(lenet, Pass(), masked, samples, steps)[0] == 120 * 651720
    assert X3(sparse="ideal").flops(lenet, Pass(), masked, samples, steps)[0] == 120 * (651720 - 36000)
    for work in (Pass("param_step", times=4.0), Pass("flops", times=5.0)):
        expected = Measured().flops(lenet, work, thin, samples, steps)
        assert X3().flops(lenet, work, thin, samples, steps).tolist() == expected.tolist()


# --- the mean over a run ----------------------------------------------------------------------------------------


def mean_of(run: edgesim.Run) -> float | None:
    return parse_column("mean_forward_macs").of(run)


def test_the_mean_is_over_devices_and_rounds(tmp_path: Path) -> None:
    """FedDrop on five devices, each with its share of the 500 and the 300 hidden units, in all of two rounds."""
    shares = [0.2, 0.4, 0.6, 0.8, 1.0]
    method = {"name": "feddrop", "keep": shares}
    run = edgesim.run(timing_scenario(method=method, stop={"rounds": 2}), out=tmp_path / "run")
    hidden = [800 * 500 * s + 500 * s * 300 * s + 300 * s * 10 for s in shares]
    assert mean_of(run) == pytest.approx(940800 + 1280000 + np.mean(hidden), rel=1e-12)


ADAPTIVE = {"name": "fedad", "check_every": 1, "force_first_at": 1, "rate_source": "fixed", "fixed_ratio": 0.6}
METHODS: dict[str, Any] = {
    "whole": {"name": "fedavg"},
    "widths drawn per batch": {"name": "fjord", "widths": [0.25, 0.5, 1.0]},
    "rates by speed": {**ADAPTIVE, "probe_samples": 20},
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_mean_is_of_the_models_whose_training_is_paid(tmp_path: Path, method: Any) -> None:
    """At 6 FLOPs each for the 120 samples that a device trains on; jobs that only look at a model do not count.

    Widths that are drawn per batch count with their mean over batches, of 16, 16 and 8 samples.
    """
    partition = {"name": "iid", "samples_per_device": 40}
    training = {"batch": 16, "lr": 0.1, "local_epochs": 3}
    scenario = digits_scenario(method=method, partition=partition, training=training, cost="x3")
    run = edgesim.run(scenario, out=tmp_path / "run")
    flops = run.jobs["flops"][run.jobs["task"] == "train"]
    assert mean_of(run) == pytest.approx(flops.mean() / (6 * 120), rel=1e-12)
    assert (flops.nunique() > 1) == (method["name"] != "fedavg")


def test_a_run_made_before_there_was_such_a_number_has_none(tmp_path: Path) -> None:
    run = edgesim.run(timing_scenario(), out=tmp_path / "run")
    assert mean_of(run) == run.manifest.pop("forward_macs") == 940800 + 1280000 + 400000 + 150000 + 3000
    assert mean_of(run) is None
