"""AugFL: meta-learning by inexact ADMM, in which the server pulls the model towards its own teacher.

Source: Yue et al., "AugFL: Augmenting Federated Learning with Pretrained Models" (arXiv 2503.02154) and its authors'
published code; as a baseline of the FedDHAD paper (arXiv 2507.10430).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from edgesim.core.limits import Count, NonNegativeFactor, PositiveFactor
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import (
    Aggregate,
    Finished,
    LocalPhase,
    LocalRule,
    LocalState,
    Method,
    Needs,
    ServerContext,
    ServerSet,
)
from edgesim.core.model_state import lerp, mapped, plus, weighted_sum
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none, is_finite
from edgesim.learning.measure.step import measure
from edgesim.learning.models.seeding import seeded
from edgesim.learning.server import Soft
from edgesim.learning.submodel.masks import dense_gradient
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.augfl_teacher import taught, teacher_network

_TEACHER = 2**32 - 1  # stream of the method's own key; lower streams are for the devices' splits
_SUM_FLOPS = 2.0  # of the server, a parameter and term of its sum

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AugFL(Method):
    """For fast personalisation: devices train for the loss after one step of adaptation, and the server has a teacher.

    Each device takes one step a round, and duals hold the devices to one model (ADMM). A device divides its n samples:
    a share `support` is for adaptation, the rest is the query. The `split` is "fixed" or "redrawn" in every round. From
    the received model th: phi = th - `alpha` grad L_support(th), g = grad L_query(phi), H g = (grad L_support(th + d g)
    - grad L_support(th - d g)) / 2d with d = 1 / (10 k + 100) in its k-th step. Its model is th_i = th - (y_i + w_i (g
    - alpha H g)) / `rho`, with w_i its share of all samples, and its dual y_i grows by rho (th_i - th). It sends th_i +
    y_i / rho. The new model is the mean of the sent ones minus `lam` grad R / (rho times their number). `absent`:
    absent devices count with the last model that they sent, and those that never sent any with the first model ("all")
    or not at all ("seen"); with "none" only the devices of the round count. R is T^2 KL(teacher, model) at
    `temperature` T on `server_samples` training samples of the server's own, equally many of each class. The teacher is
    a network of the name `teacher`. SGD trains it on these samples before the first merge, as part of the time of that
    merge. With `lam` = 0 there is neither a teacher nor a server set. `evaluation.personal` tests phi of a device's
    last turn with its running statistics, or the global model if it had no turn. Running statistics are averaged by
    data size.

    Experimental: without a pretrained model the teacher is a surrogate, and the FedDHAD paper does not specify its own.

    None of the scenario's training settings is used: a device takes one step a round, on all of its samples. It sends
    th_i + y_i / rho, from which the server's sum follows whatever model the device started from. Sending th_i alone,
    from which the server could work out y_i, would take as many bytes. The teacher is trained as part of the first
    merge, which takes longer by the training, because no work comes before the first round. The original is judged
    after one step of adaptation. `evaluation.personal` tests the model that a device adapted at its last turn, one step
    from the model that it then received and not from the newest global model. Both gradients of a difference use the
    same dropout.

    Family: personal models. Formula: `th <- mean_i(th_i + y_i / rho) - lam grad R / (rho n)`.
    """

    alpha: PositiveFactor = 0.05
    """Launcher for CIFAR-100; the paper has other values for other data sets. The rate of the adapting step and the
    factor of the Hessian product.
    """
    rho: PositiveFactor = 0.7
    """Launcher for CIFAR-100."""
    lam: NonNegativeFactor = 5.0
    """Launcher for CIFAR-100, there for a contrastive distance to the teacher. The server's step is `lam` over `rho`
    and the number of devices that count, 0.18 with the launcher's 40 devices. With far fewer, as with ten on digits or
    `absent = "seen"`, the step is too long and the model jumps about. At 0 there is neither a teacher nor a server set.
    """
    support: Annotated[float, Gt(0), Lt(1)] = 0.8
    """The authors' division of data. The paper says only that a device has two sets. Each has at least one sample, or
    two where batch normalisation needs them. A device with too few samples to split takes all of them for both.
    """
    split: Literal["fixed", "redrawn"] = "fixed"
    """The two sets of a device are fixed in the published code. `"redrawn"` divides its samples anew in every round.
    """
    absent: Literal["all", "seen", "none"] = "all"
    """In the published code all devices take part in every round. Otherwise ADMM keeps the last model of an absent
    device, and a device that was never selected has the first model and no dual. This holds the model back for long
    where few of many take part. `"seen"` leaves devices out that were never selected, `"none"` averages the round
    alone.
    """
    temperature: PositiveFactor = 4.0
    """The authors' code has a contrastive distance with a memory of features. Distillation by softened outputs, one of
    its options, is our choice, at the temperature of that code.
    """
    teacher: str = "resnet18_bn"
    """The authors have a ResNet32x4, trained on all of CIFAR-100. edgesim comes with no pretrained network, and a
    teacher that has seen the devices' data would not be pretrained. A ResNet18 trained on the server's own samples is
    our choice. Any network by name, or `package.module:Class`.
    """
    teacher_epochs: Count = 30  # epochs of the teacher's training
    """Our choice, as are the next two: enough to fit a hundred samples."""
    teacher_batch: Count = 16  # batch size of the teacher's training
    """See `teacher_epochs`."""
    teacher_lr: PositiveFactor = 0.05  # learning rate of the teacher's training
    """The usual rate for teachers of contrastive distillation; constant here."""
    teacher_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # momentum of the teacher's training
    """See `teacher_lr`."""
    server_samples: Count = 100
    """The paper does not specify this. As for `feddhe`; the teacher is trained and compared on the same samples."""
    needs: ClassVar[Needs] = Needs(
        device_state="delivered", feedback=True
    )  # timing alone does not know the teacher's work

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "compares the classes that model and teacher see"

    @property
    def server_set(self) -> ServerSet | None:
        """Samples on which the teacher is trained and compared, if there is a teacher."""
        wanted = ServerSet(self.server_samples, "train", "balanced", reserved=True, option="server_samples")
        return wanted if self.lam else None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without updates so far. Raises ConfigError for a teacher that does not fit."""
        super().init(setting, key)
        if self.lam:
            shape, classes = setting.cost_profile.input_shape, setting.cost_profile.classes
            network = teacher_network(self.teacher, shape, classes, key)
            if self.teacher_batch == 1:
                measure(network, self.teacher, shape, classes).check_batch("method.teacher_batch", 1)
        return {"seed": key.exact_word(), "logits": None, "first": {}, "heard": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for a step each. Devices with equally many samples share a task."""
        samples, ids = view.setting.samples, view.choose(key)
        least = 2 if view.setting.cost_profile.needs_two else 1
        seed = {"seed": state["seed"]} if self.split == "fixed" else {}

        def task_of(n: int) -> Task:
            support, query = split_sizes(n, self.support, least)
            return Task(
                local_sgd=(LocalSGD(batch=max(least, support), lr=1 / self.rho, steps=1),),
                passes=(Pass(), *((Pass("train", samples=2 * support + query),) if n >= least else ())),
                config={"share": n / max(1, int(samples.sum())), "support": float(support), **seed},
            )

        return Plan.by_kind(ids.tolist(), samples[ids].tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return one step along the gradient of the adapted loss and the dual."""
        return LocalRule((LocalPhase(gradient=self._meta_gradient),), on_start=_start, on_finish=self._finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the minimum of the server's problem; the old model stays if the minimum is not finite."""
        heard = dict(state["heard"])
        for message in updates:  # a message of weight 1/2 goes half the way from the one before
            old = heard.get(message.device, global_model["params"])
            heard[message.device] = lerp(old, message.body["params"], message.weight)
        new, flops = {**state, "first": state["first"] or dict(global_model["params"]), "heard": heard}, 0.0
        pull: Tensors = {}
        if self.lam:
            if new["logits"] is None:
                sgd = LocalSGD(
                    batch=self.teacher_batch,
                    lr=self.teacher_lr,
                    epochs=self.teacher_epochs,
                    momentum=self.teacher_momentum,
                )
                new["logits"], flops = taught(self.teacher, server.tools, sgd, Key(state["seed"]).at(_TEACHER))
            pull = server.tools.gradient(global_model, soft=Soft(new["logits"], self.temperature))
        unheard = server.setting.devices - len(heard) if self.absent == "all" else 0
        count = len(heard) + unheard
        start = mapped(lambda t: unheard * t.double(), new["first"])
        total = weighted_sum((heard[device] for device in sorted(heard)), [1.0] * len(heard), start)
        mean, step = mapped(lambda t: t / count, total), self.lam / (self.rho * count)
        mean = mapped(lambda t, slope: t - step * slope, mean, pull) if pull else mean
        params = mapped(lambda t, old: t.to(old.dtype), mean, global_model["params"])
        sizes = self.update_weights(updates, server.setting)
        buffers = server.mean({"buffers": global_model["buffers"]}, updates, sizes)["buffers"]
        model = {"params": params, "buffers": buffers}
        # the engine prices the mean of the vectors that arrived: these are the other terms of the sum
        terms = len(heard) - len({message.device for message in updates}) + (unheard > 0) + (self.lam > 0)
        flops += _SUM_FLOPS * server.setting.cost_profile.params * terms
        if self.absent == "none":
            new = {**new, "heard": {}}
        if not is_finite(model):
            return Aggregate(new, None, flops, {"not_finite": 1.0})
        return Aggregate(new, model, flops)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device adapted at its last turn, the global one if it had no turn."""
        if device_state is None:
            return global_model
        return {"params": device_state["adapted"], "buffers": device_state["buffers"]}

    def _meta_gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Return y + w_i (g - alpha H g), whatever batch the loop would have taken."""
        scratch, theta, share = local.scratch, local.weights["params"], context.task.config["share"]
        grads = gradients(objective_loss(local.weights, scratch.support, context), context.bound)
        phi = plus(theta, dict(zip(context.trained, grads, strict=True)), -self.alpha)
        g = _gradient(phi, local.weights, scratch.query, context)
        scratch.steps += 1
        d = 1 / (10 * scratch.steps + 100)
        slopes = []
        for way in (d, -d):
            with seeded(context.key.at(JobStream.DROPOUT)):  # other dropout would drown the difference
                slopes.append(_gradient(plus(theta, g, way), local.weights, scratch.support, context))
        scratch.adapted = mapped(torch.clone, phi)
        ahead, behind = slopes
        return [
            scratch.dual[name] + share * (g[name] - self.alpha * (ahead[name] - behind[name]) / (2 * d))
            for name in context.trained
        ]

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return th_i + y_i / rho to send. The device keeps y_i, its step count and phi, if it took a step."""
        w, scratch = local.weights, local.scratch
        theta = context.copy(context.global_model["params"])
        dual = mapped(lambda y, now, was: y + self.rho * (now - was), scratch.dual, w["params"], theta)
        body = {"params": plus(w["params"], dual, 1 / self.rho), "buffers": w["buffers"]}
        before = 0 if context.device_state is None else int(context.device_state["steps"]["taken"])
        if scratch.steps == before:
            return Finished(body)
        steps = {"taken": torch.tensor(float(scratch.steps))}
        kinds = {"dual": dual, "steps": steps, "adapted": scratch.adapted, "buffers": w["buffers"]}
        return Finished(body, finite_or_none(kinds))


def split_sizes(samples: int, share: float, least: int = 1) -> tuple[int, int]:
    """Return the numbers of samples for adaptation and for the query.

    Each is `least` or more. With too few samples all are for both.
    """
    if samples < 2 * least:
        return samples, samples
    support = min(max(least, round(share * samples)), samples - least)
    return support, samples - support


@dataclass(slots=True)
class _Meta:
    """Scratch of a job: dual, steps of the device so far, the adapted parameters, and both samples."""

    dual: Tensors
    steps: int
    adapted: Tensors
    support: Batch
    query: Batch


def _start(context: Context) -> LocalState:
    """Return the model to train, the dual, steps so far, a place for phi, and both sets of samples.

    A device with too few samples to split takes them for both sets.
    """
    model, kept = context.copy(context.global_model), context.device_state
    config, n = context.task.config, len(context.shard)
    key = Key(int(config["seed"])).at(context.device) if "seed" in config else context.key.at(JobStream.SPLIT)
    order, support = torch.from_numpy(key.numpy().permutation(n)), int(config["support"])
    augmenting = torch.Generator().manual_seed(context.key.at(JobStream.SPLIT, 1).word())
    scratch = _Meta(
        support=context.batch(order[:support], augmenting),
        query=context.batch(order[support:] if support < n else order, augmenting),
        dual=mapped(torch.zeros_like, model["params"]) if kept is None else context.copy(kept["dual"]),
        steps=0 if kept is None else int(kept["steps"]["taken"]),
        adapted=context.copy(context.global_model["params"]),
    )
    return LocalState(model, scratch)


def _gradient(params: Tensors, w: ModelState, samples: Batch, context: Context) -> dict[str, Tensor]:
    """Return the gradient at other parameters without moving running statistics."""
    return dense_gradient({"params": params, "buffers": w["buffers"]}, samples, context)


PLUGINS = {"augfl": AugFL}
