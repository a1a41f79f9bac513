"""Batteries are worked out for many jobs at once: the same numbers as job by job, and few steps."""

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest

from edgesim.core.job import Job
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.view import FleetView
from edgesim.world.batteries.base import Batteries
from tests.conftest import frames, simulate_null, timing_scenario
from tests.sizes import full, thinned

ROUNDS, ASKED = 4, 30
FLEET = [
    {
        "count": 60,
        "cpu": {"flops_per_s": {"uniform": [2e8, 2e9]}},
        "battery": {"capacity": {"uniform": ["30 J", "400 J"]}, "charge": "1.5 W", "windows": [["0 h", "1 h"]]},
    }
]
LINKS = {"name": "fixed", "up": "2 Mbit/s", "down": "8 Mbit/s", "latency": "50 ms"}
POWER = {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "2 W", "receive": "0.5 W"}


def run(**changes):
    base = {"fleet": FLEET, "network": LINKS, "energy": POWER, "selection": {"name": "uniform", "count": ASKED}}
    return simulate_null(timing_scenario(**{**base, "stop": {"rounds": ROUNDS}, **changes}))


def one_by_one(self, job: Job, usage, joules) -> None:
    """What `draw_job` did: five draws of a device, each of them worked out at once."""
    since_s = job.sent_s
    latencies_s = (job.prices.down_latency_s, 0.0, job.prices.up_latency_s)
    for phase_j, phase_s, latency_s in zip(joules, usage.seconds, latencies_s, strict=True):
        quiet_s = min(phase_s, latency_s)
        for leg_j, leg_s in ((0.0, quiet_s), (phase_j, phase_s - quiet_s)):
            if leg_s > 0:
                self.draw(job.device, leg_j / leg_s, leg_s, since_s)
                since_s += leg_s


@full
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"protocol": {"name": "deadline", "deadline": "20 s"}},
        {
            "method": "fedbuff",
            "selection": "all",
            "protocol": {"name": "buffered", "concurrency": 20, "buffer": 5},
            "stop": {"rounds": 30},
        },
    ],
    ids=["sync", "deadline", "buffered"],
)
def test_jobs_at_once_are_jobs_one_by_one_bit_for_bit(changes):
    together = frames(run(**changes))
    with patch.object(FleetBatteries, "draw_job", one_by_one):
        apart = frames(run(**changes))
    assert (together["jobs"]["outcome"] == "battery").any()  # else no battery mattered
    for name in ("jobs", "rounds"):
        assert together[name].to_csv() == apart[name].to_csv()


def test_the_steps_of_a_round_do_not_grow_with_its_jobs():
    """Six legs of a job at most, each worked out once a question, of which a round has less than five."""
    steps, drained = [], Batteries._drained

    def counted(self, ids, *rest):
        steps.append(len(ids))
        return drained(self, ids, *rest)

    with patch.object(Batteries, "_drained", counted):
        jobs = frames(run())["jobs"]
    assert len(jobs) > 90 and sum(steps) > len(jobs)
    assert len(steps) <= ROUNDS * 5 * 6
    assert np.mean(steps) > 5


BUFFERED = {
    "method": "fedbuff",
    "selection": "all",
    "protocol": {"name": "buffered", "concurrency": 20, "buffer": 5},
    "stop": {"rounds": 60},
}
MIXED = [
    {**FLEET[0], "battery": {**FLEET[0]["battery"], "phase": {"uniform": ["0 h", "24 h"]}, "restart": 0.4}},
    {"count": 10, "cpu": {"flops_per_s": 1e9}},
    {"count": 20, "cpu": {"flops_per_s": 4e8}, "battery": {"capacity": "800 J", "level": {"uniform": [0.0, 1.0]}}},
]


def every_time():
    """Batch nothing and trust no reserve: all batteries are worked out at each question, as exactly as can be."""
    looks = FleetBatteries.look

    def on(self, now_s):
        looks(self, np.arange(len(self._fleet)), now_s)
        return self._on

    stack = ExitStack()
    stack.enter_context(patch.object(FleetBatteries, "outlasts", lambda *_: False))
    stack.enter_context(patch.object(FleetBatteries, "on", on))
    stack.enter_context(patch.object(FleetBatteries, "is_on", lambda self, device, now_s: on(self, now_s)[device]))
    stack.enter_context(
        patch.object(FleetBatteries, "devices_on", lambda self, now_s, enough: np.count_nonzero(on(self, now_s)))
    )
    stack.enter_context(patch("edgesim.engine.batteries._MOST_WAITING", 1))
    return stack


CHURN = {"availability": {"name": "sessions", "on": "60 s", "off": "30 s"}, "stop": {"rounds": 20}}


@pytest.mark.parametrize("fleet", [FLEET, pytest.param(MIXED, marks=full)], ids=["one_block", "three_blocks"])
@pytest.mark.parametrize(
    "changes",
    thinned(
        [
            {},
            {"protocol": {"name": "buffered", "concurrency": 60, "buffer": 1}, "stop": {"rounds": 100}},
            {
                "protocol": {"name": "buffered", "concurrency": 9, "buffer": 3, "reassign": "same"},
                "stop": {"rounds": 100},
            },
            CHURN,
        ],
        [CHURN],
    ),
    ids=["buffered", "all_at_once", "same_again", "churn"],
)
def test_batteries_that_are_not_worked_out_would_change_no_bit(changes, fleet):
    """A run that works out every battery at every question has the same tables, and devices off for as long."""
    found = [run(**{**BUFFERED, "fleet": fleet, **changes})]
    with every_time():
        found.append(run(**{**BUFFERED, "fleet": fleet, **changes}))
    seldom, often = (frames(each) for each in found)
    assert (seldom["jobs"]["outcome"] == "battery").any()  # else no battery mattered
    for name in ("jobs", "rounds"):
        assert seldom[name].to_csv() == often[name].to_csv()
    assert found[0].devices()["idle_j"].tolist() == found[1].devices()["idle_j"].tolist()


@pytest.mark.parametrize("devices", [60, 1_000])
def test_a_dispatch_looks_at_no_battery_that_is_far_from_empty(devices):
    """Neither its own device's nor those of others, and it lists no idle devices, in fleets of any size."""
    looked, listed = [], []
    day = Batteries._day

    def counted(self, ids, off, at_s, watts):
        looked.extend(at_s[at_s > 0])  # at the start there is a look at each
        return day(self, ids, off, at_s, watts)

    battery = {"capacity": "40 kJ", "level": {"uniform": [0.3, 1.0]}, "charge": "1.5 W", "windows": [["0 h", "1 h"]]}
    with patch.object(Batteries, "_day", counted), patch.object(FleetView, "idle", property(listed.append)):
        simulation = run(**{**BUFFERED, "fleet": [{**FLEET[0], "count": devices, "battery": battery}]})
    assert simulation.session.round == 60 and len(frames(simulation)["jobs"]) >= 300
    assert not looked and not listed
