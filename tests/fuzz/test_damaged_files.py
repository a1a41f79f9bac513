"""Every kind of file that is read, damaged at random: one clear line, or an answer.

More cases of more seeds, by hand: python -m tests.fuzz.files --cases 200 --seed 2
"""

import os
import subprocess
import warnings
from pathlib import Path

import pytest

from edgesim.core.errors import DataError
from tests.fuzz import files
from tests.fuzz.damage import WAYS, damaged
from tests.fuzz.files import fault_of, faults_of
from tests.fuzz.kinds import KINDS, Kind
from tests.sizes import full, grows, sized, thinned

CASES = sized(1, 10, 200, rest=4)
SHORT = ("scenario", "npz")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """The faults of every kind, in a short run of two."""
    return faults_of(sized(SHORT, tuple(KINDS), tuple(KINDS)), CASES, seed=1)


@grows
@pytest.mark.parametrize("kind", thinned(KINDS, SHORT))
def test_damaged_files_are_one_line_or_an_answer(found: dict[str, list[str]], kind: str) -> None:
    assert found[kind] == []


# --- that the search finds what it looks for -----------------------------------------------------------------------


def test_damage_is_the_same_every_time_and_of_every_sort() -> None:
    data = bytes(range(200)) + b"\n" + bytes(50)
    ways = {way for way, _ in (damaged(data, case, seed=3) for case in range(100))}
    assert ways == set(WAYS)
    assert damaged(data, 7, seed=3) == damaged(data, 7, seed=3) != damaged(data, 8, seed=3)


def raising(error: Exception) -> Kind:
    def read(folder: Path, case: int) -> None:
        raise error

    return Kind(lambda folder: [], read)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (DataError("a.bin: is damaged"), ""),
        (DataError("seed: must be a number"), ""),
        (DataError("something is damaged"), "names neither file nor key"),
        (DataError("a.bin: two\nlines"), "not one short line"),
        (DataError("a.bin: \x1b[2J"), "not one short line"),
        (DataError("a.bin: " + 600 * "x"), "not one short line"),
        (KeyError("scenario"), "KeyError: "),
        (MemoryError(), "MemoryError: "),
    ],
)
def test_what_is_a_fault(tmp_path: Path, error: Exception, fault: str) -> None:
    found = fault_of(raising(error), tmp_path, tmp_path / "a.bin", 0, None)
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_warnings_and_other_answers_are_faults(tmp_path: Path) -> None:
    def warned(folder: Path, case: int) -> None:
        warnings.warn("overflow", RuntimeWarning, stacklevel=1)

    assert fault_of(Kind(lambda f: [], warned), tmp_path, tmp_path, 0, None) == "warns: overflow"
    told = Kind(lambda f: [], lambda folder, case: 5)
    assert fault_of(told, tmp_path, tmp_path, 0, "5") == ""
    assert fault_of(told, tmp_path, tmp_path, 0, "6") == "gives another answer, and no line"


CODE = """
import os, sys, tests.fuzz.files as files
from tests.fuzz.kinds import KINDS, Kind
def make(folder):
    (folder / "f").write_text("x" * 99)
    return [folder / "f"]
def die(folder, case): (folder / "f").stat().st_size == 99 or os._exit(9)
def run(folder, case): (folder / "f").stat().st_size == 99 or os.system("true")
KINDS.clear()
KINDS.update(dies=Kind(make, die), runs=Kind(make, run), fine=Kind(make, lambda folder, case: 1))
"""


@full
@pytest.mark.process
def test_a_process_that_dies_or_runs_something_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds made for this stand in for the real ones, in the process of the search, too."""
    (tmp_path / "made.py").write_text(CODE + "files.main()\n")
    real = subprocess.run

    def run(words: list[str], **options: object) -> object:
        here = {"env": os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}}  # a script has its own folder
        return real([words[0], str(tmp_path / "made.py"), *words[3:]], **{**options, **here})  # type: ignore[call-overload]

    monkeypatch.setattr(files.subprocess, "run", run)
    found = faults_of(["dies", "runs", "fine"], 9, seed=1)
    assert found["dies"][0].startswith("died with 9 at dies, case ")
    assert found["runs"] and all("runs os.system" in fault for fault in found["runs"])
    assert found["fine"] == []
