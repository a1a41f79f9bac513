"""Prints frames of numbers in the units of their columns, so that digits can be compared with those of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def print_frame_as(frame: pd.DataFrame, style: str, title: str, keys: int, about: Mapping[str, Any]) -> None:
    """Print a frame as `style`: json, with what it is about, csv, markdown, latex or, if it is "", for a terminal.

    `keys`: so many first columns tell rows apart.
    """
    from edgesim.cli.show import print_json
    from edgesim.files.tables import csv_text

    if style == "json":
        print_json({**about, "rows": plain(frame)})
    elif style == "csv":
        print(csv_text(frame), end="")
    else:
        print_digits(frame, title, keys, style)


def plain(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a frame for JSON, missing values as None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def print_digits(frame: pd.DataFrame, title: str, keys: int, style: str = "") -> None:
    """Print a frame for people, six digits of a number and a dash for a missing one; `style` as in `print_table`."""
    from edgesim.cli.show import print_table

    shown = frame.astype(object)
    for name in frame.select_dtypes("float"):
        shown[name] = [None if value != value else digits(value) for value in frame[name]]
    for name in frame.select_dtypes("bool"):
        shown[name] = ["yes" if value else "" for value in frame[name]]
    print_table(shown.to_dict("records"), {str(name): str(name) for name in shown}, title, keys, style)


def digits(value: float) -> str:
    """Return whole numbers as they are, six digits of others."""
    from edgesim.reports.format import plain

    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e12 else plain(value, 6)
