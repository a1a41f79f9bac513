"""The index of the scenarios that come with edgesim: a line, a picture and the run time of each.

A picture is drawn from the scenario alone: its devices, what they talk to, and which parts of the world it uses.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import seaborn
from writing import escaped, table

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario
from edgesim.reports.figures import PALETTE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scenarios"
TIMES = ROOT / "docs" / "data" / "scenarios.csv"

# Parts of the world by the name that the index gives them.
FEATURES: Mapping[str, Callable[[Scenario], bool]] = {
    "frequency": lambda s: s.resources is not None or any(block.cpu.min_frequency for block in s.fleet),
    "wireless": lambda s: any((block.network or s.network).name == "cell" for block in s.fleet),
    "mobility": lambda s: s.edges is not None and s.edges.mobility is not None,
    "batteries": lambda s: any(block.battery is not None and block.battery.name != "none" for block in s.fleet),
    "failures": lambda s: bool(s.failures),
    "edge servers": lambda s: s.edges is not None,
    "peers": lambda s: s.peers is not None,
    "prices": lambda s: s.prices is not None,
}

_HEAD = """# Shipped scenarios

This page is generated from the files in `scenarios/`. Start one with `edgesim run scenarios/NAME.toml`, and change it
with `--set` or a file that [extends it](../howto/scenario.md). [Shipped studies](../explanation/studies.md) vary their
keys.

In a picture a square is a server or an edge server. A dot is a device, or several of a large fleet, in the colour of
its kind. A dashed circle is a wireless cell and an arrow is mobility. A black edge is a battery, a cross stands for
failures, and a wave for a frequency that can be lowered. At most five edge servers are drawn.

The run time is what `edgesim run` takes on one core, its start included. "About" is what `edgesim estimate` says of
runs of more than ten minutes. They may take less if they stop at an accuracy. `python docs/gen/scenario_times.py` adds
what is missing.
"""
_SENTENCE = re.compile(r".+?(?:\w\w|\d)[)%]?[.?](?= |$)")  # its end is neither an initial nor "i.i.d."
_SIZE = (150, 90)
_MOST = 36  # dots
_MOST_SERVERS = 5  # edge servers
_SECONDS_BELOW, _MINUTES_BELOW = 90, 90 * 60  # seconds that are shown as such, and those that are shown as minutes
_ONE_CIRCLE, _OUTER = 12, 1.35  # more dots than these are on two circles, the outer one of this relative radius


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path below docs/ and the text of the index and of every picture."""
    loaded = {path: load_scenario(path) for path in files()}
    yield "reference/scenarios.md", _HEAD + "\n" + table(_COLUMNS, [_row(*each) for each in loaded.items()])
    for path, scenario in loaded.items():
        yield f"reference/scenarios/{path.stem}.svg", picture(scenario)


def files() -> list[Path]:
    """Return the scenarios, without the studies beside some of them."""
    found = (path for folder in (".", "decisions", "flower") for path in sorted((FOLDER / folder).glob("*.toml")))
    return [path for path in found if "\n[axes" not in path.read_text(encoding="utf-8")]


def features(scenario: Scenario) -> list[str]:
    """Return the parts of the world that a scenario uses, in the order of FEATURES."""
    return [name for name, used in FEATURES.items() if used(scenario)]


class RunTime(NamedTuple):
    """CPU seconds of a run by one thread. `how`: "measured" or "estimated"."""

    cpu_s: float
    how: str

    def __str__(self) -> str:
        """Return it as the index shows it."""
        if self.cpu_s < _SECONDS_BELOW:
            shown = f"{self.cpu_s:.0f} s"
        elif self.cpu_s < _MINUTES_BELOW:
            shown = f"{self.cpu_s / 60:.0f} min"
        else:
            shown = f"{self.cpu_s / 3600:,.0f} h"
        return shown if self.how == "measured" else f"about {shown}"


def times() -> dict[str, RunTime]:
    """Return how long each scenario runs, by its path below scenarios/."""
    with TIMES.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if line[0] != "#")
        return {row["scenario"]: RunTime(float(row["cpu_s"]), row["how"]) for row in rows}


_COLUMNS = ("", "scenario", "what it asks", "uses", "run time")


def _row(path: Path, scenario: Scenario) -> tuple[str, ...]:
    name = path.relative_to(FOLDER).as_posix()
    count = sum(block.count for block in scenario.fleet)
    image = f"![{count} devices](scenarios/{path.stem}.svg)"
    used = ", ".join(features(scenario)) or "-"
    return image, f"`{name}`", escaped(line_of(path)), used, str(times().get(name, "-"))


def line_of(path: Path) -> str:
    """Return the first sentence of the comment that a scenario begins with. Raises ValueError without one."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    found = _SENTENCE.match(" ".join(comment))
    if found is None:
        raise ValueError(f"{path}: has to begin with a comment whose first sentence says what it asks")
    return found[0]


# --- pictures ---------------------------------------------------------------------------------------------------


def picture(scenario: Scenario) -> str:
    """Return the SVG of a scenario, 150 x 90."""
    width, height = _SIZE
    used, centre = features(scenario), (width / 2, height / 2)
    dots = _dots(scenario)
    servers = min(_MOST_SERVERS, int(scenario.topology.args.get("edge_servers", 4))) if scenario.edges else 1
    hubs = [(width * (i + 0.5) / servers, height * 0.47) for i in range(servers)] if scenario.edges else [centre]
    radius, stretch = (min(20, width / servers * 0.36), 1.0) if scenario.edges else (24, 1.2)
    lines, shapes = [], []
    for i, (colour, has_battery) in enumerate(dots):
        hub = hubs[i % servers]
        x, y = _around(hub, i // servers, math.ceil((len(dots) - i % servers) / servers), radius, stretch)
        if scenario.peers is None:
            lines.append(_line((x, y), hub))
        edge = ' stroke="#000" stroke-width="1"' if has_battery else ""
        shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"{edge}/>')
    if scenario.peers is not None:
        places = [_around(centre, i, len(dots), radius, stretch) for i in range(len(dots))]
        lines += [_line(one, places[(i + step) % len(dots)]) for i, one in enumerate(places) for step in (1, 3)]
    else:
        shapes += [_square(hub, 4) for hub in hubs]
    if scenario.edges:
        lines += [_line(hub, (width / 2, 8)) for hub in hubs]
        shapes.append(_square((width / 2, 8), 5))
    if "wireless" in used:
        reach = radius * (_OUTER if len(dots) > _ONE_CIRCLE * servers else 1)
        lines += [
            f'<ellipse cx="{x:.1f}" cy="{y:.1f}" rx="{reach * stretch + 6:.1f}" ry="{reach + 6:.1f}" fill="none" '
            'stroke="#888" stroke-dasharray="3 3"/>'
            for x, y in hubs
        ]
    shapes += [_MARKS[name] for name in used if name in _MARKS]
    body = "\n".join([*lines, *shapes])
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n{body}\n</svg>\n'


# In the corners, each where no other one is.
_MARKS = {
    "mobility": '<path d="M55 84h38m-6 -4l6 4l-6 4" fill="none" stroke="#888" stroke-width="1.5"/>',
    "failures": '<path d="M138 6l8 8m0 -8l-8 8" stroke="#d55e00" stroke-width="2"/>',
    "frequency": '<path d="M4 84q4 -10 8 0t8 0t8 0" fill="none" stroke="#0173b2" stroke-width="1.5"/>',
}


def _dots(scenario: Scenario) -> Sequence[tuple[str, bool]]:
    """Return the colour of each dot, and whether its device has a battery. A block has at least one dot."""
    palette = seaborn.color_palette(PALETTE).as_hex()
    each = max(1.0, sum(block.count for block in scenario.fleet) / _MOST)
    return [
        (palette[place % len(palette)], block.battery is not None and block.battery.name != "none")
        for place, block in enumerate(scenario.fleet)
        for _ in range(max(1, round(block.count / each)))
    ]


def _around(centre: tuple[float, float], place: int, of: int, radius: float, stretch: float) -> tuple[float, float]:
    """Return a place on a circle around a centre, or on two of them for many places."""
    if of > _ONE_CIRCLE:
        radius *= _OUTER if place % 2 else 0.8
    angle = 2 * math.pi * (place + 0.5) / of
    return centre[0] + radius * stretch * math.cos(angle), centre[1] + radius * math.sin(angle)


def _line(one: tuple[float, float], other: tuple[float, float]) -> str:
    return f'<path d="M{one[0]:.1f} {one[1]:.1f}L{other[0]:.1f} {other[1]:.1f}" stroke="#aaa" stroke-width="0.5"/>'


def _square(centre: tuple[float, float], half: float) -> str:
    x, y = centre
    return f'<rect x="{x - half:.1f}" y="{y - half:.1f}" width="{2 * half}" height="{2 * half}" fill="#555"/>'
