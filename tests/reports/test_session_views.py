"""Runs of several sessions in reports: one session at a time, and never the rounds of two together."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.reports.load import Run
from edgesim.reports.stats import summary
from edgesim.studies.column import parse_column
from tests.calling import call
from tests.conftest import digits_scenario
from tests.sizes import full


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two sessions of 3 and 2 rounds."""
    sessions = [{"name": "a"}, {"name": "b", "stop": {"rounds": 2}, "training": {"lr": 0.05}, "method": "scaffold"}]
    return edgesim.run(digits_scenario(session=sessions), out=tmp_path_factory.mktemp("runs") / "two")


def test_a_view_is_of_one_session(run):
    """Its rows, its scenario, its reason to stop and its weights; the fleet is everybody's."""
    a, b = run.session("a"), run.session("b")
    assert (len(a.rounds), len(b.rounds)) == (3, 2)
    assert set(a.jobs["session"]) == {"a"}
    assert len(a.jobs) + len(b.jobs) == len(run.table("jobs"))
    assert (a.method, b.method) == ("fedavg", "scaffold")
    assert b.manifest["stop_reason"] == "2 rounds done"
    assert b.manifest["scenario"]["training"]["lr"] == 0.05
    assert b.saved_weights == ["best", "final"]
    assert run.saved_weights == ["a.best", "a.final", "b.best", "b.final"]
    assert a.devices.equals(b.devices)
    assert b.session("a").name == "two:a"
    assert [each.name for each in run.views] == ["two:a", "two:b"]


def test_rounds_of_two_sessions_are_never_mixed(run):
    """What would be of both together is refused in one line, and so is a session that is not there."""
    for ask in (lambda: run.rounds, lambda: run.jobs, run.summary, run.accuracy_curve, lambda: run.energy_by("round")):
        with pytest.raises(ConfigError, match=r"^two: has the sessions a, b; look at one of them$"):
            ask()
    with pytest.raises(ConfigError, match=r"^two: has no session 'c' \(there are a, b\)$"):
        run.session("c")


def test_energy_of_a_view_is_that_of_the_world(run):
    """Joules of its own jobs stand with them, those of the others with no job; all are the run's."""
    found = run.session("b").energy_by("job")["joules"]
    jobs = run.session("b").jobs
    own_j = jobs[["down_j", "compute_j", "up_j", "link_j"]].to_numpy().sum()
    assert found[found.index >= 0].sum() == pytest.approx(own_j)
    assert found.sum() == pytest.approx(run.manifest["totals"]["energy_j"])


def test_columns_of_studies_say_of_which_session(run):
    """By default of the first; "NAME:" names another."""
    assert parse_column("rounds").of(run) == 3
    assert parse_column("b:rounds").of(run) == 2
    assert parse_column("b:jobs.flops").of(run) == pytest.approx(run.session("b").jobs["flops"].sum())
    assert parse_column("b:accuracy").is_learned
    assert parse_column("b:accuracy").better == "higher"
    with pytest.raises(ConfigError, match="columns: unknown column 'acuracy'"):
        parse_column("b:acuracy")


@pytest.mark.parametrize(
    "words",
    [("explain", "--round", 1), ("energy",), ("cost",), ("devices",), ("gantt", "--round", 1), ("trace",), ("watch",)],
)
def test_commands_on_one_run_name_the_session(run, tmp_path, monkeypatch, words):
    """Without a name they say which there are; with one they work on it alone."""
    monkeypatch.chdir(tmp_path)
    command, *options = words
    refused = call(command, run.folder, *options)
    assert refused.code == 2
    assert "has the sessions a, b; " in refused.err
    if command != "cost":  # it has no prices
        done = call(command, run.folder, *options, "--session", "b")
        assert done.code == 0
        assert done.out


def test_commands_on_many_runs_show_each_session(run):
    """A row each, under its own name."""
    rows = json.loads(call("table", run.folder, "--json").out)["runs"]
    assert [row["run"] for row in rows] == ["two:a", "two:b"]
    assert [row["rounds"] for row in rows] == [3, 2]
    assert rows[1]["up_bytes"] == summary(run.session("b"))["up_bytes"] == run.session("b").jobs["up_bytes"].sum()
    assert call("diff", run.folder, run.folder).out == "identical\n"


@full
def test_commands_that_draw_many_runs_tell_sessions_apart(run, tmp_path):
    """Figures, reports and exports of a run of several sessions work, each of its sessions a run of its own."""
    assert call("plot", run.folder, "--out", tmp_path / "figure").code == 0
    assert call("report", run.folder, "--out", tmp_path / "page.html").code == 0
    assert "scaffold" in (tmp_path / "page.html").read_text()
    assert call("export", run.folder, "--to", "csv", "--out", tmp_path / "csv").code == 0
    jobs = pd.read_csv(tmp_path / "csv" / "jobs.csv")
    assert set(jobs["run"]) == {"two:a", "two:b"}


@full
def test_commands_before_a_run(tmp_path):
    """`validate`, `show` and `run` work on a scenario of sessions; `estimate` has a row for each of their devices."""
    file = "scenarios/two_sessions.toml"
    assert call("validate", file).out == f"{file}: ok\n"
    assert "session.1.devices" in call("show", file).out
    rows = json.loads(call("estimate", file, "--json").out)["blocks"]
    assert [(row["session"], row["kind"]) for row in rows] == [
        ("everybody", "phone"), ("everybody", "board"), ("boards", "board"),
    ]  # fmt: skip
    refused = call("estimate", file, "--intervals", "20")
    assert (refused.code, refused.err) == (2, "error: estimate: intervals are of one training, found 2 sessions\n")
    done = call("run", file, "--out", tmp_path / "run", "--set", "stop.rounds=1")
    assert done.code == 0
    assert "everybody: round 1/1" in done.err
    assert "run:boards" in done.out


@full
def test_a_run_of_one_training_is_its_only_session(tmp_path):
    """So whoever asks for sessions need not know which kind of run it is."""
    plain = edgesim.run(digits_scenario(), out=tmp_path / "plain")
    assert plain.sessions == ("session1",)
    assert plain.session("session1") is plain
    assert set(plain.jobs["session"]) == {"session1"}
    only = edgesim.run(digits_scenario(session=[{"name": "me", "method": "scaffold"}]), out=tmp_path / "only")
    assert only.sessions == ("me",)
    assert only.method == "scaffold"
    assert only.saved_weights == ["best", "final"]
    assert set(only.rounds["session"]) == {"me"}
