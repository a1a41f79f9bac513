"""Runs missing cells, and raises one error if some cannot be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgesim.core.errors import EdgesimError
from edgesim.studies.plan import Outlook, bad
from edgesim.studies.runs import Step, run_all


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
