"""The `replay` command: runs a run again with other scenario values, and reuses unchanged training results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from edgesim.cli.folder import changed_folder
from edgesim.cli.open_runs import opened
from edgesim.cli.run import report
from edgesim.cli.scenario import warn
from edgesim.cli.show import print_note
from edgesim.config.load import load_scenario
from edgesim.config.origin import Layers
from edgesim.core.job import DELIVERED
from edgesim.files.user_cache import made_anew
from edgesim.reports.load import Run
from edgesim.runs.progress import Limits, ProgressLine
from edgesim.runs.simulate import check_all, simulate
from edgesim.runs.warnings import of_parts, of_text
from edgesim.studies.shared import Common

if TYPE_CHECKING:
    from edgesim.execution.result_cache import Answers

_TOLD = ("device", "task", "submodel")


def replay_run(
    folder: Path,
    overrides: Sequence[str],
    out: Path | None,
    overwrite: bool,
    fresh: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the scenario of a run again with overrides, and report the jobs that were retrained.

    `out`: None: a folder beside the run. `fresh`: train everything again. Raises ConfigError or DataError.
    """
    before = opened(folder)
    scenario = load_scenario(before.manifest["scenario"], overrides)
    target = out or changed_folder(before.folder, overrides)
    common = Common()
    found = of_text(scenario, Layers.of(before.manifest["scenario"], overrides))
    observer = None if quiet else ProgressLine(Limits.of(scenario.stop))
    trains = scenario.backend.value.trains
    with made_anew(fresh):
        found += of_parts(scenario, check_all(scenario, common.load, common.build))
        opening: AbstractContextManager[Answers | None] = nullcontext()
        if trains:
            from edgesim.execution import result_cache  # loads torch, which a timing-only run does not need

            opening = closing(result_cache.Answers(before.folder.parent, reads=not fresh))
        with opening as answers:
            after = simulate(
                scenario, target, observer, answers=answers, overwrite=overwrite, command=sys.argv, load=common.load,
                build=common.build, warnings=found,
            )  # fmt: skip
    warn(found)
    if not as_json:
        for was, now in zip(before.views, after.views, strict=True):
            told = _trained(was, now, trains)
            print_note(told if now.chosen is None else f"{now.chosen}: {told}")
    report(after, as_json, quiet, resumable=False)


def _trained(before: Run, after: Run, trains: bool) -> str:
    """Return the number of trained jobs and the reason in words. `trains`: False for a timing-only run."""
    known, why = after.manifest["known"], _first_difference(before, after)
    if not trains:
        return f"timing only: nothing was trained{why}"
    if known["jobs"]:
        trained = f"{known['jobs']} of {len(after.jobs)} jobs were trained, as answers lack from round "
        return f"{trained}{known['computed_from'] + 1} on{why}"
    return f"nothing was trained: {known['answers']} answers were known{why}"


def _first_difference(before: Run, after: Run) -> str:
    """Return the first round in which the runs aggregated different updates, with a device, in words."""
    for number in range(min(len(before.rounds), len(after.rounds))):
        was, now = (_aggregated(run.jobs, number) for run in (before, after))
        others = sorted(was ^ now)
        if others:
            device = others[0][0]
            ends = [_ends(run.jobs, number, device) for run in (before, after)]
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f": in round {number + 1} device {device} was {ends[0]}, and is {ends[1]} now{more}"
    return ""


def _aggregated(jobs: pd.DataFrame, number: int) -> set[tuple[int, str, str]]:
    chosen = jobs[(jobs["round"] == number) & jobs["outcome"].isin(DELIVERED)]
    return set(chosen[list(_TOLD)].itertuples(index=False, name=None))


def _ends(jobs: pd.DataFrame, number: int, device: int) -> str:
    ends = jobs["outcome"][(jobs["round"] == number) & (jobs["device"] == device)]
    return "not asked" if ends.empty else "/".join(dict.fromkeys(ends))
