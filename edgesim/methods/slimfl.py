"""SlimFL: a network and its half train together, and over a bad channel only the half arrives.

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
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.learning.submodel.slicing import extract
from edgesim.methods.us_nets import Slimmable

_CHANNEL = 1  # stream below a job's seed
_HALF = "half"  # in the config of a task of whose update only the narrowest slice will be decoded


@dataclass(frozen=True, kw_only=True)
class SlimFL(Slimmable):
    """Superposition training of the first half of all units and of the whole network, from which the half learns.

    A step goes along the gradients of both slices, which count as `weights` say, the half first. Of a share `half_only`
    of the updates, drawn anew for each, the server can decode the half alone: its parameters are averaged over all who
    sent, those of the other half over those who were decoded whole. `distill`: the half learns what the whole says,
    else the labels. The metric `halves` counts updates of which only the half was decoded. Other keys: see Ordered.

    Differs: no superposition code is modelled. Both halves are sent at once, so that an update takes as long as the
    whole model and has its bytes; whether the second half can be decoded does not follow from the link of the
    scenario, but from `half_only` alone, independently for each update. What comes down is always whole. A device
    whose own tier is the half trains and sends no more than that.
    """

    widths: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.5, 1.0)
    """The paper's 0.5x and 1.0x. With more, what arrives over a bad channel is the narrowest."""
    weights: tuple[PositiveFactor, PositiveFactor] = (0.5, 0.5)
    """Ours: equal, and one in all, so that the learning rate is that of one network."""
    half_only: Share = 0.0
    """The paper's follows from signal-to-noise ratios and the power given to each half; `0` is a good channel."""

    @property
    def factors(self) -> tuple[float, float]:
        """How much the gradients of narrower slices and of the widest count."""
        return self.weights

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean by data size, parameter by parameter over the updates that had it decoded."""
        cost_profile, half = server.setting.cost_profile, self._submodel(1, server.setting)
        decoded = [
            _half_of(update, half, cost_profile) if _HALF in update.task.config else update for update in updates
        ]
        halves = float(sum(_HALF in update.task.config for update in updates))
        return super().combine(state, global_model, decoded, server, key)._replace(metrics={"halves": halves})

    def _task(self, device: int, submodels: Sequence[Submodel], seed: int, view: View) -> Task:
        task = super()._task(device, submodels, seed, view)
        bad = len(submodels) > 1 and Key(seed).at(_CHANNEL).numpy().random() < self.half_only
        return replace(task, config={**task.config, _HALF: 1.0}) if bad else task


def _half_of(update: Update, half: Submodel, cost_profile: CostProfile) -> Update:
    """Return what is decoded of an update over a bad channel: a slice of its parameters.

    Running statistics are those of the whole width, and lost with it. Slices are those of the first units, so a
    device's own widest is cut as the whole model is.
    """
    body = extract({"params": update.body["params"]}, half, cost_profile)
    return update._replace(body=body, task=replace(update.task, submodel=half))


PLUGINS = {"slimfl": SlimFL}
