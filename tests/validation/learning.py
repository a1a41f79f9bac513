"""FLOPs charged and memory predicted, against PyTorch's own counter and hooks on real training steps."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from edgesim.core.task import Submodel
from tests.conftest import digits_scenario, frames, simulate_null
from tests.contracts.support import prepare
from tests.learning.test_training_memory import held_bytes, network, told
from tests.validation.checks import Item, Row, exact

SAMPLES = 50  # batches of 16 and a last one of 2
ONE_ROUND = {  # energy ends the run before anything is evaluated, so that all FLOPs counted are those of training
    "evaluation": {"every": 1000},
    "stop": {"energy": 1e-9},
}


# --- FLOPs --------------------------------------------------------------------------------------------------


def flops() -> list[Row]:
    """Return FLOPs in the jobs table beside those counted on real steps of the network for 8 x 8 digits."""
    return [*_frozen(), _half_width(), *_masked()]


def _frozen() -> list[Row]:
    """Train with edgesim's own trainer while PyTorch counts; level n of FedPMT trains the last n of three layers."""
    rows = []
    for level, what in ((3, "every layer trained"), (2, "first layer frozen"), (1, "only the head trained")):
        simulation = prepare(_digits(level, "fedpmt", training={"batch": 16, "lr": 0.1, "local_epochs": 2}))
        with FlopCounterMode(display=False) as counter:
            simulation.run()
        charged = frames(simulation)["jobs"]["flops"].sum()
        rows.append(exact(f"{what}: FLOPs of 2 epochs of {SAMPLES} samples", counter.get_total_flops(), int(charged)))
    return rows


def _half_width() -> Row:
    half = {"conv1": range(0, 16, 2), "conv2": range(0, 32, 2)}
    charged = _charged({"channels": {group: list(channels) for group, channels in half.items()}})
    return exact("half of the channels kept", _counted(_digits_cnn(8, 16)), charged)


def _masked() -> list[Row]:
    # 14 of 144 weights, 461 of 4608, 128 of 1280; forward FLOPs of a sample are 2 x 64 x 9 x 16, 2 x 16 x 9 x 16 x 32
    # and 2 x 128 x 10, weight gradients cost as much and, but for the first layer, input gradients too
    module, kept = _digits_cnn(16, 32), {"conv1": 14, "conv2": 461, "fc1": 128}
    with torch.no_grad():
        for name, count in kept.items():
            module.get_submodule(name).weight.view(-1)[count:] = 0
    ideal = (2 * 18432 * 14 // 144) + (3 * 147456 * 461 // 4608) + (3 * 2560 * 128 // 1280)
    mask = {"nonzero": kept}
    return [
        exact("90 % of the weights zero, dense account", _counted(module), _charged(mask)),
        exact("90 % of the weights zero, ideal-sparse account", SAMPLES * ideal, _charged(mask, sparse="ideal")),
    ]


def _digits(level: int, method: Any, **changes: Any) -> Any:
    """Return a scenario of one device with some of the digits."""
    return digits_scenario(
        partition={"name": "iid", "samples_per_device": SAMPLES},
        fleet=[{"level": level, "cpu": {"flops_per_s": "100 MFLOP/s"}}],
        selection="all",
        method=method,
        **{**ONE_ROUND, **changes},
    )


def _charged(submodel: dict[str, Any], **cost: Any) -> int:
    method = {"name": "tests.validation.work:TrainPart", **submodel}
    jobs = frames(simulate_null(_digits(1, method, cost={"name": "measured", **cost})))["jobs"]
    return int(jobs["flops"].sum())


def _digits_cnn(first: int, second: int) -> nn.Module:
    """Return the layers of `cnn_digits`, written out, with so many channels."""
    layers = {
        "conv1": nn.Conv2d(1, first, 3, padding=1),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(first, second, 3, padding=1),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(4 * second, 10),
    }
    return nn.Sequential(OrderedDict(layers))


def _counted(module: nn.Module) -> int:
    """Return the FLOPs of one real training step on all samples."""
    x, labels = torch.zeros(SAMPLES, 1, 8, 8), torch.zeros(SAMPLES, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        cross_entropy(module(x), labels).backward()
    return counter.get_total_flops()


# --- memory -------------------------------------------------------------------------------------------------

MODELS = ("cnn_digits", "lenet5", "cnn_m", "resnet18_bn", "torchvision:squeezenet1_0")
BATCH = 3


def memory() -> list[Row]:
    """Return bytes of weights, gradients and saved activations of five networks, whole and half frozen."""
    rows = []
    for name in MODELS:
        module, cost_profile = network(name)
        halves = cost_profile.before_last(len(cost_profile.layers) - len(cost_profile.layers) // 2)
        totals = []
        for what, frozen in (("whole", frozenset[str]()), ("first half frozen", halves)):
            held = held_bytes(module, cost_profile, frozen, BATCH)
            found = told(cost_profile, BATCH, Submodel(frozen=frozen))
            for kind, expected, predicted in zip(("weights", "gradients", "activations"), held, found, strict=True):
                rows.append(exact(f"{name}, {what}: {kind}, bytes", expected, predicted))
            totals.append(cost_profile.memory_bytes(Submodel(frozen=frozen), BATCH).total)
        rows.append(exact(f"{name}: freezing lowers the peak", "yes", "yes" if totals[1] < totals[0] else "no"))
    return rows


ITEMS = (
    Item(
        "FLOPs charged are FLOPs run",
        "`torch.utils.flop_counter.FlopCounterMode` around real steps on the CPU: edgesim's own trainer with frozen "
        f"layers; networks of half the width and with masked weights, written out, with {SAMPLES} samples; the "
        "ideal-sparse account by hand, FLOPs x share of nonzero weights",
        flops,
    ),
    Item(
        "Predicted peak memory",
        f"`torch.autograd.graph.saved_tensors_hooks` and the tensors of a real step, batch {BATCH}",
        memory,
    ),
)
