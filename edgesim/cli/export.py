"""The `export` command: runs for TensorBoard, for MLflow, or as tables in files."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from edgesim.core.errors import ConfigError

if TYPE_CHECKING:
    from edgesim.reports.export.exported import Exported


class ExportTo(StrEnum):
    """Formats of exported runs."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


def export_runs(paths: Sequence[Path], to: str, out: str, size: str, folder: Path | None) -> None:
    """Write the runs of paths, and print the files or the address of a store.

    `size`, `folder`: size of a study and folder of its runs (None: the default of `edgesim study run`).

    Raises ConfigError if a path names no run, if a study has none yet, or if nothing can be written there.
    """
    from edgesim.reports.export.mlflow import is_address, write_mlflow
    from edgesim.reports.export.tensorboard import write_tensorboard

    to_mlflow = to == ExportTo.MLFLOW
    if is_address(out) and not to_mlflow:
        raise ConfigError(f"--out: {out!r} is an address, {to} is written to a folder")
    runs, experiment = _found(paths, size, folder)
    try:
        if to_mlflow:
            lines = write_mlflow(runs, out, experiment)
        elif to == ExportTo.TENSORBOARD:
            lines = [str(path) for path in write_tensorboard(runs, Path(out))]
        else:
            lines = [str(path) for path in _write_tables(runs, Path(out), to)]
    except OSError as error:
        raise ConfigError(f"--out: {out}: cannot be written: {error.strerror or error}") from error
    print("\n".join(lines))


def _found(paths: Sequence[Path], size: str, folder: Path | None) -> tuple[list[Exported], str]:
    """Return the runs of paths, and the name of an experiment with them."""
    from edgesim.cli.open_runs import all_opened
    from edgesim.reports.export.exported import exported

    studies = [path for path in paths if path.suffix == ".toml" and path.is_file()]
    if not studies:
        if folder is not None:
            raise ConfigError("--runs: says where the runs of a study lie; name its file")
        runs = exported(all_opened(paths))
        return runs, str(runs[0].run.manifest.get("name") or "edgesim")
    if len(paths) > 1:
        raise ConfigError(f"{studies[0]}: is a study; name one, and no runs beside it")
    from edgesim.cli.show import print_note
    from edgesim.reports.export.exported import Exported
    from edgesim.studies.runs import plan
    from edgesim.studies.study import load_study

    file = studies[0]
    study = load_study(file)
    planned = plan(study, file, size, [], folder or Path("runs") / "studies" / file.stem / size)
    found = [Exported(each.cell.name, run, each.cell.labels) for each in planned if (run := each.kept()) is not None]
    if not found:
        raise ConfigError(f"{file}: no cell has been run; first: edgesim study run {file} --size {size}")
    if len(found) < len(planned):
        print_note(f"{len(planned) - len(found)} of {len(planned)} cells are missing")
    return found, study.name


def _write_tables(runs: Sequence[Exported], out: Path, form: str) -> list[Path]:
    import pandas as pd

    from edgesim.cli.table import flat
    from edgesim.reports.export.tables import write_tables
    from edgesim.reports.format import divergence

    about = flat([each.run for each in runs])
    about["run"] = [each.name for each in runs]
    about["diverged"] = pd.array(
        [None if found is None or found is pd.NA else divergence(found) for found in about["diverged"]], dtype="string"
    )
    axes = pd.DataFrame([dict(each.axes) for each in runs]).add_prefix("axis.")
    return write_tables(runs, pd.concat([about, axes], axis=1), out, form)
