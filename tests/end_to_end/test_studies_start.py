"""Every cell of every study can start: its parts fit each other, on blank data of the right shape."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import edgesim
from edgesim.core.rng import Key
from edgesim.learning.data.dataset import Dataset
from edgesim.runs import assembly
from edgesim.studies.study import load_study
from tests.sizes import full, sized, spread

STUDIES = sorted((Path(__file__).parents[2] / "scenarios" / "studies").glob("*.toml"))


class Shape(NamedTuple):
    """Of a data set: channels, height and width, classes, and training samples."""

    image: tuple[int, int, int]
    classes: int
    samples: int


SHAPES = {
    "mnist": Shape((1, 28, 28), 10, 60_000),
    "fashion_mnist": Shape((1, 28, 28), 10, 60_000),
    "svhn": Shape((3, 32, 32), 10, 73_257),
    "cifar10": Shape((3, 32, 32), 10, 50_000),
    "cifar100": Shape((3, 32, 32), 100, 50_000),
    "image_folder": Shape((3, 32, 32), 200, 100_000),  # Tiny ImageNet, resized
    "ham10000_like": Shape((3, 64, 64), 7, 8_012),
}


def blank(name: str, limit: int | None) -> Dataset:
    """Return a data set without images that takes no memory: one and the same pixel row, and classes in turn."""
    (channels, height, width), classes, samples = SHAPES[name]
    row = torch.zeros(1, height, width, channels)
    train, test = (torch.arange(n) % classes for n in (min(samples, limit or samples), 10_000))
    images = [row.expand(len(labels), -1, -1, -1) for labels in (train, test)]
    return Dataset(name, images[0], train, images[1], test, classes, (channels, height, width))


def start(scenario: edgesim.Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build what a run is made of, up to the method's first state. Raises what a run would raise."""
    data = scenario.data
    with monkeypatch.context() as patch:
        if data is not None and data.name in SHAPES:
            patch.setattr(type(data.value), "load", lambda self: blank(data.name, getattr(self, "train_limit", None)))
        parts = assembly.assemble(scenario)
    scenario.method.value.init(parts.setting, Key(scenario.seed))


@full
@pytest.mark.parametrize("path", spread(STUDIES, 3), ids=lambda path: path.stem)
def test_every_cell_can_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every size; cells that differ only in what nobody looks at before a run are tried once.

    The rest of a short run tries one cell in so many that there are about five of a size.
    """
    study, tried = load_study(path), set()
    for size in study.sizes:
        cells = study.cells(size, [])
        for cell in cells[:: sized(1, 1, 1, rest=1 + len(cells) // 5)]:
            scenario = study.scenario(path.parent, cell, size)
            whole = scenario.canonical()
            given = repr({key: value for key, value in whole.items() if key not in ("seed", "stop", "evaluation")})
            if given not in tried:
                tried.add(given)
                start(scenario, monkeypatch)
    assert tried
