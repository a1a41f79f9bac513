"""Devices trained in one stacked call get what they get alone, within rounding; what cannot be stacked is told."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import edgesim
from edgesim.config.plugins import plugins_of
from edgesim.core.backend import CHUNK
from edgesim.core.rng import Key
from edgesim.learning.models.build import build_model
from edgesim.learning.models.seeding import Stream, seeded
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.cohort import Cohort
from edgesim.learning.train.probe import DEVICES, SAMPLES, probed
from edgesim.learning.train.stacked import LinearStep, StackedNetwork, run_stacked_sgd
from edgesim.learning.train.trainer import Trainer
from tests.conftest import digits_scenario
from tests.contracts.support import prepare
from tests.kinks import without_kinks
from tests.sizes import full, spread, thinned

CLOSE = 1e-5  # of the largest number: the tolerance that docs/howto/speed.md states for a round
PARTS = {
    "model": ["cnn_digits", "tests.plugins.networks:Grouped", "tests.plugins.networks:NormedUnits"],
    "steps": [{"momentum": 0.9}, {"weight_decay": 0.01}, {"clip_norm": 0.1}, {"momentum": 0.5, "clip_norm": 0.5}]
    + [{"momentum": 0.9, "nesterov": True}, {"optimizer": "adamw", "eps": 0.1, "weight_decay": 0.01}]
    + [{"shuffle": False}],
}
TEXT_MODELS = [
    {"name": "lstm_char", "hidden": 12, "layers": 1},
    {"name": "transformer_char", "layers": 2, "width": 12, "heads": 3},
]
SAYS = "backend.name: cohort trains one by one, as it cannot be stacked"
UNEVEN = {"name": "dirichlet_label", "beta": 0.5}
COHORT = {"name": "cohort", "workers": 1}
COHORTS = {"name": "cohort", "workers": 2}


def after(scenario: edgesim.Scenario):
    """Return the weights of a scenario that has run, by name, and why what was trained alone."""
    simulation = prepare(scenario)
    simulation.run()
    backend = simulation.learner.backend
    backend.close()
    model = simulation.learner.weights()
    return {name: t for kind in ("params", "buffers") for name, t in model[kind].items()}, backend.warnings


def differs(one, other) -> float:
    """Return how far weights lie apart at most, of the largest number of a tensor."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).abs().max() / one[n].abs().max().clamp(min=1e-6)) for n in one)


def both(backend=COHORT, **changes):
    """Return the weights by serial and by cohort of a scenario, and why what was trained alone."""
    base = {"partition": UNEVEN, "stop": {"rounds": 1}, "selection": "all", **changes}
    alone, _ = after(digits_scenario(**base, backend="serial"))
    together, why = after(digits_scenario(**base, backend=backend))
    return alone, together, list(why)


def stacked(**changes):
    """Return the weights by serial and by cohort, every job of which was stacked; rounding alone can part them.

    A stack may be of one, where a network knows its batch and nobody else has as many samples.
    """
    sizes, one_by_one, really_run = [], [], Trainer.run

    def counted(jobs, *args):
        sizes.append(len(jobs))
        run_stacked_sgd(jobs, *args)

    def noted(trainer, assignment):
        one_by_one.append(assignment.device)
        return really_run(trainer, assignment)

    with pytest.MonkeyPatch.context() as patch:
        without_kinks(patch)
        patch.setattr("edgesim.learning.train.cohort.run_stacked_sgd", counted)
        patch.setattr(Trainer, "run", noted)
        alone, together, why = both(**changes)
    assert why == []
    assert sum(sizes) == len(one_by_one) > 1  # those of serial, and none of the cohort's
    return alone, together


@pytest.mark.parametrize("model", spread(PARTS["model"], 1))
def test_uneven_devices_get_what_they_get_alone(model):
    """Devices with unequal data, whose batches and steps differ, on networks with and without statistics."""
    alone, together = stacked(model=model, training={"local_epochs": 3, "batch": 8, "lr": 0.1})
    assert differs(alone, together) < CLOSE


@pytest.mark.parametrize("model", thinned(TEXT_MODELS, TEXT_MODELS[-1:]), ids=lambda model: model["name"])
def test_readers_of_text_are_stacked_too(model):
    """Tables of tokens and positions, attention and normalisation are each device's own."""
    data = {"name": "markov_text", "users": 4, "samples_per_user": 20, "letters": 5, "length": 8}
    phones = [{"count": 4, "cpu": {"flops_per_s": "20 MFLOP/s"}}]
    text = {"data": data, "objective": "next_token", "partition": "by_column", "fleet": phones}
    alone, together = stacked(**text, model=model, training={"local_epochs": 2, "batch": 8, "lr": 0.5})
    assert differs(alone, together) < CLOSE


@pytest.mark.parametrize("settings", spread(PARTS["steps"], 1))
def test_all_settings_of_sgd(settings):
    """Momentum, weight decay and clipping are each device's own."""
    alone, together = stacked(training={"local_epochs": 2, "batch": 8, "lr": 0.1, **settings})
    assert differs(alone, together) < CLOSE
    assert differs(alone, stacked(training={"local_epochs": 2, "batch": 8, "lr": 0.1})[1]) > 100 * CLOSE


@pytest.mark.parametrize("model", thinned(["cnn_digits", "fcnn"], ["fcnn"]))
def test_calls_of_any_size_and_processes(model):
    """How many devices share a call changes rounding alone; equal settings give equal bits."""
    base = {"model": model, "partition": UNEVEN, "stop": {"rounds": 2}, "selection": "all"}
    runs = [
        after(digits_scenario(**base, backend={"name": "cohort", "size": size, "workers": workers}))[0]
        for size, workers in ((100, 1), (2, 1), (3, 2), (3, 2))
    ]
    assert all(differs(runs[0], other) < CLOSE for other in runs[1:])
    assert all(torch.equal(runs[2][name], runs[3][name]) for name in runs[2])


@pytest.mark.parametrize(("method", "buffer"), [("fedbuff", 2), ("fedasync", 1)])
def test_who_trains_together_does_not_depend_on_who_waits(method, buffer):
    """A run that needs each score before it goes on, for a target, gets the bits of one that simulates far ahead.

    The latter has the jobs of several aggregations ready at a time, as devices start from older models.
    """
    phones = [{"count": 3, "cpu": {"flops_per_s": f"{speed} MFLOP/s"}} for speed in (20, 50)]
    protocol = {"name": "buffered", "concurrency": 4, "buffer": buffer}
    base = {"method": method, "protocol": protocol, "partition": UNEVEN, "fleet": phones, "backend": COHORTS}
    ahead, _ = after(digits_scenario(**base, stop={"rounds": 6}))
    waiting, _ = after(digits_scenario(**base, stop={"rounds": 6, "accuracy": 0.999}))
    assert all(torch.equal(ahead[name], waiting[name]) for name in ahead)


@full
def test_processes_train_what_cannot_be_stacked():
    """Each trains its share alone, bit for bit as serial does, and says why; what devices keep comes back too."""
    for changes, says in (
        ({"model": "tests.plugins.networks:TinyNorm", "stop": {"rounds": 2}}, "the network: it draws random numbers"),
        ({"method": "moon", "stop": {"rounds": 2}}, "the method: its devices take other gradients"),
    ):
        alone, together, why = both(COHORTS, **changes)
        assert differs(alone, together) == 0.0
        assert [each.startswith(f"{SAYS}: {says}") for each in why] == [True]


def test_an_error_in_a_process_is_raised_here():
    """A model that a device cannot load ends the run with what went wrong, and no process is left."""
    before = multiprocessing.active_children()  # that another test started, and Python has not collected yet
    simulation = prepare(digits_scenario(backend=COHORTS))
    backend = simulation.learner.backend
    broken = {"params": {"nobody": torch.zeros(1)}, "buffers": {}}
    with pytest.raises(KeyError):
        backend.evaluate(broken)
    started = set(multiprocessing.active_children()) - set(before)
    assert len(started) == 2
    backend.close()
    assert started.isdisjoint(multiprocessing.active_children())


@pytest.mark.parametrize("workers", [1, 3])
def test_scores_are_of_the_chunks_that_serial_scores(workers):
    """Hits and samples of all chunks, the last one short, whoever computes them; in a second test as in the first."""
    backend = {"name": "cohort", "workers": workers}
    simulation = prepare(digits_scenario(backend=backend, model="cnn_digits"))
    simulation.run()
    model = simulation.learner.weights()
    found = [simulation.learner.backend.evaluate(model)["test"] for _ in range(2)]
    simulation.learner.backend.close()
    trainer = simulation.parts.make_trainer("cpu")
    assert len(trainer.test_rows) % CHUNK
    chunks = range(trainer.chunks())
    apart, together = trainer.score_chunks(model, chunks), Cohort(trainer, 1).score_chunks(model, chunks)
    assert [each[1:] for each in together] == [each[1:] for each in apart]
    assert [each.loss for each in together] == pytest.approx([each.loss for each in apart], rel=CLOSE)
    alone = trainer.total(trainer.score_chunks(model, range(trainer.chunks())))
    assert found[0] == found[1]
    assert found[0]._replace(loss=0) == alone._replace(loss=0)
    assert found[0].loss == pytest.approx(alone.loss, rel=CLOSE)


class Scaling(nn.Sequential):
    """A network that works in place on the samples that it is given."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        """Return logits."""
        return super().forward(x.mul_(0.5))


def test_test_samples_that_a_network_changes_are_made_again():
    """What is kept for the next test is what the data have."""
    trainer = prepare(digits_scenario(model="mlr")).parts.make_trainer("cpu")
    cohort = Cohort(dataclasses.replace(trainer, module=Scaling()), 1)
    model = {"params": {name: torch.ones_like(p) / 7 for name, p in Scaling().named_parameters()}, "buffers": {}}
    model["params"]["1.weight"][3] *= 2
    first, second = (cohort.score_chunks(model, range(2)) for _ in range(2))
    assert first == second


def test_augmentation_is_each_devices_own():
    """Crops and mirrors are drawn from the streams that serial draws them from."""
    alone, together = stacked(data={"name": "digits", "augment": {"crop": 1, "flip": True}})
    assert differs(alone, together) < CLOSE
    assert differs(alone, stacked()[1]) > 100 * CLOSE


def test_dropout_is_not_stacked():
    """A network that draws masks is trained alone, bit for bit as serial does, and that is told once."""
    alone, together, why = both(model="tests.plugins.networks:TinyNorm", stop={"rounds": 2})
    assert differs(alone, together) == 0.0
    assert why == [f"{SAYS}: the network: it draws random numbers in training, as dropout does"]


def test_other_gradients_are_not_stacked():
    """So is a method whose devices take gradients of their own."""
    alone, together, why = both(method="moon")
    assert differs(alone, together) == 0.0
    assert why == [f"{SAYS}: the method: its devices take other gradients than those of the cross-entropy"]


class Mixing(nn.Sequential):
    """A network in which the samples of a batch meet outside any layer."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        """Return logits less their mean over the batch."""
        logits = super().forward(x)
        return logits - logits.mean(0, keepdim=True)


class Twice(nn.Module):
    """A layer that is used twice, and a parameter of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        """Return logits."""
        x = x.flatten(1)
        return self.head(torch.relu(self.fc(torch.relu(self.fc(x)))))


class Own(nn.Module):
    """A network that computes with parameters of its own beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.fc = nn.Parameter(torch.ones(64)), nn.Linear(64, 10)

    def forward(self, x):
        """Return logits."""
        return self.fc(x.flatten(1) * self.scale)


def found(module: nn.Module, shape=(1, 8, 8), classes=10, objective=CLASSIFICATION):
    """Return what a probe finds out about a network, and the stacked one."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(DEVICES * SAMPLES, *shape, generator=generator)
    positions = objective.shapes(classes, shape)[1:]
    y = torch.randint(classes, (DEVICES * SAMPLES, *positions), generator=generator)
    stacked = StackedNetwork(module)
    return probed(stacked, module, frozenset(), x, y, objective), stacked


def test_a_probe_finds_where_samples_meet():
    """Between devices that is refused; inside a layer it is fine, but batches have to be of one size then."""
    assert "samples of different devices meet" in found(Mixing())[0].why_not
    assert found(plugins_of("model")["cnn_digits"]().build((1, 8, 8), 10))[0] == (None, True)
    assert found(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)))[0] == (None, False)
    assert found(Own())[0] == (None, True)
    assert found(Twice())[0] == (None, True)


def test_a_layer_used_twice_does_not_descend():
    """Its weights have to stay until the whole backward pass is done; one used once updates them on the way."""
    stackable, stacked = found(Twice())
    assert stackable.why_not is None
    tensors = {name: torch.stack([t.detach()] * 2) for name, t in Twice().named_parameters()}
    assert stacked.bind(tensors, stacked.params, frozenset(), LinearStep(0.1)) == ["fc.weight", "fc.bias"]
    before = tensors["head.weight"].clone()
    logits = stacked(torch.rand(4, 1, 8, 8))
    grads = stacked.gradients(logits, CLASSIFICATION.slopes(logits, torch.tensor([1, 2, 3, 4])))
    assert [g.shape for g in grads] == [(2, 64, 64), (2, 64)]
    assert not torch.equal(before, tensors["head.weight"])


@pytest.mark.parametrize("frozen", [(), ("3",), ("1", "3"), ("5",)])
@pytest.mark.parametrize("descent", [None, LinearStep(0.1), LinearStep(0.1, 0.9)])
def test_a_perceptron_is_trained_as_with_autograd(frozen, descent):
    """Written out backwards, a chain of linear layers and ReLUs gets the gradients, or steps, of autograd."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 8, bias=False), nn.ReLU())
    module.append(nn.Linear(8, 10))
    stacked, by_autograd = StackedNetwork(module), StackedNetwork(module)
    assert stacked._chain
    by_autograd._chain = None
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([1, 2, 3, 4, 5, 6])
    trained = [name for name in stacked.params if name.partition(".")[0] not in frozen]
    scales = (1.0, 1.3)
    found = []
    for network in (stacked, by_autograd):
        tensors = {name: torch.stack([s * t.detach() for s in scales]) for name, t in module.named_parameters()}
        network.bind(tensors, stacked.params, frozenset(), None)
        network(x)
        network.learn_uses()
        left = network.bind(tensors, trained, frozenset(frozen), descent)
        logits = network(x)
        grads = network.gradients(logits, CLASSIFICATION.slopes(logits, y))
        found.append({**tensors, **{f"gradient of {name}": g for name, g in zip(left, grads, strict=True)}})
    assert found[0].keys() == found[1].keys()
    assert (len(found[0]) > len(stacked.params)) == (descent is None)
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])


def test_what_is_no_chain_is_left_to_autograd():
    """Layers of other kinds, one used twice, a hook, or a forward pass of the network's own."""
    shared = nn.Linear(64, 64)
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU())
    hooked[2].register_forward_hook(lambda *_: None)
    inside = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 10), nn.ReLU()))
    assert StackedNetwork(inside)._chain
    inside[1].register_forward_hook(lambda *_: None)
    for module in (
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Tanh()),
        nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared),
        nn.Sequential(nn.Linear(8, 10), nn.Flatten()),
        hooked,
        inside,
        nn.Sequential(hooked),
        Mixing(),
        Twice(),
    ):
        assert StackedNetwork(module)._chain is None


def names_of_models() -> list[str]:
    """Return the models of the catalogue, in a short run one of them."""
    own = [name for name in plugins_of("model") if not name.endswith(":")]  # without those of another library
    return thinned(own, ["lenet5"])


@pytest.mark.parametrize("name", names_of_models())
def test_every_model_is_stacked_or_says_why(name):
    """The probe is the test: logits, gradients and statistics of two devices agree with those of each alone."""
    plugin = plugins_of("model")[name]()
    shape = plugin.native_input_shape
    module = build_model(plugin, shape, plugin.native_classes, Key(1), objective=plugin.native_objective)
    stackable, _ = found(module, shape, plugin.native_classes, plugin.native_objective)
    draws = any("Dropout" in type(layer).__name__ and layer.p > 0 for layer in module.modules())
    assert (stackable.why_not == "it draws random numbers in training, as dropout does") == draws
    assert draws or stackable.why_not is None


def test_frozen_layers_stay_and_gradients_are_each_devices_own():
    """Two devices' stacked gradients are those of autograd on each, where some layers take none."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    stacked = StackedNetwork(module)
    x, y = torch.rand(6, 1, 8, 8), torch.tensor([1, 2, 3, 4, 5, 6])
    scales = (1.0, 1.3)
    tensors = {name: torch.stack([s * t.detach() for s in scales]) for name, t in module.named_parameters()}
    stacked.bind(tensors, ["3.weight", "3.bias"], frozenset({"1"}), None)
    logits = stacked(x)
    got = stacked.gradients(logits, CLASSIFICATION.slopes(logits, y) / 3)
    for row, scale in enumerate(scales):
        own = copy.deepcopy(module)
        for p in own.parameters():
            p.data.mul_(scale)
        F.cross_entropy(own(x[3 * row : 3 * row + 3]), y[3 * row : 3 * row + 3]).backward()
        for found_, p in zip(got, own[3].parameters(), strict=True):
            assert torch.allclose(found_[row], p.grad, atol=1e-6)


def test_a_stream_goes_on_where_it_was_left():
    """Pieces of a stream, with other draws between them, are the stream; torch's own generator stays."""
    with seeded(Key(3)):
        whole = torch.rand(6)
    stream, before = Stream(Key(3)), torch.get_rng_state()
    pieces = []
    for _ in range(2):
        with stream.read():
            pieces.append(torch.rand(3))
        torch.rand(1)
        torch.set_rng_state(before)
    assert torch.equal(torch.cat(pieces), whole)
    assert np.array_equal(torch.get_rng_state(), before)
