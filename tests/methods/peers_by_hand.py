"""Rounds among peers on paper: a model of one row of weights, gradients that are given, messages passed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from edgesim.core.backend import Assignment
from edgesim.core.encoding import FLOAT32
from edgesim.core.local_sgd import Training
from edgesim.core.method import LocalState
from edgesim.core.peer_graph import PeerGraph, from_edges
from edgesim.core.task import Task
from edgesim.core.update import ModelState, Update
from edgesim.learning.codec.encode import uplinked
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from tests.methods.hand_made import KEY, setting_of
from tests.plugins.one_number import Ones

PAIR = ((0, 1), (1, 0))  # source and target
PATH = (*PAIR, (1, 2), (2, 1))  # 0 - 1 - 2


def graph_of(devices: int, edges: Sequence[tuple[int, int]]) -> PeerGraph:
    """Return who hears whom."""
    sources, targets = np.array(edges).T
    return from_edges(devices, sources, targets)


def row(*numbers: float, bias: float | None = None) -> ModelState:
    """Return a model of one row of weights, and a bias if it is given."""
    params = {"w.weight": torch.tensor([numbers])}
    if bias is not None:
        params["w.bias"] = torch.tensor([bias])
    return {"params": params, "buffers": {}}


def numbers_of(model: Mapping[str, Any]) -> list[float]:
    """Return the row of weights of a model or message."""
    values: list[float] = torch.as_tensor(model["params"]["w.weight"])[0].tolist()
    return values


def task_of(
    method: Any,
    edges: Sequence[tuple[int, int]],
    round_: int,
    weights: int = 1,
    samples: Sequence[int] = (1, 1, 1),
    **training: Any,
) -> Task:
    """Return what a method asks devices with so many samples to do in a round, after rounds in which all did it."""
    setting = setting_of(samples, {"w": weights}, training=Training(**{"lr": 1.0, "batch": 1, **training}))
    layer = replace(setting.cost_profile.layers[0], weights=weights)
    everybody = np.arange(len(samples))
    view = SimpleNamespace(
        setting=replace(setting, cost_profile=replace(setting.cost_profile, layers=(layer,))),
        peers=graph_of(len(samples), edges),
        idle=everybody,
        round=round_,
        last=[SimpleNamespace(outcome="ok", job=SimpleNamespace(round=round_ - 1)) for _ in everybody],
    )
    task: Task = method.plan(method.init(view.setting, KEY), view, KEY).orders[0].task
    return task


def work(
    method: Any,
    task: Task,
    device: int,
    global_model: ModelState,
    device_state: ModelState | None = None,
    received: Sequence[Update] = (),
    gradient: Callable[[torch.Tensor], torch.Tensor] = torch.zeros_like,
) -> tuple[Update, ModelState]:
    """Let a device with one sample do its job, with this gradient of its weights; return its message and memory."""
    module, rule = nn.Module(), method.local(task)
    module.w = nn.Module()
    for name, tensor in global_model["params"].items():
        setattr(module.w, name.removeprefix("w."), nn.Parameter(torch.zeros_like(tensor)))
    job = Assignment(0, device, task, KEY.at(device), global_model, device_state, received)
    context = Context(module, Ones(samples=1).load(), torch.arange(1), job, False)

    def given(local: LocalState, *_: Any) -> list[torch.Tensor]:
        return [gradient(tensor) for tensor in local.weights["params"].values()]

    local = rule.on_start(context)
    for sgd, phase in zip(task.local_sgd, rule.phases, strict=True):
        run_local_sgd(local, sgd, replace(phase, gradient=given), context, KEY)
    body, keep, statistics, own, _ = rule.on_finish(local, context)
    sent = uplinked(body, task, FLOAT32, job.key)
    return Update(device, device, task, sent, 1, 1, 0, statistics, own_model=own), keep
