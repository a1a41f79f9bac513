"""Collects the contents of a report on a study, or on runs without one: statistics and facts from run folders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd

from edgesim.config.describe import describe
from edgesim.config.origin import COMMON
from edgesim.config.plugins import is_outside
from edgesim.core.errors import ConfigError
from edgesim.reports import figure_numbers
from edgesim.reports.critical_path import explain
from edgesim.reports.format import lost_runs
from edgesim.reports.groups import AnyRun, groups, mark
from edgesim.reports.html.content import (
    CatalogueEntry,
    ClockErrors,
    Findings,
    Made,
    SlowestRound,
    Tradeoff,
)
from edgesim.reports.load import Run
from edgesim.runs.warnings import once
from edgesim.studies.clock_intervals import clock_intervals
from edgesim.studies.column import parse_column
from edgesim.studies.decision import (
    CONFIGURATION,
    ComparedSettings,
    label_of,
    level,
    seeds_needed,
    with_order,
    with_setting,
)
from edgesim.studies.levels import levels_of
from edgesim.studies.scenario_words import exact_words, section_words
from edgesim.studies.statistics import told_interval
from edgesim.studies.study import SEED, Study, StudyCell
from edgesim.studies.tradeoffs import front, name_of, typical
from edgesim.studies.values import axes_of, summarised, values_of

_COMPARED = ["setting", "column", "pairs", "ties", "difference", "ratio", "low", "high", "p_holm"]
_KINDS = ("method", "protocol", "selection", "partition", "data", "model", "network", "topology", "energy", "peers")
_LEFT_OUT = ("seed", "name", "backend", "weights", "fleet")  # keys that define no setting, or have their own table


def findings_of(
    study: Study,
    runs: Sequence[tuple[StudyCell, Run]],
    commands: Sequence[str],
    baseline: Mapping[str, str] | None = None,
    title: str = "",
    question: str = "",
    notes: Sequence[str] = (),
    draws: int = 0,
) -> Findings:
    """Return the contents of a report on the runs of a study. `study_of` makes a study of other runs.

    `baseline`: labels of the configuration to compare with, by default the first one. `title` and `question` replace
    the title and question of the study. With `draws` each run is timed again with so many draws of the clocks' errors,
    for their intervals. Raises ConfigError if no run has the labels of the baseline, or none can be timed again.
    """
    labels = {run: label_of(study, cell) for cell, run in runs}
    groups_of = {label_of(study, cell): cell.group for cell, _ in runs}
    values = values_of(study, runs)
    rows = summarised(values)
    known = [name for name in study.columns if rows["reached"][rows["column"] == name].any() or "@" in name]
    lower = {name: (better := parse_column(name).better) and better == "lower" for name in known}
    summary = with_setting(with_middle(rows, known), study)
    compares = [name for name in known if lower[name] is not None]
    wanted = baseline or {}
    held = next((label for label, group in groups_of.items() if wanted.items() <= group.items()), None)
    if held is None:
        raise ConfigError(
            f"--baseline: no configuration is {', '.join(f'{axis}={label}' for axis, label in wanted.items())} "
            f"(known: {'; '.join(name_of(group) for group in groups_of.values())})"
        )
    found = ComparedSettings(study, values, summary, groups_of, lower)
    against = pd.concat([found.against(held, name) for name in compares] or [pd.DataFrame(columns=_COMPARED)])
    contests, clocks = found.contests(), None
    if draws:
        drawn = clock_intervals(study, runs, known, draws)
        clocks = ClockErrors(draws=draws, rows=with_setting(drawn.rows, study), notes=drawn.notes)
        contests = [with_order(contest, groups_of, drawn) for contest in contests]
    of_first = against[against["column"] == contests[0].of] if contests else against
    seeds = seeds_needed(study, of_first, commands[0] if commands else "")
    currencies = {run.currency for run in labels}
    currency = currencies.pop() if len(currencies) == 1 else ""
    scenarios = [run.manifest["scenario"] for run in labels]
    common = {key: value for key, value in scenarios[0].items() if all(each.get(key) == value for each in scenarios)}
    empty: tuple[Any, ...] = (None, [], (), {}, "")
    replaced = {
        section
        for section in COMMON
        if all(each.get("fleet") and all(block.get(section) for block in each["fleet"]) for each in scenarios)
    }
    parts = []
    sections = ((kind, each.get(kind)) for kind in _KINDS if kind not in replaced for each in scenarios)
    named = ((kind, str(part["name"])) for kind, part in sections if isinstance(part, Mapping) and "name" in part)
    for kind, name in dict.fromkeys(named):
        if name and not is_outside(kind, name):  # a report does not import classes from outside
            with suppress(ConfigError):  # the run may come from a version with another catalogue
                facts = describe(kind, name)
                parts.append(CatalogueEntry(kind=kind, name=name, what=facts.what, source=facts.source))
    made = [
        Made(
            run=run.name,
            setting=label,
            seed=str(run.seed),
            status=run.status,
            date=str(run.manifest.get("date", "")),
            digest=str(run.manifest.get("digest", "")),
            command=" ".join(run.manifest.get("command") or []),
            versions=run.manifest.get("versions", {}),
        )
        for run, label in labels.items()
    ]
    return Findings(
        title=title or study.name,
        question=question or study.question,
        settings=tuple(groups_of),
        axes={axis: {label: level(axis, label) for label in map(str, values[axis])} for axis in axes_of(values)},
        columns=tuple(known),
        lower=lower,
        baseline=held,
        values=with_setting(values, study),
        summary=summary,
        compared=against,
        contests=contests,
        choice=found.choice(contests, seeds.needed),
        effects=found.effects(contests[0].of, held, of_first) if contests else None,
        seeds=seeds,
        levels=levels_of(runs, groups_of[held]),
        tradeoffs=list(_tradeoffs(study, summary, lower)),
        targets=sorted({target for run in labels for target in run.targets}),
        points=figure_numbers.accuracy_points(labels),
        energy=figure_numbers.energy_by_activity(labels),
        accounts=figure_numbers.energy_by_account(labels),
        devices=figure_numbers.energy_by_device(labels),
        lengths=figure_numbers.lengths_of_rounds(labels),
        costs=figure_numbers.cost_points(labels),
        cost_items=figure_numbers.cost_by_item(labels),
        currency=currency,
        slowest=_slowest(labels),
        fleet=next(iter(labels)).participation(),
        scenario=[
            (key.replace("_", " "), said)
            for key, value in common.items()
            if key not in (*_LEFT_OUT, *replaced) and value not in empty and (said := section_words(key, value))
        ],
        parts=parts,
        made=made,
        commands=tuple(commands),
        notes=tuple([*notes, *_notes(labels)]),
        clocks=clocks,
        models=tuple(dict.fromkeys((run.learned_by, run.charged_as) for run in labels if run.charged_as)),
    )


# --- statistics -------------------------------------------------------------------------------------------------


def _tradeoffs(study: Study, summary: pd.DataFrame, lower: Mapping[str, bool | None]) -> Iterator[Tradeoff]:
    """Yield at most two pairs of columns: two costs, and a cost with a gain. Each quantity has one column."""
    there = {name: summary["middle"][summary["column"] == name].map(math.isfinite).sum() > 1 for name in lower}
    order = sorted(filter(there.get, lower), key=lambda name: "@" not in name)
    of_quantity = {name.partition("@")[0]: name for name in reversed(order) if lower[name] is not None}
    shown = [name for name in order if name in of_quantity.values()]
    costs, gains = ([name for name in shown if lower[name] is less] for less in (True, False))
    pairs = [tuple(costs[:2])] if len(costs) > 1 else []
    pairs += [(costs[:2][-1], gains[0])] if costs and gains else []
    for x, y in pairs:
        points = front_points(study, summary, x, y)
        if len(points) > 1:
            yield Tradeoff(x=x, y=y, points=points)


def front_points(study: Study, summary: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """Return the settings with a number in both columns `x` and `y`.

    Columns: setting; x and y, each also with _low and _high; front. `summary`: a table from `with_middle`. Raises
    ConfigError if the better direction of a column is unknown.
    """
    axes = axes_of(summary)
    found = front(summary, [x, y]).assign(column="")[[*axes, "column", "on_front"]]
    points = with_setting(found, study)[["setting", "on_front"]].rename(columns={"on_front": "front"})
    for name in (x, y):
        of = with_setting(summary[summary["column"] == name], study).set_index("setting")
        of = of[["middle", "middle_low", "middle_high"]]
        points = points.join(of.set_axis([name, f"{name}_low", f"{name}_high"], axis="columns"), on="setting")
    there = points[[x, y]].map(math.isfinite).all(axis=1)
    return points[there].reset_index(drop=True)


# --- facts ------------------------------------------------------------------------------------------------------


def _slowest(labels: Mapping[Run, str]) -> SlowestRound | None:
    """Return the longest round of all runs; None if no run has closed a round."""
    longest = [
        (float(lengths.max()), run, int(run.rounds["round"].iloc[int(lengths.to_numpy().argmax())]) + 1)
        for run in labels
        if len(lengths := run.rounds["now_s"] - run.rounds["start_s"])
    ]
    if not longest:
        return None
    _, run, number = max(longest, key=lambda each: each[0])
    found = figure_numbers.round_bars(run, number)
    return SlowestRound(run=run.name, setting=labels[run], lines=explain(run, number).splitlines(), found=found)


def _notes(labels: Mapping[Run, str]) -> Iterator[str]:
    unfinished = [f"{run.name} ({run.status})" for run in labels if not run.finished]
    if unfinished:
        yield f"{len(unfinished)} of {len(labels)} runs did not finish: {', '.join(unfinished)}."
    yield from (f"{line}." for line in lost_runs({run.name: run.manifest for run in labels}))
    for line in once([run.manifest.get("warnings", ()) for run in labels]):
        yield f"{line}."  # begins with a key


# --- settings: groups of runs that differ only in the seed ----------------------------------------------------------


def with_middle(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return a summary with the mean or median that the report shows for each row, and its interval.

    The interval of a mean is that of `told_interval`.
    """
    statistics = typical(rows, columns).statistics
    shown = []
    for row in rows.to_dict("records"):
        if statistics.get(row["column"]) == "km_median":
            shown.append((row["km_median"], row["km_low"], row["km_high"], "median"))
        else:
            shown.append((row["mean"], *told_interval(row, row["runs"]), "mean"))
    names = ["middle", "middle_low", "middle_high", "statistic"]
    return rows.join(pd.DataFrame(shown, columns=names, index=rows.index))


def run_names(runs: Sequence[AnyRun]) -> dict[AnyRun, str]:
    """Return the names of runs without a study for readers, equal for runs that differ in their seed alone."""
    return {run: level(CONFIGURATION, label) for run, label in groups(runs, exact_words).items()}


def study_of(runs: Sequence[Run]) -> tuple[Study, list[tuple[StudyCell, Run]]]:
    """Return runs as a study. Runs that differ only in seed, name and backend are one configuration.

    Columns: time and energy to each target, the highest accuracy first and metrics last, then the amounts spent and the
    best accuracy. Raises ConfigError if two runs of a configuration have the same seed, because they cannot be paired.
    """
    labels = groups(runs, exact_words)
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
    metrics = sorted({target for run in runs for target in run.metric_targets})
    until = [f"{target:g}" for target in targets] + [f"{metric}:{target:g}" for metric, target in metrics]
    columns = [f"{name}@{target}" for target in until for name in ("sim_time_s", "energy_j")]
    columns += ["sim_time_s", "energy_j", "traffic_bytes"]
    if any(len(run.evals) for run in runs):
        columns.append("best_accuracy")
    study = Study.model_construct(name=title, question="", base="", axes=axes, columns=tuple(columns))
    return study, [(StudyCell({CONFIGURATION: names[run], SEED: str(run.seed)}, ()), run) for run in runs]
