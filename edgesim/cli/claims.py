"""The `study claims` command: judges claims of papers by runs of studies, and writes a page."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.out import check_file, write_text
from edgesim.core.errors import ConfigError


def claims(
    files: Annotated[list[Path], typer.Argument(metavar="CLAIMS...", help="Claims files (TOML), one for each paper.")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs, with a folder STUDY/SIZE for each study.")] = Path(
        "runs/studies"
    ),
    results: Annotated[
        Path | None, typer.Option(help="A CSV file of numbers of runs without folders: see docs/howto/claims.md.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="First write the numbers of existing runs to --results.")
    ] = False,
    hours: Annotated[bool, typer.Option("--hours", help="Estimate the hours of missing runs on this host.")] = False,
    out: Annotated[Path | None, typer.Option(help="The Markdown file to write. Default: print the page.")] = None,
) -> None:
    """Judge claims of papers by finished runs (reproduced, same order, undecided, refuted, not run). Write a page."""
    from edgesim.cli.show import print_note
    from edgesim.studies.claims.claim import read_results, written
    from edgesim.studies.claims.judge import Court, verdicts
    from edgesim.studies.claims.page import page

    if record and results is None:
        raise ConfigError("--record: needs --results, the file to write")
    if out:
        check_file(out)
    kept = read_results(results) if results and (results.exists() or not record) else []
    court = Court(runs, kept)
    if record and results:
        check_file(results, "--results")
        write_text(results, written(court.results(files)), "--results")
    chapters = court.chapters(files, hours)
    text = page(chapters, _command(files, runs, results, hours, out))
    if out is None:
        print(text, end="")
        return
    write_text(out, text, "--out")
    print_note(f"{out}: " + ", ".join(f"{count} {name}" for name, count in verdicts(chapters).items()))


def _command(files: list[Path], runs: Path, results: Path | None, hours: bool, out: Path | None) -> str:
    """Return the command that writes the same page."""
    words = ["edgesim", "study", "claims", *map(str, files)]
    words += ["--runs", str(runs)] if runs != Path("runs/studies") else []
    words += ["--results", str(results)] if results else []
    words += ["--hours"] if hours else []
    words += ["--out", str(out)] if out else []
    return shlex.join(words)
