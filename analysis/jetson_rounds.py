"""Whole rounds of ten Jetson AGX Xavier, fitted on rounds of one epoch: predicted against measured.

Prints the table of docs/explanation/time_and_energy.md. Run from the repository's root:
python analysis/jetson_rounds.py
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import edgesim
from edgesim.config.load import load_scenario
from edgesim.runs.simulate import simulate

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "scenarios" / "jetson_rounds.toml"
MEASURED = ROOT / "benchmarks" / "devices"
WATTS = 23.5  # of a board that trains; an assumption, see docs/explanation/time_and_energy.md
MISSED_S = 1.0  # of a round, which the measured integral of power leaves out: one reading of the meter, once a second
FIRST_S = 9.0  # that the first round takes more


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a measured table."""
    with (MEASURED / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measured_s(epochs: int) -> tuple[float, int]:
    """Return the mean seconds of a measured round, and the rounds of a run."""
    found = [row for row in rows("jetson_rounds.csv") if int(row["local_epochs"]) == epochs]
    return mean(float(row["seconds_per_round"]) for row in found), int(found[0]["rounds"])


def measured_j(epochs: int) -> float:
    """Return the corrected joules of a client's round of FedAvg."""
    found = [row for row in rows("jetson_joules.csv") if (row["role"], row["strategy"]) == ("client", "fedavg")]
    return mean(float(row["joules_corrected"]) for row in found if int(row["local_epochs"]) == epochs)


def fit(watts: float = WATTS) -> Mapping[str, float]:
    """Return seconds of a sample and of the framework, from the seconds and joules of rounds of one epoch.

    The joules of one epoch, uncorrected, over the watts are the seconds that the meter saw.
    """
    samples = [int(row["trained_samples"]) for row in rows("jetson_clients.csv")]
    one = [row for row in rows("jetson_joules.csv") if (row["role"], row["local_epochs"]) == ("client", "1")]
    seen_j = next(float(row["joules_per_round"]) for row in one if row["strategy"] == "fedavg")
    per_sample_s = (seen_j / watts + MISSED_S) / mean(samples)
    round_s, rounds = measured_s(1)
    return {
        "per_sample_s": per_sample_s,
        "round_overhead_s": round_s - FIRST_S / rounds - max(samples) * per_sample_s,
    }


def predicted(epochs: int, watts: float = WATTS) -> tuple[float, float]:
    """Return the seconds of a round and the joules of a client, as the scenario's run has them with these watts."""
    found = fit(watts)
    table = edgesim.load(SCENARIO).canonical()
    table["training"]["local_epochs"] = epochs
    table["stop"]["rounds"] = measured_s(epochs)[1]
    table["energy"]["busy"] = watts
    table["fleet"][0]["cpu"]["clock"]["samples"] = found["per_sample_s"]
    table["server"]["round_overhead"] = found["round_overhead_s"]
    last = simulate(load_scenario(table)).table("rounds").iloc[-1]
    rounds, devices = table["stop"]["rounds"], table["fleet"][0]["count"]
    return last.now_s / rounds, last.total_energy_j / rounds / devices


def main() -> None:
    """Print the table."""
    print("| epochs | measured, s | predicted, s | error | measured, J | predicted, J | error |")
    print("|---|---|---|---|---|---|---|")
    for epochs in 1, 3, 5:
        real_s, real_j = measured_s(epochs)[0], measured_j(epochs)
        found_s, found_j = predicted(epochs)
        seconds = f"{real_s:.1f} | {found_s:.1f} | {found_s / real_s - 1:+.1%}"
        print(f"| {epochs} | {seconds} | {real_j:.1f} | {found_j:.1f} | {found_j / real_j - 1:+.1%} |")


if __name__ == "__main__":
    main()
