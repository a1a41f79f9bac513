"""Any method whose devices send encoded updates: what its server computes for them, and what its devices keep."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgesim.core.encoding import Encoding
from edgesim.core.method import Needs
from edgesim.core.task import Payload, Submodel
from edgesim.core.update import ModelState
from edgesim.core.view import Setting
from edgesim.learning.codec.kept import Kept
from edgesim.methods.wrapped import Wrapped

_PARAMS = Payload(collections=frozenset({"params"}))


@dataclass(frozen=True, kw_only=True)
class Encoded(Wrapped):
    """A method whose updates are encoded as the scenario says; how, the trainer knows.

    With error feedback devices keep residuals. A residual changes when the update of a job arrives. If it is late or
    lost, the residual stays as it was before the job: what was left of earlier jobs is still to be sent, and the
    training of that job is lost, as it is without encodings. Where a method's devices keep something as soon as it is
    computed, their residuals change then too, and the part that was in a lost update is lost.
    """

    encoding: Encoding

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """What the method needs, and what devices keep for error feedback."""
        needs = self.method.needs
        if self.encoding.error_feedback and needs.device_state == "none":
            return replace(needs, device_state="delivered")
        return needs

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the method's FLOPs and those of decoding so many updates of the whole model."""
        profile = setting.cost_profile
        decoding = profile.numbers_scale * self.encoding.decoding_flops(profile.contents(_PARAMS, Submodel()))
        return self.method.merge_flops(updates, setting) + updates * float(decoding)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the method's model of a device, which does not know of residuals."""
        return self.method.personal_model(global_model, Kept.of(device_state).own)
