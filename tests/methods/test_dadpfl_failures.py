"""A peer of DA-DPFL dies while others wait for it: when each of them starts, from whose models, and that nothing hangs.

Four devices hear each other and wait for all that come before them. A message takes 0.1 s. Written r for the place in
the round's order, f for when the device at place 1 fails, S for the start of the round, D for times of training:

    fetched = S + 0.1 if the device takes any model of the round's start, else S
    start_r = max(fetched, known_0, ..., known_{r-1});   known_j = start_j + D_j + 0.1, or f if j failed

Source: DA-DPFL, waiting is transitive and a waiter is released when the failure is noticed; it then leaves the
neighbour out of both sums ("drop"), or takes its model from before ("stale").
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgesim.core.rng import Key
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD, Failure, FailurePart
from tests.conftest import digits_scenario, frames
from tests.contracts.support import prepare
from tests.methods.test_dfedavg import Spied
from tests.methods.test_feddst import STEP

SAMPLES, BATCH, MESSAGE_S = 20, 16, 0.1
WORK = (SAMPLES + BATCH) * sum(STEP.values())  # FLOPs of an epoch and of the gradient that moves the mask
SECONDS = np.array([1.0, 0.7, 1.3, 0.9])  # of training, by device
ROUND = 1  # in which the device at place 1 fails: by then everybody has trained once
EXACT = 1e-9


@dataclass(frozen=True, kw_only=True)
class DiesOnce(FailurePart):
    """One job of one device, counted from 0, crashes `after` seconds of a phase; a part from outside."""

    device: int
    job: int
    phase: int
    after: float = 0.0

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the failures."""
        return _DiesOnce(failure=self)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _DiesOnce(Failure):
    failure: DiesOnce

    def strikes(self, draws, phases_s):
        phase, after_s = Failure.strikes(self, draws, phases_s)
        hit = (draws.ids == self.failure.device) & (draws.nth == self.failure.job)
        return np.where(hit, self.failure.phase, phase), np.where(hit, self.failure.after, after_s)


def scenario(rule: str, seconds=SECONDS, method: dict[str, Any] | None = None, **changes: Any):
    """Return three rounds of four peers that train for so many seconds, over links with nothing but latency."""
    base: dict[str, Any] = {
        "method": {"name": "dadpfl", "on_prior_failure": rule, **(method or {})},
        "peers": "full",
        "selection": "all",
        "partition": {"name": "iid", "samples_per_device": SAMPLES},
        "training": {"batch": BATCH, "lr": 0.1},
        "network": {"name": "fixed", "up": 1e20, "down": 1e20, "latency": MESSAGE_S / 2},
        "fleet": [{"cpu": {"flops_per_s": WORK / s}} for s in seconds],
        "stop": {"rounds": 3},
    }
    return digits_scenario(**{**base, **changes})


def order_of(round_: int, **keys: Any) -> list[int]:
    """Return the devices of a round by their place in its order: the one at place r waits for r others."""
    simulation = prepare(scenario("drop", **keys))
    simulation.session.round = round_
    orders = simulation.learner.plan(simulation.session.view()).orders
    assert sorted(len(order.wait.peers) for order in orders) == [0, 1, 2, 3]
    return [order.device for order in sorted(orders, key=lambda order: len(order.wait.peers))]


def starts(begin_s: float, order: list[int], rule: str, seconds=SECONDS, fails=lambda start_s: None) -> list[float]:
    """Return when devices start by the formulas above, by place, then the end of the round.

    `fails`: when the device at place 1 fails, given when it would start; None: it does not.
    """
    start_s, known_s, over_s = [], [], []
    for place, device in enumerate(order):
        fetched_s = begin_s + (MESSAGE_S if rule == "stale" or place < len(order) - 1 else 0.0)
        start_s.append(max([fetched_s, *known_s]))
        failed_s = fails(start_s[-1]) if place == 1 else None
        over_s.append(start_s[-1] + seconds[device] if failed_s is None else failed_s)
        known_s.append(over_s[-1] + (MESSAGE_S if failed_s is None else 0.0))
    return [*start_s, max(over_s)]


def play(given: Any) -> tuple[Simulation, Spied, Any]:
    """Return a finished run, what was trained in it, and its jobs by round and device."""
    parts = assemble(given)
    backend = Spied(parts.scenario.backend.value.open(parts.make_trainer))
    simulation = Simulation(parts, backend, Silent())
    simulation.run()
    jobs = frames(simulation)["jobs"].set_index(["round", "device"])
    jobs["start_s"] = jobs["sent_s"] + jobs["down_s"] + jobs["wait_s"]
    return simulation, backend, jobs


def heard(backend: Spied, jobs: Any, device: int) -> dict[int, int]:
    """Return the round of each model that a device trained from in ROUND, its own aside, by sender."""
    assignment = backend.done[jobs.loc[(ROUND, device), "job"]][0]
    rounds = dict(zip(jobs["job"], jobs.index.get_level_values("round"), strict=True))
    return {message.device: rounds[message.job] for message in assignment.received}


# How it dies: phase, seconds after that began, when that is given the start of the round and of its training and for
# how long it would train, and whether its model from before has reached the others by then.
DEATHS = {
    "before download": (DOWNLOAD, 0.0, lambda begin_s, start_s, trains_s: begin_s, False),
    "while waiting": (SENT, 0.5, lambda begin_s, start_s, trains_s: begin_s + 0.5, True),
    "in training": (COMPUTATION, 0.25, lambda begin_s, start_s, trains_s: start_s + 0.25, True),
    "in upload": (UPLOAD, 0.0, lambda begin_s, start_s, trains_s: start_s + trains_s, True),
}


@pytest.mark.parametrize("rule", ["drop", "stale"])
@pytest.mark.parametrize(("phase", "after_s", "fails_s", "had"), DEATHS.values(), ids=DEATHS)
def test_whoever_waits_for_a_dead_peer_starts_when_the_rule_says(rule, phase, after_s, fails_s, had):
    """The second round; the third begins when the second has ended, and ends as if nothing had been."""
    orders = [order_of(round_) for round_ in range(3)]
    first, dead, third, last = orders[ROUND]
    failures = [{"name": f"{__name__}:DiesOnce", "device": dead, "job": ROUND, "phase": phase, "after": after_s}]
    simulation, backend, jobs = play(scenario(rule, failures=failures))
    begin_s, died_s = 0.0, 0.0
    for round_, order in enumerate(orders):

        def fails(start_s, begin_s=begin_s, round_=round_):
            return fails_s(begin_s, start_s, SECONDS[dead]) if round_ == ROUND else None

        *start_s, end_s = starts(begin_s, order, rule, fails=fails)
        for device, expected_s in zip(order, start_s, strict=True):
            job = jobs.loc[(round_, device)]
            assert job["sent_s"] == pytest.approx(begin_s, abs=EXACT)
            if (round_, device) == (ROUND, dead):
                died_s = fails(expected_s)
                assert (job["outcome"], job["end_s"]) == ("crashed", pytest.approx(died_s, abs=EXACT))
            else:
                assert (job["outcome"], job["start_s"]) == ("ok", pytest.approx(expected_s, abs=EXACT))
        begin_s = end_s
    assert simulation.rounds.stop_reason == "3 rounds done"
    assert simulation.session.now_s == pytest.approx(begin_s, abs=EXACT)
    old = {dead: ROUND - 1} if had else {}
    kept = old if rule == "stale" else {}
    assert heard(backend, jobs, first) == {**old, third: ROUND - 1, last: ROUND - 1}
    assert heard(backend, jobs, third) == {first: ROUND, **kept, last: ROUND - 1}
    assert heard(backend, jobs, last) == {first: ROUND, **kept, third: ROUND}


@pytest.mark.parametrize("rule", ["drop", "stale"])
def test_whoever_leaves_with_its_message_on_the_way_is_not_waited_for(tmp_path: Path, rule: str):
    """It is gone 0.04 s after its training, for ever: both waiters go on at that moment, and two rounds more end."""
    order = order_of(0)
    gone = order[1]
    *start_s, _ = starts(0.0, order, rule)
    gone_s = float(start_s[1] + SECONDS[gone] + 0.04)
    there = tmp_path / "there.csv"
    there.write_text("\n".join(["device,start,end", *(f"{i},0,{gone_s if i == gone else 1e6!r}" for i in range(4))]))
    simulation, _, jobs = play(scenario(rule, availability={"name": "trace", "file": str(there)}))
    *expected_s, _ = starts(0.0, order, rule, fails=lambda start_s: gone_s)
    for place in (2, 3):
        assert jobs.loc[(0, order[place]), "start_s"] == pytest.approx(expected_s[place], abs=EXACT)
    assert (jobs.loc[0]["outcome"] == "ok").all()
    assert gone not in jobs.loc[1:].index.get_level_values("device")
    assert simulation.rounds.stop_reason == "3 rounds done"


@pytest.mark.parametrize("rule", ["drop", "stale"])
def test_whoever_is_too_slow_is_waited_for_as_long_as_said(rule):
    """wait_timeout = 3: once all else is there, 3 x 2 and 3 x 3 of their own trainings at places 2 and 3."""
    order = order_of(0)
    seconds = SECONDS.copy()
    seconds[order[1]] = 100.0
    assert order_of(0, seconds=seconds) == order
    _, _, jobs = play(scenario(rule, seconds, {"wait_timeout": 3.0}, stop={"rounds": 1}))
    for place in (2, 3):
        fetched_s = MESSAGE_S if rule == "stale" or place == 2 else 0.0
        expected_s = fetched_s + 3 * place * seconds[order[place]]
        assert jobs.loc[(0, order[place]), "start_s"] == pytest.approx(expected_s, abs=EXACT)
