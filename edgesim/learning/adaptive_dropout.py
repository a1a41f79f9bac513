"""Adaptive dropout: thinner networks whose mean size follows a device's speed, and whose units follow their importance.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedAD).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.card import UnitGroup
from edgesim.contracts import (
    DELIVERED,
    Bundle,
    LocalRule,
    Merged,
    Message,
    Order,
    Part,
    Pass,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.context import Context
from edgesim.learning.rules import PLAIN_SGD
from edgesim.learning.spectrum import dense_flops, lanczos_flops, product_flops, share_below_gap
from edgesim.learning.submodels import Which, check_groups, check_kept, groups_of
from edgesim.learning.unit_ranks import NeuronWeight, curvature_of, is_linear, rank_flops, ranks_of, source_of
from edgesim.learning.unit_rates import (
    WAITING,
    RankNorm,
    drawn,
    drop_probabilities,
    largest_shares,
    normalised,
    round_seconds,
    shares_of_time,
    triggered,
)
from edgesim.numbers import PositiveNumber, PositiveShare, Share
from edgesim.rng import Key

_MASKS = 1  # sub-stream of a plan's key; selection draws from the key itself and from those of one index
_NUMBER_BYTES = 4  # of an importance, a ratio, a multiplier: float32
_NOT_MOVED = 1e-8  # a distance from the first model over which nothing can be said about curvature
_MOST_DENSE = 2000  # parameters
_CURVED = ("lanczos", "dense")  # sources of rho that need the Hessian
_RANKS, _CURVATURE = "ranks", "curvature"  # names of tasks


@dataclass(frozen=True, kw_only=True)
class AdaptiveDropout:
    """Stands before a method that averages thinner networks in a class: `class Mine(AdaptiveDropout, FedDH)`.

    Every `check_every` rounds the selected devices get the whole model, tell how much its units matter, and then train
    what they keep of it. Importance: of a channel the mean rank of its map over `probe_samples` samples, of a neuron
    the sum of its incoming weights or of their magnitudes (`neuron_weight`), over the largest of its layer
    (`rank_norm`), averaged over devices by data size. The first update of rates comes once importances have not moved
    less than before, by the share `gain`, for `patience` rounds, or in round `force_first_at`; later ones whenever they
    moved less than from check to check before.

    An update: device k keeps the share min(ET_max / ET_k, 1) of its units, not below `keep_min`. ET_k are its seconds
    for the whole model, ET_max those of the device with the most data times the ratio rho, averaged over the selected
    devices by data size. "exact" `time_map`: the largest share with which it takes no longer than ET_max.
    `rate_source` of rho: "lanczos" or "dense", the share of the eigenvalues of the loss's Hessian below the first gap
    of more than 4 L, on `hessian_samples` samples; "rank_deficiency", the mean of rank over largest possible rank of
    all channels; "fixed", `fixed_ratio`. Lanczos takes `lanczos_steps` steps from `lanczos_starts` random vectors;
    where the largest value may be wrong by more than the share `residual`, or a number is not finite, `fallback` stands
    in. `hessian_of`: all layers, or the linear ones alone. Eigenvalues below `zero` times the largest count as zero;
    rho is at least `ratio_min`. `rate_convention` "literal": these shares are dropped, not kept, and not bounded by
    `ratio_min`.

    A unit's probability to be left out is proportional to exp(-importance), over all channels and over all neurons, and
    at most `drop_cap`; if `rescale`, what kept units give is multiplied by 1 / (1 - probability) in training. In each
    layer the most important unit stays if no other does; `exact_k`: as many stay as are expected. `units`: as for AFD.

    The notes hold, of a check, `delta`, `fired` and, of an update, every device's `rho`, whether the `fallback` was
    used, whether its eigenvalues have such a `gap`, and `et_max_s`; of every round the mean probability `drop` of the
    devices whose models arrived.
    """

    check_every: Annotated[int, Ge(1)] = 5
    patience: Annotated[int, Ge(0)] = 10
    gain: Annotated[float, Ge(0), Lt(1)] = 1e-3
    force_first_at: Annotated[int, Ge(0)] = 50
    probe_samples: Annotated[int, Ge(1)] = 100
    neuron_weight: NeuronWeight = "abs"
    rank_norm: RankNorm = "layer_max"
    rate_convention: Literal["keep", "literal"] = "keep"
    rate_source: Literal["lanczos", "dense", "rank_deficiency", "fixed"] = "lanczos"
    fallback: Literal["rank_deficiency", "fixed"] = "rank_deficiency"
    fixed_ratio: PositiveShare = 0.96  # what the printed costs of LeNet on CIFAR-10 imply
    hessian_samples: Annotated[int, Ge(1)] = 100
    hessian_of: Literal["all", "linear"] = "all"
    lanczos_steps: Annotated[int, Ge(2)] = 30
    lanczos_starts: Annotated[int, Ge(1)] = 1
    residual: PositiveNumber = 0.01
    zero: Annotated[float, Ge(0), Lt(1)] = 1e-3
    ratio_min: Share = 0.5
    keep_min: PositiveShare = 0.25
    time_map: Literal["linear", "exact"] = "linear"
    drop_cap: Annotated[float, Gt(0), Lt(1)] = 0.8
    rescale: bool = True
    exact_k: bool = False
    units: Which = "inner"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return that nothing is known and nothing is left out. Raises ConfigError if model or keys do not fit."""
        state = super().init(setting, key)  # type: ignore[misc]  # of the method that this class stands before
        check_groups(setting.card, self.units, "choose a model that has some")
        check_kept(self._groups(setting), setting.card, "model.name", None)
        size = setting.card.part_params(self._curved(setting), trained_only=True)
        most = _MOST_DENSE if self.rate_source == "dense" else math.inf
        if self.rate_source in _CURVED and not 0 < size <= most:
            raise ConfigError(
                f"method.rate_source: {self.rate_source!r} is for Hessians of 1 to {most} parameters; "
                f"{setting.card.model} has {size} with method.hessian_of {self.hessian_of!r}"
            )
        if self.time_map == "exact" and self.rate_convention == "literal":
            raise ConfigError("method.time_map: 'exact' is for method.rate_convention 'keep', found 'literal'")
        setting.cost.check(widths=1)
        units = sum(group.size for group in self._groups(setting))
        nothing = {"drop": np.zeros(len(setting.samples)), "importance": np.zeros(units), "heard": None}
        return {**state, **nothing, "trigger": dict(WAITING), "due": False, "deficiency": {}, "said": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks; in a check round first how much units matter.

        If rates are due, how curved the loss is comes in between. Who does not answer is not asked again in the round.
        """
        if not view.exchange:
            devices = view.choose(key).tolist()
            if view.round == 0 or view.round % self.check_every:  # nothing is to be seen in a random model
                return Plan(self._training(devices, state, view, key, have_model=False))
            return Plan(asking(devices, view.setting, self.probe_samples, self._ranks_task), more=True)
        there = set(view.idle.tolist())
        devices = sorted({a.job.device for a in view.last if a.outcome in DELIVERED} & there)
        if state["due"] and view.exchange == 1:
            return Plan(asking(devices, view.setting, self.hessian_samples, self._curvature_task), more=True)
        return Plan(self._training(devices, state, view, key, have_model=True))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy, or what looks at the model that was received."""
        finish = {_RANKS: self._tell_ranks, _CURVATURE: self._tell_ratio}.get(task.name)
        return PLAIN_SGD if finish is None else LocalRule(finish=finish)

    def hear(self, state: Any, got: Sequence[Message], view: View, key: Key) -> Any:
        """Return a state that knows how much units matter or, if that was asked for, has new rates."""
        return self._updated(state, got, view) if state["due"] else self._checked(state, got, view)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return what the method makes of the models that arrived, with notes of what was heard in the round."""
        models = [message for message in got if message.task.stretches]
        rest = {**state, "due": False, "deficiency": {}, "said": {}}
        merged: Merged = super().merge(rest, base, models, view, tools, key)  # type: ignore[misc]
        unusable = sum(not _usable(m) for m in got if m.task.name == _RANKS) + merged.notes.get("left_out", 0.0)
        left_out = {"left_out": float(unusable)} if unusable else {}
        drop = {"drop": {m.device: float(state["drop"][m.device]) for m in models}}
        return merged._replace(notes={**merged.notes, **state["said"], **drop, **left_out})

    # --- orders -------------------------------------------------------------------------------------------------

    def _upload(self, state: Any, device: int, setting: Setting) -> Payload:
        """Return what a device sends when it has trained."""
        return Payload()

    def _training(
        self, devices: Sequence[int], state: Any, view: View, key: Key, have_model: bool
    ) -> tuple[Order, ...]:
        """Return orders to train; who has the whole model is only told which units to keep."""
        setting, stretches = view.setting, (view.setting.training.stretch(view.round),)
        tasks: dict[Any, Task] = {}
        orders = []
        for device in devices:
            part, up = self._part(state, device, setting, key.at(_MASKS, device)), self._upload(state, device, setting)
            extra_bytes = _NUMBER_BYTES * sum(len(multipliers) for _, multipliers in part.scale)
            down: Payload | None = Payload(extra_bytes=extra_bytes)
            if have_model:
                mask_bytes = math.ceil(len(state["importance"]) / 8)
                down = Payload(kinds=frozenset(), extra_bytes=mask_bytes + extra_bytes) if part.units else None
            task = tasks.setdefault((part, up), Task(part=part, stretches=stretches, down=down, up=up))
            orders.append(Order(device, task))
        return tuple(orders)

    def _ranks_task(self, samples: int, setting: Setting) -> Task:
        groups = self._groups(setting)
        flops = samples * rank_flops(setting.card, groups)
        passes = (Pass("forward", samples=samples), Pass("flops", times=flops)) if flops else ()
        return Task(
            _RANKS,
            up=Payload(
                kinds=frozenset(),
                layers=frozenset(source_of(setting.card, group) for group in groups),
                extra_bytes=_NUMBER_BYTES * (sum(group.size for group in groups) + 1),
            ),
            passes=passes,
            knobs={"samples": samples},
        )

    def _curvature_task(self, samples: int, setting: Setting) -> Task:
        part = self._curved(setting)
        size = setting.card.part_params(part, trained_only=True)
        products, flops = size + 1.0, dense_flops(size)
        if self.rate_source == "lanczos":
            products = self.lanczos_starts * min(self.lanczos_steps, size) + 1.0
            flops = self.lanczos_starts * lanczos_flops(size, self.lanczos_steps)
        flops += products * samples * product_flops(setting.card, part)
        return Task(
            _CURVATURE,
            part=part,
            down=None,
            up=Payload(kinds=frozenset(), extra_bytes=_NUMBER_BYTES),
            passes=(Pass(times=2.0, samples=samples), Pass("flops", times=flops)),  # the gradients of two models
            knobs={"samples": samples},
        )

    def _groups(self, setting: Setting) -> tuple[UnitGroup, ...]:
        return groups_of(setting.card, self.units)

    def _curved(self, setting: Setting) -> Part:
        """Return the part whose trained layers the Hessian is of."""
        if self.hessian_of == "all":
            return Part()
        return Part("linear", frozen=frozenset(layer.name for layer in setting.card.layers if layer.kind != "Linear"))

    # --- on a device --------------------------------------------------------------------------------------------

    def _tell_ranks(self, w: Bundle, context: Context) -> tuple[Bundle, None, dict[str, Any]]:
        layers, samples = sorted(context.task.up.layers or ()), int(context.task.knobs["samples"])
        found = ranks_of(w, context, layers, samples, self.neuron_weight)
        return {}, None, {"importance": found.importance, "deficiency": found.deficiency}

    def _tell_ratio(self, w: Bundle, context: Context) -> tuple[Bundle, None, dict[str, float]]:
        """Tell rho, NaN where the spectrum is not good enough."""
        steps = self.lanczos_steps if self.rate_source == "lanczos" else 0
        found = curvature_of(w, context, int(context.task.knobs["samples"]), steps, self.lanczos_starts)
        if found.moved < _NOT_MOVED:
            return {}, None, {"ratio": 1.0}
        good = found.spectrum.residual <= self.residual and math.isfinite(found.lipschitz)
        ratio = share_below_gap(found.spectrum, found.lipschitz, self.zero) if good else math.nan
        return {}, None, {"ratio": ratio}

    # --- what the server learns ---------------------------------------------------------------------------------

    def _checked(self, state: Any, got: Sequence[Message], view: View) -> Any:
        """Return the state after importances were heard, with new rates if these need nothing more."""
        usable = [message for message in got if _usable(message)]
        if not usable:
            return state
        groups = self._groups(view.setting)
        sources = [source_of(view.setting.card, group) for group in groups]
        told = [np.concatenate([m.signals["importance"][name] for name in sources]) for m in usable]
        mean = np.average(told, axis=0, weights=[m.samples for m in usable])
        heard = normalised(mean, [group.size for group in groups], self.rank_norm)
        delta = math.nan if state["heard"] is None else float(np.linalg.norm(heard - state["heard"]))
        fired, trigger = triggered(
            state["trigger"], delta, view.round, self.check_every, self.patience, self.gain, self.force_first_at
        )
        deficiency = {m.device: m.signals["deficiency"] for m in usable}
        said = {"fired": float(fired), **({} if math.isnan(delta) else {"delta": delta})}
        due = fired and self.rate_source in _CURVED
        state = {**state, "heard": heard, "trigger": trigger, "deficiency": deficiency, "said": said, "due": due}
        if not fired or due:
            return state
        return self._rated(state, {d: self._surrogate(self.rate_source, state, d) for d in deficiency}, view)

    def _updated(self, state: Any, got: Sequence[Message], view: View) -> Any:
        """Return the state with rates by the ratios that devices told, or by the fallback."""
        told = {m.device: m.signals["ratio"] for m in got if m.device in state["deficiency"]}
        poor = {device for device, ratio in told.items() if not math.isfinite(ratio)}
        ratios = {d: self._surrogate(self.fallback, state, d) if d in poor else r for d, r in told.items()}
        said = {
            **state["said"],
            "fallback": {device: float(device in poor) for device in told},
            "gap": {device: float(ratio < 1) for device, ratio in told.items()},
        }
        return self._rated({**state, "due": False, "said": said}, ratios, view) if told else {**state, "due": False}

    def _surrogate(self, source: str, state: Any, device: int) -> float:
        return self.fixed_ratio if source == "fixed" else float(state["deficiency"][device])

    def _rated(self, state: Any, ratios: Mapping[int, float], view: View) -> Any:
        """Return the state with the rates of all devices."""
        setting, keeps = view.setting, self.rate_convention == "keep"
        rho = {device: max(ratio, self.ratio_min) if keeps else ratio for device, ratio in ratios.items()}
        mean = float(np.average(list(rho.values()), weights=setting.samples[list(rho)]))
        longest_s, share = shares_of_time(round_seconds(setting, Part(), view.round), setting.samples, mean)
        if self.time_map == "exact":
            share = largest_shares(setting, self._groups(setting), longest_s, view.round)
        drop = 1.0 - np.clip(share if keeps else 1.0 - share, self.keep_min, 1.0)
        said = {**state["said"], "rho": rho, "et_max_s": longest_s}
        return {**state, "drop": drop, "importance": state["heard"], "said": said}

    def _part(self, state: Any, device: int, setting: Setting, key: Key) -> Part:
        """Return a random part for a device; the whole model if it leaves nothing out."""
        drop, groups, draws = float(state["drop"][device]), self._groups(setting), key.numpy()
        if drop == 0:
            return Part()
        linear = np.concatenate([np.full(g.size, is_linear(setting.card, g)) for g in groups])
        probability = np.zeros(len(linear))
        for among in (linear, ~linear):
            if among.any():
                probability[among] = drop_probabilities(state["importance"][among], drop, self.drop_cap)
        units, scale = [], []
        ends = np.cumsum([group.size for group in groups])[:-1]
        for group, p, r in zip(groups, np.split(probability, ends), np.split(state["importance"], ends), strict=True):
            kept = drawn(p, r, self.exact_k, draws)
            units.append((group.name, tuple(kept.tolist())))
            scale.append((group.name, tuple((1 / (1 - p[kept])).tolist())))
        return Part(f"drop{drop:.2f}", width=1, units=tuple(units), scale=tuple(scale) if self.rescale else ())


def asking(
    devices: Sequence[int], setting: Setting, most: int, task_of: Callable[[int, Setting], Task]
) -> tuple[Order, ...]:
    """Return orders for tasks on all samples that a device has, but at most so many."""
    tasks: dict[int, Task] = {}
    orders = []
    for device in devices:
        samples = min(int(setting.samples[device]), most)
        if samples not in tasks:
            tasks[samples] = task_of(samples, setting)
        orders.append(Order(device, tasks[samples]))
    return tuple(orders)


def _usable(message: Message) -> bool:
    """Whether all that a device told of its units is finite."""
    told = message.signals["importance"].values()
    return math.isfinite(message.signals["deficiency"]) and all(np.isfinite(values).all() for values in told)
