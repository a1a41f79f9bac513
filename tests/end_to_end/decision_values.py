"""Numbers of the runs of the example decisions, so that tests can decide again without running them.

`python -m tests.end_to_end.decision_values FOLDER`, after the six studies ran with `--runs FOLDER/NAME`, writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgesim.reports.load import Run
from edgesim.studies.runs import plan
from edgesim.studies.study import load_study
from edgesim.studies.values import axes_of, values_of
from tests.conventions.source_tree import ROOT

FOLDER = ROOT / "scenarios" / "decisions"
FILE = ROOT / "docs" / "data" / "decisions.csv"
_NUMBERS = ("column", "value", "observed", "never")
COLUMNS = 3  # of each study: those that its report answers with


def values_in(name: str, runs: Path, only: Sequence[str] = ()) -> pd.DataFrame:
    """Return the values of a decision's study, as `values_of` does, from the folder of its runs.

    `only`: the cells, as `Study.cells` takes them.
    """
    study = load_study(FOLDER / f"{name}.toml")
    cells = [(each.cell, Run.open(each.folder)) for each in plan(study, FOLDER / f"{name}.toml", "quick", only, runs)]
    return values_of(study, cells, study.columns[:COLUMNS])


def recorded_values(name: str) -> pd.DataFrame:
    """Return the values of a decision's study from FILE. A decision has one or two axes beside the seed."""
    rows = pd.read_csv(FILE, dtype={"seed": str})
    rows = rows[rows["study"] == name]
    axes = rows["cell"].iloc[0].split(",")
    labels: dict[str, list[str]] = {each.partition("=")[0]: [] for each in axes}
    for cell in rows["cell"]:
        for each in cell.split(","):
            axis, _, label = each.partition("=")
            labels[axis].append(label)
    return pd.DataFrame({**labels, **{key: rows[key].to_list() for key in ("seed", *_NUMBERS)}})


def main(folder: Path) -> None:
    """Write FILE from the runs in the sub-folders of `folder`."""
    frames = []
    for name in sorted(path.name for path in folder.iterdir() if (FOLDER / f"{path.name}.toml").is_file()):
        values = values_in(name, folder / name)
        axes = axes_of(values)
        cells = [",".join(f"{axis}={row[axis]}" for axis in axes) for row in values.to_dict("records")]
        frames.append(values.drop(columns=axes).assign(study=name, cell=cells))
    pd.concat(frames)[["study", "cell", "seed", *_NUMBERS]].to_csv(FILE, index=False, float_format="%.8g")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
