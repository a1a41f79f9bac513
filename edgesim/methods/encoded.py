"""Any method whose devices send encoded updates: what its server computes for them, and what its devices keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgesim.core.encoding import Encoding
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
    """A method whose updates are encoded as the scenario says; how, the trainer knows.

    Tasks of a warm-up name the encoding of their round; what plans by time reckons with the last.

    With error feedback devices keep residuals, and what has momentum. A residual changes when the update of a job
    arrives. If it is late or lost, the residual stays as it was before the job: what was left of earlier jobs is still
    to be sent, and the training of that job is lost, as it is without encodings. Where a method's devices keep
    something as soon as it is computed, their residuals change then too, and the part that was in a lost update is
    lost. So it is with momenta.
    """

    encoding: Encoding

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """What the method needs, and what devices keep for error feedback."""
        needs = self.method.needs
        if self.encoding.error_feedback and needs.device_state == "none":
            return replace(needs, device_state="delivered")
        return needs

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders, written as the round has it where that is not the scenario's."""
        plan, encoding = super().plan(state, view, key), self.encoding.in_round(view.round)
        if encoding == self.encoding:
            return plan
        tasks = {id(order.task): _written(order.task, encoding) for order in plan.orders}  # one object for equal tasks
        return plan._replace(orders=tuple(order._replace(task=tasks[id(order.task)]) for order in plan.orders))

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the method's FLOPs and those of decoding so many updates of the whole model."""
        return self.method.merge_flops(updates, setting) + updates * _decoding_flops(self.encoding, setting)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the method's FLOPs and those of decoding updates of these tasks, of the whole model."""
        written = [task.up.encoding or self.encoding for task in tasks]
        return self.method.merge_flops_of(tasks, setting) + sum(_decoding_flops(each, setting) for each in written)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the method's model of a device, which does not know of residuals."""
        return self.method.personal_model(global_model, Kept.of(device_state).own)


def _written(task: Task, encoding: Encoding) -> Task:
    """Return a task whose updates are encoded so, unless it says how itself."""
    return task if task.up.encoding else replace(task, up=replace(task.up, encoding=encoding))


def _decoding_flops(encoding: Encoding, setting: Setting) -> float:
    profile = setting.cost_profile
    return float(profile.numbers_scale * encoding.decoding_flops(profile.contents(_PARAMS, Submodel())))
