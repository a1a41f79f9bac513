"""Networks against the sizes their papers state, and the way from a part to starting weights."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save_file
from torch import nn

from edgesim.config.plugins import find, plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT
from edgesim.core.rng import Key
from edgesim.learning.measure.step import measure
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.models.build import build_model, check_fits, model_state_of
from edgesim.learning.models.chains import CnnCifar10, CnnM, Lenet5, Mlr
from edgesim.learning.models.deep_chains import Vgg11
from edgesim.learning.models.torchvision_family import TorchvisionModel
from tests.sizes import spread

# Parameters per layer: (kernel^2 * channels in + 1) * channels out, or (inputs + 1) * outputs. Totals are those that
# the FedAdp, FedPNS, FedPMT, FedDHAD and DA-DPFL papers (or their authors' code) give.
PARAMS = {
    "mlr": [7850],
    "mlr_syn": [610],
    "cnn_a": [832, 51264, 524800, 5130],
    "cnn_a_same": [832, 51264, 1606144, 5130],
    "cnn_m": [260, 5020, 16050, 510],
    "lenet5": [456, 2416, 48120, 10164, 850],
    "fcnn": [314000, 120300, 60200, 20100, 1010],
    "cnn_mnist": [208, 3216, 32896, 1290],
    "cnn_cifar10": [1216, 12832, 400500, 150300, 3010],
    "cnn_digits": [160, 4640, 1290],
    "cnn_3conv": [896, 18496, 36928, 65600, 650],
    # Tables of 80 x 128; a block of 12 x 128^2 + 13 x 128 with norms of 2 x 128, attention (128 + 1) x 4 x 128 of which
    # the first layer has three quarters, then (128 + 1) x 512 and (512 + 1) x 128; a norm, (128 + 1) x 80.
    "transformer_char": [10240, 10240, *4 * [198272, 256, 66048, 49536, 16512, 256, 66048, 65664], 256, 10320],
}
TOTALS = {
    "cnn_a": 582026,
    "cnn_a_same": 1663370,
    "cnn_m": 21840,
    "lenet5": 62006,
    "fcnn": 515610,
    "cnn_mnist": 37610,
    "cnn_cifar10": 567858,
    "cnn_3conv": 122570,
    "vgg11": 9750922,
    "vgg11_gn": 9277284,
    "resnet18_bn": 11276232,
    "resnet18_gn": 11173962,
    "alexnet_small": 23259975,
    "lstm_char": 819920,
    "transformer_char": 824144,
}
SHIPPED = sorted(name for name in plugins_of("model") if not name.endswith(":"))


def on_meta(name: str, input_shape: tuple[int, ...] | None = None, classes: int | None = None) -> nn.Module:
    part = find("model", name)[0]()
    with torch.device("meta"):
        return part.build(input_shape or part.native_input_shape, classes or part.native_classes)


def size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


class Probe(nn.Module):
    """A user's network: one linear layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.only = nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.only(x)


class Foreign:
    def __init__(self, cls: type, **args: int) -> None:
        self.cls, self.args = cls, args


@pytest.mark.parametrize("name", PARAMS)
def test_parameters_of_every_layer(name: str) -> None:
    layers = {path: module for path, module in on_meta(name).named_modules() if path and size(module)}
    assert [size(module) for module in layers.values()] == PARAMS[name]


@pytest.mark.parametrize("name", TOTALS)
def test_published_totals(name: str) -> None:
    assert size(on_meta(name)) == TOTALS[name]


def test_published_totals_with_other_class_counts() -> None:
    assert size(on_meta("lenet5", classes=100)) == 69656
    assert size(on_meta("cnn_3conv", classes=100)) == 128420
    assert size(on_meta("resnet18_gn", classes=100)) == 11220132
    assert size(on_meta("vgg11_gn", classes=10)) == 9231114
    assert size(on_meta("alexnet_small", classes=10)) == 23272266


@pytest.mark.parametrize("width", [2, 16, 64, 96])
def test_a_resnet_of_any_width(width: int) -> None:
    """Parameters by hand, with biases and without; norms of 2, 4, 8 and 16 channels a group, whatever the width."""
    with torch.device("meta"):
        without = find("model", "resnet18_gn")[0](width=width).build((3, 32, 32), 10)
        biased = find("model", "resnet18_bn")[0](width=width).build((3, 32, 32), 10)
    stages = [width * n for n in (1, 2, 4, 8)]
    convs = 27 * width + 4 * 9 * width**2 + sum((4.5 + 27 + 0.5) * c**2 for c in stages[1:])
    outputs = 5 * width + sum(
        5 * c for c in stages[1:]
    )  # of all convolutions, each with a norm of two numbers a channel
    head = 10 * stages[-1] + 10
    assert size(without) == convs + 2 * outputs + head
    assert size(biased) == convs + 3 * outputs + head
    norms = [module for module in without.modules() if isinstance(module, nn.GroupNorm)]
    assert {norm.num_channels // norm.num_groups for norm in norms} == {2, 4, 8, 16}
    check_fits(without, (3, 32, 32), 10)


@pytest.mark.parametrize("name", SHIPPED)
def test_native_inputs_fit_and_seven_classes_too(name: str) -> None:
    part = find("model", name)[0]()
    check_fits(on_meta(name), part.native_input_shape, part.native_classes, part.native_objective)
    check_fits(on_meta(name, classes=7), part.native_input_shape, 7, part.native_objective)


@pytest.mark.parametrize("name", ["mlr", "fcnn", "cnn_digits"])
def test_small_networks_run_on_scikit_learn_digits(name: str) -> None:
    module = build_model(find("model", name)[0](), (1, 8, 8), 10, Key(1))
    assert module(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_layers_are_named_in_forward_order() -> None:
    names = [name for name, module in on_meta("lenet5").named_modules() if name and size(module)]
    assert names == ["conv1", "conv2", "fc1", "fc2", "fc3"]


def test_lenet_is_the_function_of_its_paper() -> None:
    module = build_model(Lenet5(), (3, 32, 32), 10, Key(3))
    x = torch.from_numpy(Key(4).numpy().normal(size=(2, 3, 32, 32)).astype(np.float32))
    w = dict(module.named_parameters())
    f = nn.functional
    maps = x
    for name in ("conv1", "conv2"):  # ReLU before pooling, as the paper draws it
        maps = f.max_pool2d(f.relu(f.conv2d(maps, w[f"{name}.weight"], w[f"{name}.bias"])), 2)
    channels = maps.flatten(1)
    for name in ("fc1", "fc2"):
        channels = f.relu(f.linear(channels, w[f"{name}.weight"], w[f"{name}.bias"]))
    torch.testing.assert_close(module(x), f.linear(channels, w["fc3.weight"], w["fc3.bias"]))


# l1: f -> f, l2: f -> 256 and 256 -> C in the place of f -> C; products of the whole network on one sample, from the
# layer lists of the FedDHAD paper. ResNet18 has 555,520,000 for 200 classes without the head.
@pytest.mark.parametrize(
    ("name", "classes", "features", "params", "products"),
    spread(
        [
            ("lenet5", 10, 84, 92626, 682000),
            ("lenet5", 100, 84, 115756, 705040),
            ("cnn_3conv", 10, 64, 145290, 4571008),
            ("cnn_3conv", 100, 64, 168420, 4594048),
            ("vgg11", 10, 512, 9617034, 153160192),  # on the output of the convolutions, as in the paper's table
            ("resnet18_bn", 200, 512, 11619016, 555520000 - 512 * 200 + 512 * 512 + 512 * 256 + 256 * 200),
        ],
        1,
    ),
)
def test_projection_head(name: str, classes: int, features: int, params: int, products: int) -> None:
    """MOON's head: its last layer sees 256 numbers."""
    module = find("model", name)[0](projection=256).build((3, 32, 32), classes)
    assert size(module) == params
    assert measure(module, name, (3, 32, 32), classes).forward_flops() == 2 * products
    layers = [inner for inner in module.modules() if isinstance(inner, nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in layers]
    assert sizes[-3:] == [(features, features), (features, 256), (256, classes)]


def test_projection_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Lenet5).validate_python({"projection": 0})


def test_dropout_of_cnn_m_is_an_option() -> None:
    kinds = [type(layer) for layer in CnnM().build((1, 28, 28), 10)]
    assert kinds.count(nn.Dropout2d) == kinds.count(nn.Dropout) == 1
    kinds = [type(layer) for layer in CnnM(fc_dropout=0.0).build((1, 28, 28), 10)]
    assert nn.Dropout2d in kinds and nn.Dropout not in kinds
    with pytest.raises(ValidationError):
        TypeAdapter(CnnM).validate_python({"conv_dropout": 1.0})


def test_vgg11_convolutions_start_from_he_fan_out() -> None:
    convs = [layer for layer in build_model(Vgg11(), (3, 32, 32), 10, Key(5)) if isinstance(layer, nn.Conv2d)]
    for conv in convs:
        wanted = (2 / (3 * 3 * conv.out_channels)) ** 0.5
        assert float(conv.weight.detach().std()) == pytest.approx(wanted, rel=0.06)
        assert not conv.bias.any()


# --- what does not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "least"), [("cnn_cifar10", 16), ("lenet5", 16), ("cnn_3conv", 18), ("vgg11", 32), ("cnn_a_same", 4)]
)
def test_least_image_is_named_and_is_the_least(name: str, least: int) -> None:
    # Back from one pixel: x2 for pooling, +kernel-1 for an unpadded convolution, so lenet5 has ((1*2+4)*2)+4 = 16.
    check_fits(on_meta(name, (3, least, least), 10), (3, least, least), 10)
    with pytest.raises(ConfigError, match=rf"model.name: \w+ needs .* at least {least}x{least} pixels, data gives 3x"):
        on_meta(name, (3, least, least - 1))


def test_features_do_not_fit_a_convolution() -> None:
    with pytest.raises(ConfigError, match="data gives 60"):
        build_model(Lenet5(), (60,), 10, Key(1))
    with pytest.raises(ConfigError, match="ResNet18 cannot take inputs of 60"):
        build_model(find("model", "resnet18_gn")[0](), (60,), 10, Key(1))


@pytest.mark.parametrize(
    ("name", "keys", "shape"),
    [
        ("mlp", {"hidden": (MOST_COUNT, MOST_COUNT)}, (3,)),
        ("lstm_char", {"hidden": MOST_COUNT}, (8,)),
        ("transformer_char", {"width": MOST_COUNT, "heads": 1}, (8,)),
    ],
)
def test_tensors_that_no_machine_could_count_are_one_line(
    name: str, keys: dict[str, object], shape: tuple[int, ...]
) -> None:
    """MOST_COUNT squared is 2^62 numbers, of four bytes each."""
    cls, _ = find("model", name)
    with pytest.raises(ConfigError, match=rf"^model: cannot make {cls.__name__}: .*overflow") as caught:
        build_model(cls(**keys), shape, 5, Key(1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "most"), [("lstm_char", 8), ("transformer_char", 100)])
def test_as_many_layers_as_nobody_waits_for_are_refused(name: str, most: int) -> None:
    with pytest.raises(ValidationError, match=rf"layers\n.*less than or equal to {most}\b"):
        TypeAdapter(find("model", name)[0]).validate_python({"layers": MOST_COUNT})


def test_check_fits_says_what_is_wrong_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Probe cannot take inputs of 5: .*") as caught:
        check_fits(Probe(3), (5,), 3)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"Probe must give \(2, 4\) for two inputs of 4, gives \(2, 3\)"):
        check_fits(Probe(3), (4,), 4)


def test_checking_leaves_weights_counters_and_generator_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    check_fits(module, (1, 2, 2), 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


# --- starting weights --------------------------------------------------------------------------------------------


def test_weights_depend_on_the_key_only() -> None:
    generator = torch.get_rng_state()
    one, same, other = (model_state_of(build_model(Lenet5(), (3, 32, 32), 10, key)) for key in (Key(1), Key(1), Key(2)))
    assert torch.equal(torch.get_rng_state(), generator)
    for name, value in one["params"].items():
        assert torch.equal(value, same["params"][name])
        assert not torch.equal(value, other["params"][name])


def test_convolutions_are_channels_last() -> None:
    conv = build_model(Lenet5(), (3, 32, 32), 10, Key(1)).get_submodule("conv2")
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_network_from_outside_is_called_with_its_arguments() -> None:
    assert size(build_model(Foreign(Probe, outputs=3), (4,), 3, Key(1))) == 15
    with pytest.raises(ConfigError, match=r"model: cannot make Probe: .*width"):
        build_model(Foreign(Probe, width=3), (4,), 3, Key(1))
    with pytest.raises(ConfigError, match=r"model.name: dict is not a torch.nn.Module"):
        build_model(Foreign(dict), (4,), 3, Key(1))


def test_bundle_holds_copies_of_floats_only() -> None:
    module = nn.BatchNorm2d(4)
    model_state = model_state_of(module)
    assert {kind: sorted(tensors) for kind, tensors in model_state.items()} == {
        "params": ["bias", "weight"],
        "buffers": ["running_mean", "running_var"],
    }
    model_state["params"]["weight"].zero_()
    assert float(module.weight.detach().sum()) == 4.0
    assert not model_state["params"]["weight"].requires_grad


def test_init_from_loads_a_state_dict(tmp_path) -> None:
    path = tmp_path / "start.safetensors"
    saved = Mlr().build((1, 8, 8), 10)
    save_file(saved.state_dict(), path)
    loaded = build_model(Mlr(init_from=path), (1, 8, 8), 10, Key(1))
    assert torch.equal(loaded.get_submodule("fc1").weight, saved.get_submodule("fc1").weight)


def test_init_from_tells_what_differs(tmp_path) -> None:
    path = tmp_path / "start.safetensors"
    save_file({"fc1.weight": torch.zeros(10, 7), "head.bias": torch.zeros(1)}, path)
    wanted = "fc1.bias is missing; head.bias is not in the model; fc1.weight is (10, 7), the model has (10, 64)"
    with pytest.raises(ConfigError) as caught:
        build_model(Mlr(init_from=path), (1, 8, 8), 10, Key(1))
    assert str(caught.value) == f"model.init_from: {path} does not fit: {wanted}"
    save_file({"a": torch.zeros(1)}, path)  # ten tensors of lenet5 are missing, and this one is unknown
    with pytest.raises(ConfigError, match=r"conv1.weight is missing; conv1.bias is missing; .* and 8 more"):
        build_model(Lenet5(init_from=path), (3, 32, 32), 10, Key(1))


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_init_from_that_cannot_be_read(tmp_path, content: bytes | None) -> None:
    path = tmp_path / "start.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"start.safetensors: (cannot be read: No such|not a readable safetensors) file"
    ):
        build_model(Mlr(init_from=path), (1, 8, 8), 10, Key(1))


# --- frozen layers -------------------------------------------------------------------------------------------------


def test_frozen_layers_do_not_train_and_are_not_sent() -> None:
    """A pattern freezes the layers that it matches, and all that is in a layer of its name."""
    whole = model_state_of(build_model(Lenet5(), (1, 28, 28), 10, Key(1)))["params"]
    head = model_state_of(build_model(Lenet5(freeze=("conv*", "fc1")), (1, 28, 28), 10, Key(1)))["params"]
    assert list(head) == ["fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"]
    assert all(torch.equal(value, whole[name]) for name, value in head.items())
    body = find("model", "resnet18_gn")[0](freeze=("conv1", "norm1", "blocks"))
    assert list(model_state_of(build_model(body, (3, 32, 32), 10, Key(1)))["params"]) == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("freeze", "says"),
    [
        (("conv9",), r"'conv9'; did you mean 'conv2'\? \(layers: conv1, conv2, fc1, fc2, fc3\)$"),
        (("relu_fc1",), "model.freeze: no layer with parameters has a name like 'relu_fc1'"),
        (("*",), "model.freeze: all layers with parameters have such names; one at least must not be frozen"),
    ],
)
def test_freezing_nothing_or_everything_is_refused(freeze: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_model(Lenet5(freeze=freeze), (1, 28, 28), 10, Key(1))


# --- the torchvision family --------------------------------------------------------------------------------------


def test_torchvision_by_name() -> None:
    cls, fixed = find("model", "torchvision:resnet18")
    with torch.device("meta"):
        assert size(cls(**fixed).build((3, 224, 224), 1000)) == 11689512  # torchvision's documentation of resnet18


def test_torchvision_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no classification model 'resnet19'; did you mean 'resnet1"):
        TorchvisionModel(member="resnet19").build((3, 224, 224), 10)


def test_every_part_is_a_frozen_dataclass_that_pydantic_reads() -> None:
    for name, cls in plugins_of("model").items():
        assert issubclass(cls, ModelPlugin)
        fixed = {"member": "resnet18"} if name.endswith(":") else {}
        assert TypeAdapter(cls).validate_python({**fixed, "init_from": "start.safetensors"}).init_from.name
    with pytest.raises(AttributeError):
        CnnCifar10().init_from = None  # type: ignore[misc]


def test_the_card_module_needs_no_torch() -> None:
    check = "import sys, edgesim.core.price_list; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
