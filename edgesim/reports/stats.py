"""Numbers of a run for comparisons: accuracy, and its cost in time, energy and traffic.

Tables count rounds from 0. Here `round` is the number of rounds done, so the first round of a table is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.metrics import ACCURACY, Better, is_reached
from edgesim.records.run import RecordedRun
from edgesim.records.schema import COSTS as CHARGES

# Columns total_NAME of the table rounds. A study's columns may have these names.
JOULES = ("energy_j", "active_j", "idle_j", "participant_j", "energy_network_j", "energy_server_j")
_REAL = [*JOULES, *CHARGES]
_WHOLE = {"up_bytes": "int64", "down_bytes": "int64"}
# Columns of the cost of a target accuracy.
COSTS = ["round", "sim_time_s", *_REAL, *_WHOLE]
_TOTALS = {f"total_{name}": name for name in [*COSTS[2:], "flops"]}


def costs_of(run: RecordedRun) -> list[str]:
    """Return the names in COSTS that a run has. Money and carbon are known only with prices."""
    return [name for name in COSTS if run.is_priced or name not in CHARGES]


def curve(run: RecordedRun, split: str = "test") -> pd.DataFrame:
    """Return a row per evaluation of `split`: rounds done, the fleet's cost so far, loss, accuracy and metrics.

    Columns: round, sim_time_s, the names in JOULES, money and carbon for runs with prices, up_bytes, down_bytes, flops,
    loss, accuracy, and the metrics of `RecordedRun.better` by name. The table rounds defines the costs. An evaluation
    before the first round costs nothing.
    """
    kept = f"curve of {split}"
    if kept in run.derived:
        return run.derived[kept].copy()
    evals = run.evals[run.evals["split"] == split].rename(columns={"now_s": "sim_time_s"})
    spent = run.rounds[["round", *_TOTALS]].rename(columns=_TOTALS)
    points = pd.merge_asof(evals.sort_values("round", kind="stable"), spent.sort_values("round"), on="round")
    points = points.fillna(dict.fromkeys(_TOTALS.values(), 0)).astype(_WHOLE)
    before, own = "" if split == "test" else f"{split}_", [name for name in run.better if name not in points]
    for name in own:
        of_metric = run.metrics[(run.metrics["name"] == f"{before}{name}") & (run.metrics["device"] == -1)]
        points[name] = points["round"].map(of_metric.drop_duplicates("round", keep="last").set_index("round")["value"])
    points["round"] += 1
    run.derived[kept] = points[[*costs_of(run), "flops", "loss", "accuracy", *own]]
    return run.derived[kept].copy()


def first_crossing(
    points: pd.DataFrame, target: float, metric: str = ACCURACY, better: Better = "higher"
) -> dict[str, Any] | None:
    """Return the costs at the first row of a curve whose metric is at the target or better, None if there is none.

    Keys: round (rounds done), sim_time_s, the names in JOULES, money and carbon for runs with prices, up_bytes and
    down_bytes.
    """
    reached = points[is_reached(points[metric], target, better)]
    return None if reached.empty else {name: reached[name].iloc[0].item() for name in COSTS if name in reached}


def last_crossing(
    points: pd.DataFrame, target: float, metric: str = ACCURACY, better: Better = "higher"
) -> dict[str, Any] | None:
    """Return the costs, as `first_crossing`, at the row from which on the metric stays at the target or better.

    None if it is not there at the end.
    """
    short = (~is_reached(points[metric], target, better)).to_numpy().nonzero()[0]
    return first_crossing(points.iloc[short[-1] + 1 :] if len(short) else points, target, metric, better)


def smoothed(points: pd.DataFrame, mean_of: int, metric: str = ACCURACY) -> pd.DataFrame:
    """Return a curve whose metric is the mean of the last `mean_of` evaluations. It begins at evaluation `mean_of`."""
    if mean_of == 1:
        return points
    return points.assign(**{metric: points[metric].rolling(mean_of).mean()}).iloc[mean_of - 1 :]


def area(run: RecordedRun, until_s: float | None = None) -> float | None:
    """Return the area under accuracy over simulated time, divided by the time: a mean accuracy, from 0 to 1.

    At every moment the accuracy is the one of the last evaluation, or 0 before the first. The time begins at 0 and ends
    at `until_s`, or else with the run. None if nothing was evaluated, or the run was shorter.
    Source: the step-function area under the learning curve (ALC) of Liu et al., "Winning solutions and post-challenge
    analyses of the ChaLearn AutoDL challenge 2019" (IEEE TPAMI 43(9), 2021).
    Differs: time counts as it is, not by its logarithm, and the area is not scaled to [-1, 1].
    """
    points = curve(run)
    end_s = float(_end(run)["sim_time_s"])
    until_s = end_s if until_s is None else until_s
    if points.empty or not 0 < until_s <= end_s:
        return None
    times_s = points["sim_time_s"].clip(upper=until_s).to_numpy(dtype=float)
    lasted_s = np.diff(times_s, append=until_s)
    return float(lasted_s @ points["accuracy"].to_numpy(dtype=float) / until_s)


def summary(run: RecordedRun) -> dict[str, Any]:
    """Return the run as one mapping of plain numbers. Accuracies are None if nothing was evaluated.

    Keys: method, status, rounds, accuracy (last evaluation), best_accuracy, each metric of the objective (last value)
    and best_METRIC, sim_time_s, the names in JOULES, money and carbon for runs with prices, up_bytes, down_bytes,
    flops, host_s, diverged (None, or the manifest's entry), and targets, which maps each target to its first crossing
    or None. Costs are at the end of the run, or at the end of its last round if it did not finish. The key charged_as
    names the network whose costs are charged if it is not the scenario's own.
    """
    points = curve(run)
    accuracy = points["accuracy"].dropna()
    own = [name for name in run.better if name not in (ACCURACY, "loss")]
    return {
        "method": run.method,
        "status": run.status,
        **({"charged_as": run.charged_as} if run.charged_as else {}),
        **_end(run),
        "accuracy": None if accuracy.empty else float(accuracy.iloc[-1]),
        "best_accuracy": None if accuracy.empty else float(accuracy.max()),
        **{name: value for metric in own for name, value in last_and_best(points, metric, run.better[metric]).items()},
        "host_s": run.manifest["host_s"],
        "diverged": run.manifest.get("diverged"),  # older runs do not say
        "targets": {
            said: first_crossing(points, target, metric, better) for said, target, metric, better in _targets(run)
        },
    }


def last_and_best(points: pd.DataFrame, metric: str, better: Better) -> dict[str, float | None]:
    """Return the last and the best value of a metric of a curve, under NAME and best_NAME; None without any."""
    values = points[metric].dropna()
    best = values.max() if better == "higher" else values.min()
    found = (None, None) if values.empty else (float(values.iloc[-1]), float(best))
    return dict(zip((metric, f"best_{metric}"), found, strict=True))


def _targets(run: RecordedRun) -> Iterator[tuple[str, float, str, Better]]:
    """Yield each target of a run: its text, its value, its metric, and the direction in which the metric is better."""
    for target in run.targets:
        yield f"{target:g}", target, ACCURACY, "higher"
    for metric, target in run.metric_targets:
        yield f"{metric}:{target:g}", target, metric, run.better[metric]


def targets_table(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """Return a row for each run and target: run, status, method, seed, target, and costs of the first crossing.

    Costs of a target that was not reached are missing values. If any target is not an accuracy, a column metric names
    the metric.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        points = curve(run)
        for _, target, metric, better in _targets(run):
            label = {"run": run.name, "status": run.status, "method": run.method, "seed": run.seed}
            spent = first_crossing(points, target, metric, better) or {}
            rows.append(label | {"metric": metric, "target": target} | spent)
    named = ["metric"] if any(run.metric_targets for run in runs) else []
    priced = any(run.is_priced for run in runs)
    known = [name for name in COSTS if priced or name not in CHARGES]
    frame = pd.DataFrame(rows, columns=["run", "status", "method", "seed", *named, "target", *known])
    whole = ["round", *_WHOLE]
    return frame.astype({name: "Int64" if name in whole else "float64" for name in known})


def energy_by_kind(run: RecordedRun) -> pd.DataFrame:
    """Return joules by kind of device (index): down_j, compute_j, up_j, idle_j, sleep_j. The server is one kind."""
    return run.devices.groupby("kind")[["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]].sum()


def _end(run: RecordedRun) -> dict[str, Any]:
    unknown = set(CHARGES) - set(costs_of(run))
    names = {"now_s": "sim_time_s"} | {total: name for total, name in _TOTALS.items() if name not in unknown}
    if run.rounds.empty:
        last = dict.fromkeys(names.values(), 0)
    else:
        last = {short: run.rounds[name].iloc[-1].item() for name, short in names.items()}
    # a finished run may have gone on after its last round, to the end of its simulated time
    totals = {name: value for name, value in (run.manifest.get("totals") or {}).items() if name not in unknown}
    return {"rounds": len(run.rounds)} | last | totals
