"""AFD against numbers on paper.

Source: FedDHAD paper's description of its baseline; sizes of thinner networks by arithmetic from its layers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.learning.submodel.slicing import extract, thinner
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.afd import AFD, chances_of, kept_count
from edgesim.runs.network import cost_profile_of
from tests.contracts.support import fingerprint, mixed_scenario, play, prepare, run
from tests.methods.hand_made import KEY, server_of, setting_of, view_of

NOBODY: frozenset[str] = frozenset()
CARD = CostProfile(
    "by hand", (1,), 2, (LayerCost("a", "Linear", 6, 0, 2.0, 2.0, 2.0, NOBODY, 6, "a"),), groups=(ChannelGroup("a", 6),)
)
KEPT = (0, 2, 3, 5)


def setting(devices=2):
    """Return a setting whose model is one layer of six units with a number each."""
    return replace(setting_of([1] * devices, {"a": 6}), cost_profile=CARD)


def message(device, loss, kept=KEPT, value=0.0, samples=1):
    """Return what a device sends that kept these units: a number for each, and its training loss."""
    submodel = Submodel(channels=(("a", kept),))
    body = {"params": {"a.weight": torch.full((len(kept),), value)}, "buffers": {}}
    return Update(device, device, Task(submodel=submodel), body, samples, 1, 0, {"loss": loss})


BASE = {"params": {"a.weight": torch.full((6,), 7.0)}, "buffers": {}}


def after(method, *rounds):
    """Return what the server knows after rounds of messages, by device."""
    state = method.init(setting(), KEY)
    for got in rounds:
        state = method.aggregate(state, BASE, got, server_of(view_of(setting())), KEY).state
    return state["known"]


def test_a_lower_loss_raises_the_scores_of_the_kept_units():
    """From 2.0 to 1.5 is a gain of 0.25, and the units stay; the first loss of all says nothing."""
    first = after(AFD(), [message(0, 2.0)])[0]
    assert (first["scores"]["a"].tolist(), first["loss"], first["repeats"]) == ([0.0] * 6, 2.0, False)
    known = after(AFD(), [message(0, 2.0)], [message(0, 1.5)])[0]
    assert known["scores"]["a"].tolist() == [0.25, 0, 0.25, 0.25, 0, 0.25]
    assert (known["loss"], known["channels"], known["repeats"]) == (1.5, (("a", KEPT),), True)


@pytest.mark.parametrize(
    ("score", "expected"), [("add", [0.45, 0, 0.25, 0.45, 0.2, 0.25]), ("assign", [0.2, 0, 0.25, 0.2, 0.2, 0.25])]
)
def test_gains_add_up_or_replace_scores(score, expected):
    """Gains of 1/4, nothing and 1/5: the second loss was higher, so it only becomes what the next one is held to."""
    losses = [(2.0, KEPT), (1.5, KEPT), (2.5, KEPT), (2.0, (0, 3, 4))]
    known = after(AFD(score=score), *([message(0, loss, kept)] for loss, kept in losses))[0]
    assert known["scores"]["a"] == pytest.approx(expected)


def test_the_same_loss_and_a_loss_of_zero_score_nothing():
    """Only less is better, and nothing is less than nothing: no gain is divided by an old loss of 0."""
    known = after(AFD(), [message(0, 0.0)], [message(0, 0.0)])[0]
    assert (known["scores"]["a"].tolist(), known["repeats"]) == ([0.0] * 6, False)


def test_chances_of_scores():
    """(M + 0.001) over its sum of 1.256."""
    chances = chances_of(np.array([0.25, 0.1, 0.25, 0.4, 0, 0.25]), 1e-3)
    assert chances == pytest.approx([0.199841, 0.080414, 0.199841, 0.319268, 0.000796, 0.199841], abs=1e-6)


@pytest.mark.parametrize(
    ("size", "kept"), [(6, 5), (16, 12), (120, 90), (84, 63), (32, 24), (64, 48), (1, 1), (3, 3), (4, 3)]
)
def test_kept_counts(size, kept):
    """K - floor(K / 4)."""
    assert kept_count(0.25, size) == kept


def test_kept_counts_bear_rounding():
    """0.29 x 100 is a little less than 29 in floating point; one unit always stays."""
    assert 0.29 * 100 < 29
    assert kept_count(0.29, 100) == 71
    assert kept_count(0.999999, 4) == 1


def hidden(model):
    """Return a setting of four devices with a network of the catalogue."""
    plugin = find("model", model)[0]()
    return setting_of([100] * 4, {}, cost_profile=cost_profile_of(plugin, model, None, None, KEY)[1])


@pytest.mark.parametrize(
    ("model", "params", "macs", "channels"), [("lenet5", 35355, 477300, 226), ("cnn_3conv", 69274, 2704512, 224)]
)
def test_what_a_thinner_network_costs(model, params, macs, channels):
    """Four bytes a number; down a bit for every unit says which stay; up the loss in 4 bytes. 2 FLOPs a MAC."""
    place, cost_profile = hidden(model), hidden(model).cost_profile
    plan = AFD().plan(AFD().init(place, KEY), view_of(place), KEY)
    assert len(plan.orders) == 4
    for order in plan.orders:
        assert cost_profile.submodel_params(order.task.submodel) == params
        assert cost_profile.forward_flops(order.task.submodel) == 2 * macs
        assert cost_profile.nbytes(order.task.down, order.task.submodel) == 4 * params + math.ceil(channels / 8)
        assert cost_profile.nbytes(order.task.up, order.task.submodel) == 4 * params + 4


def units_of(method, state, key, devices=4):
    """Return the units that devices are asked to keep, by device."""
    orders = method.plan(state, view_of(setting(devices)), key).orders
    return {order.device: order.task.submodel.channels for order in orders}


def test_who_got_better_keeps_its_units_and_others_draw_anew():
    """Device 0 gained, device 1 did not; devices 2 and 3 were never heard of, and draw at random every time."""
    method = AFD()
    state = method.init(setting(4), KEY)
    for losses in ((2.0, 2.0), (1.5, 2.5)):
        got = [message(device, loss, (0, 1, 2, 3, 4)) for device, loss in enumerate(losses)]
        state = method.aggregate(state, BASE, got, server_of(view_of(setting(4))), KEY).state
    asked = [units_of(method, state, KEY.at(n)) for n in range(30)]
    assert {channels[0] for channels in asked} == {(("a", (0, 1, 2, 3, 4)),)}
    for device in (1, 2, 3):
        assert {u for channels in asked for u in [channels[device]]} == {
            (("a", tuple(sorted(set(range(6)) - {out}))),) for out in range(6)
        }


def test_units_are_drawn_by_their_scores():
    """Units 0 to 2 have score 1, the others 0: with eps 0.5 the one that goes is most often one of these.

    Three of six are drawn one after the other; the share of draws with unit 0 among them is worked out over all
    orders, and met within four standard errors.
    """
    method = AFD(rate=0.5, eps=0.5)
    weights = [1.5, 1.5, 1.5, 0.5, 0.5, 0.5]
    expected = 0.0
    for order in itertools.permutations(range(6), 3):
        chance, left = 1.0, sum(weights)
        for unit in order:
            chance *= weights[unit] / left
            left -= weights[unit]
        expected += chance * (0 in order)
    scores = np.array([1.0, 1, 1, 0, 0, 0])
    known = {"scores": {"a": scores}, "loss": 1.0, "channels": (("a", (0, 1, 2)),), "repeats": False}
    n = 2000
    found = sum(0 in units_of(method, {"known": {0: known}}, KEY.at(i), 1)[0][0][1] for i in range(n)) / n
    assert found == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n))


def test_one_map_for_all():
    """The round's loss is the mean by data size, (2 + 3 x 1) / 4 = 1.25 after 2.5: a gain of one half."""
    method = AFD(variant="single")
    state = method.init(setting(), KEY)
    for losses in ((2.5, 2.5), (2.0, 1.0)):
        got = [message(0, losses[0]), message(1, losses[1], samples=3)]
        state = method.aggregate(state, BASE, got, server_of(view_of(setting())), KEY).state
    (known,) = state["known"].values()
    assert known["loss"] == 1.25
    assert known["scores"]["a"].tolist() == [0.5, 0, 0.5, 0.5, 0, 0.5]
    assert set(units_of(method, state, KEY).values()) == {(("a", KEPT),)}
    fresh = units_of(method, method.init(setting(), KEY), KEY)
    assert len(fresh) == 4
    assert len(set(fresh.values())) == 1


def test_a_late_network_of_another_round_does_not_speak_for_this_one():
    """With one map for all, only losses of the newest units count."""
    known = after(AFD(variant="single"), [message(0, 9.0, (0, 1, 2, 4)), message(1, 2.0)])
    assert [(each["loss"], each["channels"]) for each in known.values()] == [(2.0, (("a", KEPT),))]


@pytest.mark.parametrize("variant", ["multi", "single"])
def test_who_took_no_step_has_no_loss(variant):
    """Device 1 has a single sample, which batch normalisation cannot train on: its 0.0 is no good news."""
    method = AFD(variant=variant)
    state = method.init(setting(), KEY)
    idle = message(1, 0.0)._replace(steps=0)
    merged = method.aggregate(state, BASE, [message(0, 2.0), idle], server_of(view_of(setting())), KEY)
    assert [known["loss"] for known in merged.state["known"].values()] == [2.0]
    assert merged.metrics == {"train_loss": {0: 2.0}, "repeats": 0.0}
    assert method.aggregate(state, BASE, [idle], server_of(view_of(setting())), KEY).state["known"] == {}


@pytest.mark.parametrize(("absent", "second"), [("average_over_holders", 4.0), ("include_absent", 6.0)])
def test_units_are_averaged_over_who_kept_them(absent, second):
    """Two samples say 1, one says 4; the old model has 7. Unit 1 was kept by the second alone, unit 4 by nobody."""
    got = [message(0, 1.0, KEPT, 1.0, samples=2), message(1, 1.0, (0, 1, 2, 3, 5), 4.0)]
    method = AFD(absent=absent)
    merged = method.aggregate(method.init(setting(), KEY), BASE, got, server_of(view_of(setting())), KEY)
    assert merged.model["params"]["a.weight"].tolist() == pytest.approx([2, second, 2, 2, 7, 2])
    assert merged.metrics == {"train_loss": {0: 1.0, 1: 1.0}, "repeats": 0.0}


def test_the_loss_is_the_mean_of_all_steps(monkeypatch):
    """Three batches of 40 samples, two epochs, at a learning rate that moves nothing: the loss of the model received.

    Worked out here with the network that the units leave, over the device's own samples.
    """
    seen = []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        network = thinner(self.module, assignment.task.submodel, self.cost_profile)
        base = extract(assignment.global_model, assignment.task.submodel, self.cost_profile)
        x, y = self.data.batch("train", self.shards[assignment.device])
        with torch.no_grad():
            logits = torch.func.functional_call(network, {**base["params"], **base["buffers"]}, (x,))
        seen.append((result.statistics["loss"], float(torch.nn.functional.cross_entropy(logits, y))))
        return result

    monkeypatch.setattr(Trainer, "run", recorded)
    run(mixed_scenario(method="afd", training={"batch": 16, "lr": 1e-30, "local_epochs": 2}, stop={"rounds": 1}))
    assert len(seen) == 6
    for told, expected in seen:
        assert told == pytest.approx(expected, rel=1e-5)


def test_units_stay_as_long_as_losses_fall():
    """In real training, too, a device has its units of the round before if and only if its loss has just fallen."""
    simulation = prepare(mixed_scenario(method="afd"))
    learner, asked, losses = simulation.learner, [], []
    for _ in range(5):
        asked.append(
            {order.device: order.task.submodel.channels for order in learner.plan(simulation.session.view()).orders}
        )
        play(simulation)
        losses.append({device: known["loss"] for device, known in learner.state["known"].items()})
    fell = [losses[r][d] < losses[r - 1][d] for r in range(1, 4) for d in range(6)]
    stayed = [asked[r + 1][d] == asked[r][d] for r in range(1, 4) for d in range(6)]
    assert fell == stayed
    assert set(fell) == {True, False}


def test_nothing_left_out_is_fedavg():
    """Rate 0 trains and averages the whole model."""
    runs = [
        run(mixed_scenario(method=method, stop={"rounds": 2})).learner.weights()
        for method in ("fedavg", {"name": "afd", "rate": 0.0})
    ]
    for name, tensor in runs[0]["params"].items():
        assert torch.allclose(tensor, runs[1]["params"][name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("variant", ["multi", "single"])
def test_the_same_seed_gives_the_same_run(variant):
    """Units come from the run's seed and from what was learned, nothing else."""
    prints = []
    for seed in (3, 3, 4):
        simulation = run(mixed_scenario(method={"name": "afd", "variant": variant}, seed=seed))
        prints.append(fingerprint([simulation.learner.weights(), simulation.learner.state]))
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": {"name": "afd", "rate": 1.0}}, r"method\.rate"),
        ({"method": {"name": "afd", "rate": -0.1}}, r"method\.rate"),
        ({"method": {"name": "afd", "eps": 0.0}}, r"method\.eps"),
        ({"method": "afd", "model": "mlr"}, r"model\.name: mlr has no unit .* method\.rate must be 0.*0\.25"),
        ({"method": "afd", "backend": "null"}, r"backend\.name: afd plans from training results"),
        ({"method": "afd", "cost": {"name": "table", "ratios": [0.5, 1.0]}}, r"cost\.ratios: .*1 widths, found 2"),
    ],
)
def test_settings_that_do_not_fit(changes, message):
    """The error names the key, what was found and what would do."""
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(**changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "afd": {
        "absent": "test_units_are_averaged_over_who_kept_them",
        "rate": "test_kept_counts",
        "variant": "test_one_map_for_all",
        "score": "test_gains_add_up_or_replace_scores",
        "eps": "test_chances_of_scores",
        "channels": "test_fjord.py::test_units_of_several_layers",
    },
}
