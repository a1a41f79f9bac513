"""Devices that move at random: a Markov chain of cells in continuous time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Annotated

from annotated_types import Ge

from edgesim.config.units import Seconds
from edgesim.core.arrays import Ids
from edgesim.core.limits import PositiveShare
from edgesim.core.rng import Key
from edgesim.world.mobility.base import Mobility, Move


@dataclass(frozen=True, kw_only=True)
class Markov(Mobility):
    """A device stays with an edge server for an exponential time of mean `stay`, then moves to one beside it.

    Edge servers lie in a circle in the order of their numbers; a device moves to one of the two neighbours with equal
    chances. A share `roaming` of the devices moves, those of a draw; the others never do.
    """

    stay: Annotated[Seconds, Ge(1e-3)]  # mean seconds with an edge server, a millisecond at least
    roaming: PositiveShare = 1.0  # share of the devices that move at all

    def moves(self, edge: Ids, edges: int, key: Key) -> Iterator[Move]:
        """Yield moves in the order of time, then device; those of a device depend on its own draws alone."""
        if edges < 2:
            return
        streams = [key.at(device).numpy() for device in range(len(edge))]
        now = edge.tolist()
        due = [
            (float(stream.exponential(self.stay)), device)
            for device, stream in enumerate(streams)
            if stream.random() < self.roaming
        ]
        heapify(due)
        while due:
            at_s, device = due[0]
            step = 1 if streams[device].random() < 0.5 else -1
            now[device] = (now[device] + step) % edges
            yield Move(at_s, device, now[device])
            heapreplace(due, (at_s + float(streams[device].exponential(self.stay)), device))


PLUGINS = {"markov": Markov}
