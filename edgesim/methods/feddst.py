"""FedDST: one sparse network, whose mask moves where devices prune and regrow weights and the server joins them.

Source: S. Bibikar, H. Vikalo, Z. Wang and X. Chen, "Federated Dynamic Sparse Training: Computing Less, Communicating
Less, Yet Learning Better" (AAAI 2022) and its authors' published code; as a baseline of the FedDHAD paper (arXiv
2507.10430) and of DA-DPFL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

from annotated_types import Ge, Lt

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Pass,
    Payload,
    Plan,
    Setting,
    Stretch,
    Task,
    View,
)
from edgesim.learning import masks
from edgesim.learning.context import Context
from edgesim.learning.merge import finite
from edgesim.learning.rules import cross_entropy
from edgesim.numbers import Share
from edgesim.rng import Key

When: TypeAlias = Literal["before", "last_epoch"]
Weights: TypeAlias = Literal["samples", "equal"]
Initial: TypeAlias = Literal["magnitude", "random"]


class _Settings(NamedTuple):
    """What a preset decides unless the scenario does."""

    sparsity: float
    allocation: masks.Allocation
    initial: Initial
    alpha: float
    interval: int
    end_round: int
    readjust: When
    weights: Weights


_PRESETS = {
    "feddhad": _Settings(0.01, "feddst", "magnitude", 0.01, 15, 250, "last_epoch", "samples"),
    "dadpfl": _Settings(0.5, "erk", "random", 0.3, 5, 500, "before", "equal"),
}


@dataclass(frozen=True, kw_only=True)
class FedDST:
    """Dynamic sparse training: a share `sparsity` of the weights is zero, on devices and in every message.

    In rounds 1, 1 + `interval`, ... before `end_round` each device prunes the smallest weights of every layer, a share
    `alpha` that falls to 0 along a cosine, and regrows as many, from 0, where the gradient of one batch is largest: at
    the start of its last epoch ("last_epoch") or before it trains at all ("before"). The server averages each weight
    over the devices that have it, by data size or `weights` "equal", and keeps the largest of each layer. `allocation`:
    how many that are, by "erk" or as FedDST's code does; `initial`: which at first, the largest ("magnitude") or random
    ones. Keys that are left out are those of the `preset`, the comparison in the FedDHAD or in the DA-DPFL paper.
    `bitmap`: where encodings send masks, they do so only if they have "changed", or "always". The note `regrown` counts
    weights of the new model that were zero in the old one.
    """

    preset: Literal["feddhad", "dadpfl"] = "feddhad"
    sparsity: Annotated[float, Ge(0), Lt(1)] | None = None
    allocation: masks.Allocation | None = None
    initial: Initial | None = None
    alpha: Share | None = None
    interval: Annotated[int, Ge(1)] | None = None
    end_round: Annotated[int, Ge(1)] | None = None
    readjust: When | None = None  # when masks move
    weights: Weights | None = None
    bitmap: Literal["changed", "always"] = "changed"
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return how many weights each tensor keeps. Raises ConfigError for a model that no mask fits."""
        settings, shapes = self._settings(), masks.weight_shapes(setting.card)
        setting.cost.check(widths=0)
        shares = masks.densities(shapes, settings.sparsity, settings.allocation)
        return {"kept": masks.kept_counts(shapes, shares), "seed": key.exact_word()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the sparse model, and in some rounds to move its mask."""
        setting, settings, ids = view.setting, self._settings(), view.choose(key)
        stretch, share = setting.training.stretch(view.round), self._share(view.round + 1)
        knobs = {"share": share} if share else {}
        if settings.initial == "random" and view.version == 0:
            knobs["seed"] = float(state["seed"])
        new = view.version == 0 or self._share(view.round) > 0
        plain = Task(
            part=Part("sparse", nnz=masks.nonzeros(state["kept"])),
            stretches=(stretch,),
            down=Payload(encoding=masks.wire(setting.encoding_down, self._known(new))),
            up=Payload(encoding=masks.wire(setting.encoding_up, self._known(share > 0))),
            knobs={name: value for name, value in knobs.items() if name != "share"},
        )
        _, steps = stretch.amount(setting.samples[ids], setting.card.drop_single)
        tasks = {0: plain}
        orders = []
        for device, taken in zip(ids.tolist(), steps.tolist(), strict=True):
            size = min(stretch.batch, int(setting.samples[device])) if share and taken else 0
            if size not in tasks:
                tasks[size] = _readjusting(replace(plain, knobs=knobs), stretch, size, settings.readjust)
            orders.append(Order(device, tasks[size]))
        return Plan(tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy under a mask, which moves before the last stretch if the task says so."""
        phase = LocalPhase(loss=cross_entropy, adjust=masks.masked_gradients)
        last = phase
        if "share" in task.knobs:
            last = replace(phase, enter=partial(_readjusted, share=task.knobs["share"]))
        return LocalRule((*[phase] * (len(task.stretches) - 1), last), start=_start)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each weight over the devices that have it, and keep the largest of each layer."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        by_samples = self._settings().weights == "samples"
        weights = [m.weight * (m.samples if by_samples else 1) for m in usable]
        model = merged(usable, weights, state["kept"])
        regrown = sum(int(((model["params"][n] != 0) & (base["params"][n] == 0)).sum()) for n in state["kept"])
        return Merged(state, model, notes={"regrown": float(regrown), **notes})

    def _settings(self) -> _Settings:
        given = {name: getattr(self, name) for name in _Settings._fields}
        return _PRESETS[self.preset]._replace(**{name: value for name, value in given.items() if value is not None})

    def _share(self, t: int) -> float:
        """Return the share that devices prune in round `t`, counted from 1; 0 if the mask stays."""
        settings = self._settings()
        if t < 1 or (t - 1) % settings.interval or t >= settings.end_round:
            return 0.0
        return masks.annealed(settings.alpha, t, settings.end_round)

    def _known(self, changed: bool) -> bool:
        return self.bitmap == "changed" and not changed


def merged(got: Sequence[Message], weights: Sequence[float], kept: masks.Counts) -> dict[str, Any]:
    """Return the mean of sparse models over who has each weight, with the `kept` largest weights of each tensor."""
    bodies = [message.body for message in got]
    mean = masks.masked_mean(bodies, [masks.support(body["params"]) for body in bodies], weights)
    return masks.applied(mean, masks.by_magnitude(mean["params"], kept))


def _readjusting(task: Task, stretch: Stretch, size: int, when: When) -> Task:
    """Return a task that also takes the dense gradient of `size` samples and moves the mask."""
    stretches: tuple[Stretch, ...] = (stretch,)
    if when == "last_epoch" and stretch.epochs > 1:
        stretches = (replace(stretch, epochs=stretch.epochs - 1), replace(stretch, epochs=1))
    passes = (Pass(), Pass("train", samples=size, part=Part()))
    return replace(task, name="readjust", stretches=stretches, passes=passes)


def _start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the model under its mask: its largest weights, or random ones of the first model."""
    w, counts, knobs = context.copy(base), masks.counts_in(context.task.part), context.task.knobs
    mask = masks.by_magnitude(w["params"], counts)
    if "seed" in knobs:
        shapes = {name: tuple(w["params"][name].shape) for name in counts}
        drawn = masks.at_random(shapes, counts, Key(int(knobs["seed"])))
        mask = {name: drawn[name].to(old.device) for name, old in mask.items()}
    return masks.with_masks(masks.applied(w, mask), mask)


def _readjusted(w: Bundle, context: Context, share: float) -> Bundle:
    """Return the model with this share of every layer's weights pruned and as many regrown."""
    size = min(context.task.stretches[0].batch, len(context.shard))
    gradient = masks.dense_gradient(w, masks.one_batch(context, size), context)
    old = masks.masks_in(w)
    kept = {name: masks.pruned(w["params"][name], mask, share) for name, mask in old.items()}
    new = {name: masks.regrown(kept[name], gradient[name], int(mask.sum())) for name, mask in old.items()}
    return masks.with_masks(masks.applied(w, kept), new)


PARTS = {"feddst": FedDST}
