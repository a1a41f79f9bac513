"""Over-the-air aggregation: devices send their moves at the same time as amplitudes, and the air adds them up.

Source: Zhu, Wang and Huang, "Broadband Analog Aggregation for Low-Latency Federated Edge Learning" (IEEE Trans.
Wireless Commun., 2020), truncated channel inversion; of gradients, Amiri and Gunduz, "Federated Learning over Wireless
Fading Channels" (same journal, 2020), without their sparsification and projection; time-varying precoding, Sery,
Shlezinger, Cohen and Eldar, "Over-the-Air Federated Learning from Heterogeneous Data" (COTAF, IEEE Trans. Signal
Process., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from scipy.special import exp1
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.encoding import Chain, Contents, EncodingStep
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.model_state import moves, named, square, tensors_in
from edgesim.core.rng import Draws, Key, PlanStream
from edgesim.core.task import Order, Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import not_below_0
from edgesim.methods.fedsgd import FedSGD

_SCALE_BYTES = 4  # a device's mean square, and the common scale
_SCALING_FLOPS = 4.0  # FLOPs for each number: the difference, its square and the sum of squares, the product
_NOTHING = Payload(collections=frozenset())


@dataclass(frozen=True)
class Amplitudes(EncodingStep):
    """Numbers as amplitudes of a signal: exact, and priced by the time on air. The method models noise and fading."""

    symbol_bits: float  # bits that the link carries in the time of one number

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes that the link would carry in the time of these numbers."""
        return math.ceil(held.numbers * self.symbol_bits / 8.0)


@dataclass(frozen=True, kw_only=True)
class OverTheAir(Method):
    """Base of methods whose devices send at the same time, so that the air adds up their updates.

    The new model is w + (sum of the speakers' moves + noise) / speakers, where speakers are the devices that send.
    Each job has a Rayleigh channel of mean gain 1. A device whose gain is below `cutoff` trains and stays silent. The
    other devices divide their amplitude by the amplitude of the channel, so that all arrive with equal power. With an
    average transmit power P they arrive with P / E1(cutoff), E1 being the exponential integral. The server's noise in
    each number therefore has the standard deviation rms sqrt(E1(cutoff) / snr) / speakers, where rms is the root mean
    square of the speakers' moves.
    All devices have equal weights, as amplitudes are equal. A device also stays silent if its numbers are not finite or
    if its update comes in a later round. In a round without speakers the model stays. The metric `silent` is the number
    of devices that trained and did not reach the server.
    All speakers share the air time of one upload, whatever their number. Give all devices the rate of the whole band. A
    device that is ready earlier waits for the others without sending, which does not change the length of the round. A
    speaker draws `energy.transmit` for the air time, its power averaged over the fading of speakers.

    COTAF is `fading` = "none" with `precoding` = "longest". Each round all devices then scale their moves by one
    factor, by which the longest move has the power P. The sum is divided by this factor, so that the noise
    falls with the moves. COTAF takes an expected square of moves, estimated before. Here it is the square itself, which
    devices send.
    """

    snr_db: Annotated[float, Ge(-100), Le(100)] = 20.0  # average power of a device over noise power, at mean gain
    """Chosen here: no value of the papers was confirmed."""
    cutoff: Annotated[float, Gt(0), Le(10)] = 0.1  # least power gain of a device that speaks; the mean is 1
    """A lower value silences fewer devices, a share 1 - exp(-cutoff), and makes all others arrive with less power.
    Chosen here.
    """
    symbol_bits: Annotated[float, Gt(0), Le(64)] = 1.0  # bits that the link carries in the time of one number
    """A complex symbol holds two numbers: half the bits of a symbol of the digital link, 1 for QPSK."""
    fading: Literal["rayleigh", "none"] = "rayleigh"  # gains of channels: exponential, or always 1
    """Zhu et al. have Rayleigh fading. Sery et al. begin without fading: then no device is silent, and `cutoff` has no
    effect.
    """
    precoding: Literal["mean", "longest"] = "mean"  # move that is sent at the average power P
    """With "mean" P is the average over speakers, for the root mean square of their moves. Sery et al. bound each
    device: "longest" gives P to the longest move, as large as the largest root mean square of a speaker.
    """

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders. Devices in a deep fade send nothing."""
        plan, numbers = super().plan(state, view, key), view.setting.cost_profile.numbers(Payload())
        speak = self.gains([order.device for order in plan.orders], key) >= self.least_gain
        scaling = Pass("flops", times=_SCALING_FLOPS * numbers)
        down = Payload(extra_bytes=_SCALE_BYTES)
        up = Payload(extra_bytes=_SCALE_BYTES, encoding=Chain((Amplitudes(self.symbol_bits),)))
        tasks: dict[tuple[int, bool], Task] = {}
        orders = []
        for order, speaks in zip(plan.orders, speak.tolist(), strict=True):
            task, kind = order.task, (id(order.task), speaks)
            if kind not in tasks and speaks:
                tasks[kind] = replace(task, passes=(*task.passes, scaling), up=up, down=down)
            elif kind not in tasks:
                tasks[kind] = replace(task, up=_NOTHING)
            orders.append(Order(order.device, tasks[kind]))
        return Plan(tuple(orders))

    @property
    def least_gain(self) -> float:
        """Least power gain of a device that speaks."""
        return self.cutoff if self.fading == "rayleigh" else 0.0

    def gains(self, devices: Sequence[int], key: Key) -> Arr:
        """Return the power gains of devices' channels in a round, shape (len(devices),): exponential, 1 on average.

        Without fading all are 1.
        """
        ids = np.array(devices, dtype=np.int64)
        if self.fading == "none":
            return np.ones(len(ids))
        gains: Arr = -np.log(Draws(key.at(PlanStream.FADING), ids, np.zeros_like(ids)).uniform(0))
        return gains

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model moved by the received sum, divided by the number of speakers."""
        heard = [update for update in updates if update.body and not update.staleness]
        metrics = {"silent": float(len(updates) - len(heard))}
        if not heard:
            return Aggregate(state, None, metrics=metrics)
        spoken = [moves(update.body, global_model) for update in heard]
        numbers = sum(tensor.numel() for tensor in tensors_in(global_model))
        squares = [square(moved) for moved in spoken]
        scaled = [max(squares)] if self.precoding == "longest" else squares
        rms = math.sqrt(math.fsum(scaled) / (len(scaled) * numbers))
        inversion = exp1(self.cutoff) if self.fading == "rayleigh" else 1.0
        noise = rms * math.sqrt(inversion / 10.0 ** (self.snr_db / 10.0))
        generator = torch.Generator().manual_seed(key.word())

        def landed(name: str, old: Tensor, *moved: Tensor) -> Tensor:
            total = noise * torch.randn(old.shape, generator=generator, dtype=torch.float64)
            for each in moved:
                total += each
            return not_below_0(name, old + total / len(moved)).to(old.dtype)

        return Aggregate(state, named(landed, global_model, *spoken), metrics=metrics)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of scaling the received sum."""
        return float(setting.cost_profile.numbers(Payload()))


@dataclass(frozen=True, kw_only=True)
class AnalogFedAvg(OverTheAir):
    """FedAvg over the air: devices train as the scenario says, and send the moves of their models.

    Family: over the air. Formula: `w <- w + (sum_k d_k + noise) / n, where d_k are the moves of the n speakers`. Paper:
    arXiv 1812.11494 and arXiv 1907.09769.
    """


@dataclass(frozen=True, kw_only=True)
class AnalogFedSGD(OverTheAir, FedSGD):
    """FedSGD over the air: devices send one gradient, times the learning rate.

    Family: over the air. Formula: `w <- w - lr (sum_k G_k + noise) / n, where G_k are the gradients of the n speakers`.
    Paper: arXiv 1812.11494 and arXiv 1907.09769.
    """


PLUGINS = {"analog_fedavg": AnalogFedAvg, "analog_fedsgd": AnalogFedSGD}
