"""Adaptive dropout: thinner networks, whose size depends on a device's speed and whose units on their importance.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedAD).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.core.limits import MOST_COUNT, Count, CountOrZero, PositiveFactor, PositiveShare, Share
from edgesim.core.method import Aggregate, Finished, LocalRule, LocalState, Method, ServerContext
from edgesim.core.price_list import ChannelGroup
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Order, Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel.selection import Which, check_groups, check_kept, groups_of
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.adaptive_dropout.folded import FOLDED, factors_of
from edgesim.methods.adaptive_dropout.spectrum import dense_flops, lanczos_flops, product_flops, share_below_gap
from edgesim.methods.adaptive_dropout.unit_ranks import (
    NeuronWeight,
    curvature_of,
    is_linear,
    rank_flops,
    ranks_of,
    source_of,
)
from edgesim.methods.adaptive_dropout.unit_rates import (
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

_NUMBER_BYTES = 4  # of an importance, a ratio, a multiplier: float32
_NOT_MOVED = 1e-8  # least distance from the first model that says something about curvature
_MOST_DENSE = 2000  # parameters
_CURVED = ("lanczos", "dense")  # sources of rho that need the Hessian
_RANKS, _CURVATURE = "ranks", "curvature"  # names of tasks


@dataclass(frozen=True, kw_only=True)
class AdaptiveDropout(Method):
    """Base class: devices drop unimportant units of their networks, and slower devices drop more of them.

    It stands before a method that averages thinner networks in a class: `class Mine(AdaptiveDropout, FedDH)`.

    Every `check_every` rounds the selected devices get the whole model, report the importance of its units, and then
    train the part that they keep. The importance of a channel is the mean rank of its map over `probe_samples` samples.
    The importance of a neuron is the sum of its incoming weights or of their magnitudes (`neuron_weight`). Both are
    divided by the largest of their layer (`rank_norm`) and averaged over devices by data size. The first update of
    rates comes once the change of importances has not fallen, by the share `gain`, for `patience` rounds, or in round
    `force_first_at`. Later updates come whenever the change from check to check is smaller than the one before.

    In an update device k keeps the share min(ET_max / ET_k, 1) of its units, not below `keep_min`. ET_k is its time in
    seconds for the whole model. ET_max is the time of the device with the most data, times the ratio rho, averaged over
    the selected devices by data size. "exact" `time_map`: the largest share with which the device takes no longer than
    ET_max. `rate_source` of rho: "lanczos" or "dense", the share of the eigenvalues of the loss's Hessian below the
    first gap of more than 4 L, on `hessian_samples` samples; "rank_deficiency", the mean of rank over largest possible
    rank of all channels; "fixed", `fixed_ratio`. Lanczos takes `lanczos_steps` steps from `lanczos_starts` random
    vectors. Where the largest value may be wrong by more than the share `residual`, or a number is not finite, the
    `fallback` replaces it. `hessian_of`: all layers, or only the linear ones. Eigenvalues below `zero` times the
    largest count as zero. rho is at least `ratio_min`. With `rate_convention` "literal" these shares are dropped, not
    kept, and not bounded by `ratio_min`.

    The probability that a unit is left out is proportional to exp(-importance), over all channels and over all neurons,
    and at most `drop_cap`. With `rescale` the outputs of kept channels are multiplied by 1 / (1 - probability) in
    training. With `fold` the weights that read kept channels are multiplied instead, once before training, and divided
    after it. In each layer the most important unit stays if no other does. With `exact_k` the expected number of units
    stays. `channels`: as for AFD.

    Differs: section 5.2.1 of the paper names attention heads among the units. Here channels and neurons are dropped,
    and heads stay.

    The metrics of a check are `delta` and `fired`. The metrics of an update are every device's `rho`, 1 or 0 for the
    use of the `fallback` and for a `gap` in its eigenvalues, and `et_max_s`. Every round has the mean probability
    `drop` of the devices whose models arrived.
    """

    check_every: Count = 5
    """The paper's h, without a value. The first round is never checked: the units of a random model say nothing, and
    there is nothing to compare them with.
    """
    patience: CountOrZero = 10
    """In rounds. In the paper the first update follows an early period without dropout, once importances do not settle
    any further. It gives no value.
    """
    gain: Annotated[float, Ge(0), Lt(1)] = 1e-3
    """The share by which a change of importances has to be below the least so far. The paper does not specify this."""
    force_first_at: CountOrZero = 50
    """The paper does not specify this. Without it a model that keeps settling would never be thinned."""
    probe_samples: Count = 100
    """HRank, which the paper cites, takes five batches of 100 images. Here each selected device takes one batch, or all
    of its samples.
    """
    neuron_weight: NeuronWeight = "abs"
    """"The sum of its incoming weights" may be negative and near zero for an important neuron. It is read as a sum of
    magnitudes; `"signed"` takes the text literally.
    """
    rank_norm: RankNorm = "layer_max"
    """The paper does not specify this. Ranks are at most the side of a map, so that without it (`"none"`) the last
    layers would lose most of their channels and the first ones none.
    """
    rate_convention: Literal["keep", "literal"] = "keep"
    """M / h is called the dropout rate, yet it is multiplied by a time to get the allowed time, so it is the share that
    stays. The theory behind it, earlier code of the authors, and the 2 to 8 % that the printed costs imply agree.
    `"literal"` drops it.
    """
    rate_source: Literal["lanczos", "dense", "rank_deficiency", "fixed"] = "lanczos"
    """The paper needs all eigenvalues of the Hessian of every device: `"dense"`, up to 2000 parameters. Lanczos'
    method with random signs estimates their distribution, as in the authors' earlier code. For large networks take
    `"rank_deficiency"`, and `"fixed"` to match printed costs.
    """
    fallback: Literal["rank_deficiency", "fixed"] = "rank_deficiency"
    """Replaces a spectrum that did not converge; the metrics name the devices."""
    fixed_ratio: PositiveShare = 0.96  # implied by the printed costs of LeNet on CIFAR-10
    """Implied by the printed costs of LeNet on CIFAR-10; other costs imply 0.84 to 0.98."""
    hessian_samples: Count = 100
    """The authors' earlier code."""
    hessian_of: Literal["all", "linear"] = "all"
    """`"linear"` is for networks so large that 30 vectors of their length do not fit in memory."""
    lanczos_steps: Annotated[int, Ge(2), Le(MOST_COUNT)] = 30
    """The authors' earlier code takes 50."""
    lanczos_starts: Count = 1
    """The authors' earlier code."""
    residual: PositiveFactor = 0.01
    """The error bound of the largest Ritz value, over its magnitude. The paper does not specify convergence."""
    zero: Annotated[float, Ge(0), Lt(1)] = 1e-3
    """The paper does not specify the rank of a matrix that is known by estimates."""
    ratio_min: Share = 0.5
    """The paper does not specify this. Hessians of networks with ReLU have negative eigenvalues, among which a first
    gap may lie with hardly any mass below it.
    """
    keep_min: PositiveShare = 0.25
    """The paper does not specify this. Without it the slowest device would keep hardly any unit."""
    time_map: Literal["linear", "exact"] = "linear"
    """The paper keeps a share of units equal to the share of time, though work falls faster than this share.
    `"exact"` keeps as many units as the time allows.
    """
    drop_cap: Annotated[float, Gt(0), Lt(1)] = 0.8
    """The paper does not specify this. Its formula, whose mean is the rate, may exceed 1. The cap also bounds the
    multipliers at 5.
    """
    rescale: bool = True
    """As in the paper. The units left out stay the same for a whole turn of training, so multipliers act like a
    larger learning rate: see `docs/explanation/reproductions.md`.
    """
    fold: bool = False
    """Algorithm 2's "the weight is updated" may mean `true`: steps of these weights are then smaller, not larger."""
    exact_k: bool = False
    """By default each unit is drawn independently, so that sizes vary."""
    channels: Which = "inner"
    """Channels of convolutions and hidden neurons. The paper does not specify channels that a residual network adds to
    each other, which have to agree. They stay; `"all"` thins them too, each as one unit.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without importances, in which no unit is dropped.

        Raises ConfigError if model or keys do not fit.
        """
        state = super().init(setting, key)
        check_groups(setting.cost_profile, self.channels, "choose a model that has some")
        check_kept(self._groups(setting), setting.cost_profile, "model.name", None)
        size = setting.cost_profile.submodel_params(self._curved(setting), trained_only=True)
        most = _MOST_DENSE if self.rate_source == "dense" else math.inf
        if self.rate_source in _CURVED and not 0 < size <= most:
            raise ConfigError(
                f"method.rate_source: {self.rate_source!r} is for Hessians of 1 to {most} parameters; "
                f"{setting.cost_profile.model} has {size} with method.hessian_of {self.hessian_of!r}"
            )
        if self.time_map == "exact" and self.rate_convention == "literal":
            raise ConfigError("method.time_map: 'exact' is for method.rate_convention 'keep', found 'literal'")
        if self.fold and not self.rescale:
            raise ConfigError("method.fold: puts multipliers into weights, and method.rescale is false")
        setting.cost.check(widths=1)
        channels = sum(group.size for group in self._groups(setting))
        nothing = {"drop": np.zeros(len(setting.samples)), "importance": np.zeros(channels), "heard": None}
        return {**state, **nothing, "trigger": dict(WAITING), "due": False, "deficiency": {}, "said": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks. In a check round they first report importances of units.

        If rates are due they then report the curvature of the loss. A device that does not answer is not asked again in
        the round.
        """
        if not view.exchange:
            devices = view.choose(key).tolist()
            if view.round == 0 or view.round % self.check_every:  # the units of a random model say nothing
                return Plan(self._training(devices, state, view, key, have_model=False))
            return Plan(asking(devices, view.setting, self.probe_samples, self._ranks_task), more=True)
        there = set(view.idle.tolist())
        devices = sorted({a.job.device for a in view.last if a.outcome in DELIVERED} & there)
        if state["due"] and view.exchange == 1:
            return Plan(asking(devices, view.setting, self.hessian_samples, self._curvature_task), more=True)
        return Plan(self._training(devices, state, view, key, have_model=True))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, or a measurement of the received model."""

        def tell_ranks(local: LocalState, context: Context) -> Finished:
            layers, samples = sorted(context.task.up.layers or ()), int(context.task.config["samples"])
            found = ranks_of(local.weights, context, layers, samples, self.neuron_weight)
            return Finished({}, statistics={"importance": found.importance, "deficiency": found.deficiency})

        def tell_ratio(local: LocalState, context: Context) -> Finished:  # NaN: the spectrum is not good enough
            steps = self.lanczos_steps if self.rate_source == "lanczos" else 0
            found = curvature_of(
                local.weights, context, int(context.task.config["samples"]), steps, self.lanczos_starts
            )
            if found.moved < _NOT_MOVED:
                return Finished({}, statistics={"ratio": 1.0})
            good = found.spectrum.residual <= self.residual and math.isfinite(found.lipschitz)
            ratio = share_below_gap(found.spectrum, found.lipschitz, self.zero) if good else math.nan
            return Finished({}, statistics={"ratio": ratio})

        finish = {_RANKS: tell_ranks, _CURVATURE: tell_ratio}.get(task.name)
        if finish is None:
            return FOLDED if self.fold else PLAIN_SGD
        return LocalRule(on_finish=finish)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the state after a check, with new importances, or after an update, with new rates.

        Rates that need no curvature change in the check itself. In an update the `fallback` replaces poor ratios.
        """
        if not state["due"]:
            return self._checked(state, updates, server)
        told = {m.device: m.statistics["ratio"] for m in updates if m.device in state["deficiency"]}
        poor = {device for device, ratio in told.items() if not math.isfinite(ratio)}
        ratios = {d: self._surrogate(self.fallback, state, d) if d in poor else r for d, r in told.items()}
        said = {
            **state["said"],
            "fallback": {device: float(device in poor) for device in told},
            "gap": {device: float(ratio < 1) for device, ratio in told.items()},
        }
        return self._rated({**state, "due": False, "said": said}, ratios, server) if told else {**state, "due": False}

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's result of the arrived models, with the metrics of the round's check and update."""
        models = [message for message in updates if message.task.local_sgd]
        rest = {**state, "due": False, "deficiency": {}, "said": {}}
        merged: Aggregate = super().aggregate(rest, global_model, models, server, key)
        unusable = sum(not _usable(m) for m in updates if m.task.name == _RANKS) + merged.metrics.get("left_out", 0.0)
        left_out = {"left_out": float(unusable)} if unusable else {}
        drop = {"drop": {m.device: float(state["drop"][m.device]) for m in models}}
        return merged._replace(metrics={**merged.metrics, **state["said"], **drop, **left_out})

    def _upload(self, state: Any, device: int, setting: Setting) -> Payload:
        """Return the payload that a device sends after training."""
        return Payload()

    def _training(
        self, devices: Sequence[int], state: Any, view: View, key: Key, have_model: bool
    ) -> tuple[Order, ...]:
        """Return orders to train. A device that has the whole model receives only the units to keep."""
        setting, local_sgd = view.setting, (view.setting.training.local_sgd(view.round),)
        tasks: dict[Any, Task] = {}
        orders = []
        for device in devices:
            submodel = self._submodel(state, device, setting, key.at(PlanStream.CHANNELS, device))
            up, kept = self._upload(state, device, setting), sum(len(factors) for _, factors in submodel.scale)
            down: Payload | None = Payload(extra_bytes=_NUMBER_BYTES * kept)
            if have_model:
                extra_bytes = math.ceil(len(state["importance"]) / 8) + _NUMBER_BYTES * kept  # a mask and multipliers
                down = Payload(frozenset(), extra_bytes=extra_bytes) if submodel.channels else None
            if (submodel, up) not in tasks:
                config = factors_of(submodel, setting.cost_profile) if self.fold else {}
                trained = replace(submodel, scale=()) if self.fold else submodel
                tasks[submodel, up] = Task(submodel=trained, local_sgd=local_sgd, down=down, up=up, config=config)
            orders.append(Order(device, tasks[submodel, up]))
        return tuple(orders)

    def _ranks_task(self, samples: int, setting: Setting) -> Task:
        groups = self._groups(setting)
        flops = samples * rank_flops(setting.cost_profile, groups)
        passes = (Pass("forward", samples=samples), Pass("flops", times=flops)) if flops else ()
        return Task(
            _RANKS,
            up=Payload(
                collections=frozenset(),
                layers=frozenset(source_of(setting.cost_profile, group) for group in groups),
                extra_bytes=_NUMBER_BYTES * (sum(group.size for group in groups) + 1),
            ),
            passes=passes,
            config={"samples": samples},
        )

    def _curvature_task(self, samples: int, setting: Setting) -> Task:
        submodel = self._curved(setting)
        size = setting.cost_profile.submodel_params(submodel, trained_only=True)
        products, flops = size + 1.0, dense_flops(size)
        if self.rate_source == "lanczos":
            products = self.lanczos_starts * min(self.lanczos_steps, size) + 1.0
            flops = self.lanczos_starts * lanczos_flops(size, self.lanczos_steps)
        flops += products * samples * product_flops(setting.cost_profile, submodel)
        return Task(
            _CURVATURE,
            submodel=submodel,
            down=None,
            up=Payload(collections=frozenset(), extra_bytes=_NUMBER_BYTES),
            passes=(Pass(times=2.0, samples=samples), Pass("flops", times=flops)),  # the gradients of two models
            config={"samples": samples},
        )

    def _groups(self, setting: Setting) -> tuple[ChannelGroup, ...]:
        return groups_of(setting.cost_profile, self.channels)

    def _curved(self, setting: Setting) -> Submodel:
        """Return the submodel whose trained layers are the variables of the Hessian."""
        if self.hessian_of == "all":
            return Submodel()
        return Submodel(
            "linear", frozen=frozenset(layer.name for layer in setting.cost_profile.layers if layer.kind != "Linear")
        )

    def _checked(self, state: Any, updates: Sequence[Update], server: ServerContext) -> Any:
        """Return the state with new importances, and with new rates if they need no curvature."""
        usable = [message for message in updates if _usable(message)]
        if not usable:
            return state
        groups = self._groups(server.setting)
        sources = [source_of(server.setting.cost_profile, group) for group in groups]
        told = [np.concatenate([m.statistics["importance"][name] for name in sources]) for m in usable]
        mean = np.average(told, axis=0, weights=[m.samples for m in usable])
        heard = normalised(mean, [group.size for group in groups], self.rank_norm)
        delta = math.nan if state["heard"] is None else float(np.linalg.norm(heard - state["heard"]))
        fired, trigger = triggered(
            state["trigger"], delta, server.round, self.check_every, self.patience, self.gain, self.force_first_at
        )
        deficiency = {m.device: m.statistics["deficiency"] for m in usable}
        said = {"fired": float(fired), **({} if math.isnan(delta) else {"delta": delta})}
        due = fired and self.rate_source in _CURVED
        state = {**state, "heard": heard, "trigger": trigger, "deficiency": deficiency, "said": said, "due": due}
        if not fired or due:
            return state
        return self._rated(state, {d: self._surrogate(self.rate_source, state, d) for d in deficiency}, server)

    def _surrogate(self, source: str, state: Any, device: int) -> float:
        return self.fixed_ratio if source == "fixed" else float(state["deficiency"][device])

    def _rated(self, state: Any, ratios: Mapping[int, float], server: ServerContext) -> Any:
        """Return the state with the rates of all devices."""
        setting, keeps = server.setting, self.rate_convention == "keep"
        rho = {device: max(ratio, self.ratio_min) if keeps else ratio for device, ratio in ratios.items()}
        mean = float(np.average(list(rho.values()), weights=setting.samples[list(rho)]))
        longest_s, share = shares_of_time(round_seconds(setting, Submodel(), server.round), setting.samples, mean)
        if self.time_map == "exact":
            share = largest_shares(setting, self._groups(setting), longest_s, server.round)
        drop = 1.0 - np.clip(share if keeps else 1.0 - share, self.keep_min, 1.0)
        said = {**state["said"], "rho": rho, "et_max_s": longest_s}
        return {**state, "drop": drop, "importance": state["heard"], "said": said}

    def _submodel(self, state: Any, device: int, setting: Setting, key: Key) -> Submodel:
        """Return a random submodel for a device; the whole model if no unit is left out."""
        drop, groups, draws = float(state["drop"][device]), self._groups(setting), key.numpy()
        if drop == 0:
            return Submodel()
        linear = np.concatenate([np.full(g.size, is_linear(setting.cost_profile, g)) for g in groups])
        probability = np.zeros(len(linear))
        for among in (linear, ~linear):
            if among.any():
                probability[among] = drop_probabilities(state["importance"][among], drop, self.drop_cap)
        channels, scale = [], []
        ends = np.cumsum([group.size for group in groups])[:-1]
        for group, p, r in zip(groups, np.split(probability, ends), np.split(state["importance"], ends), strict=True):
            kept = drawn(p, r, self.exact_k, draws)
            channels.append((group.name, tuple(kept.tolist())))
            scale.append((group.name, tuple((1 / (1 - p[kept])).tolist())))
        return Submodel(
            f"drop{drop:.2f}", width=1, channels=tuple(channels), scale=tuple(scale) if self.rescale else ()
        )


def asking(
    devices: Sequence[int], setting: Setting, most: int, task_of: Callable[[int, Setting], Task]
) -> tuple[Order, ...]:
    """Return orders for tasks on all samples of a device, but on at most `most`."""
    tasks: dict[int, Task] = {}
    orders = []
    for device in devices:
        samples = min(int(setting.samples[device]), most)
        if samples not in tasks:
            tasks[samples] = task_of(samples, setting)
        orders.append(Order(device, tasks[samples]))
    return tuple(orders)


def _usable(message: Update) -> bool:
    """Return True if all numbers that a device reported about its units are finite."""
    told = message.statistics["importance"].values()
    return math.isfinite(message.statistics["deficiency"]) and all(np.isfinite(values).all() for values in told)
