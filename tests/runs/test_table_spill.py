"""Rows that leave memory for the run folder while a run goes on: what is read of it is what it would have been."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.records.manifest import NEXT, PARTS
from edgesim.records.schema import TABLES, conform
from edgesim.records.table import Table, new_tables
from edgesim.records.writer import RunFolder, taken
from edgesim.reports.critical_path import attributed
from edgesim.reports.load import Run
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import Silent, Simulation
from tests.calling import names
from tests.conftest import frames, simulate_null, timing_scenario
from tests.records.written import manifest_of, whole
from tests.runs.test_recording import Looking, killed_at, often
from tests.sizes import full, grows, sized, thinned

__all__ = ["often"]  # a fixture

ROWS = 5  # of a part
POWER = {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.5 W"}
LINKS = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": 0.02}
FLEET = [{"count": 8, "cpu": {"flops_per_s": {"uniform": ["1 GFLOP/s", "3 GFLOP/s"]}}}]
BASE: dict[str, Any] = {
    "fleet": FLEET,
    "energy": POWER,
    "network": LINKS,
    "selection": {"name": "uniform", "count": 4},
    "stop": {"rounds": 12},
}
BUFFERED = {"name": "buffered", "concurrency": 6, "buffer": 3}
FILES = sorted(["manifest.json", *(f"{table}.parquet" for table in TABLES)])
RUNS: dict[str, dict[str, Any]] = {
    "sync": {},
    "a working server": {"server": {"flops_per_s": "1 MFLOP/s"}},
    "deadline": {"protocol": {"name": "deadline", "deadline": "40 s", "late_weight": 0.5}},
    "over_selection": {"protocol": {"name": "over_selection", "keep": 2}},
    "buffered": {"method": "fedbuff", "protocol": {**BUFFERED, "max_staleness": 1}},
    "one by one": {"method": "fedbuff", "protocol": {**BUFFERED, "buffer": 1}, "stop": {"rounds": 40}},
    "restarts": {
        "method": "fedbuff",
        "protocol": BUFFERED,
        "failures": [{"name": "server_restart", "mean_time": "45 s"}],
    },
    "peers": {"method": "dpsgd", "peers": {"name": "ring"}, "selection": {"name": "all"}},
    "time runs out": {"stop": {"sim_time": "200 s"}},
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a part be a few rows."""
    monkeypatch.setattr("edgesim.records.writer.PART_ROWS", ROWS)
    monkeypatch.setattr("edgesim.runs.table_spill.PART_ROWS", ROWS)


def held(simulation: Simulation) -> dict[str, pd.DataFrame]:
    """Return the tables of a run of which nothing was released, as a folder has them."""
    found = {**frames(simulation), "devices": pd.DataFrame(simulation.devices())}
    found["rounds"] = attributed(found["jobs"], found["rounds"])
    return {name: conform(name, frame, "memory") for name, frame in found.items()}


def check_same(run: Run, expected: dict[str, pd.DataFrame]) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(run.table(name), expected[name], check_exact=True)


class Watching(Looking):
    """Keeps what lies in the folder after each round."""

    def round_closed(self, info: Any) -> None:
        run = edgesim.open(self.folder)
        self.seen.append((run, sorted(run.manifest["files"])))


@pytest.mark.parametrize("what", thinned(RUNS, ["sync"]))
def test_tables_are_those_of_a_run_that_keeps_all_in_memory(tmp_path: Path, often: None, what: str) -> None:
    """At the end, and at every look before: each shows the rows up to a round, which the finished run has too."""
    scenario = timing_scenario(**{**BASE, **RUNS[what]})
    expected = held(simulate_null(scenario))
    watching = Watching(tmp_path / "run")
    run = simulate(scenario, tmp_path / "run", watching)
    check_same(run, expected)
    assert "parts" not in run.manifest
    assert names(run.folder) == FILES
    last, files = watching.seen[-1]
    assert sum(name.startswith(f"{PARTS}/jobs-") for name in files) >= 3
    for then, _ in watching.seen:
        for name in ("jobs", "rounds"):
            rows = then.table(name)
            changing = [column for column in rows if column == "outcome"]  # of updates that wait in the buffer
            pd.testing.assert_frame_equal(
                rows.drop(columns=changing), expected[name][: len(rows)].drop(columns=changing), check_exact=True
            )
        assert len(then.rounds) == then.manifest["rounds"]
    assert len(last.rounds) == len(run.rounds) - 1


def test_files_do_not_tell_whether_rows_were_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the same bytes, in row groups of one size."""
    scenario = timing_scenario(**BASE)
    simulate(scenario, tmp_path / "released")
    monkeypatch.setattr("edgesim.runs.table_spill.Releasing._release", lambda *_: None)
    simulate(scenario, tmp_path / "held")
    for table in TABLES:
        file = f"{table}.parquet"
        assert (tmp_path / "held" / file).read_bytes() == (tmp_path / "released" / file).read_bytes()
    about = pq.read_metadata(tmp_path / "released" / "jobs.parquet")
    assert [about.row_group(n).num_rows for n in range(about.num_row_groups)] == [5] * 9 + [3]


@full
def test_memory_holds_a_part_and_what_is_not_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of rounds; jobs whose updates wait in the buffer stay, with those after them."""
    most: Counter[str] = Counter()
    mark = Table.mark

    def watched(self: Table, rows: int | None = None) -> None:
        mark(self, rows)
        for name, columns in TABLES.items():
            rows_carry = [column for column in columns if not column.startswith("critical_") and column != "session"]
            if list(self.columns) == rows_carry:
                most[name] = max(most[name], self.committed - self._released)

    monkeypatch.setattr(Table, "mark", watched)
    for what, rows in (("sync", 8), ("one by one", 8), ("restarts", 12)):
        most.clear()
        changes = {**BASE, **RUNS[what], "stop": {"rounds": 60}}
        run = simulate(timing_scenario(**changes), tmp_path / what)
        assert len(run.jobs) >= 60 == len(run.rounds)
        assert 0 < max(most["jobs"], most["rounds"]) <= rows


@grows
@pytest.mark.parametrize("place", ["add_part", "release"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["sync", "one by one"])
def test_an_interrupt_at_any_moment_keeps_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, place: str, late: bool
) -> None:
    """Before or after a part is written, before or after its rows are forgotten."""
    scenario = timing_scenario(**{**BASE, **RUNS[what]})
    expected = held(simulate_null(scenario))
    for kind in (RunFolder, Table):
        if (really := getattr(kind, place, None)) is not None:
            owner, original = kind, really
    for nth in sized((0, 3), range(6), range(6)):
        calls = []

        def press(*words: Any, nth: int = nth, calls: list[int] = calls, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == nth + 1 and not late:
                signal.raise_signal(signal.SIGINT)
            found = original(*words, **more)
            if len(calls) == nth + 1 and late:
                signal.raise_signal(signal.SIGINT)
            return found

        folder = tmp_path / str(nth)
        with monkeypatch.context() as patch:
            patch.setattr(owner, place, press)
            run = simulate(scenario, folder)
        assert run.status == "interrupted" and "parts" not in run.manifest
        assert 0 < len(run.rounds) == run.manifest["rounds"] < len(expected["rounds"])
        for name in ("jobs", "rounds"):
            pd.testing.assert_frame_equal(
                run.table(name).drop(columns="outcome", errors="ignore"),
                expected[name][: len(run.table(name))].drop(columns="outcome", errors="ignore"),
                check_exact=True,
            )
        assert names(folder) == FILES


@full
@grows
def test_a_kill_at_any_instant_leaves_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> None:
    """It is read as before, and the next run in the same place leaves nothing of it."""
    scenario = timing_scenario(**{**BASE, "stop": {"rounds": 5}})
    expected = held(simulate_null(scenario))
    seen = set()
    for step in range(0, 1000, sized(71, 5, 1, rest=13)):
        folder = tmp_path / str(step) / "run"
        try:
            with killed_at(step, monkeypatch):
                simulate(scenario, folder)
        except RuntimeError:  # it came to its end
            break
        if folder.exists():
            run = edgesim.open(folder)
            seen.add((len(run.rounds), "parts" in run.manifest))
            assert len(run.rounds) == run.manifest["rounds"] and len(run.jobs) == 4 * len(run.rounds)
            pd.testing.assert_frame_equal(run.jobs, expected["jobs"][: len(run.jobs)], check_exact=True)
            pd.testing.assert_frame_equal(run.rounds, expected["rounds"][: len(run.rounds)], check_exact=True)
        check_same(simulate(scenario, folder, overwrite=True), expected)
        assert names(folder.parent) == ["run"]
        assert names(folder) == FILES
    assert step > 60 and {parts for _, parts in seen} == {True, False}


def test_a_full_disk_on_the_way_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that cannot be written stay in memory, and are tried again after some more."""
    really, tries = RunFolder.add_part, []

    def full_at_first(self: RunFolder, table: str, rows: pd.DataFrame) -> Any:
        tries.append(table)
        if tries.count(table) <= 3:
            raise ConfigError("no room")
        return really(self, table, rows)

    monkeypatch.setattr(RunFolder, "add_part", full_at_first)
    scenario = timing_scenario(**BASE)
    check_same(simulate(scenario, tmp_path / "run"), held(simulate_null(scenario)))
    assert tries.count("jobs") > 6


@full
def test_a_lost_part_is_named(tmp_path: Path, often: None) -> None:
    """By who reads a run that was cut off, and by the run itself, whose table it was."""
    folder = tmp_path / "run"

    class Removing(Silent):
        def round_closed(self, info: Any) -> None:
            if info["round"] == 6:
                for file in (folder / PARTS).glob("jobs-*"):
                    file.unlink()
                with pytest.raises(ConfigError, match=r"run: not a run folder: no parts/jobs-\w+\.parquet"):
                    edgesim.open(folder)

    with pytest.raises(ConfigError, match=r"parts/jobs-\w+\.parquet: damaged"):
        simulate(timing_scenario(**BASE), folder, Removing())


@full
def test_a_state_that_is_not_settled_is_read_where_it_lies(tmp_path: Path, often: None) -> None:
    """After a kill between the manifest of a finished run and the moves of the files that it names."""
    watching = Watching(tmp_path / "run")
    run = simulate(timing_scenario(**BASE), tmp_path / "run", watching)
    jobs = run.jobs
    (run.folder / NEXT).mkdir()
    (run.folder / "jobs.parquet").rename(run.folder / NEXT / "jobs.parquet")
    pd.testing.assert_frame_equal(edgesim.open(run.folder).jobs, jobs, check_exact=True)


def test_a_run_that_goes_on_leaves_the_parts_of_the_one_that_was_cut_off(tmp_path: Path) -> None:
    """Until its own state is written; parts that no state has named are cleared away."""
    tables, manifest = whole(new_tables()), manifest_of({"status": "running"})
    rows = pd.DataFrame({"round": range(ROWS), "name": "mask", "device": -1, "value": 0.5})
    other = rows.assign(value=1.5)
    folder = tmp_path / "run"
    with taken(folder) as run:
        run.write(tables, manifest, {})
        run.write({**tables, "metrics": rows[:2]}, manifest, {}, {"metrics": [run.add_part("metrics", rows)]})
        run.leave = lambda: None  # type: ignore[method-assign]  # killed
    before = edgesim.open(folder).metrics
    assert before["round"].tolist() == [0, 1, 2, 3, 4, 0, 1] and edgesim.open(folder).status == "cut off"
    with taken(folder, goes_on=True) as run:
        assert run.add_part("metrics", rows).name in names_below(folder)
        run.add_part("metrics", other)
        pd.testing.assert_frame_equal(edgesim.open(folder).metrics, before)
    assert len(names_below(folder)) == 1
    pd.testing.assert_frame_equal(edgesim.open(folder).metrics, before)
    with taken(folder, goes_on=True) as run:
        parts = {"metrics": [run.add_part("metrics", other)]}
        run.write(tables, {**manifest, "status": "finished"}, {}, parts)
    assert edgesim.open(folder).metrics["value"].tolist() == [1.5] * ROWS
    assert names(folder) == FILES


def names_below(folder: Path) -> list[str]:
    return [f"{PARTS}/{name}" for name in names(folder / PARTS)]
