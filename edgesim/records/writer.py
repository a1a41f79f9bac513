"""Writes a run folder: all of it or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic_core import to_json
from safetensors.numpy import save_file

from edgesim.errors import ConfigError
from edgesim.records.schema import TABLES, conform

MANIFEST = "manifest.json"


def check_writable(folder: Path) -> None:
    """Raise ConfigError if a run folder cannot be made at this path. Asked before a run, so that none is lost."""
    try:
        exists = folder.exists()
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from error
    if exists:
        raise ConfigError(f"{folder}: already exists; remove it or choose another run folder")
    ancestor = next(parent for parent in folder.absolute().parents if parent.exists())
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK)):
        raise ConfigError(f"{folder}: cannot be made, as {ancestor} is not a writable folder")


def write_run(
    folder: Path,
    tables: Mapping[str, pd.DataFrame],
    manifest: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, np.ndarray]],
    replace: bool = False,
) -> None:
    """Write a run folder: a parquet file a table, manifest.json, and a safetensors file for each entry of `weights`.

    `folder` appears complete or not at all: its content grows in a hidden sibling that is renamed at the end.
    With `replace` it takes the place of one that exists. Raises ConfigError if it exists without that, cannot be
    written, or if a table or column is missing.
    """
    if not replace:
        check_writable(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed while it wrote
        partial.mkdir(parents=True)
        _fill(partial, tables, manifest, weights)
        if replace:
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def plain_json(value: Any) -> str:
    """Return indented JSON text; NumPy numbers and arrays become plain, and infinities and NaN strings.

    JSON has no infinity; the strings are read back as floats by pydantic. Raises ValueError on other unknown types.
    """
    return to_json(value, indent=2, inf_nan_mode="strings", fallback=_plain).decode()


def _fill(
    folder: Path,
    tables: Mapping[str, pd.DataFrame],
    manifest: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    missing = TABLES.keys() - tables.keys()
    if missing:
        raise ConfigError(f"{folder}: no table {', '.join(sorted(missing))}")
    for table in TABLES:
        conform(table, tables[table], str(folder)).to_parquet(folder / f"{table}.parquet", index=False)
    for which, arrays in weights.items():
        # safetensors writes the memory as it lies, so a transposed view must be laid out first.
        ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        save_file(ordered, folder / f"{which}.safetensors")
    (folder / MANIFEST).write_text(plain_json(manifest) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
