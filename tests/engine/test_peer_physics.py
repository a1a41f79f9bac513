"""Batteries, outages and partial work among peers, against calculations that stand in each test."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pytest

import edgesim
from edgesim.core.task import Order, Wait
from edgesim.core.update import ModelRef
from edgesim.world.failures.base import Failure, FailurePart
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.engine.test_peers import BITS, LINE, OWN, POWER, SHARED, TASK, UNIT, by_hand, run, sent_by, there_until
from tests.sizes import full

MESSAGE_S = BITS / 1e6  # 18.17 s at 1 Mbit/s, at which devices send
IDLE_W, COMPUTE_W, TRANSMIT_W, RECEIVE_W = 2.0, 3.0, 1.0, 0.5  # the last three above idle
PAIR = ((1,), (0,))  # two devices that hear each other
LINKS = {"own": OWN, "shared": SHARED}
both_links = pytest.mark.parametrize("links", LINKS)
# A radio that receives at 4 Mbit/s what comes at 1 Mbit/s is on for a quarter of the time over a link of its own, and
# all the time over shared ones.
RECEIVES_W = {"own": RECEIVE_W / 4, "shared": RECEIVE_W}


def exactly(expected: Any) -> Any:
    """Return what is equal to the expected numbers within 1e-12 of them."""
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


@dataclass(frozen=True, kw_only=True)
class Cut(FailurePart):
    """The link of one device is down in [begins, ends), those of the others never; a part from outside."""

    device: int
    begins: float
    ends: float

    def build(self, n: int, key: Any, path: str) -> Failure:
        """Return the failures."""
        return Failure(links=_CutLinks(self, np.full(n, 1e6), np.full(n, 1.0)))


@dataclass(frozen=True, eq=False)
class _CutLinks:
    cut: Cut
    mean_on_s: np.ndarray
    mean_off_s: np.ndarray

    def on(self, rows, now_s):
        return (rows != self.cut.device) | (now_s < self.cut.begins) | (now_s >= self.cut.ends)

    def next_change_s(self, rows, now_s):
        ahead_s = np.where(
            now_s < self.cut.begins, self.cut.begins, np.where(now_s < self.cut.ends, self.cut.ends, inf)
        )
        return np.where(rows == self.cut.device, ahead_s, inf)


def cut(device, begins, ends):
    """Return the settings of an outage."""
    return [{"name": f"{__name__}:Cut", "device": device, "begins": begins, "ends": ends}]


def with_battery(capacity_j, devices=2, of=0):
    """Return the blocks of devices of which one has a battery that is full at the start."""
    return [{"battery": {"capacity": capacity_j}} if device == of else {} for device in range(devices)]


def alone_and_heard(view):
    """Device 0 starts from its own model at once, device 1 from that of 0 too."""
    return [Order(0, TASK), Order(1, TASK, (0,))]


def joules_of(simulation, device):
    """Return what a device spent by activity, and at idle power."""
    rows = simulation.devices()
    return [float(rows[name][device]) for name in ("down_j", "compute_j", "up_j", "idle_j")]


# --- batteries --------------------------------------------------------------------------------------------------


@both_links
def test_a_device_dies_while_a_neighbour_fetches_from_it(tmp_path, links):
    """Device 0 sends to 1 and receives from it, both at 1 Mbit/s, from 0 s on, until its battery is empty.

    At 2 W idle, 1 W to send and its power to receive the battery of 8 times these watts lasts 8.0 s: 8 Mbit have
    passed each way by then. Device 1 goes on without the message: it computes for 1 s from 8.0 s on.
    """
    capacity_j = 8 * (IDLE_W + TRANSMIT_W + RECEIVES_W[links])
    jobs, simulation = run(
        tmp_path, PAIR, by_hand(Wait(), Wait()), network=LINKS[links], blocks=with_battery(capacity_j)
    )
    assert jobs["outcome"].tolist() == ["battery", "ok"]
    assert jobs["end_s"].tolist() == exactly([8.0, 9.0])
    assert jobs["down_s"].tolist() == exactly([8.0, 8.0])
    assert jobs["compute_s"].tolist() == exactly([0.0, 1.0])
    assert jobs["down_bytes"].tolist() == [1_000_000, 1_000_000]
    assert simulation.sent[1].received == ()
    assert sent_by(simulation)[0] == [1_000_000, 1_000_000]
    assert joules_of(simulation, 0) == exactly([8 * RECEIVES_W[links], 0, 8 * TRANSMIT_W, 8 * IDLE_W])
    assert joules_of(simulation, 1) == exactly([8 * RECEIVES_W[links], COMPUTE_W, 8 * TRANSMIT_W, 9 * IDLE_W])
    assert sum(joules_of(simulation, 0)) == exactly(capacity_j)


@both_links
@pytest.mark.parametrize(
    ("capacity_j", "dies_s", "outcome"),
    [
        (54.0, 9.0, "battery"),  # 6 W while it computes and sends
        (72.0, 14.0, "ok"),  # 60 J in the first 10 s, then 12 J at the 3 W of sending alone
    ],
)
def test_a_device_computes_and_sends_at_once(tmp_path, links, capacity_j, dies_s, outcome):
    """Device 0 trains for 10 s, and all the time sends its old model to device 1, which would have it after 18.17 s.

    When its job is done it sends on; when its battery is empty, device 1 goes on without the message.
    """
    jobs, simulation = run(
        tmp_path, PAIR, alone_and_heard, [10.0, 1.0], network=LINKS[links], blocks=with_battery(capacity_j)
    )
    computed_s = min(dies_s, 10.0)
    assert jobs["outcome"].tolist() == [outcome, "ok"]
    assert jobs["end_s"].tolist() == exactly([computed_s, dies_s + 1])
    assert jobs["start_s"].tolist() == exactly([0.0, dies_s])
    assert jobs["down_bytes"].tolist() == [0, int(dies_s * 1e6 / 8)]
    assert simulation.sent[1].received == ()
    assert joules_of(simulation, 0) == exactly([0, COMPUTE_W * computed_s, TRANSMIT_W * dies_s, IDLE_W * dies_s])
    assert sum(joules_of(simulation, 0)) == exactly(capacity_j)


def test_who_sends_to_several_over_its_own_link_draws_for_each(tmp_path):
    """Links of their own are not contended at the sender: two messages at 1 Mbit/s at a time take 2 W.

    Device 0 hears 1 s of 0.125 W more: it gets nothing itself. 2 W idle and 2 x 1 W last 6 s of 24 J.
    """
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (0,)), Order(2, TASK, (0,))]  # noqa: E731
    jobs, simulation = run(
        tmp_path, ((1,), (0,), (0,)), orders, [1e-9, 1.0, 1.0], network=OWN, blocks=with_battery(24.0, 3)
    )
    assert jobs["outcome"].tolist() == ["ok", "ok", "ok"]
    assert jobs["start_s"][1:].tolist() == pytest.approx([6.0, 6.0], rel=1e-8)
    assert sent_by(simulation)[1][0] == pytest.approx(12.0, rel=1e-8)


def test_over_shared_links_the_radio_is_on_once(tmp_path):
    """Two messages share the 1 Mbit/s of device 0, whose radio takes 1 W for both: 24 J at 3 W last 8 s, not 6."""
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (0,)), Order(2, TASK, (0,))]  # noqa: E731
    jobs, simulation = run(
        tmp_path, ((1,), (0,), (0,)), orders, [1e-9, 1.0, 1.0], network=SHARED, blocks=with_battery(24.0, 3)
    )
    assert jobs["start_s"][1:].tolist() == pytest.approx([8.0, 8.0], rel=1e-8)
    assert jobs["down_bytes"].tolist() == pytest.approx([0, 4e6 / 8, 4e6 / 8], abs=2)
    assert sent_by(simulation)[1][0] == pytest.approx(8.0, rel=1e-8)


@both_links
def test_a_device_dies_while_it_waits(tmp_path, links):
    """Device 1 waits for the fresh model of 0, which trains for 10 s: at 2 W its 10 J last 5 s."""
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (), Wait((0,)))]  # noqa: E731
    jobs, simulation = run(tmp_path, PAIR, orders, [10.0, 1.0], network=LINKS[links], blocks=with_battery(10.0, of=1))
    assert jobs["outcome"].tolist() == ["ok", "battery"]
    assert jobs.loc[1, ["wait_s", "down_s", "compute_s", "end_s"]].tolist() == exactly([5.0, 0.0, 0.0, 5.0])
    assert joules_of(simulation, 1) == exactly([0.0, 0.0, 0.0, 10.0])
    assert simulation.session.now_s == exactly(10.0)


@both_links
def test_who_waits_for_a_device_that_dies_goes_on(tmp_path, links):
    """Device 0 trains for 10 s at 5 W; its 20 J last 4 s, and device 1, which waits for it, computes from 4 s on."""
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (), Wait((0,)))]  # noqa: E731
    jobs, simulation = run(tmp_path, PAIR, orders, [10.0, 1.0], network=LINKS[links], blocks=with_battery(20.0))
    assert jobs["outcome"].tolist() == ["battery", "ok"]
    assert jobs["start_s"].tolist() == exactly([0.0, 4.0])
    assert jobs["compute_s"].tolist() == exactly([4.0, 1.0])
    assert simulation.sent[1].received == ()
    # the FLOPs that are paid for are those that were done
    whole = simulation.sent[0].prices.flops
    assert jobs["flops"][0] == exactly(0.4 * whole)


@pytest.mark.parametrize(("capacity_j", "outcome"), [(50.0, "ok"), (49.999, "battery")])
def test_who_dies_when_it_has_trained_has_done_its_job(tmp_path, capacity_j, outcome):
    """Ten seconds at 5 W take 50 J: at that very instant the message exists, and over ideal links it is there."""
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (), Wait((0,)))]  # noqa: E731
    jobs, simulation = run(tmp_path, PAIR, orders, [10.0, 1.0], network="ideal", blocks=with_battery(capacity_j))
    assert jobs["outcome"].tolist() == [outcome, "ok"]
    assert simulation.sent[1].received == ((ModelRef(1, 0),) if outcome == "ok" else ())
    assert simulation.world.batteries.on(simulation.session.now_s).tolist() == [False, True]


@both_links
def test_a_dead_peer_comes_back_when_it_is_charged(tmp_path, links):
    """It dies at 8.0 s and charges at 4 W from 60 s on: a fifth of its capacity is there after that much of it.

    Device 1 trains for 100 s from 8 s on, so that the second round begins at 108 s, with both.
    """
    capacity_j = 8 * (IDLE_W + TRANSMIT_W + RECEIVES_W[links])
    battery = {"capacity": capacity_j, "charge": "4 W", "windows": [["60 s", "20 h"]]}
    given = {"network": LINKS[links], "blocks": [{"battery": battery}, {}]}
    jobs, simulation = run(tmp_path, PAIR, by_hand(Wait(), Wait()), [1.0, 100.0], 2, **given)
    assert jobs["device"].tolist() == [0, 1, 0, 1]
    assert jobs["outcome"].tolist()[:2] == ["battery", "ok"]
    assert jobs["sent_s"].tolist() == exactly([0.0, 0.0, 108.0, 108.0])
    off_s = 60 + 0.2 * capacity_j / 4 - 8
    assert joules_of(simulation, 0)[3] == exactly(IDLE_W * (simulation.session.now_s - off_s))


# --- outages ----------------------------------------------------------------------------------------------------


@both_links
def test_an_outage_in_mid_fetch(tmp_path, links):
    """The link of 0 is down in [3, 5): both messages, the one that it sends and the other, take 2 s longer.

    No radio is on meanwhile: joules are those of a round without an outage.
    """
    given = {"network": LINKS[links]}
    jobs, simulation = run(tmp_path, PAIR, by_hand(Wait(), Wait()), failures=cut(0, 3.0, 5.0), **given)
    assert jobs["outcome"].tolist() == ["ok", "ok"]
    assert jobs["down_s"].tolist() == exactly([MESSAGE_S + 2] * 2)
    assert jobs["end_s"].tolist() == exactly([MESSAGE_S + 3] * 2)
    assert jobs["down_bytes"].tolist() == [BITS // 8] * 2
    assert jobs["down_j"].tolist() == exactly([MESSAGE_S * RECEIVES_W[links]] * 2)
    assert sent_by(simulation)[1] == exactly([MESSAGE_S * TRANSMIT_W] * 2)


@both_links
@pytest.mark.parametrize(("leaves_s", "flowed_s"), [(2.0, 2.0), (4.0, 3.0), (7.0, 5.0)])
def test_who_leaves_after_an_outage_has_sent_what_flowed(tmp_path, links, leaves_s, flowed_s):
    """Before, in and after an outage in [3, 5): what had flowed at 1 Mbit/s is charged, and device 1 goes on."""
    jobs, simulation = run(
        tmp_path,
        PAIR,
        by_hand(Wait(), Wait()),
        network=LINKS[links],
        failures=cut(0, 3.0, 5.0),
        availability=there_until(tmp_path, 2, {0: leaves_s}),
    )
    assert jobs["outcome"].tolist() == ["offline", "ok"]
    assert jobs["start_s"][1] == exactly(leaves_s)
    assert jobs["down_bytes"].tolist() == [int(flowed_s * 1e6 / 8)] * 2
    assert jobs["down_j"].tolist() == exactly([flowed_s * RECEIVES_W[links]] * 2)
    assert sent_by(simulation)[1] == exactly([flowed_s * TRANSMIT_W] * 2)


@both_links
def test_a_battery_lasts_longer_by_an_outage(tmp_path, links):
    """3 s of everything, 2 s at idle power alone in [3, 5), and everything again until the battery is empty at 9 s."""
    watts = IDLE_W + TRANSMIT_W + RECEIVES_W[links]
    capacity_j = 7 * watts + 2 * IDLE_W
    jobs, simulation = run(
        tmp_path,
        PAIR,
        by_hand(Wait(), Wait()),
        network=LINKS[links],
        failures=cut(1, 3.0, 5.0),
        blocks=with_battery(capacity_j),
    )
    assert jobs["outcome"].tolist() == ["battery", "ok"]
    assert jobs["end_s"].tolist() == exactly([9.0, 10.0])
    assert jobs["down_bytes"].tolist() == [7_000_000 // 8] * 2
    assert sum(joules_of(simulation, 0)) == exactly(capacity_j)


@both_links
def test_a_fresh_message_waits_for_the_link(tmp_path, links):
    """Device 0 trains until 10 s, when its link is down until 12 s: its message is there m s later."""
    orders = lambda view: [Order(0, TASK), Order(1, TASK, (), Wait((0,)))]  # noqa: E731
    jobs, simulation = run(tmp_path, PAIR, orders, [10.0, 1.0], network=LINKS[links], failures=cut(0, 9.0, 12.0))
    assert jobs["start_s"][1] == exactly(12 + MESSAGE_S)
    assert jobs["wait_s"][1] == exactly(12 + MESSAGE_S)
    assert simulation.sent[1].received == (ModelRef(1, 0),)


def test_over_shared_links_others_have_what_a_cut_link_leaves(tmp_path):
    """Into the 1 Mbit/s of device 2 flow the messages of 0 and 1, each of m s alone; that of 1 is cut in [4, 6).

    Halves until 4 s (2 Mbit each), all to 0 until 6 s (4 Mbit), halves again: 0 has 2 (m - 4) s left, so it is done
    at 2m - 2 s, when 1 lacks 2 Mbit, which it gets alone until 2m s. The downlink was never idle.
    """
    link = {"name": "shared", "up": "4 Mbit/s", "down": "1 Mbit/s"}
    orders = lambda view: [Order(0, TASK), Order(1, TASK), Order(2, TASK, (0, 1))]  # noqa: E731
    jobs, simulation = run(tmp_path, ((1,), (0,), (0, 1)), orders, network=link, failures=cut(1, 4.0, 6.0))
    assert jobs["down_s"][2] == exactly(2 * MESSAGE_S)
    assert jobs["down_j"][2] == exactly(2 * MESSAGE_S * RECEIVE_W)
    assert sent_by(simulation)[1][:2] == exactly([2 * MESSAGE_S - 2, 2 * MESSAGE_S - 2])


def test_over_its_own_link_the_other_message_takes_no_less(tmp_path):
    """The inputs of one device share its downlink as planned at their start: each flows for 2m s with its links up."""
    link = {"name": "fixed", "up": "4 Mbit/s", "down": "1 Mbit/s"}
    orders = lambda view: [Order(0, TASK), Order(1, TASK), Order(2, TASK, (0, 1))]  # noqa: E731
    jobs, _ = run(tmp_path, ((1,), (0,), (0, 1)), orders, network=link, failures=cut(1, 4.0, 6.0))
    assert jobs["down_s"][2] == exactly(2 * MESSAGE_S + 2)


# --- partial work -----------------------------------------------------------------------------------------------


@both_links
def test_partial_work_is_a_share_of_the_steps(tmp_path, links):
    """25 steps take 1 s: who stops after k of them has computed for k / 25 s, and its message flows then."""
    failures = [{"name": "partial_work", "probability": 1.0, "least": 0.2}]
    jobs, simulation = run(tmp_path, LINE, by_hand(Wait(), Wait(), Wait()), failures=failures, network=LINKS[links])
    steps = np.array([job.steps for job in simulation.sent])
    assert set(jobs["outcome"]) == {"partial"}
    assert ((steps >= 5) & (steps < 25)).all()
    assert jobs["compute_s"].tolist() == exactly((steps / 25).tolist())
    assert jobs["compute_j"].tolist() == exactly((COMPUTE_W * steps / 25).tolist())
    assert jobs["end_s"].tolist() == exactly((jobs["down_s"] + steps / 25).tolist())


# --- laws -------------------------------------------------------------------------------------------------------

OUTAGE = {"name": "link_outage", "up": "8 s", "down": "3 s"}


@pytest.mark.parametrize("failures", [[], pytest.param([OUTAGE], marks=full)], ids=["", "outages"])
@both_links
def test_a_battery_that_never_empties_changes_nothing(links, failures):
    """Jobs and rounds are the same to the last bit, whatever messages meet whatever outages."""
    given = {
        "method": {"name": "dfedavg", "reuse": 2},
        "peers": {"name": "random", "degree": 3},
        "network": {**LINKS[links], "up": {"log_uniform": [5e5, 8e6]}, "latency": "0.1 s"},
        "energy": POWER,
        "failures": failures,
        "stop": {"rounds": 4},
    }
    block = {"count": 7, "cpu": {"flops_per_s": {"log_uniform": [UNIT / 20, UNIT]}}}
    without, with_one = (
        frames(simulate_null(timing_scenario(**given, fleet=[{**block, **more}])))
        for more in ({}, {"battery": {"capacity": "1 TJ"}})
    )
    for name, table in without.items():
        pd.testing.assert_frame_equal(table, with_one[name], check_exact=name != "rounds", rtol=1e-12)


def test_peers_that_die_are_left_out_of_what_is_learned():
    """Real training takes the same seconds and joules as none, and goes on with those that are on."""
    fleet = [
        {"count": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}},
        {"count": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}, "battery": {"capacity": {"uniform": ["0.5 J", "4 J"]}}},
    ]
    given = {"method": "dfedavg", "peers": "ring", "selection": "all", "fleet": fleet, "stop": {"rounds": 4}}
    given["failures"] = [{"name": "link_outage", "up": "0.3 s", "down": "0.1 s"}]
    run = edgesim.run(digits_scenario(**given))
    assert set(run.jobs["outcome"]) == {"ok", "battery"}
    assert run.rounds["used"].iloc[-1] >= 3
    assert run.evals["accuracy"].iloc[-1] > run.evals["accuracy"].iloc[0]
    timed = frames(simulate_null(digits_scenario(**given, backend="null")))["jobs"]
    pd.testing.assert_frame_equal(run.jobs[timed.columns], timed, check_dtype=False, check_categorical=False)


def test_the_powers_are_those_of_the_settings():
    """Idle, busy and radio powers as the calculations above take them."""
    assert (POWER["idle"], POWER["busy"]) == (f"{IDLE_W:g} W", f"{IDLE_W + COMPUTE_W:g} W")
    assert (POWER["transmit"], POWER["receive"]) == (f"{TRANSMIT_W:g} W", f"{RECEIVE_W:g} W")
