"""Bytes of weights and gradients, and those kept for backward, against saved-tensor hooks of real steps and by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from edgesim.config.plugins import find
from edgesim.core.price_list import WHOLE, CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.learning.measure.step import measure
from edgesim.learning.models.build import build_model
from edgesim.learning.submodel.slicing import thinner
from tests.sizes import spread

MODELS = ("lenet5", "cnn_m", "cnn_3conv", "resnet18_bn", "vgg11_gn", "torchvision:squeezenet1_0")
SMALL = {"torchvision:squeezenet1_0": (3, 64, 64)}  # its own 224 pixels take longer and show no more


def network(name: str) -> tuple[nn.Module, CostProfile]:
    """A network of the catalogue for ten classes, and its cost profile."""
    cls, fixed = find("model", name)
    plugin = cls(**fixed)
    shape = SMALL.get(name, plugin.native_input_shape)
    module = build_model(plugin, shape, 10, Key(5))
    return module, measure(module, name, shape, 10)


def held_bytes(
    module: nn.Module, cost_profile: CostProfile, frozen: frozenset[str], batch: int
) -> tuple[int, int, int]:
    """Bytes of weights and buffers, of gradients, and of the storages that autograd keeps in one real step."""
    for name, layer in module.named_modules():
        layer.training = name not in frozen
    for name, value in module.named_parameters():
        value.requires_grad_(name.rpartition(".")[0] not in frozen)
    weights = [*module.parameters(), *module.buffers()]
    own = {value.untyped_storage().data_ptr() for value in weights}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = module(torch.zeros(batch, *cost_profile.input_shape))
        labels = torch.zeros(batch, *outputs.shape[2:], dtype=torch.int64)  # one a sample, or one at each position
        loss = cross_entropy(outputs, labels)
        activations = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
        trained = [value for value in module.parameters() if value.requires_grad]
        found = torch.autograd.grad(loss, trained, allow_unused=True) if trained else []
    gradients = sum(g.nbytes for g in found if g is not None)
    return sum(value.nbytes for value in weights), gradients, activations


def told(profile: CostProfile, batch: int, submodel: Submodel = WHOLE) -> tuple[int, int, int]:
    """The same three by the cost profile."""
    gradients = 4 * profile.submodel_params(submodel, trained_only=True)
    return profile.memory_bytes(submodel, batch).weights, gradients, profile.saved_bytes(submodel, batch)


@pytest.mark.parametrize("name", spread(MODELS, 1))
def test_prediction_equals_what_a_real_step_holds(name: str) -> None:
    module, cost_profile = network(name)
    thin = Submodel(channels=tuple((group.name, tuple(range(0, group.size, 2))) for group in cost_profile.groups))
    layers = len(cost_profile.layers)
    draws = Key(6).numpy()
    some = frozenset(layer for layer in cost_profile.layer_names if draws.random() < 0.5)
    cuts = [frozenset[str](), cost_profile.before_last(layers - layers // 3), cost_profile.before_last(1), some]
    for channels, small in (((), module), (thin.channels, thinner(module, thin, cost_profile))):
        totals = []
        for frozen in cuts:
            part = Submodel(channels=channels, frozen=frozen)
            assert told(cost_profile, 3, part) == held_bytes(small, cost_profile, frozen, 3)
            totals.append(cost_profile.memory_bytes(part, 3).total)
        # the longer the frozen prefix, the less, but no less than the peak of forward, which is the same
        assert totals[0] >= totals[1] >= totals[2] and totals[0] > totals[2]
    assert cost_profile.memory_bytes(thin, 3).total < cost_profile.memory_bytes(Submodel(), 3).total
    batches = [cost_profile.saved_bytes(WHOLE, batch) for batch in (2, 7)]
    assert batches == [held_bytes(module, cost_profile, frozenset(), batch)[2] for batch in (2, 7)]


def two_layers() -> CostProfile:
    """The cost profile of 4 inputs, 3 hidden units, 2 classes: 15 + 8 parameters."""
    return measure(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "two", (4,), 2)


def test_two_layers_by_hand() -> None:
    cost_profile = two_layers()
    # Kept of a sample: input 4 floats, ReLU's result 3 (shared with the second layer), log-softmax 2, an int64 label;
    # of a batch: the sum of class weights. The second layer's weights need the 3 too, the first's own input not.
    assert told(cost_profile, 10) == (4 * 23, 4 * 23, 10 * (4 * 9 + 8) + 4)
    head = Submodel(frozen=frozenset({"0"}))
    assert told(cost_profile, 10, head) == (4 * 23, 4 * 8, 10 * (4 * 5 + 8) + 4)
    # The first layer's gradients pass ReLU, which keeps its result.
    assert told(cost_profile, 10, Submodel(frozen=frozenset({"2"}))) == (4 * 23, 4 * 15, 10 * (4 * 9 + 8) + 4)
    assert told(cost_profile, 10, Submodel(frozen=frozenset({"0", "2"}))) == (4 * 23, 0, 0)
    momentum = cost_profile.memory_bytes(head, 10, moments=1)
    assert momentum.optimiser == 4 * 8
    assert momentum.total == sum(momentum) == cost_profile.memory_bytes(head, 10).total + 4 * 8


def test_a_thinner_network_by_hand() -> None:
    thin = Submodel(channels=(("0", (0, 2)),))
    assert told(two_layers(), 10, thin) == (4 * (10 + 6), 4 * (10 + 6), 10 * (4 * (4 + 2 + 2) + 8) + 4)


def test_batch_normalisation_keeps_its_statistics_only_while_it_trains() -> None:
    cost_profile = measure(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), "normed", (4,), 2)
    assert told(cost_profile, 10)[0] == 4 * (15 + 6 + 8 + 6) + 8  # the last is the count of batches, int64
    fixed = cost_profile.saved_bytes(Submodel(frozen=frozenset({"1"})), 10)
    assert (
        cost_profile.saved_bytes(WHOLE, 10) - fixed == 4 * 2 * 3
    )  # mean and deviation of each unit, whatever the batch


def test_factors_of_a_product_are_kept_for_each_other() -> None:
    class Gate(nn.Module):
        """Two branches of 4 inputs, 3 units each, multiplied."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x) * self.other(x)

    module = Gate()
    cost_profile = measure(module, "gate", (4,), 3)
    for frozen in (frozenset[str](), frozenset({"one"}), frozenset({"other"})):
        kept = cost_profile.saved_bytes(Submodel(frozen=frozen), 5)
        assert kept == held_bytes(module, cost_profile, frozen, 5)[2]
    # Input 4, the other branch's 3 results, log-softmax 3, label.
    assert cost_profile.saved_bytes(Submodel(frozen=frozenset({"one"})), 5) == 5 * (4 * 10 + 8) + 4


def test_a_function_that_does_not_tell_what_it_keeps_counts_as_always_kept() -> None:
    class Double(torch.autograd.Function):
        """Keeps its input, out of sight."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class Net(nn.Module):
        """4 inputs, 3 units through Double."""

        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Double.apply(self.one(x))

    cost_profile = measure(Net(), "double", (4,), 3)
    assert cost_profile.saved_bytes(WHOLE, 5) == 5 * (4 * (4 + 3 + 3) + 8) + 4
