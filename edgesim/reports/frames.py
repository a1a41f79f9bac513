"""Frames of several runs, for pictures and reports. Each row has the label of its run's setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from edgesim.records.schema import COSTS
from edgesim.reports.cost import cost_by
from edgesim.reports.curves import points_of
from edgesim.reports.energy import split_energy
from edgesim.reports.load import Run

_TOTALS = [f"total_{name}" for name in COSTS]


def accuracy_points(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per evaluation of the test split: setting, run, accuracy and the cost so far; see `points_of`."""
    return _together(settings, points_of)


def energy_by_activity(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per run and activity of the devices: setting, run, activity, joules; see `energy_by`."""
    return _together(settings, lambda run: run.energy_by("activity")[["joules"]].reset_index())


def energy_by_account(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per run: setting, run, and the joules of devices, network and server; see `split_energy`."""
    return _together(settings, lambda run: pd.DataFrame([split_energy(run)]))


def energy_by_device(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per run and device but the server: setting, run, device, joules, idle power included."""
    uses = ["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]

    def joules(run: Run) -> pd.DataFrame:
        devices = run.devices[run.devices["device"] >= 0]
        return pd.DataFrame({"device": devices["device"], "joules": devices[uses].sum(axis=1)})

    return _together(settings, joules)


def lengths_of_rounds(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per closed round: setting, run, round (from 1), length_s."""
    return _together(
        settings,
        lambda run: pd.DataFrame(
            {"round": run.rounds["round"] + 1, "length_s": run.rounds["now_s"] - run.rounds["start_s"]}
        ),
    )


def cost_points(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per closed round of runs with prices: setting, run, sim_time_s, and totals of money and carbon.

    The totals are total_cost and total_co2e_g with low and high, as in the table rounds. No row without priced runs.
    """
    return _together(
        _priced(settings), lambda run: run.rounds[["now_s", *_TOTALS]].rename(columns={"now_s": "sim_time_s"})
    )


def cost_by_item(settings: Mapping[Run, str]) -> pd.DataFrame:
    """Return a row per item of each run with prices: setting, run, item, and money and carbon with low and high."""
    return _together(_priced(settings), lambda run: cost_by(run, "item"))


def _priced(settings: Mapping[Run, str]) -> dict[Run, str]:
    return {run: label for run, label in settings.items() if run.is_priced}


def _together(settings: Mapping[Run, str], of: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
    """Return the frames of runs below each other, with setting and run, the number of the run."""
    frames = [of(run).assign(setting=label, run=place) for place, (run, label) in enumerate(settings.items())]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["setting", "run"])
