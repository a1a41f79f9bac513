"""Coordinate-wise median and trimmed mean against numbers on paper and SciPy.

Source: Yin et al. (2018), definitions 1 and 2.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from edgesim.core.errors import ConfigError
from edgesim.methods.median import Median, TrimmedMean
from tests.conftest import digits_scenario
from tests.methods.hand_made import KEY, merged_layers, message_of, server_of, setting_of, view_of

VALUES = ([1.0, 5.0, -1.0], [2.0, 4.0, 0.0], [9.0, -7.0, 3.0], [4.0, 4.0, 1.0], [100.0, 0.0, 2.0])


def merged(method, rows, samples=None):
    """Return the parameters that a method makes of devices' parameters."""
    samples = samples or [1] * len(rows)
    setting = setting_of(samples, {"w": len(rows[0])})
    updates = [message_of(k, samples[k], {"w": row}) for k, row in enumerate(rows)]
    return merged_layers(method, setting, {"w": [0.0] * len(rows[0])}, updates)["w"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [1.0, 5.0, -1.0]),
        (2, [1.5, 4.5, -0.5]),  # the mean of two
        (3, [2.0, 4.0, 0.0]),
        (5, [4.0, 4.0, 1.0]),
        (4, [3.0, 4.0, 0.5]),  # (2 + 4) / 2, (4 + 4) / 2, (0 + 1) / 2
    ],
)
def test_median_by_hand(count, expected):
    assert merged(Median(), VALUES[:count]) == expected
    assert merged(Median(), VALUES[:count]) == np.median(VALUES[:count], axis=0).tolist()


def test_who_lies_about_its_data_gains_nothing():
    assert merged(Median(), VALUES, [1, 1, 1, 1, 999]) == merged(Median(), VALUES)


def test_trimmed_by_hand():
    """Of five 0.2 leaves three: (2 + 9 + 4) / 3 = 5, (4 + 4 + 0) / 3 and (0 + 1 + 2) / 3 = 1. 0.4 leaves the median."""
    assert merged(TrimmedMean(trim=0.2), VALUES) == pytest.approx([5.0, 8 / 3, 1.0])
    assert merged(TrimmedMean(trim=0.4), VALUES) == merged(Median(), VALUES)
    assert merged(TrimmedMean(trim=0.19), VALUES) == pytest.approx(np.mean(VALUES, axis=0))
    assert merged(TrimmedMean(trim=0.0), VALUES) == pytest.approx(np.mean(VALUES, axis=0))


@pytest.mark.parametrize("count", range(1, 21))
def test_trimmed_as_scipy_trims(count):
    """0.3 of ten is 3 although 0.3 x 10 is less than 3 in floating point or more."""
    rows = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
    for share in (0.1, 0.3, 0.45):
        expected = trim_mean(rows.astype(np.float64), share, axis=0)
        assert merged(TrimmedMean(trim=share), rows.tolist()) == pytest.approx(expected, abs=1e-6)


def test_running_statistics_too():
    server = server_of(view_of(setting_of([1, 1, 1], {"w": 1})))
    base = {"params": {"w.weight": torch.zeros(1)}, "buffers": {"n.running_var": torch.ones(1)}}
    updates = [
        message_of(k, 1, {})._replace(
            body={"params": {"w.weight": torch.tensor([v])}, "buffers": {"n.running_var": torch.tensor([v])}}
        )
        for k, v in enumerate((1.0, 2.0, 50.0))
    ]
    merged_model = Median().aggregate({}, base, updates, server, KEY).model
    assert merged_model["buffers"]["n.running_var"].tolist() == merged_model["params"]["w.weight"].tolist() == [2.0]


@pytest.mark.parametrize(("updates", "flops"), [(1, 0), (2, 2 * 1), (5, 5 * 3), (8, 8 * 3)])
def test_sorting_is_charged(updates, flops):
    """n ceil(log2 n) for each of three parameters."""
    assert Median().merge_flops(updates, setting_of([1], {"w": 3})) == 3 * flops


def test_more_than_half_cannot_be_trimmed():
    with pytest.raises(ConfigError, match=r"method\.trim: .*less than 0\.5"):
        digits_scenario(method={"name": "trimmed_mean", "trim": 0.5})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "trimmed_mean": {
        "trim": "test_trimmed_by_hand",
    },
}
