"""Peers on their own clocks in the event loop: what a straggler costs, failures in mid-trade, and learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edgesim
from edgesim.core.task import Order
from edgesim.core.view import Turn
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from edgesim.world.failures.base import COMPUTATION, SENT, UPLOAD
from tests.conftest import frames, simulate_null
from tests.engine.test_peers import struck
from tests.methods.test_adpsgd import LINKS, schedule
from tests.plugins.one_number import JOB_FLOPS, numbers, scenario
from tests.sizes import full

STRAGGLER = Path(__file__).parents[2] / "scenarios/straggler_peers.toml"


@pytest.mark.parametrize("method", ["adpsgd", "aedfl"])
def test_a_straggler_delays_nobody_else(method):
    """In 10 s nine devices do ten jobs of 1 s each and the tenth one of 10 s: 91 updates; in rounds all do one."""
    seconds = [1.0] * 9 + [10.0]
    settings = {"peers": "full", "stop": {"sim_time": "10.5 s"}}
    alone = simulate_null(scenario(seconds, method=method, protocol={"name": "gossip", "every": 7}, **settings))
    together = simulate_null(scenario(seconds, method="dpsgd", **settings))
    jobs = [tables["jobs"][tables["jobs"]["outcome"] == "ok"] for tables in (frames(alone), frames(together))]
    assert jobs[0].groupby("device").size().tolist() == [10] * 9 + [1]
    assert jobs[1].groupby("device").size().tolist() == [1] * 10
    rounds = frames(alone)["rounds"]
    assert len(rounds) == 91 // 7
    assert set(rounds["used"]) == {7}
    # updates 1 to 9 end at 1 s, 10 to 18 at 2 s, ...: the n-th round of seven closes at ceil(7 n / 9), at most 10
    assert rounds["now_s"].tolist() == pytest.approx([min(10, -(-7 * n // 9)) for n in range(1, 14)])


@pytest.mark.parametrize(
    ("phase", "after_s", "ends_s", "nbytes", "computed_j"),
    [(COMPUTATION, 0.25, 0.25, 0, 0.75), (UPLOAD, 0.0, 1.0, 0, 3.0), (SENT, 2.0, 2.0, 2, 3.0)],
    ids=["computing", "having computed", "in mid-trade"],
)
def test_a_device_that_crashes(phase, after_s, ends_s, nbytes, computed_j):
    """Its gradient is lost, nobody's model changes, and half a message of 1 s, on air from 1.5 s on, is charged at 2 s.

    That is so at both ends; device 0 computes for 1 s at 3 W above idle power.
    """
    simulation, _ = numbers(schedule(failures=struck([0], phase, after_s), protocol={"name": "gossip", "every": 1}))
    first = frames(simulation)["jobs"].query("device == 0").iloc[0]
    assert (first["outcome"], first["end_s"]) == ("crashed", pytest.approx(ends_s))
    assert [first[column] for column in ("down_bytes", "up_bytes", "peer_bytes")] == [nbytes] * 3
    assert first["compute_j"] == pytest.approx(computed_j)
    assert first["peer_j"] == pytest.approx(nbytes / 4 * (1 + 0.25))
    assert 0 not in simulation.learner.memory or float(simulation.learner.memory[0]["params"]["layer.weight"]) == 0.0


@pytest.mark.parametrize(("name", "receive_w"), [("fixed", 0.25), ("shared", 0.5)])
def test_a_battery_that_empties_in_mid_trade(name, receive_w):
    """The trade with device 1 is on air from 1.5 s on, and ends at 2 s; device 1 has computed then, and trades with 2.

    Device 0 has 2 W idle, 3 W more to compute for 1 s, and 1 W more to send; its receiver is faster than the sender,
    so that it is on half the time over links of its own.
    """
    fleet = [{"cpu": {"flops_per_s": JOB_FLOPS / seconds}} for seconds in (1.0, 2.0, 5.0)]
    fleet[0] |= {"battery": {"capacity": 2 * 2 + 3 * 1 + 0.5 * (1 + receive_w)}}
    given = {"network": {**LINKS, "name": name}, "fleet": fleet, "protocol": {"name": "gossip", "every": 1}}
    simulation, _ = numbers(schedule(**given))
    jobs = frames(simulation)["jobs"]
    first, second = (jobs[jobs["device"] == device].iloc[0] for device in (0, 1))
    assert (first["outcome"], first["end_s"]) == ("battery", pytest.approx(2.0))
    assert first["up_j"] + first["down_j"] == pytest.approx(0.5 * (1 + receive_w))
    assert (second["outcome"], second["end_s"]) == ("ok", pytest.approx(3.5))


def test_a_graph_that_is_drawn_anew_every_round():
    """Pairs of four devices: a job has the neighbours of the round in which it begins, and these change."""
    settings = {"peers": {"name": "gossip_match", "mode": "pair"}, "stop": {"rounds": 30}}
    given = scenario([1.0, 1.1, 1.7, 2.0], method="adpsgd", protocol="gossip", **settings)
    simulation = Simulation(assemble(given), NullBackend(), Silent())
    really_order, turns = simulation.learner.next_order, list[Turn]()

    def next_order(turn: Turn) -> Order:
        turns.append(turn)
        return really_order(turn)

    simulation.learner.next_order = next_order
    simulation.run()
    graphs, everyone = simulation.session.view().graphs, np.ones(4, dtype=bool)
    for turn in turns:
        assert turn.neighbours.tolist() == graphs.of_round(everyone, turn.round).of(turn.device).tolist()
    assert len({(turn.device, *turn.neighbours.tolist()) for turn in turns}) == 12


@full
def test_everybody_crashes_at_once():
    """A run in which no job can ever begin ends, and says why."""
    simulation = simulate_null(schedule(failures=struck([0, 1, 2], SENT, 0.0), backend="null"))
    assert "failed at the instant of being asked" in simulation.rounds.stop_reason


@full
def test_a_straggler_and_d_psgd():
    """To 75 % on scikit-learn's digits AD-PSGD takes less than a fifth of the time of D-PSGD, AEDFL of DFedAvg."""
    times = {}
    for method, protocol in (("adpsgd", None), ("dpsgd", "sync"), ("aedfl", None), ("dfedavg", "sync")):
        words = [f"method={method}", *([f"protocol={protocol}"] if protocol else [])]
        run = edgesim.run(edgesim.load(STRAGGLER, words))
        assert run.manifest["stop_reason"] == "accuracy 0.75 reached"
        times[method] = float(run.rounds["now_s"].iloc[-1])
    assert times["adpsgd"] < times["dpsgd"] / 5
    assert times["aedfl"] < times["dfedavg"] / 5


@full
@pytest.mark.parametrize(("method", "rounds"), [("adpsgd", 150), ("aedfl", 15)])
def test_they_learn_on_fashion_mnist(method, rounds):
    """Ten peers with 600 images each, one of them slow."""
    words = [
        f"method={method}",
        "data={ name = 'fashion_mnist', normalise = 'none' }",
        "partition={ name = 'iid', samples_per_device = 600 }",
        "model={ name = 'cnn_m', conv_dropout = 0.0, fc_dropout = 0.0 }",
        "training={ batch = 32, lr = 0.1 }",
        f"stop={{ rounds = {rounds} }}",
        f"evaluation.every={rounds}",
    ]
    run = edgesim.run(edgesim.load(STRAGGLER, words))
    assert run.evals["accuracy"].iloc[-1] > 0.65
