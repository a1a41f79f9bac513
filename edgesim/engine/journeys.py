"""Jobs over shared links, phase by phase: when a transfer ends is known only when it does.

A job over links of its own needs none of this: its three phases are known when it starts (see engine.direct).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np
import simpy

from edgesim.contracts import Job, Outcome
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.fate import COMPUTE, DOWN, SENDING, UP, Fate
from edgesim.engine.spending import Spending
from edgesim.engine.transfers import ON_TIME_S, Transfers, unless_whole
from edgesim.world.fleet import Fleet
from edgesim.world.onoff import OnOff
from edgesim.world.shared_network import SharedNetwork


@dataclass(slots=True, eq=False)
class _Journey:
    """Where a job is: its phase, since when, and the seconds and shares of its phases so far."""

    job: Job
    fate: Fate
    phase: int = DOWN
    since_s: float = 0.0
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    shares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    moved_bytes: float = 0.0  # in this phase, before the link was last down
    latency_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # of the transfers that have begun
    down_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # with the device's link down
    down_since_s: float = inf
    legs: int = 0  # spans of constant power so far
    watts: float = 0.0  # above idle, in this leg
    leg_s: float = 0.0  # when it began


class Journeys:
    """Carries jobs through download, computation and upload; calls `arrive` when one is through, else `fail`."""

    def __init__(
        self,
        env: simpy.Environment,
        network: SharedNetwork,
        transfers: Transfers,
        fleet: Fleet,
        batteries: FleetBatteries,
        links_up: OnOff | None,
        price_compute: Callable[[Job, float], None],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self._env = env
        self._transfers = transfers
        self._network = network
        self._paths = network.paths
        self._fleet = fleet
        self._batteries = batteries
        self._links_up = links_up  # None: links never fail
        self._price_compute = price_compute  # of a job that starts to compute at a given time
        self._arrive = arrive
        self._fail = fail
        self._under_way: dict[int, _Journey] = {}

    def start(self, job: Job, fate: Fate | None, battery_s: float) -> None:
        """Send a job off now; its battery is watched on the way."""
        journey = self._under_way[job.id] = _Journey(job, fate or Fate())
        if journey.fate.leaves_s < inf:
            self._after(max(0.0, journey.fate.leaves_s - self._env.now), journey, None, lambda: self._go(journey))
        if journey.fate.phase == SENDING:
            self._watch(journey.fate.crashes_s, journey, None, "crashed")
        self._enter(journey, DOWN)

    def settle(self, within_s: float) -> None:
        """Let the transfers that end within `within_s` seconds end now."""
        self._transfers.settle(within_s)

    def end(self, job: Job, through: bool) -> Spending:
        """Forget a job, through or broken off; return what it has spent up to now."""
        spent, journey = self.so_far(job), self._under_way.pop(job.id)
        on_air_s, (down, _, up) = sum(spent.air_s or ()), spent.shares
        waited_s = on_air_s - self._alone_s(job, DOWN, down) - self._alone_s(job, UP, up)
        self._draw(journey, 0.0)
        if journey.phase in (DOWN, UP):
            self._transfers.drop(_flow(job, journey.phase))
        return spent._replace(link_wait_s=max(0.0, waited_s))

    def so_far(self, job: Job) -> Spending:
        """Return what a job has spent up to now, but for `link_wait_s`; asking changes nothing."""
        journey = self._under_way[job.id]
        seconds, shares, down_s = list(journey.seconds), list(journey.shares), list(journey.down_s)
        if journey.phase <= UP:
            seconds[journey.phase] = self._env.now - journey.since_s
            shares[journey.phase] = self._share_so_far(journey, seconds[journey.phase])
        if journey.down_since_s < inf:
            down_s[journey.phase] += self._env.now - journey.down_since_s
        down_air_s, _, up_air_s = (
            max(0.0, lasted_s - quiet_s - cut_s)
            for lasted_s, quiet_s, cut_s in zip(seconds, journey.latency_s, down_s, strict=True)
        )
        down, compute, up = shares
        return Spending((seconds[DOWN], seconds[COMPUTE], seconds[UP]), (down, compute, up), (down_air_s, up_air_s))

    def _enter(self, journey: _Journey, phase: int) -> None:
        job = journey.job
        journey.phase, journey.since_s, journey.moved_bytes = phase, self._env.now, 0.0
        if phase > UP:
            self._arrive(job)
            return
        crashes_s = journey.fate.crashes_s
        if phase == COMPUTE:
            foreseen_s = job.compute_s
            self._price_compute(job, self._env.now)
            crashes_s *= job.compute_s / foreseen_s if foreseen_s > 0 else 1.0  # after the same share of the work
        if journey.fate.phase == phase:
            self._watch(crashes_s, journey, phase, "crashed")
        if phase == COMPUTE:
            self._draw(journey, job.compute_j / job.compute_s if job.compute_s > 0 else 0.0)
            self._after(job.compute_s, journey, phase, lambda: self._leave(journey))
        else:
            self._draw(journey, 0.0)
            journey.latency_s[phase] = self._paths.latency_s(*_ends(job, phase))
            self._after(journey.latency_s[phase], journey, phase, lambda: self._send(journey))

    def _after(self, seconds: float, journey: _Journey, phase: int | None, then: Callable[[], None]) -> None:
        """Call `then` after `seconds` if the job is still under way, and in this phase (None: in any)."""
        timer = self._env.timeout(seconds)

        def if_still_there(_: simpy.Event) -> None:
            if self._under_way.get(journey.job.id) is journey and phase in (None, journey.phase):
                then()

        timer.callbacks.append(if_still_there)

    def _watch(self, seconds: float, journey: _Journey, phase: int | None, outcome: Outcome) -> None:
        """Let the job fail after `seconds`, if it gets there."""
        if seconds < inf:
            self._after(max(0.0, seconds), journey, phase, lambda: self._fail(journey.job, outcome))

    def _draw(self, journey: _Journey, watts: float) -> None:
        """Begin a leg of constant power above idle, and let the job fail when the battery is empty."""
        if not self._batteries:
            return
        device, now_s = journey.job.device, self._env.now
        if now_s > journey.leg_s and journey.legs:
            self._batteries.draw(device, journey.watts, now_s - journey.leg_s, journey.leg_s)
        journey.legs, journey.watts, journey.leg_s = journey.legs + 1, watts, now_s
        if journey.job.id not in self._under_way:
            return
        lasts_s = self._batteries.empty_after_s(device, watts, now_s)
        if lasts_s < inf:
            leg = journey.legs
            self._after(lasts_s, journey, None, lambda: self._die(journey) if journey.legs == leg else None)

    def _go(self, journey: _Journey) -> None:
        """Let a device leave; what is through at this very instant has been delivered."""
        self._transfers.settle(ON_TIME_S)
        if journey.job.id in self._under_way:
            self._fail(journey.job, "offline")

    def _die(self, journey: _Journey) -> None:
        self._fail(journey.job, "battery")

    def _send(self, journey: _Journey) -> None:
        """Put what is left of a transfer on its links, now or as soon as the device's own link is up."""
        job, phase, now_s = journey.job, journey.phase, self._env.now
        self._link_is_up(journey)
        powers_w = self._fleet.receive_w if phase == DOWN else self._fleet.transmit_w
        if self._links_up is not None:
            row = np.array([job.device])
            changes_s = float(self._links_up.next_change_s(row, now_s)[0])
            if not self._links_up.on(row, now_s)[0]:
                journey.down_since_s = now_s
                self._draw(journey, 0.0)
                self._after(changes_s - now_s, journey, phase, lambda: self._send(journey))
                return
            self._after(changes_s - now_s, journey, phase, lambda: self._pause(journey))
        self._draw(journey, float(powers_w[job.device]))
        left_bytes = _nbytes(job, phase) - journey.moved_bytes
        path = self._network.limits(*_ends(job, phase))
        self._transfers.start(_flow(job, phase), path, left_bytes, lambda: self._leave(journey))

    def _pause(self, journey: _Journey) -> None:
        """Take a transfer off its links, as the device's own is down."""
        journey.moved_bytes += self._transfers.drop(_flow(journey.job, journey.phase))
        self._send(journey)

    def _link_is_up(self, journey: _Journey) -> None:
        """Book the seconds, if any, for which the device's link has been down until now."""
        if journey.down_since_s < inf:
            journey.down_s[journey.phase] += self._env.now - journey.down_since_s
            journey.down_since_s = inf

    def _leave(self, journey: _Journey) -> None:
        """End a phase that ran to its end."""
        journey.seconds[journey.phase] = self._env.now - journey.since_s
        journey.shares[journey.phase] = 1.0
        self._enter(journey, journey.phase + 1)

    def _share_so_far(self, journey: _Journey, seconds: float) -> float:
        """Return which share of the work of its present phase a job has done in so many seconds."""
        job, phase = journey.job, journey.phase
        if phase == COMPUTE:
            return min(1.0, seconds / job.compute_s) if job.compute_s > 0 else 0.0
        nbytes = _nbytes(job, phase)
        moved_bytes = journey.moved_bytes + self._transfers.moved_bytes(_flow(job, phase))
        return unless_whole(moved_bytes, nbytes) / nbytes if nbytes else 0.0

    def _alone_s(self, job: Job, phase: int, share: float) -> float:
        """Return seconds on air that a share of a transfer takes with the links to itself."""
        bits = 8.0 * share * _nbytes(job, phase)
        return bits / self._network.alone_bps(*_ends(job, phase))


def _ends(job: Job, phase: int) -> tuple[int, int]:
    server, device = job.base.owner, 1 + job.device
    return (server, device) if phase == DOWN else (device, server)


def _flow(job: Job, phase: int) -> int:
    return 2 * job.id + (phase == UP)


def _nbytes(job: Job, phase: int) -> int:
    return job.down_bytes if phase == DOWN else job.up_bytes
