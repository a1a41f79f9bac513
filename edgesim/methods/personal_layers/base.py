"""Base of methods whose devices share some layers of the model and keep the other layers to themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeAlias

from annotated_types import MinLen

from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import ModelState, replaced, selected
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Task
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Context
from edgesim.methods.fedavg import FedAvg

Names: TypeAlias = Annotated[tuple[str, ...], MinLen(1)]  # names of layers, or of blocks of layers
SomeLayers: TypeAlias = Count | Names  # a number of last layers, or names
Layers: TypeAlias = CountOrZero | Names

_MOST_NAMED = 12  # layers named in a message


@dataclass(frozen=True, kw_only=True)
class PersonalLayers(FedAvg):
    """FedAvg over the layers that devices share. Each device has its own version of the other layers and keeps it.

    A layer that stays keeps its running statistics on the device. Own layers start as the layers of the run's first
    model, which any device can draw from the seed. A device uses the newest shared layers with its own layers, and
    `evaluation.personal` tests this model. The global model has trained shared layers and untrained other layers, so
    its accuracy says little. If a model diverged, the device keeps its previous own layers.
    """

    needs: ClassVar[Needs] = Needs(device_state="computed")

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the layers that stay on devices. Raises ConfigError if a key names a layer that the model lacks."""
        raise NotImplementedError

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if the layers do not fit the model."""
        self.own_layers(setting.cost_profile)
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return the training of all layers, with payloads of the shared ones; FedAvg's task if no layer stays."""
        profile, usual = view.setting.cost_profile, super().task(view)
        if own := self.own_layers(profile):
            shared = Payload(layers=frozenset(profile.layer_names) - own)
            return replace(usual, down=shared, up=shared)
        return usual

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy from the received shared layers and the device's own layers."""
        if task.up.layers is None:
            return super().local(task)
        return with_own_layers(LocalPhase())

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the shared layers with the device's own layers, or the global model if it has none yet."""
        return global_model if device_state is None else replaced(global_model, device_state)


def with_own_layers(*phases: LocalPhase) -> LocalRule:
    """Return the rule of a device that trains, in these phases, the received shared layers and its own layers.

    The shared layers are the layers in the upload of the task.
    """
    return LocalRule(phases, on_start=_start, on_finish=_finish)


def chosen_layers(which: Layers, cost_profile: CostProfile, key: str) -> frozenset[str]:
    """Return a number of last layers of a model, or the layers with these names and those in blocks with these names.

    Raises ConfigError, which names the key of the method, if the model has fewer layers or no layer of a name.
    """
    model, names = cost_profile.model, cost_profile.layer_names
    if isinstance(which, int):
        if which > len(names):
            raise ConfigError(f"method.{key}: {model} has {len(names)} layers, found {which}")
        return frozenset(names[len(names) - which :])
    found: set[str] = set()
    for given in which:
        inside = {name for name in names if name == given or name.startswith(f"{given}.")}
        if not inside:
            known = ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
            raise ConfigError(
                f"method.{key}: {model} has no layer or block {given[:60]!r}{meant(given, names)} (layers: {known})"
            )
        found |= inside
    return frozenset(found)


def check_shared(own: frozenset[str], cost_profile: CostProfile, key: str) -> frozenset[str]:
    """Return the layers that stay on devices. Raises ConfigError if these are all layers of a model."""
    if len(own) == len(cost_profile.layers):
        raise ConfigError(
            f"method.{key}: must leave at least one of the {len(own)} layers of {cost_profile.model} to be shared, "
            "found all of them"
        )
    return own


def _start(context: Context) -> LocalState:
    received, kept = context.global_model, context.device_state
    return LocalState(context.copy(received if kept is None else replaced(received, kept)))


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send from, and the layers that are not shared to keep unless the model diverged."""
    w, shared = local.weights, context.task.up.layers
    assert shared is not None
    if not is_finite(w):
        return Finished(w)
    return Finished(w, on_cpu(selected(w, lambda name: layer_of(name) not in shared)))
