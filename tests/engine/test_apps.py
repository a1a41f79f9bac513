"""Programs of users under the simulated clock: seconds, bytes and joules by hand, and everything that may go wrong."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from math import inf
from typing import Any

import pandas as pd
import pytest

from edgesim.config.load import load_scenario
from edgesim.core.app import AppClock, Call, Reply
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.engine.apps import Lockstep
from edgesim.execution.result_cache import Answers
from edgesim.runs.simulate import simulate
from tests.engine.small_app import SERVERS, call_all
from tests.sizes import full

LINK = {"name": "fixed", "up": "8 kbit/s", "down": "8 kbit/s", "latency": "0.5 s"}
POWER = {"name": "power", "idle": "1 W", "busy": "3 W", "transmit": "2 W", "receive": "0.5 W"}


def app_scenario(server: str = "rounds", **more: Any) -> Any:
    """Return a scenario of two devices, the second half as fast as the first, that runs a small app."""
    app = {"name": "tests.engine.small_app:SmallApp", "server": server, **more.pop("app", {})}
    fleet = [
        {"name": "fast", "cpu": {"flops_per_s": "1 GFLOP/s"}},
        {"name": "slow", "cpu": {"flops_per_s": "0.5 GFLOP/s"}},
    ]
    return load_scenario({"app": app, "fleet": fleet, "network": LINK, "energy": POWER, **more})


def jobs_of(scenario: Any, **how: Any) -> pd.DataFrame:
    """Return the jobs of a run."""
    jobs: pd.DataFrame = simulate(scenario, **how).jobs
    return jobs


def test_seconds_bytes_and_joules_by_hand():
    run = simulate(app_scenario(app={"idle_s": 2.0}))
    jobs = run.jobs
    # down: 0.5 s + 500 bytes at 1,000 a second; computing 1 or 2 s and 2 s of sleep; up: 0.5 s + 1,000 bytes
    assert jobs.down_s.tolist() == [1.0] * 4
    assert jobs.compute_s.tolist() == [3.0, 4.0, 3.0, 4.0]
    assert jobs.up_s.tolist() == [1.5] * 4
    assert jobs.down_bytes.tolist() == [500] * 4
    assert jobs.up_bytes.tolist() == [1000] * 4
    assert jobs.down_j.tolist() == [0.25] * 4
    assert jobs.compute_j.tolist() == [2.0, 4.0, 2.0, 4.0]  # 2 W above idle while it computes, not while it sleeps
    assert jobs.up_j.tolist() == [2.0] * 4
    assert jobs.task.tolist() == ["train"] * 4
    assert run.rounds.now_s.tolist() == [6.5, 13.0]
    assert run.evals.accuracy.tolist() == [0.5, 0.75]
    assert run.manifest["stop_reason"] == "the app has ended"
    assert run.manifest["totals"]["energy_j"] == pytest.approx(2 * 13.0 + 2 * (0.25 + 2.0) * 2 + 2 * (2.0 + 4.0))


def test_workers_give_the_same_tables(tmp_path):
    serial = simulate(app_scenario())
    workers = simulate(app_scenario(backend={"name": "workers", "workers": 2}))
    for table in ("jobs", "rounds", "evals", "metrics"):
        pd.testing.assert_frame_equal(getattr(serial, table), getattr(workers, table))


def seen_by(server: Any, **more: Any) -> Any:
    """Run a server part; return what it returned and the run."""
    seen: list[Any] = []
    SERVERS["seen"] = lambda clock: seen.append(server(clock))
    run = simulate(app_scenario("seen", **more))
    return seen[0] if seen else None, run


def test_an_asynchronous_server_gets_replies_as_they_arrive():
    def server(clock: AppClock) -> list[tuple[int, float]]:
        call_all(clock, 0, "a")
        got, number = [], 2
        while len(got) < 4:
            for reply in clock.wait():
                got.append((reply.call.device, clock.now_s))
                clock.send([Call(number, reply.call.device, "train", "a", b"x" * 500)])
                number += 1
        return got

    got, run = seen_by(server)
    assert got == [(0, 3.5), (1, 4.5), (0, 7.0), (1, 9.0)]
    assert run.rounds.used.tolist() == [1, 1, 1, 1]  # a device that trains again closes a round
    assert run.jobs.outcome.tolist() == ["ok"] * 4 + ["stopped"]  # the last call was not waited for


def test_calls_of_a_device_wait_for_each_other():
    def server(clock: AppClock) -> list[float]:
        clock.send([Call(n, 0, "evaluate", "a", b"x" * 500, trains=False) for n in range(3)])
        return [reply.arrived_s for reply in clock.wait(calls=[0, 1, 2])]

    assert seen_by(server)[0] == [3.5, 7.0, 10.5]


def test_an_answer_that_comes_too_late_is_aborted_and_told():
    def server(clock: AppClock) -> list[Reply]:
        clock.send([Call(0, 0, "train", "a", b"x" * 500, expires_s=2.0), Call(1, 0, "train", "a", b"", expires_s=2.5)])
        return [*clock.wait(calls=[0]), *clock.wait(calls=[1])]

    replies, run = seen_by(server)
    assert [(reply.content, reply.reason, reply.arrived_s) for reply in replies] == [
        (None, "expired", 2.0),
        (None, "expired", 2.5),
    ]
    assert run.jobs.outcome.tolist() == ["late", "late"]
    assert run.jobs.compute_s.tolist() == [1.0, 0.0]


def test_waiting_until_a_time_leaves_late_answers_for_later():
    def server(clock: AppClock) -> list[Any]:
        calls = call_all(clock, 0, "a")
        first = clock.wait(4.0, [call.number for call in calls])
        clock.sleep(1.0)
        return [[reply.call.device for reply in first], clock.now_s, [r.arrived_s for r in clock.wait()], clock.now_s]

    assert seen_by(server)[0] == [[0], 5.0, [4.5], 5.0]


def test_sleep_of_an_app_takes_no_time_of_the_host():
    def server(clock: AppClock) -> float:
        clock.sleep(1e6)
        return clock.now_s

    started_s = time.perf_counter()
    assert seen_by(server)[0] == 1e6
    assert time.perf_counter() - started_s < 60


@pytest.mark.parametrize("seconds", [-1.0, inf, float("nan")])
def test_sleep_of_an_impossible_length_is_refused(seconds):
    with pytest.raises(EdgesimError, match=r"app: its server part fails: ValueError: sleep length must be"):
        seen_by(lambda clock: clock.sleep(seconds))


def test_first_prices_are_kept_and_calls_run_when_they_are_due(tmp_path):
    runs = tmp_path / "runs"
    _, run = seen_by(SERVERS["rounds"], app={"price": "first", "runs": str(runs)})
    assert run.jobs.flops.tolist() == [1e9] * 4
    assert runs.read_text().split() == ["0", "1", "100", "101"]

    def impatient(clock: AppClock) -> None:
        call_all(clock, 0, "a")
        clock.wait(calls=[0, 1])
        call_all(clock, 100, "b")
        clock.wait(clock.now_s + 4.0)  # the second device is too slow, and is never run again
        clock.sleep(0.0)

    runs.unlink()
    _, run = seen_by(impatient, app={"price": "first", "runs": str(runs)})
    assert run.jobs.outcome.tolist() == ["ok", "ok", "ok", "stopped"]
    assert runs.read_text().split() == ["0", "1", "100"]


def test_devices_that_come_and_go_crash_or_run_empty_answer_with_the_reason():
    def server(clock: AppClock) -> list[str]:
        call_all(clock, 0, "a")
        return sorted(reply.reason for reply in clock.wait(calls=[0, 1]))

    crash = {"name": "crash", "probability": 1.0}
    assert seen_by(server, failures=crash)[0] == ["crashed", "crashed"]
    fleet = [{"cpu": {"flops_per_s": "1 GFLOP/s"}, "memory": "100 B"}, {"cpu": {"flops_per_s": "1 GFLOP/s"}}]
    assert seen_by(server, fleet=fleet)[0] == ["", "no_memory"]
    battery = {"name": "rechargeable", "capacity": "3 J", "charge": "0 W"}
    fleet = [{"cpu": {"flops_per_s": "1 GFLOP/s"}, "battery": battery}, {"cpu": {"flops_per_s": "1 GFLOP/s"}}]
    assert seen_by(server, fleet=fleet)[0] == ["", "battery"]


def test_the_run_ends_where_no_device_will_ever_be_there():
    def server(clock: AppClock) -> None:
        call_all(clock, 0, "a")
        clock.wait(calls=[0, 1])
        clock.send([Call(5, 0, "train", "b", b"")])
        clock.wait(calls=[5])

    battery = {"name": "rechargeable", "capacity": "3 J", "charge": "0 W"}
    fleet = [{"count": 2, "cpu": {"flops_per_s": "1 GFLOP/s"}, "battery": battery}]
    _, run = seen_by(server, fleet=fleet)
    assert "no device can take part any more" in run.manifest["stop_reason"]


@full
def test_stop_rules_end_an_app_that_would_go_on():
    def server(clock: AppClock) -> None:
        number = 0
        while True:
            calls = call_all(clock, number, str(number))
            number += 2
            clock.wait(calls=[call.number for call in calls])
            clock.score("test", {"accuracy": min(1.0, number / 10)}, 10)

    assert seen_by(server, stop={"rounds": 3})[1].manifest["rounds"] == 3
    run = seen_by(server, stop={"accuracy": 0.75})[1]
    assert run.manifest["stop_reason"] == "accuracy 0.75 reached"
    assert run.evals.accuracy.tolist()[-1] == 0.8
    assert run.manifest["diverged"] is None  # it names no loss
    assert seen_by(server, stop={"sim_time": "10 s"})[1].manifest["totals"]["sim_time_s"] == 10.0


def test_shared_links_slow_an_app_down():
    shared = {"name": "shared", "up": "8 kbit/s", "down": "8 kbit/s", "latency": "0.5 s"}
    server = {"server_up": "8 kbit/s", "server_down": "8 kbit/s"}
    alone = jobs_of(app_scenario(network=LINK))
    both = jobs_of(app_scenario(network=shared, topology={"name": "star", **server}))
    assert both.down_s.iloc[0] == pytest.approx(alone.down_s.iloc[0] + 0.5)  # 500 bytes of both at half the rate


def test_an_app_that_fails_ends_the_run_in_one_line():
    def server(clock: AppClock) -> None:
        raise ZeroDivisionError("by nothing")

    with pytest.raises(EdgesimError, match=r"^app: its server part fails: ZeroDivisionError: by nothing \(.*\)$"):
        seen_by(server)
    with pytest.raises(EdgesimError, match=r"^app: all 4 calls that should train fail, the first with ValueError"):
        simulate(app_scenario(app={"fails": [0, 1]}))
    run = simulate(app_scenario(app={"fails": [1]}))
    assert run.manifest["warnings"] == ["app: train on device 1: fails: ValueError: no luck"]


def test_an_app_that_waits_for_devices_that_will_never_be_there_ends():
    def server(clock: AppClock) -> None:
        while len(clock.reachable()) < 3:
            clock.sleep(1.0)

    run = seen_by(server)[1]
    assert run.manifest["stop_reason"] == "the app slept 1000 times in a row without asking a device"
    assert run.manifest["gave_up"]


def test_who_is_there_by_chance_is_drawn_anew_when_time_has_passed():
    def server(clock: AppClock) -> int:
        looks = [clock.reachable(), clock.reachable()]
        assert looks[0] == looks[1]
        looks_later = 0
        while len(clock.reachable()) < 2:
            clock.sleep(1.0)
            looks_later += 1
        calls = call_all(clock, 0, "a")
        assert len(clock.wait(calls=[call.number for call in calls])) == 2
        return looks_later

    assert seen_by(server, availability={"name": "bernoulli", "p": 0.5}, seed=3)[0] > 0


def test_a_device_that_did_not_compute_keeps_what_it_had():
    def server(clock: AppClock) -> list[int]:
        clock.send([Call(number, 0, "train", "a", b"x" * 500) for number in range(12)])
        replies = clock.wait(calls=range(12))
        return [int(reply.content.split()[0]) for reply in replies if reply.content]

    crash = {"name": "crash", "probability": 0.5, "phase": "training"}
    answered, run = seen_by(server, failures=crash)
    assert set(run.jobs.outcome) == {"ok", "crashed"}
    assert answered == list(range(1, len(answered) + 1))  # those that crashed in between count nothing


def test_another_thread_cannot_use_the_clock():
    def server(clock: AppClock) -> str:
        told: list[str] = []

        def other() -> None:
            try:
                clock.sleep(1.0)
            except EdgesimError as error:
                told.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return told[0]

    assert "only the thread" in seen_by(server)[0]


@full
def test_known_calls_are_not_run_again_unless_something_changed(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("one")
    seen: list[int] = []
    for change in ({}, {}, {"network": {**LINK, "up": "4 kbit/s"}}, {"seed": 2}):
        answers = Answers(tmp_path)
        run = simulate(app_scenario(app={"reads": str(data)}, **change), tmp_path / f"run{len(seen)}", answers=answers)
        seen.append(run.manifest["known"]["computed"])
    data.write_text("two")
    run = simulate(app_scenario(app={"reads": str(data)}), tmp_path / "changed", answers=Answers(tmp_path))
    seen.append(run.manifest["known"]["computed"])
    assert seen == [4, 0, 0, 4, 4]  # slower links ask for nothing new; a seed and a changed file do


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "fedavg"}, "method: does not go with app"),
        ({"data": "digits"}, "data: does not go with app"),
        ({"selection": "uniform"}, "selection"),
        ({"backend": "null"}, "backend.name: null runs no app; use serial or workers"),
        (
            {"failures": {"name": "partial_work", "probability": 0.5}},
            "failures.*name: partial_work cannot reach into an app",
        ),
    ],
)
def test_what_an_app_replaces_is_refused(more, words):
    with pytest.raises(ConfigError, match=words):
        app_scenario(**more)


def test_parts_of_apps_need_an_app():
    with pytest.raises(ConfigError, match=r"method.name: is 'app' only where the section app names a program"):
        load_scenario(
            {**app_scenario().canonical(), "app": None, "partition": "iid", "model": "mlp", "protocol": "sync"}
        )


def test_lockstep_stops_a_function_that_would_go_on():
    ended = threading.Event()

    def forever() -> None:
        try:
            while True:
                steps.ask("more")
        finally:
            ended.set()

    steps = Lockstep(forever)
    assert [steps.resume() for _ in range(3)] == ["more"] * 3
    steps.stop()
    assert ended.is_set()


def test_code_beside_an_app_is_part_of_what_its_answers_depend_on(tmp_path, monkeypatch):
    helper = tmp_path / "helper_of_app.py"
    helper.write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("helper_of_app")
    computed = []
    for text in ("x = 1\n", "x = 1\n", "x = 22\n"):
        if helper.read_text() != text:
            helper.write_text(text)
        run = simulate(app_scenario(), tmp_path / f"run{len(computed)}", answers=Answers(tmp_path))
        computed.append(run.manifest["known"]["computed"])
    monkeypatch.delitem(sys.modules, "helper_of_app")
    assert computed == [4, 0, 4]
