"""FedPMT: slow devices train only the last layers, and each layer is averaged over the devices that trained it.

Source: H. Wu and P. Wang, FedPMT paper (layer-wise partial model training); H. Wu, PhD thesis, York University
(2023), chapter 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.method import Absent, Aggregate, ServerContext
from edgesim.core.model_state import selected
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.core.workload import expected_s
from edgesim.methods.weighting.by_entry import MeanByEntry

_REPORT_BYTES = 8  # a device's capability, one float64


@dataclass(frozen=True, kw_only=True)
class FedPMT(MeanByEntry):
    """Partial model training: a device of width i trains the last `widths[i - 1]` layers of the model.

    The default is one width per layer. `split`: the server ("server", option I) or the device ("device", option II)
    picks the width, which changes only the messages. `rule`: "fixed" gives capability level i width i, "deadline" gives
    each device the largest width that it finishes in time. A device whose memory is too small for its width trains the
    largest width that fits.
    `upload`: only the trained layers, or the full model. `absent`: a layer is averaged over the devices that trained it
    ("average_over_holders"), or the other devices count with the old layer ("include_absent").

    Family: smaller networks. Formula: `w_l <- sum_(k trained l) n_k w_kl / sum_(k trained l) n_k for each layer l`.
    """

    widths: tuple[Count, ...] | None = None  # numbers of trained layers by width, ascending
    """One width a layer, as for the CNNs of Table 5.2. The fully connected network of the table starts with two trained
    layers: `[2, 3, 4, 5]`.
    """
    split: Literal["server", "device"] = "server"
    """Option I of the paper. Option II, `"device"`, trains the same models with other messages."""
    rule: Literal["fixed", "deadline"] = "fixed"
    """The study gives level i width i. The paper does not specify how else a width is found. `"deadline"` takes the
    largest width that finishes in time. The two differ: at 26.5 s the second fastest level could train all layers, yet
    the study gives it width 4.
    """
    upload: Literal["trained", "full"] = "trained"
    """The paper says only that frozen layers "are not counted". `"full"` is the careful reading. Both learn the same
    model.
    """
    absent: Absent = "average_over_holders"
    """The paper averages over the devices that trained a layer. `"include_absent"`, where the other devices count with
    the old layer, allows comparisons with methods whose papers do not specify it.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return every device's width, counted from 1. Raises ConfigError if widths, levels or deadline do not fit."""
        depths = self._depths(setting)
        setting.cost.check(widths=len(depths))
        if self.rule == "deadline":
            if setting.deadline_s == math.inf:
                raise ConfigError("method.rule: 'deadline' needs a protocol with a deadline")
            best = np.ones(len(setting.samples), dtype=np.int64)  # width 1 if none is in time
            devices = np.arange(len(best))
            for width in range(1, len(depths) + 1):
                seconds = expected_s(self._task(width, setting, 0), setting, devices)
                best[seconds <= setting.deadline_s + 1e-9] = width
            return {"width": self._within_memory(best, setting)}
        highest = setting.of_members().level.max()
        if highest > len(depths):
            raise ConfigError(
                f"fleet.level: method.rule 'fixed' needs levels up to the {len(depths)} widths, found {highest}"
            )
        return {"width": self._within_memory(setting.level, setting)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the last layers of their widths."""
        devices = view.choose(key).tolist()
        widths = [state["width"][device] for device in devices]
        return Plan.by_kind(devices, widths, lambda width: self._task(width, view.setting, view.round))

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each layer over the devices that trained it, by data size. Other layers stay.

        Source: FedPMT paper, aggregation in the per-device form A_k[l] = D_k f_k[l] / sum_j D_j f_j[l].
        """

        def trained(update: Update) -> Update:  # without frozen layers, which a full upload also carries
            frozen = update.task.submodel.frozen
            return update._replace(body=selected(update.body, lambda name: name.rpartition(".")[0] not in frozen))

        return super().aggregate(state, global_model, [trained(update) for update in updates], server, key)

    def _depths(self, setting: Setting) -> tuple[int, ...]:
        layers = len(setting.cost_profile.layers)
        depths = tuple(range(1, layers + 1)) if self.widths is None else self.widths
        if list(depths) != sorted(set(depths)) or depths[-1:] != (layers,):
            raise ConfigError(
                f"method.widths: must rise to the model's {layers} layers, as the last width is the full model; "
                f"found {list(depths)}"
            )
        return depths

    def _submodel(self, width: int, setting: Setting) -> Submodel:
        depths = self._depths(setting)
        names = [layer.name for layer in setting.cost_profile.layers]
        return Submodel(f"last{depths[width - 1]}", frozen=frozenset(names[: -depths[width - 1]]), width=width)

    def _task(self, width: int, setting: Setting, round_: int) -> Task:
        submodel = self._submodel(width, setting)
        layers = frozenset(layer.name for layer in setting.cost_profile.layers) - submodel.frozen
        mask_bits, masks = len(setting.cost_profile.layers), len(self._depths(setting))
        down_bits, up_bytes = (mask_bits, _REPORT_BYTES)
        if self.split == "device":
            down_bits, up_bytes = masks * mask_bits, math.ceil(mask_bits / 8)
        return Task(
            submodel=submodel,
            local_sgd=(setting.training.local_sgd(round_),),
            down=Payload(extra_bytes=math.ceil(down_bits / 8)),
            up=Payload(layers=layers if self.upload == "trained" else None, extra_bytes=up_bytes),
        )

    def _within_memory(self, widths: np.ndarray, setting: Setting) -> list[int]:
        """Return each device's width, or the largest that fits its memory if that is smaller (at least 1)."""
        sgd, of = setting.training.local_sgd(0), setting.cost_profile
        submodels = [self._submodel(width, setting) for width in range(1, len(self._depths(setting)) + 1)]
        needs = np.array([of.memory_bytes(part, sgd.batch, sgd.moments, sgd.scratch).total for part in submodels])
        fitting = np.maximum((needs[None, :] <= setting.memory_bytes[:, None]).sum(axis=1), 1)
        return np.minimum(widths, fitting).tolist()


PLUGINS = {"fedpmt": FedPMT}
