"""The commands of `import-trace`, which convert published traces to files that scenarios name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.options import check_new_file, names_in
from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    from edgesim.files.traces.columns import Columns

JsonFile = Annotated[Path, typer.Argument(metavar="FILE", help="A JSON file.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="File to write: parquet if it ends in .parquet, else CSV.")]
Most = Annotated[int | None, typer.Option("--devices", min=1, help="Number of first devices to keep. Default: all.")]
Length = Annotated[str | None, typer.Option(metavar="TIME", help="End of the trace, such as 14 d.")]


def fedscale_capacity(
    file: JsonFile,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The fleet to write, a CSV file.")],
    forward: Annotated[
        str, typer.Option(metavar="FLOP", help="FLOPs of a forward pass of the timed model, such as '0.6 GFLOP'.")
    ],
    devices: Most = None,
) -> None:
    """Convert FedScale's client_device_capacity (JSON) to a fleet: a block for each client, with speed and rates."""
    from edgesim.files.traces.fedscale import fleet_of

    if out.suffix == ".parquet":
        raise ConfigError(f"--out: a fleet is a CSV file, got {out}")
    forward_flops = _quantity("--forward", forward, "FLOP", "an amount of computation", "0.6 GFLOP")
    _write(fleet_of(file, forward_flops, devices), out)


def fedscale_behaviour(file: JsonFile, out: Out, devices: Most = None, length: Length = None) -> None:
    """Convert FedScale's client_behave_trace (JSON) to the availability of devices. Traces repeat until --length."""
    from edgesim.files.traces.fedscale import availability_of

    _write(availability_of(file, _length_s(length), devices), out)


def flash(
    file: JsonFile,
    out: Out,
    needs: Annotated[
        str,
        typer.Option(metavar="STATES", help="States of an available phone: locked, screen_off, wifi, charged."),
    ] = "locked,wifi,charged",
    start: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="Time 0, such as '2020-01-31 00:00:00'. Default: the first message."),
    ] = None,
    length: Length = None,
    devices: Most = None,
) -> None:
    """Convert the phone states of FLASH to the availability of devices."""
    from edgesim.files.traces.flash import STATES, availability_of, date_s

    states = names_in("--needs", needs, STATES)
    if start is not None and date_s(start) is None:
        raise ConfigError(f"--start: must be a date such as 2020-01-31 23:23:40, got {start!r}")
    _write(availability_of(file, states, start, _length_s(length), devices), out)


def google_cluster(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV files of the table task_usage.")],
    out: Out,
    machines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The table machine_events, a CSV file: CPUs of machines.")
    ] = None,
    least: Annotated[
        float, typer.Option(min=0.001, max=1, help="Least share of its speed that a machine keeps.")
    ] = 0.05,
    devices: Most = None,
) -> None:
    """Convert the CPU load of machines in Google's cluster trace of 2011 to speeds of devices."""
    from edgesim.files.traces.google_cluster import speeds_of

    _write(speeds_of(files, machines, least, devices), out)


def _write(columns: Columns, out: Path) -> None:
    from edgesim.files.traces.columns import write_columns

    check_new_file(out, "--out")
    write_columns(columns, Path(os.path.realpath(out)))
    rows = len(next(iter(columns.values())))
    devices = len(set(columns["device"])) if "device" in columns else rows
    print(f"{out}: {rows} rows of {devices} devices")


def _length_s(length: str | None) -> float | None:
    return None if length is None else _quantity("--length", length, "s", "a time", "14 d")


def _quantity(option: str, text: str, symbol: str, what: str, example: str) -> float:
    from edgesim.config.units import Unit

    try:
        return Unit(symbol, what, example, positive=True).read(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
