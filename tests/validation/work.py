"""Methods that learn nothing: devices do a given amount of work, so that its seconds and joules can be told by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgesim.core.method import Method
from edgesim.core.rng import Key
from edgesim.core.task import Order, Pass, Payload, Plan, Submodel, Task
from edgesim.core.view import Setting, View
from edgesim.runs.simulation import Simulation
from tests.conftest import frames, simulate_null, timing_scenario


class Idle(Method):
    """What methods without learning share; each device has a task of its own."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return no state."""
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask everybody who can be asked."""
        return Plan(tuple(Order(device, self.task_of(device, view)) for device in view.choose(key).tolist()))

    def task_of(self, device: int, view: View) -> Task:
        """Return what a device is to do."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Work(Idle):
    """Device i receives down_bytes[i], computes flops[i] and sends up_bytes[i], round after round."""

    flops: tuple[float, ...]
    up_bytes: tuple[int, ...]
    down_bytes: tuple[int, ...]

    def task_of(self, device: int, view: View) -> Task:
        """Return the work of a device."""
        down, up = (
            Payload(collections=frozenset(), extra_bytes=column[device]) for column in (self.down_bytes, self.up_bytes)
        )
        return Task(down=down, up=up, passes=(Pass("flops", times=self.flops[device]),))


@dataclass(frozen=True, kw_only=True)
class TrainPart(Idle):
    """Everybody trains one part of the model: some units of each group, with so many nonzero weights a layer."""

    channels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    nonzero: Mapping[str, int] = field(default_factory=dict)

    def task_of(self, device: int, view: View) -> Task:
        """Return the training of the part."""
        submodel = Submodel(channels=tuple(self.channels.items()), nnz=tuple(self.nonzero.items()))
        return Task(submodel=submodel, local_sgd=(view.setting.training.local_sgd(view.round),))


def simulate_work(
    flops: Sequence[float], up_bytes: Sequence[int], down_bytes: Sequence[int] | None = None, **changes: Any
) -> tuple[Simulation, Any]:
    """Run devices with given work; return the run and its jobs, by round and device.

    Unless the fleet is given every device does 1 FLOP/s, so that FLOPs are seconds.
    """
    columns = {
        "flops": [float(amount) for amount in flops],
        "up_bytes": [int(size) for size in up_bytes],
        "down_bytes": [0] * len(flops) if down_bytes is None else [int(size) for size in down_bytes],
    }
    settings = {"model": "mlr", "fleet": [{"count": len(flops), "cpu": {"flops_per_s": 1.0}}], **changes}
    method = {"name": f"{__name__}:Work", **columns}
    simulation = simulate_null(timing_scenario(method=method, **settings))
    return simulation, frames(simulation)["jobs"].sort_values(["round", "device"], ignore_index=True)


def uplink_ends(start_s: Sequence[float], up_bytes: Sequence[int], **changes: Any) -> np.ndarray:
    """Return the second at which each device's upload ends that begins at `start_s`, float64, shape (devices,)."""
    ends: np.ndarray = simulate_work(start_s, up_bytes, **changes)[1]["end_s"].to_numpy()
    return ends
