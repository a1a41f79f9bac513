"""Milestones: a run that has not learned enough by a simulated time ends then, and is charged up to then."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.records.schema import TABLES
from edgesim.reports.load import Run
from tests.calling import call
from tests.sizes import full

ROUNDS = "stop.rounds=6"


def with_milestones(*pairs: tuple[float, float], also: str = "seed=1") -> Run:
    tables = ", ".join(f"{{ sim_time = {time_s!r}, accuracy = {accuracy!r} }}" for time_s, accuracy in pairs)
    return edgesim.run("scenario.toml", [ROUNDS, f"stop.milestones=[{tables}]", also])


@pytest.fixture
def free(here: Path) -> Run:
    """Return the run without milestones."""
    return edgesim.run("scenario.toml", [ROUNDS])


def test_a_run_ends_at_the_milestone_that_it_misses(free: Run) -> None:
    """Between two rounds; what the devices were at is charged, and everything before is as without it."""
    best = free.evals["accuracy"][free.evals["split"] == "test"].cummax()
    end_s = float(free.rounds["now_s"].iloc[2] + free.rounds["now_s"].iloc[3]) / 2
    run = with_milestones((end_s, float(best.iloc[2]) + 0.01))
    assert run.finished and run.manifest["totals"]["sim_time_s"] == end_s
    assert run.manifest["stop_reason"].startswith(
        f"accuracy {best.iloc[2]:.4g} after {end_s:g} s, a milestone asks for"
    )
    pd.testing.assert_frame_equal(run.rounds, free.rounds[:3], check_exact=True)
    assert set(run.jobs["outcome"][run.jobs["round"] == 3]) == {"stopped"}
    in_time = run.jobs[run.jobs["outcome"] == "stopped"]
    assert (in_time["end_s"] == end_s).all() if "end_s" in in_time else True


def test_milestones_that_are_met_change_nothing(free: Run) -> None:
    """One is met exactly; one lies behind the end."""
    best = float(free.evals["accuracy"][free.evals["split"] == "test"].iloc[:3].max())
    just_after_s = float(free.rounds["now_s"].iloc[2]) + 1e-6
    run = with_milestones((just_after_s, best), (1e6, 1.0))
    for table in TABLES:
        pd.testing.assert_frame_equal(run.table(table), free.table(table), check_exact=True, obj=table)


def test_the_first_that_is_missed_holds(free: Run) -> None:
    first_s = float(free.rounds["now_s"].iloc[0])
    run = with_milestones((2 * first_s, 1.0), (0.5 * first_s, 0.01))
    assert run.manifest["totals"]["sim_time_s"] == 0.5 * first_s
    assert run.rounds.empty and "accuracy 0 after" in run.manifest["stop_reason"]


@full
@pytest.mark.workers
@pytest.mark.parametrize("protocol", ["sync", "{ name = 'buffered', buffer = 2, concurrency = 3 }"])
def test_processes_change_nothing(here: Path, protocol: str) -> None:
    """Answers that are outstanding at a milestone are waited for."""
    words = [f"protocol={protocol}", *(["method=fedbuff"] if "buffered" in protocol else [])]
    ends = []
    for backend in ("serial", "{ name = 'workers', workers = 2 }"):
        given = [ROUNDS, *words, f"backend={backend}"]
        free = edgesim.run("scenario.toml", given)
        best = float(free.evals["accuracy"][free.evals["split"] == "test"].iloc[:3].max())
        at_s = float(free.rounds["now_s"].iloc[2]) + 1e-3
        lost = [f"stop.milestones=[{{ sim_time = {at_s!r}, accuracy = {min(1.0, best + 0.01)!r} }}]"]
        run = edgesim.run("scenario.toml", [*given, *lost])
        ends.append((run.manifest["stop_reason"], run.jobs.to_csv(), run.rounds.to_csv(), run.evals.to_csv()))
    assert ends[0] == ends[1]
    assert "a milestone asks for" in ends[0][0]


def test_without_training_they_say_nothing(here: Path) -> None:
    given = ["backend=null", "stop.milestones=[{ sim_time = '1 s', accuracy = 0.9 }]"]
    assert edgesim.run("scenario.toml", given).manifest["stop_reason"] == "1 rounds done"
    words = [word for each in given for word in ("--set", each)]
    says = "stop.milestones: has no effect, as backend null trains nothing"
    assert says in call("validate", "scenario.toml", *words).err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "{ milestones = [{ sim_time = 1, accuracy = 0.5 }] }",
            "stop: needs at least one of rounds, accuracy, metric, sim_tim",
        ),
        ("{ rounds = 1, milestones = [{ sim_time = 1 }] }", "stop.milestones.0.accuracy: is missing"),
        ("{ rounds = 1, milestones = [{ sim_time = 0, accuracy = 0.5 }] }", "stop.milestones.0.sim_time: "),
        ("{ rounds = 1, milestones = [{ sim_time = 1, accuracy = 50 }] }", "stop.milestones.0.accuracy: "),
        ("{ rounds = 1, milestones = [[1, 0.5]] }", "stop.milestones.0: must be a table"),
    ],
)
def test_bad_milestones(here: Path, given: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        edgesim.load("scenario.toml", [f"stop={given}"])
    assert str(error.value).startswith(says)
