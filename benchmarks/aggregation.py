"""What does the mean of thinner networks cost a server? Ten of VGG11 with random units, against ten whole ones.

One thread. The whole ones are averaged also by hand, in float32.

Run: python benchmarks/aggregation.py [--keep RATIO] [--model NAME]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from edgesim.config.plugins import find
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.models.build import model_state_of
from edgesim.learning.submodel.selection import groups_of
from edgesim.learning.submodel.slicing import extract
from edgesim.runs.network import cost_profile_of
from rows import Found, alone, compared, in_turns, of, timed

MODELS = 10
WEIGHTS = [float(weight) for weight in range(1, MODELS + 1)]
BY_HAND = "whole networks, float32, by hand"
QUICK = {"model": "cnn_cifar10"}


def message(model_state: ModelState, submodel: Submodel) -> Update:
    """Return what a device sends that trained this part."""
    return Update(0, 0, Task(submodel=submodel), model_state, 1, 1, 0, {})


def as_trained(model_state: ModelState) -> ModelState:
    """Return a bundle with its kernels in channels-last layout, which networks are trained in."""
    layout = {4: torch.channels_last}
    return {
        kind: {n: t.contiguous(memory_format=layout.get(t.dim(), torch.contiguous_format)) for n, t in tensors.items()}
        for kind, tensors in model_state.items()
    }


def plain_loop(updates: Sequence[Update]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the weighted mean of whole models, summed in float32."""
    total = sum(WEIGHTS)
    mean = {kind: {n: torch.zeros_like(t) for n, t in tensors.items()} for kind, tensors in updates[0].body.items()}
    for each, weight in zip(updates, WEIGHTS, strict=True):
        for kind, tensors in each.body.items():
            for name, tensor in tensors.items():
                mean[kind][name].add_(tensor, alpha=weight / total)
    return mean


def rows(keep: float = 0.9, model: str = "vgg11", repeats: int = 7) -> Iterator[Found]:
    """Yield seconds of each mean; `keep`: the share of units that thinner networks have."""
    torch.set_num_threads(1)  # as edgesim averages
    cls, fixed = find("model", model)
    module, cost_profile = cost_profile_of(cls(**fixed), model, None, None, Key(1))
    base = model_state_of(module)
    whole, thin = _updates(base, cost_profile, keep)
    thinner = f"thinner networks, {keep:.0%} of the units"
    means = {
        BY_HAND: lambda: plain_loop(whole),
        "whole networks": lambda: mean_of_holders(base, whole, WEIGHTS),
        thinner: lambda: mean_of_holders(base, thin, WEIGHTS, cost_profile=cost_profile),
    }
    what = f"{MODELS} networks of {cost_profile.params:,} parameters"
    notes = {
        BY_HAND: f"The weighted mean of {what}, by the shortest loop that torch allows.",
        "whole networks": f"The weighted mean of {what}, summed in float64.",
        thinner: "The same of networks with different units: each parameter is averaged over those that have it.",
    }
    found = in_turns({name: timed(work) for name, work in means.items()}, repeats, warm_ups=1)
    yield from compared(of(found, "s"), "whole networks", "s", notes)


def _updates(base: ModelState, cost_profile: CostProfile, keep: float) -> tuple[list[Update], list[Update]]:
    """Return what devices send that trained whole networks, and random parts of them."""
    draw, whole, thin = Key(2).numpy(), [], []
    for _ in range(MODELS):
        trained = {kind: {n: t + torch.randn_like(t) for n, t in ts.items()} for kind, ts in base.items()}
        kept = {
            g.name: np.sort(draw.permutation(g.size)[: int(keep * g.size)]) for g in groups_of(cost_profile, "inner")
        }
        submodel = Submodel("thin", channels=tuple((name, tuple(channels.tolist())) for name, channels in kept.items()))
        whole.append(message(trained, Submodel()))
        thin.append(message(as_trained(extract(trained, submodel, cost_profile)), submodel))
    return whole, thin


if __name__ == "__main__":
    alone(rows, QUICK)
