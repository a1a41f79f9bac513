"""Settings, views and messages made by hand, so that a merge can be checked against numbers on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from edgesim.core.local_sgd import Training
from edgesim.core.method import ServerContext
from edgesim.core.price_list import CostProfile, LayerCost
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import Update
from edgesim.core.view import Setting
from edgesim.engine.reachability import Presence
from edgesim.engine.selection.rules import All
from edgesim.engine.view import FleetView, PeerGraphs
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.server import Averaging
from edgesim.world.availability.always import Always

KEY = Key(0)


def setting_of(samples: Sequence[int], layer_sizes: Mapping[str, int], **changes: Any) -> Setting:
    """Return a setting whose model has layers of these sizes and whose devices hold so many samples."""
    layers = tuple(LayerCost(n, "Linear", size, 0, 2.0, 2.0, 2.0, frozenset()) for n, size in layer_sizes.items())
    ones = np.ones(len(samples))
    setting = Setting(
        cost_profile=CostProfile("by hand", (1,), 2, layers),
        cost=Measured(),
        training=Training(),
        samples=np.array(samples),
        level=ones.astype(np.int64),
        flops_per_s=ones,
        up_bps=ones,
        down_bps=ones,
        latency_s=0 * ones,
        memory_bytes=np.full(len(samples), np.inf),
        deadline_s=float("inf"),
    )
    return replace(setting, **changes)


def view_of(setting: Setting, round_: int = 0) -> FleetView:
    """Return a view in which every device is idle and will be chosen."""
    return FleetView(
        setting=setting,
        now_s=0.0,
        version=round_,
        round=round_,
        exchange=0,
        last=(),
        presence=Presence(Always().build(len(setting.samples), KEY, "availability"), None),
        busy=np.zeros(len(setting.samples), dtype=bool),
        at_work=0,
        selection=All(),
        graphs=PeerGraphs(None, KEY),
    )


def server_of(view: Any = None, tools: Any = None) -> ServerContext:
    """Return what a server knows at a moment, with tools that average; `tools` have what else it can compute."""
    setting, round_ = (SimpleNamespace(cost_profile=None), 0) if view is None else (view.setting, view.round)
    return ServerContext(setting, round_, _Tools(tools))  # type: ignore[arg-type]


class _Tools(Averaging):
    """Tools that average as all do; everything else is that of others."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)


def model_of(layers: Mapping[str, Sequence[float]]) -> dict[str, dict[str, torch.Tensor]]:
    """Return a bundle with one parameter a layer."""
    return {"params": {f"{name}.weight": torch.tensor(values) for name, values in layers.items()}, "buffers": {}}


def message_of(
    device: int, samples: int, layers: Mapping[str, Sequence[float]], submodel: Submodel | None = None
) -> Update:
    """Return a message that carries these layers."""
    return Update(device, device, Task(submodel=submodel or Submodel()), model_of(layers), samples, 1, 0, {})


def merged_layers(
    method: Any, setting: Setting, global_model: Mapping[str, Sequence[float]], updates: Sequence[Update]
) -> Any:
    """Return the layers of the model that a method merges, as lists; None if there is no new model."""
    state = method.init(setting, KEY)
    merged = method.aggregate(state, model_of(global_model), updates, server_of(view_of(setting)), KEY)
    if merged.model is None:
        return None
    return {name.removesuffix(".weight"): tensor.tolist() for name, tensor in merged.model["params"].items()}
