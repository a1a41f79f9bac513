"""How far can you trust a second? Writes docs/explanation/device_times.md and its picture from the measured devices,
and the terms of the catalogue's profiles.

Run: python -m benchmarks devices [--check]. With --check nothing is written: the command fails if the page is not what
the measurements give, or if a figure misses its limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.devices import catalogue, trust
from benchmarks.devices.measured import resnet50
from benchmarks.devices.trust import Predictions
from edgesim.core.work import interval_factor
from edgesim.world.clocks.fit import PULL

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "explanation" / "device_times.md", DOCS / "images" / "device_times.png"
TITLES = {
    "raspberry_pi_4": "Raspberry Pi 4",
    "raspberry_pi_5": "Raspberry Pi 5",
    "x86_thread": "x86 thread",
    "xiaomi_sd855": "Snapdragon 855 phone",
    "v100": "V100",
    "a40": "A40",
    "p100": "P100",
    "rtx_6000": "RTX 6000",
    "jetson_agx_xavier": "Jetson AGX Xavier",
}
CPUS = ("raspberry_pi_4", "raspberry_pi_5", "x86_thread")


class Figure(NamedTuple):
    """A figure that has to lie between two limits."""

    name: str
    value: float
    least: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.least <= self.value <= self.most


def figures() -> list[Figure]:
    """Every figure that the project promises of its clocks; a share where it is no factor or correlation."""
    family = {device: trust.left_out(device, "family") for device in CPUS}
    four, five = family["raspberry_pi_4"], family["raspberry_pi_5"]
    intervals = [
        figure
        for device, found in family.items()
        for figure in (
            Figure(f"{TITLES[device]}: 90 % intervals cover", found.covered, 0.85, 0.95),
            Figure(f"{TITLES[device]}: factor of an interval", found.width, 1, 1.35),
        )
    ]
    jetson = [
        Figure(f"Jetson: worst {what} of a round of {epochs} epochs", found.errors.max(), 0, limit)
        for epochs in (3, 5)
        for what, limit, found in zip(("seconds", "joules"), (0.05, 0.08), trust.jetson(epochs), strict=True)
    ]
    return [
        Figure("Raspberry Pi 4: mean error", four.mean, 0, 0.10),
        Figure("Raspberry Pi 4: within 25 %", four.within_25, 0.95, 1),
        Figure("Raspberry Pi 4: rank correlation", four.rank, 0.97, 1),
        Figure("Raspberry Pi 5: mean error", five.mean, 0, 0.125),
        Figure("Raspberry Pi 5: within 25 %", five.within_25, 0.88, 1),
        Figure("Raspberry Pi 5: rank correlation", five.rank, 0.97, 1),
        Figure("Raspberry Pi 5 from three rows: mean error", trust.three_rows().rest.mean, 0, 0.125),
        *intervals,
        *jetson,
        *(
            Figure(f"{TITLES[device]}: worst error of ResNet50 without its batch", found.errors.max(), 0, 0.10)
            for device in ("v100", "p100", "a40")
            for found in (trust.gpu(device)[0],)
        ),
    ]


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, marks, *rows])


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _errors(rows: Sequence[Predictions]) -> str:
    headings = ["device", "predicted", "rows", "mean error", "median", "within 25 %", "rank", "90 % interval", "covers"]
    lines = [
        [
            *(TITLES[one.device], one.protocol, str(len(one.measured)), _share(one.mean)),
            *(_share(float(np.median(one.errors))), _share(one.within_25), f"{one.rank:.3f}"),
            *(f"x/: {one.width:.3g}", _share(one.covered)),
        ]
        for one in rows
    ]
    return _table(headings, lines)


def _families(found: Predictions) -> str:
    lines = [
        [str(name), str(row["rows"]), _share(row["mean"]), f"{row['worst']:.2f}"]
        for name, row in found.by_group().to_dict("index").items()
    ]
    return _table(["family", "rows", "mean error", "worst factor"], lines)


def _terms() -> str:
    units = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "ps": 1e12}
    devices = tuple(trust.KINDS_OF)
    kinds = list(dict.fromkeys(kind for device in devices for kind in trust.KINDS_OF[device]))

    def cell(device: str, kind: str) -> str:
        value = trust.terms(device).get(kind)
        if not value:
            return "-" if value is None else "0"
        unit = next(unit for unit, size in units.items() if value * size >= 1 or unit == "ps")
        return f"{value * units[unit]:.3g} {unit}"

    lines = [[f"`{kind}`", *(cell(device, kind) for device in devices)] for kind in kinds]
    return _table(["kind of work", *(TITLES[device] for device in devices)], lines)


def _gpus() -> str:
    lines = []
    for device in trust.GPUS:
        limits = sorted(set(resnet50(device.replace("_", ""))["power_limit_w"]))
        at = [trust.gpu(device, limit) for limit in limits]
        seconds, watts = at[-1]
        worst = max(at, key=lambda pair: pair[0].mean)
        lines.append(
            [
                *(TITLES[device], f"{limits[-1]} W", str(len(seconds.measured))),
                *(_share(seconds.mean), _share(seconds.errors.max()), _share(watts.mean)),
                *(f"{_share(worst[0].mean)} ({limits[at.index(worst)]} W)", _share(max(one[1].mean for one in at))),
            ]
        )
    headings = ["GPU", "limit", "batches", "seconds, mean", "seconds, worst", "watts, mean",
                "seconds, mean at the worst limit", "watts, mean at the worst limit"]  # fmt: skip
    return _table(headings, lines)


def _jetson() -> str:
    lines = []
    for epochs in (1, 3, 5):
        seconds, joules = trust.jetson(epochs)
        lines.append(
            [
                *(str(epochs), str(len(seconds.measured)), f"{seconds.measured.mean():.2f} s"),
                *(f"{seconds.predicted[0]:.2f} s", _share(seconds.errors.max()), _share(joules.errors.max())),
            ]
        )
    headings = ["epochs", "runs", "measured", "predicted", "worst error, seconds", "worst error, joules"]
    return _table(headings, lines)


def _limits() -> str:
    lines = []
    for figure in figures():
        many = figure.name.endswith(("correlation", "interval"))
        value, least, most = (f"{x:.3g}" if many else _share(x) for x in (figure.value, figure.least, figure.most))
        wide = f"{least} to {most}"
        asked = f"at most {most}" if figure.least in (0, 1) else f"at least {least}" if figure.most == 1 else wide
        lines.append([figure.name, value, asked, "yes" if figure.holds else "**no**"])
    return _table(["figure", "is", "asked", "holds"], lines)


# --- page -------------------------------------------------------------------------------------------------------------


def render() -> str:
    """The page as Markdown."""
    family = {device: trust.left_out(device, "family") for device in trust.KINDS_OF}
    rows = [found for device in trust.KINDS_OF for found in (family[device], trust.left_out(device, "model"))]
    del rows[-1]  # each network of the phone is a family
    rows += [trust.alone(), *map(trust.chosen_inside, CPUS)]
    rows += [trust.left_out("x86_thread", "input"), trust.left_out("x86_thread", "batch")]
    rows += [trust.left_out("xiaomi_sd855", "batch")]
    three, whole, every = trust.three_rows(), trust.three_rows("all"), trust.any_three()
    return PAGE_TEXT.format(
        limits=_limits(),
        errors=_errors(rows),
        before=_errors([trust.as_before(device) for device in trust.LINPACK]),
        terms=_terms(),
        families="\n\n".join(f"### {TITLES[device]}\n\n{_families(family[device])}" for device in trust.KINDS_OF),
        pulls=" to ".join(_share(trust.left_out("raspberry_pi_5", "family", PULL * times).mean) for times in (0.1, 10)),
        three=", ".join(three.names),
        three_mean=_share(three.rest.mean),
        factor_mean=_share(three.one_factor.mean),
        whole=", ".join(whole.names),
        whole_mean=_share(whole.rest.mean),
        median=_share(float(np.median(every))),
        ninth=_share(float(np.quantile(every, 0.9))),
        triples=f"{len(every):,}",
        gpus=_gpus(),
        jetson=_jetson(),
        one_network=f"{trust.one_network_spread():.2f}",
        one_network_factor=f"{interval_factor(trust.one_network_spread()):.2g}",
        estimated=f"{trust.estimated_spread():.2f}",
        estimated_factor=f"{interval_factor(trust.estimated_spread()):.2g}",
    )


PAGE_TEXT = """# How far can you trust a second?

`python -m benchmarks devices` writes this page, and `python -m benchmarks devices --check` fails if a figure misses
its limit. The measurements lie in `benchmarks/devices/`, with sources and licences. No network and no board is
needed.

A clock with *terms* predicts the seconds of a computation as a sum over kinds of work: amount times seconds for one
unit. The terms are fitted to measured training steps (`edgesim/world/clocks/fit.py`): least squares of relative
errors, no term below 0. All errors on this page are those of steps that the fit did not see. *Without its family*
means that neither the network nor its relatives were in the fit.

![Predicted against measured seconds](../images/device_times.png)

## What has to hold

{limits}

Seconds of the Jetson are fitted on two lengths of rounds. [From rounds of one epoch
alone](#whole-rounds-of-ten-jetsons) they cannot be.

## Errors by device

{errors}

*90 % interval*: predicted seconds divided and multiplied by this factor. It comes from the spread of ln(measured /
predicted) over steps whose family was left out. *Covers*: the share of steps inside an interval whose width comes
from other families alone. *Rank*: Spearman's correlation, so whether networks come in the right order.

- The **Pi 5** builds on the Pi 4: its terms are drawn towards the scaled terms of the Pi 4, fitted without the
  family either. From its own rows alone (with fewer networks) it misses its limit by little. The strength of the
  pull hardly matters: from a tenth to ten times the default the mean error is {pulls}.
- The kinds of work were chosen on the Raspberry Pis. The rows with kinds *chosen inside* repeat a greedy choice
  among all columns of `work.csv` within each fit, so that no choice has seen the family. On the x86 thread it
  takes bytes of softmax where Swin is left out, which alone has many of them, and predicts Swin 48 times too slow.
- **x86 thread**: another batch or input size is left out as a whole in two of the rows.
- **Phone**: five networks carry four kinds of work. A new batch size of a known network is predicted, a new network
  is not: use such seconds for orders of magnitude. GoogLeNet attains 96 of 155 GFLOP/s in this accounting.

Before these fits the catalogue had FLOPs over one rate:

{before}

## Terms

{terms}

A sample on the Raspberry Pi is a JPEG image of 224x224 that is loaded. The catalogue leaves this term out, as
tensors in memory need no decoding.

At 224x224 and batch 16 operations take about 1 % of a step of a Raspberry Pi, and their fitted cost is 0. A network
on small images would then be far too fast. So the catalogue takes the cost of the x86 thread times the ratio of
both devices' seconds a FLOP, marked as an estimate. The errors above include this. For images of less than 64x64
the seconds of a Raspberry Pi are therefore an estimate.

## Another board from three measurements

Rows of the Pi 5 are chosen so that the fit is surest (D-optimal). The choice looks at amounts and at the Pi 4's
terms, at no measurement of the Pi 5: {three}. With the Pi 4's terms they predict all other rows with a mean error
of {three_mean}; with one factor alone {factor_mean}.

The choice matters, and these rows are the second that were tried. Among networks trained whole, the first candidates,
the same rule takes {whole}: mean error {whole_mean}, after which steps that train the head alone were let in. Over all
{triples} sets of three networks trained whole the median is {median}, and nine of ten stay below {ninth}.

## Errors by family

{families}

## GPUs

ResNet50 on ImageNet with the batch left out. Seconds are FLOPs and operations at a power limit; watts are the mean
of the other batches at that limit.

{gpus}

ResNet50 alone cannot tell operations from other work of a step. What other networks need is not known: where such a
fit can be tested (Raspberry Pi 4 and x86 thread), its spread over other networks is {one_network}, a 90 % interval
of x/: {one_network_factor}. The profiles of the GPUs and of the Jetson carry this spread.

The RTX 6000 at batch 8 is 25 % off: its steps of batch 8 and 16 take nearly equally long.

## Whole rounds of ten Jetsons

A round is a fixed part and a part an epoch. Each length is predicted from the other two:

{jetson}

- **One epoch alone** cannot tell the fixed part from the epoch: 25.4 s are 17.8 s and 7.6 s, and any other split
  fits rounds of one epoch as well. A second length, or the seconds of one epoch, has to be measured.
- **Joules** of the clients while they train are proportional to epochs, so one epoch alone predicts three and five
  (and these predict one). The measured joules lack a second of each round, 28.8 J. That correction was found with
  all three lengths, so this is no independent test.

## Devices with estimates

Entries of the catalogue without terms have one rate, mostly from Linpack or a peak. Where measurements came later,
the spread of ln(measured / estimated) was {estimated}: **a 90 % interval of x/: {estimated_factor}**. This is what
"estimated" means in `edgesim list devices`.

## What is not modelled

- Heat: boards that throttle after minutes. The measured steps are short.
- Memory that runs out: SqueezeNet at batch 32 on the phone swapped and is left out.
- Other versions of PyTorch, other number formats, fused attention, other numbers of threads.
- Steps of the first round, when caches are cold.
- Small images on Raspberry Pis, sequences on any of the boards, and other networks than ResNet on GPUs and Jetsons.
- Other copies of the same board. Each device was measured once, on one board.
"""


def draw() -> None:
    """Draw predicted against measured seconds, with the family left out; GPUs and Jetsons with batch or length."""
    import seaborn
    from matplotlib import pyplot

    shown = [trust.left_out(device, "family") for device in trust.KINDS_OF]
    shown += [trust.gpu(device)[0] for device in trust.GPUS] + [trust.jetson(epochs)[0] for epochs in (1, 3, 5)]
    frame = pd.concat(
        pd.DataFrame({"device": TITLES[one.device], "measured": one.measured, "predicted": one.predicted})
        for one in shown
    )
    seaborn.set_theme(style="whitegrid", font_scale=0.8)
    drawn, axis = pyplot.subplots(figsize=(6.4, 4.4))
    ends = [frame["measured"].min() / 2, frame["measured"].max() * 2]
    axis.fill_between(ends, [x / 1.25 for x in ends], [x * 1.25 for x in ends], color="0.9", label="within 25 %")
    axis.plot(ends, ends, color="0.5", linewidth=0.8)
    seaborn.scatterplot(
        frame,
        x="measured",
        y="predicted",
        hue="device",
        style="device",
        palette="colorblind",
        s=18,
        linewidth=0,
        ax=axis,
    )
    axis.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="predicted (s)")
    axis.legend(fontsize=7, frameon=False)
    drawn.savefig(PICTURE, dpi=110, bbox_inches="tight", metadata={"Software": None})
    pyplot.close(drawn)


def main(words: Sequence[str]) -> None:
    """Write the page and its picture, or check the page."""
    options = argparse.ArgumentParser(prog="python -m benchmarks devices", description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing; fail if a figure or the page is wrong")
    given = options.parse_args(words)
    for figure in figures():
        mark, limits = "ok  " if figure.holds else "FAIL", f"{figure.least:g} to {figure.most:g}"
        print(f"{mark} {figure.name}: {figure.value:.4g} ({limits})")
    missed = [figure.name for figure in figures() if not figure.holds]
    if not given.check:
        PAGE.write_text(render(), encoding="utf-8")
        draw()
        catalogue.write()
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != render():
        missed.append(f"docs/explanation/{PAGE.name} is not current: python -m benchmarks devices writes it")
    if given.check:
        missed += [f"edgesim/config: {name} is not current" for name in catalogue.stale()]
    if missed:
        sys.exit("\n".join(missed))
