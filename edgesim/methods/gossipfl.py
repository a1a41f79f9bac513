"""GossipFL: peers in groups average one random slice of their models, drawn from a seed that all devices share.

Source: Tang et al., "GossipFL: A Decentralized Federated Learning Framework with Sparsified and Adaptive Communication"
(IEEE TPDS 2023); its settings as a baseline of the DA-DPFL paper. The paper's matching is `peers = "bandwidth_match"`,
and `peers = "gossip_match"` has random groups and pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from edgesim.core.limits import PositiveShare
from edgesim.core.method import Finished, LocalRule, LocalState
from edgesim.core.model_state import model_in, replaced
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.models.trace import layer_of
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.decentralised.base import MixingMethod, own_model, peer_task, plan_at_once, weighed

_SEED_BYTES = 8
_NOW, _NEXT = "slice_now", "slice_next"  # seeds of the slice that this round mixes, and of the slice that it sends

Draw: TypeAlias = Literal["bernoulli", "exact"]


@dataclass(frozen=True, kw_only=True)
class GossipFL(MixingMethod):
    """Each device mixes the round's slice with its group, trains the whole model, and sends the next round's slice.

    A slice holds a share `share` of every layer's weights: each weight with this probability ("bernoulli"), or exactly
    this share ("exact"). It is drawn from a seed that all devices have, so messages hold values and the seed, but no
    positions. `vectors`: also mix all biases, normalisation parameters and running statistics. A device whose group
    does not answer keeps its model. Weights in no message stay. `mixing`: see MixingMethod.

    Tang et al. match pairs by bandwidth: links above a threshold first, and then pairs that have not met for some
    rounds. `bandwidth_match` of `peers` does that. `gossip_match` draws pairs or groups at random, as in the DA-DPFL
    comparison, and `file` takes a matching that was computed before.

    `mixing`: the mean over a pair or a group.

    Family: peers. Formula: `x_ie <- mean_(j in group of i) x_je for the entries e of the round's slice, then local
    SGD`.
    """

    share: PositiveShare = 0.5
    """As in the DA-DPFL comparison. The code of Tang et al. keeps 0.01."""
    draw: Draw = "bernoulli"  # rule for drawing a slice
    """Code released with the DA-DPFL paper draws each weight independently, so that bytes vary slightly from round to
    round. `"exact"` draws a fixed number of each layer.
    """
    vectors: bool = False
    """Code released with the DA-DPFL paper shares weights of convolutions and linear layers only. `true` also averages
    all biases, normalisation parameters and running statistics.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the seed of the run, from which the seeds of all rounds follow."""
        return {**super().init(setting, key), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device. Raises ConfigError if the graph does not fit the mixing."""
        setting, seed = view.setting, Key(state["seed"])
        now, later = (seed.at(view.round + ahead).exact_word() for ahead in (0, 1))
        task = peer_task(view, setting.training.local_sgd(view.round), self.mixing)
        sizes = {layer.name: layer.weights for layer in setting.cost_profile.layers if layer.weights}
        drawn = _slice(sizes, self.share, self.draw, later)
        up = Payload(
            collections=frozenset({"params", "buffers"} if self.vectors else {"params"}),
            extra_bytes=_SEED_BYTES,
            encoding=replace(setting.encoding_up, zeros="known"),
            weights_only=not self.vectors,
        )
        return plan_at_once(
            view,
            replace(
                task,
                submodel=Submodel("sliced", nnz=tuple((layer, int(mask.sum())) for layer, mask in drawn.items())),
                passes=(Pass(submodel=Submodel()),),  # the whole model is trained
                up=up,
                config={_NOW: now, _NEXT: later},
            ),
        )

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the mix."""
        start = partial(_mixed, share=self.share, draw=self.draw)
        return LocalRule(PLAIN_SGD.phases, start, partial(_sent, share=self.share, draw=self.draw))


def _mixed(context: Context, share: float, draw: Draw) -> LocalState:
    """Return a device's model in which the weights of received slices are averaged with its own weights."""
    kept = context.global_model if context.device_state is None else context.device_state
    payload = context.task.up
    received = [m if m.job >= 0 else m._replace(body=_shared(m.body, payload)) for m in context.received]
    usable, weights = weighed(_shared(kept, payload), received, context)
    if all(message.device != context.device for message in usable):
        return LocalState(context.copy(kept))  # it has diverged, and a slice would not repair it

    def held(message: Update) -> masks.Masks:
        if message.device == context.device:
            return {}
        # a device that never trained sends the slice that it is asked for
        seed = message.task.config[_NEXT] if message.job >= 0 else context.task.config[_NOW]
        return _masks(message.body, share, draw, int(seed))

    mean = masks.masked_mean([m.body for m in usable], [held(m) for m in usable], weights)
    return LocalState(context.copy(replaced(model_in(kept), mean)))


def _sent(local: LocalState, context: Context, share: float, draw: Draw) -> Finished:
    """Return the slice of the next round, with zeros elsewhere, and the whole model to keep and to report."""
    w = local.weights
    body = _shared(w, context.task.up)
    mask = _masks(body, share, draw, int(context.task.config[_NEXT]))
    return Finished(masks.applied(body, mask), w, own_model=own_model(w))


def _shared(model: ModelState, payload: Payload) -> ModelState:
    """Return the tensors of a model that messages sample from."""
    if not payload.weights_only:
        return {kind: model[kind] for kind in payload.collections}
    return {"params": {name: t for name, t in model["params"].items() if t.dim() >= 2}}


# --- slices -----------------------------------------------------------------------------------------------------


def _slice(sizes: Mapping[str, int], share: float, draw: Draw, seed: int) -> dict[str, np.ndarray]:
    """Return masks of the weights of every layer that are in a slice, bool arrays of these sizes."""
    drawn = {}
    for place, layer in enumerate(sorted(sizes)):
        size, numbers = sizes[layer], Key(seed).at(place).numpy().random(sizes[layer])
        if draw == "exact":
            drawn[layer] = np.zeros(size, dtype=bool)
            drawn[layer][np.argsort(numbers, kind="stable")[: max(1, round(share * size))]] = True
        else:
            drawn[layer] = numbers < share
    return drawn


def _masks(model: ModelState, share: float, draw: Draw, seed: int) -> dict[str, Tensor]:
    """Return the slice of a model's weights as masks by parameter name."""
    layers: dict[str, list[str]] = {}
    for name, tensor in model["params"].items():
        if tensor.dim() >= 2:
            layers.setdefault(layer_of(name), []).append(name)
    ends = {layer: np.cumsum([0, *(model["params"][n].numel() for n in names)]) for layer, names in layers.items()}
    drawn = _slice({layer: int(end[-1]) for layer, end in ends.items()}, share, draw, seed)
    found = {}
    for layer, names in layers.items():
        for name, (start, end) in zip(names, pairwise(ends[layer].tolist()), strict=True):
            like = model["params"][name]
            found[name] = torch.from_numpy(drawn[layer][start:end]).view(like.shape).to(like.device)
    return found


PLUGINS = {"gossipfl": GossipFL}
