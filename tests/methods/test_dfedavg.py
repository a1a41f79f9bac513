"""DFedAvg against numbers on paper and against FedAvg, and models that travel among real peers.

Source: DA-DPFL paper for the waiting; Xiao, Boyd and Lall (2005) for Metropolis weights.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgesim.core.backend import Assignment, Result
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.peer_graph import from_edges
from edgesim.core.update import ModelState, Update
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.base import Mixing, mixed, peer_plan, peer_task
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import digits_scenario, frames
from tests.contracts.support import fingerprint, prepare, run
from tests.methods.hand_made import KEY

PATH = ((0, 1), (1, 0), (1, 2), (2, 1))  # 0 - 1 - 2, source and target
NUMBERS = (0.0, 3.0, 6.0)


def view_of(*edges: tuple[int, int]) -> Any:
    """Return what a plan of three peers looks at."""
    sources, targets = np.array(edges).T
    return SimpleNamespace(peers=from_edges(3, sources, targets), idle=np.arange(3))


def model_of(number: float) -> ModelState:
    """Return a model of one parameter."""
    return {"params": {"weight": torch.tensor([number])}, "buffers": {}}


def mix_of(device: int, mixing: Mixing, received: dict[int, float]) -> float:
    """Return what a device on the path makes of its own of NUMBERS and of these of others."""
    task = peer_task(view_of(*PATH), LocalSGD(batch=1, lr=0.1, steps=1), mixing)
    messages = [Update(peer, 0, task, model_of(number), 1, 1, 0, {}) for peer, number in received.items()]
    base, own = model_of(99.0), model_of(NUMBERS[device])
    module = nn.ParameterDict({"weight": torch.zeros(1)})
    context = Context(module, None, torch.zeros(0), Assignment(0, device, task, KEY, base, own, messages), False)
    return mixed(context).weights["params"]["weight"].item()


# --- mixing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mixing", "by_hand"), [("metropolis", (1, 3, 5)), ("uniform", (1.5, 3, 4.5))])
def test_mixing_on_a_path(mixing, by_hand):
    """Metropolis: W_01 = W_12 = 1/3, W_00 = W_22 = 2/3, W_11 = 1/3; uniform: halves at the ends, thirds in between."""
    heard = ({1: 3.0}, {0: 0.0, 2: 6.0}, {1: 3.0})
    assert [mix_of(i, mixing, heard[i]) for i in range(3)] == pytest.approx(by_hand)


@pytest.mark.parametrize("mixing", ["metropolis", "uniform"])
def test_weights_of_missing_models_are_shared_out(mixing):
    """Only one of two neighbours came, or the other one has diverged: (0 + 3) / 2. Nobody came: the own model."""
    assert mix_of(1, mixing, {0: 0.0}) == pytest.approx(1.5)
    assert mix_of(1, mixing, {0: 0.0, 2: float("nan")}) == pytest.approx(1.5)
    assert mix_of(1, mixing, {}) == 3.0


def test_metropolis_needs_peers_that_hear_each_other():
    """In a circle of three in which each hears only the one before it, the first that is not heard back is named."""
    with pytest.raises(ConfigError, match=r"method.mixing: .* device 1 hears device 0 and not the other way round"):
        peer_task(view_of((0, 1), (1, 2), (2, 0)), LocalSGD(batch=1, lr=0.1, steps=1), "metropolis")


@pytest.mark.parametrize("method", ["dfedavg", "dpsgd"])
def test_a_graph_that_does_not_fit_is_refused_before_the_run(method):
    """Everybody hears three random others, who need not hear them."""
    scenario = digits_scenario(
        method={"name": method, "mixing": "metropolis"}, peers={"name": "random", "degree": 3}, selection="all"
    )
    with pytest.raises(ConfigError, match=r"method.mixing: metropolis needs peers that hear each other"):
        prepare(scenario)


def test_what_only_a_server_has_cannot_fail_among_peers():
    """A server that restarts."""
    restart = {"name": "server_restart", "mean_time": "3 s"}
    with pytest.raises(ConfigError, match=r"failures.0.name: server_restart needs a server, found peers"):
        prepare(digits_scenario(method="dfedavg", peers="ring", selection="all", failures=restart))


@pytest.mark.parametrize("method", ["dfedavg", "dpsgd"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"reuse": -1}, r"method.reuse"),
        ({"wait_select": "random"}, r"method.wait_select"),
        ({"mixing": "mean"}, r"method.mixing"),
    ],
)
def test_settings_out_of_range(method, setting, message):
    """Each key is named."""
    with pytest.raises(ConfigError, match=message):
        digits_scenario(method={"name": method, **setting}, peers="ring")


# --- plans ------------------------------------------------------------------------------------------------------


def test_all_neighbours_are_heard_and_awaited_ones_come_earlier():
    """Whoever is awaited is not fetched from the start too; of two that hear each other one may wait for the other."""
    view = view_of(*PATH)
    plan = peer_plan(view, KEY, peer_task(view, LocalSGD(batch=1, lr=0.1, steps=1), "uniform"), 1, "lowest_index")
    heard = [sorted((*order.inputs, *order.wait.peers)) for order in plan.orders]
    assert heard == [[1], [0, 2], [1]]
    waits = {(order.device, peer) for order in plan.orders for peer in order.wait.peers}
    assert len(waits) in (1, 2)  # device 1 is between the others in the order, or before or after both
    assert not waits & {(peer, device) for device, peer in waits}


def test_the_first_to_finish_may_be_any():
    """All neighbours are fetched from the start, and all priors are waited for until `need` of them are there."""
    view = view_of(*PATH)
    task = peer_task(view, LocalSGD(batch=1, lr=0.1, steps=1), "uniform")
    plans = [peer_plan(view, KEY.at(i), task, 1, "first_finish") for i in range(40)]
    assert all(order.inputs == tuple(view.peers.of(order.device)) for plan in plans for order in plan.orders)
    middle = {(plan.orders[1].wait.peers, plan.orders[1].wait.need) for plan in plans}
    assert middle == {((), 0), ((0,), 1), ((2,), 1), ((0, 2), 1)}


# --- training ---------------------------------------------------------------------------------------------------


def test_fully_connected_equal_peers_are_fedavg():
    """Everybody mixes the same ten models, trains as in FedAvg from their mean, and the mean is taken again."""
    same: dict[str, Any] = {
        "selection": "all",
        "partition": {"name": "iid", "samples_per_device": 40},
        "stop": {"rounds": 3},
    }
    peers = run(digits_scenario(method="dfedavg", peers="full", **same))
    server = run(digits_scenario(method="fedavg", **same))
    first = prepare(digits_scenario(**same)).learner.weights()
    for name, tensor in server.learner.weights()["params"].items():
        assert peers.learner.weights()["params"][name].numpy() == pytest.approx(tensor.numpy(), abs=1e-5)
        assert not np.allclose(first["params"][name].numpy(), tensor.numpy(), atol=1e-3)
    accuracies = [frames(each)["evals"]["accuracy"].iloc[-1] for each in (peers, server)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)


class Spied:
    """A backend that remembers what it was asked for and what it gave."""

    trains = True

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.done: dict[int, tuple[Assignment, Result]] = {}

    def train(self, assignments):
        """Let the backend train, and remember."""
        results = self._backend.train(assignments)
        self.done.update((a.job, (a, r)) for a, r in zip(assignments, results, strict=True))
        return results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def spied(**changes: Any) -> tuple[Simulation, Spied]:
    """Run real peers with a spied backend."""
    parts = assemble(digits_scenario(selection="all", partition={"name": "iid", "samples_per_device": 20}, **changes))
    backend = Spied(parts.scenario.backend.value.open(parts.make_trainer))
    simulation = Simulation(parts, backend, Silent())
    simulation.run()
    return simulation, backend


def test_fresh_models_are_those_of_this_round():
    """With everybody waiting for all before it, one more of ten messages is fresh for each device in the order."""
    method = {"name": "dfedavg", "reuse": 9}
    simulation, backend = spied(method=method, peers="full", stop={"rounds": 2})
    for round_ in (0, 1):
        jobs = range(10 * round_, 10 * round_ + 10)
        fresh = [[m.job for m in backend.done[job][0].received if m.job in jobs] for job in jobs]
        assert sorted(map(len, fresh)) == list(range(10))
    for assignment, _ in backend.done.values():
        for message in assignment.received:
            if message.job >= 0:
                assert fingerprint(message.body) == fingerprint(backend.done[message.job][1].body)
            else:
                assert fingerprint(message.body) == fingerprint(assignment.global_model)
    assert simulation.learner.model.version == 2


def test_a_device_continues_from_what_it_kept():
    """Its own model of a round is what it has in the next, and what it sent."""
    _, backend = spied(method="dfedavg", peers="ring", stop={"rounds": 2})
    for job in range(10, 20):
        own = backend.done[job][0].device_state
        assert fingerprint(own) == fingerprint(backend.done[job - 10][1].new_device_state)
        assert fingerprint(own) == fingerprint(backend.done[job - 10][1].body)
    assert all(backend.done[job][0].device_state is None for job in range(10))


def test_the_global_model_is_the_plain_mean():
    """Whatever a device holds, it counts once."""
    simulation, backend = spied(method="dfedavg", peers="ring", stop={"rounds": 1})
    bodies = [result.body["params"] for _, result in backend.done.values()]
    for name, tensor in simulation.learner.weights()["params"].items():
        assert tensor.numpy() == pytest.approx(np.mean([body[name].numpy() for body in bodies], axis=0), abs=1e-6)


@pytest.mark.parametrize("select", ["lowest_index", "first_finish"])
@pytest.mark.parametrize("phase", ["any", "upload"])
def test_peers_that_fail_stop_nobody(select, phase):
    """Devices crash and leave in every round: models still find their way."""
    simulation, _ = spied(
        method={"name": "dfedavg", "reuse": 2, "wait_select": select},
        peers={"name": "random", "degree": 3},
        stop={"rounds": 6},
        failures={"name": "crash", "probability": 0.3, "phase": phase},
        availability={"name": "sessions", "on": "20 s", "off": "5 s"},
    )
    outcomes = frames(simulation)["jobs"]["outcome"]
    assert {"ok", "crashed"} <= set(outcomes)
    assert all(bool(t.isfinite().all()) for t in simulation.learner.weights()["params"].values())


def test_timing_needs_no_training():
    """The null backend writes the same jobs."""
    changes = {"method": {"name": "dfedavg", "reuse": 2}, "peers": "ring", "selection": "all"}
    trained = frames(run(digits_scenario(**changes)))["jobs"]
    timed = frames(run(digits_scenario(backend="null", **changes)))["jobs"]
    assert trained.equals(timed)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dfedavg": {
        "mixing": "test_mixing_on_a_path",
        "reuse": "test_fresh_models_are_those_of_this_round",
        "wait_select": "test_the_first_to_finish_may_be_any",
    },
}
