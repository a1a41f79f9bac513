"""Plan of a study: builds every missing cell once and trains nothing. Then runs the missing cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.records.lock import is_held
from edgesim.runs.estimate import estimate_of, instant
from edgesim.runs.host_time import Speed
from edgesim.runs.simulation import check_all
from edgesim.runs.warnings import of_parts
from edgesim.studies.runs import Planned, Step, fault_of, run_all
from edgesim.studies.shared import Common, text_of

State: TypeAlias = Literal["done", "to run", "running", "bad"]


@dataclass(frozen=True)
class Outlook:
    """A cell with its state. Its stamp includes the digest of its data.

    `fault`: the reason of the state "bad". `host_s`, `disk_bytes`: estimated host seconds and size of a missing run;
    None if unknown or not wanted.
    """

    planned: Planned
    state: State
    fault: str = ""
    host_s: float | None = None
    disk_bytes: int | None = None

    def told(self) -> dict[str, Any]:
        """Return state, fault, host seconds and bytes by name."""
        return {"state": self.state, "fault": self.fault, "host_s": self.host_s, "disk_bytes": self.disk_bytes}


def outlook(planned: Sequence[Planned], costs: bool = False) -> list[Outlook]:
    """Return the state of cells in their order, with `costs` also their estimated host seconds and bytes.

    A finished cell stays done if its data set is gone, because nothing indicates that the data have changed. A cell
    that is likely to train the same as an earlier one takes only the time of the simulation.
    """
    common = Common()
    by_data = sorted(planned, key=lambda each: text_of(each.scenario["data"]))  # `common` keeps one data set at a time
    found: dict[Path, Outlook] = {}
    learned = set[str]()
    for each in by_data:
        speed: Speed = common.host_speed
        if each.learning in learned:  # the answers of the training are known
            speed = instant
        cell = found[each.folder] = _look(each, common, speed if costs else None)
        if each.learning and cell.state != "bad":
            learned.add(each.learning)
    return [found[each.folder] for each in planned]


def bad(cells: Iterable[Outlook]) -> list[str]:
    """Return a line with name and reason for each cell that cannot be run."""
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
        host_s: float | None = None
        disk_bytes: int | None = None
        if speed:
            with suppress(ConfigError):  # it can run, but would end before its first round
                totals = estimate_of((parts, *others), speed).totals
                minutes, disk_bytes = totals["host_minutes"], totals["disk_bytes"]
                host_s = None if minutes is None else 60.0 * minutes
    except Exception as error:
        return Outlook(planned, "bad", fault_of(error))
    return Outlook(planned, "running" if is_held(planned.folder) else "to run", "", host_s, disk_bytes)


def run_missing(
    cells: Sequence[Outlook], workers: int = 1, checkpoint_s: float | None = None, fresh: bool = False
) -> Iterator[Step]:
    """Run the missing cells with `run_all` and yield its steps.

    `fresh`: also run finished cells again. Raises EdgesimError before the first cell if some cannot be run, and after
    the last one if some have failed.
    """
    if faults := bad(cells):
        raise EdgesimError(f"{len(faults)} of {len(cells)} cells cannot be run, so none was; {faults[0]}")
    missing = [each.planned for each in cells if fresh or each.state != "done"]
    failed = []
    for step in run_all(missing, workers, checkpoint_s, fresh):
        yield step
        if step.ended and step.fault:
            failed.append(f"{step.ended.cell.name}: {step.fault}")
    if failed:
        raise EdgesimError(f"{len(failed)} of {len(missing)} cells failed; {failed[0]}")
