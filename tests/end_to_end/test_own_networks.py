"""Networks as people write them: shared and frozen weights, bare parameters, and what is refused in one line."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.models.build import base_of, build_model, model_state_of
from edgesim.learning.submodel.slicing import thinner
from edgesim.learning.train.loop import batch_order
from tests.calling import call
from tests.learning.real_training import SAMPLES, STRETCH, Device, scored_kernels

NETS = "tests.plugins.own_networks"


# --- shared weights ---------------------------------------------------------------------------------------------


class Shared(nn.Module):
    """a and b have one weight of 12 x 12, and c is a; 16 units after them can be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = nn.Linear(16, 12), nn.Linear(12, 12), nn.Linear(12, 12)
        self.wide, self.out = nn.Linear(12, 16), nn.Linear(16, 3)
        self.b.weight, self.c = self.a.weight, self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.wide(self.b(self.c(self.a(self.first(x).relu()).relu()).relu())).relu())


def test_a_shared_weight_counts_once_and_belongs_to_its_first_layer() -> None:
    device = Device(Shared)
    cost_profile = device.cost_profile
    own = {"first": 16 * 12 + 12, "a": 12 * 12 + 12, "b": 12, "wide": 12 * 16 + 16, "out": 16 * 3 + 3}
    assert {layer.name: layer.params for layer in cost_profile.layers} == own
    used = 2 * 12 * 12  # of each of the three uses of the weight
    forward = 2 * (16 * 12 + 12 * 16 + 16 * 3) + 3 * used
    assert cost_profile.forward_flops() == forward
    # With all but a frozen: the weight's gradient from each use, the way back from the loss to the first of them.
    alone = frozenset(own) - {"a"}
    assert cost_profile.train_flops(alone) == forward + 3 * used + 2 * used + 2 * (12 * 16 + 16 * 3)
    # With all but b frozen only its bias is trained: its own weight stays as a has it.
    only_b = frozenset(own) - {"b"}
    assert cost_profile.train_flops(only_b) == forward + 2 * (12 * 16 + 16 * 3)
    for frozen in (frozenset[str](), alone, only_b):
        done = device.train(frozen)
        assert done.charged_flops == done.counted_flops
        moved = {n for n, t in done.body["params"].items() if not torch.equal(t, device.first["params"][n])}
        assert ("a.weight" in moved) == ("a" not in frozen)
    assert device.module.b.weight is device.module.a.weight and device.module.c is device.module.a


def test_a_thinner_network_shares_its_weights_too() -> None:
    device = Device(Shared)
    (group,) = device.cost_profile.groups  # units that meet the shared weight stay whole
    assert group.name == "wide"
    thin = thinner(device.module, Submodel(channels=((group.name, (0, 1)),)), device.cost_profile)
    assert thin.b.weight is thin.a.weight and thin.c is thin.a
    assert set(model_state_of(thin)["params"]) == set(device.first["params"])


def test_start_weights_need_no_second_names(tmp_path: Path) -> None:
    class Start(ModelPlugin):
        def build(self, input_shape: object, classes: int) -> nn.Module:
            return Shared()

    device, path = Device(Shared), tmp_path / "start.safetensors"
    saved = {name: tensor + 1 for name, tensor in device.first["params"].items()}
    save_file(saved, path)
    loaded = build_model(Start(init_from=path), (16,), 3, Key(1))
    assert all(torch.equal(t, saved[n]) for n, t in model_state_of(loaded)["params"].items())


# --- frozen by whoever wrote the network ------------------------------------------------------------------------


class Backbone(nn.Module):
    """A recurrent layer of which one weight is frozen, a frozen layer, and two that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.rnn = nn.Linear(16, 16), nn.RNN(4, 4, batch_first=True)
        self.hidden, self.out = nn.Linear(16, 8), nn.Linear(8, 3)
        self.fixed.requires_grad_(False)
        self.rnn.weight_hh_l0.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.rnn(self.fixed(x).view(-1, 4, 4))[0].flatten(1)).relu())


def test_what_its_author_froze_stays_and_is_not_charged() -> None:
    device = Device(Backbone)
    fixed = {"fixed.weight", "fixed.bias", "rnn.weight_hh_l0"}
    assert fixed.isdisjoint(device.first["params"]) and not device.first["buffers"]  # it does not travel
    before = {name: value.clone() for name, value in base_of(device.module).items()}
    assert before.keys() == fixed
    assert device.cost_profile.layer_names == ("fixed", "rnn", "hidden", "out")
    layer = device.cost_profile.layers[0]
    assert (layer.params, layer.buffers, layer.weight_grad_flops) == (0, 0, 0)
    assert (layer.base, layer.base_bytes) == (16 * 16 + 16, 4 * (16 * 16 + 16))
    # Forward of all; then no gradient into `fixed`, whose output is data to all others: as if there was no such layer.
    rest = 4 * 2 * (4 * 4) + 4 * 2 * (4 * 4) + 2 * (16 * 8 + 8 * 3)
    assert device.cost_profile.forward_flops() == 2 * 16 * 16 + rest
    for frozen in (frozenset[str](), frozenset({"fixed"}), frozenset({"rnn"}), frozenset({"hidden", "out"})):
        done = device.train(frozen)
        assert done.charged_flops == done.counted_flops
        assert not done.body["buffers"]
        assert all(torch.equal(value, before[name]) for name, value in base_of(device.module).items())
    assert device.cost_profile.train_flops() == device.cost_profile.train_flops(frozenset({"fixed"}))


# --- what has a price -------------------------------------------------------------------------------------------


class Embedded(nn.Module):
    """A table in front, which no gradient goes through to the data."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.hidden, self.table = nn.Linear(8, 3), nn.Linear(16 * 5, 8), nn.Embedding(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(self.table(x.long()).flatten(1)).relu())


def test_layers_after_an_embedding_are_priced_like_any() -> None:
    """Last 2 of 3: the way back to the table is not run. Orders follow the data, not the text."""
    cost_profile = Device(Embedded).cost_profile
    assert cost_profile.layer_names == ("table", "hidden", "out")
    forward = 2 * (80 * 8 + 8 * 3)
    assert cost_profile.train_flops() == forward + 2 * (80 * 8 + 80 * 8 + 8 * 3 + 8 * 3)
    assert cost_profile.train_flops(frozenset({"table"})) == forward + 2 * (80 * 8 + 8 * 3 + 8 * 3)
    assert [group.name for group in cost_profile.groups] == ["hidden"]
    formula = cost_profile.train_flops(include="all") - cost_profile.train_flops()
    assert formula > 8 + 3 * 5  # ReLU and softmax, to begin with


class SharedTable(nn.Module):
    """A weight that is a product of two: 2 x 16 x 5 x 8 FLOPs a step, whatever the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = (nn.Linear(*sizes, bias=False) for sizes in ((5, 8), (16, 5), (8, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.linear(x, self.left.weight @ self.right.weight))


def test_work_that_does_not_grow_with_the_batch_is_priced_by_the_step() -> None:
    cost_profile, once = Device(SharedTable).cost_profile, 2 * 16 * 5 * 8
    assert cost_profile.forward_flops() == 2 * (16 * 8 + 8 * 3)
    assert cost_profile.step_forward_flops == once
    assert cost_profile.step_flops() == 3 * once
    assert cost_profile.step_flops(Submodel(frozen=frozenset({"left"}))) == 2 * once
    assert cost_profile.step_flops(Submodel(frozen=frozenset({"left", "right"}))) == once
    samples, steps = np.array([10.0]), np.array([3.0])
    price = Measured().flops
    assert price(cost_profile, Pass(), Submodel(), samples, steps) == 10 * cost_profile.train_flops() + 3 * 3 * once
    assert price(cost_profile, Pass("forward", times=2.0), Submodel(), samples, steps) == 2 * (
        10 * cost_profile.forward_flops() + 3 * once
    )
    assert (
        price(cost_profile, Pass(samples=4), Submodel(), samples, steps) == 4 * cost_profile.train_flops() + 3 * once
    )  # one batch
    assert type(cost_profile).from_json(cost_profile.to_json()) == cost_profile


class Attentive(nn.Module):
    """Attention of 6 tokens to each other, width 4, as PyTorch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(len(x), 1, 6, 4)).chunk(3, dim=3)
        return self.out(F.scaled_dot_product_attention(q, k, v).flatten(1))


def test_the_fused_kernel_of_attention_computes_one_product_more_than_is_charged() -> None:
    """docs/explanation/prices.md says which path a price is for: forward 2 products, backward 4; the kernel takes 5."""
    device = Device(Attentive, features=24)
    with scored_kernels():
        done = device.train()
    assert done.charged_flops == done.counted_flops
    fused = device.train()
    assert fused.counted_flops - fused.charged_flops == 7 * 2 * 6 * 6 * 4


def test_networks_with_auxiliary_classifiers_are_built_without() -> None:
    cls, fixed = find("model", "torchvision:googlenet")
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("error")
        for args in ({}, {"aux_logits": False}):
            module = cls(**fixed, **args).build((3, 64, 64), 10)
            assert not [name for name, _ in module.named_modules() if name.startswith("aux") and name != "aux"]
            assert module.train()(torch.empty(2, 3, 64, 64)).shape == (2, 10)
    # 6,624,904 parameters for 1,000 classes by torchvision's documentation, which are those without auxiliary ones
    assert sum(p.numel() for p in cls(**fixed).build((3, 64, 64), 1000).parameters()) == 6624904


# --- what has none ----------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """Computes the middle again when gradients need it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.a, self.out, self.reentrant = nn.Linear(16, 16), nn.Linear(16, 3), reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.out(checkpoint(torch.tanh, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize(
    ("reentrant", "says"),
    [(False, "it saves tensors in its own way, as torch.utils.checkpoint does; leave that out"), (True, "checkpoint")],
)
def test_a_second_forward_pass_has_no_price(reentrant: bool, says: str) -> None:
    with pytest.raises(ConfigError, match=f"model.name: Checkpointed cannot be priced: .*{says}") as caught:
        Device(Checkpointed, reentrant=reentrant)
    assert "\n" not in str(caught.value)


REFUSED = {
    "{name='%s:Plain', hidden=-3}": (
        "model: cannot make Plain: Trying to create tensor with negative dimension -3: [-3, 64]"
    ),
    "{name='%s:Plain', fails='key'}": "model: cannot make Plain: KeyError 'width'",
    "{name='%s:Plain', fails='zero'}": "model: cannot make Plain: by zero",
    "{name='%s:Plain', fails='long'}": f"model: cannot make Plain: {('no ' * 500)[:160]}...",
    "'%s:AllFrozen'": "model.name: AllFrozen has no parameters to train; one at least must not be frozen",
    "'%s:Misspelt'": "model.name: Misspelt cannot take inputs of 1x8x8: 'Misspelt' object has no attribute 'c'",
    "'%s:TwoOutputs'": (
        "model.name: TwoOutputs must give (2, 10) for two inputs of 1x8x8, gives tuple; in training too it has to give "
        "its main output alone, without auxiliary ones"
    ),
    "'%s:Half'": "model.name: parameters of Half must be of torch.float32, a.weight is of torch.float16",
    "'%s:PairsOnly'": (
        f"model.name: {NETS}:PairsOnly cannot be priced: shape '[2, 64]' is invalid for input of size 192"
    ),
    "'%s:AcrossSamples'": (
        f"model.name: {NETS}:AcrossSamples cannot be priced: the work of Mm is in no proportion to the batch"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "says"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_is_wrong_is_said_in_one_line(here: Path, model: str, says: str) -> None:
    code, out, err = call("run", "scenario.toml", "--quiet", "--out", "run", "--set", f"model={model % NETS}")
    line, *frames = err.splitlines()
    assert (code, out, line) == (2, "", f"error: {says}")
    assert all("own_networks.py" in frame for frame in frames[::2])  # with the line of source below it
    assert not (here / "run").exists()


@pytest.mark.parametrize("method", ["fedavg", "fedpmt", "moon"])
def test_a_run_with_shared_weights_and_bare_parameters(here: Path, method: str) -> None:
    code, _, err = call(
        "run", "scenario.toml", "--quiet", "--set", f"model='{NETS}:Twice'", "--set", f"method={method}"
    )
    assert (code, err) == (0, "")


class Volume(nn.Module):
    """Sixteen numbers as a volume of 1 x 4 x 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv3d(1, 3, 2), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.view(-1, 1, 4, 2, 2)).relu().flatten(1))


def test_a_convolution_of_volumes_is_priced_and_trained() -> None:
    """Forward: 3 channels at 3 places, each a sum of 8 products, and 9 x 3; the first layer passes nothing back."""
    device = Device(Volume)
    convolution, linear = 2 * 3 * 3 * 8, 2 * 9 * 3
    assert device.cost_profile.forward_flops() == convolution + linear
    assert device.cost_profile.train_flops() == 2 * convolution + 3 * linear
    done = device.train()
    assert done.charged_flops == done.counted_flops
    w = {name: tensor.clone().requires_grad_() for name, tensor in device.first["params"].items()}
    key, data = Key(6).at(0), device.trainer.data
    for rows in batch_order(key.at(0), SAMPLES, STRETCH, drop_single=False):
        x, y = data.batch("train", rows)
        maps = F.conv3d(x.view(-1, 1, 4, 2, 2), w["a.weight"], w["a.bias"]).relu()
        loss = F.cross_entropy(F.linear(maps.flatten(1), w["b.weight"], w["b.bias"]), y)
        found = torch.autograd.grad(loss, list(w.values()))
        w = {n: (t - STRETCH.lr * g).detach().requires_grad_() for (n, t), g in zip(w.items(), found, strict=True)}
    for name, tensor in done.body["params"].items():
        torch.testing.assert_close(tensor, w[name].detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["serial", "{ name = 'cohort', size = 4 }"])
@pytest.mark.parametrize("encoding", ["{}", "{ up = { rank = 1, error_feedback = true } }"])
def test_a_run_with_a_convolution_of_volumes(here: Path, backend: str, encoding: str) -> None:
    backend = backend if backend.startswith("{") else f"'{backend}'"
    sets = [f"model='{NETS}:Volume'", f"backend={backend}", f"encoding={encoding}"]
    code, _, err = call("run", "scenario.toml", "--quiet", *(word for each in sets for word in ("--set", each)))
    assert (code, err) == (0, "")


def test_training_what_the_loss_does_not_depend_on_changes_nothing() -> None:
    class Unused(Shared):
        def __init__(self) -> None:
            super().__init__()
            self.spare, self.scale = nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False)

    device = Device(Unused)
    assert set(device.cost_profile.layer_names[-2:]) == {"spare", "scale"}
    for frozen in (
        device.cost_profile.before_last(1),
        device.cost_profile.before_last(2),
        frozenset(device.cost_profile.layer_names),
    ):
        done = device.train(frozen)
        assert done.charged_flops == done.counted_flops == 7 * device.cost_profile.forward_flops()
        assert all(torch.equal(t, device.first["params"][n]) for n, t in done.body["params"].items())
