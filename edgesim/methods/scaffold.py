"""SCAFFOLD: control variates correct each device's gradients for their difference from the gradients of all devices.

Source: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveFactor
from edgesim.core.local_sgd import Training
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import MODEL, mapped, minus, model_in
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite, mean_of_holders
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel.masks import dense_gradient
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import batch_order

_BOTH_WAYS = Payload(collections=frozenset({*MODEL, "control"}))


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Each device corrects its gradients by the difference between the fleet's control variate and its own.

    It steps along g - c_k + c. Then it sends its model y and the change of its control variate c_k. The new c_k is the
    mean of the device's gradients, c_k - c + (x - y) / (H lr) for H steps from x to y (`option` "II"), or the gradient
    of all its samples at x ("I"), which takes one more pass. The server moves `eta_g` of the way to the mean model. It
    adds |S| / K times the mean change of control variates to c, for |S| of K devices. Means are plain, or by data size
    (`weights` "samples"). Devices send y instead of y - x, which has the same size and the same average.
    A device keeps its new c_k only if its update arrives. A device that took no step keeps its c_k. c travels with the
    model from the first merge on, and its bytes are charged from the start. The move of an update that counts in a
    later round is its distance from the current global model. Running statistics are the mean of all devices.

    Option II divides moves by steps and learning rate. This gives gradients only for plain SGD, so momentum, weight
    decay and clipping are refused. H counts the steps that a device actually took. The first model is sent with a
    control variate of zeros, and its bytes are charged.

    Family: correction of local steps. Formula: `y <- y - lr (g(y) - c_k + c); c_k <- c_k - c + (x - y) / (H lr)`.
    Paper: arXiv 1910.06378.
    """

    option: Literal["I", "II"] = "II"
    """Karimireddy et al. have both. "II" uses the moves and costs nothing. "I" takes the gradient of all samples at the
    received model, one more pass.
    """
    eta_g: PositiveFactor = 1.0
    """The server moves all the way to the mean model, as in FedAvg."""
    weights: Literal["equal", "samples"] = "equal"
    """Algorithm 1 has plain means. With `"samples"` the means of models and of changes of control variates are by data
    size.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state, as c is part of the model. Raises ConfigError unless training is plain SGD."""
        check_plain(
            setting.training, "its control variates take moves for sums of gradients, as those of plain SGD are"
        )
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model with its control variate."""
        return self.plan_for(view, view.choose(key))

    def plan_for(self, view: View, ids: Ids) -> Plan:
        """Return the plan in which these devices train the whole model with its control variate."""
        setting = view.setting
        sgd = setting.training.local_sgd(view.round)
        seen, _ = sgd.for_epochs(1).amount(setting.samples[ids], setting.cost_profile.drop_single)
        extra = seen.tolist() if self.option == "I" else [0] * len(ids)

        def task_of(samples: int) -> Task:
            whole = (Pass("train", samples=samples),) if samples else ()  # the gradient of all samples
            passes = (Pass(), Pass("param_step", times=2.0), *whole)
            return Task(local_sgd=(sgd,), passes=passes, down=_BOTH_WAYS, up=_BOTH_WAYS)

        return Plan.by_kind(ids.tolist(), extra, task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy along corrected gradients."""
        phase = LocalPhase(adjust_gradients=_corrected, after_step=_counted)
        return LocalRule((phase,), on_start=_start, on_finish=self._finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Move the model and c."""
        return Aggregate(state, self.moved(global_model, updates, self.update_weights(updates, server.setting), server))

    def moved(
        self, global_model: ModelState, updates: Sequence[Update], weights: Sequence[float], server: ServerContext
    ) -> ModelState:
        """Return the model and c moved by the weighted means of updates; `weights`: shape (len(updates),)."""
        models = [m._replace(body=model_in(m.body)) for m in updates]
        mean = server.mean(model_in(global_model), models, weights)
        eta = self.eta_g
        params = mapped(  # at eta_g = 1 the mean to the last bit
            lambda old, new: (eta * new.double() + (1.0 - eta) * old).to(old.dtype),
            global_model["params"],
            mean["params"],
        )
        model = {"params": params, "buffers": mean["buffers"]}
        if "control" not in global_model and not any("control" in message.body for message in updates):
            return model
        # c + share x the mean change; a device that sent no change counts with 0
        share = sum(m.weight for m in updates) / server.setting.devices
        zeros = mapped(torch.zeros_like, global_model["params"])
        changes = [m._replace(body={"params": m.body.get("control", {})}) for m in updates]
        change = mean_of_holders({"params": zeros}, changes, weights, absent="include_absent")["params"]
        control = mapped(lambda c, step: c + share * step, global_model.get("control", zeros), change)
        return {**model, "control": control} if control else model

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        return [m.weight * (m.samples if self.weights == "samples" else 1) for m in updates]

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return the model and the change of c_k to send, and the new c_k to keep unless something diverged."""
        w, scratch = local.weights, local.scratch
        if not scratch.steps:
            return Finished(w)
        span = scratch.steps * context.task.local_sgd[0].lr
        if self.option == "I":
            new = whole_gradient(context.copy(model_in(context.global_model)), context)
        else:
            received = context.copy(context.global_model["params"])
            new = mapped(lambda y, was, c: (was - y) / span - c, w["params"], received, scratch.correction)
        body = {**w, "control": minus(new, scratch.own)}
        kept = on_cpu({"control": new})
        return Finished(body, kept if is_finite(body) else None)


def check_plain(training: Training, why: str) -> None:
    """Raise ConfigError, with the reason `why`, unless training is SGD without momentum, weight decay and clipping."""
    training.check_sgd(why)
    for name, found, plain in (
        ("momentum", training.momentum, 0.0),
        ("weight_decay", training.weight_decay, 0.0),
        ("clip_norm", training.clip_norm, float("inf")),
    ):
        if found != plain:
            raise ConfigError(f"training.{name}: must be {plain:g} for this method, found {found:g}; {why}")


# --- on the device ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Controls:
    """Scratch of a job: c_k, c - c_k and the number of steps so far."""

    own: Mapping[str, Tensor]
    correction: Mapping[str, Tensor]
    steps: int = 0


def _start(context: Context) -> LocalState:
    model = context.copy(model_in(context.global_model))
    zeros = mapped(torch.zeros_like, model["params"])
    c, mine = (
        context.copy({**zeros, **model_state.get("control", {})})
        for model_state in (context.global_model, context.device_state or {})
    )
    return LocalState(model, _Controls(mine, minus(c, mine)))


def _corrected(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
    """Return g - c_k + c."""
    return [g + local.scratch.correction[name] for name, g in zip(context.trained, grads, strict=True)]


def _counted(local: LocalState, context: Context) -> None:
    local.scratch.steps += 1


def whole_gradient(model: ModelState, context: Context) -> dict[str, Tensor]:
    """Return the gradient at a model over all samples that an epoch trains on."""
    once = context.task.local_sgd[0]
    key = context.key.at(JobStream.WHOLE_GRADIENT)
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    total, samples = mapped(torch.zeros_like, model["params"]), 0
    for positions in batch_order(key.at(0), len(context.shard), once.for_epochs(1), context.drop_single):
        gradient = dense_gradient(model, context.batch(positions, augmenting), context)
        size = len(positions)
        mapped(lambda g, sum_, size=size: sum_.add_(g, alpha=size), gradient, total)
        samples += size
    return mapped(lambda t: t / samples, total)


PLUGINS = {"scaffold": Scaffold}
