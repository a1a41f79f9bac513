"""The fixture edgesim_golden in somebody else's tests, as pytest's own pytester plays them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.calling import call
from tests.conventions.source_tree import ROOT
from tests.package.test_metadata import PROJECT
from tests.sizes import full
from tests.studies.golden_project import replace, rows_of

pytest_plugins = ["pytester"]

TESTS = """
def test_numbers_stand(edgesim_golden):
    verdict = edgesim_golden("golden")
    assert [*verdict.outcome.found.cells] == ["method=fedavg,seed=1", "method=thin,seed=1"]

def test_numbers_stand_about(edgesim_golden):
    edgesim_golden("golden", tolerances={"energy_j": "30 %", "jobs.compute_j": "20 %"})
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, golden_project: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Make a project with golden tables and two tests of them, in a folder that is not the current one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # installed or not: it is named below
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(golden_project, pytester.path, dirs_exist_ok=True)
    shutil.rmtree(pytester.path / "runs")
    pytester.makepyfile(test_in_their_project=TESTS)  # a name that no module of these tests has
    return pytester


def played(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "edgesim.pytest_plugin", *words)


def test_it_is_installed_with_edgesim() -> None:
    assert PROJECT["entry-points"]["pytest11"] == {"edgesim": "edgesim.pytest_plugin"}


@full
def test_tables_that_stand(suite: pytest.Pytester) -> None:
    played(suite).assert_outcomes(passed=2)


@full
def test_tables_that_do_not_stand_fail_with_what_differs(suite: pytest.Pytester) -> None:
    replace(suite.path / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    result = played(suite)
    result.assert_outcomes(passed=1, failed=1)
    job = rows_of(suite.path / "golden/jobs.csv")[0]
    result.stdout.fnmatch_lines(
        "*golden: scenario *base.toml, cell method=fedavg,seed=1: energy_j: stored *, found * (+*, allowed: equal); "
        f"first of 2 jobs that differ: job {job['job']} (device {job['device']}, *"
        f"compute_j: stored {job['compute_j']},*"
    )
    assert "Traceback" not in result.stdout.str() and "edgesim/studies" not in result.stdout.str()


def test_an_update_says_what_moved_and_passes(suite: pytest.Pytester) -> None:
    replace(suite.path / "base.toml", 'busy = "4 W"', 'busy = "4.5 W"')
    result = played(suite, "--edgesim-update", "-k", "stand_about")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*edgesim: golden tables that were written*", "*cell method=thin,seed=1: energy_j: *"])
    again = played(suite, "--edgesim-update")
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines(["*/golden: nothing moved"])


@full
def test_its_rounds_are_those_of_the_command(suite: pytest.Pytester) -> None:
    """What pytest writes anew the command finds as stored."""
    for name in ("cells.csv", "jobs.csv"):
        (suite.path / "golden" / name).unlink()
    played(suite, "--edgesim-update", "-k", "about").assert_outcomes(passed=1)
    assert call("check", "golden").out == "golden: as stored (2 cells, 8 numbers, 4 jobs)\n"


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("edgesim_golden('nowhere')", "*nowhere/golden.toml: cannot be read: No such file*"),
        ("edgesim_golden('golden', tolerances={'loss': 1})", "*'loss' is no column of these golden tables*"),
        ("edgesim_golden('golden', tolerances={'flops': 'a'})", "*golden: tolerances: must be a number in the unit*"),
    ],
)
def test_a_golden_that_is_broken_fails_in_one_line(suite: pytest.Pytester, test: str, says: str) -> None:
    suite.makepyfile(test_in_their_project=f"def test_it(edgesim_golden):\n    {test}\n")
    result = played(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(says)


def test_a_cell_that_cannot_run_fails(suite: pytest.Pytester) -> None:
    replace(suite.path / "study.toml", "fedavg = []", 'fedavg = ["peers=ring"]')
    result = played(suite, "-k", "stand_about")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*cell method=fedavg,seed=1 could not be run: peers: fedavg has a server*")


@pytest.mark.process
def test_a_session_that_does_not_ask_loads_nothing(suite: pytest.Pytester) -> None:
    """pytest loads the plug-in in every session of who has edgesim installed."""
    watched = "{'torch', 'pandas', 'numpy', 'pydantic', 'typer', 'edgesim.studies'}"
    suite.makepyfile(
        test_in_their_project=f"import sys\n\ndef test_it():\n    assert not {watched} & set(sys.modules)\n"
    )
    assert sys.executable
    suite.runpytest_subprocess("-p", "edgesim.pytest_plugin").assert_outcomes(passed=1)
