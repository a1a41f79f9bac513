"""Fits of the measured devices, and their errors on steps whose network or family of networks they did not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from benchmarks.devices.measured import OPERATIONS_OF_RESNET50, Steps, candidates, resnet50, steps, table
from edgesim.core.arrays import Arr
from edgesim.core.work import interval_factor
from edgesim.world.clocks import fit

NETWORK = ("flops", "bytes", "conv_bytes", "depthwise_flops", "depthwise_channels", "forward_pointwise_flops")
KINDS_OF = {
    "raspberry_pi_4": (*NETWORK, "operations", "update_bytes", "samples"),  # a sample: a JPEG image is loaded
    "raspberry_pi_5": (*NETWORK, "operations", "update_bytes", "samples"),
    "x86_thread": (*NETWORK, "operations", "update_bytes"),
    "xiaomi_sd855": ("flops", "bytes", "operations", "update_bytes"),  # five networks carry no more
}
JETSON_MISSING_J = 28.8  # that the measured joules of a client lack in each round, see README.md
GPUS = ("v100", "a40", "p100", "rtx_6000")
RESNET50_FLOPS = 388785242112 / 16  # of training on a sample of 3x224x224, see work.csv
RESNET18_FLOPS = 1032110000000 / 4750  # of training on a sample of 3x32x32, with group norm, as edgesim counts them
LINPACK = {"raspberry_pi_4": 11.433e9, "raspberry_pi_5": 37.888e9, "xiaomi_sd855": 6.4e9}  # FLOP/s, before this fit


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predicted beside measured seconds of a device. `group` is what each prediction was made without."""

    device: str
    protocol: str
    measured: Arr
    predicted: Arr
    groups: list[str] = field(repr=False)

    @property
    def errors(self) -> Arr:
        """|predicted / measured - 1| of each row."""
        return np.abs(self.predicted / self.measured - 1)

    @property
    def mean(self) -> float:
        """Mean error, a share."""
        return float(self.errors.mean())

    @property
    def within_25(self) -> float:
        """Share of rows within 25 %."""
        return float((self.errors <= 0.25).mean())

    @property
    def rank(self) -> float:
        """Spearman's rank correlation: whether networks come in the right order."""
        several = len(set(self.measured)) > 1 and len(set(self.predicted)) > 1
        return float(spearmanr(self.measured, self.predicted).statistic) if several else float("nan")

    @property
    def spread(self) -> float:
        """Standard deviation of ln(measured / predicted)."""
        return fit.spread(self.measured, self.predicted)

    @property
    def width(self) -> float:
        """Factor of a 90 % interval."""
        return interval_factor(self.spread)

    @property
    def covered(self) -> float:
        """Share of rows inside of a 90 % interval whose width comes from other groups."""
        return fit.covered(self.measured, self.predicted, self.groups)

    def by_group(self) -> pd.DataFrame:
        """Rows, mean error and worst factor of each group, largest error first."""
        ratio = np.exp(np.abs(np.log(self.predicted / self.measured)))
        frame = pd.DataFrame({"group": self.groups, "error": self.errors, "factor": ratio})
        found = frame.groupby("group").agg(rows=("error", "size"), mean=("error", "mean"), worst=("factor", "max"))
        return found.sort_values("mean", ascending=False)


def cost_of_operations(device: str) -> float | None:
    """Seconds of an operation where steps were too large to show it; None where they do show it.

    At 224x224 and batch 16 operations are 1 % of a step of a Raspberry Pi and their fitted cost is 0. So it is that of
    the x86 thread times the ratio of both devices' seconds a FLOP.
    """
    if device != "raspberry_pi_4":
        return None
    flops = fit.seconds_per_unit(steps(device).amounts(*KINDS_OF[device]), steps(device).seconds)[0]
    x86 = terms("x86_thread")
    return x86["operations"] * float(flops) / x86["flops"]


def coefficients(of: Steps, kinds: tuple[str, ...], operation_s: float | None = None) -> Arr:
    """Fit of steps on their own. With `operation_s` the cost of an operation is given and the others are fitted."""
    amounts, seconds = of.amounts(*kinds), of.seconds
    if operation_s is None:
        return fit.seconds_per_unit(amounts, seconds)
    place = kinds.index("operations")
    others = np.delete(amounts, place, axis=1)
    return np.insert(fit.seconds_per_unit(others, seconds - operation_s * amounts[:, place]), place, operation_s)


@cache
def terms(device: str) -> Mapping[str, float]:
    """Seconds for one unit of each kind, fitted on all rows of the device."""
    kinds = KINDS_OF[device]
    if device == "raspberry_pi_5":
        found = fit.seconds_per_unit(
            steps(device).amounts(*kinds), steps(device).seconds, np.array(list(terms("raspberry_pi_4").values()))
        )
    else:
        found = coefficients(steps(device), kinds, cost_of_operations(device))
    return dict(zip(kinds, map(float, found), strict=True))


@cache
def left_out(device: str, column: str, pull: float = fit.PULL) -> Predictions:
    """Predictions of a device's rows by fits without their group: column "family", "model", "input" or "batch".

    The Pi 5 builds on the terms of the Pi 4, fitted without that group either.
    """
    of, kinds = steps(device), KINDS_OF[device]
    groups = of.groups(column)
    first = steps("raspberry_pi_4")
    operation_s = cost_of_operations("raspberry_pi_4") if device.startswith("raspberry") else None

    def fitted(seen: Arr) -> Arr:
        part = of.where(seen)
        if device != "raspberry_pi_5":
            return coefficients(part, kinds, operation_s)
        unseen = set(np.array(groups)[~seen])
        earlier = coefficients(first.where(~first.rows[column].isin(unseen)), kinds, operation_s)
        return fit.seconds_per_unit(part.amounts(*kinds), part.seconds, earlier, pull)

    return Predictions(
        device, f"without its {column}", of.seconds, fit.left_out(of.amounts(*kinds), groups, fitted), groups
    )


@cache
def alone(device: str = "raspberry_pi_5") -> Predictions:
    """The same by family from the device's own rows alone."""
    of, kinds = steps(device), KINDS_OF[device]
    amounts, groups = of.amounts(*kinds), of.groups("family")
    found = fit.left_out(amounts, groups, lambda seen: fit.seconds_per_unit(amounts[seen], of.seconds[seen]))
    return Predictions(device, "without its family, own rows alone", of.seconds, found, groups)


@cache
def chosen_inside(device: str, count: int = 6) -> Predictions:
    """By family, with kinds chosen among all columns of work.csv inside of each fit, so that the choice is honest."""
    of = steps(device)
    groups, every = of.groups("family"), of.amounts(*candidates(), "steps")

    def fitted(seen: Arr) -> Arr:
        kinds = fit.chosen_kinds(every[seen], of.seconds[seen], count)
        found = np.zeros(every.shape[1])
        found[kinds] = fit.seconds_per_unit(every[seen][:, kinds], of.seconds[seen])
        return found

    protocol = f"without its family, {count} of {every.shape[1]} kinds chosen inside"
    return Predictions(device, protocol, of.seconds, fit.left_out(every, groups, fitted), groups)


class FewRows(NamedTuple):
    """Another board from a few measured networks."""

    names: list[str]  # measured rows
    rest: Predictions
    one_factor: Predictions


@cache
def three_rows(trained: str = "all|head", count: int = 3) -> FewRows:
    """The Pi 5 from the Pi 4's terms and `count` of its rows, which are D-optimal in their amounts.

    `trained` restricts the choice to networks trained whole ("all") or by their head.
    """
    device = "raspberry_pi_5"
    of, kinds, earlier = steps(device), KINDS_OF[device], np.array([*terms("raspberry_pi_4").values()])
    allowed = np.flatnonzero(of.rows["trained"].isin(trained.split("|")))
    amounts, seconds = of.amounts(*kinds), of.seconds
    rows = allowed[fit.most_informative(amounts[allowed], earlier, count)]
    rest = np.setdiff1d(np.arange(len(seconds)), rows)
    groups = list(np.array(of.groups("family"))[rest])
    own = amounts[rest] @ fit.seconds_per_unit(amounts[rows], seconds[rows], earlier)
    scaled = amounts[rest] @ earlier * fit.factor(amounts[rows] @ earlier, seconds[rows])
    names = [f"{row.model} ({row.trained})" for row in of.rows.iloc[rows].itertuples()]
    return FewRows(
        names,
        Predictions(device, f"Pi 4's terms and {count} rows of the Pi 5", seconds[rest], own, groups),
        Predictions(device, f"Pi 4's terms and one factor from {count} rows", seconds[rest], scaled, groups),
    )


@cache
def any_three() -> Arr:
    """Mean errors of the Pi 5's other rows after any three networks trained whole, for comparison with the rule."""
    device = "raspberry_pi_5"
    of, kinds, earlier = steps(device), KINDS_OF[device], np.array([*terms("raspberry_pi_4").values()])
    amounts, seconds = of.amounts(*kinds), of.seconds
    errors = []
    for rows in combinations(np.flatnonzero(of.rows["trained"] == "all"), 3):
        rest = np.setdiff1d(np.arange(len(seconds)), rows)
        found = amounts[rest] @ fit.seconds_per_unit(amounts[list(rows)], seconds[list(rows)], earlier)
        errors.append(float(np.abs(found / seconds[rest] - 1).mean()))
    return np.array(errors)


@cache
def as_before(device: str) -> Predictions:
    """FLOPs over the one rate that the catalogue's entry had before its terms were measured."""
    of = steps(device)
    return Predictions(
        device,
        "FLOPs over one rate, estimated",
        of.seconds,
        of.rows["flops"].to_numpy(float) / LINPACK[device],
        of.groups("family"),
    )


@cache
def from_resnet50(device: str) -> Predictions:
    """FLOPs and operations fitted on ResNet50 alone, as for GPUs, for all other networks."""
    of = steps(device)
    amounts, own = of.amounts("flops", "operations"), (of.rows["model"] == "resnet50").to_numpy()
    per_unit = fit.seconds_per_unit(amounts[own], of.seconds[own])
    groups = list(np.array(of.groups("family"))[~own])
    return Predictions(device, "FLOPs and operations of ResNet50", of.seconds[~own], amounts[~own] @ per_unit, groups)


def gpu_amounts(batch: Arr) -> Arr:
    """FLOPs and operations of a step of ResNet50."""
    return np.stack([batch * RESNET50_FLOPS, np.full(len(batch), OPERATIONS_OF_RESNET50)], axis=1).astype(float)


@cache
def gpu(device: str, limit_w: int | None = None) -> tuple[Predictions, Predictions]:
    """ResNet50 on a GPU without its batch at a power limit (by default the largest): seconds a step, and watts.

    Watts are the mean of the other batches at that limit.
    """
    rows = resnet50(device.replace("_", ""))
    rows = rows[rows["power_limit_w"] == (limit_w or rows["power_limit_w"].max())]
    batch, seconds, watts = (rows[name].to_numpy(float) for name in ("batch", "seconds", "watts"))
    amounts, groups = gpu_amounts(batch), [f"{size:g}" for size in batch]
    found = fit.left_out(amounts, groups, lambda seen: fit.seconds_per_unit(amounts[seen], seconds[seen]))
    power = (watts.sum() - watts) / (len(watts) - 1)
    protocol = "ResNet50 without its batch"
    return Predictions(device, protocol, seconds, found, groups), Predictions(device, protocol, watts, power, groups)


@cache
def gpu_terms(device: str) -> tuple[Mapping[str, float], float]:
    """Seconds a FLOP and an operation of ResNet50 at the largest power limit, and mean watts."""
    rows = resnet50(device.replace("_", ""))
    rows = rows[rows["power_limit_w"] == rows["power_limit_w"].max()]
    found = fit.seconds_per_unit(gpu_amounts(rows["batch"].to_numpy(float)), rows["seconds"].to_numpy(float))
    return dict(zip(("flops", "operations"), map(float, found), strict=True)), float(rows["watts"].mean())


def jetson(epochs: int) -> tuple[Predictions, Predictions]:
    """Rounds of ten Jetsons with so many local epochs, from rounds of other lengths: seconds, and joules of a client.

    Seconds are a fixed part and a part an epoch, from both other lengths. Joules are proportional to epochs: those of
    3 and 5 come from rounds of one epoch alone.
    """
    device = "jetson_agx_xavier"
    rounds, joules = table("jetson_rounds"), table("jetson_joules").query("role == 'client'")

    def predicted(rows: pd.DataFrame, measured: Arr, amounts: Arr, seen: Arr, what: str) -> Predictions:
        own = (rows["local_epochs"] == epochs).to_numpy()
        per_unit = fit.seconds_per_unit(amounts[seen], measured[seen])
        return Predictions(device, what, measured[own], amounts[own] @ per_unit, rows[own]["strategy"].tolist())

    length = rounds["local_epochs"].to_numpy(float)
    parts = np.stack([np.ones(len(length)), length], axis=1)
    of_clients = joules["local_epochs"].to_numpy(float)
    seen = of_clients != 1 if epochs == 1 else of_clients == 1
    seconds = rounds["seconds_per_round"].to_numpy(float)
    full = joules["joules_per_round"].to_numpy(float) + JETSON_MISSING_J
    return (
        predicted(rounds, seconds, parts, length != epochs, "from both other lengths"),
        predicted(joules, full, of_clients[:, None], seen, "from one epoch"),
    )


def jetson_terms() -> Mapping[str, float]:
    """Seconds a FLOP of ResNet18: the seconds of an epoch of all rounds over the FLOPs of the client that has most."""
    rounds, clients = table("jetson_rounds"), table("jetson_clients")
    parts = np.stack([np.ones(len(rounds)), rounds["local_epochs"]], axis=1)
    epoch_s = fit.seconds_per_unit(parts, rounds["seconds_per_round"].to_numpy(float))[1]
    return {"flops": float(epoch_s / clients["trained_samples"].max() / RESNET18_FLOPS)}


@cache
def estimated_spread() -> float:
    """Spread of ln(measured / estimated) where the catalogue had estimates and measurements came later.

    The devices of LINPACK count the same, however many rows they have.
    """
    return float(np.sqrt(np.mean([as_before(device).spread ** 2 for device in LINPACK])))


@cache
def one_network_spread() -> float:
    """Spread across networks of a clock that was fitted on one network, where others were measured too."""
    return float(np.sqrt(np.mean([from_resnet50(device).spread ** 2 for device in ("raspberry_pi_4", "x86_thread")])))
