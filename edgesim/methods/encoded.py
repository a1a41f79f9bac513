"""Wrapper of a method whose devices send encoded updates: the server's decoding and the state that devices keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgesim.core.encoding import Codec, Encoding
from edgesim.core.method import Needs
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.core.view import Setting, View
from edgesim.learning.codec.kept import Kept
from edgesim.methods.wrapped import Wrapped

_PARAMS = Payload(collections=frozenset({"params"}))


@dataclass(frozen=True, kw_only=True)
class Encoded(Wrapped):
    """A method whose updates the trainer encodes with the scenario's encoding.

    Tasks of a warm-up name the encoding of their round. Plans by time count with the last encoding.

    With error feedback devices keep residuals, and momenta if the encoding has momentum. A residual changes when the
    update of a job arrives. If the update is late or lost, the residual stays as before the job. The rest of earlier
    jobs is still to be sent, and the training of the lost job is lost, as without encodings. Where a method's devices
    keep their state as soon as it is computed, residuals change then too, and the part in a lost update is lost. The
    same holds for momenta.
    """

    encoding: Encoding

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The method's needs, with device state for error feedback."""
        needs = self.method.needs
        if self.encoding.error_feedback and needs.device_state == "none":
            return replace(needs, device_state="delivered")
        return needs

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders, with the encoding of the round where it is not the scenario's.

        A task with an encoding of its own keeps it. Orders that share a task still do.
        """
        plan, encoding = super().plan(state, view, key), self.encoding.in_round(view.round)
        if encoding == self.encoding:
            return plan
        tasks: dict[int, Task] = {}
        for task in (order.task for order in plan.orders):
            tasks[id(task)] = task if task.up.encoding else replace(task, up=replace(task.up, encoding=encoding))
        return plan._replace(orders=tuple(order._replace(task=tasks[id(order.task)]) for order in plan.orders))

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the method's FLOPs and the FLOPs of decoding `updates` updates of the whole model."""
        return self.method.merge_flops(updates, setting) + updates * _decoding_flops(self.encoding, setting)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the method's FLOPs and the FLOPs of decoding updates of these tasks, of the whole model."""
        written = [task.up.encoding or self.encoding for task in tasks]
        return self.method.merge_flops_of(tasks, setting) + sum(_decoding_flops(each, setting) for each in written)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the method's model of a device, without residuals."""
        return self.method.personal_model(global_model, Kept.of(device_state).own)


def _decoding_flops(encoding: Codec, setting: Setting) -> float:
    profile = setting.cost_profile
    return float(profile.numbers_scale * encoding.decoding_flops(profile.contents(_PARAMS, Submodel())))
