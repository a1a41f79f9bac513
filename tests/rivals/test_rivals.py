"""edgesim's methods have the weights that other simulators have after three rounds: numbers.json holds theirs.

`python -m tests.rivals.compare` ran the rivals and wrote it; nothing of them is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgesim.config.plugins import plugins_of
from tests.rivals.federation import CASES, Played, chosen, play
from tests.sizes import thinned

ENTRIES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "numbers.json").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5
NAMED = {f"{entry['method']}-{entry['rival']}": entry for entry in ENTRIES}
SHORT = ["fedadam-flwr", "fedprox-fluke-fl", "scaffold-fluke-fl"]
Numbers = Mapping[str, Sequence[float]]


def gap(found: Numbers, expected: Numbers) -> float:
    """Return by how much numbers of the same names differ at most."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(np.subtract(found[name], expected[name])).max()) for name in expected)


@pytest.mark.parametrize("name", thinned(list(NAMED), SHORT))
def test_a_rival_has_the_same_weights(name: str) -> None:
    """From the same first weights and the same batches, of which the file has a hash."""
    entry = NAMED[name]
    played: Played = play(CASES[entry["method"]])
    again = "the federation has changed since; run python -m tests.rivals.compare where the rivals are installed"
    assert played.inputs == entry["inputs"], again
    assert gap(played.first, entry["first"]) < 1e-6, again
    assert gap(chosen(played.weights), entry["weights"]) < TOLERANCE


def test_the_numbers_tell_methods_apart() -> None:
    """Each differs from FedAvg's by a hundred tolerances or more: in the model, or on devices from the model."""
    fedavg = NAMED["fedavg-flwr"]["weights"]
    for name, entry in NAMED.items():
        if entry["method"] == "fedavg":
            continue
        own = {n: numbers for n, numbers in entry["weights"].items() if "/" in n}
        pairs = [(n.rpartition("/")[2], numbers) for n, numbers in (own or entry["weights"]).items()]
        assert max(gap({n: numbers}, {n: fedavg[n]}) for n, numbers in pairs) > 100 * TOLERANCE, name


def test_every_case_has_a_rival() -> None:
    assert {entry["method"] for entry in ENTRIES} == set(CASES)


def test_the_page_of_checks() -> None:
    """Its methods and tests are there, those with a rival are those of the file, and there are twenty or more."""
    page = (ROOT / "docs" / "explanation" / "independent_checks.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip(" `") for cell in line.strip("| ").split("|")] for line in page.splitlines() if line[:3] == "| `"
    ]
    assert len(rows) >= 20
    assert {row[0] for row in rows} <= set(plugins_of("method"))
    assert {row[0] for row in rows if row[1] == "rival"} == set(CASES)
    for row in rows:
        file, _, test = row[-1].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), row
