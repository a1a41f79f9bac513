"""The measurements of this folder as arrays. README.md says where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from edgesim.core.arrays import Arr

HERE = Path(__file__).parent
KEYS = ["model", "input", "batch", "trained"]
IMAGES_OF_IMAGENET = 1_281_167
OPERATIONS_OF_RESNET50 = 408  # of a training step, see work.csv


@cache
def table(name: str) -> pd.DataFrame:
    """Rows of `NAME.csv`."""
    return pd.read_csv(HERE / f"{name}.csv")


@dataclass(frozen=True)
class Steps:
    """Measured training steps of one device."""

    device: str
    rows: pd.DataFrame  # columns of KEYS, family, seconds, and every amount of work.csv

    @property
    def seconds(self) -> Arr:
        """Measured seconds of each step."""
        return self.rows["seconds"].to_numpy(float)

    def amounts(self, *kinds: str) -> Arr:
        """Amounts of the named kinds of work, one row a step."""
        return self.rows[list(kinds)].to_numpy(float)

    def groups(self, column: str) -> list[str]:
        """The group of each row by `column`, such as "family"."""
        return self.rows[column].astype(str).tolist()

    def where(self, chosen: Arr | pd.Series) -> Steps:
        """Some of the rows."""
        return Steps(self.device, self.rows[np.asarray(chosen)].reset_index(drop=True))


def steps(device: str) -> Steps:
    """All measured steps of a device: raspberry_pi_4, raspberry_pi_5, x86_thread, or one of phones.csv."""
    file, library = {"ras": ("raspberry_pi", "timm"), "x86": ("x86_thread", "torchvision")}.get(
        device[:3], ("phones", "mnn")
    )
    rows = table(file)
    rows = rows[rows["device"] == device]
    work = table("work")
    work = work[work["library"] == library].drop(columns=["library", "family"])
    if library == "mnn":
        # SqueezeNet at batch 32 swapped
        rows = rows[(rows["model"] != "Squeezenet") | (rows["batch"] < 32)]
        work = pd.concat([_at_batch(work, batch) for batch in sorted(set(rows["batch"]))])
    rows = rows.merge(work, on=KEYS, how="left", validate="one_to_one")
    if rows[list(work.columns)].isna().any(axis=None):
        raise ValueError(f"work.csv lacks a network of {device}")
    return Steps(device, rows.assign(samples=rows["batch"], steps=1))


def _at_batch(work: pd.DataFrame, batch: int) -> pd.DataFrame:
    """Amounts at another batch: they are linear in it, and work.csv has those at 2 and 4."""
    amounts = [name for name in work.columns if name not in KEYS]
    two, four = (work[work["batch"] == size].set_index(["model", "input", "trained"]) for size in (2, 4))
    found = two[amounts] + (four[amounts] - two[amounts]) / 2 * (batch - 2)
    return found.reset_index().assign(batch=batch)


def candidates() -> list[str]:
    """Every amount that work.csv has, the kinds of work among them."""
    return [name for name in table("work").columns if name not in ("library", "family", *KEYS)]


def resnet50(device: str) -> pd.DataFrame:
    """Steps of ResNet50 on a GPU: batch, power_limit_w, seconds (of a step, data loading included), watts."""
    rows = table("gpus")
    rows = rows[(rows["device"] == device) & (rows["model"] == "resnet50")]
    seconds = rows["seconds_per_epoch"] * rows["batch"] / IMAGES_OF_IMAGENET
    return rows.assign(seconds=seconds).sort_values(["power_limit_w", "batch"]).reset_index(drop=True)
