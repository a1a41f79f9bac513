"""A run that did not finish is never shown as if it had: every command that shows runs says so."""

import json

import pytest

import edgesim
from tests.calling import call
from tests.conftest import timing_scenario
from tests.records.written import seal_again
from tests.sizes import full, spread

STATUSES = {"interrupted": "interrupted", "failed": "failed", "running": "cut off"}  # nobody writes the last any more


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a run of one round that finished."""
    return edgesim.run(timing_scenario(stop={"rounds": 1}), out=tmp_path_factory.mktemp("runs") / "whole").folder


@pytest.fixture
def unfinished(fake_run):
    """Return a maker of run folders of another status."""

    def make(status, name="cut", **more):
        run = fake_run(name, **more)
        path = run.folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}), encoding="utf-8")
        seal_again(run.folder)
        return run.folder

    return make


@pytest.mark.parametrize(("written", "status"), STATUSES.items())
def test_a_table_has_the_status_of_every_run(unfinished, fake_run, written, status):
    whole, cut = fake_run("whole").folder, unfinished(written)
    done = call("table", whole, cut)
    rows = [line.split() for line in done.out.splitlines() if line.split()[:1] in (["whole"], ["cut"])]
    assert len(rows) == 6  # one in the first table, two in that of targets
    assert all(row[1] == ("finished" if row[0] == "whole" else status.split()[0]) for row in rows)
    assert done.err == f"cut: {status} after 4 rounds; the output ends there\n"


@full
@pytest.mark.parametrize(("written", "status"), spread(STATUSES.items(), 1))
def test_the_legend_of_a_plot_marks_them(unfinished, fake_run, tmp_path, written, status):
    runs = fake_run("whole").folder, unfinished(written, seed=2), unfinished(written, "other", method="fedprox")
    for labels in ([], ["--labels", "fedavg,fedprox"]):
        done = call("plot", *runs, "--out", tmp_path / "figure", *labels)
        drawn = (tmp_path / "figure.svg").read_text().lower()
        assert f">fedavg (1 of 2 {status}) (2 seeds)<" in drawn and f">fedprox ({status})<" in drawn
    assert done.err.splitlines() == [
        f"{name}: {status} after 4 rounds; the output ends there" for name in ("cut", "other")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "--round", "1"], ["gantt", "--round", "1"], ["energy"], ["trace"], ["energy", "--json"],
    ],
)  # fmt: skip
def test_every_command_about_one_run_says_so(unfinished, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    done = call(words[0], unfinished("interrupted"), *words[1:])
    assert done.code == 0 and done.err == "cut: interrupted after 4 rounds; the output ends there\n"
    if "--json" in words:
        assert json.loads(done.out)["status"] == "interrupted"


def test_nothing_is_said_of_whole_runs(finished, tmp_path):
    for words in (["table", finished], ["explain", finished, "--round", 1], ["energy", finished]):
        done = call(*words)
        assert done.code == 0 and done.err == ""
