"""BEER against its recurrence, on paper and by invariants of runs in which all goes well and in which it does not.

Source: Zhao et al. (2022), algorithm 1; Xiao, Boyd and Lall (2005) for the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.beer import BEER
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import fingerprint, run
from tests.methods.peers_by_hand import PAIR, numbers_of, row, task_of, work
from tests.methods.test_dfedavg import spied
from tests.sizes import full

WEIGHTS, LAYERS, VECTORS = 144 + 4608 + 1280, 3, 58  # of the digits' CNN
PAPER = BEER(values="float32", gamma=0.5)
TROUBLE = {
    "failures": {"name": "crash", "probability": 0.1},
    "availability": {"name": "sessions", "on": "60 s", "off": "2 s"},
    "stop": {"rounds": 12},
}


def two(method, rounds, least=(0.0, 0.0), **training):
    """Return X and V of two peers after each round at lr 0.1, with f1 = (x - a)^2 / 2 and f2 = (x - b)^2 from 1 and 3.

    `least`: a and b, where these are least.
    """
    told, kept, seen = [None, None], [None, None], []
    for round_ in range(rounds):
        task, before = task_of(method, PAIR, round_, samples=(1, 1), lr=0.1, **training), list(told)
        for i, factor in ((0, 1.0), (1, 2.0)):
            heard = [before[1 - i]] if round_ else []
            base = row((1.0, 3.0)[i])
            slope = (factor, least[i])
            told[i], kept[i] = work(method, task, i, base, kept[i], heard, lambda x, s=slope: s[0] * (x - s[1]))
        seen.append(([*numbers_of(kept[0]), *numbers_of(kept[1])], [k["tracker"]["w.weight"].item() for k in kept]))
    return seen


def carried(backend, device):
    """Return what a device kept after each of its jobs, by the round of the job."""
    jobs = [job for job in backend.done if backend.done[job][0].device == device]
    return {int(backend.done[job][0].task.config["round"]): backend.done[job][1].new_device_state for job in jobs}


# --- the recurrence ---------------------------------------------------------------------------------------------


def test_three_rounds_of_two_peers():
    """X0 = (1, 3), V0 = (1, 6), W all 1/2, gamma 0.5, nothing lost in messages. A round ends with the step along V."""
    xs = [(0.9, 2.4), (1.185, 1.545), (1.059, 1.2435)]
    vs = [(1, 6), (0.9, 4.8), (2.16, 2.115), (2.02275, 1.52325)]
    for (x, v), by_hand_x, by_hand_v in zip(two(PAPER, 4), [*xs, None], vs, strict=True):
        assert by_hand_x is None or x == pytest.approx(by_hand_x)
        assert v == pytest.approx(by_hand_v)


def test_local_epochs_before_the_gradient():
    """Mode "authors", three epochs of one sample at lr 0.1: f1 leads from 1 to 0.9, 0.81 and 0.729, where 0.81 is the
    last gradient, and the step along it to 0.648; f2 from 3 to 1.536 and by 3.84 to 1.152. The next round does the same
    from there and pulls both together by 0.25 of what is between them.
    """
    method = replace(PAPER, mode="authors")
    (x, v), (x_next, v_next) = two(method, 2, local_epochs=3)
    assert x == pytest.approx([0.729 - 0.081, 1.536 - 0.384])
    assert v == pytest.approx([0.81, 3.84])
    assert v_next == pytest.approx([0.648 * 0.9**2, 2 * 1.152 * 0.8**2])
    pull = 0.25 * (1.152 - 0.648)
    assert x_next == pytest.approx([0.648 * 0.9**3 + pull - 0.1 * v_next[0], 1.152 * 0.8**3 - pull - 0.1 * v_next[1]])


def test_two_peers_find_what_is_best_for_both():
    """(x - 1)^2 / 2 + (x + 2)^2 is least at -1, where neither of them is; there the trackers vanish."""
    *_, (x, v) = two(PAPER, 300, least=(1.0, -2.0))
    assert x == pytest.approx([-1, -1], abs=1e-4)
    assert v == pytest.approx([0, 0], abs=1e-4)


# --- a run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["original", "authors"])
def test_trackers_have_the_mean_of_the_gradients(mode):
    """Doubly stochastic weights and equal replicas: what one peer adds for another, that one adds with the other sign,
    however coarse the messages.
    """
    method = {"name": "beer", "mode": mode, "bits": 4, "gamma": 0.2}
    simulation, _ = spied(method=method, peers="ring", stop={"rounds": 5})
    memory = simulation.learner.memory
    for name in memory[0]["tracker"]:
        trackers, gradients = (
            np.mean([memory[d][kind][name].double().numpy() for d in memory], axis=0)
            for kind in ("tracker", "gradient")
        )
        assert trackers == pytest.approx(gradients, abs=1e-5)
        assert np.abs(memory[0]["tracker"][name].numpy() - gradients).max() > 1e-4


def check_replicas(backend, devices, least):
    """Check that each replica is, bit for bit, what its owner had in the round that the replica says."""
    kept, checked = {device: carried(backend, device) for device in range(devices)}, 0
    for device in range(devices):
        for memory in kept[device].values():
            for peer, round_ in memory["heard"].items():
                for kind in ("h", "g"):
                    theirs = kept[int(peer)][int(round_)][kind]
                    assert fingerprint(dict(memory[f"{kind} {peer}"])) == fingerprint(dict(theirs))
                    checked += 1
    assert checked >= least


def test_replicas_are_what_they_stand_for():
    """After compressed differences too; they lag behind the model by less and less."""
    _, backend = spied(method="beer", peers="ring", stop={"rounds": 4})
    check_replicas(backend, 10, least=10 * 2 * 2 * 3)
    last = carried(backend, 0)[3]
    away, size = (last["h"]["fc1.weight"] - last["params"]["fc1.weight"]).norm(), last["params"]["fc1.weight"].norm()
    assert 0 < away < 0.05 * size


def test_replicas_survive_trouble():
    """Devices crash, leave and come: after a round that somebody missed all send whole, and no replica is wrong."""
    simulation, backend = spied(method="beer", peers="ring", **TROUBLE)
    jobs = frames(simulation)["jobs"]
    assert {"ok", "crashed"} <= set(jobs["outcome"])
    complete = {round_: len(of) == 10 and set(of["outcome"]) == {"ok"} for round_, of in jobs.groupby("round")}
    asked = jobs.groupby("round").size()
    named = jobs.groupby("round")["task"].unique()
    for round_ in complete:
        whole = asked[round_] < 10 or (round_ > 0 and not complete.get(round_ - 1, False))
        assert list(named[round_]) == ["whole" if whole else "train"]
    assert len({task for tasks in named for task in tasks}) == 2
    check_replicas(backend, 10, least=100)
    assert all(bool(t.isfinite().all()) for t in simulation.learner.weights()["params"].values())


def test_who_is_out_of_step_is_left_out():
    """A difference that follows one that did not come pulls nobody, until a whole message does."""
    first, _ = work(PAPER, task_of(PAPER, PAIR, 0, samples=(1, 1)), 1, row(3.0), gradient=torch.clone)
    _, own = work(PAPER, task_of(PAPER, PAIR, 0, samples=(1, 1)), 0, row(1.0))

    def heard(round_, message):
        """Return X of the first peer, at (1 - gamma / 2) times 1 plus gamma / 2 times what it knows of the other."""
        surrogates = {**own, "h": {"w.weight": torch.ones(1, 1)}}
        _, kept = work(PAPER, task_of(PAPER, PAIR, round_, samples=(1, 1)), 0, row(1.0), surrogates, [message])
        return numbers_of(kept)

    of_round = {r: replace(first.task, config={**first.task.config, "round": float(r)}) for r in (0, 4)}
    difference = {kind: {"w.weight": torch.full((1, 1), value)} for kind, value in (("h", 5.0), ("g", 0.0))}
    assert heard(1, first._replace(task=of_round[0], body=difference)) == [1 + 0.25 * (5 - 1)]
    assert heard(5, first._replace(task=of_round[4], body=difference)) == [1]
    assert heard(5, first._replace(task=replace(of_round[4], name="whole"), body=difference)) == [1 + 0.25 * (5 - 1)]
    assert heard(1, first._replace(job=-1)) == [1]


# --- what it costs ----------------------------------------------------------------------------------------------


def test_bytes_of_two_short_vectors():
    """From each of two neighbours: two times 9 bits a weight, a scale a layer, and vectors as they are."""
    jobs = frames(simulate_null(digits_scenario(method="beer", peers="ring", backend="null")))["jobs"]
    message_bytes = math.ceil(2 * 9 * WEIGHTS / 8) + 2 * 4 * LAYERS + 2 * 4 * VECTORS
    assert set(jobs["peer_bytes"]) == {2 * message_bytes}
    assert message_bytes / (4 * (WEIGHTS + VECTORS)) == pytest.approx(0.5625, abs=0.02)


def test_one_batch_a_round_or_whole_epochs():
    """40 samples in batches of 8: a fifth of an epoch, the first round as well; "authors" as FedAvg among peers."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "training": {"batch": 8, "local_epochs": 2}}
    original, authors, epochs = (
        frames(simulate_null(digits_scenario(method=method, peers="ring", backend="null", **changes)))["jobs"]["flops"]
        for method in ("beer", {"name": "beer", "mode": "authors"}, "dfedavg")
    )
    assert original.to_numpy() == pytest.approx(epochs.to_numpy() / 10)
    assert authors.tolist() == epochs.tolist()


@full
def test_a_run_learns():
    """With an even label mix and steps of a fifth."""
    simulation = run(
        digits_scenario(
            method={"name": "beer", "gamma": 0.3}, peers="ring", training={"batch": 32, "lr": 0.2}, stop={"rounds": 30}
        )
    )
    accuracy = frames(simulation)["evals"]["accuracy"]
    assert accuracy.iloc[-1] > accuracy.iloc[0] + 0.4


# --- graphs -----------------------------------------------------------------------------------------------------


def test_peers_have_to_hear_each_other():
    """Weights of a one-way graph are not doubly stochastic."""
    with pytest.raises(ConfigError, match="peers: BEER needs peers that hear each other"):
        simulate_null(digits_scenario(method="beer", peers="exponential", backend="null"))


@pytest.mark.parametrize("peers", [{"name": "random", "degree": 3}, {"name": "exponential", "one_peer": True}])
def test_neighbours_have_to_stay(peers):
    """Replicas are of the same neighbours in every round."""
    with pytest.raises(ConfigError, match=r"peers\.name: .* is drawn anew every round, a graph that beer cannot use"):
        simulate_null(digits_scenario(method="beer", peers=peers, backend="null"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"gamma": 0.0}, "method.gamma"),
        ({"bits": 17}, "method.bits"),
        ({"values": "int8"}, "method.values"),
        ({"mode": "local"}, "method.mode"),
    ],
)
def test_settings_out_of_range(setting, message):
    """Each key is named."""
    with pytest.raises(ConfigError, match=message):
        digits_scenario(method={"name": "beer", **setting}, peers="ring")


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "beer": {
        "mode": "test_local_epochs_before_the_gradient",
        "gamma": "test_three_rounds_of_two_peers",
        "values": "test_three_rounds_of_two_peers",
        "bits": "test_bytes_of_two_short_vectors",
    },
}
