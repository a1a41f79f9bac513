"""AugFL: meta-learning by inexact ADMM, in which the server pulls the model towards a teacher of its own.

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

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Pass,
    Plan,
    ServerSet,
    Setting,
    Stretch,
    Task,
    View,
)
from edgesim.learning.context import Batch, Context
from edgesim.learning.masks import dense_gradient
from edgesim.learning.measure import measure
from edgesim.learning.merge import finite, is_finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.learning.seeding import seeded
from edgesim.learning.server import Soft
from edgesim.learning.teacher import taught, teacher_network
from edgesim.methods.fedjs import sizes_of
from edgesim.numbers import NonNegativeNumber, PositiveNumber
from edgesim.rng import Key

_SPLIT, _DROPOUT = 1, 2  # streams of a job's key; its one stretch has stream 0
_TEACHER = 2**32 - 1  # stream of the method's own key; the lower ones are those of devices' splits
_SUM_FLOPS = 2.0  # of the server, a parameter and term of its sum

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AugFL:
    """Each device takes one step a round, of the loss after a step of adaptation; duals hold devices to one model.

    A device divides its n samples, a share `support` for adaptation, the rest the query, "fixed" or "redrawn" in every
    round (`split`). From the model th received: phi = th - `alpha` grad L_support(th), g = grad L_query(phi), H g =
    (grad L_support(th + d g) - grad L_support(th - d g)) / 2d with d = 1 / (10 k + 100) in its k-th step; its model is
    th_i = th - (y_i + w_i (g - alpha H g)) / `rho`, with w_i its share of all samples, and its dual y_i grows by
    rho (th_i - th). Nothing of the scenario's training settings is used. It sends th_i + y_i / rho.
    The new model is the mean of these minus `lam` grad R / (rho times their number). `absent` devices count with what
    they last sent, those that never sent anything with the first model ("all") or not at all ("seen"); with "none" only
    the devices of the round count. R is T^2 KL(teacher, model) at `temperature` T on `server_samples` training samples
    that the server has for itself, equally many of each class. The teacher is a network of the name `teacher`, trained
    on these samples by SGD before the first merge, whose time that is part of. With `lam` = 0 there is neither.
    `evaluation.personal` tests phi of a device's last turn with its running statistics, the global model if it had
    none. Running statistics are averaged by data size.
    """

    alpha: PositiveNumber = 0.05
    rho: PositiveNumber = 0.7
    lam: NonNegativeNumber = 5.0
    support: Annotated[float, Gt(0), Lt(1)] = 0.8
    split: Literal["fixed", "redrawn"] = "fixed"
    absent: Literal["all", "seen", "none"] = "all"
    temperature: PositiveNumber = 4.0
    teacher: str = "resnet18_bn"
    teacher_epochs: Annotated[int, Ge(1)] = 30  # of the teacher's training
    teacher_batch: Annotated[int, Ge(1)] = 16  # of the teacher's training
    teacher_lr: PositiveNumber = 0.05  # of the teacher's training
    teacher_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # of the teacher's training
    server_samples: Annotated[int, Ge(1)] = 100
    needs: ClassVar[Needs] = Needs(keep="delivered", feedback=True)  # timing alone does not know the teacher's work

    @property
    def server_set(self) -> ServerSet | None:
        """Samples that the teacher is trained on and compared on, if there is one."""
        wanted = ServerSet(self.server_samples, "train", "balanced", reserved=True, option="server_samples")
        return wanted if self.lam else None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has heard nobody. Raises ConfigError for a teacher that does not fit."""
        setting.cost.check(widths=0)
        if self.lam:
            shape, classes = setting.card.input_shape, setting.card.classes
            network = teacher_network(self.teacher, shape, classes, key)
            if self.teacher_batch == 1:
                measure(network, self.teacher, shape, classes).check_batch("method.teacher_batch", 1)
        return {"seed": key.exact_word(), "logits": None, "first": {}, "heard": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for a step each."""
        samples, ids = view.setting.samples, view.choose(key)
        tasks: dict[int, Task] = {}
        for n in set(samples[ids].tolist()):
            tasks[n] = self._task(n, n / max(1, int(samples.sum())), state["seed"], view.setting.card)
        return Plan(tuple(Order(d, tasks[int(samples[d])]) for d in ids.tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return one step along the gradient of the adapted loss and the dual."""
        phase = LocalPhase(loss=_support_loss, adjust=self._meta_gradient)
        return LocalRule((phase,), start=self._start, finish=self._finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the minimum of the server's problem; the old model stays if nothing finite comes of it."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        new, flops = self._heard(state, base, usable), 0.0
        pull: Tensors = {}
        if self.lam:
            new, flops = self._taught(new, tools)
            pull = tools.gradient(base, soft=Soft(new["logits"], self.temperature))
        devices = len(view.setting.samples)
        mean, count = self._mean(new, devices)
        step = self.lam / (self.rho * count)
        params = {n: (t - step * pull[n] if pull else t).to(base["params"][n].dtype) for n, t in mean.items()}
        buffers = mean_of_holders({"buffers": base["buffers"]}, usable, sizes_of(usable).tolist())["buffers"]
        model = {"params": params, "buffers": buffers}
        flops += _SUM_FLOPS * view.setting.card.params * self._terms(new, usable, devices)
        if self.absent == "none":
            new = {**new, "heard": {}}
        if not is_finite(model):
            return Merged(new, None, flops, {**notes, "not_finite": 1.0})
        return Merged(new, model, flops, notes)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device adapted at its last turn, the global one if it had none."""
        return base if own is None else {"params": own["adapted"], "buffers": own["buffers"]}

    def _task(self, samples: int, share: float, seed: int, card: Any) -> Task:
        """Return the task of devices with so many samples, a share of all."""
        least = 2 if card.needs_two else 1
        support, query = split_sizes(samples, self.support, least)
        knobs = {"share": share, "support": float(support), **({"seed": float(seed)} if self.split == "fixed" else {})}
        return Task(
            stretches=(Stretch(batch=max(least, support), lr=1 / self.rho, steps=1),),
            passes=(Pass(), *((Pass("train", samples=2 * support + query),) if samples >= least else ())),
            knobs=knobs,
        )

    # --- on the device ------------------------------------------------------------------------------------------

    def _start(self, base: Bundle, own: Bundle | None, context: Context) -> Bundle:
        """Return the model to train, and as kinds of their own the dual, steps so far, phi to be and both samples."""
        model = context.copy(base)
        zeros = {name: torch.zeros_like(t) for name, t in model["params"].items()}
        dual = zeros if own is None else context.copy({"params": own["dual"]})["params"]
        support, query = self._batches(context)
        return {
            **model,
            "dual": dual,
            "steps": {"taken": torch.zeros(()) if own is None else own["steps"]["taken"].clone()},
            "adapted": context.copy({"params": base["params"]})["params"],
            "support": support._asdict(),
            "query": query._asdict(),
        }

    def _batches(self, context: Context) -> tuple[Batch, Batch]:
        """Return the samples to adapt on and the query; who has too few to split takes them for both."""
        knobs, n = context.task.knobs, len(context.shard)
        key = Key(int(knobs["seed"])).at(context.device) if "seed" in knobs else context.key.at(_SPLIT)
        order, support = torch.from_numpy(key.numpy().permutation(n)), int(knobs["support"])
        augmenting = torch.Generator().manual_seed(context.key.at(_SPLIT, 1).word())
        places = order[:support], order[support:] if support < n else order
        return context.batch(places[0], augmenting), context.batch(places[1], augmenting)

    def _meta_gradient(self, grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
        """Return y + w_i (g - alpha H g) for the gradient on the support."""
        theta, share = w["params"], context.task.knobs["share"]
        phi = _moved(theta, dict(zip(context.trained, grads, strict=True)), -self.alpha)
        g = _gradient(phi, w, "query", context)
        w["steps"]["taken"].add_(1)
        d = 1 / (10 * int(w["steps"]["taken"]) + 100)
        slopes = []
        for way in (d, -d):
            with seeded(context.key.at(_DROPOUT)):  # both of one function: dropout would otherwise drown the difference
                slopes.append(_gradient(_moved(theta, g, way), w, "support", context))
        for name, adapted in w["adapted"].items():
            adapted.copy_(phi[name])
        ahead, behind = slopes
        return [
            w["dual"][name] + share * (g[name] - self.alpha * (ahead[name] - behind[name]) / (2 * d))
            for name in context.trained
        ]

    def _finish(self, w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
        """Return th_i + y_i / rho to send; to keep y_i, the step count and phi, unless no step was taken."""
        theta = context.copy({"params": context.base["params"]})["params"]
        dual = {name: y + self.rho * (w["params"][name] - theta[name]) for name, y in w["dual"].items()}
        body = {"params": _moved(w["params"], dual, 1 / self.rho), "buffers": w["buffers"]}
        before = 0 if context.own is None else int(context.own["steps"]["taken"])
        if int(w["steps"]["taken"]) == before:
            return body, None, {}
        kinds = {"dual": dual, "steps": w["steps"], "adapted": w["adapted"], "buffers": w["buffers"]}
        kept = {kind: {name: t.detach().cpu() for name, t in tensors.items()} for kind, tensors in kinds.items()}
        return body, (kept if is_finite(kept) else None), {}

    # --- on the server ------------------------------------------------------------------------------------------

    def _heard(self, state: Any, base: Bundle, got: Sequence[Message]) -> Any:
        """Return the state with what devices sent; a message of weight 1/2 goes half the way from the one before."""
        heard = dict(state["heard"])
        for message in got:
            old = heard.get(message.device, base["params"])
            sent = message.body["params"]
            heard[message.device] = {name: t.lerp(sent[name], message.weight) for name, t in old.items()}
        return {**state, "first": state["first"] or dict(base["params"]), "heard": heard}

    def _taught(self, state: Any, tools: Any) -> tuple[Any, float]:
        """Return the state with what the teacher says, and the FLOPs of training it if that is still to be done."""
        if state["logits"] is not None:
            return state, 0.0
        stretch = Stretch(
            batch=self.teacher_batch, lr=self.teacher_lr, epochs=self.teacher_epochs, momentum=self.teacher_momentum
        )
        found = taught(self.teacher, tools, stretch, Key(state["seed"]).at(_TEACHER))
        return {**state, "logits": found.logits}, found.flops

    def _mean(self, state: Any, devices: int) -> tuple[dict[str, Tensor], int]:
        """Return the mean of what counts, float64, and how many that is of."""
        heard = [state["heard"][device] for device in sorted(state["heard"])]
        unheard = devices - len(heard) if self.absent == "all" else 0
        count = len(heard) + unheard
        total = {name: unheard * t.double() for name, t in state["first"].items()}
        for sent in heard:
            for name, t in sent.items():
                total[name] += t
        return {name: t / count for name, t in total.items()}, count

    def _terms(self, state: Any, got: Sequence[Message], devices: int) -> int:
        """Return how many vectors the server sums up beside those that arrived, whose mean the engine prices."""
        absent = len(state["heard"]) - len({message.device for message in got})
        first = self.absent == "all" and len(state["heard"]) < devices
        return absent + first + (self.lam > 0)


def split_sizes(samples: int, share: float, least: int = 1) -> tuple[int, int]:
    """Return how many samples are for adaptation and how many for the query: `least` each, if need be the same."""
    if samples < 2 * least:
        return samples, samples
    support = min(max(least, round(share * samples)), samples - least)
    return support, samples - support


def _support_loss(w: Bundle, batch: Batch, context: Context) -> Tensor:
    """Return the loss on the samples for adaptation, whatever the loop would have taken."""
    return cross_entropy(w, Batch(**w["support"]), context)


def _gradient(params: Tensors, w: Bundle, samples: str, context: Context) -> dict[str, Tensor]:
    """Return the gradient at other parameters, which moves no running statistics."""
    return dense_gradient({"params": params, "buffers": w["buffers"]}, Batch(**w[samples]), context)


def _moved(start: Tensors, direction: Tensors, length: float) -> dict[str, Tensor]:
    return {name: t.add(direction[name], alpha=length) for name, t in start.items()}


PARTS = {"augfl": AugFL}
