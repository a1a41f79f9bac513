"""Estimates of rho, beta and delta: a run on two quadratic losses by hand, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import edgesim
from edgesim.learning.data.dataset import DataPart, Dataset
from tests.plugins.one_number import OneNumber


@dataclass(frozen=True, kw_only=True)
class TwoNumbers(DataPart):
    """Two training samples with input 1 and the labels 1 and 3."""

    def load(self) -> Dataset:
        """Return them; they are the test samples too."""
        x, y = torch.ones(2, 1), torch.tensor([[1.0], [3.0]])
        return Dataset("two", x, y, x, y, classes=1, input_shape=(1,), kind="numbers")


def run(**changes: Any) -> Any:
    """Run two devices with a sample each by SGD of step 0.1 from 0 for two rounds."""
    return edgesim.run(
        {
            "data": f"{__name__}:TwoNumbers",
            "partition": {"name": "iid", "samples_per_device": 1},
            "model": f"{OneNumber.__module__}:OneNumber",
            "objective": "regression",
            "method": "fedavg",
            "training": {"batch": 1, "lr": 0.1, "local_steps": 1},
            "network": {"name": "fixed", "up": 1e3, "down": 1e6},
            "fleet": [{"count": 2, "cpu": {"flops_per_s": 100.0}}],
            "stop": {"rounds": 2, "sim_time": 100.0},
            **changes,
        }
    )


def test_by_hand() -> None:
    """F_i = (w - y_i)^2, so beta = 2. At w = 0 the gradients are -2 and -6, their mean -4, so delta = 2.

    One step leads to 0.2 and 0.6: rho is the mean of (1 - 0.8^2) / 0.2 = 1.8 and (9 - 2.4^2) / 0.6 = 5.4.
    """
    metrics = run(controller="adaptive_tau").metrics
    first = metrics[metrics["round"] == 0].set_index("name")["value"]
    assert first["beta"] == pytest.approx(2.0, rel=1e-6)
    assert first["delta"] == pytest.approx(2.0, rel=1e-6)
    assert first["rho"] == pytest.approx(3.6, rel=1e-6)


def test_the_model_is_trained_as_without_them_and_they_cost_what_they_cost() -> None:
    """Two gradients of one sample and 4 bytes for one parameter, with 8 bytes for rho and beta."""
    plain, told = run(), run(controller={"name": "adaptive_tau", "most": 1})
    assert told.evals["loss"].tolist() == plain.evals["loss"].tolist()
    one, other = (each.jobs.iloc[0] for each in (plain, told))
    assert other["up_bytes"] - one["up_bytes"] == 4 + 8
    assert other["down_bytes"] == one["down_bytes"]
    assert other["flops"] - one["flops"] == 2 * 4
