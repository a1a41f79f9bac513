"""DP-FedAvg: moves of devices are clipped, and the server adds noise to their sum, which hides each single device.

Source: McMahan, Ramage, Talwar and Zhang, "Learning Differentially Private Recurrent Language Models" (ICLR 2018),
algorithm 1 with flat clipping and the estimator with a fixed denominator (f_f, lemma 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, NonNegativeFactor, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import mapped, moves, named, norm, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import not_below_0
from edgesim.learning.privacy.accountant import check_installed, epsilon_spent, noise_for

_CLIP_FLOPS = 5.0  # per number: the difference, its square and the sum of squares, the product, the sum
_NOISE_FLOPS = 2.0  # per number: the product with the standard deviation, and the sum; drawing it is not counted
_LEAST_PRV_NOISE = 0.1  # below, the grid on which privacy loss is composed takes gigabytes


@dataclass(frozen=True, kw_only=True)
class DpFedAvg(Method):
    """For private data: devices clip their moves, and the server adds noise that hides each single device.

    The new model is w + (sum_k w_k clip(w_k's move) + N(0, (z S)^2)) / (q W): no device moves the sum by more than S.
    A move is the model that a device sends less the model before, all tensors together as one vector, running
    statistics too. A move longer than `clip` = S is shortened to S. z is the noise multiplier, q the share of devices
    that the selection asks, and W = sum w_k over the whole fleet. Denominator and noise do not depend on the devices
    that answer. Update weights count at most 1, and updates that come a round late do not count. Running variances that
    noise makes negative become 0.
    The metric `epsilon` is the privacy budget that all rounds so far have spent at `delta`, by the accountant. It
    bounds how much more a model published after each round reveals about a device than if the device had never taken
    part. The accountant assumes that each device is asked independently of the others, as selections `poisson` and
    `all` do. For `uniform`, a set of fixed size, the number is the one commonly reported, but no guarantee. Where a
    selection looks at devices, each device is taken to be in every round. Rounds without any answer add no noise, count
    as spent, and show that no device answered. The metrics themselves are not private.
    Differs: devices clip once, after training, and not after each step.

    Family: privacy. Formula: `w <- w + (sum_k w_k clip(d_k, S) + N(0, (z S)^2)) / (q W)`. Paper: arXiv 1710.06963.
    """

    needs = Needs(asked=True)

    clip: PositiveFactor = 1.0  # S: the longest move that is not shortened
    """Moves of small networks are about 1 long. Chosen here: the paper's is for its language model."""
    noise_multiplier: NonNegativeFactor | None = None  # z: noise by S; None: from `epsilon`, else 1; 0: none
    """1 is from memory of McMahan et al., not confirmed."""
    epsilon: Annotated[float, Gt(0), Le(100)] | None = None  # budget for `rounds`; None: it follows from the noise
    """No source has one value for all cases. The noise is the least that opacus finds."""
    rounds: Count | None = None  # rounds that share `epsilon`, most often stop.rounds; then the model stays
    """After them the budget is spent. It is no part of stop, so a run can be made longer without training again."""
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5  # probability that epsilon does not hold
    """Commonly below 1 in the number of devices. Chosen here."""
    accountant: Literal["rdp", "prv", "none"] = "rdp"  # accountant of opacus; "none": epsilon is not reported
    """Renyi differential privacy succeeded the paper's moments accountant. `prv` is tighter and slower."""
    full_weight: Count | None = (
        None  # number of samples for a weight of 1, fewer count in proportion; None: each device counts 1
    )
    """McMahan et al.'s w-hat. Without it the mean is over devices, not samples."""
    clip_at: Literal["device", "server"] = "device"  # place where moves are shortened
    """In McMahan et al. devices do. A server that clips sees every move, and reports the longer ones as `clipped`."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the noise multiplier, the share of devices asked, the probability of each, and no releases so far.

        Raises ConfigError unless the parts of a privacy guarantee go together.
        """
        self._check(setting)
        assert setting.asked is not None
        share = setting.asked.share
        rate = share if setting.asked.alike else 1.0
        noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
        if self.epsilon is not None:
            assert self.accountant != "none" and self.rounds is not None
            noise = noise_for(self.accountant, self.epsilon, rate, self.rounds, self.delta)
        return {**super().init(setting, key), "noise": noise, "share": share, "rate": rate, "releases": 0}

    def _check(self, setting: Setting) -> None:
        if setting.asked is None:
            raise ConfigError("edges: this method has to know how likely a device is asked; leave edge servers out")
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigError("method.epsilon: gives the noise_multiplier; leave one of both out")
        if self.epsilon is not None and self.accountant == "none":
            raise ConfigError("method.epsilon: needs an accountant, 'rdp' or 'prv', found 'none'")
        if (self.epsilon is None) != (self.rounds is None):
            raise ConfigError("method.epsilon: goes with method.rounds, for which it is meant; give both or none")
        if self.accountant == "prv" and 0 < (self.noise_multiplier or 1.0) < _LEAST_PRV_NOISE:
            raise ConfigError(
                f"method.accountant: 'prv' takes a noise_multiplier of at least {_LEAST_PRV_NOISE:g}, "
                f"found {self.noise_multiplier:g}; use 'rdp'"
            )
        if self.accountant != "none" and self.noise_multiplier != 0:
            check_installed("method.accountant")
        written = (setting.encoding_up.values, setting.encoding_down.values)
        if self.clip_at == "device" and written != ("float32", "float32"):
            raise ConfigError(
                "method.clip_at: must be 'server' where numbers are rounded on their way, which may make moves longer "
                f"again; encoding is {' up, '.join(written)} down"
            )

    def task(self, view: View) -> Task:
        """Return the training of the whole model, after which a device clips its move."""
        if self.clip_at == "server":
            return super().task(view)
        clipping = Pass("flops", times=_CLIP_FLOPS * view.setting.cost_profile.numbers(Payload()))
        return replace(super().task(view), passes=(Pass(), clipping))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, after which a device clips its move."""

        def finish(local: LocalState, context: Any) -> Finished:
            start = context.copy(context.global_model)
            move, scale, _ = clipped(local.weights, start, self.clip)
            return Finished(stepped(start, move, scale))

        phases = (LocalPhase(),) * len(task.local_sgd)
        return LocalRule(phases, on_finish=finish if self.clip_at == "device" else None)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the result of `combine`, and the privacy budget spent since the first round."""
        made = super().aggregate(state, global_model, updates, server, key)
        releases, metrics = state["releases"] + 1, dict(made.metrics)
        if self.rounds is not None and releases > self.rounds:
            made, releases = made._replace(model=None), self.rounds
        if self.accountant != "none" and state["noise"] > 0:
            spent = epsilon_spent(self.accountant, state["noise"], state["rate"], releases, self.delta)
            metrics["epsilon"] = spent
        return made._replace(state={**made.state, "releases": releases}, metrics=metrics)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model moved by the noisy sum of clipped moves over the expected weight of the asked devices."""
        in_time = [update for update in updates if not update.staleness]
        expected = state["share"] * sum(self._weight(n) for n in server.setting.samples[server.setting.ids].tolist())
        deviation, generator = state["noise"] * self.clip, torch.Generator().manual_seed(key.word())
        longer = {}
        # starts as Gaussian noise for every number, which does not depend on the devices that take part
        total = mapped(
            lambda t: deviation * torch.randn(t.shape, generator=generator, dtype=torch.float64), global_model
        )
        for update in in_time:
            move, scale, longer[update.device] = clipped(
                update.body, global_model, self.clip if self.clip_at == "server" else math.inf
            )
            weight = self._weight(update.samples) * min(update.weight, 1.0) * scale
            total = weighted_sum([move], [weight], total)
        model = named(
            lambda name, old, sum_: not_below_0(name, old + sum_ / expected).to(old.dtype), global_model, total
        )
        return Aggregate(state, model, metrics={"clipped": longer} if self.clip_at == "server" else {})

    def _weight(self, samples: int) -> float:
        return 1.0 if self.full_weight is None else min(1.0, samples / self.full_weight)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the noise, and of clipping where the server does it."""
        clipping = _CLIP_FLOPS * updates if self.clip_at == "server" else 0.0
        return (_NOISE_FLOPS + clipping) * float(setting.cost_profile.numbers(Payload()))


def clipped(model: ModelState, start: ModelState, longest: float) -> tuple[ModelState, float, float]:
    """Return the move of a model, float64, the factor that clips it, and 1 if it was longer than `longest`, else 0.

    Source: McMahan et al. (ICLR 2018), section 2, flat clipping: a move times min(1, S / its norm).
    """
    move = moves(model, start)
    length = norm(move)
    return move, min(1.0, longest / length) if length else 1.0, float(length > longest)


PLUGINS = {"dp_fedavg": DpFedAvg}
