"""Scenarios that come with edgesim are named "edgesim:NAME" wherever a scenario is, from any folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import edgesim
from edgesim.config.load import scenario_file
from edgesim.core.errors import ConfigError
from tests.calling import call
from tests.conventions.source_tree import PACKAGE, ROOT

TIMING = "backend = 'null'\nstop.rounds = 2\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def quickstart() -> str:
    return edgesim.load(ROOT / "scenarios" / "quickstart.toml").digest()


def test_the_quickstart_of_the_repository_and_of_the_package_are_one() -> None:
    paths = ROOT / "scenarios" / "quickstart.toml", scenario_file("edgesim:quickstart")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_every_file_that_the_package_reads_is_in_the_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["edgesim"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert {path for path in PACKAGE.rglob("*.toml")} <= packed
    assert scenario_file("edgesim:quickstart") in packed


def test_a_command_runs_it(here: Path, quickstart: str) -> None:
    assert call("validate", "edgesim:quickstart") == (0, "edgesim:quickstart: ok\n", "")
    assert call("show", "edgesim:quickstart").code == 0
    done = call("run", "edgesim:quickstart", "--set", "backend=null", "--set", "stop.rounds=2", "--quiet")
    assert (done.code, done.err) == (0, "warning: evaluation: has no effect, as backend null trains nothing\n")
    assert len(edgesim.open(here / done.out.strip()).rounds) == 2
    assert edgesim.load("edgesim:quickstart").digest() == quickstart


def test_a_scenario_extends_it(here: Path) -> None:
    (here / "mine.toml").write_text(f"extends = 'edgesim:quickstart'\n{TIMING}")
    (here / "deeper").mkdir()
    (here / "deeper" / "more.toml").write_text("extends = '../mine.toml'\nseed = 5\n")
    found = edgesim.load(here / "deeper" / "more.toml")
    assert (found.seed, found.stop.rounds, found.method.name) == (5, 2, "fedpmt")
    assert "quickstart.toml" in call("show", "deeper/more.toml").out  # where most values come from


def test_a_study_has_it_as_its_base(here: Path) -> None:
    (here / "study.toml").write_text(
        "name = 's'\nbase = 'edgesim:quickstart'\ncolumns = ['sim_time_s']\n"
        "overrides = ['backend=null', 'stop.rounds=2']\n[axes]\nseed = [1, 2]\n"
    )
    done = call("study", "run", "study.toml")
    assert done.code == 0, done.err
    bare = edgesim.load("edgesim:quickstart", {"backend": "null", "stop.rounds": 2, "seed": 2})
    runs = {edgesim.open(path.parent).seed: path.parent for path in (here / "runs").rglob("manifest.json")}
    assert edgesim.open(runs[2]).manifest["digest"] == bare.digest()


def test_python_takes_it(here: Path) -> None:
    study = edgesim.study("edgesim:quickstart", {"seed": [1]}, ["sim_time_s"], {"backend": "null", "stop.rounds": 2})
    assert len(study.run().runs) == 1
    assert len(edgesim.run("edgesim:quickstart", {"backend": "null", "stop.rounds": 2}).rounds) == 2


@pytest.mark.parametrize("name", ["edgesim:quikstart", "edgesim:", "edgesim:../devices/laptop"])
def test_a_name_that_it_has_not_is_one_line(here: Path, name: str) -> None:
    (here / "mine.toml").write_text(f"extends = '{name}'\n")
    for source in (name, here / "mine.toml"):
        with pytest.raises(ConfigError, match=r"edgesim has no such scenario.*known: edgesim:quickstart") as caught:
            edgesim.load(source)
        assert ("did you mean 'quickstart'" in str(caught.value)) == ("quik" in name)


def test_a_file_of_the_repository_is_named_by_no_how_to_that_can_do_without() -> None:
    """Golden tables are about files of a project, so theirs may name one."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "howto").glob("*.md")}
    assert {name for name, text in pages.items() if "scenarios/quickstart.toml" in text} <= {"golden_tables.md"}
    assert "first.toml" not in pages["report.md"]  # the tutorial's, in which its reader has worked
