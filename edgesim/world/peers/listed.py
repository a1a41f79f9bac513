"""Graphs that a file lists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.errors import ConfigError
from edgesim.core.peer_graph import PeerGraph, Peers, from_edges
from edgesim.core.rng import Key
from edgesim.files.reading import csv_rows, quoted

_HEADER = ["source", "target"]
_DEVICE = re.compile(r"\s*[0-9]{1,18}\s*")  # what an int64 holds


@dataclass(frozen=True, kw_only=True)
class ListedPeers(Peers):
    """A CSV file with the columns source,target, device numbers from 0: the target hears the source.

    For both ways, a pair of devices needs two lines.
    """

    file: ScenarioPath  # the CSV file

    def check(self, n: int) -> None:
        """Raise ConfigError, with file and line where there is one, unless all are known and hear somebody."""
        for (source, target), line in self._lines.items():
            if max(source, target) >= n:
                found = f"unknown device {max(source, target)}"
                raise ConfigError(f"{self.file}, line {line}: {found}; those of the fleet are 0 to {n - 1}")
        alone = set(range(n)) - {target for _, target in self._lines}
        if alone:
            raise ConfigError(f"{self.file}: leaves device {min(alone)} alone: it is the target of no line")

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; directed, and symmetric if the file is."""
        sources, targets = np.array(list(self._lines), dtype=np.int64).reshape(-1, 2).T
        return from_edges(len(online), sources, targets).among(online)

    @cached_property
    def _lines(self) -> dict[tuple[int, int], int]:
        """Line of every edge. The file is read once, because a run needs a graph in every round."""
        lines: dict[tuple[int, int], int] = {}
        rows = csv_rows(self.file, ConfigError)
        _, header = next(rows, (1, list[str]()))
        if header != _HEADER:
            found = quoted(",".join(header))
            raise ConfigError(f"{self.file}, line 1: the header must be {','.join(_HEADER)}, got {found}")
        for line, row in rows:
            where = f"{self.file}, line {line}"
            if len(row) != len(_HEADER) or not all(_DEVICE.fullmatch(cell) for cell in row):
                raise ConfigError(f"{where}: must be two device numbers, got {quoted(','.join(row))}")
            source, target = (int(cell) for cell in row)
            if source == target:
                raise ConfigError(f"{where}: source and target are one device, got {source}")
            if (source, target) in lines:
                before = lines[source, target]
                raise ConfigError(f"{where}: source {source}, target {target} stands in line {before} already")
            lines[source, target] = line
        return lines


PLUGINS = {"file": ListedPeers}
