"""What the server computes on samples of its own, against PyTorch and counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.method import ServerSet
from edgesim.core.rng import Key
from edgesim.learning.models.build import model_state_of
from edgesim.learning.server_rows import draw_server_rows
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 2])
KEY = Key(3)


class Watched(FedAvg):
    """FedAvg whose server has samples of its own, as the class says."""

    server_set = ServerSet(120, reserved=True)


class Trained(FedAvg):
    """The same with training samples."""

    server_set = ServerSet(100, split="train", draw="balanced", reserved=True)


def assembled(method, **changes):
    """Return an assembled scenario on digits with this method."""
    return assemble(digits_scenario(method={"name": f"{__name__}:{method}"}, **changes))


def test_rows_are_the_first_any_or_equally_many_of_each_class():
    """Rows ascend; equal keys give equal draws."""
    assert draw_server_rows(ServerSet(3), LABELS, 3, KEY).tolist() == [0, 1, 2]
    drawn = draw_server_rows(ServerSet(6, draw="random"), LABELS, 3, KEY)
    assert (
        drawn.tolist()
        == sorted(set(drawn.tolist()))
        == draw_server_rows(ServerSet(6, draw="random"), LABELS, 3, KEY).tolist()
    )
    balanced = draw_server_rows(ServerSet(6, draw="balanced"), LABELS, 3, KEY)
    assert np.bincount(LABELS[balanced]).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (ServerSet(11), "^method: the server asks for 11 test samples, allowed are 1 to 10"),
        (ServerSet(10, split="train", reserved=True), "asks for 10 train samples, allowed are 1 to 9"),
        (
            ServerSet(7, draw="balanced", option="n"),
            r"^method\.n: .* equally many of each of 3 classes; allowed are multiples of 3 up to 6",
        ),
        (ServerSet(9, draw="balanced"), "equally many of each of 3 classes; allowed are multiples of 3 up to 6"),
    ],
)
def test_too_many_samples_are_refused(wanted, message):
    """Also where none would be left for others."""
    with pytest.raises(ConfigError, match=message):
        draw_server_rows(wanted, LABELS, 3, KEY)


def test_at_most_takes_what_there_is_and_shares_it_if_others_need_some():
    """All ten rows, or half of them."""
    assert len(draw_server_rows(ServerSet(2000, at_most=True), LABELS, 3, KEY)) == 10
    assert len(draw_server_rows(ServerSet(2000, at_most=True, reserved=True), LABELS, 3, KEY)) == 5


def test_reserved_samples_are_nobody_elses():
    """Test samples are left out of evaluation, training samples out of the partition."""
    watched, trained = assembled("Watched"), assembled("Trained")
    trainer = watched.make_trainer("cpu")
    assert trainer.test_rows.tolist() == list(range(120, len(watched.data.y_test)))
    scores = trainer.score_chunks(model_state_of(watched.module), range(trainer.chunks()))
    assert sum(chunk.samples for chunk in scores) == len(watched.data.y_test) - 120
    held = set(trained.server_set.rows.tolist())
    assert len(held) == 100
    assert held.isdisjoint(np.concatenate(trained.split.train).tolist())
    assert np.bincount(trained.data.y_train[list(held)].numpy()).tolist() == [10] * 10


@pytest.mark.parametrize("partition", ["dirichlet_label", "pathological"])
def test_reserved_samples_are_in_nobodys_own_test_set(partition):
    """Neither drawn for devices nor given by a partition; all others may be there, each with its own label."""
    watched = assembled("Watched", evaluation={"personal": True}, partition=partition)
    own = np.concatenate(watched.split.test)
    assert own.min() >= 120 and own.max() == len(watched.data.y_test) - 1
    shares = [
        [np.bincount(labels[rows], minlength=10) > 0 for rows in of_devices]
        for labels, of_devices in (
            (watched.data.y_train.numpy(), watched.split.train),
            (watched.data.y_test.numpy(), watched.split.test),
        )
    ]
    assert np.array_equal(*shares)


def test_a_data_seed_keeps_what_the_server_takes_out_of_training():
    """So that devices have the same samples, to train on and to be tested on, with all seeds."""
    first, second, free = (
        assembled("Trained", seed=seed, data_seed=data_seed, evaluation={"personal": True})
        for seed, data_seed in [(1, 7), (2, 7), (2, None)]
    )

    def rows(parts):
        return np.concatenate([parts.server_set.rows, *parts.split.train, *parts.split.test]).tolist()

    assert rows(first) == rows(second) != rows(free)


def test_loss_and_gradient_are_those_of_pytorch_on_these_samples_and_are_counted():
    """Mean over the samples, though they come in chunks; FLOPs of the cost profile's forward and training pass."""
    parts = assembled("Watched")
    tools, model = parts.make_tools(), model_state_of(parts.module)
    x, y = parts.data.batch("test", torch.arange(120))
    parts.module.eval()
    loss = F.cross_entropy(parts.module(x), y)
    names = [name for name, _ in parts.module.named_parameters()]
    found = dict(zip(names, torch.autograd.grad(loss, list(parts.module.parameters())), strict=True))
    assert tools.loss(model) == pytest.approx(loss.item(), rel=1e-6)
    assert tools.take_flops() == 120 * parts.setting.cost_profile.forward_flops()
    gradient = tools.gradient(model)
    assert tools.take_flops() == 120 * parts.setting.cost_profile.train_flops()
    assert all(torch.allclose(gradient[name].float(), found[name], atol=1e-6) for name in names)
    assert tools.loss(model, torch.arange(7)) == pytest.approx(
        float(F.cross_entropy(parts.module(x[:7]), y[:7])), rel=1e-6
    )
    assert tools.labels.tolist() == y.tolist()


def test_gradient_of_some_layers_is_part_of_the_whole_and_costs_less():
    """The output layer's on one class; the layers before it run forward only, and their parameters train afterwards."""
    parts = assembled("Trained")
    tools, model = parts.make_tools(), model_state_of(parts.module)
    *before, last = parts.setting.cost_profile.layer_names
    places = (tools.labels == 3).nonzero().flatten()
    assert len(places) == 10
    whole = tools.gradient(model, places)
    assert tools.take_flops() == 10 * parts.setting.cost_profile.train_flops()
    gradient = tools.gradient(model, places, {last})
    assert tools.take_flops() == 10 * parts.setting.cost_profile.train_flops(frozenset(before))
    assert set(gradient) == {f"{last}.weight", f"{last}.bias"}
    assert all(torch.allclose(found, whole[name], atol=1e-6) for name, found in gradient.items())
    assert tools.gradient(model, places).keys() == whole.keys()
