"""Thinner networks against published sizes, networks built by hand and full networks with silenced units."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import build_model, model_state_of
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.submodel.slicing import extract, thinner
from tests.learning.scattered import scatter
from tests.sizes import full, thinned

RESNET_INNER = [f"blocks.{block}.conv1" for block in range(8)]


def network(name: str, classes: int | None = None) -> tuple[nn.Module, CostProfile]:
    """A network of the catalogue with random weights, and its cost profile."""
    cls, fixed = find("model", name)
    plugin = cls(**fixed)
    shape, classes = plugin.native_input_shape, classes or plugin.native_classes
    module = build_model(plugin, shape, classes, Key(5))
    return module, measure(module, name, shape, classes)


def first(cost_profile: CostProfile, **kept: int) -> Submodel:
    """Keep the first so many units of some groups."""
    return Submodel(channels=tuple((group, tuple(range(count))) for group, count in kept.items()))


def every(cost_profile: CostProfile, step: int, groups: list[str] | None = None) -> Submodel:
    """Keep every `step`-th unit of some groups, of all by default."""
    chosen = [group for group in cost_profile.groups if groups is None or group.name in groups]
    return Submodel(channels=tuple((group.name, tuple(range(0, group.size, step))) for group in chosen))


# Source: FedDHAD paper's models; parameters and forward multiply-accumulates of its thinner ones by arithmetic.
@pytest.mark.parametrize(
    ("name", "kept", "params", "macs"),
    [
        ("lenet5", {"conv1": 5, "conv2": 13, "fc1": 100, "fc2": 70}, 42398, 496700),
        ("lenet5", {"conv1": 3, "conv2": 8, "fc1": 60, "fc2": 42}, 15888, 251340),
        ("lenet5", {"fc1": 60, "fc2": 42}, 29924, 619740),
        ("cnn_3conv", {"conv1": 24, "conv2": 48, "conv3": 48, "fc1": 48}, 69274, 2704512),
        ("vgg11", {"fc1": 256, "fc2": 256}, 9420170, 152963584),
    ],
)
def test_published_thinner_sizes(name: str, kept: dict[str, int], params: int, macs: int) -> None:
    _, cost_profile = network(name)
    submodel = first(cost_profile, **kept)
    assert cost_profile.submodel_params(submodel) == params
    assert cost_profile.nbytes(Payload(), submodel) == 4 * params
    assert cost_profile.forward_flops(submodel) == 2 * macs


# Source: FedPMT paper, Table 5.2: hidden neurons kept by its FedDrop baseline; the share of the training work left
# and the parameters by arithmetic, 2 (3 sum F - F_1) FLOPs a sample for F multiply-accumulates a layer.
@pytest.mark.parametrize(
    ("name", "kept", "share", "params"),
    [
        ("fcnn", {"fc1": 216, "fc2": 162, "fc3": 108, "fc4": 54}, 0.418849, 228754),
        ("cnn_mnist", {"fc1": 33}, 0.919942, 12245),
        ("cnn_cifar10", {"fc1": 200, "fc2": 120}, 0.850500, 199578),
    ],
)
def test_published_shares_of_training_work(name: str, kept: dict[str, int], share: float, params: int) -> None:
    _, cost_profile = network(name)
    submodel = first(cost_profile, **kept)
    assert cost_profile.submodel_params(submodel) == params
    assert cost_profile.train_flops(submodel) / cost_profile.train_flops() == pytest.approx(share, abs=5e-7)


@full
def test_halved_vgg11_and_resnet18() -> None:
    _, vgg = network("vgg11")
    assert vgg.submodel_params(every(vgg, 2)) == 2440394
    assert vgg.forward_flops(every(vgg, 2)) == 2 * 38767104
    _, resnet = network("resnet18_bn")
    inner = every(resnet, 2, RESNET_INNER)
    assert resnet.submodel_params(inner) == 5780616
    assert resnet.forward_flops(inner) == 2 * 281841664


@full
def test_halved_resnet18_without_normalisation() -> None:
    # Source: HeteroFL paper, rate 1/2 for 10 classes: 2792810 parameters, 139299328 multiply-accumulates without norms.
    _, cost_profile = network("resnet18_gn")
    half = every(cost_profile, 2)
    plain = replace(cost_profile, layers=tuple(layer for layer in cost_profile.layers if layer.kind != "GroupNorm"))
    assert plain.submodel_params(half) == 2792810
    assert cost_profile.forward_flops(half) == 2 * 139299328


@full
def test_unit_groups_are_found() -> None:
    _, lenet = network("lenet5")
    assert [(group.name, group.size) for group in lenet.groups] == [
        ("conv1", 6),
        ("conv2", 16),
        ("fc1", 120),
        ("fc2", 84),
    ]
    fc1 = lenet.layers[2]
    assert (fc1.rows, fc1.columns, fc1.column_spread) == ("fc1", "conv2", 25)
    _, resnet = network("resnet18_bn")
    layers = {layer.name: layer for layer in resnet.layers}
    # What is added to the stem's channels, and what reads them, has the same units; so has every norm its channels.
    tied = ["conv1", "norm1", "blocks.0.conv2", "blocks.0.norm2", "blocks.1.conv2", "blocks.1.norm2"]
    assert [name for name in layers if layers[name].rows == "conv1"] == tied
    reading = ["blocks.0.conv1", "blocks.1.conv1", "blocks.2.conv1", "blocks.2.shortcut.conv"]
    assert {name for name in layers if layers[name].columns == "conv1"} == {*reading}
    assert [group.name for group in resnet.groups if group.name in RESNET_INNER] == RESNET_INNER
    assert network("mlr")[1].groups == ()


def test_flattened_columns_follow_their_filter() -> None:
    module, cost_profile = network("lenet5")
    kept = tuple(unit for unit in range(16) if unit != 3)
    thin = extract(model_state_of(module), Submodel(channels=(("conv2", kept),)), cost_profile)["params"]
    full = module.fc1.weight.detach()
    assert torch.equal(thin["fc1.weight"], torch.cat([full[:, :75], full[:, 100:]], dim=1))
    assert torch.equal(thin["conv2.weight"], module.conv2.weight.detach()[list(kept)])
    assert torch.equal(thin["conv2.bias"], module.conv2.bias.detach()[list(kept)])


@pytest.mark.parametrize("name", thinned(["lenet5", "resnet18_bn", "torchvision:squeezenet1_0"], ["lenet5"]))
def test_extract_and_scatter_are_inverse(name: str) -> None:
    module, cost_profile = network(name, 10)
    draws = Key(2).numpy()
    channels = tuple(
        (group.name, tuple(draws.permutation(group.size)[: max(1, group.size // 3)].tolist()))
        for group in cost_profile.groups
    )
    submodel = Submodel(channels=channels)
    whole = model_state_of(module)
    zeros = {kind: {name: torch.zeros_like(t) for name, t in tensors.items()} for kind, tensors in whole.items()}
    thin = extract(whole, submodel, cost_profile)
    assert sum(t.numel() for t in thin["params"].values()) == cost_profile.submodel_params(submodel)
    placed = scatter(thin, submodel, cost_profile, zeros)
    again = extract(placed, submodel, cost_profile)
    for kind, tensors in whole.items():
        for tensor, value in tensors.items():
            assert torch.equal(again[kind][tensor], thin[kind][tensor])
            held = placed[kind][tensor] != 0
            assert torch.equal(placed[kind][tensor], value * held)
            assert not zeros[kind][tensor].any()
    unchanged = scatter(thin, submodel, cost_profile, whole)
    assert all(torch.equal(unchanged[k][n], t) for k, tensors in whole.items() for n, t in tensors.items())


def test_scatter_leaves_what_did_not_come() -> None:
    module, cost_profile = network("lenet5")
    submodel, whole = first(cost_profile, conv1=2), model_state_of(module)
    placed = scatter(
        {"params": {"conv1.bias": torch.tensor([7.0, 8.0])}},
        submodel,
        cost_profile,
        {**whole, "own": {"t": torch.ones(3)}},
    )
    assert torch.equal(placed["params"]["conv1.bias"][:2], torch.tensor([7.0, 8.0]))
    assert torch.equal(placed["params"]["conv1.bias"][2:], whole["params"]["conv1.bias"][2:])
    assert torch.equal(placed["params"]["fc1.weight"], whole["params"]["fc1.weight"])
    assert torch.equal(placed["own"]["t"], torch.ones(3))


def silence(module: nn.Module, cost_profile: CostProfile, submodel: Submodel) -> None:
    """Zero the inputs that come from left-out units, wherever a layer reads them."""
    sizes, kept = {group.name: group.size for group in cost_profile.groups}, dict(submodel.channels)
    for layer in (layer for layer in cost_profile.layers if layer.columns in kept):
        mask = torch.zeros(sizes[layer.columns])
        mask[list(kept[layer.columns])] = 1
        mask = mask.repeat_interleave(layer.column_spread)
        mask = mask.view((-1, 1, 1) if layer.kind == "Conv2d" else (-1,))
        module.get_submodule(layer.name).register_forward_pre_hook(
            lambda _, inputs, mask=mask: (inputs[0] * mask, *inputs[1:])
        )


@pytest.mark.parametrize("name", ["lenet5", "cnn_m", "cnn_digits", "resnet18_bn", "vgg11"])
def test_thinner_network_is_the_full_one_with_silenced_units(name: str) -> None:
    module, cost_profile = network(name, 10)
    submodel = every(cost_profile, 3)
    generator = torch.Generator().manual_seed(1)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)  # so that a wrong channel is seen
    small = thinner(module, submodel, cost_profile).eval()
    silence(module.eval(), cost_profile, submodel)
    images = torch.randn(2, *cost_profile.input_shape, generator=generator)
    assert torch.allclose(small(images), module(images), atol=1e-5)
    assert sum(value.numel() for value in small.parameters()) == cost_profile.submodel_params(submodel)


@pytest.mark.parametrize("frozen", [(), ("conv1",), ("conv1", "conv2")])
def test_charged_is_counted_for_a_half_width_network_built_by_hand(frozen: tuple[str, ...]) -> None:
    """Full, first layer frozen, head only, and each at half width: FLOPs charged are those PyTorch counts."""

    def convolutional(width: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(1, 8 // width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8 // width, 12 // width, 3)),
            *(nn.ReLU(), nn.Flatten(), nn.Linear(12 // width * 9, 4)),
        )

    names = {"conv1": "0", "conv2": "3"}
    cost_profile = measure(convolutional(1), "small", (1, 12, 12), 4)
    for width, channels in ((1, ()), (2, (("0", (0, 2, 5, 7)), ("3", (1, 2, 3, 4, 5, 11))))):
        module = convolutional(width)
        for layer in frozen:
            module.get_submodule(names[layer]).requires_grad_(False)
        with flop_counter() as counter:
            cross_entropy(module(torch.zeros(5, 1, 12, 12)), torch.zeros(5, dtype=torch.int64)).backward()
        submodel = Submodel(channels=channels, frozen=frozenset(names[layer] for layer in frozen))
        assert 5 * cost_profile.train_flops(submodel) == counter.get_total_flops() > 0


def test_a_mask_changes_only_the_ideal_account() -> None:
    _, cost_profile = network("cnn_digits")
    weights = {layer.name: layer.weights for layer in cost_profile.layers}
    assert weights == {"conv1": 16 * 9, "conv2": 32 * 16 * 9, "fc1": 32 * 2 * 2 * 10}
    masked = Submodel(nnz=tuple((name, count // 10) for name, count in weights.items()))
    assert cost_profile.train_flops(masked) == cost_profile.train_flops()
    for frozen in (frozenset[str](), frozenset({"conv1"})):
        ideal = sum(
            (layer.forward_flops + layer.weight_grad_flops * (layer.name not in frozen)
             + layer.input_grad_flops * bool(layer.upstream - frozen)) * (layer.weights // 10) / layer.weights
            for layer in cost_profile.layers
        )  # fmt: skip
        found = cost_profile.train_flops(replace(masked, frozen=frozen), sparse="ideal")
        assert found == pytest.approx(ideal, rel=1e-12)
    assert cost_profile.forward_flops(masked, sparse="ideal") == pytest.approx(
        0.1 * cost_profile.forward_flops(), rel=0.01
    )
    half = replace(first(cost_profile, conv1=8), nnz=(("conv1", 36),))  # half of the 72 weights of what is left
    dense = first(cost_profile, conv1=8)
    lost = (
        cost_profile.layers[0].forward_flops / 2 / 2 * 2
    )  # forward and weight gradient of the halved layer, half each
    assert cost_profile.train_flops(half, sparse="ideal") == cost_profile.train_flops(dense) - lost


def test_kept_activations_are_scaled_where_they_are_read() -> None:
    module, cost_profile = network("lenet5")
    factors = (2.0, 0.5, 4.0)
    submodel = replace(first(cost_profile, conv2=3), scale=(("conv2", factors),))
    plain, scaled = thinner(module, replace(submodel, scale=()), cost_profile), thinner(module, submodel, cost_profile)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    head = nn.Sequential(*list(plain.children())[7:])
    maps = nn.Sequential(*list(plain.children())[:6])(images) * torch.tensor(factors).view(3, 1, 1)
    assert torch.allclose(scaled(images), head(maps.flatten(1)), atol=1e-6)
    assert {name for name, _ in scaled.named_buffers()} == set()


def test_layers_state_their_new_sizes() -> None:
    module, cost_profile = network("vgg11_gn")
    small = thinner(module, every(cost_profile, 2), cost_profile)
    assert (small.conv2.out_channels, small.conv2.in_channels) == (64, 32)
    assert (small.norm2.num_channels, small.fc1.in_features, small.fc1.out_features) == (64, 256, 100)
    assert small.conv1.in_channels == 3
    assert module.conv2.out_channels == 128  # the original stays


@pytest.mark.parametrize(
    ("channels", "complaint"),
    [
        ((("conv9", (0,)),), "lenet5 has no channel group 'conv9' .groups: conv1, conv2, fc1, fc2."),
        ((("conv1", ()),), r"kept channels of conv1 must be distinct and in \[0, 6\), at least one"),
        ((("conv1", (0, 6)),), r"in \[0, 6\)"),
        ((("conv1", (-1, 2)),), r"in \[0, 6\)"),
        ((("conv1", (2, 2)),), "distinct"),
    ],
)
def test_impossible_units_are_refused(channels: tuple[tuple[str, tuple[int, ...]], ...], complaint: str) -> None:
    module, cost_profile = network("lenet5")
    submodel = Submodel(channels=channels)
    for ask in (
        cost_profile.train_flops,
        cost_profile.submodel_params,
        lambda submodel: extract(model_state_of(module), submodel, cost_profile),
    ):
        with pytest.raises(ValueError, match=complaint):
            ask(submodel)


def test_other_impossible_parts_are_refused() -> None:
    module, cost_profile = network("lenet5")
    with pytest.raises(ValueError, match="conv1 has 450 weights, found 451 nonzero ones"):
        cost_profile.train_flops(Submodel(nnz=(("conv1", 451),)))
    with pytest.raises(ValueError, match="lenet5 has no layer 'conv9'"):
        cost_profile.train_flops(Submodel(nnz=(("conv9", 1),)))
    with pytest.raises(ValueError, match="2 scales for the kept channels of conv1"):
        thinner(module, replace(first(cost_profile, conv1=3), scale=(("conv1", (1.0, 2.0)),)), cost_profile)
    normed, its_card = network("vgg11_gn")
    with pytest.raises(ConfigError, match="norm1 cannot split 40 kept channels into 32 groups"):
        thinner(normed, first(its_card, conv1=40), its_card)


class Odd(nn.Module):
    """Units that must stay: reused, added to the input, sliced by hand, behind grouped convolutions, in a buffer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.three = nn.Conv2d(4, 4, 3, padding=1, groups=2 if kind == "grouped" else 1)
        self.head = nn.Linear(4, 3)
        if kind == "buffer":
            self.register_buffer("shift", torch.zeros(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.two(self.one(x).relu())
        match self.kind:
            case "reused":
                inner = self.two(inner)
            case "added":
                inner = inner + x
            case "sliced":
                inner = inner.roll(1, dims=1)
            case "buffer":
                inner = inner + self.shift
        return self.head(self.three(inner).mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("plain", ["one", "two", "three"]),
        ("reused", ["three"]),
        ("added", ["one", "three"]),
        ("sliced", ["one", "three"]),
        ("grouped", ["one"]),
        ("buffer", ["one", "three"]),
    ],
)
def test_units_in_odd_places_stay(kind: str, groups: list[str]) -> None:
    module = Odd(kind)
    cost_profile = measure(module, "odd", (4, 6, 6), 3)
    assert [group.name for group in cost_profile.groups] == groups
    small = thinner(module, every(cost_profile, 2), cost_profile)
    assert small(torch.zeros(2, 4, 6, 6)).shape == (2, 3)


def test_prices_of_random_parts_are_those_of_the_networks_that_run() -> None:
    module, cost_profile = network("cnn_digits")
    draws = Key(4).numpy()
    for _ in range(5):
        channels = tuple(
            (group.name, tuple(sorted(draws.choice(group.size, draws.integers(1, group.size), replace=False).tolist())))
            for group in cost_profile.groups
        )
        frozen = frozenset(name for name in cost_profile.layer_names[:-1] if draws.random() < 0.5)
        submodel = Submodel(channels=channels, frozen=frozen)
        small = thinner(module, submodel, cost_profile)
        for name, value in small.named_parameters():
            value.requires_grad_(name.rpartition(".")[0] not in frozen)
        with flop_counter() as counter:
            cross_entropy(small(torch.zeros(3, 1, 8, 8)), torch.zeros(3, dtype=torch.int64)).backward()
        assert 3 * cost_profile.train_flops(submodel) == counter.get_total_flops()
