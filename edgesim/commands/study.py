"""The commands about studies: run what is missing, print the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.commands.checkpoint import Every, seconds
from edgesim.errors import EdgesimError

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.study.runs import Planned
    from edgesim.study.study import Study

_EQUAL = 1e-9  # of a number; a mean of equal ones may be off by a last bit

commands = typer.Typer(help="Run a study, many scenarios with one question, and print its table.")

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study file (TOML).")]
Only = Annotated[
    list[str] | None, typer.Option(metavar="CELL", help="Only cells such as method=fedavg,seed=1; may be repeated.")
]
SizeName = Annotated[str, typer.Option(metavar="quick|full", help="Which size of the study.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the runs; default runs/studies/STUDY/SIZE.")]


@commands.command()
def run(
    study: StudyFile,
    only: Only = None,
    workers: Annotated[int, typer.Option(min=1, help="So many cells at a time, a process and thread each.")] = 1,
    size: SizeName = "quick",
    out: Out = None,
    checkpoint: Every = None,
) -> None:
    """Run the cells that are missing, or whose scenario, data or edgesim's code have changed since."""
    from edgesim.commands.show import print_note
    from edgesim.study.runs import run_all, with_data

    checkpoint_s = seconds(checkpoint)
    planned = with_data(_planned(study, only, size, out)[1])
    missing = [each for each in planned if not each.is_done()]
    print_note(f"{len(planned) - len(missing)} of {len(planned)} cells are done")
    failed = []
    try:
        for ended, (each, fault) in enumerate(run_all(missing, workers, checkpoint_s), 1):
            failed += [f"{each.cell.name}: {fault}"] if fault else []
            print_note(f"{ended} of {len(missing)}: {each.cell.name}{f' failed: {fault}' if fault else ''}")
    except KeyboardInterrupt as stop:
        print_note("interrupted; the cells that ended are kept")
        raise typer.Exit(130) from stop
    if failed:
        raise EdgesimError(f"{len(failed)} of {len(missing)} cells failed; {failed[0]}")


@commands.command()
def table(
    study: StudyFile,
    only: Only = None,
    size: SizeName = "quick",
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a section for a page, a line each cell.")] = False,
) -> None:
    """Print mean, standard deviation and 95 % interval over the seeds, beside published values."""
    import numpy as np

    from edgesim.commands.show import print_json, print_note
    from edgesim.study.table import as_markdown, tabulate

    if as_json and markdown:
        raise EdgesimError("--json, --markdown: give one of the two")
    loaded, planned = _planned(study, only, size, out)
    kept = [(each, found) for each in planned if (found := each.kept()) is not None]
    if not kept:
        others = sum(each.folder.exists() for each in planned)
        stale = f" as the study is now, {others} as it was before" if others else ""
        raise EdgesimError(f"{study}: no cell has been run{stale}; first: edgesim study run {study} --size {size}")
    missing = f"{len(planned) - len(kept)} of {len(planned)} cells are missing" if len(kept) < len(planned) else ""
    if missing:
        print_note(missing)
    if not all(each.is_done() for each, _ in kept):
        print_note("some runs were made by other code; edgesim study run makes them anew")
    rows = tabulate(loaded, [(each.cell, found) for each, found in kept])
    if as_json:
        records = rows.astype(object).where(rows.notna(), None).to_dict("records")
        print_json({"study": loaded.name, "size": size, "rows": records})
    elif markdown:
        below = f"\n{missing}.\n" if missing else ""  # a page is read where no note was printed
        print(f"## {loaded.name}\n\n`edgesim study run {study} --size {size}`\n\n{as_markdown(rows)}\n{below}")
    else:
        _print(rows, f"{loaded.name} ({size})")
        beside = rows[rows["published"].notna() & rows["mean"].notna()]
        if len(beside):
            equal = np.isclose(beside["mean"], beside["published"], rtol=_EQUAL, atol=0).sum()
            print(f"{equal} of {len(beside)} published numbers are equal")


def _planned(file: Path, only: list[str] | None, size: str, out: Path | None) -> tuple[Study, list[Planned]]:
    from edgesim.study.runs import plan
    from edgesim.study.study import load_study

    study = load_study(file)
    return study, plan(study, file, size, only or [], out or Path("runs") / "studies" / file.stem / size)


def _print(found: pd.DataFrame, title: str) -> None:
    from edgesim.commands.show import print_table

    # as text in the columns' own units, so that digits can be compared with those of a paper
    shown = found.copy().astype(object)
    for name in ("mean", "sd", "low", "high", "published", "ratio"):
        shown[name] = [None if value != value else _digits(value) for value in found[name]]
    print_table(shown.to_dict("records"), {str(name): str(name) for name in shown}, title)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e12 else f"{value:.6g}"
