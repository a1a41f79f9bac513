"""DFedAvgM against its recurrence, on paper and in a run, and increments that count once.

Source: Sun, Li and Wang (2021), algorithms 1 and 2: x_i <- x_i + sum_j W_ij Q(z_j - x_j).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.methods.dfedavgm import DFedAvgM
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import fingerprint, mixed_scenario
from tests.methods.peers_by_hand import PATH, numbers_of, row, task_of, work
from tests.methods.test_dfedavg import spied

PARAMETERS, RING_OF_TEN = 144 + 4608 + 1280 + 58, range(10)  # of the digits' CNN
EXACT = {"name": "dfedavgm", "values": "float32"}


def three(method, global_model=(0.0, 0.0, 0.0), moves=(1.0, 2.0, 4.0), rounds=2, samples=(1, 2, 1)):
    """Return the models of three peers on a path after rounds of which only the first moves them, by `moves`."""
    told, kept, models = {}, [None] * 3, []
    for round_ in range(rounds):
        task = task_of(method, PATH, round_, samples=samples)
        models, before = [], dict(told)
        for device, move in enumerate(moves):
            heard = [before[peer] for peer in (device - 1, device + 1) if peer in before]
            step = -move if round_ == 0 else 0.0
            told[device], kept[device] = work(
                method,
                task,
                device,
                row(global_model[device]),
                kept[device],
                heard,
                lambda w, s=step: torch.full_like(w, s),
            )
            models += numbers_of(told[device].own_model)
    return models


@pytest.mark.parametrize(("epochs", "expected"), [(1, 0.9), (2, 0.72), (3, 0.486)])
def test_momentum_of_a_quadratic(epochs, expected):
    """f = y^2 / 2 from 1 with lr 0.1 and momentum 0.9: 0.9, then 0.72 and 0.486. It starts anew in every round."""
    task = task_of(DFedAvgM(values="float32"), PATH, 0, lr=0.1, local_epochs=epochs)
    message, _ = work(DFedAvgM(values="float32"), task, 0, row(1.0), gradient=torch.clone)
    assert numbers_of(message.own_model) == pytest.approx([expected])
    assert numbers_of(message.body) == pytest.approx([expected - 1])


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ("samples", (5 / 3, 9 / 4, 8 / 3)),  # (1 + 2 x 2) / 3, (1 + 2 x 2 + 4) / 4, (2 x 2 + 4) / 3
        ("uniform", (3 / 2, 7 / 3, 3)),
        ("metropolis", (4 / 3, 7 / 3, 10 / 3)),  # a third from each neighbour, 2/3 of oneself at the ends
    ],
)
def test_increments_on_a_path(mixing, expected):
    """Increments 1, 2 and 4 from 0, weighed; that of device 1 with its two samples. Nobody moves after that."""
    method = DFedAvgM(mixing=mixing, values="float32")
    assert three(method) == pytest.approx(expected)
    assert three(method, rounds=5) == pytest.approx(expected)


def test_increments_do_not_bring_models_together_and_models_do():
    """0, 3 and 6 that nobody moves: by increments of nothing they stay, by Metropolis weights they become 1, 3, 5."""
    still = {"global_model": (0.0, 3.0, 6.0), "moves": (0.0, 0.0, 0.0)}
    assert three(DFedAvgM(values="float32"), **still) == [0, 3, 6]
    models = DFedAvgM(payload="model", mixing="metropolis")
    assert three(models, **still) == pytest.approx([1, 3, 5])


def test_an_increment_counts_once():
    """A peer that was away in the round before did not move then, and one that never trained never did."""
    method = DFedAvgM(mixing="uniform", values="float32")
    message, _ = work(method, task_of(method, PATH, 0), 1, row(0.0), gradient=lambda w: torch.full_like(w, -2.0))
    moved = [
        numbers_of(work(method, task_of(method, PATH, round_), 0, row(0.0), None, [heard])[0].own_model)
        for round_, heard in [
            (1, message),
            (2, message),
            (1, message._replace(job=-1, task=type(message.task)("first"))),
        ]
    ]
    assert moved == [[1.0], [0.0], [0.0]]  # half of 2; it and oneself count alike


@pytest.mark.parametrize("values", ["float16", "qsgd"])
def test_devices_know_what_others_got(values):
    """Each adds its own increment as its peers decoded it, bit for bit, and is judged by the model that this gives."""
    simulation, backend = spied(method={"name": "dfedavgm", "values": values}, peers="ring", stop={"rounds": 2})
    first = fingerprint(backend.done[0][0].global_model["params"])
    for _, result in backend.done.values():
        assert fingerprint(result.new_device_state["moved"]) == fingerprint(result.body["params"])
    own = simulation.learner.memory[0]
    judged = simulation.learner.method.personal_model({}, own)["params"]
    assert torch.equal(judged["fc1.weight"], own["params"]["fc1.weight"] + own["moved"]["fc1.weight"])
    assert fingerprint(judged) != first
    if values == "float16":
        assert torch.equal(own["moved"]["fc1.weight"], own["moved"]["fc1.weight"].half().float())


def test_the_recurrence():
    """Three rounds on a ring of ten: where each device starts follows from where all started and what all sent."""
    _, backend = spied(method={**EXACT, "mixing": "uniform"}, peers="ring", stop={"rounds": 3})
    for round_ in (1, 2):
        before = [backend.done[10 * (round_ - 1) + device][1] for device in RING_OF_TEN]
        for device in RING_OF_TEN:
            started = backend.done[10 * round_ + device][1].new_device_state["params"]["conv2.weight"].numpy()
            group = [before[(device + step) % 10].body["params"]["conv2.weight"].numpy() for step in (-1, 0, 1)]
            expected = before[device].new_device_state["params"]["conv2.weight"].numpy() + np.mean(group, axis=0)
            assert started == pytest.approx(expected, abs=1e-6)
            assert np.abs(group[1]).max() > 1e-3


def test_running_statistics_are_averaged():
    """They travel as they are: 0, 3 and 6 on a path become 1.5, 3 and 4.5, whatever the increments do."""
    method, told, kept = DFedAvgM(mixing="uniform", values="float32"), [], []
    for device in range(3):
        base = {**row(0.0), "buffers": {"w.running_var": torch.tensor([3.0 * device])}}
        message, own = work(method, task_of(method, PATH, 0), device, base)
        told.append(message)
        kept.append(own)
    seen = [
        work(method, task_of(method, PATH, 1), i, row(0.0), kept[i], [told[j] for j in heard])[0].body["buffers"]
        for i, heard in enumerate(([1], [0, 2], [1]))
    ]
    assert [each["w.running_var"].item() for each in seen] == [1.5, 3.0, 4.5]


@pytest.mark.parametrize("payload", ["increment", "model"])
def test_half_the_bytes_and_the_flops_of_fedavg(payload):
    """Two neighbours send two bytes a parameter each; training costs what plain SGD does."""
    changes = {"partition": {"name": "iid", "samples_per_device": 40}, "peers": "ring", "selection": "all"}
    jobs = [
        frames(simulate_null(mixed_scenario(method=method, backend="null", **changes)))["jobs"]
        for method in ({"name": "dfedavgm", "payload": payload}, "dfedavg")
    ]
    assert set(jobs[0]["peer_bytes"]) == {2 * 2 * PARAMETERS}
    assert jobs[0]["flops"].tolist() == jobs[1]["flops"].tolist()


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"momentum": 1.0}, "method.momentum"), ({"values": "int4"}, "method.values"), ({"bits": 2}, "method.bits")],
)
def test_settings_out_of_range(setting, message):
    """Each key is named."""
    with pytest.raises(ConfigError, match=message):
        digits_scenario(method={"name": "dfedavgm", **setting}, peers="ring")


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dfedavgm": {
        "mixing": "test_increments_on_a_path",
        "momentum": "test_momentum_of_a_quadratic",
        "payload": "test_increments_do_not_bring_models_together_and_models_do",
        "values": "test_devices_know_what_others_got",
        "bits": "test_settings_out_of_range",
    },
}
