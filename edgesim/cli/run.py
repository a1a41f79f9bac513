"""The `run` command: runs a scenario, writes a run folder, and prints the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgesim.cli import show
from edgesim.cli.folder import default_folder
from edgesim.cli.scenario import warn
from edgesim.config.load import load_scenario
from edgesim.config.origin import Layers
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.execution.interrupts import INTERRUPTED
from edgesim.files.user_cache import made_anew
from edgesim.records.manifest import RUNNING
from edgesim.reports.load import Run
from edgesim.reports.stats import summary
from edgesim.runs.fingerprint import data_digest, stamp_of
from edgesim.runs.progress import Display, Glance, Limits, LiveView, ProgressLine, ProgressOfSessions, stderr_console
from edgesim.runs.simulate import simulate
from edgesim.runs.warnings import of_text

if TYPE_CHECKING:
    from edgesim.execution.checkpoint import Checkpoint
    from edgesim.execution.result_cache import Answers

_EXIT_OF_STATUS = {"finished": 0, "interrupted": INTERRUPTED, "failed": 1}


def run_scenario(
    file: Path,
    overrides: Sequence[str],
    workers: int | None,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    checkpoint_s: float | None,
    fresh: bool = False,
    live: bool = False,
) -> None:
    """Run a scenario file and print the results. The exit code is 0 only if the run finished.

    `workers`: None: the scenario's backend. `out`: None: a folder below `runs`. `checkpoint_s`: host seconds between
    checkpoints of the training; None: no checkpoints. `fresh`: do not read cached results of other runs. `live`: also
    show fleet and jobs on a terminal. Raises ConfigError or DataError.
    """
    if live and quiet:
        raise ConfigError("--live, --quiet: give one of them")
    scenario = load_scenario(file, overrides)
    if workers:
        scenario = load_scenario(file, [*overrides, _pool(scenario, workers)])
    folder = out or default_folder(file, scenario.method.name, scenario.seed, overrides)
    answers, saved = _known(scenario, folder, checkpoint_s, fresh)
    warnings = of_text(scenario, Layers.of(file, overrides))
    observer = None if quiet else _observer(scenario, folder, warnings, live)
    with made_anew(fresh), nullcontext() if answers is None else closing(answers):
        finished = simulate(
            scenario, folder, observer, saved, answers=answers, overwrite=overwrite, command=sys.argv, warnings=warnings
        )
    if quiet:
        warn(warnings)
    report(finished, as_json, quiet, resumable=saved is not None and saved.file.exists())


def _observer(
    scenario: Scenario, folder: Path, warnings: Sequence[str], live: bool
) -> ProgressLine | ProgressOfSessions | LiveView:
    limits, console = Limits.of(scenario.stop), stderr_console()
    if scenario.session:
        of_each = {alone.session_name: Limits.of(alone.stop) for alone in scenario.trainings}
        return ProgressOfSessions(of_each, console, warnings)
    if not (live and console.is_interactive):
        return ProgressLine(limits, console, warnings=warnings)
    return LiveView(Glance(folder.name, scenario.method.name, RUNNING, limits), Display(console), warnings)


def _known(
    scenario: Scenario, folder: Path, checkpoint_s: float | None, fresh: bool
) -> tuple[Answers | None, Checkpoint | None]:
    """Return the cached results of earlier runs and the checkpoint of this one; None if the run does not train."""
    if not scenario.backend.value.trains:
        return None, None
    from edgesim.execution.checkpoint import Checkpoint
    from edgesim.execution.result_cache import Answers  # these load torch

    saved = None
    if checkpoint_s:
        saved = Checkpoint.beside(folder, checkpoint_s, stamp_of(scenario) | {"data": data_digest(scenario)})
    return Answers(folder.parent, reads=not fresh), saved


def _pool(scenario: Scenario, workers: int) -> str:
    """Return the override for training on worker processes."""
    if not scenario.backend.value.trains:
        raise ConfigError(f"--workers: backend {scenario.backend.name!r} trains nothing that could be shared out")
    torch_device = json.dumps(scenario.backend.value.device)
    return f'backend={{ name = "workers", workers = {workers}, device = {torch_device} }}'


def report(finished: Run, as_json: bool, quiet: bool, resumable: bool) -> None:
    """Print the results of a run. If it did not finish, end the command with the matching exit code."""
    manifest = finished.manifest
    if as_json:
        sessions = {view.chosen: summary(view) for view in finished.views if view.chosen}
        show.print_json({"sessions": sessions} if sessions else summary(finished))
        show.print_note(f"run folder: {finished.folder}")
    elif quiet:
        print(finished.folder)
    else:
        show.print_runs(finished.views)
        if finished.charged_as:
            print(f"learned by {finished.learned_by}, charged as {finished.charged_as}")
        print(f"run folder: {finished.folder}")
        if manifest["stop_reason"]:
            print(f"stopped: {manifest['stop_reason']}")
    code = _EXIT_OF_STATUS[manifest["status"]]
    if code:
        reason = f": {manifest['stop_reason']}" if manifest["stop_reason"] else ""
        more = "; the same command goes on" if resumable else ""
        show.print_note(f"{manifest['status']} after {manifest['rounds']} rounds{reason}; the tables end there{more}")
        raise typer.Exit(code)
