"""FedDIP against a loop over devices in plain PyTorch, its schedules and prices on paper.

Source: Long et al. (2023) and their published code.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.submodel import masks
from edgesim.methods.feddip import FedDIP, largest_of_all
from tests.conftest import digits_scenario, frames
from tests.contracts.support import Spy, fingerprint, mixed_scenario, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, setting_of
from tests.methods.recorded import close_to, record
from tests.sizes import full, spread

SMALL = {"name": "feddip", "sparsity": 0.8, "rounds": 4, "interval": 2, "lam_max": 0.02, "lam_steps": 3}
# The digits' CNN: weights, FLOPs a sample of forward and input gradient, and of the weight gradient, by arithmetic:
# 16 kernels of 9 on 8 x 8 images, 32 of 144 on 4 x 4 maps, and 10 outputs of 128 inputs.
WEIGHTS = {"conv1": 144, "conv2": 4608, "fc1": 1280}
NOT_WEIGHT_GRADIENT = {"conv1": 2 * 144 * 64, "conv2": 2 * 2 * 4608 * 16, "fc1": 2 * 2 * 1280}
WEIGHT_GRADIENT = {"conv1": 2 * 144 * 64, "conv2": 2 * 4608 * 16, "fc1": 2 * 1280}
BIASES = 58


@pytest.mark.parametrize(("t", "share"), [(0, 0.5), (250, 0.73125), (500, 0.85), (1000, 0.9), (1500, 0.9)])
def test_share_that_is_pruned(t, share):
    """0.9 - 0.4 (1 - t / 1000)^3: (3/4)^3 = 0.421875, (1/2)^3 = 0.125."""
    assert FedDIP().share(t) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(("t", "part"), [(0, 0), (49, 0), (50, 1), (500, 10), (949, 18), (950, 19), (2000, 19)])
def test_penalty_rises_in_steps(t, part):
    """20 parts of 50 rounds; 0.001 in the last."""
    assert FedDIP().penalty(t) == pytest.approx(0.001 * part / 19, abs=1e-15)


def test_the_smallest_of_all_layers_go():
    """Of 7 weights a share of 0.5 goes, 3.5, rounded to the even 4: 0.1, -0.2, 0.3 and 0.5 of whatever layer."""
    params = {"a": torch.tensor([[0.1, -3.0], [0.5, 2.0]]), "b": torch.tensor([[0.3, -0.2, 0.6]])}
    found = largest_of_all(params, ["a", "b"], 0.5)
    assert {name: mask.int().tolist() for name, mask in found.items()} == {"a": [[0, 1], [0, 1]], "b": [[0, 0, 1]]}


def trained(job, start, mask, lam, feedback):
    """Return the parameters that a device ends with, by a plain loop in which pruned copies give the gradients."""
    w = {name: tensor.clone() for name, tensor in start.items()}
    for x, y in job.batches():
        network = job.network({"params": {name: tensor * mask.get(name, 1) for name, tensor in w.items()}})
        named = dict(network.named_parameters())
        loss = F.cross_entropy(network(x), y) + lam * sum(named[name].square().sum().sqrt() for name in mask)
        for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            w[name] -= 0.1 * (gradient if feedback else gradient * mask.get(name, 1))
    return w


@pytest.mark.parametrize("regrowth", spread([True, False], 1))
def test_five_rounds_by_hand(regrowth, monkeypatch):
    """Prunings of shares 0.5, 0.8 - 0.3 / 8 and 0.8 after rounds 0, 2 and 4; lambda is 0, 0, 0.01, 0.02, 0.02."""
    seen = record(monkeypatch)
    scenario = mixed_scenario(
        method={**SMALL, "regrowth": regrowth}, partition={"name": "dirichlet_label", "beta": 1}, stop={"rounds": 5}
    )
    simulation = prepare(scenario)
    w = simulation.learner.weights()["params"]
    simulation.run()
    counts = {f"{layer}.weight": count for layer, count in seen[0].assignment.task.submodel.nnz}
    assert sum(counts.values()) == 3016  # half of all 6032
    shapes = {name: tuple(w[name].shape) for name in counts}
    mask = masks.at_random(shapes, counts, Key(int(seen[0].assignment.task.config["seed"])))
    for round_, lam in enumerate([0, 0, 0.01, 0.02, 0.02]):
        jobs = seen[6 * round_ : 6 * round_ + 6]
        feedback = round_ == 0 or (regrowth and round_ in (2, 4))
        models = [trained(job, w, mask, lam, feedback) for job in jobs]
        for job, model in zip(jobs, models, strict=True):
            close_to(job.result.body["params"], model)
        sizes = [len(job.trainer.shards[job.assignment.device]) for job in jobs]
        w = {n: sum(k * m[n] for k, m in zip(sizes, models, strict=True)) / sum(sizes) for n in w}
        if round_ in (0, 2, 4):
            left = 6032 - round(6032 * {0: 0.5, 2: 0.7625, 4: 0.8}[round_])
            candidates = w if regrowth or round_ == 0 else {n: t * mask.get(n, 1) for n, t in w.items()}
            least = torch.cat([candidates[n].abs().flatten() for n in mask]).sort(descending=True).values[left - 1]
            mask = {n: candidates[n].abs() >= least for n in mask}
        w = {name: tensor * mask.get(name, 1) for name, tensor in w.items()}
    close_to(simulation.learner.weights()["params"], w)
    density = frames(simulation)["metrics"].query("name == 'density'")["value"].tolist()
    kept = [3016, 3016, 6032 - 4599, 6032 - 4599, 6032 - 4826]
    assert density == pytest.approx([count / 6032 for count in kept])


@full
def test_what_was_pruned_may_come_back():
    """Under one sparsity all along: with feedback some weights do, without it the mask stays."""
    back = {}
    for regrowth in (True, False):
        method = {**SMALL, "sparsity": 0.5, "interval": 1, "regrowth": regrowth}
        simulation = prepare(mixed_scenario(method=method, training={"lr": 0.3, "local_epochs": 4}, stop={"rounds": 4}))
        spy = simulation.learner.method = Spy(simulation.learner.method)
        simulation.run()
        found = [masks.masks_in(merge[1]) for merge in spy.rounds[1:]]
        back[regrowth] = sum(int((new[n] & ~old[n]).sum()) for old, new in itertools.pairwise(found) for n in new)
        for _, old, got, *_ in spy.rounds[1:]:
            sent = [update.body for update in got if update.task.name == "train"]
            for model in (old, *sent):
                held = masks.masks_in(old)
                assert all(float(model["params"][n][~mask].abs().sum()) == 0 for n, mask in held.items())
    assert back[True] > 0 == back[False]


def test_nothing_pruned_and_no_penalty_is_fedavg():
    """The same bits."""
    nothing = {"name": "feddip", "sparsity": 0, "initial_sparsity": 0, "lam_max": 0}
    scenario = {"partition": {"name": "dirichlet_label", "beta": 1}, "training": {"lr": 0.1, "momentum": 0.5}}
    plain, whole = (run(mixed_scenario(method=m, **scenario)).learner.weights() for m in ("fedavg", nothing))
    assert fingerprint(masks.without_masks(whole)) == fingerprint(dict(plain))


@pytest.mark.parametrize(("regrowth", "bitmap"), [(True, "changed"), (False, "changed"), (True, "always")])
def test_what_is_charged(regrowth, bitmap):
    """Round 0: all of the model both ways. Later what the mask keeps comes down, with a bit a weight in the round after
    a pruning; all goes up before a pruning with feedback. Where all gradients are taken, those of pruned weights have
    their price. The penalty is 4 FLOPs a parameter and step from the third round on, in 3 steps of 16, 16 and 8.
    """
    scenario = mixed_scenario(
        method={**SMALL, "regrowth": regrowth, "bitmap": bitmap},
        cost={"name": "measured", "sparse": "ideal"},
        encoding={"up": {"zeros": "bitmap"}, "down": {"zeros": "bitmap"}},
        stop={"rounds": 5},
    )
    simulation = prepare(scenario)
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    jobs = frames(simulation)["jobs"]
    whole, bits = 4 * (sum(WEIGHTS.values()) + BIASES), math.ceil(sum(WEIGHTS.values()) / 8)
    for round_, (state, *_) in enumerate(spy.rounds):
        nonzero, found = state["nonzero"], jobs[jobs["round"] == round_]
        values = 4 * (sum(nonzero.values()) + BIASES)
        feedback = round_ == 0 or (regrowth and round_ in (2, 4))
        told = round_ in (1, 3) or bitmap == "always"
        assert set(found["down_bytes"]) == {whole if round_ == 0 else values + bits * told}
        assert set(found["up_bytes"]) == {whole if feedback else values}
        flops = 3 * 4 * 6090 * (round_ >= 2)
        for layer, weights in WEIGHTS.items():
            density = nonzero[layer] / weights
            flops += 40 * (NOT_WEIGHT_GRADIENT[layer] * density + WEIGHT_GRADIENT[layer] * (1 if feedback else density))
        assert found["flops"].tolist() == pytest.approx([flops] * 6)


@pytest.mark.parametrize("regrowth", [True, False])
def test_charged_is_what_was_done(regrowth, monkeypatch):
    """On hardware that multiplies zeros like any number, by PyTorch's counter."""
    scenario = mixed_scenario(method={**SMALL, "regrowth": regrowth, "interval": 1}, stop={"rounds": 3})
    jobs = measured_jobs(scenario, monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


@pytest.mark.parametrize(
    "wrong",
    [{"sparsity": 1}, {"initial_sparsity": -0.1}, {"rounds": 0}, {"interval": 0}, {"lam_max": -1}, {"lam_steps": 1}],
)
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "feddip", **wrong})


def test_it_does_not_get_denser():
    message = r"method\.initial_sparsity: must be at most method\.sparsity, 0\.4; found 0\.5"
    with pytest.raises(ConfigError, match=message):
        prepare(digits_scenario(method={"name": "feddip", "sparsity": 0.4}))


def test_a_model_without_weights():
    with pytest.raises(ConfigError, match=r"model\.name: by hand has no tensor of two dimensions or more"):
        FedDIP().init(setting_of((1,), {"w": 1}), KEY)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddip": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "sparsity": "test_share_that_is_pruned",
        "initial_sparsity": "test_it_does_not_get_denser",
        "rounds": "test_share_that_is_pruned",
        "interval": "test_five_rounds_by_hand",
        "lam_max": "test_five_rounds_by_hand",
        "lam_steps": "test_penalty_rises_in_steps",
        "regrowth": "test_what_was_pruned_may_come_back",
        "bitmap": "test_what_is_charged",
    },
}
