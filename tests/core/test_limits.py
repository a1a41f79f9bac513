"""No key of a shipped part takes a number that is none, and infinity only where it means something."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

import edgesim
from edgesim.config.plugin_fields import read_dataclass
from edgesim.config.plugins import PACKAGES, plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training

BOUNDLESS = {"clip_norm", "step_limit"}  # limits that infinity switches off, beside keys that are infinite unless given
LATER = {"feddrop.keep"}  # checked with the levels and the model, by the method itself


def refused(plugin: type, key: str, value: float) -> bool:
    """Return whether a part refuses a value for its key, whatever else it lacks."""
    try:
        read_dataclass(plugin, {key: value})
    except ValidationError as error:
        return any(fault["loc"][:1] == (key,) for fault in error.errors())
    except ConfigError as error:
        return f".{key}: " in str(error)
    return False


Number = tuple[str, type, dataclasses.Field[Any]]


def numbers() -> Iterator[Number]:
    """Yield every key of a shipped part, and of a scenario's training, that takes a number and checks it itself."""
    plugins = [("training", Training), *((n, plugin) for kind in PACKAGES for n, plugin in plugins_of(kind).items())]
    for name, plugin in plugins:
        for key in dataclasses.fields(plugin) if dataclasses.is_dataclass(plugin) else ():
            checked_here = key.init and f"{name}.{key.name}" not in LATER
            if checked_here and not all(refused(plugin, key.name, usual) for usual in (0.5, 3)):
                yield f"{name}.{key.name}", plugin, key


@pytest.fixture(scope="module")
def found() -> list[Number]:
    """Return all of them."""
    found = list(numbers())
    assert len(found) > 200
    assert {"training.lr", "fedprox.mu", "training.clip_norm"} <= {name for name, _, _ in found}
    return found


def test_not_a_number_is_refused(found: list[Number]) -> None:
    assert [name for name, plugin, key in found if not refused(plugin, key.name, math.nan)] == []


def test_infinity_is_refused_unless_it_means_something(found: list[Number]) -> None:
    taken = [(name, key) for name, plugin, key in found if not refused(plugin, key.name, math.inf)]
    meant = [(name, key) for name, _, key in found if key.default == math.inf or key.name in BOUNDLESS]
    assert taken == meant


def test_a_whole_number_that_no_float_can_hold_is_refused(found: list[Number]) -> None:
    """Sums and products of counts stay numbers: a key is bounded, or turns a whole number into a finite float."""
    taken = [name for name, plugin, key in found if not refused(plugin, key.name, 10**400)]
    assert [name for name in taken if not name.endswith("seed")] == []  # a seed is hashed


@pytest.mark.parametrize(
    "path",
    ["stop.rounds", "evaluation.every", "evaluation.last", "fleet.0.cpu.cores", "fleet.0.count", "fleet.0.level"],
)
def test_counts_of_a_scenario_are_bounded(path: str, timing: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{path.replace('.', r'.')}.*less than or equal|at most"):
        edgesim.load(timing(), [f"{path}={10**400}"])
