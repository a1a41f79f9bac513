"""Jobs over shared links, phase by phase: when a transfer ends is known only when it does.

A job over links of its own needs none of this: its three phases are known when it starts (see Engine.dispatch).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from edgesim.contracts import Job
from edgesim.engine.spending import Spending
from edgesim.engine.transfers import Transfers
from edgesim.world.shared_network import SharedNetwork

DOWN, COMPUTE, UP = 0, 1, 2


@dataclass(slots=True)
class _Journey:
    """Where a job is: its phase, since when, and the seconds and shares of its phases so far."""

    job: Job
    phase: int = DOWN
    since_s: float = 0.0
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    shares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])


class Journeys:
    """Carries jobs through download, computation and upload; calls `arrive` when one is through."""

    def __init__(self, env: simpy.Environment, network: SharedNetwork, arrive: Callable[[Job], None]) -> None:
        self._env = env
        self._transfers = Transfers(env, network.links)
        self._network = network
        self._paths = network.paths
        self._arrive = arrive
        self._under_way: dict[int, _Journey] = {}

    def start(self, job: Job) -> None:
        """Send a job off now."""
        journey = self._under_way[job.id] = _Journey(job)
        self._enter(journey, DOWN)

    def settle(self, within_s: float) -> None:
        """Let the transfers that end within `within_s` seconds end now."""
        self._transfers.settle(within_s)

    def end(self, job: Job) -> Spending:
        """Forget a job, arrived or broken off; return what it has spent up to now."""
        journey = self._under_way.pop(job.id)
        if journey.phase <= UP:
            journey.seconds[journey.phase] = self._env.now - journey.since_s
            journey.shares[journey.phase] = self._share_so_far(journey)
        down_s, compute_s, up_s = journey.seconds
        down, compute, up = journey.shares
        air_s = (self._air_s(journey, DOWN), self._air_s(journey, UP))
        waited_s = sum(air_s) - self._alone_s(journey, DOWN) - self._alone_s(journey, UP)
        return Spending((down_s, compute_s, up_s), (down, compute, up), air_s, max(0.0, waited_s))

    def _enter(self, journey: _Journey, phase: int) -> None:
        journey.phase, journey.since_s = phase, self._env.now
        if phase > UP:
            self._arrive(journey.job)
        elif phase == COMPUTE:
            self._after(journey.job.compute_s, journey, phase, lambda: self._leave(journey))
        else:
            self._after(self._paths.latency_s(*_ends(journey.job, phase)), journey, phase, lambda: self._send(journey))

    def _after(self, seconds: float, journey: _Journey, phase: int, then: Callable[[], None]) -> None:
        timer = self._env.timeout(seconds)

        def if_still_there(_: simpy.Event) -> None:
            if self._under_way.get(journey.job.id) is journey and journey.phase == phase:
                then()

        timer.callbacks.append(if_still_there)

    def _send(self, journey: _Journey) -> None:
        job, phase = journey.job, journey.phase
        path = self._network.limits(*_ends(job, phase))
        self._transfers.start(_flow(job, phase), path, _nbytes(job, phase), lambda: self._leave(journey))

    def _leave(self, journey: _Journey) -> None:
        """End a phase that ran to its end."""
        journey.seconds[journey.phase] = self._env.now - journey.since_s
        journey.shares[journey.phase] = 1.0
        self._enter(journey, journey.phase + 1)

    def _share_so_far(self, journey: _Journey) -> float:
        job, phase = journey.job, journey.phase
        if phase == COMPUTE:
            return min(1.0, journey.seconds[COMPUTE] / job.compute_s) if job.compute_s > 0 else 0.0
        nbytes = _nbytes(job, phase)
        return min(1.0, self._transfers.drop(_flow(job, phase)) / nbytes) if nbytes else 0.0

    def _air_s(self, journey: _Journey, phase: int) -> float:
        """Return seconds of a transfer phase after its latency."""
        return max(0.0, journey.seconds[phase] - self._paths.latency_s(*_ends(journey.job, phase)))

    def _alone_s(self, journey: _Journey, phase: int) -> float:
        """Return seconds on air that what a transfer phase moved takes with the links to itself."""
        bits = 8.0 * journey.shares[phase] * _nbytes(journey.job, phase)
        return bits / self._network.alone_bps(*_ends(journey.job, phase))


def _ends(job: Job, phase: int) -> tuple[int, int]:
    server, device = job.base.owner, 1 + job.device
    return (server, device) if phase == DOWN else (device, server)


def _flow(job: Job, phase: int) -> int:
    return 2 * job.id + (phase == UP)


def _nbytes(job: Job, phase: int) -> int:
    return job.down_bytes if phase == DOWN else job.up_bytes
