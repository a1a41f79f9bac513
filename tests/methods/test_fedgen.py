"""FedGen against plain PyTorch with its own Adam, losses on paper and prices by hand.

Source: Zhu et al. (2021), algorithm 1, and their published code.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgesim.core.errors import ConfigError
from edgesim.core.rng import JobStream, Key
from edgesim.methods.fedgen import FedGen, shares_of_labels
from edgesim.methods.generator import Shape, diversity_loss, shape_for
from tests.conftest import digits_scenario
from tests.contracts.support import NORMED, Spy, mixed_scenario, prepare, run
from tests.methods.hand_made import setting_of
from tests.methods.plain_torch import (
    DEVICES,
    NORMED_UNITS,
    descend,
    flat,
    mean,
    network_of,
    rounds_of,
    samples_of,
    three_devices,
    weights_of,
)
from tests.methods.recorded import close_to, record
from tests.sizes import full, thinned

TRAIN = 168448 + 168448 + 150016  # FLOPs a sample of cnn_digits, whose head has 128 x 10 weights
PARAMS, FEATURES, CLASSES, NOISE, HIDDEN = 6090, 128, 10, 32, 256
GENERATOR = HIDDEN * (NOISE + CLASSES) + 3 * HIDDEN + FEATURES * HIDDEN + FEATURES + 2 * HIDDEN  # numbers sent
FORWARD = 2 * HIDDEN * (NOISE + CLASSES) + 2 * HIDDEN * FEATURES  # FLOPs a generated sample
HEAD = 2 * FEATURES * CLASSES
SMALL = {"noise": 4, "hidden": 6, "generator_steps": 3, "generator_batch": 8, "generated": 5}


def plain_generator(noise, hidden, features):
    """Return a generator as plain modules, in this order."""
    return nn.Sequential(
        nn.Linear(noise + CLASSES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
    )


def with_weights(module, tensors):
    """Return a plain generator with tensors named as they travel."""
    names = {"0": "hidden", "1": "norm", "3": "out"}
    own = {}
    for name in module.state_dict():
        place, _, kind = name.partition(".")
        found = [t for full, t in tensors.items() if full.endswith(f".{names[place]}.{kind}")]
        own[name] = found[0].clone() if found else torch.tensor(0)  # the counter of batches stays at home
    module.load_state_dict(own)
    return module


def told(generator, noise, labels):
    """Return what a plain generator makes of noise and labels."""
    return generator(torch.cat([noise, torch.eye(CLASSES)[labels]], 1))


def diversity(noise, features):
    """Return exp(-mean over pairs of |e_i - e_j|^2 |z_i - z_j|), pair by pair."""
    n = len(noise)
    pairs = [(i, j) for i in range(n) for j in range(n)]
    terms = [(noise[i] - noise[j]).pow(2).mean() * (features[i] - features[j]).abs().mean() for i, j in pairs]
    return torch.exp(-sum(terms) / n**2)


def generator_after(start, heads, counts, draws, round_):
    """Return a plain generator after three steps of torch's Adam with a rate of 3e-4 x 0.98^round."""
    adam = torch.optim.Adam(start.parameters(), lr=3e-4 * 0.98**round_, weight_decay=0.01)
    start.train()
    present = torch.tensor((counts.sum(0) > 0).astype(float))
    for _ in range(3):
        y = torch.multinomial(present, 8, replacement=True, generator=draws)
        noise = torch.randn(8, 4, generator=draws)
        z = told(start, noise, y)
        loss = diversity(noise, z)
        for k, (w, b) in enumerate(heads):
            share = torch.tensor([counts[k, label] / counts[:, label].sum() for label in y], dtype=torch.float32)
            loss = loss + (share * -(z @ w.T + b).log_softmax(1)[range(8), y]).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return start.eval(), loss.item()


def trained(job, start, generator, round_, head):
    """Return the weights after a device's steps, of its regularised loss where there is a generator."""
    network, (sgd,) = network_of(job, start), job.assignment.task.local_sgd
    draws = torch.Generator().manual_seed(job.assignment.key.at(JobStream.GENERATED).word())
    factor = 10 * 0.98**round_
    for x, y in job.batches():
        last, logits = network.get_submodule(head), network(x)
        loss = F.cross_entropy(logits, y)
        if generator:
            with torch.no_grad():
                q = last(told(generator, torch.randn(len(y), 4, generator=draws), y)).softmax(1)
            loss = loss + factor * (q * (q.log() - logits.log_softmax(1))).sum() / len(y)
            labels = torch.randint(CLASSES, (5,), generator=draws)
            with torch.no_grad():
                z = told(generator, torch.randn(5, 4, generator=draws), labels)
            loss = loss + 5 / sgd.batch * factor * F.cross_entropy(last(z), labels)
        names, params = zip(*network.named_parameters(), strict=True)
        descend(network, dict(zip(names, torch.autograd.grad(loss, params), strict=True)), sgd.lr)
    return weights_of(network)


@pytest.mark.parametrize(
    ("model", "head"), thinned([("cnn_digits", "fc1"), (NORMED_UNITS, "fc2")], [(NORMED_UNITS, "fc2")])
)
def test_three_rounds_in_plain_torch(monkeypatch, model, head):
    """Models of devices, their mean, the generator with its running statistics, and the loss of its last step."""
    jobs = record(monkeypatch)
    # so small a rate that ten times a loss leads to no chaos
    changes = {"model": model, "training": {"batch": 64, "lr": 0.005, "local_epochs": 2}}
    simulation = prepare(three_devices({"name": "fedgen", **SMALL}, **changes))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    counts = simulation.parts.setting.labels
    learner = simulation.learner
    features = jobs[0].assignment.global_model["params"][f"{head}.weight"].shape[1]
    x = flat(jobs[0].assignment.global_model)
    first = Shape(4, CLASSES, 6, features, head).first(Key(learner.state["seed"]))
    generator, losses, there = plain_generator(4, 6, features), [], False
    with_weights(generator, {f"generator.{head}.{name}": t for name, t in first.state_dict().items()}).eval()
    for number, round_ in enumerate(rounds_of(jobs)):
        models = [trained(job, x, generator if there else None, number, head) for job in round_]
        for job, found in zip(round_, models, strict=True):
            close_to(flat(job.result.body), found, atol=2e-5)
        x = mean(models, [samples_of(job) for job in round_])
        heads = [(m[f"{head}.weight"], m[f"{head}.bias"]) for m in models]
        draws = torch.Generator().manual_seed(spy.rounds[number][-1].at(0).word())
        generator, loss = generator_after(generator, heads, counts, draws, number)
        losses.append(loss)
        there = True
    close_to(flat(learner.weights()), x, atol=2e-5)
    own = with_weights(plain_generator(4, 6, features), learner.weights()["tensors"])
    expected = {n: t for n, t in generator.state_dict().items() if "tracked" not in n}
    close_to({n: t for n, t in own.state_dict().items() if n in expected}, expected, atol=1e-4)
    metrics = simulation.tables["metrics"].frame().query("name == 'generator_loss'")["value"]
    assert metrics.tolist() == pytest.approx(losses, rel=1e-3)
    assert len(jobs) == 3 * DEVICES


def test_diversity_on_paper():
    """Two samples: noise apart by 1 and 3, so 5 in the mean square; features by 2 in the mean: e^(-5 x 2 x 2 / 4)."""
    noise, features = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0, 1.0], [1.0, -2.0]])
    assert diversity_loss(noise, features).item() == pytest.approx(math.exp(-5))


def test_shares_of_labels():
    """30 and 10 of a label are 3/4 and 1/4; of one that nobody has, none."""
    assert shares_of_labels(np.array([[30, 0, 2], [10, 0, 0]])).tolist() == [[0.75, 0, 1], [0.25, 0, 0]]


def drawn(labels, counts):
    """Return how often each label is drawn in 40 batches of 32."""
    draws, method = torch.Generator().manual_seed(1), FedGen(labels=labels)
    found = torch.cat([method._drawn(np.array(counts), draws)[0] for _ in range(40)])
    return np.bincount(found.numpy(), minlength=len(counts[0]))


def test_labels_of_batches():
    """Of 1,280 each of the two labels that there are in half, or 90 : 10, within 5 sigma."""
    counts = [[50, 0, 10], [40, 0, 0]]
    for labels, share in (("uniform", 0.5), ("counts", 0.9)):
        found = drawn(labels, counts)
        assert found[1] == 0
        assert abs(found[0] - 1280 * share) < 5 * math.sqrt(1280 * share * (1 - share))


@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_bytes(model):
    """The first round is FedAvg's with 10 counts of 4 bytes; then the generator comes down too."""
    jobs = run(mixed_scenario(method="fedgen", model=model)).tables["jobs"].frame()
    numbers, features = (PARAMS, FEATURES) if model == "cnn_digits" else (418 + 8, 36)
    sent = HIDDEN * (NOISE + CLASSES) + 3 * HIDDEN + features * HIDDEN + features + 2 * HIDDEN
    assert set(jobs["up_bytes"]) == {4 * numbers + 40}
    assert set(jobs[jobs["round"] == 0]["down_bytes"]) == {4 * numbers}
    assert set(jobs[jobs["round"] == 1]["down_bytes"]) == {4 * (numbers + sent)}


@pytest.mark.parametrize(("alpha", "beta"), [(10, 10), (0, 10), (10, 0), (0, 0)])
def test_work(alpha, beta):
    """40 samples, of each batch as many features and answers; in 3 steps 32 each, which the head also learns from."""
    method = {"name": "fedgen", "alpha": alpha, "beta": beta}
    jobs = run(mixed_scenario(method=method)).tables["jobs"].frame()
    more = 40 * (FORWARD + HEAD) * (beta > 0) + 3 * 32 * (FORWARD + 2 * HEAD) * (alpha > 0)
    assert set(jobs[jobs["round"] == 0]["flops"]) == {40 * TRAIN}
    assert set(jobs[jobs["round"] == 1]["flops"]) == {40 * TRAIN + more}


@full
def test_the_server_pays_for_its_training():
    """Six heads; a step takes forward, both gradients of the last layer and one of the first, of 32 samples.

    Beside 2 FLOPs for each number that is averaged; at 1 GFLOP/s.
    """
    server = {"flops_per_s": "1 GFLOP/s"}
    simulation = run(mixed_scenario(method="fedgen", server=server, protocol={"name": "sync"}))
    of_generator = FORWARD + 2 * HIDDEN * (NOISE + CLASSES) + 2 * 2 * HIDDEN * FEATURES
    flops = 50 * 32 * (of_generator + 6 * 2 * HEAD) + 6 * 2 * PARAMS
    assert simulation.tables["rounds"].frame()["server_s"].tolist() == pytest.approx([flops / 1e9] * 2)


@full
def test_with_both_factors_at_0_it_is_fedavg():
    """Up to rounding: every device's model and the mean."""
    weights = [
        run(mixed_scenario(method=method)).learner.weights()
        for method in ("fedavg", {"name": "fedgen", "alpha": 0, "beta": 0})
    ]
    close_to(flat(weights[1]), flat(weights[0]))


def test_factors_end_above_0():
    """10 x 0.5^30 is less than 1e-4; what is 0 stays 0."""

    class AtRound:
        def __init__(self, setting, round_):
            self.setting, self.round = setting, round_

    method, setting = FedGen(decay=0.5, beta=0.0), prepare(mixed_scenario(method="fedgen")).parts.setting
    view = AtRound(setting, 3)
    plain = super(FedGen, method).task(view)
    assert method._regularised(plain, view, 40).config == {"alpha": 1.25, "beta": 0.0}
    assert method._regularised(plain, AtRound(setting, 30), 40).config == {"alpha": 1e-4, "beta": 0.0}


def test_a_generator_s_tensors():
    """Declared shapes are those of the module, by name; and say what the shape was."""
    shape = Shape(4, 3, 6, 5, "block.fc")
    module = shape.first(Key(0))
    own = {f"generator.block.fc.{n}": tuple(t.shape) for n, t in module.state_dict().items() if "tracked" not in n}
    assert {spec.name: spec.shape for spec in shape.specs} == own
    assert Shape.of(shape.specs, 4) == shape


@pytest.mark.parametrize(
    ("key", "value"),
    [("alpha", -1), ("decay", 0), ("generator_batch", 1), ("labels", "all"), ("noise", 0), ("generator_lr", 0)],
)
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedgen", key: value})


def test_networks_that_do_not_fit():
    """One layer alone has no features; a last layer that gives more than logits is none."""
    with pytest.raises(ConfigError, match=r"model\.name: mlr ends in fc1"):
        run(mixed_scenario(method="fedgen", model="mlr"))
    with pytest.raises(ConfigError, match=r"model\.name: by hand ends in b"):
        shape_for(setting_of((1,), {"a": 3, "b": 5}).cost_profile, 1, 1)


def test_the_null_backend_is_refused():
    with pytest.raises(ConfigError, match="null"):
        run(mixed_scenario(method="fedgen", backend="null"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedgen": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "alpha": "test_work",
        "beta": "test_work",
        "decay": "test_factors_end_above_0",
        "generated": "test_three_rounds_in_plain_torch",
        "generator_steps": "test_three_rounds_in_plain_torch",
        "generator_batch": "test_three_rounds_in_plain_torch",
        "generator_lr": "test_three_rounds_in_plain_torch",
        "generator_weight_decay": "test_three_rounds_in_plain_torch",
        "diversity": "test_three_rounds_in_plain_torch",
        "labels": "test_labels_of_batches",
        "noise": "test_three_rounds_in_plain_torch",
        "hidden": "test_three_rounds_in_plain_torch",
    },
}
