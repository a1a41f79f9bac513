"""Measured mobility."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Ids
from edgesim.core.rng import Key
from edgesim.files.tables import read_rows
from edgesim.world.mobility.base import Mobility, Move

_COLUMNS = ("time", "device", "edge")


@dataclass(frozen=True, kw_only=True)
class MobilityTrace(Mobility):
    """Moves from a CSV or parquet file with the columns time, device, edge: from then on the device is with this edge.

    Devices and edge servers are numbered from 0, times are seconds since the start of the run. Rows may have any order.
    """

    file: ScenarioPath  # CSV or parquet

    def moves(self, edge: Ids, edges: int, key: Key) -> Iterator[Move]:
        """Return the moves in the order of time, then device. Raises DataError naming file and line."""
        rows = read_rows(self.file.expanduser(), _COLUMNS)
        at_s, device, to = (rows.columns[name] for name in _COLUMNS)
        rows.require(np.isfinite(at_s) & (at_s >= 0), "time", "a finite number of seconds of at least 0")
        for name, column, count in (("device", device, len(edge)), ("edge", to, edges)):
            fits = (column >= 0) & (column < count) & (column == np.floor(column))
            rows.require(fits, name, f"a number from 0 to {count - 1}")
        order = np.lexsort((device, at_s))
        twice = np.flatnonzero((np.diff(at_s[order]) == 0) & (np.diff(device[order]) == 0))
        if len(twice):
            raise rows.refuse(int(order[twice[0] + 1]), "moves a device twice at one instant")
        columns = (at_s[order].tolist(), device[order].astype(int).tolist(), to[order].astype(int).tolist())
        return (Move(*row) for row in zip(*columns, strict=True))


PLUGINS = {"trace": MobilityTrace}
