"""DA-DPFL against DisPFL, NumPy and numbers on paper, and in runs of real peers.

Source: DA-DPFL paper and its authors' published code.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.model_state import model_in
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.learning.submodel import masks
from edgesim.learning.submodel.pruning import PQ, spared
from edgesim.methods.dadpfl import DADPFL, sparsity_of
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, prepare, run
from tests.methods.hand_made import KEY, server_of
from tests.methods.test_dfedavg import spied
from tests.methods.test_feddst import STEP, WEIGHTS
from tests.sizes import full, thinned

TEN = {"peers": {"name": "random", "degree": 3}, "selection": "all"}
# Everybody votes for it in round 1, so that devices prune in rounds 3 and 6, until 58 % is zero.
PRUNING = {"name": "dadpfl", "change_below": 1e9, "b": 2, "c": 1.0, "end_round": 7, "target_sparsity": 0.58}


def learned(simulation):
    """Return what is learned in a run: models of devices and their masks, and the mean."""
    memory = dict(sorted(simulation.learner.memory.items()))
    models = {device: [model_in(own), masks.masks_in(own)] for device, own in memory.items()}
    return fingerprint([models, simulation.learner.weights()])


def reported(votes, kept=None):
    """Return messages with these votes."""
    body = {"params": {f"{layer}.weight": torch.ones(1, 1) for layer in WEIGHTS}, "buffers": {}}
    kept = kept or {f"{layer}.weight": 1 for layer in WEIGHTS}
    statistics = [{"vote": float(vote), "change": 0.5, "kept": kept} for vote in votes]
    return [Update(k, k, Task(), body, 1, 1, 0, each) for k, each in enumerate(statistics)]


def merged(votes, round_, state=None, **settings):
    """Return the state after a round in which devices voted so, with the method's settings."""
    simulation = prepare(digits_scenario(method={"name": "dadpfl", **settings}, **TEN))
    learner = simulation.learner
    simulation.session.round = round_
    got = reported(votes)
    return learner.method.aggregate(state or learner.state, got[0].body, got, server_of(simulation.session.view()), KEY)


def plan_of(round_=0, simulation=None, **settings):
    """Return the plan of a round, counted from 0, and the simulation."""
    if simulation is None:
        simulation = prepare(digits_scenario(method={"name": "dadpfl", **settings}, **TEN))
    simulation.session.round = round_
    return simulation.learner.plan(simulation.session.view()), simulation


# --- what it adds to DisPFL -------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("growth", thinned(["gradient", "random"], ["random"]))
def test_without_waiting_and_pruning_it_is_dispfl(growth):
    """Every bit of models, masks and jobs, with decay and clipping; by default neither is."""
    same = {"sparsity": 0.6, "alpha": 0.4, "end_round": 4, "growth": growth}
    changes = {**TEN, "training": {"batch": 16, "lr": 0.1, "weight_decay": 5e-4, "clip_norm": 1.0}}
    off = {"reuse": 0, "max_prunings": 0, "change_below": 1e9}
    methods = ({"name": "dispfl", **same}, {"name": "dadpfl", **same, **off}, {"name": "dadpfl", **same})
    runs = [run(digits_scenario(method=method, **changes)) for method in methods]
    assert learned(runs[0]) == learned(runs[1]) != learned(runs[2])
    assert frames(runs[0])["jobs"].equals(frames(runs[1])["jobs"])
    assert runs[1].learner.state["settled"] > 0


# --- whom a device waits for ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse", [None, 0, 1, 2])
def test_every_device_hears_its_neighbours_once(reuse):
    """M of them, at most N from this round; a device is never awaited by one that comes before it in the chain."""
    plan, simulation = plan_of(**({} if reuse is None else {"reuse": reuse}))
    graph = simulation.session.view().peers
    for order in plan.orders:
        assert sorted((*order.inputs, *order.wait.peers)) == graph.of(order.device).tolist()
        assert len(order.wait.peers) <= (3 if reuse is None else reuse)
    assert bool(sum(len(order.wait.peers) for order in plan.orders)) == (reuse != 0)
    TopologicalSorter({order.device: order.wait.peers for order in plan.orders}).prepare()


def test_whoever_is_first_may_be_awaited():
    """Then all neighbours' old models are fetched, and as many of all priors awaited as the cap says."""
    orders = plan_of(wait_select="first_finish", reuse=1)[0].orders
    assert all(len(order.inputs) == 3 for order in orders)
    assert {order.wait.need for order in orders} == {0, 1}


@full
@pytest.mark.parametrize("reuse", thinned([0, 2, 4], [2]))
def test_waits_are_those_of_a_run_that_trains_nothing(reuse):
    """Nobody trains in a timing-only run, so DA-DPFL, which plans from votes, is refused; D-FedAvg is not.

    It draws whom a device hears and the round's order by the same keys. Where zeros cost like any number and masks grow
    at random, its jobs cost the same, so that seconds, waits and bytes are equal to the last bit though one prunes.
    """
    same = {"peers": {"name": "random", "degree": 4}, "selection": "all", "stop": {"rounds": 7}}
    real = run(digits_scenario(method={**PRUNING, "growth": "random", "reuse": reuse}, **same))
    null = run(digits_scenario(method={"name": "dfedavg", "reuse": reuse}, backend="null", **same))
    assert real.learner.state["rounds"] == [3, 6]
    found, expected = ({name: frame.drop(columns="submodel", errors="ignore") for name, frame in frames(s).items()}
                       for s in (real, null))  # fmt: skip
    for table in ("jobs", "rounds"):
        assert found[table].equals(expected[table])
    waits_s = expected["jobs"]["wait_s"].groupby(expected["jobs"]["round"]).max()
    assert (waits_s > 0).all() == (reuse > 0) == waits_s.any()


def test_waiting_may_step_down():
    """In blocks of floor(500 / 11) = 45 rounds from 10 to 0; for all of 3 neighbours in blocks of 125."""
    stepping = DADPFL(wait_schedule="step_down", reuse=10)
    rounds = {1: 10, 45: 10, 46: 9, 90: 9, 91: 8, 450: 1, 451: 0, 500: 0, 10_000: 0}
    assert {t: stepping.cap(t, 20) for t in rounds} == rounds
    assert [DADPFL(preset="authors").cap(t, 3) for t in (1, 125, 126, 376)] == [3, 3, 2, 0]
    assert [DADPFL(reuse=10).cap(t, 20) for t in rounds] == [10] * len(rounds)
    assert DADPFL(wait_schedule="step_down", reuse=10, end_round=4).cap(3, 20) == 8
    stepping = {"wait_schedule": "step_down", "end_round": 4}
    longest = [max(len(order.wait.peers) for order in plan_of(t, **stepping)[0].orders) for t in range(5)]
    assert longest == [3, 2, 1, 0, 0]


def test_how_long_devices_wait():
    """Three times their own training time for each training in the longest chain of waits before them, if asked to."""
    waits = [order.wait for order in plan_of()[0].orders]
    assert {wait.within_s for wait in waits} == {float("inf")}
    plan, simulation = plan_of(wait_timeout=3.0)
    setting, waits = simulation.parts.setting, {order.device: order.wait.peers for order in plan.orders}

    def chain(device):
        return max((1 + chain(peer) for peer in waits[device]), default=0)

    assert max(map(chain, waits)) > 1
    for order in plan.orders:
        samples = float(setting.samples[order.device])
        seconds = (samples + 16) * sum(STEP.values()) / setting.flops_per_s[order.device]
        expected = 3 * chain(order.device) * seconds if order.wait.peers else float("inf")
        assert order.wait.within_s == pytest.approx(expected)


@pytest.mark.parametrize(("how", "heard"), [("drop", {1, 2, 3}), ("stale", {3})])
def test_a_neighbour_that_is_too_slow(how, heard):
    """Devices that wait for one that takes 100 times as long do without it, or have its old model in time."""
    fleet = [{"cpu": {"flops_per_s": "1 MFLOP/s"}}, {"count": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}}]
    method = {"name": "dadpfl", "wait_timeout": 3.0, "on_prior_failure": how}
    simulation, backend = spied(method=method, fleet=fleet, peers="full", stop={"rounds": 4})
    received = [len(a.received) for a, _ in backend.done.values()]
    assert set(received) <= heard
    assert min(received) < 3 or how == "stale"
    jobs = frames(simulation)["jobs"].query("device > 0")
    assert jobs["wait_s"].max() < 0.1 * frames(simulation)["jobs"].query("device == 0")["compute_s"].min()


@pytest.mark.parametrize("preset", ["reconstructed", "authors"])
def test_devices_that_fail_stop_nobody(preset):
    """They crash and leave: who is there hears at most M, and sparsity never falls."""
    simulation, backend = spied(
        method={**PRUNING, "reuse": 2, "preset": preset},
        peers={"name": "random", "degree": 3},
        stop={"rounds": 8},
        failures={"name": "crash", "probability": 0.3},
        availability={"name": "sessions", "on": "20 s", "off": "5 s"},
    )
    assert {"ok", "crashed"} <= set(frames(simulation)["jobs"]["outcome"])
    assert {len(a.received) for a, _ in backend.done.values()} >= {2, 3}
    assert max(len(a.received) for a, _ in backend.done.values()) == 3
    for assignment, result in backend.done.values():
        if assignment.device_state is not None:
            old, new = (
                sparsity_of(masks.masks_in(model_state))
                for model_state in (assignment.device_state, result.new_device_state)
            )
            assert new >= old
    assert max(sparsity_of(masks.masks_in(own)) for own in simulation.learner.memory.values()) > 0.51


# --- when devices prune -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("votes", "settled"), [([0, 0, 1, 0], 0), ([0, 1, 1, 0], 10), ([1, 1, 1, 1], 10), ([1], 10), ([0], 0)]
)
def test_the_vote(votes, settled):
    """Half of those who voted are enough."""
    after = merged(votes, 9)
    assert after.state["settled"] == settled
    assert after.state["rounds"][:4] == ([18, 24, 29, 33] if settled else [])
    assert after.metrics["vote"] == pytest.approx(np.mean(votes))


def test_it_is_decided_once():
    """Later votes neither take it back nor move it."""
    state = merged([1, 1], 9).state
    assert merged([0, 0], 10, state).state["rounds"] == state["rounds"]
    assert merged([1, 1], 30, state).state["settled"] == 10


def test_majorities():
    assert merged([0, 0, 1, 0], 9, majority=0.25).state["settled"] == 10
    assert merged([1, 1, 1, 0], 9, majority=0.8).state["settled"] == 0


@pytest.mark.parametrize(
    ("settings", "first", "size"),
    [
        ({}, [177, 237, 283, 319], 20),
        ({"max_prunings": 2}, [177, 237], 2),
        ({"c": 2, "b": 20, "end_round": 300}, [120, 180, 210, 225], 20),
        ({"preset": "authors"}, [101, 177, 235, 280], 21),
        ({"preset": "authors", "clock": "paper"}, [177, 237, 283, 319], 21),
    ],
)
def test_rounds_that_prune(settings, first, size):
    """After the votes of round 100, before the last round."""
    found = DADPFL(**settings).rounds(100)
    assert found[: len(first)] == first
    assert len(found) == size


# --- how they prune ---------------------------------------------------------------------------------------------


def prune(sends, **changes):
    """Run peers that prune."""
    method = {**PRUNING, "sends": sends, "alpha": 0.2, **changes.pop("method", {})}
    training = {"batch": 16, "lr": 0.1, "local_epochs": 2}
    cost = {"name": "measured", "sparse": "ideal"}
    return spied(method=method, peers={"name": "random", "degree": 3}, cost=cost, training=training, **changes)


def test_what_a_pruning_round_makes():
    """By NumPy, of each layer's trained weights: those that the PQ index spares are the smallest that a device sends
    without pruning, and are not in what it sends with; all others are.
    """
    (_, pruned), (_, trained) = (
        prune(sends, method={"reuse": 0}, stop={"rounds": 3}) for sends in ("pruned", "trained")
    )
    for job in range(20, 30):
        mask = masks.masks_in(trained.done[job][0].device_state)
        (_, with_it), (_, without) = pruned.done[job], trained.done[job]
        for name in mask:
            weights = without.body["params"][name].flatten().numpy()
            active = np.flatnonzero(mask[name].flatten().numpy())
            order = active[np.argsort(np.abs(weights[active]), kind="stable")]
            goes = order[: spared(torch.from_numpy(weights[active]), PQ())]
            expected = weights.copy()
            expected[goes] = 0
            assert len(goes) > 0
            assert with_it.body["params"][name].flatten().tolist() == expected.tolist()
            assert torch.equal(with_it.new_device_state["params"][name], with_it.body["params"][name])
        assert with_it.statistics["kept"] == without.statistics["kept"]
        assert with_it.statistics["change"] == without.statistics["change"]


@pytest.mark.parametrize(
    ("sends", "target", "times"), thinned([("pruned", 0.58, 2), ("trained", 0.53, 1)], [("trained", 0.53, 1)])
)
def test_a_run_that_prunes(sends, target, times):
    """Devices prune in rounds 3 and 6, unless the target is reached; in other rounds counts stay. Messages are zero
    outside their masks, what is charged is the mask that a device trains under, and every device hears three others.
    """
    simulation, backend = prune(sends, method={"target_sparsity": target}, stop={"rounds": 7})
    assert simulation.learner.state["rounds"] == [3, 6]
    jobs, prunings = frames(simulation)["jobs"].set_index("job")["flops"], 0
    for job, (assignment, result) in backend.done.items():
        old, new = masks.counts_in(assignment.task.submodel), masks.counts_of(masks.masks_in(result.new_device_state))
        assert len(assignment.received) == 3
        if assignment.device_state is not None:
            assert masks.counts_of(masks.masks_in(assignment.device_state)) == old
        sparse = sum(STEP[layer] * old[f"{layer}.weight"] / WEIGHTS[layer] for layer in WEIGHTS)
        assert jobs[job] == pytest.approx(2 * 20 * sparse + 16 * sum(STEP.values()))
        prunes = job // 10 + 1 in (3, 6) and 1 - sum(old.values()) / 6032 < target
        prunings += prunes
        assert all(new[name] <= old[name] for name in old)
        assert (new != old) == prunes
        for name, weights in result.body["params"].items():
            if name in old:
                held = new[name] if sends == "pruned" else old[name]
                assert 0.95 * held <= int((weights != 0).sum()) <= held
    assert prunings == 10 * times
    last = [sparsity_of(masks.masks_in(own)) for own in simulation.learner.memory.values()]
    metrics = frames(simulation)["metrics"].query("name == 'sparsity'")["value"].to_numpy()
    assert metrics[0] == pytest.approx(0.5, abs=1e-3)
    assert metrics[-1] == pytest.approx(np.mean(last))
    assert (np.diff(metrics) >= 0).all()
    assert metrics[-1] > target - 0.02


def test_a_device_votes_by_how_far_it_moved():
    """By NumPy: the distance of what it sends from the first model under its first mask, and its change over that of
    the first round, in which it is 1.
    """
    method = {"name": "dadpfl", "change_below": 1.5, "max_prunings": 0}
    _, backend = spied(method=method, peers="ring", stop={"rounds": 3})
    origins, votes = [backend.done[device][1].new_device_state["origin"] for device in range(10)], set()
    assert len({fingerprint(origin) for origin in origins}) == 10
    for device, origin in enumerate(origins):
        before = first = 0.0
        for job in (device, device + 10, device + 20):
            (assignment, result), squares = backend.done[job], 0.0
            assert fingerprint(result.new_device_state["origin"]) == fingerprint(origin)
            for name, start in assignment.global_model["params"].items():
                masked = start.numpy() * (origin[name].numpy() if name in origin else 1)
                squares += float(((result.body["params"][name].numpy().astype(float) - masked) ** 2).sum())
            first = first or squares
            assert result.statistics["change"] == pytest.approx(abs(squares - before) / first, rel=1e-4)
            assert result.statistics["vote"] == (result.statistics["change"] < 1.5)
            votes.add(result.statistics["vote"])
            before = squares
    assert votes == {0.0, 1.0}


# --- presets and bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("reconstructed", ("constant", "2d", "per_device", "squared", "paper", 20, "pruned", 1.0, 0.0, "t - 1")),
        ("printed", ("constant", "2d", "per_device", "squared", "paper", 20, "pruned", 0.9, 1.0, "t")),
        ("authors", ("step_down", "authors", "shared", "norms", "authors", 21, "trained", 1.0, 0.0, "t - 1")),
    ],
)
def test_presets(preset, expected):
    """A key that is given counts more."""
    assert DADPFL(preset=preset)._settings() == expected
    assert DADPFL(preset=preset, gamma=0.5, sends="pruned")._settings()[-4:-2] == ("pruned", 0.5)


@pytest.mark.parametrize(
    ("alpha_at", "shares"), [("t - 1", {0: 0.3, 3: 0.15, 5: 0.0200962}), ("t", {0: 0.2799038, 2: 0.15, 5: None})]
)
def test_the_cosine_begins_in_round_0_or_1(alpha_at, shares):
    """By hand: 0.15 (1 + cos(pi k / 6)) with k = t - 1 or t, where t counts the six rounds from 1."""
    for round_, share in shares.items():
        plan, _ = plan_of(round_, alpha_at=alpha_at, end_round=6)
        assert plan.orders[0].task.config.get("share") == (share if share is None else pytest.approx(share, abs=1e-7))


def test_the_literal_settings_prune_hard():
    """eta = 1 keeps at most a quarter: 67.5 to 90 % of a layer go at once, where the default takes 15 %."""
    weights = torch.from_numpy(np.random.default_rng(0).standard_normal(1000))
    settings = DADPFL(preset="printed")._settings()
    assert spared(weights, PQ(gamma=settings.gamma, eta=settings.eta)) == int(0.9 * (1000 - 848.512486 / 4))
    assert spared(weights, PQ()) == 151


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_sparsity": 0.4}, r"method\.target_sparsity: must be at least method\.sparsity, 0\.5, got 0\.4"),
        ({"p": 1.0}, r"method\.p: must be below method\.q, 1, got 1"),
        (
            {"reuse": 4},
            r"method\.reuse: must be at most the 3 neighbours that a device hears, got 4; all: leave it out",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        prepare(digits_scenario(method={"name": "dadpfl", **settings}, **TEN))


@pytest.mark.parametrize(
    "wrong",
    [
        {"reuse": -1},
        {"c": 0},
        {"b": -1},
        {"majority": 0},
        {"change_below": 0},
        {"wait_timeout": 0},
        {"clock": "none"},
    ],
)
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "dadpfl", **wrong}, peers="ring")


def test_more_neighbours_than_others():
    """Ten devices have nine others each."""
    with pytest.raises(ConfigError, match=r"peers\.degree: must be below the 10 devices, got 10"):
        assemble(digits_scenario(method="dadpfl", peers={"name": "random", "degree": 10}, selection="all"))


def test_votes_need_training():
    with pytest.raises(ConfigError, match=r"backend\.name: .*dadpfl.* plans from training results|DADPFL plans from"):
        prepare(digits_scenario(method="dadpfl", backend="null", **TEN))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dadpfl": {
        "preset": "test_presets",
        "reuse": "test_every_device_hears_its_neighbours_once",
        "wait_select": "test_whoever_is_first_may_be_awaited",
        "wait_schedule": "test_waiting_may_step_down",
        "wait_timeout": "test_how_long_devices_wait",
        "on_prior_failure": "test_a_neighbour_that_is_too_slow",
        "sparsity": "test_a_run_that_prunes",
        "maskable": "test_dispfl.py::test_whether_shortcuts_are_masked",
        "initial_masks": "test_presets",
        "alpha": "test_dispfl.py::test_shares_that_move",
        "alpha_at": "test_the_cosine_begins_in_round_0_or_1",
        "end_round": "test_rounds_that_prune",
        "growth": "test_without_waiting_and_pruning_it_is_dispfl",
        "target_sparsity": "test_a_run_that_prunes",
        "distance": "test_pruning.py::test_distances",
        "change_below": "test_a_device_votes_by_how_far_it_moved",
        "majority": "test_the_vote",
        "clock": "test_pruning.py::test_rounds_of_the_authors",
        "b": "test_rounds_that_prune",
        "c": "test_rounds_that_prune",
        "max_prunings": "test_rounds_that_prune",
        "sends": "test_what_a_pruning_round_makes",
        "p": "test_pruning.py::test_how_many_a_layer_can_spare",
        "q": "test_pruning.py::test_how_many_a_layer_can_spare",
        "gamma": "test_the_literal_settings_prune_hard",
        "eta": "test_the_literal_settings_prune_hard",
        "beta": "test_pruning.py::test_at_most_beta_and_never_the_last",
    },
}
