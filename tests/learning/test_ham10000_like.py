"""The stand-in for HAM10000: exact counts, images that tell their class, and the partitions of the DA-DPFL paper.

Source of counts and multiplicities: DA-DPFL paper and its authors' published code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from edgesim.config.plugins import plugins_of
from edgesim.core.rng import Key
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.sources.ham10000_like import WAVES
from tests.learning.made_up_data import load
from tests.sizes import full, spread

COUNTS = np.array([327, 514, 1099, 115, 6705, 1113, 142])
TRAIN = np.array([262, 411, 879, 92, 5364, 890, 114])  # 80 % of each, rounded by hand
COPIES = {
    "released": [18, 12, 6, 53, 1, 44, 6],
    "corrected": [18, 12, 6, 53, 1, 6, 44],
    "none": [1] * 7,
}


@cache
def whole(replicate: str) -> Dataset:
    """All training images, as small as they come."""
    return load("ham10000_like", replicate=replicate, side=24, test_limit=1, normalise="none")


def some(**keys: Any) -> Dataset:
    """Few images."""
    return load("ham10000_like", **{"train_limit": 40, "test_limit": 10, "replicate": "none", **keys})


@full
@pytest.mark.parametrize(
    ("replicate", "rows", "expected"),
    # of a split without regard to classes the source expects 0.8 sum(copies * count); classes of whole images round it
    spread([("released", 65_006, 65_018), ("corrected", 35_518, 35_499), ("none", 8_012, 8_012)], 1),
)
def test_counts_are_those_of_the_classes_times_their_copies(replicate: str, rows: int, expected: int) -> None:
    data, copies = whole(replicate), np.array(COPIES[replicate])
    assert COUNTS.sum() == 10_015 and round(0.8 * float(copies @ COUNTS)) == expected
    assert torch.bincount(data.y_train).tolist() == (TRAIN * copies).tolist()
    assert len(data.y_train) == rows == pytest.approx(expected, rel=6e-4)
    assert len(data.x_train) == 8_012  # copies take no memory
    assert (data.classes, data.input_shape) == (7, (3, 24, 24))


def test_the_test_split_is_what_is_left_and_never_repeated() -> None:
    data = load("ham10000_like", side=24, train_limit=1)
    assert torch.bincount(data.y_test).tolist() == (COUNTS - TRAIN).tolist()
    assert len(data.x_test) == 2_003


def test_copies_are_of_one_image() -> None:
    data, each = some(replicate="corrected"), some()
    copies = np.array(COPIES["corrected"])[each.y_train.numpy()]
    x, y = data.batch("train", torch.arange(len(data.y_train)))
    assert len(y) == copies.sum() > 40
    rows = torch.from_numpy(np.repeat(np.arange(40), copies))
    assert torch.equal(x, each.batch("train", rows)[0])
    assert torch.equal(y, each.y_train[rows])
    assert torch.equal(data.batch("test", torch.arange(10))[0], each.batch("test", torch.arange(10))[0])


def test_images_follow_their_own_seed_and_no_limit() -> None:
    first, again, more, other = some(), some(), some(train_limit=60), some(seed=2)
    assert first.x_train.shape == (40, 64, 64, 3)
    assert torch.equal(first.x_train, again.x_train) and torch.equal(first.x_test, again.x_test)
    assert torch.equal(first.x_train, more.x_train[:40])
    assert not torch.equal(first.x_train, other.x_train)
    assert len(np.unique(first.x_train.numpy().reshape(40, -1), axis=0)) == 40
    assert first.y_train.unique().numel() >= 3  # a limit takes what comes in random order


@full
def test_stripes_tell_the_class() -> None:
    """By NumPy: most power, beyond that of the lesion's shape, lies at its number of waves across the image."""
    data = some(side=64, train_limit=800, normalise="none")
    grey = data.x_train.numpy().mean(axis=3)
    power = np.abs(np.fft.fft2(grey - grey.mean(axis=(1, 2), keepdims=True))) ** 2
    waves = np.hypot(*np.meshgrid(*[np.fft.fftfreq(64, 1 / 64)] * 2))
    rings = np.arange(4, 14)
    spectrum = np.stack([power[:, np.abs(waves - ring) <= 0.5].mean(axis=1) for ring in rings], axis=1)
    for label in np.flatnonzero(np.array(WAVES) > 4.5):  # slower ones hide behind the shape
        mine = spectrum[data.y_train.numpy() == label].mean(axis=0)
        others = spectrum[data.y_train.numpy() != label].mean(axis=0)
        assert abs(rings[np.argmax(mine / others)] - WAVES[label]) <= 1


@full
@pytest.mark.parametrize(("replicate", "share"), [("released", 650), ("corrected", 355), ("none", 80)])
@pytest.mark.parametrize(
    "partition",
    [{"name": "dirichlet_device", "alpha": 0.5}, {"name": "pathological", "n_cls": 2}],
    ids=lambda p: p["name"],
)
def test_every_one_of_100_devices_has_as_many_rows(partition: dict[str, Any], replicate: str, share: int) -> None:
    y_train, y_test = whole(replicate).y_train.numpy(), np.repeat(np.arange(7), COUNTS - TRAIN)
    keys = {name: value for name, value in partition.items() if name != "name"}
    part = TypeAdapter(plugins_of("partition")[partition["name"]]).validate_python(keys)
    split = part.split(y_train, y_test, 100, 7, Key(3))
    assert share == len(y_train) // 100
    assert {len(rows) for rows in split.train} == {share}
    assert all(rows.min() >= 0 and rows.max() < len(y_train) for rows in split.train)
    if partition["name"] == "pathological":
        assert {len(np.unique(y_train[rows])) for rows in split.train} == {2}
    assert all(21 <= len(rows) <= 21 + 7 for rows in split.test)  # ceil(2003 / 100), and up to one more a class


@pytest.mark.parametrize("keys", [{"side": 23}, {"replicate": "all"}, {"replicate": [1] * 7}, {"seed": -1}])
def test_keys_out_of_range_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        some(**keys)
