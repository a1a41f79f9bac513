"""Rounds among peers in the event loop: who starts when, from which messages, and what it costs both ends."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import ContractError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Order, Plan, Task, Wait
from edgesim.core.update import ModelRef
from edgesim.execution.backends.null import NullBackend
from edgesim.methods.decentralised.base import plan_in_order
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD, Failure, FailurePart
from tests.conftest import PSI, frames, timing_scenario
from tests.sizes import examples

BITS = 8 * 4 * 567_858  # CNN-CIFAR10
UNIT = 10 * PSI  # FLOP/s that train it on 500 samples in 1 s
TASK = Task(start="device", local_sgd=(LocalSGD(batch=20, lr=0.05, epochs=1),))
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
OWN = {"name": "fixed", "up": "1 Mbit/s", "down": "4 Mbit/s"}
SHARED = {**OWN, "name": "shared"}
LATENCY_ONLY = {"name": "fixed", "up": "1e15 bit/s", "down": "1e15 bit/s", "latency": "0.05 s"}  # 0.1 s a message

# Six devices with two neighbours each, as in Fig. 1 of the DA-DPFL paper, counted from 0; and a longer chain of waits.
FIGURE = ((1, 4), (2, 3), (1, 5), (4, 5), (0, 5), (0, 4))
LINE = ((1,), (0,), (1,))  # 1 waits for 0, and 2 for 1
CHAIN = ((1, 2), (2, 3), (0, 1), (0, 2), (2, 3), (1, 4))


@dataclass(frozen=True, kw_only=True)
class Strikes(FailurePart):
    """The jobs of some devices crash `after` seconds of a phase; a part from outside."""

    devices: tuple[int, ...]
    phase: int
    after: float = 0.0

    def build(self, n: int, key: Any, path: str) -> Failure:
        """Return the failures."""
        return _Struck(part=self)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Struck(Failure):
    part: Strikes

    def strikes(self, draws, phases_s):
        phase, after_s = Failure.strikes(self, draws, phases_s)
        hit = np.isin(draws.ids, self.part.devices)
        return np.where(hit, self.part.phase, phase), np.where(hit, self.part.after, after_s)


def struck(devices, phase=COMPUTATION, after=0.0):
    """Return the settings of these crashes."""
    return [{"name": f"{__name__}:Strikes", "devices": list(devices), "phase": phase, "after": after}]


def run(tmp_path, neighbours, orders, seconds=None, rounds=1, **changes):
    """Run peers with these neighbours; `orders(view)` takes the place of the method's plan.

    `seconds`: of training, by device. Returns jobs and devices by device, and the simulation with the `sent` Jobs.
    """
    file = tmp_path / "peers.csv"
    edges = [f"{source},{device}" for device, sources in enumerate(neighbours) for source in sources]
    file.write_text("\n".join(["source,target", *edges]))
    blocks = changes.pop("blocks", [{}] * len(neighbours))
    seconds = seconds or [1.0] * len(neighbours)
    base = {
        "method": "dfedavg",
        "peers": {"name": "file", "file": str(file)},
        "fleet": [{"cpu": {"flops_per_s": UNIT / s}, **b} for s, b in zip(seconds, blocks, strict=True)],
        "stop": {"rounds": rounds},
        "energy": POWER,
    }
    simulation = Simulation(assemble(timing_scenario(**{**base, **changes})), NullBackend(), Silent())
    simulation.sent = []
    simulation.learner.plan = lambda view: Plan(tuple(orders(view)))
    simulation.learner.start = simulation.sent.extend
    simulation.run()
    tables = frames(simulation)
    jobs = tables["jobs"].sort_values(["round", "device"]).reset_index(drop=True)
    jobs["start_s"] = jobs["sent_s"] + jobs["down_s"] + jobs["wait_s"]
    return jobs, simulation


def by_number(cap, select="lowest_index"):
    """Return the orders of devices whose place in the random order is their number."""
    return lambda view: plan_in_order(view, np.arange(view.peers.devices), TASK, cap, select).orders


def by_hand(*waits):
    """Return orders in which each device takes all neighbours but those that it waits for from the start."""
    return lambda view: [
        Order(device, TASK, tuple(set(view.peers.of(device).tolist()) - set(wait.peers)), wait)
        for device, wait in enumerate(waits)
    ]


def sent_by(simulation):
    """Return the bytes and joules that each device spent on sending."""
    return simulation.world.accounting.sent_bytes.tolist(), simulation.ledger.activity_j[:, 2].tolist()


# --- who starts when --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "starts_s"), [(0, [0, 0, 0, 0, 0, 0]), (1, [0, 0, 1, 0, 1, 1]), (2, [0, 0, 1, 0, 1, 2])]
)
def test_the_paper_s_figure(tmp_path, cap, starts_s):
    """Device 5 hears 0 and 4, and 4 waits for 0: with N = 2 device 5 comes third. Source: DA-DPFL paper, Fig. 1."""
    jobs, simulation = run(tmp_path, FIGURE, by_number(cap))
    assert jobs["start_s"].tolist() == pytest.approx(starts_s)
    assert simulation.session.now_s == pytest.approx(max(starts_s) + 1)


@pytest.mark.parametrize(
    ("cap", "starts_s", "end_s"),
    [
        (0, [0.1] * 6, 1.1),
        (1, [0.1, 0.1, 1.2, 0.1, 1.2, 1.2], 2.2),
        (2, [0.1, 0.1, 1.2, 0.1, 1.2, 2.3], 3.3),
    ],
)
def test_the_figure_with_transfers(tmp_path, cap, starts_s, end_s):
    """A message takes 0.1 s, the latencies of both ends: old ones delay the start, fresh ones the link of the chain."""
    jobs, simulation = run(tmp_path, FIGURE, by_number(cap), network=LATENCY_ONLY)
    assert jobs["start_s"].tolist() == pytest.approx(starts_s, abs=1e-6)
    assert simulation.session.now_s == pytest.approx(end_s, abs=1e-6)


@pytest.mark.parametrize(("cap", "starts_s"), [(1, [0, 0, 1, 0, 2, 2]), (2, [0, 0, 1, 0, 2, 2.5])])
def test_the_figure_with_unequal_devices(tmp_path, cap, starts_s):
    """Device 0 trains for 2 s, device 4 for 0.5 s after it."""
    seconds = [2, 1, 1.5, 1, 0.5, 1]
    jobs, _ = run(tmp_path, FIGURE, by_number(cap), seconds)
    assert jobs["start_s"].tolist() == pytest.approx(starts_s)
    assert jobs["end_s"].tolist() == pytest.approx([s + d for s, d in zip(starts_s, seconds, strict=True)])


@pytest.mark.parametrize(("cap", "starts_s"), [(1, [0, 0, 1, 1, 2, 1]), (2, [0, 0, 1, 2, 3, 4])])
def test_waiting_is_transitive(tmp_path, cap, starts_s):
    """Whoever waits for one that waits, waits for both."""
    jobs, _ = run(tmp_path, CHAIN, by_number(cap))
    assert jobs["start_s"].tolist() == pytest.approx(starts_s)


@pytest.mark.parametrize("cap", [0, 1, 3, 11])
@pytest.mark.parametrize("select", ["lowest_index", "first_finish"])
def test_everybody_hears_everybody(tmp_path, cap, select):
    """Closed form: the device of place r in the order starts after min(r, N) trainings."""
    everybody = [[j for j in range(12) if j != i] for i in range(12)]
    jobs, _ = run(tmp_path, everybody, by_number(cap, select))
    assert jobs["start_s"].tolist() == pytest.approx(np.minimum(np.arange(12), cap).tolist())


def test_a_second_round_starts_when_the_first_has_ended(tmp_path):
    """The round of 3 s is a barrier for all."""
    jobs, _ = run(tmp_path, FIGURE, by_number(2), rounds=2)
    assert (jobs["start_s"] - 3.0 * jobs["round"]).tolist() == pytest.approx([0, 0, 1, 0, 1, 2] * 2)


# --- from which messages ----------------------------------------------------------------------------------------


def test_which_messages_a_job_starts_from(tmp_path):
    """N = 1: device 5 waits for 0 alone, so it has the fresh model of 0 and that of 4 from the start of the round."""
    _, simulation = run(tmp_path, FIGURE, by_number(1), rounds=2)
    received = {(job.round, job.device): job.received for job in simulation.sent}
    assert received[0, 5] == (ModelRef(1, 0), ModelRef(5, -1))  # jobs 0 to 5, nobody had trained before
    assert received[1, 5] == (ModelRef(1, 6), ModelRef(5, 4))  # jobs 6 to 11
    assert received[1, 0] == (ModelRef(2, 1), ModelRef(5, 4))


def test_whoever_comes_first(tmp_path):
    """Of 0 (2 s) and 1 (1 s) the first is 1: device 2 starts then, with the old model of 0, after three messages."""
    neighbours = [(3,), (3,), (0, 1), (2,)]
    jobs, simulation = run(tmp_path, neighbours, by_number(1, "first_finish"), [2.0, 1.0, 1.5, 1.0])
    assert jobs["start_s"].tolist() == pytest.approx([0, 0, 1, 2.5])
    assert simulation.sent[2].received == (ModelRef(1, -1), ModelRef(2, 1))
    assert jobs["down_bytes"][2] == 3 * BITS // 8


def test_the_first_few(tmp_path):
    """need=2 of three: device 3 starts with the second, at 2 s, and never has the third."""
    waits = [Wait(), Wait(), Wait(), Wait((0, 1, 2), need=2)]
    jobs, simulation = run(tmp_path, [(3,), (3,), (3,), (0, 1, 2)], by_hand(*waits), [3.0, 1.0, 2.0, 1.0])
    assert jobs["start_s"].tolist() == pytest.approx([0, 0, 0, 2])
    assert simulation.sent[3].received == (ModelRef(2, 1), ModelRef(3, 2))


def test_of_two_that_come_together_the_first_by_number(tmp_path):
    """Both messages are on their way and would be there at 1.2 s; only one is asked for."""
    waits = [Wait((1, 2), need=1), Wait(), Wait()]
    neighbours = [(1, 2), (0,), (0,)]
    jobs, simulation = run(tmp_path, neighbours, by_hand(*waits), [1.0, 1.0, 1.0], network=LATENCY_ONLY)
    assert jobs["start_s"].tolist() == pytest.approx([1.2, 0.1, 0.1], abs=1e-6)
    assert simulation.sent[0].received == (ModelRef(2, 1),)


def test_training_takes_as_long_as_its_own_time_has_it(tmp_path):
    """Everybody is slowed down to a half from 1.5 s on: who starts at 0 takes 1 s, who then waits takes 0.5 + 1 s."""
    file = tmp_path / "speed.csv"
    file.write_text("time_s,speed\n0,1\n1.5,0.5\n100,0.5\n")
    jobs, _ = run(tmp_path, LINE, by_number(1), slowdown={"name": "replay", "file": str(file)})
    assert jobs["start_s"].tolist() == pytest.approx([0, 1, 2.5])
    assert jobs["compute_s"].tolist() == pytest.approx([1, 1.5, 2])
    assert jobs["compute_j"].tolist() == pytest.approx([3, 4.5, 6])


@pytest.mark.parametrize(
    ("within_s", "start_s", "heard"),
    [(0.5, 0.6, []), (1.0999, 1.1999, []), (1.1001, 1.2, [1]), (2.5, 2.2, [1, 2]), (np.inf, 2.2, [1, 2])],
)
def test_patience_ends(tmp_path, within_s, start_s, heard):
    """Old models are there at 0.1 s, fresh ones of 1 and 2 at 1.2 and 2.2 s; what is on its way then is not waited for.

    Patience counts from 0.1 s; with the first message it does not begin anew: 1.1001 s last until just after that.
    """
    waits = [Wait((1, 2), within_s=within_s), Wait(), Wait(), Wait()]
    neighbours = [(1, 2, 3), (3,), (3,), (1,)]
    jobs, simulation = run(tmp_path, neighbours, by_hand(*waits), [1.0, 1.0, 2.0, 1.0], network=LATENCY_ONLY)
    assert jobs["start_s"][0] == pytest.approx(start_s, abs=2e-3)
    assert [ref.owner - 1 for ref in simulation.sent[0].received] == [*heard, 3]


# --- what it costs both ends ------------------------------------------------------------------------------------


def test_own_links_charge_both_ends(tmp_path):
    """Device 2 fetches two messages over its 4 Mbit/s, in 2 x 0.25 s a megabit, but its peers send at 1 Mbit/s."""
    jobs, simulation = run(tmp_path, [(2,), (2,), (0, 1)], by_number(0), network=OWN)
    message_s = BITS / 1e6
    assert jobs["down_s"].tolist() == pytest.approx([message_s] * 3)
    assert jobs["down_j"].tolist() == pytest.approx([0.5 * BITS / 4e6, 0.5 * BITS / 4e6, 0.5 * 2 * BITS / 4e6])
    sent_bytes, sent_j = sent_by(simulation)
    assert sent_bytes == [BITS // 8, BITS // 8, 2 * BITS // 8]
    assert sent_j == pytest.approx([message_s, message_s, 2 * message_s])


def test_shared_links_by_hand(tmp_path):
    """Into the 1 Mbit/s of device 2 device 0 sends at its 0.25 Mbit/s and device 1 at the rest, until it is done.

    Out of device 2 two messages share 1 Mbit/s; its radio is on once for both.
    """
    link = {"name": "shared", "up": "1 Mbit/s", "down": "1 Mbit/s"}
    blocks = [{"network": {**link, "up": "0.25 Mbit/s"}}, {"network": link}, {"network": link}]
    jobs, simulation = run(tmp_path, [(2,), (2,), (0, 1)], by_number(0), network=link, blocks=blocks)
    slow_s, rest_s, both_s = BITS / 0.25e6, BITS / 0.75e6, 2 * BITS / 1e6
    assert jobs["down_s"].tolist() == pytest.approx([both_s, both_s, slow_s])
    assert jobs["down_j"].tolist() == pytest.approx([0.5 * both_s, 0.5 * both_s, 0.5 * slow_s])
    assert sent_by(simulation)[1] == pytest.approx([slow_s, rest_s, both_s])
    assert jobs["peer_j"].tolist() == pytest.approx([both_s / 2, both_s / 2, slow_s + rest_s])


def test_a_fresh_message_slows_an_old_one(tmp_path):
    """By hand, with m s a message at 1 Mbit/s: device 1 fetches from 2 at 1 Mbit/s and waits for 0.

    0 fetches at 3 Mbit/s, trains for m/6 s and is done after m/2: from then on both messages have half of the downlink
    of 1. The old one is there after 3/2 m, the fresh one has a half left, all the downlink, and is there after 2 m.
    """
    message_s = BITS / 1e6
    links = [{"name": "shared", "up": "4 Mbit/s", "down": f"{down} Mbit/s"} for down in (3, 1, 1)]
    orders = by_hand(Wait(), Wait((0,)), Wait())
    neighbours, blocks = [(2,), (0, 2), (1,)], [{"network": link} for link in links]
    jobs, _ = run(tmp_path, neighbours, orders, [message_s / 6, 1.0, 1.0], network=links[1], blocks=blocks)
    assert jobs["down_s"].tolist() == pytest.approx([message_s / 3, 1.5 * message_s, message_s])
    assert jobs["wait_s"].tolist() == pytest.approx([0.0, 0.5 * message_s, 0.0])
    assert jobs["down_j"][1] == pytest.approx(0.5 * 2 * message_s)


def test_messages_to_one_device_are_not_all_delayed_alike(tmp_path):
    """Only device 0's latency varies: fresh messages that start at one instant are there at different ones."""
    jitter = {"network": {**LATENCY_ONLY, "jitter": "20 ms"}}
    everybody = [(1, 2, 3), (0,), (0,), (0,)]
    completions = set()
    for need in (1, 2, 3):
        waits = [Wait((1, 2, 3), need=need), Wait(), Wait(), Wait()]
        jobs, _ = run(tmp_path, everybody, by_hand(*waits), blocks=[jitter, {}, {}, {}], network=LATENCY_ONLY)
        completions.add(jobs["start_s"][0])
    assert len(completions) == 3


def test_links_take_joules_at_both_ends(tmp_path):
    """Only device 0's link takes any: for the message that it hears, and for its own on the way to device 1."""
    blocks = [{"network": {**OWN, "energy_per_bit": "100 nJ/bit"}}, {}, {}]
    jobs, simulation = run(tmp_path, LINE, by_number(0), blocks=blocks, network=OWN)
    assert jobs["link_j"].tolist() == pytest.approx([1e-7 * BITS, 1e-7 * BITS, 0])
    assert simulation.ledger.link_j == pytest.approx(2e-7 * BITS)


# --- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "after_s", "lost_s"),
    [(COMPUTATION, 0.4, 0.4), (SENT, 0.7, 0.7), (DOWNLOAD, 0.0, 0.0), (UPLOAD, 0.0, 1.0)],
)
def test_who_waits_for_a_crashed_device_goes_on(tmp_path, phase, after_s, lost_s):
    """Device 1 trains alone from the moment in which 0 fails, be it just before it sends; 2 waits for 1 as ever."""
    failures = struck([0], phase, after_s)
    jobs, simulation = run(tmp_path, LINE, by_number(1), failures=failures)
    assert jobs["outcome"].tolist() == ["crashed", "ok", "ok"]
    assert jobs["start_s"].tolist() == pytest.approx([0, lost_s, lost_s + 1])
    assert jobs["compute_s"].tolist() == pytest.approx([lost_s, 1, 1])
    assert simulation.sent[1].received == ()
    assert simulation.sent[2].received == (ModelRef(2, 1),)


def test_a_crashed_device_keeps_what_it_had_trained(tmp_path):
    """Whoever crashes before it sends has its new model all the same; in the next round others fetch that one."""
    _, simulation = run(tmp_path, LINE, by_number(0), rounds=2, failures=struck([0], UPLOAD))
    assert simulation.sent[4].received == (ModelRef(1, 0),)
    _, simulation = run(tmp_path, LINE, by_number(0), rounds=2, failures=struck([0], COMPUTATION, 0.5))
    assert simulation.sent[4].received == (ModelRef(1, -1),)


@pytest.mark.parametrize(("leaves_s", "outcome"), [(1.0, "ok"), (0.999, "offline")])
def test_who_leaves_when_it_has_trained_has_done_its_job(tmp_path, leaves_s, outcome):
    """At that very instant; over ideal links device 1, which waits for it, still gets its message."""
    there = there_until(tmp_path, 3, {0: leaves_s})
    jobs, simulation = run(tmp_path, LINE, by_number(1), availability=there, network="ideal")
    assert jobs["outcome"].tolist() == [outcome, "ok", "ok"]
    assert simulation.sent[1].received == ((ModelRef(1, 0),) if outcome == "ok" else ())
    assert jobs["start_s"].tolist() == pytest.approx([0, leaves_s, leaves_s + 1])


def test_a_round_of_the_dead_ends(tmp_path):
    """All wait for device 0, which dies at once, and everybody after them: nobody is left waiting."""
    jobs, simulation = run(tmp_path, LINE, by_number(1), failures=struck([0, 1, 2], SENT), rounds=3)
    assert set(jobs["outcome"]) == {"crashed"}
    assert simulation.rounds.stop_reason == "3 rounds done"
    everybody = [[j for j in range(6) if j != i] for i in range(6)]
    waits = [Wait(), *[Wait((0,))] * 5]
    jobs, _ = run(tmp_path, everybody, by_hand(*waits), failures=struck([0], COMPUTATION, 0.25))
    assert jobs["start_s"].tolist() == pytest.approx([0, *[0.25] * 5])


def test_who_waits_for_a_device_that_has_no_memory_goes_on(tmp_path):
    """Device 0 cannot do what it is asked for: 1 does not wait for it, and 2 waits for 1 as ever."""
    blocks = [{"memory": "1 kB"}, {}, {}]
    jobs, simulation = run(tmp_path, LINE, by_number(1), blocks=blocks)
    assert jobs["outcome"].tolist() == ["no_memory", "ok", "ok"]
    assert jobs["start_s"].tolist() == pytest.approx([0, 0, 1])
    assert simulation.sent[1].received == ()


@pytest.mark.parametrize("link", [OWN, SHARED], ids=["own", "shared"])
def test_who_leaves_while_its_old_message_flows(tmp_path, link):
    """Device 0 leaves after 3 s of sending at 1 Mbit/s: 1 starts then, without its message, and both paid for 3 s."""
    jobs, simulation = run(
        tmp_path, LINE, by_number(0), network=link, availability=there_until(tmp_path, 3, {0: 3.0}), seconds=[9, 1, 1]
    )
    assert jobs["outcome"].tolist() == ["offline", "ok", "ok"]
    assert jobs["start_s"][1] == pytest.approx(3.0)
    assert simulation.sent[1].received == ()
    assert jobs["down_bytes"][1] == pytest.approx(3e6 / 8, abs=1)
    assert sent_by(simulation)[1][0] == pytest.approx(1.0 * 3.0)
    # over links of their own the message is on air at 4 Mbit/s where it is received, over shared ones at 1 Mbit/s
    assert jobs["down_j"][1] == pytest.approx(0.5 * 3.0 * (1e6 / 4e6 if link is OWN else 1.0))


@pytest.mark.parametrize("link", [OWN, SHARED], ids=["own", "shared"])
def test_who_crashes_while_it_fetches_has_not_waited(tmp_path, link):
    """The first message would take 18 s: after 0.7 s all of its time was download."""
    jobs, _ = run(tmp_path, LINE, by_number(1), network=link, failures=struck([0], SENT, 0.7))
    assert jobs.loc[0, ["down_s", "wait_s", "compute_s"]].tolist() == pytest.approx([0.7, 0, 0])


@pytest.mark.parametrize("link", [OWN, SHARED], ids=["own", "shared"])
def test_who_leaves_while_its_fresh_message_flows(tmp_path, link):
    """Device 0 has its one input after m s and trains for 1 s; 2 s later it leaves. 1 goes on without its message."""
    message_s = BITS / 1e6
    leaves_s = message_s + 3.0
    orders = by_hand(Wait(), Wait((0,)), Wait())
    there = there_until(tmp_path, 3, {0: leaves_s})
    jobs, simulation = run(tmp_path, [(2,), (0,), (1,)], orders, network=link, availability=there)
    assert jobs["outcome"].tolist() == ["ok", "ok", "ok"]
    assert jobs["start_s"].tolist() == pytest.approx([message_s, leaves_s, message_s])
    assert simulation.sent[1].received == ()
    assert jobs["down_bytes"][1] == pytest.approx(2e6 / 8, abs=1)


def there_until(tmp_path, n, leaves_s):
    """Return the availability of n devices some of which leave for ever."""
    file = tmp_path / "there.csv"
    file.write_text("\n".join(["device,start,end", *(f"{i},0,{leaves_s.get(i, 1e6)}" for i in range(n))]))
    return {"name": "trace", "file": str(file)}


@pytest.mark.parametrize(
    ("waits", "message"),
    [
        ([Wait((1,)), Wait((2,)), Wait((0,))], "devices wait for one another in a circle: "),
        ([Wait(), Wait((2,))], "device 1 waits for device 2, which was not asked"),
    ],
)
def test_waits_that_cannot_be_met(tmp_path, waits, message):
    """Circles, and peers that nobody asked, are the method's mistake."""
    with pytest.raises(ContractError, match=message):
        run(tmp_path, [(1,), (2,), (0,)], by_hand(*waits))


# --- laws -------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    reuse=st.integers(0, 3),
    select=st.sampled_from(["lowest_index", "first_finish"]),
    network=st.sampled_from(["fixed", "shared"]),
    slowdown=st.sampled_from(["none", {"name": "log_normal", "sigma": 0.5}]),
    crash=st.sampled_from([0.0, 0.3]),
    there=st.sampled_from(["always", {"name": "sessions", "on": "40 s", "off": "20 s"}]),
    stop=st.sampled_from([{"rounds": 3}, {"sim_time": "30 s"}]),
)
def test_time_bytes_and_joules_add_up(seed, reuse, select, network, slowdown, crash, there, stop):
    """Random fleets and failures: jobs end once, phases fill their time, and what is received was sent and paid for."""
    scenario = timing_scenario(
        seed=seed,
        method={"name": "dfedavg", "reuse": reuse, "wait_select": select},
        peers={"name": "random", "degree": 3},
        fleet=[{"count": 9, "cpu": {"flops_per_s": {"log_uniform": [1e8, 1e10]}}}],
        network={
            "name": network,
            "up": {"log_uniform": [1e6, 1e7]},
            "down": {"log_uniform": [1e6, 1e7]},
            "latency": {"uniform": [0, 0.2]},
        },
        energy=POWER,
        slowdown=slowdown,
        failures={"name": "crash", "probability": crash},
        availability=there,
        stop=stop,
    )
    simulation = Simulation(assemble(scenario), NullBackend(), Silent())
    simulation.run()  # checks the ledger
    tables = frames(simulation)
    jobs, accounting = tables["jobs"], simulation.world.accounting
    assert jobs["job"].is_unique
    assert not simulation.session.running
    assert (jobs[["down_s", "wait_s", "compute_s"]] >= 0).all(axis=None)
    phases_s = jobs[["down_s", "wait_s", "compute_s", "up_s"]].sum(axis=1).to_numpy()
    assert (jobs["end_s"] - jobs["sent_s"]).to_numpy() == pytest.approx(phases_s, rel=1e-9, abs=1e-6)
    assert accounting.sent_bytes.sum() == accounting.received_bytes.sum() == jobs["down_bytes"].sum()
    assert (jobs["peer_bytes"] == jobs["down_bytes"]).all() and (jobs["up_bytes"] == 0).all()
    sent_j, received_j = simulation.ledger.activity_j[:, 2], simulation.ledger.activity_j[:, 0]
    assert sent_j.sum() == pytest.approx(jobs["peer_j"].sum())
    # a radio is on for at most the whole run in either direction, if messages share it
    if network == "shared":
        assert (sent_j <= 1.0 * simulation.session.now_s * (1 + 1e-9)).all()
        assert (received_j <= 0.5 * simulation.session.now_s * (1 + 1e-9)).all()


# --- the waiting study ------------------------------------------------------------------------------------------

STUDY = runpy.run_path(str(Path(__file__).parents[2] / "analysis" / "dadpfl_waiting.py"))


@pytest.mark.parametrize(
    ("degree", "reuse", "select"), [(2, 1, "lowest_index"), (10, 5, "first_finish"), (10, 10, "lowest_index")]
)
def test_peers_wait_as_long_as_in_the_reference(degree, reuse, select):
    """50 rounds of the schedule of Figs. 8 and 9 of the DA-DPFL paper, within four standard errors of 10,000 others."""
    reference = STUDY["reference"]()
    (row,) = reference[
        (reference["M"] == degree) & (reference["N"] == reuse) & (reference["wait_select"] == select)
    ].to_dict("records")
    found = STUDY["measured"](row, rounds=50)
    error = row["sd_max_wait"] * np.sqrt(1 / 50 + 1 / 10_000)
    assert found["mean_max_wait"] == pytest.approx(row["mean_max_wait"], abs=4 * error)
    now = 1 / (degree + 1)
    assert found["p_now"] == pytest.approx(now, abs=4 * np.sqrt(now * (1 - now) / 5_000))
