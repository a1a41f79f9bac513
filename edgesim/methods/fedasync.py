"""FedAsync: the server mixes each arriving model into the global one, with less weight the staler it is.

Source: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from edgesim.core.limits import NonNegativeFactor, PositiveShare
from edgesim.core.method import Aggregate, LocalRule, Method, Needs, ServerContext
from edgesim.core.model_state import lerp
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.learning.train.rules import proximal_sgd


@dataclass(frozen=True, kw_only=True)
class FedAsync(Method):
    """Asynchronous: the server mixes each arriving model into the global one, with less weight the staler it is.

    x <- (1 - a) x + a w for each arriving model w, with a = `alpha` times the protocol's weight of its staleness.
    Devices minimise their loss plus `rho` / 2 times the squared distance to the received model; 0 leaves the term out.
    Meant for a protocol with `buffer = 1`. Models that arrive for one merge are mixed in one after the other, in the
    order of their jobs, and make one version. Running statistics of normalisation layers are mixed like weights;
    integer counters stay on the device.

    The proximal term costs 2 FLOPs a parameter and step, as in DA-DPFL's comparison and for `ditto`. `fedprox`,
    `fednova` and `feddyn` pay 4, as in FedDHAD's comparison. The term is a difference, a product and a sum.

    Family: asynchronous. Formula: `x <- (1 - a) x + a w_k, a = alpha s(staleness of k)`. Paper: arXiv 1903.03934.
    """

    alpha: PositiveShare = 0.6  # within the range of the paper's experiments
    """Within the range of the experiments of Xie et al."""
    rho: NonNegativeFactor = 0.005
    """Within the range of the experiments of Xie et al.; 0 leaves the proximal term out."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"buffered"}))

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of the proximal term."""
        return (
            replace(super().task(view), passes=(Pass(), Pass("param_step", times=2.0)))
            if self.rho
            else super().task(view)
        )

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.rho)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Mix the models into the global one, one after the other."""
        model = global_model
        for update in updates:
            model = lerp(model, update.body, self.alpha * update.weight)
        return Aggregate(state, model)


PLUGINS = {"fedasync": FedAsync}
