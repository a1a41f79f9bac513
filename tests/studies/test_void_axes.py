"""Axes that change nothing are refused, and what `validate` warns of is said once by studies, replays and reports."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgesim
from edgesim.studies.study import load_study
from tests.calling import TINY, Done, call
from tests.sizes import full, spread

BASE = """
partition = { name = "sizes", samples_per_device = 50 }
model = "cnn_cifar10"
method = "fedavg"
backend = "null"
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }
stop = { rounds = 1 }
"""
PHONE = '\n[[fleet]]\nname = "phone"\ncpu = { flops_per_s = "1 GFLOP/s" }\n'
OWN = PHONE + 'network = { name = "fixed", up = 1e9, down = 1e9 }\n'
PLAIN = '\n[[fleet]]\nname = "plain"\ncpu = { flops_per_s = "1 GFLOP/s" }\n'
STUDY = """
name = "links"
base = "base.toml"
columns = ["sim_time_s"]

[axes]
network = ["wifi", "lte", "5g"]
seed = [1, 2]
"""
SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").rglob("*.toml"))
SECTION = "network has no effect, as every fleet block has its own"


def one_line(done: Done) -> str:
    """Return the one line of a command that refused its input."""
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    return done.err.rstrip("\n")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a base scenario and a study of it, and returns the file of the study."""
    monkeypatch.chdir(tmp_path)

    def make(fleet: str, study: str = STUDY, base: str = BASE) -> Path:
        Path("base.toml").write_text(base + fleet)
        Path("study.toml").write_text(study)
        return Path("study.toml")

    return make


@pytest.mark.parametrize("command", ["plan", "run", "table"])
def test_an_axis_that_every_block_overrides_is_refused(write, command: str) -> None:
    """Three rows of one and the same run are no answer about networks."""
    done = call("study", command, write(OWN))
    assert one_line(done) == (
        f"error: study.toml: axes.network: changes nothing, as in size quick wifi, lte, 5g are the same run: {SECTION}"
    )
    assert not Path("runs").exists()


@full
def test_an_axis_that_one_block_follows_is_run(write) -> None:
    assert call("study", "run", write(OWN + PLAIN)).code == 0
    rows = call("study", "table", "study.toml", "--csv").out.splitlines()[1:]
    assert len(rows) == 3 and len({row.partition(",")[2] for row in rows}) == 3


def study_with(axes: str, more: str = "") -> str:
    return STUDY.replace('network = ["wifi", "lte", "5g"]', axes) + more


VOID = {
    "a key of another rule": (
        '"protocol.quantile" = [0.5, 0.9]',
        "overrides = [\"protocol={ name = 'deadline', deadline = '9 s' }\"]",
        "protocol.quantile has no effect with rule = 'fixed'",
    ),
    "scores of a run that trains nothing": (
        '"evaluation.every" = [1, 2]',
        "overrides = []",
        "evaluation has no effect, as backend null trains nothing",
    ),
    "a learning rate of a run that trains nothing": (
        '"training.lr" = [0.1, 0.2]',
        "overrides = []",
        "training.lr has no effect, as backend null trains nothing",
    ),
    "a server that is never busy": (
        '"server.workers" = [1, 2]',
        "overrides = []",
        "server.workers has no effect without server.flops_per_s or server.per_byte, as the server's work takes no",
    ),
    "a place without prices": (
        '"fleet.0.zone" = ["here", "there"]',
        "overrides = []",
        "fleet.0.zone has no effect without prices",
    ),
    "where a size says otherwise": (
        '"stop.rounds" = [1, 2]',
        "overrides = []",
        "stop.rounds has these values without it, or the size, [[where]] or a later axis replaces them",
    ),
    "labels that write a default": (
        "method = { a = [], b = ['protocol=sync'] }",
        "overrides = []",
        "protocol has these values without it",
    ),
    "what only names a run": (
        "name = ['one', 'two']",
        "overrides = []",
        "name has no effect, as it only names the run",
    ),
}


@pytest.mark.parametrize(("axes", "more", "why"), VOID.values(), ids=VOID)
def test_other_axes_that_change_nothing(write, axes: str, more: str, why: str) -> None:
    study = STUDY.replace('network = ["wifi", "lte", "5g"]', axes).replace("columns", f"{more}\ncolumns")
    if "stop.rounds" in axes:
        study += '\n[sizes.quick]\noverrides = ["stop.rounds=1"]\n'
    says = one_line(call("study", "plan", write(PLAIN, study)))
    assert says.startswith("error: study.toml: axes.") and why in says


@pytest.mark.parametrize("path", spread(SHIPPED, 16), ids=lambda path: path.stem)
def test_no_axis_of_a_shipped_study_changes_nothing(path: Path) -> None:
    """Every study that ships loads: none of its axes is refused."""
    text = path.read_text()
    if "\n[axes" in text or "\n[search" in text:
        load_study(path)


# --- warnings ---------------------------------------------------------------------------------------------------

WARNED = f"warning: {SECTION.replace(' has', ': has', 1)}"


def one_warning(done: Done) -> None:
    assert done.code == 0 and done.err.count(WARNED) == done.err.count("warning") == 1, done.err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_warning_about_every_cell_stands_once(write, command: str) -> None:
    study = study_with('"stop.rounds" = [1, 2]')
    one_warning(call("study", command, write(OWN, study)))


@full
def test_a_warning_about_some_cells_says_of_how_many(write) -> None:
    """The numbers of a warning differ from cell to cell, as the jobs do: it stands once all the same."""
    deadline = "protocol={ name = 'deadline', deadline = '90 s' }"
    study = study_with(f'rule = {{ sync = [], deadline = ["{deadline}"] }}\n"network.up" = ["1 Mbit/s", "2 Mbit/s"]')
    err = call("study", "run", write(PLAIN, study)).err
    [line] = [line for line in err.splitlines() if line.startswith("warning")]
    assert line.startswith("warning: protocol.deadline: no device can miss 90 s") and line.endswith("(in 4 of 8 runs)")


@full
def test_the_report_of_a_study_repeats_its_warnings(write) -> None:
    call("study", "run", write(OWN, study_with('"stop.rounds" = [1, 2]')))
    assert call("report", "study.toml").code == 0
    assert Path("report.html").read_text().count(f"</strong> {WARNED.removeprefix('warning: ')}.") == 1


def test_a_quiet_run_warns_too_and_its_report(write) -> None:
    write(OWN)
    done = call("run", "base.toml", "--quiet", "--out", "one")
    assert done.out == "one\n" and done.err == f"{WARNED}\n"
    assert edgesim.open("one").manifest["warnings"] == [WARNED.removeprefix("warning: ")]
    call("report", "one", "--out", "one.html")
    assert Path("one.html").read_text().count("</strong> network: has no effect") == 1


def test_a_replay_warns_of_what_it_was_told_in_vain(write) -> None:
    trains = TINY.replace("count = 2\n", "count = 2\nnetwork = { name = 'fixed', up = 1e9, down = 1e9 }\n")
    write("", base=trains)
    assert call("run", "base.toml", "--quiet", "--out", "one").code == 0
    one_warning(call("replay", "one", "--set", "network=lte", "--quiet"))
    assert "warning" not in call("replay", "one", "--set", "fleet.0.network=lte", "--quiet").err


def test_sections_that_a_study_leaves_out_are_not_written(write) -> None:
    study = study_with('"stop.rounds" = [1, 2]').replace("columns", 'without = ["evaluation"]\ncolumns')
    assert "warning" not in call("study", "run", write(PLAIN, study, BASE + "evaluation = { every = 1 }\n")).err
