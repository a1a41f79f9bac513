"""FedPMT: slow devices back-propagate through the last layers only; each layer is averaged over who trained it.

Source: H. Wu and P. Wang, FedPMT paper (layer-wise partial model training); H. Wu, PhD thesis, York University
(2023), chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from edgesim.contracts import (
    Bundle,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.merge import Absent, mean_by_size
from edgesim.learning.rules import PLAIN_SGD
from edgesim.rng import Key
from edgesim.workload import full_speed_s

_REPORT_BYTES = 8  # a device's capability, one float64


@dataclass(frozen=True, kw_only=True)
class FedPMT:
    """Partial model training by width.

    Width i trains the last `widths[i - 1]` layers; the default is one width per layer. `split`: who picks the
    width, which changes only the messages ("server": option I, "device": option II). `rule`: "fixed" gives
    capability level i width i; "deadline" gives each device the largest width that it finishes in time. A device
    whose memory is too small for its width trains the largest that fits.
    `upload`: only the trained layers, or the full model. `absent`: a layer is averaged over who trained it ("skip"), or
    who did not train it counts with the old one ("keep_old").
    """

    widths: tuple[Annotated[int, Ge(1)], ...] | None = None  # layers trained by width, ascending
    split: Literal["server", "device"] = "server"
    rule: Literal["fixed", "deadline"] = "fixed"
    upload: Literal["trained", "full"] = "trained"
    absent: Absent = "skip"
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return every device's width, counted from 1. Raises ConfigError if widths, levels or deadline do not fit."""
        depths = self._depths(setting)
        setting.cost.check(widths=len(depths))
        if self.rule == "deadline":
            return {"width": self._within_memory(self._widths_by_deadline(setting), setting)}
        if setting.level.max() > len(depths):
            raise ConfigError(
                f"fleet.level: method.rule 'fixed' needs levels up to the {len(depths)} widths, "
                f"found {setting.level.max()}"
            )
        return {"width": self._within_memory(setting.level, setting)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train as many of the last layers as their width says."""
        tasks = {
            width: self._task(width, view.setting, view.round)
            for width in range(1, len(self._depths(view.setting)) + 1)
        }
        return Plan(tuple(Order(d, tasks[state["width"][d]]) for d in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy; the part of the task freezes the first layers."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each layer over the devices that trained it, by data size; other layers stay.

        Source: FedPMT paper, aggregation in the per-device form A_k[l] = D_k f_k[l] / sum_j D_j f_j[l].
        """
        return mean_by_size(state, base, [_trained_only(m) for m in got], self.absent)

    def _depths(self, setting: Setting) -> tuple[int, ...]:
        layers = len(setting.card.layers)
        depths = tuple(range(1, layers + 1)) if self.widths is None else self.widths
        if list(depths) != sorted(set(depths)) or depths[-1:] != (layers,):
            raise ConfigError(
                f"method.widths: must rise to the model's {layers} layers, as the last width is the full model; "
                f"found {list(depths)}"
            )
        return depths

    def _part(self, width: int, setting: Setting) -> Part:
        depths = self._depths(setting)
        names = [layer.name for layer in setting.card.layers]
        return Part(f"last{depths[width - 1]}", frozen=frozenset(names[: -depths[width - 1]]), width=width)

    def _task(self, width: int, setting: Setting, round_: int) -> Task:
        part = self._part(width, setting)
        layers = frozenset(layer.name for layer in setting.card.layers) - part.frozen
        mask_bits, masks = len(setting.card.layers), len(self._depths(setting))
        down_bits, up_bytes = (mask_bits, _REPORT_BYTES)
        if self.split == "device":
            down_bits, up_bytes = masks * mask_bits, math.ceil(mask_bits / 8)
        return Task(
            part=part,
            stretches=(setting.training.stretch(round_),),
            down=Payload(extra_bytes=math.ceil(down_bits / 8)),
            up=Payload(layers=layers if self.upload == "trained" else None, extra_bytes=up_bytes),
        )

    def _within_memory(self, widths: np.ndarray, setting: Setting) -> list[int]:
        """Return each device's width or, if its memory is too small for that, the largest that fits (at least 1)."""
        batch, momentum = setting.training.batch, setting.training.momentum > 0
        parts = [self._part(width, setting) for width in range(1, len(self._depths(setting)) + 1)]
        needs = np.array([setting.card.memory_bytes(part, batch, momentum).total for part in parts])
        fitting = np.maximum((needs[None, :] <= setting.memory_bytes[:, None]).sum(axis=1), 1)
        return np.minimum(widths, fitting).tolist()

    def _widths_by_deadline(self, setting: Setting) -> np.ndarray:
        """Return each device's largest width that fits the deadline, shape (devices,); width 1 if none does."""
        if setting.deadline_s == math.inf:
            raise ConfigError("method.rule: 'deadline' needs a coordinator with a deadline")
        best = np.ones(len(setting.samples), dtype=np.int64)
        everybody = np.arange(len(best))
        for width in range(1, len(self._depths(setting)) + 1):
            task = self._task(width, setting, 0)
            down_s = 8.0 * setting.card.nbytes(task.down, task.part, setting.encoding_down) / setting.down_bps
            up_s = 8.0 * setting.card.nbytes(task.up, task.part, setting.encoding_up) / setting.up_bps
            seconds = full_speed_s(task, setting, everybody) + down_s + up_s + 2.0 * setting.latency_s
            best[seconds <= setting.deadline_s + 1e-9] = width
        return best


def _trained_only(message: Message) -> Message:
    """Return a message without the layers that its task froze, which a full upload also carries."""
    frozen = message.task.part.frozen
    body = {
        kind: {name: t for name, t in tensors.items() if name.rpartition(".")[0] not in frozen}
        for kind, tensors in message.body.items()
    }
    return message._replace(body=body)


PARTS = {"fedpmt": FedPMT}
