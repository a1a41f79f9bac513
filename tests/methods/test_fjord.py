"""FjORD against numbers on paper, and its training against networks cut by hand.

Source: Horvath et al. (2021); the FedDHAD paper for the sizes of its baseline, by arithmetic from its layers.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.execution.backends.null import NullBackend
from edgesim.learning.submodel.selection import groups_of, units_at
from edgesim.learning.submodel.slicing import corners, extract, thinner
from edgesim.learning.train.loop import batch_order
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.fjord import FjORD, batch_sizes, drawn_ranks
from edgesim.runs.assembly import assemble
from edgesim.runs.network import cost_profile_of
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import frames, timing_scenario
from tests.contracts.support import NORMED, fingerprint, mixed_scenario, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, server_of, setting_of, view_of
from tests.sizes import full

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)


@cache
def network(name):
    """Return a network of the catalogue and its cost profile."""
    plugin = find("model", name)[0]()
    return cost_profile_of(plugin, name, None, None, KEY)


def submodels_at(cost_profile, widths, **changes):
    """Return the parts that FjORD has at these widths."""
    setting = setting_of([1], {}, cost_profile=cost_profile)
    return [FjORD(widths=tuple(widths), **changes).submodel(rank + 1, setting) for rank in range(len(widths))]


# --- slices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        ("lenet5", [3385, 11224, 23629, 40600, 62006], [140578, 239272, 357382, 494908, 651720]),
        ("cnn_3conv", [5419, 20654, 46122, 81182, 122570], [335681, 938418, 1916130, 3121352, 4548608]),
    ],
)
def test_sizes_of_the_slices(name, params, macs):
    """At widths 0.2 to 1; 2 FLOPs a MAC."""
    _, cost_profile = network(name)
    submodels = submodels_at(cost_profile, FIFTHS)
    assert [cost_profile.submodel_params(submodel) for submodel in submodels] == params
    assert [cost_profile.forward_flops(submodel) / 2 for submodel in submodels] == macs


@pytest.mark.parametrize(
    ("name", "width", "params", "macs"),
    [
        ("vgg11", 0.5, 2440394, 38767104),
        pytest.param("resnet18_bn", 0.75, 8528424, 418680832, marks=full),
        pytest.param("resnet18_bn", 0.5, 5780616, 281841664, marks=full),
    ],
)
def test_sizes_of_deep_slices(name, width, params, macs):
    """Of a residual network only the inner channels of each block are sliced."""
    _, cost_profile = network(name)
    submodel = submodels_at(cost_profile, (width, 1.0))[0]
    assert cost_profile.submodel_params(submodel) == params
    assert cost_profile.forward_flops(submodel) / 2 == macs


def test_units_of_several_layers():
    """A residual network's 8 inner groups of 64 to 512; the others, one a stage, are sliced only if asked for."""
    _, cost_profile = network("resnet18_bn")
    assert [group.size for group in groups_of(cost_profile, "inner")] == [64, 64, 128, 128, 256, 256, 512, 512]
    assert sorted(group.size for group in set(cost_profile.groups) - set(groups_of(cost_profile, "inner"))) == [
        64,
        128,
        256,
        512,
    ]
    inner, everything = (submodels_at(cost_profile, (0.5, 1.0), channels=which)[0] for which in ("inner", "all"))
    assert (len(inner.channels), len(everything.channels)) == (8, 12)


def test_shapes_of_a_slice():
    """LeNet5 at 0.6: ceil(3.6), ceil(9.6), ceil(72), ceil(50.4); 25 pixels of each of 10 channels are flattened."""
    module, cost_profile = network("lenet5")
    whole, slim = submodels_at(cost_profile, (1.0,)) + submodels_at(cost_profile, (0.6, 1.0))[:1]
    shapes = {"conv1": [4, 3, 5, 5], "conv2": [10, 4, 5, 5], "fc1": [72, 250], "fc2": [51, 72], "fc3": [10, 51]}
    cut = corners(thinner(module, whole, cost_profile), slim)
    for layer, shape in shapes.items():
        assert list(thinner(module, slim, cost_profile).get_parameter(f"{layer}.weight").shape) == shape
        weight = module.get_parameter(f"{layer}.weight")
        assert cut[f"{layer}.weight"] == tuple(slice(size) for size in shape)
        channels = {"params": {f"{layer}.weight": weight.detach()}}
        assert torch.equal(
            extract(channels, slim, cost_profile)["params"][f"{layer}.weight"], weight[cut[f"{layer}.weight"]]
        )


@pytest.mark.parametrize(
    ("width", "size", "kept"), [(0.55, 20, 11), (0.2, 6, 2), (0.6, 5, 3), (0.01, 3, 1), (1.0, 7, 7)]
)
def test_units_at_a_width(width, size, kept):
    """ceil(p K): 0.55 x 20 and 0.6 x 5 are 11 and 3, whatever floating point makes of them."""
    assert units_at(width, size) == kept


def test_corners_are_those_of_first_units():
    """Other units, and a network that is not made for it, have no corners."""
    module, cost_profile = network("lenet5")
    whole, slim = submodels_at(cost_profile, (1.0,)) + submodels_at(cost_profile, (0.6, 1.0))[:1]
    with pytest.raises(ContractError, match="corners"):
        corners(thinner(module, whole, cost_profile), Submodel(channels=(("fc1", (1, 2)),)))
    with pytest.raises(ContractError, match="corners"):
        corners(module, slim)


def test_groups_of_a_normalisation_have_to_fit():
    """32 groups of channels cannot be had from half of 64 channels less one."""
    module, cost_profile = network("vgg11_gn")
    submodels = submodels_at(cost_profile, (0.48, 1.0))
    with pytest.raises(ConfigError, match=r"model\.name: \S+ cannot split 31 kept channels into 32 groups"):
        corners(thinner(module, submodels[1], cost_profile), submodels[0])


# --- tiers and draws --------------------------------------------------------------------------------------------


def tiers(devices, method, **changes):
    """Return the ranks of the devices' largest widths."""
    return method.init(setting_of([10] * devices, {}, cost_profile=TWO, **changes), KEY)["tier"]


TWO = CostProfile(
    "by hand",
    (1,),
    2,
    (
        LayerCost("rows", "Linear", 2, 0, 2.0, 2.0, 2.0, frozenset(), 2, "", "rows"),
        LayerCost("w", "Linear", 8, 0, 2.0, 2.0, 2.0, frozenset(), 8, "w", "columns"),
        LayerCost("before", "Linear", 2, 0, 2.0, 2.0, 2.0, frozenset(), 2, "columns"),
    ),
    groups=(ChannelGroup("columns", 2), ChannelGroup("w", 4)),
)


def test_every_tier_has_as_many_devices():
    """Ten devices and five widths: two each, in an order that the seed decides."""
    ranks = tiers(10, FjORD(widths=FIFTHS))
    assert sorted(ranks) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert ranks != sorted(ranks)
    assert max(tiers(3, FjORD(widths=FIFTHS))) == 5  # who has the whole model is always there


def test_tiers_by_speed():
    """The slowest third has the narrowest width; equal devices are taken in the order of their ids."""
    speed = np.array([5.0, 1.0, 9.0, 3.0, 7.0, 2.0])
    assert tiers(6, FjORD(widths=(0.6, 0.8, 1.0), tiers="speed"), flops_per_s=speed) == [2, 1, 3, 2, 3, 1]
    assert tiers(4, FjORD(widths=(0.5, 1.0), tiers="speed"), flops_per_s=np.ones(4)) == [2, 2, 1, 1]


def test_tiers_by_level():
    """Level i has the i-th width."""
    method = FjORD(widths=(0.6, 0.8, 1.0), tiers="level")
    assert tiers(4, method, level=np.array([1, 3, 2, 1])) == [1, 3, 2, 1]


def test_widths_are_drawn_uniformly_up_to_the_own():
    """3000 steps of a device that may use three widths: 1000 each, within four standard errors."""
    counts = np.bincount(drawn_ranks(7, 3, 3000), minlength=5)
    assert counts[0] == counts[4] == 0
    assert counts[1:4] == pytest.approx([1000] * 3, abs=4 * math.sqrt(3000 * (1 / 3) * (2 / 3)))
    assert set(drawn_ranks(7, 1, 50)) == {1}


@pytest.mark.parametrize("drop_single", [False, True])
@pytest.mark.parametrize(
    ("samples", "batch", "epochs"), [(40, 16, 2), (40, 13, 3), (40, 40, 1), (5, 16, 2), (1, 4, 2), (3, 1, 2), (0, 4, 1)]
)
def test_batch_sizes_are_those_of_the_loop(samples, batch, epochs, drop_single):
    """Step by step, over epochs, with a last short batch and without one of a single sample."""
    sgd = LocalSGD(batch=batch, lr=0.1, epochs=epochs)
    taken = [len(positions) for positions in batch_order(KEY, samples, sgd, drop_single)]
    assert batch_sizes(sgd, samples, drop_single).tolist() == taken


# --- training ---------------------------------------------------------------------------------------------------


def retrained(trainer, assignment, distill=False):
    """Return what a device sends, by plain SGD in networks that are cut out and put back at every step."""
    task, (sgd,) = assignment.task, assignment.task.local_sgd
    submodels = {work.submodel.width: work.submodel for work in task.passes if work.submodel} | {
        task.submodel.width: task.submodel
    }
    shard = trainer.shards[assignment.device]
    base = extract(assignment.global_model, task.submodel, trainer.cost_profile)
    w = {name: tensor.clone() for tensors in base.values() for name, tensor in tensors.items()}
    steps = list(batch_order(assignment.key.at(0).at(0), len(shard), sgd, trainer.cost_profile.drop_single))
    draws = drawn_ranks(int(task.config["seed"]), task.submodel.width, len(steps))

    def at(rank):
        cut = thinner(trainer.module, submodels[rank], trainer.cost_profile)
        own = {**dict(cut.named_parameters()), **dict(cut.named_buffers())}
        for name, tensor in own.items():
            if name in w:
                tensor.data = w[name][tuple(slice(size) for size in tensor.shape)].clone()
        return cut.train(), own

    for rank, positions in zip(draws, steps, strict=True):
        x, y = trainer.data.batch("train", shard[positions])
        widest = {}
        if distill:
            full, widest = at(task.submodel.width)
            logits = full(x)
            F.cross_entropy(logits, y).backward()
        cut, own = at(rank)
        if distill:
            told = torch.exp(logits.detach()) / torch.exp(logits.detach()).sum(1, keepdim=True)
            (-(told * torch.log_softmax(cut(x), 1)).sum(1).mean()).backward()
        else:
            F.cross_entropy(cut(x), y).backward()
        for tensors in (widest, own):
            for name, tensor in tensors.items():
                if tensor.grad is not None:
                    w[name][tuple(slice(size) for size in tensor.shape)] -= sgd.lr * tensor.grad
        moved = widest if distill else own if rank == task.submodel.width else {}
        w |= {name: tensor for name, tensor in moved.items() if name in base["buffers"]}
    return w, draws


@pytest.mark.parametrize("distill", [False, True])
@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_devices_train_in_slices(model, distill, monkeypatch):
    """Every batch moves the slice of its width and nothing else; batch statistics are those of the slice."""
    seen = []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        seen.append((self, assignment, result))
        return result

    monkeypatch.setattr(Trainer, "run", recorded)
    method = {"name": "fjord", "widths": [0.5, 0.75, 1.0], "distill": distill}
    scenario = mixed_scenario(method=method, model=model, training={"batch": 16, "lr": 0.1, "local_epochs": 2})
    simulation = prepare(scenario)
    for layer in simulation.parts.module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    simulation.run()
    widths = set()
    for trainer, assignment, result in seen:
        expected, draws = retrained(trainer, assignment, distill)
        widths |= {(assignment.task.submodel.width, rank) for rank in draws.tolist()}
        for tensors in result.body.values():
            for name, tensor in tensors.items():
                torch.testing.assert_close(tensor, expected[name], atol=2e-6, rtol=1e-5)
    assert widths == {(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)}


@full
@pytest.mark.parametrize("changes", [{"distill": True}, {"widths": [0.25, 1.0], "tiers": "speed"}])
@pytest.mark.parametrize("model", ["cnn_digits", NORMED])
def test_charged_is_what_was_done(model, changes, monkeypatch):
    """The FLOPs of the widths that were really drawn, and of the teacher's pass."""
    jobs = measured_jobs(mixed_scenario(method={"name": "fjord", **changes}, model=model), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


def test_work_of_a_fleet():
    """LeNet5, 500 samples in batches of 20, a device a tier. 2 (3 sum F - F_1) FLOPs a sample at each width.

    F_1 = 3 x 25 x 28 x 28 MACs for every channel of the first convolution, ceil(6 p) of them.
    """
    macs = np.array([140578, 239272, 357382, 494908, 651720])
    train_flops = 2 * (3 * macs - 75 * 28 * 28 * np.array([2, 3, 4, 5, 6]))
    scenario = timing_scenario(model="lenet5", method={"name": "fjord", "tiers": "level"})
    simulation = Simulation(assemble(scenario), NullBackend(), Silent())
    plan = simulation.learner.plan(simulation.session.view())
    simulation.run()
    jobs = frames(simulation)["jobs"].sort_values("device")
    for order, flops in zip(plan.orders, jobs["flops"], strict=True):
        steps = drawn_ranks(int(order.task.config["seed"]), order.device + 1, 25)
        assert flops == 20 * train_flops[steps - 1].sum()
    assert jobs["up_bytes"].tolist() == [4 * n for n in (3385, 11224, 23629, 40600, 62006)]
    assert jobs["down_bytes"].tolist() == jobs["up_bytes"].tolist()


def test_only_whole_models_have_running_statistics():
    """Two statistics for each of four channels travel with the full width only: 418 parameters and 8 numbers."""
    jobs = frames(run(mixed_scenario(method="fjord", model=NORMED, stop={"rounds": 1})))["jobs"]
    channels = {f"width{width:g}": math.ceil(4 * width) for width in FIFTHS}
    params = {width: 10 * n + 2 * n + 90 * n + 10 for width, n in channels.items()}
    sent = {width: 4 * (n + 8 * (width == "width1")) for width, n in params.items()}
    assert dict(zip(jobs["submodel"], jobs["up_bytes"], strict=True)) == sent
    assert jobs["up_bytes"].tolist() == jobs["down_bytes"].tolist()


def test_the_only_width_is_fedavg():
    """Widths [1.0]: the whole model at every step, also of a network that has no unit to leave out."""
    for model in ("cnn_digits", "mlr"):
        weights = [
            run(mixed_scenario(method=method, model=model)).learner.weights()["params"]
            for method in ("fedavg", {"name": "fjord", "widths": [1.0]})
        ]
        for name, tensor in weights[0].items():
            torch.testing.assert_close(tensor, weights[1][name], atol=1e-6, rtol=0)


@full
def test_the_same_seed_gives_the_same_run():
    """Tiers and widths come from the run's seed."""
    prints = [fingerprint(run(mixed_scenario(method="fjord", seed=seed)).learner.weights()) for seed in (3, 3, 4)]
    assert prints[0] == prints[1] != prints[2]


# --- the mean ---------------------------------------------------------------------------------------------------


def arrived(device, rank, samples, value):
    """Return what a device with that tier sends: a 4 x 2 matrix full of one value, cut to half if its rank is 1."""
    setting = setting_of([1], {}, cost_profile=TWO)
    submodel = FjORD(widths=(0.5, 1.0)).submodel(rank, setting)
    shape = (2, 1) if rank == 1 else (4, 2)
    body = {"params": {"w.weight": torch.full(shape, value)}}
    return Update(device, device, Task(submodel=submodel), body, samples, 1, 0, {})


@pytest.mark.parametrize(
    ("who", "absent", "expected"),
    [
        ((0, 1, 2), "average_over_holders", [[2.75, 2], [2.75, 2], [2, 2], [2, 2]]),
        ((0, 2), "average_over_holders", [[3, 9], [3, 9], [9, 9], [9, 9]]),
        ((0, 1, 2), "include_absent", [[2.75, 7.25], [2.75, 7.25], [7.25, 7.25], [7.25, 7.25]]),
    ],
)
def test_rings_are_averaged_over_who_has_them(who, absent, expected):
    """Values 1, 2, 4 of 1, 1, 2 samples, the second has the whole; without it the outer ring keeps its 9."""
    got = [arrived(0, 1, 1, 1.0), arrived(1, 2, 1, 2.0), arrived(2, 1, 2, 4.0)]
    base = {"params": {"w.weight": torch.full((4, 2), 9.0)}}
    setting = setting_of([1, 1, 2], {}, cost_profile=TWO)
    method = FjORD(widths=(0.5, 1.0), absent=absent)
    state = method.init(setting, KEY)
    merged = method.aggregate(state, base, [got[k] for k in who], server_of(view_of(setting)), KEY)
    assert merged.model["params"]["w.weight"].tolist() == expected


# --- what does not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({"widths": [0.5, 0.75]}, {}, r"method\.widths: must rise to 1.*found \[0\.5, 0\.75\]"),
        ({"widths": [0.75, 0.5, 1.0]}, {}, r"method\.widths: must rise to 1"),
        ({"widths": [0.5, 0.5, 1.0]}, {}, r"method\.widths: must rise to 1"),
        ({"widths": []}, {}, r"method\.widths"),
        ({"widths": [0.0, 1.0]}, {}, r"method\.widths"),
        ({"widths": [0.5, 1.5]}, {}, r"method\.widths"),
        ({"tiers": "level"}, {}, r"fleet\.level: .*levels up to the 5 of method\.widths.*found levels up to 3"),
        ({"tiers": "level", "widths": [0.5, 1.0]}, {}, r"fleet\.level: .* the 2 of method\.widths.* up to 3"),
        ({}, {"model": "mlr"}, r"model\.name: mlr has no unit .* method\.widths must be \[1\.0\] for it"),
        ({}, {"cost": {"name": "table", "ratios": [0.5, 1.0]}}, r"cost\.ratios: .*5 widths, found 2 ratios"),
    ],
)
def test_settings_that_do_not_fit(method, changes, message):
    """The error names the key, what was found and what would do."""
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(method={"name": "fjord", **method}, backend="null", **changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fjord": {
        "absent": "test_rings_are_averaged_over_who_has_them",
        "widths": "test_sizes_of_the_slices",
        "tiers": "test_every_tier_has_as_many_devices",
        "channels": "test_units_of_several_layers",
        "distill": "test_devices_train_in_slices",
    },
}
