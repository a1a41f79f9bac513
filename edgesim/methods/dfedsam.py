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

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import LocalPhase, LocalRule, LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Plan, Task
from edgesim.core.update import ModelState
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.decentralised.base import Mixing, PeerMethod, mixed, peer_plan, peer_task, sent_and_kept

_PASSES = (Pass(times=2), Pass("param_step", times=4))  # the norm takes two FLOPs a parameter, to move there two more
_NO_NORM = 1e-12


@dataclass(frozen=True, kw_only=True)
class DFedSAM(PeerMethod):
    """Peers without a server mix models with neighbours, then train towards flat minima of the loss.

    Each step uses the gradient at the worst point within `rho` of the model: g1 = g(y), g2 = g(y + rho g1 / |g1|) on
    the same mini-batch, and a step of SGD with `momentum` by g2. The norm is over all parameters. `momentum` replaces
    the scenario's. Other keys: see PeerMethod.

    One gossip step a round; the variant with several is not available. Both gradients of a step are priced.

    Family: peers. Formula: `y <- y - lr g(y + rho g(y) / |g(y)|) in local steps, after x_i <- sum_j W_ij x_j`. Paper:
    arXiv 2302.04083.
    """

    mixing: Mixing = "samples"
    """The code released with the DA-DPFL paper weighs by data sizes. Sun et al. ask for a symmetric, doubly stochastic
    W.
    """
    rho: NonNegativeFactor = 0.01
    """Scripts of the DA-DPFL comparison: 0.01 on CIFAR, 0.2 on HAM10000, from 0.01 to 0.5."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """The same scripts, without weight decay."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError unless devices train by SGD, which has momentum."""
        setting.training.check_sgd("its momentum is that of SGD")
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device to train. Raises ConfigError if the graph does not fit the mixing."""
        sgd = replace(view.setting.training.local_sgd(view.round), momentum=self.momentum)
        task = replace(peer_task(view, sgd, self.mixing), passes=_PASSES)
        return peer_plan(view, key, task, self.reuse, self.wait_select)

    def local(self, task: Task) -> LocalRule:
        """Return SGD from the mix by the gradients a step uphill."""
        phase = LocalPhase(gradient=partial(uphill, rho=self.rho))
        return LocalRule((phase,), on_start=mixed, on_finish=sent_and_kept)


def uphill(local: LocalState, batch: Batch, context: Context, rho: float) -> list[Tensor]:
    """Return the gradients a step of length `rho` uphill. Running statistics see the batch only at the weights."""
    w = local.weights
    params, first = w["params"], _gradients(w, batch, context)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in first]))
    scale = rho / (norm + _NO_NORM)
    moved = {name: params[name] + scale * g for name, g in zip(context.trained, first, strict=True)}
    elsewhere = {"params": {**params, **moved}, "buffers": dict(w["buffers"])}  # not the trained tensors
    return _gradients(elsewhere, batch, context)


def _gradients(w: ModelState, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients of the cross-entropy at `w`, which does not change except for running statistics."""
    leaves = {name: t.detach().clone().requires_grad_(name in context.trained) for name, t in w["params"].items()}
    loss = objective_loss({**w, "params": leaves}, batch, context)
    return gradients(loss, [leaves[name] for name in context.trained])


PLUGINS = {"dfedsam": DFedSAM}
