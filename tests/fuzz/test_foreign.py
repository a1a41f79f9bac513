"""Hostile code of users; `python -m tests.fuzz.foreign` tries as many cases as one likes."""

from __future__ import annotations

import pytest

from tests.fuzz.foreign import LIMITS, case_of, verdict
from tests.fuzz.hostility import ACTS, HARMLESS
from tests.fuzz.tries import verdicts
from tests.sizes import full, sized

SEED = 1


@full
def test_hostile_code_breaks_nothing():
    pytest.importorskip("flwr")
    found = list(verdicts(verdict, SEED, range(sized(0, 20, 1000, rest=8)), 2, LIMITS))
    assert [f"--case {each.case}: {each.says}" for each in found if each.ended == "fault"] == []


def test_every_kind_of_act_is_drawn():
    drawn = {placed.act.kind for number in range(1000) for placed in case_of(SEED, number).placed}
    assert drawn == {act.kind for act in (*ACTS, *HARMLESS)}
