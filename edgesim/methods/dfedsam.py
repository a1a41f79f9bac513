"""DFedSAM: peers average with their neighbours and train by sharpness-aware steps, so that their models agree better.

Source: Shi et al., "Improving the Model Consistency of Decentralized Federated Learning" (ICML 2023), with one gossip
step a round, and its settings as a baseline of the DA-DPFL paper; steps: Foret et al., "Sharpness-Aware Minimization
for Efficiently Improving Generalization" (ICLR 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.contracts import Bundle, Fn, LocalPhase, LocalRule, Pass, Plan, Task, View
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.peers import Mixing, PeerMethod, mixed, peer_plan, peer_task, sent_and_kept
from edgesim.learning.rules import cross_entropy
from edgesim.numbers import NonNegativeNumber
from edgesim.rng import Key

_PASSES = (Pass(times=2), Pass("param_step", times=4))  # the norm takes two FLOPs a parameter, to move there two more
_NO_NORM = 1e-12


@dataclass(frozen=True, kw_only=True)
class DFedSAM(PeerMethod):
    """Mix models with neighbours, then train by the gradients at the worst point within `rho` of where the model is.

    g1 = g(y), g2 = g(y + rho g1 / |g1|) on the same mini-batch, and a step of SGD with `momentum` by g2. The norm is
    over all parameters. `momentum` takes the place of the scenario's. Other keys: see PeerMethod.
    """

    mixing: Mixing = "samples"
    rho: NonNegativeNumber = 0.01
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there. Raises ConfigError if the graph does not fit the mixing."""
        stretch = replace(view.setting.training.stretch(view.round), momentum=self.momentum)
        task = replace(peer_task(view, stretch, self.mixing), passes=_PASSES)
        return peer_plan(view, key, task, self.reuse, self.wait_select)

    def local(self, task: Task) -> LocalRule:
        """Return SGD from the mix by gradients that are taken a step uphill."""
        phase = LocalPhase(cross_entropy, gradient=partial(uphill, rho=self.rho, loss=cross_entropy))
        return LocalRule((phase,), start=mixed, finish=sent_and_kept)


def uphill(w: Bundle, batch: Batch, context: Context, rho: float, loss: Fn) -> list[Tensor]:
    """Return the gradients a step of length `rho` uphill from `w`; running statistics see the batch at `w` only."""
    params, first = w["params"], _gradients(w, batch, context, loss)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in first]))
    scale = rho / (norm + _NO_NORM)
    moved = {name: params[name] + scale * g for name, g in zip(context.trained, first, strict=True)}
    elsewhere = {"params": {**params, **moved}, "buffers": dict(w["buffers"])}  # as others than those being trained
    return _gradients(elsewhere, batch, context, loss)


def _gradients(w: Bundle, batch: Batch, context: Context, loss: Fn) -> list[Tensor]:
    """Return the gradients of the loss at `w`, which stays as it is but for running statistics."""
    leaves = {name: t.detach().clone().requires_grad_(name in context.trained) for name, t in w["params"].items()}
    return gradients(loss({**w, "params": leaves}, batch, context), [leaves[name] for name in context.trained])


PARTS = {"dfedsam": DFedSAM}
