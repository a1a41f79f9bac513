"""Run folders that come from somebody else: looking at one runs nothing that it names, and prints no control codes."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import edgesim
from edgesim.files.tables import csv_text
from edgesim.records.manifest import MANIFEST
from edgesim.records.schema import TABLES, TEXT
from edgesim.runs.progress import glance_of, panel_of
from edgesim.studies.study import load_study, write_trials
from tests.calling import TINY, call
from tests.records.written import seal_again
from tests.sizes import spread

KINDS = ("targets", "energy", "cost", "rounds", "lorenz", "topology")  # of pictures
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
    *(("plot", "{run}", "--kind", kind, "--out", "{here}/picture") for kind in KINDS),
    ("gantt", "{run}", "--round", "1", "--out", "{here}/gantt"),
    ("trace", "{run}", "--out", "{here}/trace.json"),
    ("report", "{run}", "--out", "{here}/report.html"),
    ("export", "{run}", "--to", "csv", "--out", "{here}/csv"),
    ("export", "{run}", "--to", "parquet", "--out", "{here}/parquet"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is evaluated and priced, and has a target."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "scenario.toml").write_text(TINY)
    edgesim.run(
        folder / "scenario.toml",
        ["prices={ electricity = '0.3 EUR/kWh' }", "evaluation={ targets = [0.05] }"],
        out=folder / "run",
    )
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


@pytest.mark.parametrize("words", spread(map(list, VIEWS), 8), ids=lambda words: " ".join(words[:1] + words[2:4]))
def test_looking_at_a_run_imports_no_class_that_it_names(run: Path, evil: Path, words: Sequence[str]) -> None:
    """Each part of its scenario is one from outside."""

    def name(manifest: dict[str, Any]) -> None:
        for section in manifest["scenario"].values():
            if isinstance(section, dict) and "name" in section:
                section["name"] = f"{EVIL}:Class"

    edit(run, name)
    code, _, err = view(words, run)
    assert not evil.exists() and EVIL not in sys.modules
    says = f"'{EVIL}:Class' is a class from outside, and looking at a run imports none"
    assert (code, err) == (0, "") or (code == 2 and "topology" in words and says in err)
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
    view = ("study", "table", "study.toml", "--runs", "runs")
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


# --- nothing reaches the terminal but text ------------------------------------------------------------------------

CLEARS = (
    "a\x1b[2J\x9b31m\u202eb\x07\r"  # clears the screen, turns red, turns the direction of writing, rings, goes back
)


def write_everywhere(run: Path, text: str) -> None:
    """Put a text wherever a run folder has texts: kinds, tasks, metrics, its method and more."""
    for table, columns in TABLES.items():
        frame = pd.read_parquet(run / f"{table}.parquet")
        for name in columns:
            if columns[name] == TEXT and name not in ("closed_by", "session", "outcome", "split"):
                frame[name] = text
        frame.to_parquet(run / f"{table}.parquet", index=False)

    def change(manifest: dict[str, Any]) -> None:
        manifest |= {"name": text, "stop_reason": text, "command": ["edgesim", text], "charged_as": text}
        manifest["metrics"] = {text: "lower"}
        manifest["versions"] = {text: text}
        manifest["scenario"] |= {
            "name": text,
            "model": {"name": text},
            text: text,
            "method": {"name": text, text: text},
        }

    edit(run, change)


@pytest.mark.parametrize("words", spread(map(list, VIEWS), 8), ids=lambda words: " ".join(words[:1] + words[2:4]))
def test_a_run_folder_cannot_move_the_cursor(run: Path, words: Sequence[str]) -> None:
    """Neither by what it holds nor by its name."""
    write_everywhere(run, CLEARS)
    run = run.rename(run.with_name(CLEARS))
    if words[0] == "diff":
        (run.parent / "other").mkdir()
        words = [*words[:2], str(shutil.copytree(run, run.parent / "other" / run.name))]
        edit(Path(words[2]), lambda manifest: manifest.update(name="other"))
        frame = pd.read_parquet(Path(words[2]) / "devices.parquet").assign(kind=CLEARS + "2")
        frame.to_parquet(Path(words[2]) / "devices.parquet", index=False)
        seal_again(Path(words[2]))
    code, out, err = view(words, run)
    assert code == (1 if words[0] == "diff" else 2 if "topology" in words else 0)
    for each in out + err:
        assert each.isprintable() or each == "\n"
    assert "[2J" in out + err
    if "--json" in words:
        assert CLEARS in str(json.loads(out)) or repr(CLEARS)[1:-1] in str(json.loads(out))


def test_a_terminal_that_is_watched_and_a_notebook_get_no_control_codes(run: Path) -> None:
    """Rich, which draws there, lets them pass."""
    write_everywhere(run, CLEARS)
    found = edgesim.open(run.rename(run.with_name(CLEARS)))
    for each in panel_of(glance_of(found)), found:
        console = Console(file=io.StringIO(), force_terminal=True, color_system=None, legacy_windows=False)
        console.print(each)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "[2J" in text and not set(CLEARS) - {*"a[2J31mb"} & {*text}


# --- nor is anything a formula ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", '=HYPERLINK("a,b")'])
def test_a_spreadsheet_runs_no_text_of_a_run_folder(run: Path, text: str) -> None:
    """A cell that begins like a formula begins with an apostrophe; numbers, below zero too, are as they were."""
    write_everywhere(run, text)
    run = run.rename(run.with_name("=1+1"))
    assert call("export", run, "--to", "csv", "--out", "csv").code == 0
    texts = [path.read_text() for path in Path("csv").iterdir()] + [call("table", run, "--csv").out]
    cells = [cell for each in texts for row in csv.reader(io.StringIO(each)) for cell in row]
    assert {f"'{text}", "'=1+1"} <= {*cells}
    for cell in cells:
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")) or math.isfinite(float(cell))
    assert pd.read_csv("csv/devices.csv")["device"].tolist()[-1] == -1


def test_numbers_and_other_texts_are_as_pandas_writes_them() -> None:
    frame = pd.DataFrame({"a": ["-1", "+2.5e-3", "-inf", "x=1", None], "b": [-1.5, 2.0, math.nan, 4.0, 5.0]})
    assert csv_text(frame) == frame.to_csv(index=False)
    assert csv_text(pd.DataFrame({"=a": ["-x"]})) == "'=a\n'-x\n"
