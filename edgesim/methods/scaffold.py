"""SCAFFOLD: control variates tell each device how its gradients differ from everybody's.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Pass,
    Payload,
    Plan,
    Setting,
    Stretch,
    Task,
    Training,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.context import Context
from edgesim.learning.loop import batch_order
from edgesim.learning.masks import dense_gradient
from edgesim.learning.merge import finite, is_finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_WHOLE = 1  # sub-stream of a job's key for the gradient of all samples; 0 is that of its stretch
_MODEL = ("params", "buffers")
_BOTH_WAYS = Payload(kinds=frozenset({*_MODEL, "control"}))


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """Devices step along g - c_k + c and send how far they and their control variates c_k moved.

    c_k becomes the mean of the device's gradients, c_k - c + (x - y) / (H lr) for H steps from x to y (`option` "II"),
    or the gradient of all its samples at x ("I"), one more pass. The server goes `eta_g` of the way to the mean model
    and adds |S| / K times the mean change of control variates to c, for S of K devices; means are plain or by data
    size (`weights` "samples"). Devices send y in place of y - x, which is as long and averages to the same.
    A device keeps c_k only if its update arrives, and who took no step changes nothing of it. c travels with the model
    from the first merge on; its place is paid for from the start. An update that counts in a later round moved as far
    as it now lies from the global model. Running statistics: the mean.
    """

    option: Literal["I", "II"] = "II"
    eta_g: PositiveNumber = 1.0
    weights: Literal["equal", "samples"] = "equal"
    needs: ClassVar[Needs] = Needs(keep="delivered")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state, as c is part of the model. Raises ConfigError unless training is plain SGD."""
        setting.cost.check(widths=0)
        _check_plain(setting.training)
        return {}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model with its control variate."""
        setting, ids = view.setting, view.choose(key)
        stretch = setting.training.stretch(view.round)
        seen, _ = replace(stretch, epochs=1).amount(setting.samples[ids], setting.card.drop_single)
        extra = seen.tolist() if self.option == "I" else [0] * len(ids)
        tasks = {samples: _task(stretch, samples) for samples in set(extra)}
        return Plan(tuple(Order(device, tasks[n]) for device, n in zip(ids.tolist(), extra, strict=True)))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy along corrected gradients."""
        return LocalRule((LocalPhase(loss=cross_entropy, adjust=_corrected),), start=_start, finish=self._finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Move the model and c; both stay if nothing arrived."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        weights = [m.weight * (m.samples if self.weights == "samples" else 1) for m in usable]
        mean = mean_of_holders({kind: base[kind] for kind in _MODEL}, [_only(m, _MODEL) for m in usable], weights)
        params = {name: _gone(old, mean["params"][name], self.eta_g) for name, old in base["params"].items()}
        model = {"params": params, "buffers": mean["buffers"]}
        share = sum(m.weight for m in usable) / len(view.setting.samples)
        control = _moved_control(base, usable, weights, share)
        return Merged(state, {**model, "control": control} if control else model, notes=notes)

    def _finish(self, w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
        """Return the model and the change of c_k to send, and the new c_k to keep unless something diverged."""
        steps, model = int(w["taken"]["steps"]), {kind: w[kind] for kind in _MODEL}
        if not steps:
            return model, None, {}
        span = steps * context.task.stretches[0].lr
        if self.option == "I":
            new = _whole_gradient(context)
        else:
            received = context.copy({"params": context.base["params"]})["params"]
            new = {n: (received[n] - y) / span - w["correction"][n] for n, y in w["params"].items()}
        body = {**model, "control": {name: t - w["own"][name] for name, t in new.items()}}
        usable = is_finite(body)
        return body, ({"control": {name: t.cpu() for name, t in new.items()}} if usable else None), {}


def _check_plain(training: Training) -> None:
    plain = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": float("inf")}
    for name, value in plain.items():
        if (found := getattr(training, name)) != value:
            raise ConfigError(
                f"training.{name}: must be {value:g} for this method, found {found:g}; its control variates take moves "
                "for sums of gradients, as those of plain SGD are"
            )


def _task(stretch: Stretch, samples: int) -> Task:
    """Return the task of a round; `samples`: of the gradient on top, 0 for none."""
    whole = (Pass("train", samples=samples),) if samples else ()
    passes = (Pass(), Pass("param_step", times=2.0), *whole)
    return Task(stretches=(stretch,), passes=passes, down=_BOTH_WAYS, up=_BOTH_WAYS)


# --- on the device ----------------------------------------------------------------------------------------------


def _start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model to train, and as kinds of its own c_k, c - c_k and the number of steps so far."""
    model = context.copy({kind: base[kind] for kind in _MODEL})
    zeros = _zeros(model["params"])
    c, mine = (
        context.copy({"control": {**zeros, **bundle.get("control", {})}})["control"] for bundle in (base, own or {})
    )
    return {
        **model,
        "own": mine,
        "correction": {name: c[name] - t for name, t in mine.items()},
        "taken": {"steps": torch.zeros((), dtype=torch.int64)},
    }


def _corrected(grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
    w["taken"]["steps"].add_(1)
    return [g + w["correction"][name] for name, g in zip(context.trained, grads, strict=True)]


def _whole_gradient(context: Context) -> dict[str, Tensor]:
    """Return the gradient at the model received of all samples that an epoch trains on."""
    received, once = context.copy({kind: context.base[kind] for kind in _MODEL}), context.task.stretches[0]
    key = context.key.at(_WHOLE)
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    total, samples = _zeros(received["params"]), 0
    for positions in batch_order(key.at(0), len(context.shard), replace(once, epochs=1), context.drop_single):
        gradient = dense_gradient(received, context.batch(positions, augmenting), context)
        for name, g in gradient.items():
            total[name].add_(g, alpha=len(positions))
        samples += len(positions)
    return {name: t / samples for name, t in total.items()}


# --- on the server ----------------------------------------------------------------------------------------------


def _only(message: Message, kinds: Sequence[str]) -> Message:
    return message._replace(body={kind: message.body[kind] for kind in kinds})


def _gone(old: Tensor, mean: Tensor, eta: float) -> Tensor:
    """Return where so much of the way from the old to the mean leads, which at 1 is the mean to the last bit."""
    return (eta * mean.double() + (1.0 - eta) * old).to(old.dtype)


def _moved_control(
    base: Bundle, got: Sequence[Message], weights: Sequence[float], share: float
) -> Mapping[str, Tensor] | None:
    """Return c + share x the mean change, in which who sent none counts with 0; None while nobody has sent any."""
    if "control" not in base and not any("control" in message.body for message in got):
        return None
    zeros = _zeros(base["params"])
    changes = [m._replace(body={"params": m.body.get("control", {})}) for m in got]
    mean = mean_of_holders({"params": zeros}, changes, weights, absent="keep_old")["params"]
    return {name: c + share * mean[name] for name, c in base.get("control", zeros).items()}


def _zeros(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(t) for name, t in like.items()}


PARTS = {"scaffold": Scaffold}
