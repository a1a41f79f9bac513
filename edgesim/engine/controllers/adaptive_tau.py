"""Adaptive tau: the local steps that minimise a bound of the loss under a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1, inf, log1p, sqrt
from typing import ClassVar

from edgesim.core.controller import (
    Choice,
    ChoiceField,
    ClosedRound,
    Controller,
    ResultKind,
    RoundHistory,
    check_budgets,
)
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.view import Setting

ESTIMATES = 2  # steps whose work the gradients of a device's estimates are
_LARGEST = 700.0  # exponent: exp of more is no number


@dataclass(frozen=True, kw_only=True)
class AdaptiveTau(Controller):
    """Take the local steps tau between aggregations that promise the lowest loss once the budget is spent.

    After each round tau minimises G(tau) = a / (2 eta `phi`) + sqrt(a^2 / (4 eta^2 `phi`^2) + rho h(tau) / (eta `phi`
    tau)) + rho h(tau). Here a = max over budgets of (c tau + b) / (R' tau), for a cost c of a local step, a cost b of
    the rest of a round, and R' = R - b - c of the budget R. The bound of the drift from centralised training is h(tau)
    = delta / beta ((eta beta + 1)^tau - 1) - eta delta tau. The first round has tau = 1. The search goes from 1 to
    `gamma` times the last tau, at most `most`. At the end tau falls so that the last round fits into the budget.

    Devices estimate rho, beta and delta, which costs them FLOPs and bytes: `edgesim.methods.estimated.Estimated`. The
    costs c and b are those of the newest round. A step costs its share of the longest computation of the round, and for
    energy its share of the joules of computing and of idle power meanwhile. The estimates count as two steps that
    belong to b. Bytes are spent by aggregations alone.
    Source: Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems" (JSAC 37(6),
    2019), algorithm 2, theorem 2 and section V. The defaults were not confirmed against it.
    """

    sets: ClassVar[frozenset[ChoiceField]] = frozenset({"local_steps"})
    needs: ClassVar[frozenset[ResultKind]] = frozenset({"estimates"})

    phi: PositiveFactor = 0.025  # control parameter; a larger one trusts more local steps less
    gamma: Count = 10  # factor of the search range from one round to the next
    most: Count = 100  # largest number of local steps

    def check(self, setting: Setting, budgets: Mapping[str, float]) -> None:
        """Raise ConfigError unless the run has a budget of time, energy or bytes alone, and trains by SGD."""
        check_budgets("adaptive_tau", budgets, ("sim_time", "energy", "bytes"))
        setting.training.check_sgd("the bound that adaptive_tau minimises is one of gradient descent")

    def adapt(self, history: RoundHistory) -> Choice:
        """Return the next local steps: 1 before the first round, and the same again after a round without updates."""
        if not history.rounds:
            return Choice(local_steps=1)
        newest = history.rounds[-1]
        tau = newest.choice.local_steps or 1
        if "delta" not in newest.metrics:
            return Choice(local_steps=tau)
        costs = {key: costs_of(newest, key, tau) for key in history.left}
        eta = history.setting.training.lr_at(len(history.rounds))
        best, least = 1, inf
        for each in range(1, min(self.gamma * tau, self.most) + 1):
            share = 0.0
            for key, (step, rest) in costs.items():
                usable = history.spent[key] + history.left[key] - rest - step
                share = max(share, (step * each + rest) / (usable * each) if usable > 0 else inf)
            metrics = newest.metrics
            bound = loss_bound(each, share, eta, self.phi, metrics["rho"], metrics["beta"], metrics["delta"])
            if bound < least:
                best, least = each, bound
        for key, (step, rest) in costs.items():
            if step > 0:
                best = max(1, min(best, int((history.left[key] - rest) / step + 1e-9)))
        return Choice(local_steps=best)


def costs_of(closed: ClosedRound, budget: str, tau: int) -> tuple[float, float]:
    """Return the costs of a local step and of the rest of a round of `tau` steps, estimates among the rest."""
    if budget == "bytes":
        return 0.0, float(closed.bytes)
    if budget == "sim_time":
        step, whole = closed.compute_s / (tau + ESTIMATES), closed.seconds
    else:
        share = closed.compute_s / closed.seconds if closed.seconds else 0.0
        step = (closed.compute_j + closed.idle_joules * min(1.0, share)) / (tau + ESTIMATES)
        whole = closed.joules
    return step, max(0.0, whole - step * tau)


def drift(tau: int, eta: float, beta: float, delta: float) -> float:
    """Return h(tau), the bound of the distance from centralised gradient descent after `tau` local steps."""
    if beta <= 0:
        return 0.0
    exponent = tau * log1p(eta * beta)
    return inf if exponent > _LARGEST else max(0.0, delta / beta * expm1(exponent) - eta * delta * tau)


def loss_bound(tau: int, share: float, eta: float, phi: float, rho: float, beta: float, delta: float) -> float:
    """Return G(tau). `share`: of the budget that each step takes, 1 / T for T steps in all."""
    ahead, apart = share / (2.0 * eta * phi), rho * drift(tau, eta, beta, delta)
    return ahead + sqrt(ahead * ahead + apart / (eta * phi * tau)) + apart


PLUGINS = {"adaptive_tau": AdaptiveTau}
