"""Cost model by measured FLOPs: the floating-point operations of a device's work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.price_list import CostProfile, Include, Sparse
from edgesim.core.task import Pass, Submodel
from edgesim.core.work import UPDATE_BYTES


@dataclass(frozen=True, kw_only=True)
class Measured(CostModel):
    """FLOPs by PyTorch's own counter, layer by layer, so that frozen and thinner parts cost less.

    `include`: "counted", or "all" to add by formula the operations that the counter scores as zero and the optimiser's
    update. `sparse`: zeros of masked layers cost like any number ("dense") or nothing ("ideal").
    """

    networks: ClassVar[bool] = True

    include: Include = "counted"
    sparse: Sparse = "dense"  # as on today's hardware

    @property
    def is_counted(self) -> bool:
        """True unless FLOPs are added by formula or left out for zeros."""
        return self.include == "counted" and self.sparse == "dense"

    def flops(self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        done, batches = _done(work, samples), steps if work.samples is None else 1.0
        submodel = work.submodel or submodel
        match work.kind:
            case "train":
                per_step = 0.0  # FLOPs of the optimiser. A pass over samples of its own updates nothing
                if self.include != "counted" and work.samples is None:
                    params = cost_profile.submodel_params(submodel, trained_only=True)
                    per_step = work.updates * work.update_flops * params
                updates = steps * per_step
                of_samples = done * cost_profile.train_flops(submodel, self.include, self.sparse)
                return work.times * (of_samples + batches * cost_profile.step_flops(submodel)) + updates
            case "forward":
                of_samples = done * cost_profile.forward_flops(submodel, self.include, self.sparse)
                return work.times * (of_samples + batches * cost_profile.step_forward_flops)
            case "param_step":
                taken = steps if work.samples is None else np.full_like(steps, work.samples)
                return work.times * taken * float(cost_profile.submodel_params(submodel))
            case "flops":
                return np.full_like(samples, work.times)

    def amounts(
        self, cost_profile: CostProfile, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> dict[str, Arr]:
        """Return the amounts of all kinds of work, each of shape (k,). See edgesim.core.cost_model.CostModel.

        Raises ValueError if the kinds of the network have not been measured.
        """
        flops, submodel = self.flops(cost_profile, work, submodel, samples, steps), work.submodel or submodel
        if work.kind not in ("train", "forward"):
            return {"other_flops": flops}
        done = work.times * _done(work, samples)
        batches = work.times * (steps if work.samples is None else np.ones_like(steps))
        amounts = {
            kind: done * per_sample + batches * per_step
            for kind, (per_sample, per_step) in cost_profile.amounts(submodel, work.kind == "forward").items()
        }
        amounts.update(flops=flops, samples=done, steps=batches)
        if work.kind == "train" and work.samples is None:  # a pass over samples of its own updates nothing
            params = cost_profile.submodel_params(submodel, trained_only=True)
            amounts["update_bytes"] = work.updates * steps * (UPDATE_BYTES * params)
        return amounts


def _done(work: Pass, samples: Arr) -> Arr:
    """Return the samples of a pass, shape (k,)."""
    return samples if work.samples is None else np.full_like(samples, work.samples)


PLUGINS = {"measured": Measured}
