"""The trace of a run: the rules of the format, and what the events say."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.reports.timeline import trace_events, write_trace
from tests.conftest import timing_scenario
from tests.records.written import new_tables, write

REQUIRED = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "ts", "args"},
}


def in_ns(microseconds):
    """Return whole nanoseconds; every time in a trace is one."""
    assert abs(microseconds * 1000 - round(microseconds * 1000)) < 1e-3
    return round(microseconds * 1000)


def check_rules(events):
    """Check a list of trace events: phases, keys, order, names, and nesting of the durations of each thread."""
    names = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    processes = {pid for name, pid, _ in names if name == "process_name"}
    threads = {(pid, tid) for name, pid, tid in names if name == "thread_name"}
    assert len({tid for _, tid in threads}) == len(threads)  # viewers mix up threads of one id in two processes
    timed = [e for e in events if e["ph"] != "M"]
    assert events == [e for e in events if e["ph"] == "M"] + timed
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    open_until = defaultdict(list)
    for event in events:
        assert REQUIRED[event["ph"]] == set(event)
        assert event["pid"] > 0 and event["pid"] in processes
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["tid"] > 0 and (event["pid"], event["tid"]) in threads
            start = in_ns(event["ts"])
            stack = open_until[event["tid"]]
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or start + in_ns(event["dur"]) <= stack[-1]
            stack.append(start + in_ns(event["dur"]))
    assert all(e["ts"] >= 0 for e in timed)


def counter(events, name):
    return [(e["ts"] / 1e6, e["args"]) for e in events if e["ph"] == "C" and e["name"] == name]


def integral(levels, series):
    """Return the integral over seconds of a counter, whose values hold until the next one."""
    return sum(args[series] * (after - at) for (at, args), (after, _) in pairwise(levels))


@pytest.fixture
def two_devices(tmp_path):
    """Return a run of one round of 10 s and 2 s of server work, with a job of each device and one that was late.

    Device 0: 1 s down (2 J), 4 s of computing (12 J), 2 s up (1 J). Device 1: cut off at 10 s, after 4 s down (2 J) and
    6 s of computing (3 J). Device 2 is idle. Idle power is 0.5 W each, a sixth of
    the joules asleep; the run ends at 12 s.
    """
    tables = new_tables()
    no_wait, in_full = (0.0, 0.0), ("train", "full", 0.0)
    ok, late = (8e6, 80, 40, 0, 2.0, 12.0, 1.0), (3e6, 80, 0, 0, 2.0, 3.0, 0.0)
    tables["jobs"].append((0, 0, 0, 0, *in_full, 1.0, 4.0, 2.0, *no_wait, 7.0, "ok", 0.0, *ok, 0.0, 0.0))
    in_part = ("train", "last1", 0.0)
    tables["jobs"].append((1, 1, 0, 0, *in_part, 4.0, 6.0, 0.0, *no_wait, 10.0, "late", 2.0, *late, 0.0, 0.0))
    spent = [11e6, 160, 40, 38.0, 14.0, 24.0, 38.0] * 2
    tables["rounds"].append((0, 1, 0.0, 12.0, 2, 1, 1, "deadline", 10.0, 0.0, 2.0, *spent))
    tables["evals"].append((0, 1, 12.0, "test", 1.0, 0.75, 50))
    tables["evals"].append((0, 1, 12.0, "train", 1.0, float("nan"), 0))
    for device, kind in enumerate(("psi", "psi/5", "psi")):
        tables["devices"].append((device, kind, 1, 1, 1, 7.0, 80, 40, 2.0, 12.0, 1.0, 5.0, 1.0))
    tables["devices"].append((-1, "server", 0, 0, 0, 2.0, 0, 0, 0.0, 8.0, 0.0, 1.0, 0.0))
    scenario = {"seed": 5, "method": {"name": "fedavg"}}
    return write(tmp_path / "run", tables, {"scenario": scenario})


def test_spans_of_a_hand_made_round(two_devices):
    events = trace_events(two_devices)
    check_rules(events)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {e["tid"]: (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    spans = {(*tracks[e["tid"]], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"}
    one, two = "device 0 (psi)", "device 1 (psi/5)"  # device 2 has nothing to show
    inside = {(one, "download", 0, 1), (one, "compute", 1, 4), (one, "upload", 5, 2)}
    inside |= {(two, "download", 0, 4), (two, "compute", 4, 6)}
    track = {"download": "radio", "upload": "radio", "compute": "processor"}
    assert spans == {
        (one, "jobs", "train full", 0, 7),
        (two, "jobs", "train last1 (late)", 0, 10),
        *((device, "jobs", *phase) for device, *phase in inside),
        *((device, track[phase[0]], *phase) for device, *phase in inside),
        ("server", "rounds", "round 1", 0, 12),
        ("server", "rounds", "merge", 10, 2),
        ("server", "processor", "merge", 10, 2),
    }
    late = next(e["args"] for e in events if "late" in e["name"])
    assert late.items() >= {"job": 1, "outcome": "late", "round": 1, "joules": 5.0, "flops": 3e6}.items()
    assert late.items() >= {"down_bytes": 80, "up_bytes": 0}.items()


def test_counters_of_a_hand_made_round(two_devices):
    """Watts: device 0 takes 2, then 3, then 0.5; device 1 takes 0.5 and 0.5; 3 devices idle at 0.5 each."""
    events = trace_events(two_devices)
    power = counter(events, "power of the fleet (W)")
    assert [(at, args["download"], args["compute"], args["upload"]) for at, args in power] == [
        (0, 2.5, 0, 0),
        (1, 0.5, 3, 0),
        (4, 0, 3.5, 0),
        (5, 0, 0.5, 0.5),
        (7, 0, 0.5, 0),
        (10, 0, 0, 0),
        (12, 0, 0, 0),
    ]
    assert [args["idle"] for _, args in power] == [1.5] * 6 + [0]
    work = counter(events, "devices at work")
    assert [(at, *args.values()) for at, args in work if at in (0, 1, 7, 12)] == [
        (0, 2, 0, 0),
        (1, 1, 1, 0),
        (7, 0, 1, 0),
        (12, 0, 0, 0),
    ]
    waiting = [(at, args["completions"]) for at, args in counter(events, "completions waiting for their merge")]
    assert waiting == [(0, 0), (7, 1), (10, 0), (12, 0)]  # the late job is never merged
    assert counter(events, "accuracy (test)") == [(12, {"accuracy": 0.75})]
    assert counter(events, "accuracy (train)") == []


def test_peers_send_until_a_job_computes(two_devices):
    """6 J of peers for the job of device 1, which fetches and waits for 4 s: 1.5 W; device 0 has none."""
    two_devices.jobs["peer_j"] = [0.0, 6.0]
    power = counter(trace_events(two_devices), "power of the fleet (W)")
    assert [args["upload to peers"] for at, args in power if at <= 4] == [1.5, 1.5, 0]
    assert integral(power, "upload to peers") == pytest.approx(6.0)


def test_partial_updates_wait_for_their_merge_as_well(two_devices):
    two_devices.jobs["outcome"] = ["partial", "late"]
    waiting = [
        args["completions"] for _, args in counter(trace_events(two_devices), "completions waiting for their merge")
    ]
    assert waiting == [0, 1, 0, 0]


def test_transfers_of_links_without_waits(two_devices):
    """Device 0 downloads until 1 s and uploads from 5 to 7 s, device 1 downloads until 4 s; nobody lost time."""
    levels = counter(trace_events(two_devices), "transfers on the links")
    in_flight = [(at, args["not delayed"]) for at, args in levels]
    assert in_flight == [(0, 2), (1, 1), (4, 0), (5, 1), (7, 0), (10, 0), (12, 0)]  # at 10 s an upload was not begun
    assert {args["delayed"] for _, args in levels} == {0}


def test_transfers_of_links_that_are_shared(tmp_path):
    """Three devices compute for 10, 20 and 60 s and share 1 Mbit/s into the server; the third finds it empty.

    The first uploads alone for 10 s, then at half the rate until it is done; the second then has all of it again.
    """
    scenario = timing_scenario(
        fleet=[{"cpu": {"flops_per_s": 7.3806e9 / seconds}} for seconds in (10, 20, 60)],
        network={"name": "shared", "up": "1 Mbit/s", "down": "1 Gbit/s"},
        topology={"name": "star", "server_down": "1 Mbit/s"},
    )
    bits = 8 * 4 * 567_858  # CNN-CIFAR10
    down_s = bits / 1e9
    first_s = down_s + 20 + (bits - 10 * 1e6) / 0.5e6
    second_s = first_s + 10  # it has the 10 Mbit to go that the first had moved before it came
    times = [0, down_s, down_s + 10, down_s + 20, first_s, second_s, down_s + 60, down_s + 60 + bits / 1e6]
    levels = counter(trace_events(edgesim.run(scenario, out=tmp_path / "run")), "transfers on the links")
    assert [at for at, _ in levels] == pytest.approx(times, abs=2e-9)
    assert [args["delayed"] for _, args in levels] == [2, 0, 1, 2, 1, 0, 0, 0]
    assert [args["not delayed"] for _, args in levels] == [1, 0, 0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("broken", [{"dur": 5e6}, {"ts": -1.0}, {"tid": 99}, {"ph": "B"}])
def test_the_rules_find_what_is_wrong(two_devices, broken):
    """The first phase is device 1's download until 4 s: of 5 s it would overlap with the computing."""
    events = trace_events(two_devices)
    next(e for e in events if e.get("cat") == "phase").update(broken)
    with pytest.raises((AssertionError, KeyError)):
        check_rules(events)


def test_a_run_without_a_round_has_a_trace(tmp_path):
    run = write(tmp_path / "run", new_tables(), {"scenario": {"seed": 1, "method": {"name": "fedavg"}}})
    check_rules(trace_events(run))


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    scenario = edgesim.load("scenarios/quickstart.toml", ["stop={ rounds = 4 }", "protocol.deadline='2.5 s'"])
    return edgesim.run(scenario, out=tmp_path_factory.mktemp("runs") / "quickstart")


def test_a_trace_of_the_quickstart_obeys_the_rules(quickstart, tmp_path):
    path = write_trace(quickstart, tmp_path / "new" / "trace.json")
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    check_rules(events)
    assert document["otherData"] == {"run": "quickstart", "method": "fedpmt", "seed": 1}
    assert sum(e.get("cat") == "job" for e in events) == len(quickstart.jobs) == 32
    assert sum(e.get("cat") == "round" for e in events) == 4
    assert len(counter(events, "accuracy (test)")) == 4


def test_power_integrates_to_the_joules_of_the_tables(quickstart):
    power = counter(trace_events(quickstart), "power of the fleet (W)")
    for series, column in {"download": "down_j", "compute": "compute_j", "upload": "up_j"}.items():
        assert integral(power, series) == pytest.approx(quickstart.jobs[column].sum(), rel=1e-6)
    assert integral(power, "idle") == pytest.approx(quickstart.devices["idle_j"].sum(), rel=1e-6)


def test_rounds_and_devices_keep_a_trace_small(quickstart):
    events = trace_events(quickstart, between=(2, 3), devices=3)
    check_rules(events)
    start_s, end_s = quickstart.rounds["start_s"][1], quickstart.rounds["now_s"][2]
    jobs = quickstart.jobs[quickstart.jobs["round"].isin([1, 2])]
    busiest = (jobs["end_s"] - jobs["sent_s"]).groupby(jobs["device"]).sum().nlargest(3).index
    shown = {e["pid"] - 2 for e in events if e.get("cat") == "job"}
    assert shown == set(busiest)
    assert [e["name"] for e in events if e.get("cat") == "round"] == ["round 2", "round 3"]
    power = counter(events, "power of the fleet (W)")  # of all devices, in these two rounds
    assert (power[0][0], power[-1][0]) == pytest.approx((start_s, end_s), abs=1e-9)
    assert integral(power, "compute") == pytest.approx(jobs["compute_j"].sum(), rel=1e-6)


def test_what_cannot_be_written_is_refused(two_devices, tmp_path):
    with pytest.raises(ConfigError, match=r"^--round: the run has rounds 1 to 1, found 2$"):
        write_trace(two_devices, tmp_path / "trace.json", rounds=(1, 2))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_trace(two_devices, tmp_path / "file" / "trace.json")
