"""Settings: groups of runs that differ only in the seed. Runs without a study are treated as a study."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.reports.groups import groups, mark
from edgesim.reports.load import Run
from edgesim.studies.statistics import ENOUGH_RUNS
from edgesim.studies.study import SEED, Study, StudyCell
from edgesim.studies.tradeoffs.cheapest import typical
from edgesim.studies.values import axes_of

CONFIGURATION = "configuration"  # the axis of runs without a study


def label_of(study: Study, cell: StudyCell) -> str:
    """Return the label of a setting. A label that begins with a digit follows the name of its axis."""
    named = cell.group or {"study": study.name}
    return ", ".join(
        f"{axis.rpartition('.')[2]} {label}" if label[:1].isdigit() and axis != CONFIGURATION else label
        for axis, label in named.items()
    )


def with_setting(frame: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return a frame with a column `setting` that joins the labels of all axes."""
    axes = axes_of(frame)
    rows = zip(*(frame[axis].astype(str) for axis in axes), strict=True)
    labels = [dict(zip(axes, row, strict=True)) for row in rows] if axes else [{} for _ in range(len(frame))]
    settings = [label_of(study, StudyCell(each, ())) for each in labels]
    return frame.assign(setting=settings)


def with_middle(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return a summary with the mean or median that the report shows for each row, and its interval.

    With few runs the interval of a mean is Student's, because the bootstrap interval is then too short.
    """
    statistics = typical(rows, columns).statistics
    shown = []
    for row in rows.to_dict("records"):
        if statistics.get(row["column"]) == "km_median":
            shown.append((row["km_median"], row["km_low"], row["km_high"], "median"))
        else:
            of = ("t_low", "t_high") if row["runs"] < ENOUGH_RUNS else ("low", "high")
            shown.append((row["mean"], *(row[name] for name in of), "mean"))
    names = ["middle", "middle_low", "middle_high", "statistic"]
    return rows.join(pd.DataFrame(shown, columns=names, index=rows.index))


def study_of(runs: Sequence[Run]) -> tuple[Study, list[tuple[StudyCell, Run]]]:
    """Return runs as a study. Runs that differ only in seed, name and backend are one configuration.

    Columns: time and energy to each target, the highest first, then the amounts spent and the best accuracy. Raises
    ConfigError if two runs of a configuration have the same seed, because they cannot be paired.
    """
    labels = groups(runs)
    members: dict[str, list[Run]] = {}
    for run, label in labels.items():
        members.setdefault(label, []).append(run)
    for label, group in members.items():
        seen: dict[int, Run] = {}
        for run in group:
            if (other := seen.setdefault(run.seed, run)) is not run:
                raise ConfigError(
                    f"{other.folder} and {run.folder}: are alike, seed {run.seed} included ({label}); take one of them"
                )
    names = {run: label + mark(members[label]) for run, label in labels.items()}
    axes = {CONFIGURATION: dict.fromkeys(names.values(), ()), SEED: dict.fromkeys(str(run.seed) for run in runs)}
    title = " and ".join(dict.fromkeys(str(run.manifest.get("name") or run.name) for run in runs))
    targets = sorted({target for run in runs for target in run.targets if 0 < target < 1}, reverse=True)
    columns = [f"{name}@{target:g}" for target in targets for name in ("sim_time_s", "energy_j")]
    columns += ["sim_time_s", "energy_j", "traffic_bytes"]
    if any(len(run.evals) for run in runs):
        columns.append("best_accuracy")
    study = Study.model_construct(name=title, question="", base="", axes=axes, columns=tuple(columns))
    return study, [(StudyCell({CONFIGURATION: names[run], SEED: str(run.seed)}, ()), run) for run in runs]
