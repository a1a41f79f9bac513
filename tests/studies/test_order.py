"""Cells that train the same are not handed out side by side."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.studies.order import Turns, learning_of
from edgesim.studies.runs import Planned
from edgesim.studies.study import StudyCell
from tests.calling import TINY

BUFFERED: dict[str, Any] = {"protocol": {"name": "buffered", "concurrency": 2}, "method": "fedasync"}
SLOW = {"network": {"name": "fixed", "up": "1 Mbit/s", "down": "9 Mbit/s"}}
POWER = {"energy": {"name": "power", "idle": "3 W", "busy": "9 W"}}
FASTER = {"fleet": [{"count": 3, "name": "other", "cpu": {"flops_per_s": "7 GFLOP/s"}}]}


def learning(**keys: Any) -> str:
    return learning_of(
        edgesim.load({**tomllib.loads(TINY), "fleet": [{"count": 3, "cpu": {"flops_per_s": 1e8}}], **keys})
    )


@pytest.mark.parametrize(
    ("before", "change", "same"),
    [
        ({}, SLOW, True),
        ({}, POWER, True),
        ({}, FASTER, True),
        ({}, {"stop": {"rounds": 1}, "name": "x", "weights": "none"}, True),
        ({}, {"seed": 2}, False),
        ({}, {"method": "fedprox"}, False),
        ({}, {"selection": {"name": "uniform", "count": 3}}, False),
        ({}, {"fleet": [{"count": 4, "cpu": {"flops_per_s": 1e8}}]}, False),
        ({"protocol": {"name": "deadline", "deadline": "9 s"}}, SLOW, True),
        (
            {"protocol": {"name": "deadline", "deadline": "9 s"}},
            {"protocol": {"name": "deadline", "deadline": "1 s"}},
            False,
        ),
        (BUFFERED, POWER, True),
        (BUFFERED, SLOW, False),  # who comes first is another
        (BUFFERED, FASTER, False),
        ({"method": "fedad"}, SLOW, False),  # its server reads speeds
        ({"method": "fedad"}, POWER, False),
    ],
)
def test_what_is_likely_to_train_the_same(before: dict[str, Any], change: dict[str, Any], same: bool) -> None:
    assert learning(**before) and (learning(**before) == learning(**{**before, **change})) is same


def test_who_trains_nothing_shares_nothing() -> None:
    assert learning(backend="null") == ""


def test_the_first_of_its_kind_ends_before_the_others_begin() -> None:
    """Cells of two kinds, and one that is alone in its kind, on as many processes as they like."""
    cells = [
        Planned(StudyCell({}, ()), Path(str(n)), {}, {}, kind) for n, kind in enumerate(["a", "a", "b", "", "b", "a"])
    ]
    turns = Turns(cells)

    def all_now() -> list[int]:
        return list(iter(turns.next, None))

    assert all_now() == [0, 2, 3]
    turns.end(3)
    assert all_now() == []
    turns.end(2)
    assert all_now() == [4]
    turns.end(0)
    assert all_now() == [1, 5]
    turns.end(1)
    assert all_now() == turns.left_alone == []


def test_what_another_command_trains_is_left_to_it() -> None:
    """The first and the third cell train the same, and so do the second and the fourth."""
    turns = Turns([Planned(StudyCell({}, ()), Path(str(n)), {}, {}, kind) for n, kind in enumerate("abab")])
    assert (turns.next(), turns.next(), turns.next()) == (0, 1, None)
    turns.end(0, elsewhere=True)
    assert (turns.next(), turns.left_alone) == (None, [0, 2])
    turns.end(1)
    assert (turns.next(), turns.next()) == (3, None)
