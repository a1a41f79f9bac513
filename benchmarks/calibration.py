"""Checks `edgesim calibrate` on this host: seconds of networks that it did not time, predicted and measured.

`python -m benchmarks calibration` calibrates, then times steps of 20 networks of torchvision at 64x64 and 96x96 pixels,
and of two networks of texts as users write them. Seconds are CPU seconds of one thread, so that other processes
disturb less. `--choose` instead prints the networks that `edgesim calibrate` should time: D-optimal among POOL.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from edgesim.config import device_profiles
from edgesim.core.arrays import Arr
from edgesim.runs import calibrate as measuring
from edgesim.world.clocks import fit

TEXTS = ("lstm_char@20", "transformer_char")  # recurrent, attention: always among the networks to time
POOL = [
    "resnet18",
    "resnet34",
    "resnet50",
    "resnext50_32x4d",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "mnasnet0_5",
    "mnasnet1_0",
    "efficientnet_b0",
    "squeezenet1_1",
    "densenet121",
    "alexnet",
    "googlenet",
    "convnext_tiny",
]  # of torchvision, steps of at most 50 GFLOP at 64x64 pixels and batch 16
DEVICES = ("raspberry_pi_4", "raspberry_pi_5", "x86_thread")  # their mean prices, relative to a FLOP's, weigh the kinds
TESTED = [
    "resnet18",
    "resnet50",
    "resnet101",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "mobilenet_v3_large",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
    "efficientnet_b1",
    "densenet121",
    "googlenet",
    "convnext_tiny",
    "swin_t",
    "vgg11",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "regnet_x_800mf",
    "regnet_y_800mf",
    "regnet_x_1_6gf",
]
SIDES, BATCH, PASSES = (64, 96), 8, 3
OWN = ("benchmarks.own_networks:OwnLstm", "benchmarks.own_networks:OwnEncoder")


def choose() -> None:
    """Print eight networks to time, and three of them for `--quick`."""
    prices = np.mean([_relative(name) for name in DEVICES], axis=0)
    names = [f"torchvision:{name}@3x64x64" for name in POOL]
    amounts = np.array([_amounts(name, 16) for name in names])
    chosen = [names[row] for row in fit.most_informative(amounts, prices, 6)]
    eight = [*chosen, *TEXTS]
    print("eight:", *eight)
    amounts = np.array([_amounts(name, 16) for name in eight])
    print("three:", *(eight[row] for row in fit.most_informative(amounts, prices, 3)))


def _relative(name: str) -> Arr:
    terms = measuring.terms_of(device_profiles.find(name))
    relative: Arr = terms / terms[measuring.KINDS.index("flops")]
    return relative


def _amounts(network: str, batch: int) -> list[float]:
    amounts = next(measuring.cases_of(network, [batch])).amounts
    return [amounts[kind] for kind in measuring.KINDS]


def check(seconds: float) -> pd.DataFrame:
    """Return predicted and measured seconds of each step that calibration did not time."""
    clocks = measuring.CPU_CLOCKS
    timed = measuring.time_steps(measuring.NETWORKS, measuring.BATCHES, seconds, clocks=clocks, tell=print)
    found = measuring.calibrate(timed.timings)
    print("seconds for one unit:", {kind: f"{per:.3g}" for kind, per in found.seconds_per.items() if per})
    print(f"networks of the calibration left out: mean error {abs(found.errors).mean():.1%}, spread {found.spread:.3f}")
    images = [f"torchvision:{name}@3x{side}x{side}" for name, side in itertools.product(TESTED, SIDES)]
    rows = []
    for network in [*images, *OWN]:
        with measuring.on_threads(1):
            case = next(measuring.cases_of(network, [BATCH]))
            case.steps(1)
            measured_s = min(measuring.mean_seconds(case, 0.2, clocks).wall_s for _ in range(PASSES))
        predicted_s = sum(found.seconds_per[kind] * case.amounts[kind] for kind in measuring.KINDS)
        error = predicted_s / measured_s - 1.0
        rows.append({"network": network, "measured_s": measured_s, "predicted_s": predicted_s, "error": error})
        line = f"{measured_s * 1e3:8.1f} ms, predicted {predicted_s * 1e3:8.1f} ms, {error:+.1%}"
        print(f"{network:45} {line}", flush=True)
    return pd.DataFrame(rows)


def main(words: Sequence[str]) -> None:
    """Do what the command line says."""
    options = argparse.ArgumentParser(prog="python -m benchmarks calibration", description=__doc__)
    options.add_argument("--choose", action="store_true", help="print the networks to time")
    options.add_argument("--seconds", type=float, default=100.0, help="CPU seconds of the calibration; default: 100")
    given = options.parse_args(words)
    if given.choose:
        choose()
        return
    found = check(given.seconds)
    images = ~found["network"].isin(OWN)
    print(f"{images.sum()} steps of {len(TESTED)} networks: mean error {found[images]['error'].abs().mean():.1%}")
    for _, row in found[~images].iterrows():
        print(f"{row['network']}: error {row['error']:+.1%}")
