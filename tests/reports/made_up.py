"""Run folders as a study of four methods would leave them: made up, so that who wins and who never arrives is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgesim.records.schema import recorded
from edgesim.reports.load import Run
from tests.records.written import new_tables, write

KINDS = {"phone": 5, "single-board computer": 3, "sensor": 2}
COMPUTE_S = {"phone": 4.0, "single-board computer": 7.0, "sensor": 12.0}
ROUNDS, ASKED, TARGET = 12, 4, 0.8
HOSTILE = "<script>alert('x')</script> & a rather long name of a method"
# Rounds until accuracy has grown by 63 % of what is left, and what it grows to: the last one does not reach the target.
METHODS = {"fedavg": (4.0, 0.93), "fedprox": (4.4, 0.93), "fedpmt": (2.2, 0.92), HOSTILE: (5.0, 0.74)}
SEEDS = range(1, 8)


def runs(folder: Path, seeds: range = SEEDS) -> list[Run]:
    """Write a run for each method and seed and open them."""
    return [run(folder / f"{place}-{seed}", name, seed) for place, name in enumerate(METHODS) for seed in seeds]


def run(folder: Path, method: str, seed: int) -> Run:
    """Write a run of synchronous rounds; all joules of jobs stand with their devices too."""
    rng = np.random.default_rng((seed, list(METHODS).index(method)))
    kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
    tables, spent = new_tables(), np.zeros((len(kinds), 5))  # jobs, busy_s, down_j, compute_j, up_j
    pace, ceiling = METHODS[method]
    luck = 1.0 + 0.08 * np.random.default_rng(seed).standard_normal()  # of a seed, for all methods alike
    now_s = joules = 0.0
    for r in range(ROUNDS):
        start_s, job_joules = now_s, 0.0
        for device in sorted(rng.choice(len(kinds), ASKED, replace=False).tolist()):
            phases = np.array([0.5, COMPUTE_S[kinds[device]], 1.5]) * rng.uniform(0.8, 1.2, 3)
            uses = phases * np.array([0.5, 4.0, 1.0])
            spent[device] += [1, phases.sum(), *uses]
            job_joules += float(uses.sum())
            now_s = max(now_s, start_s + float(phases.sum()))
            tables["jobs"].append(_row("jobs", _job(len(tables["jobs"]), device, r, start_s, phases, uses)))
        idle_j = len(kinds) * (now_s - start_s)
        joules += job_joules + idle_j
        tables["rounds"].append(_row("rounds", _round(r, start_s, now_s, job_joules, idle_j, joules)))
        accuracy = ceiling * (1 - np.exp(-(r + 1) / (pace * luck))) + 0.004 * rng.standard_normal()
        tables["evals"].append((r, r + 1, now_s, "test", 1.0 - accuracy, float(accuracy), 500))
    for device, kind in enumerate(kinds):
        jobs, busy_s, *uses = spent[device].tolist()
        counts = (int(jobs), int(jobs), busy_s, int(200 * jobs), int(100 * jobs))
        tables["devices"].append((device, kind, 1, *counts, *uses, now_s, 0.0))
    return write(folder, tables, manifest(method, seed))


def manifest(method: str, seed: int) -> dict[str, Any]:
    scenario = {
        "seed": seed,
        "method": {"name": method},
        "protocol": {"name": "sync"},
        "training": {"batch": 16, "lr": 0.1},
        "evaluation": {"targets": [TARGET]},
        "selection": {"name": "uniform", "count": ASKED},
    }
    facts = {"date": "2026-01-01T00:00:00+00:00", "digest": "0123456789abcdef" * 4, "versions": {"edgesim": "0.2.0"}}
    return {"name": "digits on a small fleet", "scenario": scenario, "rounds": ROUNDS, **facts}


def _row(table: str, known: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row in the order of the table; what is not told is 0."""
    empty = {name: "" if kind == "str" else 0 if kind == "int64" else 0.0 for name, kind in recorded(table).items()}
    assert known.keys() <= empty.keys()
    return tuple((empty | known).values())


def _job(job: int, device: int, r: int, sent_s: float, phases: np.ndarray, uses: np.ndarray) -> dict[str, Any]:
    times = dict(zip(("down_s", "compute_s", "up_s"), phases.tolist(), strict=True))
    joules = dict(zip(("down_j", "compute_j", "up_j"), uses.tolist(), strict=True))
    about = {"job": job, "device": device, "round": r, "base_version": r, "task": "train", "submodel": "full"}
    ended = {"sent_s": sent_s, "end_s": sent_s + float(phases.sum()), "outcome": "ok"}
    return {**about, **times, **ended, "flops": 1e6, "down_bytes": 200, "up_bytes": 100, **joules}


def _round(r: int, start_s: float, now_s: float, active_j: float, idle_j: float, total_j: float) -> dict[str, Any]:
    n = r + 1
    own = {"energy_j": active_j + idle_j, "active_j": active_j, "idle_j": idle_j, "participant_j": active_j + idle_j}
    sums = {"total_energy_j": total_j, "total_active_j": total_j / 3, "total_idle_j": 2 * total_j / 3}
    moved = {"total_flops": 4e6 * n, "total_down_bytes": 800 * n, "total_up_bytes": 400 * n}
    about = {"round": r, "version": n, "start_s": start_s, "now_s": now_s, "asked": ASKED, "used": ASKED}
    ended = {"closed_by": "all", "deadline_s": np.inf, "flops": 4e6, "down_bytes": 800, "up_bytes": 400}
    return {**about, **ended, **own, **sums, **moved, "total_participant_j": total_j}


def with_prices(findings: Any) -> Any:
    """Return findings with what priced runs have beside: money and carbon with low and high, over time and by item."""
    seconds = np.linspace(0, 150, 13)
    points, items = [], []
    for place, label in enumerate(findings.settings):
        typical, grams = (1 + 0.2 * place) * seconds / 100, 30 * seconds
        totals = {
            "total_cost_low": seconds / 130, "total_cost": typical, "total_cost_high": seconds / 70,
            "total_co2e_low_g": 0.8 * grams, "total_co2e_g": grams, "total_co2e_high_g": 1.2 * grams,
        }  # fmt: skip
        points.append(pd.DataFrame({"setting": label, "run": place, "sim_time_s": seconds, **totals}))
        shares = pd.DataFrame({"item": ["payments", "data", "idle"], "cost": [0.6, 0.3, 0.1]})
        items.append(shares.assign(setting=label, run=place, cost=shares["cost"] * typical[-1]))
    frames = {"costs": pd.concat(points, ignore_index=True), "cost_items": pd.concat(items, ignore_index=True)}
    return dataclasses.replace(findings, **frames, currency="EUR")
