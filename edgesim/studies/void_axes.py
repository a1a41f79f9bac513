"""Axes of a study that change nothing: the runs of all their labels would be the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from edgesim.config.load import read_overrides
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.simulation.warnings import effective
from edgesim.studies.keys import Changes

if TYPE_CHECKING:
    from edgesim.studies.study import Cell


def check_axes(
    axes: Mapping[str, Changes], size: str, cells: Sequence[Cell], scenario_of: Callable[[Cell], Scenario]
) -> None:
    """Raise ConfigError, which says why, if an axis changes nothing in the cells of a size.

    It changes something if two cells that differ in its label alone differ in a key that has an effect. An axis of
    which no two such cells are there, as `only` pairs its labels with those of others, is not judged.
    """
    runs = [sha256(json.dumps(effective(scenario_of(cell))[0], sort_keys=True).encode()).digest() for cell in cells]
    for axis in axes:
        groups: dict[tuple[str, ...], dict[str, bytes]] = {}
        for cell, run in zip(cells, runs, strict=True):
            others = tuple(label for other, label in cell.labels.items() if other != axis)
            groups.setdefault(others, {})[cell.labels[axis]] = run
        several = [group for group in groups.values() if len(group) > 1]
        if several and all(len(set(group.values())) == 1 for group in several):
            labels = ", ".join(dict.fromkeys(label for group in several for label in group))
            why = _why(axes[axis], effective(scenario_of(cells[0]))[1])
            raise ConfigError(f"axes.{axis}: changes nothing, as in size {size} {labels} are the same run: {why}")


def _why(changes: Changes, void: Mapping[tuple[str, ...], str]) -> str:
    written = [tuple(path) for overrides in changes.values() for path, _ in read_overrides(overrides)]
    for path in written:
        for key, why in void.items():
            if key[: len(path)] == path or path[: len(key)] == key:
                return f"{'.'.join(key)} has no effect{why}"
    keys = ", ".join(dict.fromkeys(".".join(path) for path in written))
    return f"{keys} has these values without it, or the size, [[where]] or a later axis replaces them"
