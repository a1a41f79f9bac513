"""Calls of a user's training loop: its arguments, its answer, and the work that it did."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from edgesim.config.plugins import function_of
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalState
from edgesim.core.rng import Key
from edgesim.files.own_code import own_frames
from edgesim.files.reading import quoted
from edgesim.foreign.counting import Counter
from edgesim.foreign.isolation import NamesKept, name_of, own_interrupts, put_back, text_of
from edgesim.foreign.loops import ROUND, LoopPrice, OwnLoop, fitted
from edgesim.learning.models.build import base_digest, base_of, digest_of, sent_buffers
from edgesim.learning.models.seeding import all_seeded
from edgesim.learning.train.context import Context

_MOST_OFF = 0.01  # share of its price by which the work of a call may be off
_KEYS = ("samples", "metrics", "steps")  # of the answer


class DeviceData(Dataset[tuple[Tensor, Tensor]]):
    """The training samples of a device, pairs of features and label as torch.utils.data.TensorDataset has them.

    `classes`: number of classes. `tensors`: all features and all labels. Augmented anew at each access if the data set
    augments.
    """

    def __init__(self, context: Context, seed: int) -> None:
        self.classes = context.classes
        self._context = context
        self._augmenting = torch.Generator().manual_seed(seed) if context.augments else None

    def __len__(self) -> int:
        return len(self._context.shard)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {place} of {len(self)}")
        return self.__getitems__([place % len(self)])[0]

    def __getitems__(self, places: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the samples at these places, all gathered at once. DataLoader calls it."""
        batch = self._batch(torch.as_tensor(places, dtype=torch.int64))
        return list(zip(batch[0], batch[1], strict=True))

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Features and labels of all samples, in order."""
        return self._batch(torch.arange(len(self)))

    def _batch(self, places: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self._context.batch(places.to(self._context.shard.device), self._augmenting)
        return x, y


class LoopConfig(Mapping[str, Any]):
    """Settings of a call, read-only: `config["lr"]` or `config.lr`."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        vars(self)["_entries"] = dict(entries)

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getattr__(self, name: str) -> Any:
        entries = vars(self).get("_entries", {})
        if name not in entries:
            raise AttributeError(f"the config has no {name!r} (it has {', '.join(entries)})")
        return entries[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"the config is read-only: {name!r} cannot be set")


class LoopAnswer(NamedTuple):
    """The answer of a loop: weight of the update in averages, steps taken, and metrics."""

    samples: float
    steps: int
    metrics: Mapping[str, float]

    @classmethod
    def read(cls, of: str, returned: Any, samples: int, steps: int) -> LoopAnswer:
        """Return the answer that a loop returned. `samples`, `steps`: those of the job, where the loop names none.

        `of`: the beginning of the EdgesimError that a wrong answer raises.
        """
        if not isinstance(returned, Mapping):
            raise EdgesimError(f'{of}: must return a dict such as {{"samples": {samples}}}, got {quoted(returned)}')
        for key in returned:
            if key not in _KEYS:
                raise EdgesimError(f"{of}: returned an unknown key {quoted(key)} (allowed: {', '.join(_KEYS)})")
        weight = _number(f"{of}: samples", returned.get("samples", samples))
        if not 0 < weight < math.inf:
            raise EdgesimError(f"{of}: samples must be a number above 0, got {weight:g}")
        taken = _number(f"{of}: steps", returned.get("steps", steps))
        if taken < 0 or not taken.is_integer():
            raise EdgesimError(f"{of}: steps must be a whole number, got {taken:g}")
        metrics = returned.get("metrics", {})
        if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
            raise EdgesimError(f"{of}: metrics must be a dict of names and numbers, got {quoted(metrics)}")
        return cls(
            int(weight) if weight.is_integer() else weight,
            int(taken),
            {name: _number(f"{of}: metrics.{name}", value) for name, value in metrics.items()},
        )


class _Done(NamedTuple):
    answer: LoopAnswer
    work: Mapping[str, float]
    memory_bytes: int


def train(loop: OwnLoop, local: LocalState, local_sgd: LocalSGD, context: Context, key: Key) -> LoopAnswer:
    """Let the loop train the weights of a job in place. Raises EdgesimError if it fails or costs more than its price.

    `key`: stream of the batch order, whose seed the loop gets. The global generators of torch, NumPy and Python are
    seeded from the key of the job and restored.
    """
    samples = len(context.shard)
    if not samples:
        return LoopAnswer(0, 0, {})
    kinds = loop.price is not None and loop.price.has_kinds
    done = _called(loop, local, local_sgd, context, key, kinds)
    if loop.price is not None and (off := _off(loop.price, local_sgd, samples, done.work)):
        raise EdgesimError(f"method.local: {loop.loop} on {_job(context)} {off}")
    return done.answer


def measured(
    loop: OwnLoop, context_of: Callable[[int], Context], local_sgd: LocalSGD, key: Key, kinds: bool
) -> LoopPrice:
    """Return the price of a loop from calls with one batch, two batches, and one and a half.

    `context_of`: gives the context of a job with so many samples. `kinds`: also count the kinds of work. A fourth call
    checks that the price is linear. Raises ConfigError if it is not, or if the loop does no work in torch.
    """
    batch = local_sgd.batch
    sizes = (batch, 2 * batch, batch + math.ceil(batch / 2), 2 * batch + math.ceil(batch / 4))
    calls: list[_Done] = []
    for samples in sizes:
        context = context_of(samples)
        calls.append(_called(loop, LocalState(context.copy(context.global_model)), local_sgd, context, key, kinds))
    if not calls[0].work["flops"]:
        why = "did no floating-point operations in torch; work in NumPy or other threads cannot be priced"
        raise ConfigError(f"method.local: {loop.loop} {why}")
    trained, steps = (column.tolist() for column in local_sgd.amount(np.array(sizes), False))
    memory_bytes = max(done.memory_bytes for done in calls)
    price = fitted(trained[:-1], steps[:-1], [done.work for done in calls[:-1]], memory_bytes)
    if off := _off(price, local_sgd, sizes[-1], calls[-1].work):
        raise ConfigError(f"method.local: {loop.loop} cannot be priced by its samples: it {off}")
    return price


def _off(price: LoopPrice, local_sgd: LocalSGD, samples: int, work: Mapping[str, float]) -> str:
    """Return the difference of a call with these samples from its price in words, "" if there is hardly any."""
    trained, steps = local_sgd.amount(np.array([samples]), False)
    for kind, amounts in price.of(trained, steps).items():
        due, done = float(amounts[0]), work[kind]
        if abs(done - due) > _MOST_OFF * max(abs(due), abs(done)):
            why = "does its work depend on the data, or on another batch size than config.batch?"
            if done < due:
                why = "did it stop early, skip samples or leave out the last batch?"
            charged = f"is charged {due:.6g} for {samples} samples in {int(steps[0])} steps"
            return f"did {done:.6g} {kind} and {charged}, more than 1 % off; {why}"
    return ""


def _called(loop: OwnLoop, local: LocalState, local_sgd: LocalSGD, context: Context, key: Key, kinds: bool) -> _Done:
    function = function_of("method.local", loop.loop, "model", "data", "config")
    seed = key.at(0).word()  # of the order of batches in edgesim's own local SGD
    model, data = context.network(local.weights), DeviceData(context, key.at(1).word())
    base, before = base_digest(model), {name: value._version for name, value in base_of(model).items()}
    config = LoopConfig(
        {
            **asdict(local_sgd),
            "round": int(context.task.config.get(ROUND, 0)),
            "device_id": context.device,
            "seed": seed,
            "torch_device": str(context.torch_device),
            **copy.deepcopy(loop.keys.config),
        }
    )
    counter = Counter(kinds)
    try:
        with (
            put_back(),
            own_interrupts() as interrupted,
            all_seeded(context.key),
            counter,
            NamesKept(),
        ):
            returned = function(model, data, config)
    except BaseException as error:  # the user's code may raise anything
        if interrupted() or isinstance(error, EdgesimError):
            raise
        frames, (*_, last) = own_frames(error), traceback.walk_tb(error.__traceback__)
        # a function of an installed package is no own code
        place = frames.place if frames else f"{Path(last[0].f_code.co_filename).name}, line {last[1]}"
        fault = f"{name_of(error)}: {text_of(error)}"
        raise EdgesimError(f"method.local: {loop.loop} fails on {_job(context)}: {fault} ({place})") from error
    counted, of = counter.counted(), f"method.local: {loop.loop} on {_job(context)}"
    answer = LoopAnswer.read(of, returned, len(data), counted.steps)
    changed = [name for name, value in base_of(model).items() if value._version != before.get(name)]
    if changed and digest_of(base_of(model)) != base:
        raise EdgesimError(f"{of}: must not change frozen parameters, which all devices share: {quoted(changed[0])}")
    take_back(of, model, local)
    work = {**counted.work, "flops": counted.flops, "steps": float(counted.steps)}
    if counted.samples is None:  # no data loader tells how many it gave
        work["samples"] = float(local_sgd.amount(np.array([len(data)]), False)[0][0])
    return _Done(answer, work, counted.memory_bytes)


def _number(of: str, value: Any) -> float:
    if isinstance(value, Tensor | np.ndarray | np.generic) and math.prod(value.shape) == 1:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        raise EdgesimError(f"{of} must be a number, got {quoted(value)}")
    return float(value)


def take_back(of: str, model: nn.Module, local: LocalState) -> None:
    """Copy the parameters and buffers of a trained network into the weights of a job.

    `of`: the beginning of the EdgesimError that is raised if they are not those of the job.
    """
    for kind, trained in (("params", dict[str, Tensor](model.named_parameters())), ("buffers", sent_buffers(model))):
        held: Mapping[str, Tensor] = local.weights.get(kind, {})
        for name in dict.fromkeys([*held, *trained]):
            before, after = (tuple(each[name].shape) if name in each else "none" for each in (held, trained))
            if before != after:
                change = f"{quoted(name)} has shape {after} after training, and had {before}"
                raise EdgesimError(f"{of}: must not change the architecture: {change}")
        for name, tensor in held.items():
            tensor.detach().copy_(trained[name].detach())


def _job(context: Context) -> str:
    return f"device {context.device} in round {int(context.task.config.get(ROUND, 0))}"
