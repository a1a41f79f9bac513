"""Run folders that come from somebody else: looking at one runs nothing that it names, and prints no control codes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.records.manifest import MANIFEST
from edgesim.studies.search import write_trials
from edgesim.studies.study import load_study
from tests.calling import TINY, call
from tests.records.written import seal_again

# Every command that looks at runs; {run} is a run folder, {here} the folder around it.
VIEWS: Sequence[Sequence[str]] = (
    ("table", "{run}"),
    ("table", "{run}", "--json"),
    ("table", "{run}", "--csv"),
    ("table", "{run}", "--markdown"),
    ("table", "{run}", "--latex"),
    ("explain", "{run}", "--round", "1"),
    ("energy", "{run}"),
    ("energy", "{run}", "--by", "device,kind", "--json"),
    ("cost", "{run}"),
    ("devices", "{run}", "--each"),
    ("diff", "{run}", "{run}"),
    ("watch", "{run}"),
    ("plot", "{run}", "--out", "{here}/plot"),
    ("plot", "{run}", "--kind", "energy", "--out", "{here}/bars"),
    ("gantt", "{run}", "--round", "1", "--out", "{here}/gantt"),
    ("trace", "{run}", "--out", "{here}/trace.json"),
    ("report", "{run}", "--out", "{here}/report.html"),
    ("export", "{run}", "--to", "csv", "--out", "{here}/csv"),
    ("export", "{run}", "--to", "parquet", "--out", "{here}/parquet"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is evaluated and priced."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "scenario.toml").write_text(TINY)
    edgesim.run(folder / "scenario.toml", ["prices={ electricity = '0.3 EUR/kWh' }"], out=folder / "run")
    return folder / "run"


@pytest.fixture
def run(made: Path, here: Path) -> Path:
    """A copy of it, in the current folder."""
    return Path(shutil.copytree(made, here / "run"))


def edit(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a run folder, whose digests are right again afterwards."""
    manifest = json.loads((run / MANIFEST).read_text())
    change(manifest)
    (run / MANIFEST).write_text(json.dumps(manifest))
    seal_again(run)


def view(words: Sequence[str], run: Path) -> tuple[int, str, str]:
    """Return what a command says of a run folder."""
    return call(*(word.format(run=run, here=run.parent) for word in words))


# --- nothing is run -----------------------------------------------------------------------------------------------

EVIL = "evil_part"
CODE = f"""
from pathlib import Path
Path({EVIL!r}).write_text("was imported")
class Class: pass
"""


@pytest.fixture
def evil(here: Path) -> Iterator[Path]:
    """A module in the current folder, where classes may lie; the path tells whether it has been imported."""
    (here / f"{EVIL}.py").write_text(CODE)
    yield here / EVIL
    sys.modules.pop(EVIL, None)


@pytest.mark.parametrize("words", VIEWS, ids=lambda words: " ".join(words[:1] + words[2:3]))
def test_looking_at_a_run_imports_no_class_that_it_names(run: Path, evil: Path, words: Sequence[str]) -> None:
    """Each part of its scenario is one from outside."""

    def name(manifest: dict[str, Any]) -> None:
        for section in manifest["scenario"].values():
            if isinstance(section, dict) and "name" in section:
                section["name"] = f"{EVIL}:Class"

    edit(run, name)
    code, _, err = view(words, run)
    assert (code, err) == (0, "") and not evil.exists() and EVIL not in sys.modules
    assert edgesim.open(run).method == f"{EVIL}:Class"


SEARCH = """
name = "a"
base = "base.toml"
columns = ["accuracy"]

[search]
maximise = ["accuracy"]

[search.space]
seed = [1, 2]
"training.lr" = { low = 0.1, high = 0.2 }
"network.up" = { low = 1, high = 2, unit = "Mbit/s" }
"""


def test_trials_of_a_foreign_folder_are_those_of_the_search(here: Path, evil: Path) -> None:
    (here / "base.toml").write_text(TINY)
    (here / "study.toml").write_text(SEARCH)
    search = load_study(Path("study.toml")).search
    assert search is not None
    point = search.overrides({"seed": "2", "training.lr": 0.15, "network.up": 1.5})
    assert point == ("seed=2", "training.lr=0.15", 'network.up="1.5 Mbit/s"')
    view = ("study", "table", "study.toml", "--out", "runs")
    for number, (overrides, says) in enumerate(
        [
            (point, "no cell has been run"),
            ((*point[:2], f"model='{EVIL}:Class'"), "trials.json: is damaged; remove it, the runs stay: trial 0 has "),
            (("seed=3", *point[1:]), "trial 0 has "),
            ((f"training.lr='{EVIL}:Class'",), "trial 0 has "),
        ]
    ):
        write_trials(search, {"0": overrides}, here / "runs")
        code, _, err = call(*view)
        assert code == 2 and says in err and err.count("\n") == 1, number
    assert not evil.exists()
