"""Has a change moved a number? Usage: python analysis/timing_table.py [FOLDER] [--out STEM]

Does by hand what `edgesim check` does in CI: runs the cells of a golden table anew and compares the numbers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import pandas as pd
import seaborn
import typer

from edgesim.cli.main import run_script
from edgesim.core.errors import EdgesimError
from edgesim.reports.figures import INK, PALETTE, figure, save
from edgesim.studies.column import parse_column
from edgesim.studies.golden import JOB, load_golden
from edgesim.studies.runs import run_all

GOLDEN = Path(__file__).parents[1] / "golden" / "wireless_cell"
SAME = 1e-12  # relative: the last bits of sums differ between CPUs


def long(cells: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of two tables in one column `value`, by cell, job ("" for a number of the cell) and column."""
    parts = [cells.melt(["cell"], var_name="column").assign(job=""), jobs.melt(["cell", "job"], var_name="column")]
    parts[1]["column"] = "jobs." + parts[1]["column"]
    return pd.concat(parts).set_index(["cell", "job", "column"])


def main(folder: Annotated[Path, typer.Argument()] = GOLDEN, out: Path = Path("timing_table")) -> None:
    """Print CSV, a row for each column, and draw the end of every job, stored and found. Exit code 1 on a difference.

    Columns with a tolerance in golden.toml, such as what is learned, are left to `edgesim check`.
    """
    golden = load_golden(folder)
    cells, jobs = [], []
    with TemporaryDirectory() as runs:
        for step in run_all(golden.plan(Path(runs))):
            if step.fault:
                raise EdgesimError(step.fault)
            if step.ended and (run := step.ended.kept()) is not None:
                name, table = step.ended.cell.name, run.jobs
                table = table[table["round"] < (golden.file.rounds or len(run.rounds))]
                cells.append({"cell": name, **{each: parse_column(each).of(run) for each in golden.study.columns}})
                jobs.append(table[list(JOB)].assign(cell=name))
    stored = long(*(pd.read_csv(folder / f"{name}.csv", comment="#") for name in ("cells", "jobs")))
    found = long(pd.DataFrame(cells), pd.concat(jobs))
    both = stored.add_suffix("_stored").join(found.add_suffix("_found"), how="outer").reset_index()
    both = both[~both["column"].isin(golden.file.tolerances)]
    numbers = both[["value_stored", "value_found"]].apply(pd.to_numeric, errors="coerce")
    is_text = numbers.isna().any(axis=1)
    off = (numbers["value_found"] - numbers["value_stored"]).abs() / numbers["value_stored"].abs().clip(lower=1e-300)
    both["differs"] = (off > SAME).where(~is_text, both["value_stored"] != both["value_found"])
    table = both.assign(off=off).groupby("column", sort=False).agg(
        numbers=("differs", "size"), differ=("differs", "sum"), largest=("off", "max")
    )  # fmt: skip
    print(table.to_csv(float_format="%.3g"), end="")

    ends = both.assign(**numbers)[both["column"] == "jobs.end_s"]
    with figure(4.6, 3.4) as drawn:
        axis = drawn.subplots()
        axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, zorder=1)
        seaborn.scatterplot(ends, x="value_stored", y="value_found", hue="cell", palette=PALETTE, s=18, ax=axis)
        axis.set(xlabel="end of a job, stored (s)", ylabel="found now (s)")
        for path in save(drawn, out):
            print(path)
    raise typer.Exit(code=int(both["differs"].any()))


if __name__ == "__main__":
    run_script(main)
