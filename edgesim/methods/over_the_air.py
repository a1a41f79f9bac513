"""Over-the-air aggregation: devices send their moves at once as amplitudes, and the air adds them up.

Source: Zhu, Wang and Huang, "Broadband Analog Aggregation for Low-Latency Federated Edge Learning" (IEEE Trans.
Wireless Commun., 2020), truncated channel inversion; of gradients, Amiri and Gunduz, "Federated Learning over Wireless
Fading Channels" (same journal, 2020), without their sparsification and projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from scipy.special import exp1
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.encoding import Analog
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Draws, Key, PlanStream
from edgesim.core.task import Order, Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.fedsgd import FedSGD

_SCALE_BYTES = 4  # a device's mean square, and the scale that all use
_SCALING_FLOPS = 4.0  # of a number: the difference, its square and the sum of squares, the product
_NOTHING = Payload(collections=frozenset())


@dataclass(frozen=True, kw_only=True)
class OverTheAir(Method):
    """Base class of methods whose updates are added up by the air: w + (sum of the speakers' moves + noise) / speakers.

    Each job has a Rayleigh channel of mean gain 1. A device whose gain is below `cutoff` trains and stays silent; the
    others divide their amplitude by the channel's, so that all arrive alike. With an average transmit power P they
    arrive with P / E1(cutoff), E1 being the exponential integral: so the server's noise in each number has the standard
    deviation rms sqrt(E1(cutoff) / snr) / speakers, where rms is the root mean square of the speakers' moves.
    All devices count the same, as amplitudes are equal. A device whose numbers are not finite stays silent too, and so
    does one whose update comes in a later round. A round of silent devices leaves the model. The metric `silent` says
    how many of those who trained did not reach the server.
    All speakers share the air time, that of one upload however many they are; give all devices the rate of the
    whole band. Who is ready earlier waits for the others without sending: a round lasts as long either way. A speaker
    draws `energy.transmit` for the air time, its power averaged over the fading of those who speak.
    """

    snr_db: Annotated[float, Ge(-100), Le(100)] = 20.0  # average power of a device by the noise's, at mean gain
    """Chosen here: no value of the papers was confirmed."""
    cutoff: Annotated[float, Gt(0), Le(10)] = 0.1  # least power gain with which a device speaks; the mean is 1
    """The lower, the fewer are silent, 1 - exp(-cutoff) of them, and the weaker all others have to be. Chosen here."""
    symbol_bits: Annotated[float, Gt(0), Le(64)] = 1.0  # what the link carries as bits in the time of one number
    """A complex symbol holds two numbers: half the bits of a symbol of the digital link, 1 for QPSK."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders; devices in a deep fade send nothing."""
        plan = super().plan(state, view, key)
        speak = self.gains([order.device for order in plan.orders], key) >= self.cutoff
        tasks: dict[tuple[int, bool], Task] = {}
        orders = []
        for order, speaks in zip(plan.orders, speak.tolist(), strict=True):
            kind = id(order.task), speaks
            if kind not in tasks:
                tasks[kind] = self._on_air(order.task, speaks, view.setting)
            orders.append(Order(order.device, tasks[kind]))
        return Plan(tuple(orders))

    def gains(self, devices: Sequence[int], key: Key) -> Arr:
        """Return the power gains of devices' channels in a round, shape (len(devices),): exponential, 1 on average."""
        ids = np.array(devices, dtype=np.int64)
        gains: Arr = -np.log(Draws(key.at(PlanStream.FADING), ids, np.zeros_like(ids)).uniform(0))
        return gains

    def _on_air(self, task: Task, speaks: bool, setting: Setting) -> Task:
        if not speaks:
            return replace(task, up=_NOTHING)
        scaling = Pass("flops", times=_SCALING_FLOPS * setting.cost_profile.numbers(Payload()))
        up = Payload(extra_bytes=_SCALE_BYTES, encoding=Analog(symbol_bits=self.symbol_bits))
        return replace(task, passes=(*task.passes, scaling), up=up, down=Payload(extra_bytes=_SCALE_BYTES))

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model moved by what the server hears, by the number of speakers."""
        heard = [update for update in updates if update.body and not update.staleness]
        metrics = {"silent": float(len(updates) - len(heard))}
        if not heard:
            return Aggregate(state, None, metrics=metrics)
        moves = [_moves(update.body, global_model) for update in heard]
        numbers = sum(tensor.numel() for tensors in global_model.values() for tensor in tensors.values())
        rms = math.sqrt(math.fsum(map(_square, moves)) / (len(moves) * numbers))
        noise = rms * math.sqrt(exp1(self.cutoff) / 10.0 ** (self.snr_db / 10.0))
        generator = torch.Generator().manual_seed(key.word())

        def landed(kind: str, name: str, old: Tensor) -> Tensor:
            total = noise * torch.randn(old.shape, generator=generator, dtype=torch.float64)
            for each in moves:
                total += each[kind][name]
            new = old + total / len(moves)
            return (new.clamp(min=0.0) if name.endswith("running_var") else new).to(old.dtype)

        model = {kind: {n: landed(kind, n, old) for n, old in ts.items()} for kind, ts in global_model.items()}
        return Aggregate(state, model, metrics=metrics)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of scaling what was heard."""
        return float(setting.cost_profile.numbers(Payload()))


@dataclass(frozen=True, kw_only=True)
class AnalogFedAvg(OverTheAir):
    """FedAvg over the air: devices train as the scenario says, and send how far their models moved."""


@dataclass(frozen=True, kw_only=True)
class AnalogFedSGD(OverTheAir, FedSGD):
    """FedSGD over the air: devices send one gradient, times the learning rate."""


def _moves(body: ModelState, start: ModelState) -> dict[str, dict[str, Tensor]]:
    return {
        kind: {name: tensor.double() - start[kind][name] for name, tensor in tensors.items()}
        for kind, tensors in body.items()
    }


def _square(moves: ModelState) -> float:
    return math.fsum(move.square().sum().item() for tensors in moves.values() for move in tensors.values())


PLUGINS = {"analog_fedavg": AnalogFedAvg, "analog_fedsgd": AnalogFedSGD}
