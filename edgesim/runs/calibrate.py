"""Fit the speed of this host: time real SGD steps of many models and explain the times by FLOPs and layers.

Beside progress and manifests, this is the only place that reads the wall clock.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from edgesim.config.device_profiles import Profile, profile_of
from edgesim.config.plugins import find, is_outside, plugins_of
from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalPhase, LocalState
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Pass, Submodel, Task
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.build import model_state_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.network import cost_profile_of

SOURCE = "measured on this host"
_PASSES = 5  # passes over all cases, so that a busy moment spoils one of five measurements of many cases
MOST_ERROR = 0.5  # largest median error over models left out of the fit; above it there is no profile
MOST_RATE = 1.5  # largest plausible rate of a layer, in rates of a matrix product on the same thread
_SQUARE = 1024  # rows and columns of the matrices
_ALWAYS = 2  # models that are timed even after the time is over
_SMALL_LR = 1e-4  # keeps weights finite over many steps


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one SGD step on a batch."""

    steps: float = 1.0
    flops: float


@dataclass(frozen=True)
class Timing:
    """Measured seconds of one SGD step of a model."""

    model: str
    batch: int
    work: Work
    seconds: float


# Candidate explanations of the times, each a sum of kinds of work; the first has the fewest.
FORMS: Mapping[str, Sequence[str]] = {"whole step": ("steps", "flops")}


@dataclass(frozen=True)
class Fit:
    """Seconds per unit of work, by the term of a form."""

    seconds_per: Mapping[str, float]

    def seconds(self, work: Work) -> float:
        """Return the predicted seconds of one SGD step."""
        amounts = vars(work)
        return float(sum(cost * amounts[term] for term, cost in self.seconds_per.items()))


@dataclass(frozen=True)
class Residual:
    """A timing and its prediction by the fit to all other models."""

    timing: Timing
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured seconds, minus one."""
        return self.predicted_s / self.timing.seconds - 1.0


@dataclass(frozen=True)
class Calibration:
    """Fits of every form to all timings, and the leave-one-out residuals that choose the best form."""

    fits: Mapping[str, Fit]
    residuals: Mapping[str, Sequence[Residual]]
    peak_flops_per_s: float = math.inf  # of a product of matrices on this host, one thread

    @property
    def best(self) -> str:
        """The form with the smallest median error; of equal forms the first, which has the fewest terms.

        A form is left out if FLOPs of some kind seem to take no time, or less than is possible, as with few models or
        on a busy host: networks of such layers would be free.
        """
        most = MOST_RATE * self.peak_flops_per_s
        plausible = [
            form for form in self.residuals if all(math.isfinite(rate) and rate <= most for rate in self._rates(form))
        ]
        return min(plausible, key=self.median_error, default=next(iter(FORMS)))

    def _rates(self, form: str) -> list[float]:
        """Return the rates of a form in FLOP/s, infinite where FLOPs seem to take no time."""
        costs = [self.fits[form].seconds_per[term] for term in FORMS[form] if term == "flops"]
        return [1.0 / cost if cost > 0 else math.inf for cost in costs]

    def median_error(self, form: str) -> float:
        """Return the median of the absolute relative errors of a form when each model is left out in turn."""
        return float(np.median([abs(residual.error) for residual in self.residuals[form]]))

    def ratios(self, form: str) -> tuple[float, float]:
        """Return the smallest and largest ratio of predicted to measured seconds over models left out of the fit."""
        found = [1.0 + residual.error for residual in self.residuals[form]]
        return min(found), max(found)

    def worst(self, form: str) -> Residual:
        """Return the residual with the largest absolute relative error."""
        return max(self.residuals[form], key=lambda residual: abs(residual.error))

    def profile(self, name: str, title: str, year: int) -> Profile:
        """Return the profile of the host: the whole-step fit, and the terms of the best form.

        Raises ConfigError if the timings do not grow with the FLOPs, imply an impossible rate, or predict models left
        out of the fit too badly.
        """
        cost, origin = self.fits[self.best].seconds_per, {"source": SOURCE, "year": year}
        terms = {term: {"value": float(f"{1e9 * s:.4g}"), "unit": "ns", **origin} for term, s in cost.items() if s > 0}
        found: dict[str, Any] = {"title": title, "terms": terms}
        if "flops" in terms:
            found["flops_per_s"] = {"value": float(f"{1e-9 / cost['flops']:.4g}"), "unit": "GFLOP/s", **origin}
        if "flops_per_s" not in found:
            raise ConfigError("calibrate: the timings do not grow with the FLOPs; name models of more different sizes")
        rate, error = self._rates(next(iter(FORMS)))[0], self.median_error(self.best)
        more = "name more models of different kinds, or measure again when the host is idle"
        if rate > MOST_RATE * self.peak_flops_per_s:
            raise ConfigError(
                f"calibrate: the timings mean {rate / 1e9:.4g} GFLOP/s, but a product of matrices has "
                f"{self.peak_flops_per_s / 1e9:.4g} GFLOP/s on one thread; {more}"
            )
        if not error <= MOST_ERROR:
            raise ConfigError(
                f"calibrate: models that were left out are predicted with a median error of {error:.0%}, "
                f"more than {MOST_ERROR:.0%}; {more}"
            )
        return profile_of(name, found)


def work_of(cost_profile: CostProfile, batch: int) -> Work:
    """Return the work of one SGD step on a batch of the whole model."""
    flops = Measured().flops(cost_profile, Pass(), Submodel(), np.array([float(batch)]), np.ones(1))
    return Work(flops=float(flops[0]))


def fit(timings: Sequence[Timing], form: str) -> Fit:
    """Return the non-negative costs of a form's terms with the least squares of the relative errors."""
    terms = list(FORMS[form])
    measured_s = np.array([timing.seconds for timing in timings])
    relative = np.array([[vars(timing.work)[term] for term in terms] for timing in timings]) / measured_s[:, None]
    scale = np.maximum(relative.max(axis=0), np.finfo(float).tiny)  # bytes and layers differ by orders of magnitude
    costs, _ = nnls(relative / scale, np.ones(len(timings)))
    return Fit(dict(zip(terms, (costs / scale).tolist(), strict=True)))


def leave_one_out(timings: Sequence[Timing], form: str) -> list[Residual]:
    """Return every timing with the prediction of a fit without the timings of its model."""
    residuals = []
    for model in dict.fromkeys(timing.model for timing in timings):
        own = [timing for timing in timings if timing.model == model]
        fitted = fit([timing for timing in timings if timing.model != model], form)
        residuals += [Residual(timing, fitted.seconds(timing.work)) for timing in own]
    return residuals


def calibrate(timings: Sequence[Timing], peak_flops_per_s: float = math.inf) -> Calibration:
    """Return the fits of all forms and their residuals. Raises ConfigError if there are fewer than two models."""
    models = {timing.model for timing in timings}
    if len(models) < 2:
        raise ConfigError(f"calibrate: needs at least two models, got {', '.join(models) or 'none'}")
    return Calibration(
        {form: fit(timings, form) for form in FORMS},
        {form: leave_one_out(timings, form) for form in FORMS},
        peak_flops_per_s,
    )


def peak_rate(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the FLOP/s of a product of two 1024 x 1024 matrices on one thread, the best of five."""
    best_s = math.inf
    with plain_torch():
        matrix = torch.ones(_SQUARE, _SQUARE)
        for _ in range(_PASSES):
            start_s = clock()
            torch.mm(matrix, matrix)
            best_s = min(best_s, clock() - start_s)
    return 2.0 * _SQUARE**3 / best_s


def model_names() -> tuple[str, ...]:
    """Return the models that edgesim ships for classes, without families, whose names need a member."""
    shipped = [name for name in plugins_of("model") if not name.endswith(":")]
    return tuple(name for name in shipped if _kind_of(find("model", name)[0]) == "classes")


def time_steps(
    models: Iterable[str],
    batches: Sequence[int],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Timing]:
    """Time SGD steps of models on one thread; return the smallest of several means for each model and batch size.

    `seconds` is the time for everything, building models included. Two models are always timed. Others are left out
    once the time is over, the largest first. A step that has begun is finished. `tell` gets lines of progress.
    Raises ConfigError for an unknown model or a batch of less than one sample.
    """
    if min(batches, default=0) < 1:
        raise ConfigError(f"calibrate: needs batches of at least one sample, got {list(batches)}")
    models, cases, best = list(models), list[_Case](), dict[int, float]()
    end_s = clock() + seconds
    with plain_torch():
        for place, model in enumerate(models):
            if place < _ALWAYS or clock() < end_s:
                tell(f"building {model}, {place + 1} of {len(models)}")
                cases += _cases(model, batches)
        cases.sort(key=lambda case: case.work.flops)
        share_s = max(0.0, end_s - clock()) / (1 + _PASSES) / max(1, len(cases))
        for turn, (place, case) in itertools.product(range(_PASSES), enumerate(cases)):
            if not place:
                tell(f"timing {len(cases)} cases, {turn + 1} of {_PASSES}")
            if clock() >= end_s and (turn or place >= _ALWAYS * len(batches)):
                continue
            if not turn:
                case.steps(1)  # the first step sets up memory and kernels
            best[place] = min(best.get(place, math.inf), _mean_seconds(case, share_s, clock))
    timed = [(case, best[place]) for place, case in enumerate(cases) if place in best]
    if left := [model for model in models if model not in {case.model for case, _ in timed}]:
        tell(f"not timed within {seconds:g} s: {', '.join(left)}")
    return [Timing(case.model, case.batch, case.work, taken_s) for case, taken_s in timed]


@dataclass(frozen=True, eq=False)
class _Case:
    """A model and a batch of noise, ready to train."""

    model: str
    batch: int
    work: Work
    context: Context
    weights: Mapping[str, Mapping[str, Tensor]]

    def steps(self, count: int) -> None:
        """Take `count` SGD steps with the loop that every training uses."""
        sgd = LocalSGD(batch=self.batch, lr=_SMALL_LR, steps=count)
        run_local_sgd(LocalState(self.weights), sgd, LocalPhase(), self.context, self.context.key)


def _cases(model: str, batches: Sequence[int]) -> Iterator[_Case]:
    key = Key(0).at(Purpose.PROBE)
    if is_outside("model", model):
        raise ConfigError(f"calibrate: --models takes models that edgesim ships, whose inputs it knows, got {model}")
    plugin, arguments = find("model", model)
    if (kind := _kind_of(plugin)) != "classes":
        raise ConfigError(f"calibrate: models are timed on noise with classes, {model} is for {kind}")
    module, cost_profile = cost_profile_of(plugin(**arguments), model, None, None, key)
    weights = model_state_of(module)
    channels, *size = cost_profile.input_shape
    for batch in batches:
        generator = torch.Generator().manual_seed(key.word())
        x = torch.randn(batch, *size, channels, generator=generator)
        y = torch.randint(cost_profile.classes, (batch,), generator=generator)
        noise = Dataset("noise", x, y, x, y, cost_profile.classes, cost_profile.input_shape)
        assignment = Assignment(0, 0, Task(), key, weights, None)
        context = Context(module, noise, torch.arange(batch), assignment, cost_profile.drop_single)
        yield _Case(model, batch, work_of(cost_profile, batch), context, weights)


def _kind_of(plugin: Any) -> str:
    """Return the kind of labels that a model is for."""
    kind: str = plugin.native_objective.labels
    return kind


def _mean_seconds(case: _Case, share_s: float, clock: Callable[[], float]) -> float:
    """Return the mean seconds of a step over bursts of doubling length until the share of time is used."""
    count, taken, passed_s = 1, 0, 0.0
    with seeded(case.context.key):  # dropout draws from torch's own stream
        while passed_s < share_s or not taken:
            start_s = clock()
            case.steps(count)
            passed_s += clock() - start_s
            taken += count
            count *= 2
    return passed_s / taken
