"""GossipFL: peers in groups average one random slice of their models, which all of them draw from one shared seed.

Source: Tang et al., "GossipFL: A Decentralized Federated Learning Framework with Sparsified and Adaptive Communication"
(IEEE TPDS 2023); its settings as a baseline of the DA-DPFL paper. Not here: matching by bandwidth, as the graphs of
`peers` know no links; `peers = "gossip_match"` has its random groups and pairs.
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

from edgesim.contracts import Bundle, LocalRule, Message, Part, Pass, Payload, Plan, Setting, Task, View
from edgesim.learning import masks
from edgesim.learning.context import Context
from edgesim.learning.peers import MixingMethod, peer_task, plan_at_once, shown, weighed
from edgesim.learning.rules import PLAIN_SGD
from edgesim.learning.trace import layer_of
from edgesim.numbers import PositiveShare
from edgesim.rng import Key

_SEED_BYTES = 8
_NOW, _NEXT = "slice_now", "slice_next"  # seeds of the slices that this round mixes and that its messages hold

Draw: TypeAlias = Literal["bernoulli", "exact"]


@dataclass(frozen=True, kw_only=True)
class GossipFL(MixingMethod):
    """Mix the slice of the round with the group, train the whole model, and send the slice of the next round.

    A slice holds a share `share` of every layer's weights: each by itself ("bernoulli"), or that many ("exact"). It is
    drawn from a seed that all devices have, so that messages hold values and the seed, but no positions. `vectors`:
    also mix biases, normalisation and running statistics, all of them. A device whose group does not answer keeps its
    model; weights in no message stay as they are. `mixing`: see MixingMethod.
    """

    share: PositiveShare = 0.5
    draw: Draw = "bernoulli"  # how a slice is drawn
    vectors: bool = False

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the seed from which those of all rounds follow."""
        return {**super().init(setting, key), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there. Raises ConfigError if the graph does not fit the mixing."""
        setting, now, later = view.setting, *(_seed(state["seed"], view.round + ahead) for ahead in (0, 1))
        task = peer_task(view, setting.training.stretch(view.round), self.mixing)
        sizes = {layer.name: layer.weights for layer in setting.card.layers if layer.weights}
        drawn = _slice(sizes, self.share, self.draw, later)
        up = Payload(
            kinds=frozenset({"params", "buffers"} if self.vectors else {"params"}),
            extra_bytes=_SEED_BYTES,
            encoding=replace(setting.encoding_up, zeros="known"),
            weights_only=not self.vectors,
        )
        return plan_at_once(
            view,
            replace(
                task,
                part=Part("sliced", nnz=tuple((layer, int(mask.sum())) for layer, mask in drawn.items())),
                passes=(Pass(part=Part()),),  # the whole model is trained
                up=up,
                knobs={**task.knobs, _NOW: float(now), _NEXT: float(later)},
            ),
        )

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the mix."""
        start = partial(_mixed, share=self.share, draw=self.draw)
        return LocalRule(PLAIN_SGD.phases, start, partial(_sent, share=self.share, draw=self.draw))


def _mixed(base: Bundle, own: Bundle | None, context: Context, share: float, draw: Draw) -> Bundle:
    """Return a device's model with the weights in the slices of others averaged over who sent them, and its own."""
    kept, payload = base if own is None else own, context.task.up
    received = [m if m.job >= 0 else m._replace(body=_shared(m.body, payload)) for m in context.received]
    usable, weights = weighed(_shared(kept, payload), received, context)
    if all(message.device != context.device for message in usable):
        return context.copy(kept)  # it has diverged, and a slice would not mend it

    def held(message: Message) -> masks.Masks:
        if message.device == context.device:
            return {}
        seed = message.task.knobs[_NEXT] if message.job >= 0 else context.task.knobs[_NOW]  # never trained: as asked
        return _masks(message.body, share, draw, int(seed))

    mean = masks.masked_mean([m.body for m in usable], [held(m) for m in usable], weights)
    return context.copy({kind: {**kept[kind], **mean.get(kind, {})} for kind in ("params", "buffers")})


def _sent(w: Bundle, context: Context, share: float, draw: Draw) -> tuple[Bundle, Bundle, Mapping[str, Any]]:
    """Return the slice of the next round, with zeros elsewhere, and the whole model to keep and to show."""
    body = _shared(w, context.task.up)
    return masks.applied(body, _masks(body, share, draw, int(context.task.knobs[_NEXT]))), w, shown(w)


def _shared(model: Bundle, payload: Payload) -> Bundle:
    """Return the tensors of a model of which something is sent."""
    if not payload.weights_only:
        return {kind: model[kind] for kind in payload.kinds}
    return {"params": {name: t for name, t in model["params"].items() if t.dim() >= 2}}


# --- slices -----------------------------------------------------------------------------------------------------


def _seed(run: int, round_: int) -> int:
    """Return the seed of a round's slice, counted from 0."""
    return Key(run).at(round_).exact_word()


def _slice(sizes: Mapping[str, int], share: float, draw: Draw, seed: int) -> dict[str, np.ndarray]:
    """Return which weights of every layer are in a slice, bool arrays of these sizes."""
    drawn = {}
    for place, layer in enumerate(sorted(sizes)):
        size, numbers = sizes[layer], Key(seed).at(place).numpy().random(sizes[layer])
        if draw == "exact":
            drawn[layer] = np.zeros(size, dtype=bool)
            drawn[layer][np.argsort(numbers, kind="stable")[: max(1, round(share * size))]] = True
        else:
            drawn[layer] = numbers < share
    return drawn


def _masks(model: Bundle, share: float, draw: Draw, seed: int) -> dict[str, Tensor]:
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


PARTS = {"gossipfl": GossipFL}
