"""Mutated scenarios, as many as the run is large; `python -m tests.fuzz.scenarios` tries as many as one likes."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

from tests.fuzz.bases import bases
from tests.fuzz.mutate import to_toml
from tests.fuzz.scenarios import LIMITS, judged, text_of, verdict
from tests.fuzz.tries import verdicts
from tests.sizes import full, grows, sized, spread

SEED, CASES = 1, sized(8, 300, 20_000, rest=100)


@grows
def test_mutated_scenarios_are_refused_in_a_line_or_run_as_estimated() -> None:
    found = list(verdicts(verdict, SEED, range(CASES), 1, LIMITS))
    assert [f"--case {each.case}: {each.says}" for each in found if each.ended == "fault"] == []
    assert sum(each.ended == "ran" for each in found) > CASES // 20
    assert sum(each.ended == "refused" for each in found) > CASES // 5


@pytest.mark.parametrize("name", spread(bases(), 8))
def test_what_is_mutated_runs(name, tmp_path) -> None:
    assert judged(to_toml(bases()[name]).encode(), tmp_path, math.inf) == ("ran", "")


@full
def test_a_case_is_the_same_again_in_any_process() -> None:
    """Whoever is shown a fault by its number finds it, however Python orders its sets."""
    print_all = (
        "import sys; from tests.fuzz.scenarios import text_of; sys.stdout.buffer.write(b''.join(map({}, range(40))))"
    )
    words = [sys.executable, "-c", print_all.format("lambda case: text_of(5, case)")]
    said = [
        subprocess.run(words, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] == b"".join(text_of(5, case) for case in range(40))
    assert text_of(5, 17) != text_of(5, 18)
