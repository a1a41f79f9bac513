"""Jobs over links that transfers contend for, phase by phase: when a transfer ends is known only when it does.

Jobs over dedicated links need none of this: their three phases are known when they start (see `dedicated`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np
import simpy

from edgesim.core.errors import ConfigError
from edgesim.core.job import ON_TIME_S, Job, Outcome
from edgesim.engine.accounting import Usage
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.interruptions import Interruption
from edgesim.engine.transport.transfers import Transfers, unless_whole
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import OnOff


@dataclass(slots=True, eq=False)
class _Progress:
    """State of a job: its phase, since when, and the seconds and shares of its phases so far."""

    job: Job
    interruption: Interruption
    phase: int = DOWNLOAD
    since_s: float = 0.0
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    shares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    moved_bytes: float = 0.0  # on air in this phase, before the link was last down
    latency_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # of the transfers that have begun
    down_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # with the device's link down
    down_since_s: float = inf
    legs: int = 0  # spans of constant power so far
    watts: float = 0.0  # above idle, in this leg
    leg_s: float = 0.0  # when it began


class ContendedLinks:
    """Transports jobs of the server phase by phase; calls `arrive` when one is through, else `fail`."""

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
        self._under_way: dict[int, _Progress] = {}

    def start(self, job: Job, interruption: Interruption | None, battery_s: float) -> None:
        """Send a job off now; its battery is watched on the way."""
        progress = self._under_way[job.id] = _Progress(job, interruption or Interruption())
        if progress.interruption.leaves_s < inf:
            self._after(
                max(0.0, progress.interruption.leaves_s - self._env.now), progress, None, lambda: self._go(progress)
            )
        if progress.interruption.phase == SENT:
            self._watch(progress.interruption.crashes_s, progress, None, "crashed")
        self._enter(progress, DOWNLOAD)

    def settle(self, within_s: float) -> None:
        """Let the transfers that end within `within_s` seconds end now."""
        self._transfers.settle(within_s)

    def end(self, job: Job, through: bool) -> Usage:
        """Forget a job, through or broken off; return what it has spent up to now."""
        usage, progress = self.so_far(job), self._under_way.pop(job.id)
        on_air_s, (down, _, up) = sum(usage.air_s or ()), usage.shares
        waited_s = on_air_s - self._alone_s(job, DOWNLOAD, down) - self._alone_s(job, UPLOAD, up)
        self._draw(progress, 0.0)
        if progress.phase in (DOWNLOAD, UPLOAD):
            self._transfers.drop(_flow(job, progress.phase))
        rest_s = self._alone_s(job, DOWNLOAD, 1.0 - down), self._alone_s(job, UPLOAD, 1.0 - up)
        return usage._replace(link_wait_s=max(0.0, waited_s), rest_s=rest_s)

    def so_far(self, job: Job) -> Usage:
        """Return the usage of a job up to now without `link_wait_s`; no side effects."""
        progress = self._under_way[job.id]
        seconds, shares, down_s = list(progress.seconds), list(progress.shares), list(progress.down_s)
        if progress.phase <= UPLOAD:
            seconds[progress.phase] = self._env.now - progress.since_s
            shares[progress.phase] = self._share_so_far(progress, seconds[progress.phase])
        if progress.down_since_s < inf:
            down_s[progress.phase] += self._env.now - progress.down_since_s
        down_air_s, _, up_air_s = (
            max(0.0, lasted_s - quiet_s - cut_s)
            for lasted_s, quiet_s, cut_s in zip(seconds, progress.latency_s, down_s, strict=True)
        )
        down, compute, up = shares
        return Usage(
            (seconds[DOWNLOAD], seconds[COMPUTATION], seconds[UPLOAD]), (down, compute, up), (down_air_s, up_air_s)
        )

    def _enter(self, progress: _Progress, phase: int) -> None:
        job = progress.job
        progress.phase, progress.since_s, progress.moved_bytes = phase, self._env.now, 0.0
        if phase > UPLOAD:
            self._arrive(job)
            return
        crashes_s = progress.interruption.crashes_s
        if phase == COMPUTATION:
            foreseen_s = job.prices.compute_s
            self._price_compute(job, self._env.now)
            crashes_s *= (
                job.prices.compute_s / foreseen_s if foreseen_s > 0 else 1.0
            )  # after the same share of the work
        if progress.interruption.phase == phase:
            self._watch(crashes_s, progress, phase, "crashed")
        if phase == COMPUTATION:
            self._draw(progress, job.prices.compute_j / job.prices.compute_s if job.prices.compute_s > 0 else 0.0)
            self._after(job.prices.compute_s, progress, phase, lambda: self._leave(progress))
        else:
            self._draw(progress, 0.0)
            progress.latency_s[phase] = self._latency_s(job, phase)
            self._after(progress.latency_s[phase], progress, phase, lambda: self._send(progress))

    def _latency_s(self, job: Job, phase: int) -> float:
        """Return the latency of a transfer: of its path, with the drawn latency of the device's access link."""
        latency_s = self._paths.latency_s(*_ends(job, phase))
        if self._fleet.impaired:
            drawn_s = job.prices.down_latency_s if phase == DOWNLOAD else job.prices.up_latency_s
            latency_s = max(0.0, latency_s + drawn_s - float(self._fleet.latency_s[job.device]))
        return latency_s

    def _after(self, seconds: float, progress: _Progress, phase: int | None, then: Callable[[], None]) -> None:
        """Call `then` after `seconds` if the job is still under way, and in this phase (None: in any)."""
        timer = self._env.timeout(seconds)

        def if_still_there(_: simpy.Event) -> None:
            if self._under_way.get(progress.job.id) is progress and phase in (None, progress.phase):
                then()

        timer.callbacks.append(if_still_there)

    def _watch(self, seconds: float, progress: _Progress, phase: int | None, outcome: Outcome) -> None:
        """Let the job fail after `seconds`, if it gets there."""
        if seconds < inf:
            self._after(max(0.0, seconds), progress, phase, lambda: self._fail(progress.job, outcome))

    def _draw(self, progress: _Progress, watts: float) -> None:
        """Begin a leg of constant power above idle, and let the job fail when the battery is empty."""
        if not self._batteries:
            return
        device, now_s = progress.job.device, self._env.now
        if now_s > progress.leg_s and progress.legs:
            self._batteries.draw(device, progress.watts, now_s - progress.leg_s, progress.leg_s)
        progress.legs, progress.watts, progress.leg_s = progress.legs + 1, watts, now_s
        if progress.job.id not in self._under_way:
            return
        lasts_s = self._batteries.empty_after_s(device, watts, now_s)
        if lasts_s < inf:
            leg = progress.legs
            self._after(lasts_s, progress, None, lambda: self._die(progress) if progress.legs == leg else None)

    def _go(self, progress: _Progress) -> None:
        """Let a device leave; what is through at this very instant has been delivered."""
        self._transfers.settle(ON_TIME_S)
        if progress.job.id in self._under_way:
            self._fail(progress.job, "offline")

    def _die(self, progress: _Progress) -> None:
        self._fail(progress.job, "battery")

    def _send(self, progress: _Progress) -> None:
        """Put what is left of a transfer on its links, now or as soon as the device's own link is up."""
        job, phase, now_s = progress.job, progress.phase, self._env.now
        self._link_is_up(progress)
        powers_w = self._fleet.receive_w if phase == DOWNLOAD else self._fleet.transmit_w
        if self._links_up is not None:
            row = np.array([job.device])
            changes_s = float(self._links_up.next_change_s(row, now_s)[0])
            if not self._links_up.on(row, now_s)[0]:
                progress.down_since_s = now_s
                self._draw(progress, 0.0)
                if changes_s == inf:
                    raise ConfigError(f"failures.down: is too short to be told from nothing after {now_s:g} s")
                self._after(changes_s - now_s, progress, phase, lambda: self._send(progress))
                return
            if changes_s < inf:
                self._after(changes_s - now_s, progress, phase, lambda: self._pause(progress))
        self._draw(progress, float(powers_w[job.device]))
        left_bytes = max(0.0, _air_bytes(job, phase) - progress.moved_bytes)  # rounding must not make it negative
        path = self._network.limits(*_ends(job, phase))
        self._transfers.start(_flow(job, phase), path, left_bytes, lambda: self._leave(progress))

    def _pause(self, progress: _Progress) -> None:
        """Take a transfer off its links, as the device's own is down."""
        progress.moved_bytes += self._transfers.drop(_flow(progress.job, progress.phase))
        self._send(progress)

    def _link_is_up(self, progress: _Progress) -> None:
        """Book the seconds, if any, for which the device's link has been down until now."""
        if progress.down_since_s < inf:
            progress.down_s[progress.phase] += self._env.now - progress.down_since_s
            progress.down_since_s = inf

    def _leave(self, progress: _Progress) -> None:
        """End a phase that ran to its end."""
        progress.seconds[progress.phase] = self._env.now - progress.since_s
        progress.shares[progress.phase] = 1.0
        self._enter(progress, progress.phase + 1)

    def _share_so_far(self, progress: _Progress, seconds: float) -> float:
        """Return which share of the work of its present phase a job has done in so many seconds."""
        job, phase = progress.job, progress.phase
        if phase == COMPUTATION:
            return min(1.0, seconds / job.prices.compute_s) if job.prices.compute_s > 0 else 0.0
        nbytes = _air_bytes(job, phase)
        moved_bytes = progress.moved_bytes + self._transfers.moved_bytes(_flow(job, phase))
        return unless_whole(moved_bytes, nbytes) / nbytes if nbytes else 0.0

    def _alone_s(self, job: Job, phase: int, share: float) -> float:
        """Return seconds on air that a share of a transfer takes with the links to itself."""
        bits = 8.0 * share * _air_bytes(job, phase)
        return bits / self._network.alone_bps(*_ends(job, phase))


def _ends(job: Job, phase: int) -> tuple[int, int]:
    server, device = job.base.owner, 1 + job.device
    return (server, device) if phase == DOWNLOAD else (device, server if job.to is None else job.to)


def _flow(job: Job, phase: int) -> int:
    return 2 * job.id + (phase == UPLOAD)


def _air_bytes(job: Job, phase: int) -> float:
    """Return the bytes that a transfer takes on its links, those that are sent again among them."""
    return job.prices.down_air_bytes if phase == DOWNLOAD else job.prices.up_air_bytes
