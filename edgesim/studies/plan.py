"""What is to be done of a study: every cell that is missing is built once, and nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError
from edgesim.records.lock import is_held
from edgesim.runs.assembly import Assembly
from edgesim.runs.estimate import estimate_of
from edgesim.runs.simulate import check_all
from edgesim.runs.warnings import of_parts
from edgesim.studies.runs import Planned, fault_of
from edgesim.studies.shared import Common, text_of

State: TypeAlias = Literal["done", "to run", "running", "bad"]
Speed: TypeAlias = Callable[[Assembly], float]  # FLOP/s of this host


@dataclass(frozen=True)
class Outlook:
    """A cell, its stamp with the digest of its data, and whether it is done, is missing, or cannot be run.

    `fault`: why it is bad. `host_s` and `disk_bytes`: of a run that is missing; None: unknown, or not asked for.
    """

    planned: Planned
    state: State
    fault: str = ""
    host_s: float | None = None
    disk_bytes: int | None = None

    def told(self) -> dict[str, Any]:
        """Return what is to be told of the cell, by name."""
        return {name: getattr(self, name) for name in ("state", "fault", "host_s", "disk_bytes")}


def outlook(planned: Sequence[Planned], costs: bool = False) -> list[Outlook]:
    """Return what is to be done of cells, in their order; with `costs` also what that takes, in seconds and bytes.

    A cell that was run stays done where its data are no longer there, as nothing says that they have changed. One
    that is likely to train what a cell before it does takes the time of simulating it.
    """
    common = Common()
    by_data = sorted(planned, key=lambda each: text_of(each.scenario["data"]))  # only one data set is kept at a time
    found: dict[Path, Outlook] = {}
    learned = set[str]()
    for each in by_data:
        speed = _without_training if each.learning in learned else common.flops_per_s
        cell = found[each.folder] = _look(each, common, speed if costs else None)
        if each.learning and cell.state != "bad":
            learned.add(each.learning)
    return [found[each.folder] for each in planned]


def bad(cells: Iterable[Outlook]) -> list[str]:
    """Return a line for each cell that cannot be run: its name and why."""
    return [f"{each.planned.cell.name}: {each.fault}" for each in cells if each.state == "bad"]


def _look(planned: Planned, common: Common, speed: Speed | None) -> Outlook:
    scenario = load_scenario(planned.scenario)
    fault = ""
    try:
        planned = replace(planned, stamp={**planned.stamp, "data": common.digest(scenario)})
    except Exception as error:
        fault = fault_of(error)
    if planned.is_done():
        return Outlook(planned, "done")
    if fault:
        return Outlook(planned, "bad", fault)
    try:
        parts, *others = check_all(scenario, common.load, common.build)
        planned = replace(planned, warnings=(*planned.warnings, *of_parts(scenario, (parts, *others))))
        alone = len(scenario.session) < 2  # what several cost together nobody foresees
        spent = _costs(parts, speed) if speed and alone else (None, None)
    except Exception as error:
        return Outlook(planned, "bad", fault_of(error))
    return Outlook(planned, "running" if is_held(planned.folder) else "to run", "", *spent)


def _without_training(parts: Assembly) -> float:
    """Return the FLOP/s of this host for a run whose training is answered."""
    return math.inf


def _costs(parts: Assembly, speed: Speed) -> tuple[float | None, int | None]:
    try:
        totals = estimate_of(parts, speed).totals
    except ConfigError:  # it can be run, but would end before its first round
        return None, None
    minutes = totals["host_minutes"]
    return None if minutes is None else 60.0 * minutes, totals["disk_bytes"]
