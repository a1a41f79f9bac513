"""How close is the price of a step's memory to what PyTorch allocates? Peaks of 29 networks on the CPU.

The price is the peak of edgesim's cost profile, measured without numbers: weights, gradients, the optimiser's state,
activations and temporaries. PyTorch's peak is that of its CPU allocator in a real step of torch.optim, as its own
profiler reports it, on top of the tensors that exist before the step. The ratio is price to allocation.

Run: python benchmarks/memory.py [--networks NAME ...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from allocated import peak_bytes
from edgesim.config.plugin_fields import PartOf
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.learning.models.build import blank_inputs
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.network import network_of
from rows import Found, LeftOut, alone, compared

MIB = 2**20
CIFAR, MEDIUM, LARGE = (3, 32, 32), (3, 64, 64), (3, 224, 224)
AGAIN = {"layers": 4, "gradient_checkpointing": True}
LORA = {"r": 8, "targets": ["q_proj", "v_proj"]}
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda trained: torch.optim.SGD(trained, lr=0.01),
    "momentum": lambda trained: torch.optim.SGD(trained, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adam": lambda trained: torch.optim.Adam(trained, lr=0.001),
}
SETTINGS = {
    "sgd": LocalSGD(1, 0.01),
    "momentum": LocalSGD(1, 0.01, momentum=0.9, weight_decay=0.01),
    "adam": LocalSGD(1, 0.001, optimizer="adam"),
}


@dataclass(frozen=True)
class Step:
    """A network and its batch. `tokens`: size of the vocabulary, 0 if inputs are numbers."""

    model: str
    shape: tuple[int, ...]
    batch: int
    classes: int = 10
    tokens: int = 0
    optimizer: str = "sgd"
    keys: dict[str, Any] = field(default_factory=dict)


STEPS = {
    "mlp": Step("mlp", (1, 28, 28), 32),
    "lenet5": Step("lenet5", CIFAR, 32),
    "cnn_m": Step("cnn_m", (1, 28, 28), 32),
    "cnn_3conv, momentum": Step("cnn_3conv", CIFAR, 32, optimizer="momentum"),
    "vgg11_gn": Step("vgg11_gn", CIFAR, 16),
    "alexnet_small, adam": Step("alexnet_small", MEDIUM, 8, optimizer="adam"),
    "resnet18_bn": Step("resnet18_bn", MEDIUM, 8),
    "resnet18_gn": Step("resnet18_gn", CIFAR, 16),
    "resnet50": Step("torchvision:resnet50", MEDIUM, 8),
    "mobilenet_v2": Step("torchvision:mobilenet_v2", MEDIUM, 8),
    "mobilenet_v3_small, adam": Step("torchvision:mobilenet_v3_small", MEDIUM, 16, optimizer="adam"),
    "squeezenet1_0": Step("torchvision:squeezenet1_0", MEDIUM, 16),
    "shufflenet_v2_x0_5": Step("torchvision:shufflenet_v2_x0_5", MEDIUM, 16),
    "efficientnet_b0": Step("torchvision:efficientnet_b0", MEDIUM, 8),
    "densenet121": Step("torchvision:densenet121", MEDIUM, 4),
    "vit_tiny": Step("timm:vit_tiny_patch16_224", LARGE, 4),
    "convnext_atto": Step("timm:convnext_atto", MEDIUM, 8),
    "lstm_char": Step("lstm_char", (40,), 16, 80, tokens=80),
    "torch.nn.LSTM": Step("own_networks:OwnLstm", (40,), 16, 90, tokens=90),
    "transformer_char": Step("transformer_char", (64,), 16, 80, tokens=80),
    "torch.nn.TransformerEncoder": Step("own_networks:OwnEncoder", (64,), 16, 90, tokens=90),
    "gpt2, 2 blocks": Step("hf", (64,), 4, 2000, tokens=2000, keys={"config": "gpt2", "layers": 2, "vocabulary": 2000}),
    "gpt2, 2 blocks, fused attention, adam": Step(
        "hf", (64,), 4, 2000, 2000, "adam",
        {"config": "gpt2", "layers": 2, "vocabulary": 2000, "attention": "sdpa"},
    ),
    "bert, 2 blocks": Step(
        "hf", (64,), 8, 2, 2000, keys={"config": "bert-base", "layers": 2, "vocabulary": 2000, "task": "classification"}
    ),
    "vit-b-16, 2 blocks": Step("hf", LARGE, 2, keys={"config": "vit-b-16", "layers": 2, "task": "classification"}),
    "tiny-gpt2, 4 blocks, checkpointed": Step("hf", (64,), 32, 64, 64, keys={"config": "tiny-gpt2", **AGAIN}),
    "tiny-llama, 4 blocks, LoRA, checkpointed": Step(
        "hf", (64,), 32, 64, 64, keys={"config": "tiny-llama", "lora": LORA, **AGAIN}
    ),
    "llama, 1 block, LoRA": Step(
        "hf", (16,), 2, 2000, 2000, keys={"config": "llama-3.2-1b", "layers": 1, "vocabulary": 2000, "lora": LORA}
    ),
    "llama, 1 block, LoRA on bfloat16": Step(
        "hf", (16,), 4, 2000, 2000,
        keys={"config": "llama-3.2-1b", "layers": 1, "vocabulary": 2000, "lora": LORA, "dtype": "bfloat16"},
    ),
}  # fmt: skip
QUICK = {"networks": ("lenet5",)}


def rows(networks: tuple[str, ...] = tuple(STEPS)) -> Iterator[Found]:
    """Yield the price of each network and what PyTorch allocates."""
    for name in networks:
        step = STEPS[name]
        try:
            priced, measured = both(step)
        except ConfigError as error:  # such as a library that is not installed
            yield LeftOut(name, str(error))
            continue
        note = "Peak of a training step on one thread."
        found = {"price": [priced / MIB], "PyTorch": [measured / MIB]}
        yield from compared(found, "PyTorch", "MiB", note, about=f"{name}, batch {step.batch}")


@plain_torch()
def both(step: Step) -> tuple[int, int]:
    """Return the bytes of the price and of PyTorch's allocator."""
    model = PartOf("model").read({"name": step.model, **step.keys} if step.keys else step.model)
    objective = model.value.native_objective or CLASSIFICATION
    network = network_of(model, step.shape, step.classes, Key(1), objective=objective, vocabulary=step.tokens or None)
    x = blank_inputs(step.batch, step.shape, bool(step.tokens), "cpu").zero_()
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)  # as data sets give images
    with torch.no_grad():
        y = objective.some_labels(network.module(x)).zero_()
    of = SETTINGS[step.optimizer]
    need = network.cost_profile.memory_bytes(Submodel(), step.batch, of.moments, of.scratch)
    return need.total, peak_bytes(network.module, objective.loss, x, y, OPTIMIZERS[step.optimizer])


if __name__ == "__main__":
    alone(rows, QUICK)
