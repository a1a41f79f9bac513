"""`import-trace`: what each format becomes, worked out by hand; runs with it; and every kind of bad file."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from edgesim.cli.app import command_line
from edgesim.core.errors import DataError
from edgesim.files.traces import fedscale, flash, google_cluster
from tests.calling import call

DATA = Path(__file__).parents[1] / "world" / "data" / "traces"
FEDSCALE = {"a": {"active": [0, 20], "inactive": [10, 30], "finish_time": 40}}
USAGE = "600,900,1,0,5,0.5,0.1\n"
SCENARIO = """
partition = "iid"
model = "cnn_digits"
data = "digits"
method = "fedavg"
backend = "null"
stop = { rounds = 2 }
"""
BLOCK = 'fleet = [{ count = 3, cpu = { flops_per_s = "50 MFLOP/s" } }]\n'


def imported(here: Path, *words: object) -> pd.DataFrame:
    """Return what a command writes."""
    done = call("import-trace", *words, "--out", here / "out.csv")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{here / 'out.csv'}: ")
    return pd.read_csv(here / "out.csv")


def rows(table: pd.DataFrame) -> list[list[float]]:
    """Return the rows of a table of numbers."""
    found: list[list[float]] = table.to_numpy(dtype=float).tolist()
    return found


# --- FedScale -----------------------------------------------------------------------------------------------


def test_capacities_become_a_fleet(tmp_path):
    """0.6 GFLOP in 162 ms are 3.7037 GFLOP/s; 5648 kbit/s both ways. The scenario that names the file has two kinds."""
    file = DATA / "client_device_capacity.json"
    found = imported(tmp_path, "fedscale-capacity", file, "--forward", "0.6 GFLOP")
    assert found["name"].tolist() == ["client 432802", "client 17"]
    assert found["cpu.flops_per_s"].tolist() == [f"{0.6e9 / 0.162!r} FLOP/s", f"{0.6e9 / 0.06!r} FLOP/s"]
    (tmp_path / "scenario.toml").write_text(SCENARIO + 'fleet = "out.csv"\n')
    assert call("run", tmp_path / "scenario.toml", "--out", tmp_path / "run", "--quiet").code == 0
    jobs = pd.read_parquet(tmp_path / "run" / "jobs.parquet")
    first = jobs[jobs["device"] == 0].iloc[0]
    assert first["down_s"] == pytest.approx(8 * first["down_bytes"] / 5648e3)
    assert first["compute_s"] == pytest.approx(first["flops"] / (0.6e9 / 0.162))
    assert len(imported(tmp_path, "fedscale-capacity", file, "--forward", "1 GFLOP", "--devices", 1)) == 1


def test_behaviour_becomes_availability(tmp_path):
    """Device 0 is there at [10, 40) and [60, 90) of 100 s: an interval without length is none; 1 never; 2 always."""
    file = DATA / "client_behave_trace.json"
    once = [[0, 10, 40], [0, 60, 90], [2, 0, 60]]
    assert rows(imported(tmp_path, "fedscale-behaviour", file)) == once
    longer = [[0, 10, 40], [0, 60, 90], [0, 110, 140], [2, 0, 60], [2, 60, 120], [2, 120, 150]]
    assert rows(imported(tmp_path, "fedscale-behaviour", file, "--length", "150 s")) == longer
    assert rows(imported(tmp_path, "fedscale-behaviour", file, "--length", "25 s")) == [[0, 10, 25], [2, 0, 25]]
    imported(tmp_path, "fedscale-behaviour", file, "--length", "1 h")
    availability = 'availability = { name = "trace", file = "out.csv" }\n'
    (tmp_path / "scenario.toml").write_text(SCENARIO + availability + BLOCK)
    assert call("run", tmp_path / "scenario.toml", "--out", tmp_path / "run", "--quiet").code == 0
    jobs = pd.read_parquet(tmp_path / "run" / "jobs.parquet")
    assert jobs["device"].tolist()[0] == 2  # the only one that is there at the start
    assert 1 not in set(jobs["device"])


def test_parquet_says_the_same(tmp_path):
    """By the ending of the name."""
    file = DATA / "client_behave_trace.json"
    assert call("import-trace", "fedscale-behaviour", file, "--out", tmp_path / "a.parquet").code == 0
    assert rows(pd.read_parquet(tmp_path / "a.parquet")) == rows(imported(tmp_path, "fedscale-behaviour", file))


# --- FLASH --------------------------------------------------------------------------------------------------


def test_states_of_phones_become_availability(tmp_path):
    """By hand, from 23:00:00: locked, charged and on Wi-Fi at 20-60 s, 120-150 s, and 180 s until the last message.

    The second phone is never locked, but on Wi-Fi and charged at its last message, after which nothing is known.
    """
    file = DATA / "state_traces.json"
    assert rows(imported(tmp_path, "flash", file)) == [[0, 20, 60], [0, 120, 150], [0, 180, 240]]
    loose = rows(imported(tmp_path, "flash", file, "--needs", "charged"))
    assert loose == [[0, 10, 240]]
    moved = rows(imported(tmp_path, "flash", file, "--start", "2020-01-31 23:00:30", "--length", "100 s"))
    assert moved == [[0, 0, 30], [0, 90, 100]]


def test_messages_may_come_in_any_order(tmp_path):
    """They count by their dates; those of one instant as they stand."""
    lines = ["2020-01-01 00:00:10\twifi", "2020-01-01 00:00:00\tBattery_charged_on", "2020-01-01 00:00:30\t5G"]
    (tmp_path / "f.json").write_text(json.dumps({"x": {"messages": "\n".join(lines)}}))
    found = flash.availability_of(tmp_path / "f.json", ["wifi", "charged"])
    assert found == {"device": [0], "start": [10.0], "end": [30.0]}


# --- Google's cluster ---------------------------------------------------------------------------------------


def test_load_of_machines_becomes_speeds(tmp_path):
    """Machine 5 has a load of 0.5, from 100 s 0.75, from 300 s 0.125; 1329 one of 0.25 for 300 s. All end at 600 s."""
    file = DATA / "task_usage.csv"
    alone = [[0, 0.5, 0], [100, 0.25, 0], [300, 0.875, 0], [450, 0.875, 0], [0, 0.75, 1], [300, 1, 1], [450, 1, 1]]
    assert rows(imported(tmp_path, "google-cluster", file)) == alone
    table = imported(tmp_path, "google-cluster", file, "--machines", DATA / "machine_events.csv", "--least", 0.1)
    assert table["speed"].tolist() == [0.1, 0.1, 0.75, 0.75, 0.75, 1, 1]  # machine 5 has a CPU of 0.5
    slowdown = 'slowdown = { name = "replay", file = "out.csv" }\n'
    (tmp_path / "scenario.toml").write_text(SCENARIO + slowdown + BLOCK)
    assert call("run", tmp_path / "scenario.toml", "--out", tmp_path / "run", "--quiet").code == 0
    jobs = pd.read_parquet(tmp_path / "run" / "jobs.parquet").query("round == 0").set_index("device")
    assert jobs.loc[0, "compute_s"] == pytest.approx(jobs.loc[0, "flops"] / 50e6 / 0.1)
    assert jobs.loc[1, "compute_s"] == pytest.approx(jobs.loc[1, "flops"] / 50e6 / 0.75)


def test_files_of_a_table_are_one_table(tmp_path):
    """Two parts give what one with all rows gives; sums of rates leave nothing behind."""
    lines = (DATA / "task_usage.csv").read_text().splitlines(keepends=True)
    (tmp_path / "1.csv").write_text("".join(lines[2:]))
    (tmp_path / "2.csv").write_text("".join(lines[:2]))
    both = google_cluster.speeds_of([tmp_path / "1.csv", tmp_path / "2.csv"])
    assert both == google_cluster.speeds_of([DATA / "task_usage.csv"])
    (tmp_path / "3.csv").write_text("0,100,1,0,5,0.1\n0,100,1,1,5,0.2\n200,300,1,1,5,0.3\n")
    assert google_cluster.speeds_of([tmp_path / "3.csv"])["speed"] == pytest.approx([0.7, 1.0, 0.7, 0.7])
    assert google_cluster.speeds_of([tmp_path / "3.csv"])["speed"][1] == 1.0


# --- bad input ----------------------------------------------------------------------------------------------


def fault(read, *arguments) -> str:
    """Return the one line that reading a file raises."""
    with pytest.raises(DataError) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": {"computation": 1,\n "communication" 5}}', " line 2 column 18: not JSON: Expecting ':' delimiter"),
        ("[1]", ": must be a JSON object of clients, got [1]"),
        ("{}", ": must be a JSON object of clients, got {}"),
        ('{"a": 3}', ": client 'a': must be a JSON object, got 3"),
        ('{"a": {"computation": 1}}', ": client 'a': has no 'communication'; it has computation"),
        ('{"a": {"computation": 0, "communication": 1}}', ": computation must be a finite number above 0, got 0"),
        ('{"a": {"computation": 1, "communication": "5"}}', "communication must be a finite number above 0, got '5'"),
        ('{"a": {"computation": 1, "communication": NaN}}', "communication must be a finite number above 0, got nan"),
        ('{"a": {"computation": true, "communication": 1}}', "computation must be a finite number above 0, got True"),
    ],
)
def test_bad_capacities(text, said, tmp_path):
    """The file, line and column of what is no JSON, else the client and the key; what is needed; what is there."""
    (tmp_path / "c.json").write_text(text)
    found = fault(fedscale.fleet_of, tmp_path / "c.json", 1e9)
    assert found.startswith(str(tmp_path / "c.json"))
    assert said in found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"active": 3}, "active must be a list of numbers, got 3"),
        ({"active": [0, "x"]}, "active[1] must be a finite number of at least 0, got 'x'"),
        ({"active": [0]}, "inactive must be as long as active, 1, got 2"),
        ({"active": [0, 5]}, "active[1] must be at least inactive[0], 10, got 5.0"),
        ({"inactive": [10, 15]}, "inactive[1] must be from active[1], 20, to finish_time, 40, got 15.0"),
        ({"finish_time": 25}, "inactive[1] must be from active[1], 20, to finish_time, 25, got 30.0"),
        ({"finish_time": 0}, "finish_time must be a finite number above 0, got 0"),
    ],
)
def test_bad_behaviour(change, said, tmp_path):
    """Lists that do not fit together name the place in them."""
    (tmp_path / "b.json").write_text(json.dumps({"a": {**FEDSCALE["a"], **change}}))
    assert fault(fedscale.availability_of, tmp_path / "b.json").endswith(f"client 'a': {said}")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (5, "messages must be a text, got 5"),
        ("\n", "messages must be lines of a date, a tab and an event, got '\\n'"),
        ("2020-01-31 23:00:00\twifi\n2020-13-31 23:00:00\twifi", "messages line 2 must be a date such as"),
        ("yesterday\twifi", "messages line 1 must be a date such as 2020-01-31 23:23:40, a tab and an event"),
        ("2020-01-31 23:00:00\tasleep", "messages line 1 must be one of battery_charged_on, battery_charged_off"),
    ],
)
def test_bad_phones(messages, said, tmp_path):
    """The line of a phone's messages."""
    (tmp_path / "p.json").write_text(json.dumps({"a": {"messages": messages}}))
    assert f"client 'a': {said}" in fault(flash.availability_of, tmp_path / "p.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": holds no rows"),
        (USAGE + "600,900,1,0,5\n", " line 2: needs at least 6 columns (start time, end time, job ID"),
        (
            USAGE + "600,soon,1,0,5,0.5\n",
            " line 2: column 2 (end time) must be a finite number of at least 0, got 'soon'",
        ),
        (USAGE + "600,600,1,0,5,0.5\n", " line 2: column 2 (end time) must be after column 1, 600, got 600"),
        (USAGE + "600,900,1,0,5,-1\n", " line 2: column 6 (CPU rate) must be a finite number of at least 0, got '-1'"),
        (USAGE + "600,900,1,0,,1\n", " line 2: column 5 (machine ID) must be a finite number of at least 0, got ''"),
    ],
)
def test_bad_usage(text, said, tmp_path):
    """The file, line and column."""
    (tmp_path / "u.csv").write_text(text)
    found = fault(google_cluster.speeds_of, [tmp_path / "u.csv"])
    assert found.startswith(str(tmp_path / "u.csv"))
    assert said in found


def test_machines_without_a_capacity(tmp_path):
    """A machine that the table of machines lacks, and a bad capacity."""
    (tmp_path / "u.csv").write_text(USAGE)
    (tmp_path / "m.csv").write_text("0,6,0,x,0.5,0.5\n")
    said = fault(google_cluster.speeds_of, [tmp_path / "u.csv"], tmp_path / "m.csv")
    assert said == f"{tmp_path / 'm.csv'}: has no CPU capacity of machine 5, which has tasks"
    (tmp_path / "m.csv").write_text("0,5,0,x,half,0.5\n")
    said = fault(google_cluster.speeds_of, [tmp_path / "u.csv"], tmp_path / "m.csv")
    assert said.endswith("m.csv line 1: column 5 (CPUs) must be a finite number of at least 0, got 'half'")


@pytest.mark.parametrize("command", list(command_line().commands["import-trace"].commands))
def test_commands_end_with_one_line(command, tmp_path):
    """A file that is missing, and one whose folder is: exit code 2, and no file is written."""
    more = ("--forward", "1 GFLOP") if command == "fedscale-capacity" else ()
    for words in ((tmp_path / "no.json", "--out", tmp_path / "o.csv"), (DATA / "lte_log.csv", "--out", "no/o.csv")):
        done = call("import-trace", command, *words, *more)
        assert done.code == 2
        assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("fedscale-capacity", "client_device_capacity.json", "--forward", "2 GHz"),
            "--forward: '2 GHz' is not an amount",
        ),
        (
            ("fedscale-behaviour", "client_behave_trace.json", "--length", "0 s"),
            "--length: must be above 0 s, got '0 s'",
        ),
        (
            ("flash", "state_traces.json", "--needs", "wifi,awake"),
            "--needs: 'awake' is unknown or given twice (known: locked",
        ),
        (("flash", "state_traces.json", "--start", "noon"), "--start: must be a date such as 2020-01-31 23:23:40"),
        (("flash", "state_traces.json", "--start", "2021-01-31 00:00:00"), "nothing to write: no row is left"),
    ],
)
def test_bad_options(words, said, tmp_path):
    """One line that names the option."""
    command, file, *options = words
    done = call("import-trace", command, DATA / file, *options, "--out", tmp_path / "o.csv")
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_pickles_are_not_read(tmp_path):
    """FedScale's own files are pickles, which could run anything."""
    (tmp_path / "client_device_capacity").write_bytes(b"\x80\x04\x95\x0b\x00}\x94.")
    assert "not UTF-8 text" in fault(fedscale.fleet_of, tmp_path / "client_device_capacity", 1e9)
