"""A layer of 3 inputs and 2 outputs with a low-rank adapter of rank 2, made by hand, and its merges."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from tests.methods.hand_made import KEY, server_of, setting_of, view_of

Matrix = Sequence[Sequence[float]]
A, B = "l.lora_A.default", "l.lora_B.default"


def layer(name: str, outputs: int, inputs: int, rows: str = "", columns: str = "") -> LayerCost:
    """Return a linear layer without bias, of an adapter."""
    size = outputs * inputs
    return LayerCost(
        name, "Linear", size, 0, 2.0 * size, 2.0 * size, 2.0 * size, frozenset(), weights=size, rows=rows,
        columns=columns, matrices=((outputs, inputs),),
    )  # fmt: skip


PROFILE = CostProfile(
    "by hand",
    (3,),
    2,
    (
        LayerCost("l.base_layer", "Linear", 0, 0, 12.0, 0.0, 0.0, frozenset()),
        layer(A, 2, 3, rows=A),
        layer(B, 2, 2, columns=A),
        LayerCost("head", "Linear", 1, 0, 2.0, 2.0, 2.0, frozenset()),
    ),
    groups=(ChannelGroup(A, 2),),
)
RANK1 = Submodel("rank1", width=1, channels=((A, (0,)),))


def model(a: Matrix, b: Matrix, head: float = 0.0) -> dict[str, dict[str, torch.Tensor]]:
    """Return a model state with these matrices and one other number."""
    params = {f"{A}.weight": torch.tensor(a), f"{B}.weight": torch.tensor(b), "head.weight": torch.tensor([head])}
    return {"params": {name: t.float() for name, t in params.items()}, "buffers": {}}


def update(device: int, samples: int, a: Matrix, b: Matrix, head: float = 0.0, **more: Any) -> Update:
    """Return an update of a device, of rank 1 if A has one row."""
    task = Task(submodel=RANK1 if len(a) == 1 else Submodel(), config=more.pop("config", {}))
    return Update(device, device, task, model(a, b, head), samples, 1, 0, more.pop("statistics", {}))


def merged(method: Any, state: Any, before: Any, updates: Sequence[Update], network: Any = None) -> Any:
    """Return the aggregate of a method over these updates of devices with 100 samples in all."""
    setting = setting_of([25, 75], {}, cost_profile=PROFILE)
    state = method.init(setting, KEY) if state is None else state
    return method.aggregate(state, before, updates, server_of(view_of(setting), SimpleNamespace(network=network)), KEY)


def product_of(params: Any, name: str = "l") -> torch.Tensor:
    """Return B A of an adapter."""
    return params[f"{name}.lora_B.default.weight"].double() @ params[f"{name}.lora_A.default.weight"].double()
