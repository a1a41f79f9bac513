"""The sandwich rule against functions of PyTorch on slices cut by hand, and its prices on paper.

Source: Yu and Huang (2019), algorithm 1. What SlimFL shares with it is tried here too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.methods.us_nets import USNets, narrower_ranks
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.recorded import close_to, record
from tests.methods.test_fjord import tiers
from tests.sizes import full, sized, spread

QUARTERS = (0.25, 0.5, 0.75, 1.0)
US_NETS = {"name": "us_nets", "widths": list(QUARTERS), "random_widths": 1}


# --- draws ------------------------------------------------------------------------------------------------------


def test_widths_of_a_step():
    """The narrowest always, and two distinct ones of ranks 2 to 5, each in half of 2000 steps; never the widest."""
    ranks = narrower_ranks(7, 6, 2000, 2)
    assert ranks.shape == (2000, 3)
    assert set(ranks[:, 2]) == {1}
    assert (ranks[:, 0] != ranks[:, 1]).all()
    counts = np.bincount(ranks[:, :2].flatten(), minlength=7)
    assert counts[2:6] == pytest.approx([1000] * 4, abs=4 * math.sqrt(2000 / 4))
    assert counts.sum() == counts[2:6].sum()


@pytest.mark.parametrize(
    ("largest", "between", "a_step"), [(1, 2, 0), (2, 2, 1), (3, 2, 2), (4, 2, 3), (4, 0, 1), (4, 9, 3)]
)
def test_as_many_as_there_are(largest, between, a_step):
    """Of one width only the widest is trained, of two the narrowest too."""
    assert narrower_ranks(1, largest, 5, between).shape == (5, a_step)


def test_everybody_may_have_the_whole_model():
    assert tiers(5, USNets()) == [7] * 5
    assert sorted(tiers(4, USNets(widths=(0.5, 1.0), tiers="random"))) == [1, 1, 2, 2]


# --- training ---------------------------------------------------------------------------------------------------


def logits_at(w, x, width):
    """Return what the first units of the digits' CNN say; a channel has 2 x 2 inputs of the last layer."""
    p, q = math.ceil(16 * width), math.ceil(32 * width)
    x = F.relu(F.max_pool2d(F.conv2d(x, w["conv1.weight"][:p], w["conv1.bias"][:p], padding=1), 2))
    x = F.relu(F.max_pool2d(F.conv2d(x, w["conv2.weight"][:q, :p], w["conv2.bias"][:q], padding=1), 2))
    return F.linear(x.flatten(1), w["fc1.weight"][:, : 4 * q], w["fc1.bias"])


def trained(job, widths, ranks, distill, factors=(1.0, 1.0)):
    """Return the parameters that a device of the whole model ends with, by plain SGD in slices."""
    w = {name: tensor.clone().requires_grad_() for name, tensor in job.assignment.global_model["params"].items()}
    for (x, y), narrower in zip(job.batches(), ranks, strict=True):
        whole = logits_at(w, x, 1.0)
        loss = factors[1] * F.cross_entropy(whole, y)
        told = torch.exp(whole.detach()) / torch.exp(whole.detach()).sum(1, keepdim=True)
        for rank in narrower:
            said = torch.log_softmax(logits_at(w, x, widths[rank - 1]), 1)
            loss = loss - factors[0] * ((told * said).sum(1) if distill else said[range(len(y)), y]).mean()
        grads = torch.autograd.grad(loss, list(w.values()))
        w = {n: (t - 0.1 * g).detach().requires_grad_() for (n, t), g in zip(w.items(), grads, strict=True)}
    return {name: tensor.detach() for name, tensor in w.items()}


@pytest.mark.parametrize(
    ("method", "factors", "distill"),
    spread(
        [
            (method, factors, distill)
            for method, factors in (
                (US_NETS, (1.0, 1.0)),
                ({**US_NETS, "random_widths": 2}, (1.0, 1.0)),
                ({"name": "slimfl"}, (0.5, 0.5)),
                ({"name": "slimfl", "weights": [0.25, 0.75]}, (0.25, 0.75)),
            )
            for distill in (True, False)
        ],
        1,
    ),
)
def test_a_device_s_steps(method, factors, distill, monkeypatch):
    """All slices of a step, of one set of weights; the widest on labels, the others on what it says or on labels."""
    seen = record(monkeypatch)
    scenario = {
        "partition": {"name": "dirichlet_label", "beta": 1},
        "training": {"batch": 16, "lr": 0.1, "local_epochs": sized(1, 2, 2)},
    }
    run(mixed_scenario(method={**method, "distill": distill}, **scenario))
    widths, between = method.get("widths", [0.5, 1.0]), method.get("random_widths", 0)
    for job in seen:
        steps = len(list(job.batches()))
        ranks = narrower_ranks(int(job.assignment.task.config["seed"]), len(widths), steps, between).tolist()
        close_to(job.result.body["params"], trained(job, widths, ranks, distill, factors), atol=5e-6)
    assert len(seen) == 12


@pytest.mark.parametrize("name", ["us_nets", "slimfl"])
@pytest.mark.parametrize("model", ["cnn_digits", "mlr"])
def test_the_only_width_is_fedavg(name, model):
    """The whole model at every step, also of a network that has no unit to leave out."""
    weights = [
        run(mixed_scenario(method=method, model=model)).learner.weights()["params"]
        for method in ("fedavg", {"name": name, "widths": [1.0]})
    ]
    close_to(weights[1], dict(weights[0]), atol=1e-6)


@full
def test_the_same_seed_gives_the_same_run():
    prints = [fingerprint(run(mixed_scenario(method=US_NETS, seed=seed)).learner.weights()) for seed in (3, 3, 4)]
    assert prints[0] == prints[1] != prints[2]


# --- prices -----------------------------------------------------------------------------------------------------


def step_flops(width):
    """Return the FLOPs a sample of a step of the digits' CNN: forward and weight gradient, and input gradients but for
    the first layer's; 9 weights a kernel on 8 x 8 and 4 x 4 maps, 10 outputs of 4 inputs a channel.
    """
    p, q = math.ceil(16 * width), math.ceil(32 * width)
    return 2 * 2 * 9 * p * 64 + 3 * 2 * 9 * p * q * 16 + 3 * 2 * 10 * 4 * q


def test_work_of_a_device(monkeypatch):
    """40 samples in steps of 16, 16 and 8: the whole, a quarter, and what was drawn between. Bytes are FedAvg's."""
    seen = record(monkeypatch)
    jobs = frames(run(mixed_scenario(method=US_NETS)))["jobs"].set_index("job")
    for job in seen:
        ranks = narrower_ranks(int(job.assignment.task.config["seed"]), 4, 3, 1).tolist()
        flops = sum(
            samples * (step_flops(1.0) + sum(step_flops(QUARTERS[rank - 1]) for rank in narrower))
            for samples, narrower in zip((16, 16, 8), ranks, strict=True)
        )
        assert jobs.loc[job.assignment.job, "flops"] == flops
    assert set(jobs["up_bytes"]) == set(jobs["down_bytes"]) == {4 * 6090}


def test_work_of_tiers():
    """Level 1 has a quarter and nothing narrower, level 2 a half and a quarter, level 3 the whole and both."""
    method = {"name": "us_nets", "widths": [0.25, 0.5, 1.0], "tiers": "level"}
    jobs = frames(simulate_null(mixed_scenario(method=method, backend="null", stop={"rounds": 1})))["jobs"]
    quarter, half, whole = (40 * step_flops(width) for width in (0.25, 0.5, 1.0))
    done = {1: quarter, 2: half + quarter, 3: whole + half + quarter}
    assert jobs.sort_values("device")["flops"].tolist() == [done[level] for level in (1, 1, 2, 2, 3, 3)]
    assert jobs.sort_values("device")["up_bytes"].tolist()[:2] == [4 * (40 + 4 * 9 * 8 + 8 + 32 * 10 + 10)] * 2


@pytest.mark.parametrize("changes", spread([{"distill": False, "random_widths": 0}, {"tiers": "random"}, {}], 1))
@pytest.mark.parametrize("model", spread(["cnn_digits", NORMED], 1))
def test_charged_is_what_was_done(model, changes, monkeypatch):
    jobs = measured_jobs(mixed_scenario(method={**US_NETS, **changes}, model=model), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


@pytest.mark.parametrize(
    ("wrong", "key"),
    [({"random_widths": -1}, "random_widths"), ({"tiers": "none"}, "tiers"), ({"widths": [2]}, "widths")],
)
def test_settings_out_of_range(wrong, key):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "us_nets", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "us_nets": {
        "absent": "test_fjord.py::test_rings_are_averaged_over_who_has_them",
        "widths": "test_work_of_a_device",
        "tiers": "test_everybody_may_have_the_whole_model",
        "channels": "test_fjord.py::test_units_of_several_layers",
        "distill": "test_a_device_s_steps",
        "random_widths": "test_widths_of_a_step",
    },
}
