"""Commands that run a scenario: `run` and `replay`."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.options import CheckpointInterval, OneRun, Overrides, RunOutput, ScenarioFile, checkpoint_s
from edgesim.cli.printing import print_json, print_note, print_runs, warn
from edgesim.core.errors import ConfigError
from edgesim.execution.interrupts import INTERRUPTED

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.execution.result_cache import Answers
    from edgesim.reports.load import Run
    from edgesim.runs.progress import LiveView, ProgressLine, ProgressOfSessions

_EXIT_OF_STATUS = {"finished": 0, "interrupted": INTERRUPTED, "failed": 1}
_LONGEST = 80  # characters of the changes by `--set` in the name of a folder
_UNFIT = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')  # for names on common file systems
_SHOWN = re.compile(r"(seed|method(\.name)?)\s*=")  # overrides that the rest of the name shows
_UPDATE = ["device", "task", "submodel"]  # columns of jobs that identify an update of a round


def run(
    file: ScenarioFile,
    output: RunOutput,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of worker processes for training.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/SCENARIO-METHOD-SEED and the changes by --set.")
    ] = None,
    checkpoint: CheckpointInterval = None,
    live: Annotated[
        bool, typer.Option("--live", help="Show fleet, jobs, accuracy and energy live on a terminal.")
    ] = False,
) -> None:
    """Run a scenario and write tables, weights and manifest to a run folder.

    Training results of earlier runs in the same place are reused.
    """
    from edgesim.execution.preload import warm_up_for

    path, overrides = file.scenario, file.overrides
    warm_up_for(path, overrides, workers)
    from edgesim.config.load import load_scenario
    from edgesim.config.origin import Layers
    from edgesim.files.user_cache import made_anew
    from edgesim.records.manifest import RUNNING
    from edgesim.runs import progress
    from edgesim.runs.fingerprint import data_digest, stamp_of
    from edgesim.runs.simulate import simulate
    from edgesim.runs.warnings import of_text

    every_s = checkpoint_s(checkpoint)
    if live and output.quiet:
        raise ConfigError("--live, --quiet: give one of them")
    scenario = load_scenario(path, overrides)
    if workers:
        if not scenario.backend.value.trains:
            raise ConfigError(f"--workers: backend {scenario.backend.name!r} does not train, so it needs no workers")
        torch_device = json.dumps(scenario.backend.value.device)
        pool = f'backend={{ name = "workers", workers = {workers}, device = {torch_device} }}'
        scenario = load_scenario(path, [*overrides, pool])
    folder = out or default_folder(path, scenario.method.name, scenario.seed, overrides)
    saved = None
    if every_s and scenario.backend.value.trains:
        from edgesim.execution.checkpoint import Checkpoint  # loads torch

        saved = Checkpoint.beside(folder, every_s, stamp_of(scenario) | {"data": data_digest(scenario)})
    warnings = of_text(scenario, Layers.of(path, overrides))
    limits, console = progress.Limits.of(scenario.stop), progress.stderr_console()
    observer: ProgressLine | ProgressOfSessions | LiveView | None = None
    if scenario.session and not output.quiet:
        of_each = {alone.session_name: progress.Limits.of(alone.stop) for alone in scenario.trainings}
        observer = progress.ProgressOfSessions(of_each, console, warnings)
    elif live and console.is_interactive:
        glance = progress.Glance(folder.name, scenario.method.name, RUNNING, limits)
        observer = progress.LiveView(glance, progress.Display(console), warnings)
    elif not output.quiet:
        observer = progress.ProgressLine(limits, console, warnings=warnings)
    with made_anew(output.fresh), _cached_results(folder, scenario.backend.value.trains, output.fresh) as answers:
        finished = simulate(
            scenario, folder, observer, saved, answers=answers, overwrite=output.overwrite, command=sys.argv,
            warnings=warnings,
        )  # fmt: skip
    if output.quiet:
        warn(warnings)
    _report(finished, output, resumable=saved is not None and saved.file.exists())


def _cached_results(folder: Path, trains: bool, fresh: bool) -> AbstractContextManager[Answers | None]:
    """Return the results of runs beside a folder, read unless `fresh`; None if the run does not train."""
    if not trains:
        return nullcontext()
    from edgesim.execution.result_cache import Answers  # loads torch

    return closing(Answers(folder.parent, reads=not fresh))


def default_folder(scenario: Path, method: str, seed: int, overrides: Sequence[str]) -> Path:
    """Return runs/SCENARIO-METHOD-SEED and, after it, the other changes by `--set`, so that each has its own folder.

    A name that is too long, or has characters unfit for file names, is shortened and ends in a hash.
    """
    told = [text for text in overrides if not (_SHOWN.match(text) and "{" not in text)]
    return Path("runs") / (_UNFIT.sub(".", f"{scenario.stem}-{method}-{seed}") + _short(told))


def changed_folder(run: Path, overrides: Sequence[str]) -> Path:
    """Return the folder beside a run for the same one with overrides."""
    return run.with_name(f"{run.name}{_short(overrides) or '-again'}")


def _short(overrides: Sequence[str]) -> str:
    changes = "".join(f"-{text}" for text in overrides)
    short = _UNFIT.sub("_", changes.replace(" ", ""))[:_LONGEST]
    if short != changes.replace(" ", ""):
        short += f"-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"
    return short


def _report(finished: Run, output: RunOutput, resumable: bool) -> None:
    """Print the results of a run. If it did not finish, end the command with the matching exit code."""
    manifest = finished.manifest
    if output.as_json:
        from edgesim.reports.stats import summary

        sessions = {view.chosen: summary(view) for view in finished.views if view.chosen}
        print_json({"sessions": sessions} if sessions else summary(finished))
        print_note(f"run folder: {finished.folder}")
    elif output.quiet:
        print(finished.folder)
    else:
        print_runs(finished.views)
        if finished.charged_as:
            print(f"learned by {finished.learned_by}, charged as {finished.charged_as}")
        print(f"run folder: {finished.folder}")
        if manifest["stop_reason"]:
            print(f"stopped: {manifest['stop_reason']}")
    code = _EXIT_OF_STATUS[manifest["status"]]
    if code:
        reason = f": {manifest['stop_reason']}" if manifest["stop_reason"] else ""
        more = "; the same command goes on" if resumable else ""
        print_note(f"{manifest['status']} after {manifest['rounds']} rounds{reason}; the tables end there{more}")
        raise typer.Exit(code)


# --- replay ------------------------------------------------------------------------------------------------------


def replay(
    run: OneRun,
    output: RunOutput,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: beside RUN, named after the changes by --set.")
    ] = None,
) -> None:
    """Run a run again with other values, such as another network. Report what had to be retrained, and why."""
    from edgesim.cli.look import opened
    from edgesim.config.load import load_scenario
    from edgesim.config.origin import Layers
    from edgesim.files.user_cache import made_anew
    from edgesim.runs.progress import Limits, ProgressLine
    from edgesim.runs.simulate import simulate
    from edgesim.runs.simulation import check_all
    from edgesim.runs.warnings import of_parts, of_text
    from edgesim.studies.shared import Common

    overrides = set_ or []
    before = opened(run)
    scenario = load_scenario(before.manifest["scenario"], overrides)
    target = out or before.folder.with_name(f"{before.folder.name}{_short(overrides) or '-again'}")
    common, trains = Common(), scenario.backend.value.trains
    found = of_text(scenario, Layers.of(before.manifest["scenario"], overrides))
    observer = None if output.quiet else ProgressLine(Limits.of(scenario.stop))
    with made_anew(output.fresh):
        found += of_parts(scenario, check_all(scenario, common.load, common.build))
        with _cached_results(before.folder, trains, output.fresh) as answers:
            after = simulate(
                scenario, target, observer, answers=answers, overwrite=output.overwrite, command=sys.argv,
                load=common.load, build=common.build, warnings=found,
            )  # fmt: skip
    warn(found)
    if not output.as_json:
        for was, now in zip(before.views, after.views, strict=True):
            told = _retrained(was, now, trains)
            print_note(told if now.chosen is None else f"{now.chosen}: {told}")
    _report(after, output, resumable=False)


def _retrained(before: Run, after: Run, trains: bool) -> str:
    """Return the number of trained jobs and the reason in words. `trains`: False for a timing-only run."""
    known, why = after.manifest["known"], _first_difference(before, after)
    if not trains:
        return f"timing only: nothing was trained{why}"
    if known["jobs"]:
        trained = f"{known['jobs']} of {len(after.jobs)} jobs were trained, as cached results are missing from round "
        return f"{trained}{known['computed_from'] + 1} on{why}"
    return f"nothing was trained: {known['answers']} cached results were reused{why}"


def _first_difference(before: Run, after: Run) -> str:
    """Return the first round in which the runs aggregated different updates, with a device, in words."""
    from edgesim.core.job import DELIVERED

    def aggregated(jobs: pd.DataFrame, number: int) -> set[tuple[int, str, str]]:
        chosen = jobs[(jobs["round"] == number) & jobs["outcome"].isin(DELIVERED)]
        return set(chosen[_UPDATE].itertuples(index=False, name=None))

    for number in range(min(len(before.rounds), len(after.rounds))):
        others = sorted(aggregated(before.jobs, number) ^ aggregated(after.jobs, number))
        if others:
            device, ends = others[0][0], []
            for jobs in (before.jobs, after.jobs):
                found = jobs["outcome"][(jobs["round"] == number) & (jobs["device"] == device)]
                ends.append("not asked" if found.empty else "/".join(dict.fromkeys(found)))
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            return f": in round {number + 1} device {device} was {ends[0]}, and is {ends[1]} now{more}"
    return ""
