"""Model cards against closed formulas, published sizes and counts of whole training steps."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, LayerCost, ProductCost
from edgesim.core.rng import Key
from edgesim.core.task import Payload
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import applied, build_model, on_meta
from edgesim.learning.models.flop_counter import flop_counter
from tests.sizes import full, spread, thinned

# Forward multiply-accumulates per layer by hand: kernel^2 * channels in * channels out * positions, inputs * outputs.
MACS = {
    "mlr": [7840],
    "mlr_syn": [600],
    "cnn_a": [460800, 3276800, 524288, 5120],
    "cnn_a_same": [627200, 10035200, 1605632, 5120],
    "cnn_m": [144000, 320000, 16000, 500],
    "lenet5": [352800, 240000, 48000, 10080, 840],
    "fcnn": [313600, 120000, 60000, 20000, 1000],
    "cnn_mnist": [115200, 204800, 32768, 1280],
    "cnn_cifar10": [940800, 1280000, 400000, 150000, 3000],
    "cnn_digits": [9216, 73728, 1280],
    "cnn_3conv": [777600, 3115008, 589824, 65536, 640],
}
# Totals of the deep ones. FedDHAD prints 153.3 and (with 4 operations per normalised element) 558.0 million.
TOTAL_MACS = {"vgg11": 153293824, "resnet18_bn": 557977600 - 4 * 614400}
# DA-DPFL's authors count 2 FLOPs a multiply-accumulate plus one per bias and output element.
FLOPS_WITH_BIASES = {"vgg11_gn": 305782884, "resnet18_gn": 1110845450, "alexnet_small": 376020999}


def cost_profile_of(name: str, classes: int | None = None) -> CostProfile:
    cls, fixed = find("model", name)
    plugin = cls(**fixed)
    classes = classes or plugin.native_classes
    with torch.device("meta"):
        module = plugin.build(plugin.native_input_shape, classes)
    return measure(module, name, plugin.native_input_shape, classes)


def counted_step(
    module: nn.Module, cost_profile: CostProfile, frozen: frozenset[str], counter: FlopCounterMode
) -> float:
    """FLOPs per sample of a training step in which only the other layers' parameters require gradients."""
    for name, value in module.named_parameters():
        value.requires_grad_(name.rpartition(".")[0] not in frozen)
    with counter:
        logits = module(torch.empty(2, *cost_profile.input_shape, device="meta"))
        cross_entropy(logits, torch.empty(2, dtype=torch.int64, device="meta")).backward()
    return counter.get_total_flops() / 2


def frozen_sets(cost_profile: CostProfile, count: int) -> list[frozenset[str]]:
    """Random halves, and everything before some layer."""
    draws = Key(7).numpy()
    names = np.array([layer.name for layer in cost_profile.layers if layer.params])
    halves = [frozenset(names[draws.random(len(names)) < 0.5].tolist()) for _ in range(count)]
    return halves + [cost_profile.before_last(int(last)) for last in draws.integers(1, len(names), size=count)]


@pytest.mark.parametrize("name", MACS)
def test_forward_flops_of_every_layer(name: str) -> None:
    assert [layer.forward_flops for layer in cost_profile_of(name).layers] == [2 * macs for macs in MACS[name]]


@pytest.mark.parametrize("name", spread(TOTAL_MACS, 1))
def test_published_forward_totals(name: str) -> None:
    assert cost_profile_of(name).forward_flops() == 2 * TOTAL_MACS[name]


@pytest.mark.parametrize("name", FLOPS_WITH_BIASES)
def test_published_forward_totals_with_biases(name: str) -> None:
    plugin = find("model", name)[0]()
    with torch.device("meta"):
        module = plugin.build(plugin.native_input_shape, plugin.native_classes)
    added = []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            layer.register_forward_hook(lambda _, inputs, output: added.append(output[0].numel()))
    module(torch.empty(1, *plugin.native_input_shape, device="meta"))
    assert cost_profile_of(name).forward_flops() + sum(added) == FLOPS_WITH_BIASES[name]


@pytest.mark.parametrize("name", MACS)
def test_training_the_last_layers_follows_the_chain_formula(name: str) -> None:
    cost_profile, macs = cost_profile_of(name), MACS[name]
    for first in range(len(macs)):  # forward, weight gradients, input gradients of the layers after the first trained
        wanted = 2 * (sum(macs) + sum(macs[first:]) + sum(macs[first + 1 :]))
        assert cost_profile.train_flops(cost_profile.before_last(len(macs) - first)) == wanted


def test_fedpmt_cifar10_network_in_numbers() -> None:
    cost_profile = cost_profile_of("cnn_cifar10")
    suffixes = [cost_profile.train_flops(cost_profile.before_last(count)) for count in range(1, 6)]
    assert suffixes == [5553600, 5859600, 6959600, 10319600, 14761200]


def test_layers_of_lenet_and_the_bytes_of_some() -> None:
    cost_profile = cost_profile_of("lenet5")
    assert cost_profile.layer_names == ("conv1", "conv2", "fc1", "fc2", "fc3")
    assert [layer.kind for layer in cost_profile.layers] == ["Conv2d"] * 2 + ["Linear"] * 3
    assert cost_profile.nbytes(Payload(layers=frozenset({"conv2", "fc3"}), extra_bytes=7)) == 4 * (2416 + 850) + 7
    assert cost_profile.layers[2].upstream == {"conv1", "conv2"}
    assert not cost_profile.drop_single


@full
def test_published_bytes_one_way() -> None:
    # FedDHAD's networks: 4 bytes per parameter, and for ResNet18 the 9600 running means and variances.
    assert cost_profile_of("lenet5").nbytes(Payload()) == 248024
    assert cost_profile_of("cnn_3conv").nbytes(Payload()) == 490280
    assert cost_profile_of("vgg11").nbytes(Payload()) == 39003688
    resnet = cost_profile_of("resnet18_bn")
    assert resnet.nbytes(Payload()) == 45143328
    assert resnet.nbytes(Payload(collections=frozenset({"buffers"}))) == 38400
    assert resnet.nbytes(Payload(collections=frozenset({"params", "control"}))) == 2 * 45104928
    assert resnet.nbytes(Payload(collections=frozenset(), extra_bytes=4)) == 4
    assert resnet.drop_single


@full
@pytest.mark.parametrize(
    ("name", "count"),
    thinned([("resnet18_bn", 3), ("torchvision:resnet18", 2), ("torchvision:vit_b_16", 3)], [("resnet18_bn", 3)]),
)
def test_card_equals_counted_step_whatever_is_frozen(name: str, count: int) -> None:
    cls, fixed = find("model", name)
    plugin = cls(**fixed)
    with torch.device("meta"):
        module = plugin.build(plugin.native_input_shape, 10)
    cost_profile = measure(module, name, plugin.native_input_shape, 10)
    assert cost_profile.params == sum(value.numel() for value in module.parameters())
    for frozen in [frozenset[str](), *frozen_sets(cost_profile, count)]:
        assert cost_profile.train_flops(frozen) == counted_step(
            module, cost_profile, frozen, FlopCounterMode(display=False)
        )


@full
def test_vit_products_are_twelve_attentions() -> None:
    cost_profile = cost_profile_of("torchvision:vit_b_16")
    assert len(cost_profile.products) == 12  # one attention a block, each behind one more block's layers
    assert len({product.upstream for product in cost_profile.products}) == 12
    tokens, width = 14 * 14 + 1, 768
    for product in cost_profile.products:  # at least two products backward for each of the two forward, 12 heads of 64
        assert product.backward_flops % (2 * tokens**2 * width) == 0
        assert product.backward_flops >= 4 * 2 * tokens**2 * width


class Recurrent(nn.Module):
    """One layer used three times behind an encoder, a product of two inputs, a layer never used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.encoder = nn.Linear(6, 5)
        self.cell = nn.Linear(5, 5)
        self.head = nn.Linear(5, 4)
        self.scale = nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        state = self.encoder(x) * self.scale
        for _ in range(3):
            state = torch.tanh(self.cell(state))
        return self.head((state.unsqueeze(2) @ state.unsqueeze(1)).sum(2))


def test_a_layer_used_again_and_a_product() -> None:
    module = Recurrent().to("meta")
    cost_profile = measure(module, "recurrent", (6,), 4)
    assert cost_profile.layer_names[:4] == ("encoder", "", "cell", "head")
    assert {layer.name: layer.forward_flops for layer in cost_profile.layers} == {
        "encoder": 60, "": 2 * 5 * 5, "cell": 3 * 50, "head": 40, "unused": 0,
    }  # fmt: skip
    others = sum(product.backward_flops for product in cost_profile.products)
    assert others == 2 * 50 + 2 * 50  # second and third use of the cell, two sides of the product
    for bits in range(2**5):
        frozen = frozenset(name for place, name in enumerate(cost_profile.layer_names) if bits >> place & 1)
        if frozen >= {"encoder", "", "cell", "head"}:
            assert cost_profile.train_flops(frozen) == cost_profile.forward_flops()
            continue
        assert cost_profile.train_flops(frozen) == counted_step(
            module, cost_profile, frozen, FlopCounterMode(display=False)
        )


@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_convolutions_cost_the_same_backward_as_forward(transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    module = nn.Sequential(
        nn.Conv2d(1, 8, 1), kind(8, 8, 3, stride=2, padding=1, groups=4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    cost_profile = measure(module, "grouped", (1, 9, 9), 8)
    positions = 9 * 9 if transposed else 5 * 5  # each weight works once at every place of the smaller map
    wanted = 2 * (8 * 2 * 3 * 3) * positions
    grouped = cost_profile.layers[1]
    assert (grouped.forward_flops, grouped.weight_grad_flops, grouped.input_grad_flops) == (wanted, wanted, wanted)
    assert cost_profile.train_flops(frozenset({"0"})) == cost_profile.forward_flops() + wanted


def test_the_counter_agrees_with_torch_without_groups() -> None:
    weight, x = torch.empty(6, 3, 3, 3, requires_grad=True), torch.empty(2, 3, 9, 9, requires_grad=True)
    totals = []
    for counter in (flop_counter(), FlopCounterMode(display=False)):
        with counter:
            nn.functional.conv2d(x, weight, stride=2).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1] == 3 * 2 * weight.numel() * 4 * 4 * 2


def test_measuring_changes_nothing_and_is_repeatable() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    cost_profile = measure(module, "small", (1, 2, 2), 2)
    assert cost_profile == measure(module, "small", (1, 2, 2), 2, batch=5)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(value.grad is None for value in module.parameters())
    assert not any(inner._forward_hooks or inner._forward_pre_hooks for inner in module.modules())


def test_buffers_without_parameters_still_travel() -> None:
    cost_profile = measure(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False)), "plain", (4,), 3)
    assert [(layer.name, layer.params, layer.buffers) for layer in cost_profile.layers] == [("0", 15, 0), ("1", 0, 6)]


def test_a_network_whose_work_changes_is_refused() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x if self.calls == 1 else self.layer(x)

    module = nn.Sequential(nn.Linear(3, 3), Fickle())
    with pytest.raises(ConfigError, match="fickle cannot be priced: its operations are not the same in every pass"):
        measure(module, "fickle", (3,), 3)


@full
def test_json_gives_an_equal_card_back() -> None:
    for name in ("lenet5", "torchvision:vit_b_16"):
        cost_profile = cost_profile_of(name)
        text = cost_profile.to_json()
        assert CostProfile.from_json(text) == cost_profile
        assert CostProfile.from_json(text).to_json() == text


def test_json_lists_layers_sorted() -> None:
    layer = LayerCost("c", "Linear", 1, 0, 1 / 3, math.pi, 0.1, frozenset("hgfedb"))
    cost_profile = CostProfile("m", (1,), 2, (layer,), 0.5, (ProductCost(0.25, frozenset("c")),), True)
    assert [
        line.strip(' ",') for line in cost_profile.to_json().split("[")[3].split("]")[0].split("\n") if line.strip()
    ] == [*"bdefgh"]
    assert CostProfile.from_json(cost_profile.to_json()) == cost_profile


def test_json_that_is_no_card() -> None:
    with pytest.raises(ConfigError, match="cost profile: "):
        CostProfile.from_json("{}")
    with pytest.raises(ConfigError, match="cost profile: "):
        CostProfile.from_json("no json")


def test_unknown_layers_are_refused() -> None:
    cost_profile = cost_profile_of("mlr")
    with pytest.raises(ValueError, match="mlr has no layer 'fc9'"):
        cost_profile.train_flops(frozenset({"fc9"}))
    with pytest.raises(ValueError, match="mlr has no layer 'fc9'"):
        cost_profile.nbytes(Payload(layers=frozenset({"fc9"})))
    for count in (0, 2):
        with pytest.raises(ValueError, match="mlr has 1 layers"):
            cost_profile.before_last(count)


def test_prices_by_hand() -> None:
    # b reads a; a product reads both. Frozen {b}: forward 111, a's weights 10, back through b 200, product 3000.
    layers = (
        LayerCost("a", "Linear", 2, 0, 1.0, 10.0, 100.0, frozenset()),
        LayerCost("b", "Linear", 3, 4, 10.0, 20.0, 200.0, frozenset({"a"})),
    )
    cost_profile = CostProfile("hand", (1,), 2, layers, 100.0, (ProductCost(3000.0, frozenset({"a", "b"})),))
    assert cost_profile.params == 5
    assert cost_profile.forward_flops() == 111.0
    assert cost_profile.train_flops() == 111 + 10 + 20 + 200 + 3000
    assert cost_profile.train_flops(frozenset({"b"})) == 111 + 10 + 200 + 3000
    assert cost_profile.train_flops(frozenset({"a"})) == 111 + 20 + 3000
    assert cost_profile.train_flops(frozenset({"a", "b"})) == 111
    assert cost_profile.nbytes(Payload()) == 4 * (5 + 4)


REGNETS = [f"regnet_{each}" for each in (
    "x_400mf", "x_800mf", "x_1_6gf", "x_3_2gf", "x_8gf", "x_16gf", "x_32gf",
    "y_400mf", "y_800mf", "y_1_6gf", "y_3_2gf", "y_8gf", "y_16gf", "y_32gf", "y_128gf",
)]  # fmt: skip
MULTIPLY_ADDS = {"regnet_x_400mf": 0.413e9, "regnet_y_400mf": 0.402e9}  # printed by torchvision, in units of 1e9


@full
@pytest.mark.parametrize("name", thinned(REGNETS[::7], {"regnet_x_400mf"}))
def test_networks_that_compute_their_sizes_with_tensors_have_a_price(name):
    """The constructor of RegNet needs the numbers of some tensors, but memory is checked without any."""
    cls, fixed = find("model", f"torchvision:{name}")
    module = build_model(cls(**fixed), (3, 224, 224), 1000, Key(0))
    with flop_counter() as counter:
        applied(module, on_meta(module), torch.empty(2, 3, 224, 224, device="meta"))
    multiply_adds = counter.get_total_flops() / 2 / 2
    assert multiply_adds == pytest.approx(MULTIPLY_ADDS.get(name, multiply_adds), rel=0.003)


class Autocast(nn.Module):
    """A network that names the device of its input, of which autocast may know none without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y = self.layer(x)
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            return (y + self.layer(x)).float()


def test_networks_that_use_autocast_have_a_price():
    """Two uses of 4 x 3 weights, forward and backward, without an input gradient."""
    assert measure(Autocast(), "autocast", (4,), 3).train_flops() == 2 * 2 * 2 * 4 * 3
    with pytest.raises(RuntimeError):  # the name is known only while a network runs without numbers
        torch.autocast("meta", dtype=torch.bfloat16)


def test_fused_attention_of_cpus_has_flops():
    """Forward two products of 5 x 5 x 8 for each of 2 x 3 heads, backward five."""
    q = torch.ones(2, 3, 5, 8, requires_grad=True)
    with flop_counter() as counter:
        out = nn.functional.scaled_dot_product_attention(q, q, q)
        assert counter.get_total_flops() == 2 * 2 * 6 * 5 * 5 * 8
        out.sum().backward()
    assert counter.get_total_flops() == 2 * (2 + 5) * 6 * 5 * 5 * 8
