"""FedPNS's synthetic data and the partition that hands them out."""

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from edgesim.config.plugins import plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.source import Raw
from edgesim.learning.data.sources.fedpns_synthetic import VARIANCES, FedpnsSynthetic
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario
from tests.learning.made_up_data import load
from tests.sizes import full

SMALL: dict[str, Any] = {"devices": 8, "samples_per_device": 50, "sigma": 0.5}  # 4 devices alike, 40 + 10 samples each


def read(**keys: Any) -> Raw:
    return TypeAdapter(FedpnsSynthetic).validate_python({**SMALL, **keys}).read()


def both_splits(raw: Raw, devices: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Features (devices, samples, 60) and labels (devices, samples) in the order of their draw."""
    x = [part.reshape(devices, -1, 60) for part in (raw.x_train, raw.x_test)]
    y = [part.reshape(devices, -1) for part in (raw.y_train, raw.y_test)]
    return np.concatenate(x, axis=1), np.concatenate(y, axis=1)


@pytest.mark.parametrize("varrho", [0.5, 1.0])
@pytest.mark.parametrize("seed", [1, 4])
def test_the_draws_in_their_order(varrho: float, seed: int) -> None:
    """One generator: W, b, then for each device, where it is not like the others, B, o, its own W and b, and its x."""
    x, y = both_splits(read(varrho=varrho, seed=seed))
    draw = Key(seed).at(Purpose.DATA).numpy()
    common = draw.normal(size=(10, 60)), draw.normal(size=10)
    for k in range(8):
        rule, mean = common, 0.0
        if k >= 4:
            mean = draw.normal(draw.normal(0, varrho), 1, size=60)
            rule = draw.normal(size=(10, 60)), draw.normal(size=10)
        features = mean + draw.normal(size=(50, 60)) * np.arange(1, 61) ** -0.6
        assert np.allclose(x[k], features, rtol=0, atol=1e-12)
        logits = np.einsum("cf,nf->nc", rule[0], features) + rule[1]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert (y[k] == probabilities.argmax(axis=1)).all()  # as the paper has it: softmax changes no maximum


def test_variances_of_the_features() -> None:
    # h^-1.2 for h = 1, 2, 3 and 60, and the sum of all
    variances = np.array(VARIANCES)
    assert variances[[0, 1, 2, -1]] == pytest.approx([1, 0.435275, 0.267581, 0.007349], abs=5e-7)
    assert variances.sum() == pytest.approx(3.390594, abs=5e-7)
    x, _ = both_splits(read(samples_per_device=2000))
    assert np.abs(x[:4].mean(axis=(0, 1)) / np.sqrt(variances / 8000)).max() < 5  # i.i.d. devices lie around 0
    within = x.var(axis=1, ddof=1).mean(axis=0)  # of all devices: others lie elsewhere and spread as much
    # a variance of 8 x 1999 degrees of freedom has a relative standard deviation of sqrt(2 / 15992) = 0.011
    assert np.abs(within / variances - 1).max() < 5 * 0.0112


@pytest.mark.parametrize(("varrho_is", "variance"), [("deviation", 0.25), ("variance", 0.5)])
def test_varrho_is_a_deviation_or_a_variance(varrho_is: str, variance: float) -> None:
    raw = read(devices=2000, samples_per_device=2, train_share=0.5, sigma=0, varrho=0.5, varrho_is=varrho_is)
    x, _ = both_splits(raw, 2000)
    # the mean of a device's 2 x 60 features: B, the mean of 60 entries of o around it, and the noise of its samples
    expected = variance + 1 / 60 + 3.390594 / 60**2 / 2
    assert x.mean(axis=(1, 2)).var() == pytest.approx(expected, rel=5 * (2 / 2000) ** 0.5)


def test_labels_contradict_each_other_only_where_devices_have_rules_of_their_own() -> None:
    draw = Key(1).at(Purpose.DATA).numpy()
    weight, bias = draw.normal(size=(10, 60)), draw.normal(size=10)
    (x, own), (again, shared) = (both_splits(read(devices=50, labelling=each), 50) for each in ("own", "shared"))
    assert np.array_equal(x, again)  # the same features, labelled in two ways
    by_the_common_rule = (x @ weight.T + bias).argmax(axis=2)
    assert (shared == by_the_common_rule).all() and (own[:25] == by_the_common_rule[:25]).all()
    assert (own[25:] == by_the_common_rule[25:]).mean() < 0.3  # chance is near 1/10


@full
def test_splits_of_the_paper_and_of_the_code() -> None:
    paper, code = load("fedpns_synthetic"), load("fedpns_synthetic", train_share=0.6, test_on="iid")
    assert (len(paper.x_train), len(paper.x_test)) == (50 * 800, 50 * 200)
    assert (len(code.x_train), len(code.x_test)) == (50 * 600, 15 * 400)  # round(0.3 * 50) = 15 devices are alike
    assert (paper.classes, paper.input_shape, paper.x_train.shape[1]) == (10, (60,), 60)
    # both cut the same 1000 samples of a device: its test samples of the paper are the last of those of the code
    assert np.array_equal(paper.x_test[:200], code.x_test[200:400])


def test_data_follow_their_own_seed() -> None:
    first, again, other = read(), read(), read(seed=2)
    assert all(np.array_equal(a, b) for a, b in zip(first[:4], again[:4], strict=True))
    assert not np.array_equal(first.x_train, other.x_train)


def synthetic_scenario(devices: int, **changes: Any) -> Any:
    base: dict[str, Any] = {
        "data": {"name": "fedpns_synthetic", **SMALL},
        "partition": {"name": "blocks", "samples_per_device": 40},
        "model": "mlr_syn",
        "fleet": [{"count": devices, "cpu": {"flops_per_s": "1 MFLOP/s"}}],
    }
    return digits_scenario(**{**base, **changes})


def test_every_device_gets_the_samples_made_for_it() -> None:
    parts, (x, y) = assemble(synthetic_scenario(8)), both_splits(read())
    assert parts.data is not None and parts.split is not None
    assert parts.setting.samples.tolist() == [40] * 8 and parts.setting.cost_profile.params == 610
    for k, rows in enumerate(parts.split.train):
        assert np.array_equal(parts.data.x_train[rows].numpy(), x[k, :40].astype(np.float32))
        assert np.array_equal(parts.data.y_train[rows].numpy(), y[k, :40])


@pytest.mark.parametrize(
    ("devices", "changes", "message"),
    [
        (7, {}, r"partition\.samples_per_device: 40 for each of 7 devices are 280 .*, the data set has 320$"),
        (
            8,
            {"partition": "blocks"},
            r"samples_per_device: 800 for each of 8 devices are 6400 .*, the data set has 320",
        ),
    ],
)
def test_blocks_have_to_be_the_whole_training_set(devices: int, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assemble(synthetic_scenario(devices, **changes))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"samples_per_device": 2}, r"data\.train_share: must leave samples in both splits, 0\.8 of 2 samples are 2"),
        ({"sigma": 0.0, "test_on": "iid"}, r"data\.test_on: needs i\.i\.d\. devices, sigma = 0 of 8 devices are none"),
    ],
)
def test_empty_splits_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**keys)


@pytest.mark.parametrize(
    "keys", [{"varrho": -1}, {"varrho": float("inf")}, {"sigma": 1.5}, {"train_share": 1}, {"labelling": "none"}]
)
def test_keys_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(plugins_of("data")["fedpns_synthetic"]).validate_python(keys)
