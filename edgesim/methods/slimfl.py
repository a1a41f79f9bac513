"""SlimFL: devices train a network and its narrower half together, and over a bad channel only the half arrives.

Source: W. J. Yun et al., "SlimFL: Federated Learning with Superposition Coding over Slimmable Neural Networks" (2022,
arXiv 2203.14094) and H. Baek et al., "Joint Superposition Coding and Training for Federated Learning over Multi-Width
Neural Networks" (2022, arXiv 2112.02543), of which only the abstracts were at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import MinLen

from edgesim.core.limits import PositiveFactor, PositiveShare, Share
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.learning.submodel.slicing import extract
from edgesim.methods.us_nets import Slimmable

_CHANNEL = 1  # stream below a job's seed
_HALF = "half"  # config key of a task: the server will decode only the narrowest slice of its update


@dataclass(frozen=True, kw_only=True)
class SlimFL(Slimmable):
    """Devices train the whole network and the first half of its units together, and the half learns from the whole.

    A step goes along the sum of the gradients of both slices, weighted by `weights`, the half first. The server can
    decode only the half of a share `half_only` of the updates, drawn anew for each update. The parameters of the half
    are averaged over all senders, the other parameters over the updates that were decoded whole. `distill`: the half
    learns from the outputs of the whole network, else from the labels. The metric `halves` counts updates of which only
    the half was decoded. Other keys: see Ordered.

    Differs: no superposition code is modelled. Both halves are sent at once, so an update has the bytes and the time of
    the whole model. `half_only` alone decides whether the second half can be decoded, independently for each update and
    of the link in the scenario. Downloads are always whole. A device whose own tier is the half trains and sends only
    the half.

    Family: smaller networks. Formula: `w <- w - lr (a_half g(half) + a_whole g(whole)) in local steps`.
    """

    widths: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.5, 1.0)
    """The paper's 0.5x and 1.0x. With more widths, the narrowest slice arrives over a bad channel."""
    weights: tuple[PositiveFactor, PositiveFactor] = (0.5, 0.5)
    """Chosen here: equal, with sum 1, so that the learning rate fits a single network."""
    half_only: Share = 0.0
    """In the paper it follows from signal-to-noise ratios and the power given to each half. `0` is a good channel."""

    @property
    def factors(self) -> tuple[float, float]:
        """Factors of the gradients of narrower slices and of the widest slice."""
        return self.weights

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size: each parameter over the updates in which it was decoded.

        Over a bad channel a slice of the parameters is decoded. Running statistics belong to the whole width and are
        lost with it. Slices hold the first units, so a device's own widest slice is cut as the whole model is.
        """
        cost_profile, half = server.setting.cost_profile, self.submodel(1, server.setting)
        decoded, halves = [], 0
        for update in updates:
            if _HALF in update.task.config:
                body = extract({"params": update.body["params"]}, half, cost_profile)
                update = update._replace(body=body, task=replace(update.task, submodel=half))
                halves += 1
            decoded.append(update)
        merged = super().combine(state, global_model, decoded, server, key)
        return merged._replace(metrics={"halves": float(halves)})

    def device_task(self, device: int, submodels: Sequence[Submodel], seed: int, view: View) -> Task:
        """Return the task of a device that may train these slices, marked if only the half will be decoded."""
        task = super().device_task(device, submodels, seed, view)
        bad = len(submodels) > 1 and Key(seed).at(_CHANNEL).numpy().random() < self.half_only
        return replace(task, config={**task.config, _HALF: 1.0}) if bad else task


PLUGINS = {"slimfl": SlimFL}
