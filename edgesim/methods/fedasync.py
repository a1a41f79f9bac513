"""FedAsync: the server mixes in every model as it arrives, the less of it the older the model it was trained from.

Source: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (2019), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import (
    Bundle,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Pass,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.learning.merge import finite
from edgesim.learning.rules import proximal_sgd
from edgesim.numbers import NonNegativeNumber, PositiveShare
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FedAsync:
    """x <- (1 - a) x + a w for each arriving model w, with a = `alpha` times the coordinator's weight of its staleness.

    Devices minimise their loss plus `rho` / 2 times the squared distance to the model they received; 0 leaves that
    term out. Meant for a coordinator with `buffer = 1`; models that come to one merge together are mixed in one after
    the other, in the order of their jobs, and make one version. Running statistics of normalisation layers are mixed
    like weights; integer counters stay on the device.
    """

    alpha: PositiveShare = 0.6  # both in the range of the paper's experiments
    rho: NonNegativeNumber = 0.005
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"buffered"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: what is not in the model is in the messages."""
        setting.cost.check(widths=0)
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        pull = (Pass("param_step", times=2.0),) if self.rho else ()
        task = Task(stretches=(view.setting.training.stretch(view.round),), passes=(Pass(), *pull))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.rho)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Mix the arrived models into the global one; it stays if none of them is usable."""
        usable, notes = finite(got)
        model = base
        for message in usable:
            model = _mixed(model, message.body, self.alpha * message.weight)
        return Merged(state, model if usable else None, notes=notes)


def _mixed(model: Bundle, other: Bundle, share: float) -> Bundle:
    return {
        kind: {name: old.lerp(other[kind][name], share) for name, old in tensors.items()}
        for kind, tensors in model.items()
    }


PARTS = {"fedasync": FedAsync}
