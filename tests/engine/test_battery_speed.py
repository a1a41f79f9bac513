"""Batteries are worked out for many jobs at once: the same numbers as job by job, and few steps."""

from unittest.mock import patch

import numpy as np
import pytest

from edgesim.core.job import Job
from edgesim.engine.batteries import FleetBatteries
from edgesim.world.batteries.base import Batteries
from tests.conftest import frames, simulate_null, timing_scenario

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
    steps, drain = [], Batteries.drain

    def counted(self, ids, *rest):
        steps.append(len(ids))
        return drain(self, ids, *rest)

    with patch.object(Batteries, "drain", counted):
        jobs = frames(run())["jobs"]
    assert len(jobs) > 90 and sum(steps) > 3 * len(jobs)
    assert len(steps) <= ROUNDS * 5 * 6
    assert np.mean(steps) > 5
