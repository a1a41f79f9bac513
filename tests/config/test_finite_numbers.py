"""No key of a shipped part takes a number that is none, and infinity only where it means something."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from edgesim.catalogue import PACKAGES, parts_of
from edgesim.config.parts import read_dataclass
from edgesim.errors import ConfigError
from edgesim.local_sgd import Training

BOUNDLESS = {"clip_norm", "step_limit"}  # limits that infinity switches off, beside keys that are infinite unless given
LATER = {"feddrop.keep"}  # checked with the levels and the model, by the method itself


def refused(part: type, key: str, value: float) -> bool:
    """Return whether a part refuses a value for its key, whatever else it lacks."""
    try:
        read_dataclass(part, {key: value})
    except ValidationError as error:
        return any(fault["loc"][:1] == (key,) for fault in error.errors())
    except ConfigError as error:
        return f".{key}: " in str(error)
    return False


def numbers() -> Iterator[Any]:
    """Yield every key of a shipped part, and of a scenario's training, that takes a number and checks it itself."""
    parts = [("training", Training), *((n, part) for kind in PACKAGES for n, part in parts_of(kind).items())]
    for name, part in parts:
        for key in dataclasses.fields(part) if dataclasses.is_dataclass(part) else ():
            checked_here = key.init and f"{name}.{key.name}" not in LATER
            if checked_here and not all(refused(part, key.name, usual) for usual in (0.5, 3)):
                yield pytest.param(part, key, id=f"{name}.{key.name}")


NUMBERS = list(numbers())


def test_there_are_many_numbers() -> None:
    assert len(NUMBERS) > 200
    assert {"training.lr", "fedprox.mu", "training.clip_norm"} <= {case.id for case in NUMBERS}


@pytest.mark.parametrize(("part", "key"), NUMBERS)
def test_not_a_number_is_refused(part: type, key: dataclasses.Field[Any]) -> None:
    assert refused(part, key.name, math.nan)


@pytest.mark.parametrize(("part", "key"), NUMBERS)
def test_infinity_is_refused_unless_it_means_something(part: type, key: dataclasses.Field[Any]) -> None:
    assert refused(part, key.name, math.inf) is (key.default != math.inf and key.name not in BOUNDLESS)
