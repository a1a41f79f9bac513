"""Sessions that want the same devices: the one that asked longest ago asks first, and none waits for ever."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PSI, timing_scenario
from tests.engine.test_churn_properties import ALIKE
from tests.engine.test_sessions import table, timed
from tests.sizes import examples

ONE = [{"count": 1, "cpu": {"flops_per_s": PSI}}]  # a job takes 10 s
SYNC = {"name": "waits", "stop": {"rounds": 2}}
BUFFERED = {**SYNC, "method": "fedbuff", "protocol": {"name": "buffered", "concurrency": 1, "buffer": 1}}
GOSSIP = {**SYNC, "method": "adpsgd", "protocol": "gossip", "peers": "ring", "selection": "all"}
CANCELS = {"name": "cancels", "protocol": {"name": "deadline", "deadline": "4 s"}, "stop": {"rounds": 3}}


@pytest.mark.parametrize("waiting", [SYNC, BUFFERED], ids=["sync", "buffered"])
def test_a_session_gets_the_device_whose_job_the_other_cancels(waiting: Mapping[str, Any]) -> None:
    """By hand: one device. The first session cancels its job after 4 s, then the other has the device for 10 s."""
    both = timed(timing_scenario(fleet=ONE, session=[CANCELS, waiting]))
    assert table(both, "jobs", 0)["sent_s"].tolist() == pytest.approx([0, 14, 28])
    assert table(both, "jobs", 1)["sent_s"].tolist() == pytest.approx([4, 18])
    assert both.world.now_s == pytest.approx(32)


def test_peers_on_their_own_clocks_get_devices_whose_jobs_are_cancelled() -> None:
    """By hand: two devices; the peers train on 20 of 500 samples, in 0.4 s, from when the other session cancels."""
    both = timed(timing_scenario(fleet=[{**ONE[0], "count": 2}], session=[CANCELS, GOSSIP], selection="all"))
    assert table(both, "jobs", 1)["sent_s"].tolist()[:2] == pytest.approx([4, 4])
    assert table(both, "jobs", 0).groupby("round")["sent_s"].first().tolist() == pytest.approx([0, 4.4, 8.4])


def test_three_sessions_take_turns() -> None:
    """By hand: one device; jobs are cancelled after 4 s in the first session, and take 10 s in the two others."""
    sessions = [CANCELS, {**SYNC, "name": "b"}, {**BUFFERED, "name": "c"}]
    seen = timed(timing_scenario(fleet=ONE, session=sessions))
    sent_s = [table(seen, "jobs", of)["sent_s"].tolist() for of in range(3)]
    assert sent_s == [pytest.approx([0, 24, 48]), pytest.approx([4, 28]), pytest.approx([14, 38])]


@pytest.mark.parametrize("first", [{"name": "sync"}, {**BUFFERED, "name": "buffered"}], ids=["sync", "buffered"])
def test_a_session_that_also_waits_for_a_device_to_come_gets_its_turn(first: Mapping[str, Any], tmp_path: Path) -> None:
    """By hand: device 0 is always there, device 1 comes after 500 s. Jobs of both sessions take turns until then."""
    (tmp_path / "there.csv").write_text("device,start,end\n0,0,9000\n1,500,9000\n")
    there = {"name": "trace", "file": str(tmp_path / "there.csv")}
    fleet = [{**ONE[0], "count": 2}]
    scenario = timing_scenario(fleet=fleet, session=[first, SYNC], availability=there, stop={"rounds": 2})
    both = timed(scenario)
    sent_s = [table(both, "jobs", of)["sent_s"].tolist() for of in (0, 1)]
    assert sent_s == [pytest.approx([0, 20]), pytest.approx([10, 30])]


@st.composite
def rivals(draw: st.DrawFn) -> dict[str, Any]:
    """Draw two or three sessions of any protocol on one fleet of one to four devices."""
    devices = draw(st.integers(1, 4))
    speed = st.sampled_from([PSI, 2 * PSI, {"uniform": [PSI / 2, 3 * PSI]}])
    asked = draw(st.integers(1, devices))
    protocols = st.sampled_from(
        [
            {"protocol": "sync"},
            {"protocol": {"name": "deadline", "deadline": 4}},
            {"protocol": {"name": "deadline", "deadline": 7, "late": "keep"}},
            {"protocol": {"name": "over_selection", "keep": 1}},
            {"protocol": {"name": "buffered", "concurrency": asked, "buffer": 1}, "method": "fedasync"},
        ]
    )
    sessions = [{"name": name, **draw(protocols)} for name in ("a", "b", "c")[: draw(st.integers(2, 3))]]
    return {
        "seed": draw(st.integers(0, 999)),
        "fleet": [{"count": devices, "cpu": {"flops_per_s": draw(speed)}}],
        "selection": draw(st.sampled_from([{"name": "uniform", "count": asked}, {"name": "all"}])),
        "server": draw(st.sampled_from([{}, {"flops_per_s": 1e6}])),
        "session": sessions,
        "stop": {"sim_time": 150},
    }


@settings(ALIKE, max_examples=examples(300, short=10))
@given(given=rivals())
def test_who_waits_is_overtaken_once(given: Mapping[str, Any]) -> None:
    """While a session that works in rounds waits for a device, each of the others begins jobs at most at two instants.

    The first may be at the very instant at which it begins to wait.
    """
    seen = timed(timing_scenario(**given))
    count = len(given["session"])
    asked_s = [sorted(set(table(seen, "jobs", of)["sent_s"])) for of in range(count)]
    for of, session in enumerate(given["session"]):
        if session["protocol"] != "sync" and session["protocol"]["name"] == "buffered":
            continue
        for from_s, to_s in waits(table(seen, "rounds", of), table(seen, "jobs", of)):
            for other in set(range(count)) - {of}:
                assert len([at_s for at_s in asked_s[other] if from_s <= at_s < to_s]) <= 2


def waits(rounds: pd.DataFrame, jobs: pd.DataFrame) -> list[tuple[float, float]]:
    """Return from when to when a session had nothing to do: from the end of a round to the jobs of the next one."""
    begins_s = [0.0, *rounds["now_s"]]
    asks_s = jobs.groupby("round")["sent_s"].min()
    return [(from_s, asks_s.get(number, 150.0)) for number, from_s in enumerate(begins_s)]
