"""Local work of a device: steps of an optimiser over its data, and their changes from round to round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, NonNegativeFactor, PositiveFactor, PositiveShare

Optimizer: TypeAlias = Literal["sgd", "adam", "adamw"]
Precision: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Steps over the device's data, by default of SGD. Exactly one of `epochs` and `steps` is positive."""

    batch: int
    lr: float
    epochs: int = 0
    steps: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = float("inf")
    optimizer: Optimizer = "sgd"
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    shuffle: bool = True

    @property
    def moments(self) -> int:
        """Numbers that the optimiser keeps per trained parameter from step to step."""
        return int(self.momentum > 0) if self.optimizer == "sgd" else 2

    @property
    def scratch(self) -> int:
        """Copies of a parameter that torch.optim makes while it updates it, one parameter after another."""
        if self.optimizer == "sgd":
            return int(self.weight_decay > 0) + int(self.nesterov)
        return 2 + int(self.optimizer == "adam" and self.weight_decay > 0)  # the root and the denominator

    def for_epochs(self, epochs: int) -> LocalSGD:
        """Return a copy with `epochs` passes over the device's data."""
        return replace(self, epochs=epochs, steps=0)

    def for_steps(self, steps: int) -> LocalSGD:
        """Return a copy with `steps` steps."""
        return replace(self, epochs=0, steps=steps)

    def amount(self, n_samples: np.ndarray, drop_single: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return samples processed and SGD steps taken, int64 arrays of shape (k,), for k local data sizes.

        `drop_single`: skip a last batch of one sample, because batch normalisation cannot train on it.
        """
        n = np.asarray(n_samples, dtype=np.int64)
        single = drop_single & (n % self.batch == 1)
        per_epoch = n - single
        steps = -(-per_epoch // self.batch)
        if self.epochs:
            return per_epoch * self.epochs, steps * self.epochs
        full, rest = np.divmod(self.steps, np.maximum(steps, 1))
        taken = full * per_epoch + np.minimum(rest * self.batch, per_epoch)
        return np.where(steps > 0, taken, 0), np.where(steps > 0, self.steps, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Local optimiser settings of a scenario: plain SGD, or another optimiser, with a per-round learning-rate decay.

    Steps and defaults are those of torch.optim.SGD, Adam and AdamW. The optimiser's state is reset with every job. With
    precision bfloat16 networks run on devices as `torch.autocast` has it, forward and backward. Weights, gradients of
    weights, losses, the optimiser and tests of the model stay float32. `fleet.cpu.bfloat16_speedup` has its seconds.
    Memory is charged as in float32.
    """

    local_epochs: Count = 1  # passes over its own data that a device makes in a job
    local_steps: Count | None = None  # steps of a job, for any size of the data; unset: `local_epochs`
    batch: Count = 32  # samples of an SGD step
    optimizer: Optimizer = "sgd"  # adam adds the weight decay to the gradient, adamw subtracts it from the weights
    lr: PositiveFactor = 0.01  # learning rate of the first round
    lr_decay: PositiveShare = 1.0  # factor of the learning rate per round
    lr_floor: NonNegativeFactor = 0.0  # lowest learning rate that the decay reaches
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # momentum of SGD, reset with every job
    weight_decay: NonNegativeFactor = 0.0  # this factor times the weights is added to the gradient
    clip_norm: Annotated[float, Gt(0)] = float("inf")  # largest norm of a step's gradient; larger ones are scaled down
    nesterov: bool = False  # Nesterov momentum for SGD
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9  # decay of the running mean of gradients in adam and adamw
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999  # decay of the running mean of squared gradients in adam and adamw
    eps: PositiveFactor = 1e-8  # added to the root of the mean of squared gradients in adam and adamw
    precision: Precision = "float32"  # of matrix products on devices; with "bfloat16" weights stay float32
    shuffle: bool = True  # draw a new order of the data for each epoch; false: always the order of the partition

    def check(self) -> None:
        """Raise ConfigError if settings do not go together."""
        if self.lr_floor > self.lr:
            raise ConfigError(f"training.lr_floor: must be at most training.lr, {self.lr:g}, got {self.lr_floor:g}")
        if self.optimizer != "sgd":
            for name, found in (("momentum", self.momentum), ("nesterov", self.nesterov)):
                if found:
                    raise ConfigError(f"training.{name}: goes with optimizer 'sgd' alone, found '{self.optimizer}'")
        elif self.nesterov and not self.momentum:
            raise ConfigError("training.nesterov: needs training.momentum above 0, found 0")

    def check_sgd(self, why: str) -> None:
        """Raise ConfigError, with the reason, unless the optimiser is SGD, for methods that rely on SGD steps."""
        if self.optimizer != "sgd":
            raise ConfigError(f"training.optimizer: must be 'sgd' for this method, found '{self.optimizer}'; {why}")

    def check_epochs(self, why: str) -> None:
        """Raise ConfigError, with the reason, unless local work is given in epochs, for methods that divide by them."""
        if self.local_steps:
            raise ConfigError(
                f"training.local_steps: must be left out for this method, found {self.local_steps}; {why}, "
                "so use training.local_epochs"
            )

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of a round counted from 0: max(lr * decay^round, floor)."""
        return max(self.lr * self.lr_decay**round_, self.lr_floor)

    def local_sgd(self, round_: int) -> LocalSGD:
        """Return the local work of a round counted from 0."""
        return LocalSGD(
            batch=self.batch,
            lr=self.lr_at(round_),
            epochs=0 if self.local_steps else self.local_epochs,
            steps=self.local_steps or 0,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            optimizer=self.optimizer,
            nesterov=self.nesterov,
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            shuffle=self.shuffle,
        )
