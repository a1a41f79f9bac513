"""Work by kind against a count of every operation of real steps with frozen layers."""

import functools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgesim.config.plugins import find
from edgesim.core.cost_model import CostModel
from edgesim.core.price_list import WHOLE, CostProfile
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.cost_models.priced_as import As
from edgesim.learning.cost_models.table import TableCost
from edgesim.learning.cost_models.x3 import X3
from edgesim.learning.measure.step import measure
from edgesim.learning.submodel.slicing import thinner
from tests.sizes import full, thinned

BATCH = 5  # of the counted steps. The price list was measured with other batches
CLASSES = 10
SIDES = {"inception_v3": 75, "alexnet": 63, "squeezenet1_1": 33, "vit_b_32": 224}
NETWORKS = {
    *("resnet18", "resnext50_32x4d", "wide_resnet50_2", "resnet101", "vgg11", "vgg16_bn", "alexnet", "squeezenet1_1"),
    *("densenet121", "googlenet", "inception_v3", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("mnasnet0_5", "mnasnet1_3", "shufflenet_v2_x0_5", "shufflenet_v2_x1_5", "efficientnet_b0", "efficientnet_b3"),
    *("efficientnet_v2_s", "convnext_tiny", "swin_t", "swin_v2_t", "vit_b_32", "squeezenet1_0", "resnet34"),
    *("densenet169", "vgg13_bn"),
}
OWN = ["lenet5", "cnn_mnist", "resnet18_gn", "resnet18_bn", "vgg11_gn", "alexnet_small", "fcnn", "cnn_cifar10"]
SHORT = {"lenet5", "attention", "shared"}
REST = {*OWN, "attention", "shared", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1"}  # others take up to a minute


class Attention(nn.Module):
    """Attention of torch with dropout, a shared matrix and a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.flatten(1).unflatten(1, (-1, 6)))
        h = self.norm(x)
        x = x + self.drop(self.attend(h, h, h, need_weights=False)[0])
        return self.head(torch.relu(x * torch.sigmoid(h)).mean(1))


class Shared(nn.Module):
    """Normalisation without weights, operations in place, a layer used twice and a product of three branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.twice = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.gate = nn.Conv2d(4, 4, 1)
        self.drop = nn.Dropout2d(0.1, inplace=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu_(self.plain(self.first(x)))
        y = self.twice(self.twice(x))
        y *= torch.addcmul(y, x, self.gate(x))
        return self.head(self.drop(y).mean((2, 3)))


class Lstm(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.flatten(1).unflatten(1, (-1, 6)))[0][:, -1])


SMALL = {"attention": Attention, "shared": Shared}


class Count(TorchDispatchMode):
    """Work of all operations that run, by definition: every operand read, every result written."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        read = {id(x): x for x in tree_leaves([args, kwargs]) if isinstance(x, torch.Tensor)}
        written = {id(x): x for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        if func.is_view or name == "_unsafe_view" or "empty" in name or not written:
            return out
        nbytes = sum(x.numel() * x.element_size() for x in [*read.values(), *written.values()])
        self.found["operations"] += 1
        self.found["bytes"] += nbytes
        if name in ("convolution", "convolution_backward"):
            back = name == "convolution_backward"
            given, kernel, groups = args[back], args[1 + back], args[-2 if back else -1]
            passes = args[-1][:2].count(True) if back else 1
            positions = math.prod((args[0] if back else out).shape[2:])
            flops = 2 * passes * len(given) * positions * kernel.numel()
            self.found["convolutions"] += 1
            self.found["depthwise_channels"] += passes * groups * (groups > 1)
            self.found["depthwise_flops"] += flops * (groups > 1)
            self.found["conv_bytes"] += nbytes * (groups == 1)
            self.found["forward_pointwise_flops"] += flops * (groups == 1 and not back and kernel[0, 0].numel() == 1)
        return out


@functools.cache
def priced(name: str) -> tuple[nn.Module, CostProfile]:
    side = SIDES.get(name, 32)
    with torch.device("meta"):
        if name in SMALL:
            shape, module = (3, 4, 4), SMALL[name]()
        elif name in OWN:
            cls, fixed = find("model", name)
            shape = cls(**fixed).native_input_shape
            module = cls(**fixed).build(shape, CLASSES)
        else:
            cls, fixed = find("model", f"torchvision:{name}")
            shape = (3, side, side)
            module = cls(**fixed).build(shape, CLASSES)
    return module, measure(module.train(), name, shape, CLASSES, kinds=True)


def frozen_sets(names: tuple[str, ...]) -> list[set[str]]:
    half = len(names) // 2
    return [set(), {*names[:-1]}, {*names[:half]}, {*names[half:]}, {*names[::2]}]


def count(module: nn.Module, shape: tuple[int, ...], frozen: set[str], forward_only: bool = False) -> Counter:
    """Count a step in which frozen layers neither train nor are in training mode, as devices run it."""
    for name, inner in module.named_modules():
        inner.training = name not in frozen and not forward_only
    for name, value in module.named_parameters():
        value.requires_grad_(name.rpartition(".")[0] not in frozen)
    x, y = torch.empty(BATCH, *shape, device="meta"), torch.empty(BATCH, dtype=torch.int64, device="meta")
    with torch.set_grad_enabled(not forward_only), Count() as counter:
        loss = cross_entropy(module(x), y)
        if not forward_only:
            torch.autograd.grad(loss, [w for w in module.parameters() if w.requires_grad], allow_unused=True)
    module.train()
    return +counter.found


def of_a_step(profile: CostProfile, frozen: set[str], forward_only: bool = False) -> Counter:
    amounts = profile.amounts(Submodel(frozen=frozenset(frozen)), forward_only)
    return Counter({kind: per_sample * BATCH + per_step for kind, (per_sample, per_step) in amounts.items()})


ALL = sorted([*NETWORKS, *OWN, *SMALL])


@pytest.mark.parametrize("name", thinned(ALL, SHORT, REST))
def test_amounts_are_those_of_a_real_step(name):
    """Equal to the last integer, for every frozen set.

    Frozen matrices of torch's attention stay out: torch multiplies them in another way, which is not priced.
    """
    module, profile = priced(name)
    folded = {layer.name for layer in profile.layers if layer.kind == "MultiheadAttention"}
    for frozen in (names - folded for names in frozen_sets(profile.layer_names)):
        assert of_a_step(profile, frozen) == count(module, profile.input_shape, frozen), frozen
    assert of_a_step(profile, set(), True) == count(module, profile.input_shape, set(), True)


@full
def test_an_lstm_is_one_kernel_for_all_positions():
    """torch.nn.LSTM: neither operations nor weights that are read grow with the positions; FLOPs do."""
    with torch.device("meta"):
        few, many = (measure(Lstm(), "lstm", (3, 4, side), CLASSES, kinds=True) for side in (4, 20))
    one, other = of_a_step(few, set()), of_a_step(many, set())
    assert one["operations"] == other["operations"] < 100
    assert one["bytes"] < other["bytes"] < 10 * one["bytes"]
    assert many.train_flops() > 4.5 * few.train_flops()
    head = of_a_step(many, {"cells"})
    assert head["operations"] < other["operations"] and head["bytes"] < other["bytes"]


WITH_WIDTHS = ("lenet5", "cnn_mnist", "resnet18_bn", "resnet18_gn", "vgg11")


@full
@pytest.mark.parametrize("name", thinned(WITH_WIDTHS, {"lenet5"}, {"cnn_mnist", "resnet18_gn"}))
def test_thinner_parts_do_the_work_of_thinner_networks(name):
    """Half of the channels, everywhere or in some groups, against a price list of the thinner network."""
    module, profile = priced(name)
    frozen = frozenset(profile.layer_names[: len(profile.layer_names) // 2])
    for groups in (profile.groups, profile.groups[:1], profile.groups[-1:], profile.groups[::2]):
        part = Submodel(channels=tuple((group.name, tuple(range(group.size // 2))) for group in groups))
        thin = measure(thinner(module, part, profile), name, profile.input_shape, CLASSES, kinds=True)
        for names in (frozenset(), frozen):
            assert profile.amounts(replace(part, frozen=names)) == thin.amounts(Submodel(frozen=names))


def amounts_of(cost: CostModel, profile: CostProfile, work: Pass, part: Submodel = WHOLE) -> dict[str, float]:
    """Amounts of 30 samples in 3 steps."""
    amounts = cost.amounts(profile, work, part, np.array([30.0]), np.array([3.0]))
    return {kind: float(amount[0]) for kind, amount in amounts.items()}


def test_amounts_of_passes():
    """Samples and steps of training, of passes over samples of their own and in a test; other work has only FLOPs."""
    _, profile = priced("lenet5")
    (per_sample, per_step), params = profile.amounts()["bytes"], profile.params
    train = amounts_of(Measured(), profile, Pass(times=2.0))
    assert train["flops"] == 60 * profile.train_flops()
    assert (train["samples"], train["steps"], train["update_bytes"]) == (60, 6, 3 * 28 * params)
    assert train["bytes"] == 60 * per_sample + 6 * per_step
    own = amounts_of(Measured(), profile, Pass(samples=7))
    assert (own["samples"], own["steps"], "update_bytes" in own) == (7, 1, False)
    forward = amounts_of(Measured(), profile, Pass("forward"))
    assert forward["operations"] == 3 * profile.amounts(forward_only=True)["operations"][1] < train["operations"] / 2
    assert amounts_of(Measured(), profile, Pass("param_step")) == {"other_flops": 3 * params}
    assert amounts_of(Measured(), profile, Pass("flops", times=5.0)) == {"other_flops": 5}
    head = Submodel(frozen=frozenset(profile.layer_names[:-1]))
    assert amounts_of(Measured(), profile, Pass(), head)["update_bytes"] == 3 * 28 * profile.layers[-1].params


@full
def test_amounts_of_other_cost_models():
    """Three times forward, ratios by width, and the share of a part by kind in the network that is charged."""
    (_, own), (_, large) = priced("lenet5"), priced("resnet18")
    forward, train = (amounts_of(Measured(), own, Pass(kind)) for kind in ("forward", "train"))
    tripled = amounts_of(X3(), own, Pass())
    assert tripled["bytes"] == 3 * forward["bytes"] and tripled["steps"] == 3
    assert tripled["update_bytes"] == train["update_bytes"]
    half = amounts_of(TableCost(ratios=(0.5,)), own, Pass(), Submodel(width=1))
    assert (half["bytes"], half["samples"]) == (train["bytes"] / 2, 30)
    head, charged_as = Submodel(frozen=frozenset(own.layer_names[:-1])), replace(own, charged_as=large)
    cost, part = As(model="torchvision:resnet18"), amounts_of(Measured(), own, Pass(), head)
    whole = amounts_of(cost, charged_as, Pass())
    assert whole == amounts_of(Measured(), large, Pass())
    for kind, amount in amounts_of(cost, charged_as, Pass(), head).items():
        share = part.get(kind, part["flops"]) / train.get(kind, train["flops"])
        assert amount == pytest.approx(share * whole[kind])
    assert amounts_of(cost, charged_as, Pass("flops", times=2.0)).keys() == {"other_flops"}
