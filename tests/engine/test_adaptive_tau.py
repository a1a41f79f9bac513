"""Adaptive tau: its bound and its costs by hand, and its choices on quadratic losses against a grid of fixed tau."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from edgesim.core.controller import Choice, ClosedRound, RoundHistory
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.engine.controllers.adaptive_tau import AdaptiveTau, costs_of, drift, loss_bound
from edgesim.runs.simulation import check
from tests.plugins.one_number import scenario


def closed(tau: int, seconds: float, compute_s: float, **metrics: float) -> ClosedRound:
    """Return a round of two devices at 1 W idle, which compute at 3 W more and send 800 bytes together.

    The estimates add two steps to these seconds.
    """
    estimates_s = 2 * compute_s / tau
    seconds, compute_s = seconds + estimates_s, compute_s + estimates_s
    idle_j, compute_j = 2.0 * seconds, 2 * 3.0 * compute_s
    return ClosedRound(
        Choice(local_steps=tau), seconds, idle_j + compute_j + 4.0, idle_j, 0.0, 800, 0.0, 2, 2, 0, compute_s,
        compute_j, 0.0, metrics,
    )  # fmt: skip


class _Setting:
    training = Training(lr=0.1)


def history(newest: ClosedRound, left_s: float, spent_s: float) -> RoundHistory:
    """Return the history after one round, with this budget of seconds."""
    budget = {"sim_time": spent_s}, {"sim_time": left_s}
    return RoundHistory(_Setting(), (newest,), spent_s, *budget, None)  # type: ignore[arg-type]


def test_the_bound_by_hand() -> None:
    """With eta = 0.5, beta = 2, delta = 3: h(2) = 1.5 (2^2 - 1) - 0.5 x 3 x 2 = 1.5; rho h = 1.5 x 0.4 = 0.6.

    With phi = 0.1 and T = 50 the first term is 0.02 / 0.1 = 0.2, and G = 0.2 + sqrt(0.04 + 0.6 / 0.1) + 0.6.
    """
    assert drift(1, 0.5, 2.0, 3.0) == pytest.approx(0.0, abs=1e-15)
    assert drift(2, 0.5, 2.0, 3.0) == pytest.approx(1.5, rel=1e-12)
    found = loss_bound(2, 1 / 50, 0.5, 0.1, 0.4, 2.0, 3.0)
    assert found == pytest.approx(0.2 + sqrt(0.04 + 6.0) + 0.6, rel=1e-12)
    assert drift(10**6, 0.5, 2.0, 3.0) == inf
    assert drift(5, 0.5, 0.0, 3.0) == 0.0


def test_costs_by_hand() -> None:
    """Of 12 s 6 are computing, 4 of them steps: 1 s a step and 8 s.

    Of 64 J 36 are computing and 12 idle meanwhile, for six steps: 8 J a step and 32 J.
    """
    newest = closed(4, 10.0, 4.0)
    assert (newest.seconds, newest.compute_s, newest.joules) == (12.0, 6.0, 64.0)
    assert costs_of(newest, "sim_time", 4) == (1.0, 8.0)
    assert costs_of(newest, "energy", 4) == (8.0, 32.0)
    assert costs_of(newest, "bytes", 4) == (0.0, 800.0)


def test_the_first_round_and_a_round_without_updates() -> None:
    rule = AdaptiveTau()
    assert rule.adapt(history(closed(1, 7.0, 1.0), 93.0, 7.0)._replace(rounds=())) == Choice(local_steps=1)
    assert rule.adapt(history(closed(6, 7.0, 1.0), 93.0, 7.0)) == Choice(local_steps=6)


def test_tau_grows_at_most_by_gamma_and_shrinks_to_what_is_left() -> None:
    """Without drift more steps are always better, as they share the 8 s of the rest."""
    still = {"rho": 1.0, "beta": 2.0, "delta": 0.0}
    rule = AdaptiveTau(gamma=3, most=50)
    assert rule.adapt(history(closed(4, 10.0, 4.0, **still), 990.0, 10.0)).local_steps == 12
    assert rule.adapt(history(closed(40, 46.0, 40.0, **still), 990.0, 10.0)).local_steps == 50
    assert rule.adapt(history(closed(4, 10.0, 4.0, **still), 15.5, 984.5)).local_steps == 7


def test_it_is_the_smallest_of_all_bounds() -> None:
    metrics = {"rho": 2.0, "beta": 1.5, "delta": 0.7}
    found = AdaptiveTau(gamma=30).adapt(history(closed(2, 12.0, 2.0, **metrics), 488.0, 12.0)).local_steps
    bounds = []
    for tau in range(1, 61):
        steps = (500 - 12 - 1) * tau / (tau + 12)
        h = 0.7 / 1.5 * (1.15**tau - 1) - 0.1 * 0.7 * tau
        a, b = 1 / (2 * 0.1 * 0.025 * steps), 2 * h
        bounds.append(a + np.sqrt(a * a + b / (0.1 * 0.025 * tau)) + b)
    assert found == 1 + int(np.argmin(bounds))
    assert 1 < found < 60


def final_gap(centres: np.ndarray, curvatures: np.ndarray, rule: AdaptiveTau | None, tau: int, rest_s: float) -> float:
    """Run gradient descent on F_i = c_i |w - m_i|^2 / 2 until 400 s are spent; return F(w) - F*, of a mean over i.

    A step takes 1 s and an aggregation `rest_s`. rho, beta and delta are those of the definitions, without edgesim.
    """
    eta, budget_s, spent_s = 0.1, 400.0, 0.0
    w, best = np.zeros(centres.shape[1]), (curvatures[:, None] * centres).sum(0) / curvatures.sum()

    def losses(at: np.ndarray) -> Any:
        return 0.5 * curvatures * ((at - centres) ** 2).sum(1)

    def gradients(at: np.ndarray) -> Any:
        return curvatures[:, None] * (at - centres)

    while spent_s + tau + rest_s <= budget_s:
        local = np.tile(w, (len(centres), 1))
        for _ in range(tau):
            local = local - eta * gradients(local)
        spent_s += tau + rest_s
        if rule is not None:
            spent_s += 2  # for the estimates
            moved = np.maximum(np.linalg.norm(local - w, axis=1), 1e-300)
            g = gradients(w)
            metrics = {
                "rho": float((np.abs(losses(local) - losses(w)) / moved).mean()),
                "beta": float((np.linalg.norm(gradients(local) - g, axis=1) / moved).mean()),
                "delta": float(np.linalg.norm(g - g.mean(0), axis=1).mean()),
            }
            newest = closed(tau, tau + rest_s, float(tau), **metrics)
            tau = rule.adapt(history(newest, budget_s - spent_s, spent_s)).local_steps or 1
        w = local.mean(0)
    return float(losses(w).mean() - losses(best).mean())


@pytest.mark.parametrize(("spread", "rest_s"), [(0.0, 10.0), (0.0, 0.5), (0.3, 10.0), (1.0, 10.0), (1.0, 0.5)])
def test_on_quadratic_losses_it_is_as_good_as_the_best_fixed_tau_but_for_a_margin(spread: float, rest_s: float) -> None:
    """Five devices in ten dimensions; the margin is 5 % of the first gap, as in the loss curves of the paper."""
    rng = np.random.default_rng(1)
    centres = 1.0 + spread * rng.normal(size=(5, 10))
    curvatures = 1.0 + spread * rng.random(5)
    grid = {tau: final_gap(centres, curvatures, None, tau, rest_s) for tau in (1, 2, 3, 5, 10, 20, 30, 50, 100)}
    first = final_gap(centres, curvatures, None, 1, 1e9)
    found = final_gap(centres, curvatures, AdaptiveTau(), 1, rest_s)

    assert found <= min(grid.values()) + 0.05 * first


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"stop": {"rounds": 2}},
            "controller.name: adaptive_tau needs a budget: give stop one of sim_time, energy",
        ),
        ({"stop": {"sim_time": 9.0, "device_energy": 9.0}, "energy": "power"}, "stop.device_energy: adaptive_tau has"),
        ({"training": {"optimizer": "adam"}}, "training.optimizer: must be 'sgd'"),
        ({"backend": "null"}, "backend.name: adaptive_tau adapts to training results, which null does not have"),
    ],
)
def test_runs_that_do_not_fit_are_refused(changes: dict[str, object], says: str) -> None:
    given = {"stop": {"sim_time": 9.0}, "backend": "serial", "controller": "adaptive_tau", **changes}
    if given.get("energy") == "power":
        given["energy"] = {"name": "power", "idle": 1.0, "busy": 2.0}
    with pytest.raises(ConfigError, match=says):
        check(scenario([1, 1], **given))
