"""Runs the cells that are missing, and ends with one error if some cannot be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgesim.core.errors import EdgesimError
from edgesim.studies.plan import Outlook, bad
from edgesim.studies.runs import Step, run_all


def run_missing(
    cells: Sequence[Outlook], workers: int = 1, checkpoint_s: float | None = None, fresh: bool = False
) -> Iterator[Step]:
    """Run those cells that are missing as `run_all` does, and yield its steps.

    `fresh`: finished cells are run again too.
    Raises EdgesimError if some cannot be run, before the first is, or have failed, after the last has.
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
