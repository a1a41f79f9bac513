"""What every method promises, shipped or from outside: pure plans, means that are means, no diverged models."""

from __future__ import annotations

import dataclasses
import importlib
import pickle

import numpy as np
import pytest
import torch

from edgesim.config.plugins import find
from edgesim.core.rng import Key
from edgesim.core.update import ModelState
from edgesim.learning.submodel.slicing import extract
from tests.contracts.support import (
    METHODS,
    MODELS,
    NORMED,
    arrived_at,
    ask,
    fingerprint,
    merge_arguments,
    mixed_scenario,
    needs_of,
    play,
    prepare,
    run,
    tried,
)
from tests.learning.scattered import scatter

every_class = pytest.mark.parametrize("name", METHODS)
every_method = pytest.mark.parametrize("name", tried(METHODS))
# Methods whose server goes its own way from the old model towards what arrived.
STEPPING = {"fedasync", "fedbuff"}
# Methods whose server takes steps of other lengths towards what arrived, see their own tests.
ADAPTIVE = {"aso_fed", "dc_asgd", "diloco", "fedadagrad", "fedadam", "fedyogi", "laq", "onebit_adam", "signsgd"}
# Methods whose server takes one update, which need not be the one that a test looks at.
CHOOSING = {"krum"}
# Methods whose server remembers moves and goes beyond what arrived.
OVERSHOOTING = {"feddyn", "augfl"}
# Methods whose server moves the model too, towards a teacher; their own tests do this without one, or by hand.
TAUGHT = {"augfl", "feddf"}
# Methods whose devices keep their models and send what these say of public samples; their own tests do this by hand.
SAYING = {"comet", "dsfl", "fedmd"}
# Methods whose models are sparse: a whole one can neither arrive nor stay; their own tests do this with sparse ones.
SPARSE = {"feddst", "feddip", "one_shot_pruning"}
# Methods whose devices change their masks after they have sent their models.
REGROWING = {"dadpfl", "dispfl"}
# Methods whose global model has more than one network's weights: models of some devices, a generator that is trained
# beside it, or what the server's own network says; their own tests do this for each of them.
CLUSTERED = {"ifca", "fedfomo", "fedgen", "fedgkt"}
# Methods whose server keeps the mean of the products of low-rank adapters, in the base or as other factors; their own
# tests do this with products.
FACTORED = {"flora", "flexlora"}
# Methods whose devices start new low-rank adapters in every round, so that the global model's stay and its base moves.
FOLDING = {"flora"}
# Methods that shorten moves and add noise to them, so that no model is a mean; their own tests do this with numbers.
PRIVATE = {"dp_fedavg"}
# Methods whose devices round what they send to integers, so that a mean is only nearly one.
ROUNDED = {"secure_fedavg"}
# Methods in which only one of several exchanges carries numbers that may diverge.
SIGNALLING = {"secure_fedavg"}
# Methods whose devices send nothing in the first round, and then what they had at the start of a round; their own tests
# do this with fragments.
STREAMING = {"streaming_diloco"}
# Methods whose server hears noise beside the mean, by how far devices moved.
NOISY = {"analog_fedavg", "analog_fedsgd"}
# Batch normalisation takes away what a bias before it adds: its gradient is rounding, and so may be nothing.
WITHOUT_EFFECT = {NORMED: {"conv.bias"}}
every_model = pytest.mark.parametrize("model", MODELS)


def different(model: ModelState) -> ModelState:
    """Return another model of the same shapes, with positive running statistics."""
    generator = Key(99).numpy()
    return {
        kind: {n: torch.from_numpy(generator.uniform(0.5, 2.0, t.shape).astype(np.float32)) for n, t in ts.items()}
        for kind, ts in model.items()
    }


def of_layers(model: ModelState, layers: frozenset[str] | None) -> ModelState:
    """Return the tensors of some layers; None: of all."""
    return {
        kind: {n: t for n, t in ts.items() if layers is None or n.rpartition(".")[0] in layers}
        for kind, ts in model.items()
    }


@every_class
def test_constructor_only_stores_fields(name):
    """A method is its hyper-parameters: nothing is worked out, opened or drawn when it is made."""
    cls, _ = find("method", name)
    method = cls()
    assert vars(method).keys() == {field.name for field in dataclasses.fields(cls)}
    assert not hasattr(cls, "__post_init__")
    assert method == cls()
    assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1


@every_class
def test_module_names_its_source(name):
    """A reader finds the paper that a method comes from."""
    cls, _ = find("method", name)
    assert "Source:" in importlib.import_module(cls.__module__).__doc__


@every_method
def test_setting_is_read_only(name):
    """A method cannot change the arrays it is shown."""
    setting = prepare(mixed_scenario(method=name)).parts.setting
    arrays = [value for field in dataclasses.fields(setting) if (value := getattr(setting, field.name)) is not None]
    writable = [array for array in arrays if isinstance(array, np.ndarray) and array.flags.writeable]
    assert writable == []


@every_method
def test_plan_is_pure_and_valid(name):
    """Asked twice a method answers the same, leaves its state alone and asks idle devices only, each once."""
    simulation = prepare(mixed_scenario(method=name))
    learner, view, key = simulation.learner, simulation.session.view(), Key(5)
    before = fingerprint(learner.state)
    plan = learner.method.plan(learner.state, view, key)
    assert learner.method.plan(learner.state, view, key) == plan
    assert fingerprint(learner.state) == before
    devices = [order.device for order in plan.orders]
    assert set(devices) <= set(view.idle.tolist())
    assert 0 < len(set(devices)) == len(devices) <= view.free_places
    tasks = {id(order.task): order.task for order in plan.orders}.values()
    assert [sum(task == other for other in tasks) for task in tasks] == [1] * len(tasks)  # equal tasks are one object


@pytest.mark.parametrize("name", tried([name for name in METHODS if not needs_of(name).feedback]))
def test_plan_without_feedback_ignores_what_was_learned(name):
    """feedback=False: the plan of a round is the same from the first state and from the state after a merge."""
    simulation = prepare(mixed_scenario(method=name))
    learner = simulation.learner
    first = learner.state
    play(simulation)
    view, key = simulation.session.view(), Key(6)
    assert learner.method.plan(learner.state, view, key) == learner.method.plan(first, view, key)


@every_model
@pytest.mark.parametrize(
    "name",
    tried(
        [
            name
            for name in METHODS
            if name
            not in STEPPING
            | ADAPTIVE
            | OVERSHOOTING
            | SPARSE
            | CLUSTERED
            | TAUGHT
            | SAYING
            | PRIVATE
            | NOISY
            | ROUNDED
            | FACTORED
            | STREAMING
        ]
    ),
)
def test_merge_of_equal_models_is_that_model(name, model):
    """If all devices arrive at one model, every bit of the new global model is its, but for what no device has."""
    simulation = prepare(mixed_scenario(method=name, model=model))
    state, base, got, server, key = merge_arguments(simulation)
    common = different(base)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, common), server, key)
    expected = base
    for message in got:
        submodel, cost_profile = message.task.submodel, server.setting.cost_profile
        sent = of_layers(common, message.task.up.layers)
        expected = scatter(extract(sent, submodel, cost_profile), submodel, cost_profile, into=expected)
    assert fingerprint(merged.model) == fingerprint(expected)


@every_model
@pytest.mark.parametrize("name", sorted(STEPPING))
def test_merge_goes_towards_what_arrived(name, model):
    """If all devices arrive at one model, the new global model lies between the old one and it, and is not the old."""
    simulation = prepare(mixed_scenario(method=name, model=model))
    state, base, got, server, key = merge_arguments(simulation)
    common = different(base)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, common), server, key)
    for kind, tensors in base.items():
        for tensor_name, old in tensors.items():
            new, end = merged.model[kind][tensor_name], common[kind][tensor_name]
            assert bool((((new - old) / (end - old)) > 0.5).all())  # alpha 0.6 or more of the way
            assert bool((((new - old) / (end - old)) < 1 + 1e-4).all())


@every_model
@pytest.mark.parametrize(
    "name",
    tried(
        [name for name in METHODS if name not in SPARSE | TAUGHT | CLUSTERED | SAYING | PRIVATE | FACTORED | STREAMING]
    ),
)
def test_nobody_moved(name, model):
    """If all devices arrive where they started, every bit of the global model stays."""
    simulation = prepare(mixed_scenario(method=name, model=model))
    state, base, got, server, key = merge_arguments(simulation)
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, base), server, key)
    assert fingerprint(merged.model) == fingerprint(base)


@every_method
def test_order_of_arrivals_does_not_matter(name):
    """The learner sorts by job, so the order in which completions were taken changes no bit."""
    outcomes = []
    for step in (1, -1):
        simulation = prepare(mixed_scenario(method=name))
        simulation.learner.aggregate(ask(simulation)[::step], simulation.session.view())
        outcomes.append(fingerprint([simulation.learner.weights(), simulation.learner.state]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", tried([name for name in METHODS if name not in STREAMING]))
def test_a_diverged_device_is_left_out(name):
    """A message with one NaN counts as if it had not come, and the notes say so."""
    simulation = prepare(mixed_scenario(method=name))
    state, base, got, server, key = merge_arguments(simulation)
    aggregate = simulation.learner.method.aggregate
    if name in SIGNALLING:
        got = [*(m for m in got if not m.body), *(m for m in got if m.body)]  # the last has numbers
    broken = {kind: {n: t.clone() for n, t in tensors.items()} for kind, tensors in got[-1].body.items()}
    # of a method whose last layer stays on devices, in the first one; of one that sends no weights, in its first tensor
    tensors = {name: tensor for named in broken.values() for name, tensor in named.items()}
    tensors.get("fc1.weight", tensors.get("conv1.weight", next(iter(tensors.values()))))[0, 0] = float("nan")
    merged = aggregate(state, base, [*got[:-1], got[-1]._replace(body=broken)], server, key)
    assert fingerprint(merged.model) == fingerprint(aggregate(state, base, got[:-1], server, key).model)
    if name not in CHOOSING:
        assert fingerprint(merged.model) != fingerprint(aggregate(state, base, got, server, key).model)
    assert merged.metrics["left_out"] == 1


@pytest.mark.parametrize("name", tried([name for name in METHODS if name not in STREAMING]))
def test_only_diverged_devices_leave_the_model(name):
    """If every message is broken there is no new version."""
    simulation = prepare(mixed_scenario(method=name))
    state, base, got, server, key = merge_arguments(simulation)
    nothing = {kind: {n: torch.full_like(t, float("inf")) for n, t in ts.items()} for kind, ts in base.items()}
    merged = simulation.learner.method.aggregate(state, base, arrived_at(simulation, got, base, nothing), server, key)
    assert merged.model is None
    assert merged.metrics["left_out"] == sum(name not in SIGNALLING or bool(message.body) for message in got)


@every_model
@every_method
def test_training_moves_the_model_and_stays_finite(name, model):
    """Two rounds give a new, finite model each, of the shapes of the first; what no device sends may stay."""
    simulation = prepare(mixed_scenario(method=name, model=model))
    first, orders = simulation.learner.weights(), simulation.learner.plan(simulation.session.view()).orders
    sent = [(order.task.up.collections, of_layers(first, order.task.up.layers)) for order in orders]
    shared = {n for kinds, model_state in sent for kind in kinds & model_state.keys() for n in model_state[kind]}
    simulation.run()
    last = simulation.learner.weights()
    assert simulation.learner.model.version == 2
    for kind, tensors in first.items():
        assert {n: t.shape for n, t in last[kind].items()} == {n: t.shape for n, t in tensors.items()}
        assert all(bool(t.isfinite().all()) for t in last[kind].values())
        stayed = {n for n, t in tensors.items() if ".base_layer." not in n and torch.equal(t, last[kind][n])}
        if name in FOLDING and kind == "params":
            assert len(last["base"]) == sum("lora_B" in n for n in stayed) > 0
            stayed = {n for n in stayed if ".lora_" not in n}
        assert stayed <= WITHOUT_EFFECT.get(model, set()) | (tensors.keys() - shared)


@pytest.mark.parametrize("name", [name for name in METHODS if needs_of(name).peers])
def test_peers_use_their_own_models(name):
    """None is at the first model after two rounds of equal devices. The run reports the mean of those that are sent."""
    simulation = prepare(mixed_scenario(method=name, fleet=[{"count": 6, "cpu": {"flops_per_s": "50 MFLOP/s"}}]))
    first, method = simulation.learner.weights(), simulation.learner.method
    simulation.run()
    kept = simulation.learner.memory
    used = [method.personal_model(first, kept.get(device)) for device in simulation.parts.setting.ids.tolist()]
    assert fingerprint(first) not in map(fingerprint, used)
    if name not in REGROWING:
        for n, reported in simulation.learner.weights()["params"].items():
            torch.testing.assert_close(torch.stack([model["params"][n] for model in used]).mean(dim=0), reported)


def test_one_full_width_is_fedavg():
    """FedPMT whose only width is the full model trains and averages as FedAvg does, bit for bit."""
    fleet = [{"count": 6, "cpu": {"flops_per_s": {"uniform": ["20 MFLOP/s", "40 MFLOP/s"]}}}]
    runs = [
        run(mixed_scenario(method=method, fleet=fleet, stop={"rounds": 3}))
        for method in ("fedavg", {"name": "fedpmt", "widths": [3]})
    ]
    assert fingerprint(runs[0].learner.weights()) == fingerprint(runs[1].learner.weights())
    assert runs[0].tables["evals"].frame()["loss"].tolist() == runs[1].tables["evals"].frame()["loss"].tolist()
