"""The `study optimise` command: reports the progress of a search, and prints the best trial or the front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from edgesim.cli.frames import digits
from edgesim.cli.scenario import warn
from edgesim.cli.show import print_json, print_note, print_table
from edgesim.reports.format import text
from edgesim.runs.warnings import new
from edgesim.studies.optimise import Optimisation, Trial
from edgesim.studies.runs import folder_of
from edgesim.studies.study import TRIAL, USUAL, Study, load_study


def optimise_study(
    file: Path,
    trials: int,
    workers: int,
    size: str,
    folder: Path | None,
    checkpoint_s: float | None,
    fresh: bool,
    as_json: bool,
) -> None:
    """Search the space of a study and print the best trials. Raises ConfigError, and EdgesimError if a cell failed."""
    study = load_study(file)
    search = Optimisation(study, file, size, folder or folder_of(file, size))
    said = set[str]()
    try:
        for each in search.run(trials, workers, checkpoint_s, fresh):
            warn(new(search.warnings, said))
            if isinstance(each, Trial):
                print_note(f"trial {each.number}, {each.number + 1} of {trials}: {_result_of(study, each)}")
            elif each.ended and not each.fault:
                print_note(f"  {each.ended.cell.name} {'is at another process' if each.elsewhere else 'has run'}")
    except KeyboardInterrupt as stop:
        print_note("interrupted; the same command goes on")
        raise typer.Exit(130) from stop
    if as_json:
        best, all_trials = ([_row(study, trial) for trial in found] for found in (search.best, search.trials))
        print_json({"study": study.name, "size": size, "best": best, "trials": all_trials})
    else:
        _print(study, size, search)
        where = f"{'' if size == USUAL else f' --size {size}'}{f' --runs {folder}' if folder else ''}"
        print(f"all of them: edgesim study table {file}{where}")


def _result_of(study: Study, trial: Trial) -> str:
    if trial.pruned:
        return f"pruned, {trial.behind:.3g} behind the accuracy of others"
    if not trial.got_there:
        return f"did not get there, {trial.behind:.3g} of accuracy short"
    return ", ".join(f"{name} {_value(name, value)}" for name, value in _values(study, trial).items())


def _values(study: Study, trial: Trial) -> dict[str, float | None]:
    assert study.search is not None
    return dict(zip(study.search.objectives, trial.values, strict=True))


def _value(column: str, value: float | None) -> str:
    return text(column.partition("@")[0], value)


def _print(study: Study, size: str, search: Optimisation) -> None:
    assert study.search is not None
    best, total = search.best, len(search.trials)
    pruned = sum(trial.pruned for trial in search.trials)
    short = sum(not trial.got_there for trial in search.trials) - pruned
    if not best:
        print(f"none of {total} trials got there: {short} fell short of a target, {pruned} were pruned")
        return
    several = len(study.search.objectives) > 1
    rows = [
        {
            TRIAL: str(each.number),
            **{key: digits(value) if isinstance(value, float) else str(value) for key, value in each.point.items()},
        }
        | {name: _value(name, value) for name, value in _values(study, each).items()}
        for each in best
    ]
    what = "the trials that none beats in all objectives" if several else "the best trial"
    print_table(rows, {name: name for name in rows[0]}, f"{study.name} ({size}): {what}")
    if short or pruned:
        print(f"of {total} trials {short} fell short of a target, {pruned} were pruned; none of these can be the best")


def _row(study: Study, trial: Trial) -> dict[str, Any]:
    """Return a trial for JSON; None stands for a value that was not reached."""
    return {
        TRIAL: trial.number,
        "point": dict(trial.point),
        "overrides": list(trial.overrides),
        "values": _values(study, trial),
        "behind": trial.behind,
        "pruned": trial.pruned,
    }
