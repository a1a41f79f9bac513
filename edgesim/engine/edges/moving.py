"""Devices that move from one edge server to another while they may be at work."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import simpy

from edgesim.config.sections import Handover
from edgesim.core.arrays import Ids
from edgesim.core.job import Completion
from edgesim.engine.session import Session
from edgesim.engine.world import World
from edgesim.world.mobility.base import Move


class Moving:
    """Moves devices between edge servers: new owner, new wiring, and the fate of the current job.

    `handover` "old": the update goes to the edge server that asked for it, wherever the device is; "new": to the one
    where the device is when it begins to send; "lost": the job ends with the move.
    """

    def __init__(self, world: World, sessions: Sequence[Session], place: Ids, handover: Handover) -> None:
        """`sessions`: of the edge servers; `place`: the edge server of each device, shape (devices,), changed here."""
        self._world = world
        self._sessions = sessions
        self._place = place
        self._handover = handover

    def run(self, moves: Iterator[Move]) -> Generator[simpy.Event, Any, None]:
        """Carry out moves; one SimPy process."""
        for move in moves:
            yield self._world.env.timeout(max(0.0, move.at_s - self._world.now_s))
            self._move(move)

    def hand_over(self, completion: Completion, row: int) -> None:
        """Give an update to the edge server where its device was when it began to send."""
        job = completion.job
        session = next(each for each in self._sessions if each.edge is not None and each.edge.node == job.to)
        session.server_buffer.add(job, row)
        session.visitors.append(completion)

    def _move(self, move: Move) -> None:
        device, before = move.device, int(self._place[move.device])
        if before == move.edge:
            return
        old, new = self._sessions[before].edge, self._sessions[move.edge].edge
        assert old is not None and new is not None
        self._place[device] = move.edge
        old.members[device], new.members[device] = False, True
        if not self._world.devices.busy[device]:
            return
        trip = next(each for each in self._world.devices.running.values() if each.job.device == device)
        if self._handover == "lost":
            self._world.devices.fail(trip, "moved")
        elif self._handover == "new":
            trip.job.to = None if new.node == trip.job.base.owner else new.node
