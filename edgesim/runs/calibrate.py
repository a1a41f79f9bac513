"""Measure the speed of this host: time SGD steps of a few networks, and fit seconds for each kind of work to them.

Beside progress and manifests, this is the only place that reads the wall clock.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgesim.config import device_profiles
from edgesim.config.device_profiles import Profile, profile_of, to_toml
from edgesim.core.arrays import Arr
from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalPhase, LocalState
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Pass, Submodel, Task
from edgesim.core.work import PRICED
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.build import model_state_of
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import run_local_sgd
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.network import cost_profile_of, model_named
from edgesim.runs.power_log import Span
from edgesim.world.clocks import fit

# Networks and the shapes of their inputs. `python -m benchmarks calibration --choose` chose them, see there.
NETWORKS = (
    "torchvision:resnet34@3x64x64",
    "torchvision:resnext50_32x4d@3x64x64",
    "torchvision:mnasnet0_5@3x64x64",
    "torchvision:mnasnet1_0@3x64x64",
    "torchvision:squeezenet1_1@3x64x64",
    "torchvision:alexnet@3x64x64",
    "lstm_char@20",
    "transformer_char",
)
QUICK = ("torchvision:mnasnet1_0@3x64x64", "torchvision:alexnet@3x64x64", "lstm_char@20")
BATCHES = (4, 16)
KINDS = tuple(kind for kind in PRICED if kind not in ("samples", "steps"))  # noise in memory takes no time to load
MOST_ERROR = 0.5  # largest median error over networks left out of the fit; above it there is no profile
MOST_RATE = 1.5  # largest plausible rate of training, in rates of a matrix product on the same threads
MOST_NOISE = 0.25  # largest median by which a second pass over a step may take longer than the fastest
MOST_WAITING = 1.1  # wall seconds for each CPU second of one thread, above which other processes were computing
LEAST_SHARE = 1e-4  # a kind that takes less of every step takes no time
_PASSES = 5  # passes over all cases, so that a busy moment spoils one of five measurements of many cases
_SQUARE = 1024  # rows and columns of the matrices
_ALWAYS = 2  # networks that are timed even after the time is over
_SMALL_LR = 1e-4  # keeps weights finite over many steps


class Clocks(NamedTuple):
    """Readings of seconds: of the wall, of this process on all CPUs together, and since 1970 as meters log them."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    date: Callable[[], float] = time.time


CLOCKS = Clocks()
CPU_CLOCKS = Clocks(wall=time.process_time)  # seconds of one thread, however many other processes compute


@dataclass(frozen=True)
class Timing:
    """Measured seconds of one SGD step of a network on a batch: of the fastest of several passes."""

    network: str  # MODEL or MODEL@SHAPE
    shape: tuple[int, ...]  # of an input
    batch: int
    amounts: Mapping[str, float]  # of the kinds of work
    seconds: float
    cpu_seconds: float
    second_s: float  # of the pass after the fastest

    @property
    def model(self) -> str:
        """The name of the network without the shape of its inputs."""
        return self.network.partition("@")[0]


class Measurement(NamedTuple):
    """Timings of steps, and the time in which they were taken."""

    timings: list[Timing]
    span: Span

    @property
    def waiting(self) -> float:
        """Wall seconds for each CPU second, in the median: above 1 if this process waited for others."""
        return float(np.median([timing.seconds / max(timing.cpu_seconds, 1e-12) for timing in self.timings]))


@dataclass(frozen=True, eq=False)
class Calibration:
    """Fitted seconds for one unit of each kind of work, and predictions of steps by fits without their network."""

    timings: Sequence[Timing]
    seconds_per: Mapping[str, float]  # unit of each kind
    left_out_s: Arr  # of each timing
    base: str | None = None  # name of the profile that the fit scales
    peak_flops_per_s: float = math.inf  # of a product of matrices on the same threads

    @property
    def measured_s(self) -> Arr:
        """Measured seconds of each timing."""
        return np.array([timing.seconds for timing in self.timings])

    @property
    def errors(self) -> Arr:
        """Predicted over measured seconds minus one, of each timing by a fit without its network."""
        errors: Arr = self.left_out_s / self.measured_s - 1.0
        return errors

    @property
    def spread(self) -> float:
        """Standard deviation of ln(measured / predicted)."""
        return fit.spread(self.measured_s, self.left_out_s)

    def profile(self, name: str, title: str, year: int, powers: Mapping[str, float] | None = None) -> Profile:
        """Return the profile of the host. `powers`: watts by quantity, such as `idle`.

        Raises ConfigError if the timings do not carry a fit: they do not grow with the FLOPs, imply an impossible rate,
        differ from pass to pass, or networks left out of the fit are predicted too badly.
        """
        again = "measure again when the host is idle"
        noise = float(np.median([timing.second_s / timing.seconds - 1.0 for timing in self.timings]))
        if noise > MOST_NOISE:
            raise ConfigError(
                f"calibrate: a second pass over the same step took {noise:.0%} longer in the median, "
                f"more than {MOST_NOISE:.0%}; {again}"
            )
        if not self.seconds_per["flops"]:
            raise ConfigError("calibrate: the timings do not grow with the FLOPs; name networks of different sizes")
        rate, error = 1.0 / self.seconds_per["flops"], float(np.median(np.abs(self.errors)))
        if rate > MOST_RATE * self.peak_flops_per_s:
            raise ConfigError(
                f"calibrate: the timings mean {rate / 1e9:.4g} GFLOP/s, but a product of matrices has "
                f"{self.peak_flops_per_s / 1e9:.4g} GFLOP/s on the same threads; {again}"
            )
        if not error <= MOST_ERROR:
            raise ConfigError(
                f"calibrate: networks that were left out are predicted with a median error of {error:.0%}, "
                f"more than {MOST_ERROR:.0%}; name more networks of different kinds, or {again}"
            )
        origin = {"source": self.source, "year": year}
        terms = {kind: _given(1e9 * seconds, "ns", origin) for kind, seconds in self.seconds_per.items() if seconds}
        watts = {key: _given(value, "W", origin) for key, value in (powers or {}).items()}
        found = {"title": title, "flops_per_s": _given(1e-9 * rate, "GFLOP/s", origin), **watts, "terms": terms}
        return profile_of(name, {**found, "spread": _given(max(self.spread, 1e-3), "", origin)})

    @property
    def source(self) -> str:
        """Origin of the numbers: steps, networks, base, processor and version of torch."""
        networks = len({timing.model for timing in self.timings})
        on = f"{platform.machine() or 'this'} host, torch {torch.__version__.partition('+')[0]}"
        scaled = f", scaled from {self.base}" if self.base else ""
        return f"edgesim calibrate, {len(self.timings)} training steps of {networks} networks{scaled}, {on}"


def _given(value: float, unit: str, origin: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), **({"unit": unit} if unit else {}), **origin}


def contribution(timings: Sequence[Timing], profile: Profile) -> str:
    """Return a CSV text for the catalogue: the profile as comments, then a row for each timing with its amounts.

    The columns are those of the measured devices in the folder benchmarks/devices.
    """
    text = io.StringIO()
    text.writelines(f"# {line}".rstrip() + "\n" for line in to_toml(profile).splitlines())
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["device", "model", "input", "batch", "trained", "seconds", "year", *KINDS])
    for each in timings:
        shape, year = "x".join(map(str, each.shape)), profile.quantities["flops_per_s"].year
        amounts = [f"{each.amounts[kind]:.12g}" for kind in KINDS]
        rows.writerow([profile.name, each.model, shape, each.batch, "all", f"{each.seconds:.6g}", year, *amounts])
    return text.getvalue()


# --- the fit -----------------------------------------------------------------------------------------------------


def calibrate(
    timings: Sequence[Timing], peak_flops_per_s: float = math.inf, base: Profile | None = None
) -> Calibration:
    """Return the fit to timings and its left-out predictions. With `base` it scales the terms of that profile.

    Raises ConfigError if there are fewer than two networks.
    """
    if len({timing.model for timing in timings}) < 2:
        given = ", ".join(dict.fromkeys(timing.model for timing in timings)) or "none"
        raise ConfigError(f"calibrate: needs at least two networks, got {given}")
    amounts, seconds = _table(timings)
    earlier = None if base is None else terms_of(base)

    def fitted(seen: Arr) -> Arr:
        return fit.seconds_per_unit(amounts[seen], seconds[seen], earlier)

    every = fitted(np.ones(len(seconds), dtype=bool))
    left_out_s = fit.left_out(amounts, [timing.model for timing in timings], fitted)
    every[(amounts * every / seconds[:, None]).max(axis=0) < LEAST_SHARE] = 0.0
    per = dict(zip(KINDS, every.tolist(), strict=True))
    return Calibration(timings, per, left_out_s, None if base is None else base.name, peak_flops_per_s)


def _table(timings: Sequence[Timing]) -> tuple[Arr, Arr]:
    amounts = np.array([[timing.amounts[kind] for kind in KINDS] for timing in timings])
    return amounts, np.array([timing.seconds for timing in timings])


def terms_of(profile: Profile) -> Arr:
    """Return a profile's seconds for one unit of each of KINDS. Raises ConfigError if it has none."""
    terms = np.array([profile.si.get(f"terms.{kind}", 0.0) for kind in KINDS])
    if not terms.any():
        raise ConfigError(f"calibrate: {profile.name} has no terms, so that it cannot be a base; choose another device")
    return terms


def nearest_base(timings: Sequence[Timing]) -> Profile:
    """Return the catalogue's profile whose terms, times one factor, predict the timings best."""
    amounts, seconds = _table(timings)

    def error(profile: Profile) -> float:
        predicted = amounts @ terms_of(profile)
        return float((np.square(predicted * fit.factor(predicted, seconds) / seconds - 1.0)).sum())

    candidates = [profile for profile in device_profiles.all() if "terms.bytes" in profile.quantities]
    return min(candidates, key=error)


# --- timing ------------------------------------------------------------------------------------------------------


def peak_rate(threads: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the FLOP/s of a product of two 1024 x 1024 matrices, the best of five."""
    best_s = math.inf
    with on_threads(threads):
        matrix = torch.ones(_SQUARE, _SQUARE)
        for _ in range(_PASSES):
            start_s = clock()
            torch.mm(matrix, matrix)
            best_s = min(best_s, clock() - start_s)
    return 2.0 * _SQUARE**3 / best_s


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Compute as in a run, but on this many threads."""
    before = torch.get_num_threads()
    try:
        with plain_torch():
            torch.set_num_threads(count)
            yield
    finally:
        torch.set_num_threads(before)


def amounts_of(cost_profile: CostProfile, batch: int) -> dict[str, float]:
    """Return the amounts of all kinds of work of one SGD step of a whole network on a batch."""
    amounts = Measured().amounts(cost_profile, Pass(), Submodel(), np.array([float(batch)]), np.ones(1))
    return {kind: float(amounts[kind][0]) if kind in amounts else 0.0 for kind in PRICED}


def time_steps(
    networks: Iterable[str],
    batches: Sequence[int],
    seconds: float,
    threads: int = 1,
    clocks: Clocks = CLOCKS,
    tell: Callable[[str], None] = lambda _: None,
) -> Measurement:
    """Time SGD steps of networks; return the fastest of several means for each network and batch size.

    `networks`: MODEL or MODEL@SHAPE, such as "torchvision:resnet18@3x64x64". `seconds` is the time for everything,
    building networks included. Two networks are always timed. Others are left out once the time is over, the largest
    first. A step that has begun is finished. `tell` gets lines of progress. Raises ConfigError for an unknown model or
    a batch of less than one sample.
    """
    if min(batches, default=0) < 1:
        raise ConfigError(f"calibrate: needs batches of at least one sample, got {list(batches)}")
    networks, cases = list(networks), list[StepCase]()
    taken: dict[int, list[Mean]] = {}
    end_s = clocks.wall() + seconds
    with on_threads(threads):
        for place, network in enumerate(networks):
            if place < _ALWAYS or clocks.wall() < end_s:
                tell(f"building {network}, {place + 1} of {len(networks)}")
                cases += cases_of(network, batches)
        cases.sort(key=lambda case: case.amounts["flops"])
        share_s = max(0.0, end_s - clocks.wall()) / (1 + _PASSES) / max(1, len(cases))
        start_s = clocks.date()
        for turn, (place, case) in itertools.product(range(_PASSES), enumerate(cases)):
            if not place:
                tell(f"timing {len(cases)} cases, {turn + 1} of {_PASSES}")
            if clocks.wall() >= end_s and (turn or place >= _ALWAYS * len(batches)):
                continue
            if not turn:
                case.steps(1)  # the first step sets up memory and kernels
            taken.setdefault(place, []).append(mean_seconds(case, share_s, clocks))
    span = Span(start_s, clocks.date())
    if left := [each for each in networks if each not in {cases[place].network for place in taken}]:
        tell(f"not timed within {seconds:g} s: {', '.join(left)}")
    timings = []
    for place, means in taken.items():
        case, (fastest, *others) = cases[place], sorted(means)
        again_s = others[0].wall_s if others else fastest.wall_s
        timings.append(Timing(case.network, case.shape, case.batch, case.amounts, *fastest, again_s))
    return Measurement(timings, span)


def rest(seconds: float, clocks: Clocks = CLOCKS) -> Span:
    """Let this host be idle for a while; return when."""
    start_s = clocks.date()
    time.sleep(seconds)
    return Span(start_s, clocks.date())


class Mean(NamedTuple):
    """Mean seconds of a step."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, eq=False)
class StepCase:
    """A network and a batch of noise, ready to train."""

    network: str
    shape: tuple[int, ...]
    batch: int
    amounts: Mapping[str, float]
    context: Context
    weights: Mapping[str, Mapping[str, Tensor]]

    def steps(self, count: int) -> None:
        """Take `count` SGD steps with the loop that every training uses."""
        sgd = LocalSGD(batch=self.batch, lr=_SMALL_LR, steps=count)
        run_local_sgd(LocalState(self.weights), sgd, LocalPhase(), self.context, self.context.key)


def cases_of(network: str, batches: Sequence[int]) -> Iterator[StepCase]:
    """Yield a network with noise of each batch size. Raises ConfigError for an unknown model or a wrong shape."""
    key = Key(0).at(Purpose.PROBE)
    model, _, text = network.partition("@")
    try:
        shape = tuple(int(size) for size in text.split("x")) if text else None
    except ValueError:
        raise ConfigError(f"calibrate: {network!r} must end with a shape such as @3x64x64") from None
    plugin = model_named(model).value
    objective = plugin.native_objective or CLASSIFICATION
    module, cost_profile = cost_profile_of(plugin, model, shape, None, key, kinds=True)
    weights, classes = model_state_of(module), cost_profile.classes
    for batch in batches:
        data = noise(cost_profile.input_shape, classes, batch, objective.labels, key)
        context = Context(
            module,
            data,
            torch.arange(batch),
            Assignment(0, 0, Task(), key, weights, None),
            cost_profile.drop_single,
            objective=objective,
        )
        yield StepCase(network, cost_profile.input_shape, batch, amounts_of(cost_profile, batch), context, weights)


def noise(shape: Sequence[int], classes: int, batch: int, labels: str, key: Key) -> Dataset:
    """Return a batch of noise: images or vectors with classes, or tokens with the tokens after them."""
    generator = torch.Generator().manual_seed(key.word())
    if labels == "tokens":
        x = torch.randint(classes, (batch, *shape), generator=generator).float()
        y = torch.randint(classes, (batch, *shape), generator=generator)
        return Dataset("noise", x, y, x, y, classes, tuple(shape), kind="tokens")
    if labels != "classes":
        raise ConfigError(f"calibrate: networks are timed on noise with classes or tokens, not with {labels}")
    channels, *size = shape
    x = torch.randn(batch, *size, channels, generator=generator)
    y = torch.randint(classes, (batch,), generator=generator)
    return Dataset("noise", x, y, x, y, classes, tuple(shape))


def mean_seconds(case: StepCase, share_s: float, clocks: Clocks) -> Mean:
    """Return the mean wall and CPU seconds of a step over bursts of doubling length until the share of time is used."""
    count, taken, passed_s = 1, 0, 0.0
    with seeded(case.context.key):  # dropout draws from torch's own stream
        cpu_s = clocks.cpu()
        while passed_s < share_s or not taken:
            start_s = clocks.wall()
            case.steps(count)
            passed_s += clocks.wall() - start_s
            taken += count
            count *= 2
    return Mean(passed_s / taken, (clocks.cpu() - cpu_s) / taken)
