"""Which protocol reaches 75 % first? Runs what is missing below the folder OUT, one seed after another, and tabulates.

Usage: python analysis/protocols_to_target.py OUT [--seeds 3] [--only-table]
A table of mean and standard deviation over the seeds of simulated time, energy of the whole fleet, bytes sent and
received, and updates, until the test accuracy first is at the target; and of how many seeds got there.
"""

from pathlib import Path

import pandas as pd
import typer

import edgesim
from edgesim.analysis.load import Run

BASE = Path(__file__).parent.parent / "scenarios" / "protocols_fashion.toml"
TARGET = 0.75
PARTITIONS = {
    "iid": "{name='iid', samples_per_device=600}",
    "2-class": "{name='two_class', samples_per_device=600}",
}
# All have ten devices at work, or keep ten; evaluation is every ten updates.
PROTOCOLS = {
    "sync": [],
    "over-selected": ["selection.count=13", "coordinator={name='over_selection', keep=10}"],
    "deadline": ["coordinator={name='deadline', rule='quantile', quantile=0.8}"],
    "FedBuff": ["method=fedbuff", "selection=all", "coordinator={name='buffered', concurrency=10, buffer=10}"],
    "FedAsync": [
        "method=fedasync",
        "selection=all",
        "coordinator={name='buffered', concurrency=10, buffer=1}",
        "evaluation.every=10",
        "stop.rounds=3000",
    ],
}


def reached(run: Run) -> dict[str, float] | None:
    """Return what a run had spent when its accuracy first was at the target, None if it never was."""
    evals = run.evals[(run.evals["split"] == "test") & (run.evals["accuracy"] >= TARGET)]
    if evals.empty:
        return None
    last = int(evals["round"].iloc[0])
    merges = run.merges.set_index("round")
    row = merges.loc[last]
    traffic_bytes = row["total_down_bytes"] + row["total_up_bytes"]
    return {
        "time_s": row["now_s"],
        "energy_kj": row["total_energy_j"] / 1e3,
        "traffic_mb": traffic_bytes / 1e6,
        "updates": merges.loc[:last, "used"].sum(),
    }


def table(out: Path) -> pd.DataFrame:
    """Return a row for each partition and protocol of which there are runs."""
    rows = []
    for partition in PARTITIONS:
        for protocol in PROTOCOLS:
            runs = [edgesim.open(folder) for folder in sorted(out.glob(f"{partition}.{protocol}.*"))]
            found = pd.DataFrame([r for r in map(reached, runs) if r is not None])
            row = {"partition": partition, "protocol": protocol, "seeds": len(runs), "reached": len(found)}
            for column in found:
                row |= {column: found[column].mean(), f"{column}_sd": found[column].std()}
            rows.append(row)
    return pd.DataFrame(rows)


def main(out: Path, seeds: int = 3, only_table: bool = False) -> None:
    """Run what is missing and print the table as CSV."""
    for seed in range(1, 0 if only_table else seeds + 1):
        for partition, split in PARTITIONS.items():
            for protocol, changes in PROTOCOLS.items():
                folder = out / f"{partition}.{protocol}.{seed}"
                if not folder.exists():
                    edgesim.run(BASE, [f"seed={seed}", f"partition={split}", *changes], folder)
    print(table(out).to_csv(index=False, float_format="%.4g"), end="")


if __name__ == "__main__":
    typer.run(main)
