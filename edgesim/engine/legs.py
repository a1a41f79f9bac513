"""Jobs on their way, leg by leg: one driver takes every job from its start to its end.

A leg is a transfer, a computation, a wait for messages of peers (`peers.py`), or a meeting of two devices
(`meetings.py`). A job ends early when its device leaves, crashes or runs out of power. Its usage is the sum over its
legs, each of which knows what it has spent at any instant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, cast

import numpy as np
import simpy

from edgesim.core.job import ON_TIME_S, Completion, Job, Outcome
from edgesim.engine.accounting import Usage, dedicated_usage, exposed_s, joules_of, transmit_w_of
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.battery_loads import BatteryLoads
from edgesim.engine.flows import Flow, Transfers, link_outage_is_too_short, unless_whole
from edgesim.engine.inbox import Inbox
from edgesim.engine.interruptions import UNINTERRUPTED, Interruption, first_end
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import OnOff


class JobOwner(Protocol):
    """Sender of a job, which is told how the job ends."""

    def price_compute(self, job: Job, start_s: float) -> None:
        """Set what a job's computation takes if it starts at `start_s`, where that depends on the time."""

    def there_until_s(self, device: int) -> float:
        """Return until when a device can be reached, asked now; -inf: it cannot."""

    def job_ended(self, job: Job, outcome: Outcome, usage: Usage) -> Completion:
        """Charge a job that has just ended; return its completion."""


class JobEnds(Protocol):
    """Ends jobs, and puts their completions into their inboxes."""

    def finish(self, trip: Trip) -> None:
        """End a job that got through."""

    def fail(self, trip: Trip, outcome: Outcome) -> None:
        """End a job before its time."""


@dataclass(slots=True, eq=False)
class Trip:
    """A job on its way: its sender, its legs, and which of them it is at."""

    job: Job
    owner: JobOwner
    inbox: Inbox  # of its completion
    ends: JobEnds
    interruption: Interruption = UNINTERRUPTED
    legs: Sequence[Leg] = ()  # none: all lengths are known and nothing changes them, so one timeout ends the job
    at: int = 0


class LegSum:
    """Amounts that the legs of a job have spent together; see `Usage`. A phase without a leg takes no time."""

    __slots__ = (
        "alone_s", "down_air_s", "flow_s", "flows", "link_wait_s", "rest_s", "seconds", "sent", "shares", "spans_s",
        "up_air_s", "wait_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.seconds, self.shares = [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]
        self.down_air_s = self.up_air_s = self.link_wait_s = self.wait_s = 0.0
        self.flow_s = 0.0  # from the first bits of transfers to their last
        self.flows: Sequence[Flow] = ()
        self.sent: Sequence[Flow] = ()
        self.alone_s: tuple[float, ...] = ()  # on air for what transfers have moved, alone on the links
        self.spans_s: tuple[float, float, float] | None = None  # of phases that overlap
        self.rest_s: tuple[float, ...] = ()  # the same for what they have not; once the job has ended

    def usage(self) -> Usage:
        """Return the sums as the usage of a job."""
        (down_s, compute_s, up_s), (down, compute, up) = self.seconds, self.shares
        rest_s = None
        if self.rest_s:
            rest_s = (self.rest_s[0], self.rest_s[1])
            self.link_wait_s = max(0.0, self.flow_s - self.alone_s[0] - self.alone_s[1])
        air_s = (self.down_air_s, self.up_air_s)
        return Usage(
            (down_s, compute_s, up_s), (down, compute, up), air_s, self.link_wait_s, self.wait_s, self.flows, rest_s,
            self.sent, self.spans_s,
        )  # fmt: skip


class Leg(ABC):
    """A step of a job. Whatever serves it calls `Driver.over` at its end."""

    phase: int  # DOWNLOAD, COMPUTATION or UPLOAD: the columns of its seconds
    can_crash = False  # a device may crash in this phase of this leg
    __slots__ = ("driver", "since_s", "trip", "until_s", "within")

    def __init__(self, driver: Driver, trip: Trip) -> None:
        self.driver = driver
        self.trip = trip
        self.since_s = inf  # begun; inf: not yet
        self.until_s = inf  # over; inf: not yet
        self.within: Overlap | None = None  # the leg of which this one is a part; None: it is the job's own

    def stretch(self) -> float:
        """Fix what begins now, and return how much longer it takes than foreseen when the job was sent."""
        return 1.0

    @abstractmethod
    def begin(self) -> None:
        """Start."""

    @abstractmethod
    def add(self, total: LegSum) -> None:
        """Add what was spent up to now, without other side effects."""

    def settle(self) -> None:
        """Come to the end now if that is due at this very instant."""
        return

    def close(self, through: bool) -> None:
        """Release what serves the leg, as the job ends now; `through`: it is complete."""
        return

    def job_ended(self, through: bool) -> None:
        """Tell others, once all legs are closed."""
        return


class Driver:
    """Takes jobs through their legs."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        batteries: FleetBatteries,
        links_up: OnOff | None,
        shared: SharedNetwork | None,
    ) -> None:
        """`links_up`: of each device; None: links never fail. `shared`: None: links are dedicated."""
        self.env = env
        self.fleet = fleet
        self.batteries = batteries
        self.loads = BatteryLoads(env, batteries, self._battery_empty)
        self.links_up = links_up
        self.network = shared
        self.transfers = None if shared is None else Transfers(env, shared.links)
        self.when_gone: list[Callable[[int], None]] = []  # told of a device that is gone, though it has no job
        self._draws = bool(batteries)
        self._of_device: dict[int, Trip] = {}  # those with legs, if batteries are watched

    # --- a job of known lengths ----------------------------------------------------------------------------------

    def start_known(self, trip: Trip, battery_s: float) -> None:
        """Start a job over dedicated links; `battery_s`: seconds until the battery of its device is empty."""
        job = trip.job
        length_s = job.due_s - job.sent_s
        if trip.interruption is not UNINTERRUPTED or battery_s < inf:
            ends_s, outcome = first_end(job, trip.interruption, battery_s)
            # a crash that rounding moves to the very end is still a crash; who leaves then has delivered
            if ends_s < length_s or (outcome == "crashed" and ends_s == length_s):
                job.due_s = inf
                self.env.timeout(ends_s, (trip, outcome)).callbacks.append(self._cut_short)
                return
        self.env.timeout(length_s, trip).callbacks.append(self._arrived)

    def _arrived(self, event: simpy.Event) -> None:
        trip = cast(Trip, event.value)
        if not trip.job.ended:  # an aborted job's timeout stays in SimPy's heap and means nothing any more
            trip.ends.finish(trip)

    def _cut_short(self, event: simpy.Event) -> None:
        trip, outcome = cast(tuple[Trip, Outcome], event.value)
        if not trip.job.ended:
            trip.ends.fail(trip, outcome)

    def _known_usage(self, job: Job) -> Usage:
        """Return the usage of a job of known lengths up to now: nothing flows while its link is down."""
        now_s, prices = self.env.now, job.prices
        usage = dedicated_usage(job, inf if job.due_s - now_s <= ON_TIME_S else now_s - job.sent_s)
        if self.links_up is None:
            return usage
        row, links_up = np.array([job.device]), self.links_up

        def flowed(share: float, begins_s: float, ends_s: float) -> float:
            if not 0 < share < 1:
                return share
            so_far_s, all_s = (links_up.on_s(row, until_s, begins_s)[0] for until_s in (now_s, ends_s))
            return min(1.0, float(so_far_s / all_s)) if all_s > 0 else 0.0

        down, compute, up = usage.shares
        computes_s = job.sent_s + prices.down_s
        sends_s = computes_s + prices.compute_s
        down = flowed(down, job.sent_s + prices.down_latency_s, computes_s)
        return usage._replace(shares=(down, compute, flowed(up, sends_s + prices.up_latency_s, sends_s + prices.up_s)))

    # --- a job of legs ----------------------------------------------------------------------------------------------

    def start(self, trip: Trip) -> None:
        """Start a job with its first leg."""
        interruption = trip.interruption
        if interruption.leaves_s < inf:
            leaves = self.env.timeout(max(0.0, interruption.leaves_s - self.env.now))
            leaves.callbacks.append(lambda _: self._leave(trip, "offline"))
        # a job without a download of its own may still be struck before it computes
        downloads = trip.legs[0].phase == DOWNLOAD and trip.legs[0].can_crash
        if interruption.phase == SENT or (interruption.phase == DOWNLOAD and not downloads):
            self._watch(trip, None, interruption.crashes_s)
        self._enter(trip, 0)

    def over(self, leg: Leg) -> None:
        """Go on to the next leg, as this one is over now."""
        trip, leg.until_s = leg.trip, self.env.now
        if leg.within is not None:
            leg.within.part_over()
            return
        following = trip.legs[trip.at + 1] if trip.at + 1 < len(trip.legs) else None
        crash, uploads = trip.interruption, following is not None and following.can_crash
        if leg.phase == COMPUTATION and not uploads and crash.phase == UPLOAD and crash.crashes_s < inf:
            trip.ends.fail(trip, "crashed")  # before any other device could have its model
        elif following is None:
            trip.ends.finish(trip)
        else:
            self._enter(trip, trip.at + 1)

    def after(self, seconds: float, leg: Leg, then: Callable[[], None]) -> None:
        """Call `then` after `seconds` if the job is still at this leg."""
        trip = leg.trip
        self.env.timeout(seconds).callbacks.append(
            lambda _: then() if leg.until_s == inf and not trip.job.ended else None
        )

    def over_after(self, seconds: float, leg: Leg) -> None:
        """Let a leg be over after `seconds`, if the job is still at it."""
        trip = leg.trip
        self.env.timeout(seconds).callbacks.append(
            lambda _: self.over(leg) if leg.until_s == inf and not trip.job.ended else None
        )

    def draw(self, trip: Trip, watts: float) -> None:
        """Let the job's device draw these watts above idle power from now on."""
        if self._draws:
            self._of_device[trip.job.device] = trip
            self.loads.begin(trip.job.device, trip.job, watts)

    def end(self, trip: Trip, through: bool) -> Usage:
        """Return the usage of a job that is complete, or that ends early now; free what serves it."""
        job = trip.job
        if not trip.legs:
            usage = dedicated_usage(job, inf) if through else self._known_usage(job)
            if self._draws:
                self.batteries.draw_job(job, usage, joules_of(job, usage, self.fleet))
            return usage
        for leg in trip.legs:
            leg.close(through)
        usage = _sum(trip)
        if self._of_device.get(job.device) is trip:
            del self._of_device[job.device]
            self.loads.end(job.device, job)
        for leg in trip.legs:
            leg.job_ended(through)
        trip.legs = ()  # they refer to each other, and Python frees cycles late
        return usage

    def so_far(self, trip: Trip) -> Usage:
        """Return the usage of a job if it ended now, without side effects."""
        if not trip.legs:
            return self._known_usage(trip.job)
        return _sum(trip)

    def settle(self) -> None:
        """Let transfers that end at this very instant, within ON_TIME_S, end now."""
        if self.transfers is not None:
            self.transfers.settle(ON_TIME_S)

    def _enter(self, trip: Trip, at: int) -> None:
        leg = trip.legs[at]
        trip.at, leg.since_s = at, self.env.now
        if leg.can_crash:
            stretch = leg.stretch()
            if leg.phase == trip.interruption.phase:
                self._watch(trip, leg, trip.interruption.crashes_s * stretch)  # after the same share of the work
        leg.begin()

    def _watch(self, trip: Trip, leg: Leg | None, seconds: float) -> None:
        """Let the job crash after `seconds` if it is still at this leg; None: at any."""
        if seconds == inf:
            return

        def crash(_: simpy.Event) -> None:
            if not trip.job.ended and (leg is None or leg.until_s == inf):
                trip.ends.fail(trip, "crashed")

        self.env.timeout(max(0.0, seconds)).callbacks.append(crash)

    def _leave(self, trip: Trip, outcome: Outcome) -> None:
        """Release a device. Its job may be complete, even at this very instant, and its model still in transit."""
        if not trip.job.ended:
            self.settle()
        if not trip.job.ended:
            trip.legs[trip.at].settle()
        if trip.job.ended:
            self._gone(trip.job.device)
        else:
            trip.ends.fail(trip, outcome)

    def _gone(self, device: int) -> None:
        for tell in self.when_gone:
            tell(device)

    def _battery_empty(self, device: int) -> None:
        trip = self._of_device.get(device)
        if trip is None:  # it was sending what it made before
            self._gone(device)
        else:
            self._leave(trip, "battery")


def _sum(trip: Trip) -> Usage:
    """Return the usage of a job up to now from its legs."""
    total = LegSum()
    for leg in trip.legs:
        leg.add(total)
    return total.usage()


class Computation(Leg):
    """Work of the job's device."""

    phase = COMPUTATION
    can_crash = True
    __slots__ = ()

    def stretch(self) -> float:
        """Price the work as of now, and return how much longer it takes than foreseen when the job was sent."""
        job = self.trip.job
        if self.trip.legs[0] is self:  # it begins when the job was priced
            return 1.0
        foreseen_s = job.prices.compute_s
        self.trip.owner.price_compute(job, self.since_s)
        return job.prices.compute_s / foreseen_s if foreseen_s > 0 else 1.0

    def begin(self) -> None:
        """Let the device compute for as long as its prices say."""
        prices = self.trip.job.prices
        self.driver.draw(self.trip, prices.compute_j / prices.compute_s if prices.compute_s > 0 else 0.0)
        self.driver.over_after(prices.compute_s, self)

    def add(self, total: LegSum) -> None:
        """Add the seconds of computing so far, and the share of the work done in them."""
        now_s = min(self.until_s, self.driver.env.now)
        seconds = max(0.0, now_s - self.since_s)
        total.seconds[COMPUTATION] = seconds
        if self.until_s == inf:
            compute_s = self.trip.job.prices.compute_s
            total.shares[COMPUTATION] = min(1.0, seconds / compute_s) if compute_s > 0 else 0.0

    def settle(self) -> None:
        """Be over if the work is done at this very instant."""
        if self.since_s + self.trip.job.prices.compute_s <= self.driver.env.now + ON_TIME_S:
            self.driver.over(self)


class Transfer(Leg):
    """A model between two nodes over links that transfers contend for: a latency, and then its bytes."""

    can_crash = True
    __slots__ = ("_latency_s", "_network", "_transfers", "_used", "node", "phase")

    def __init__(self, driver: Driver, trip: Trip, phase: int, node: int) -> None:
        """`phase`: DOWNLOAD or UPLOAD; `node`: of the topology, at the end away from the job's owner."""
        super().__init__(driver, trip)
        assert driver.network is not None and driver.transfers is not None
        self.phase = phase
        self.node = node
        self._network = driver.network
        self._transfers = driver.transfers
        self._latency_s = 0.0
        self._used: tuple[float, float, float, float] | None = None  # as of the end of the job

    def begin(self) -> None:
        """Let the latency of the path pass."""
        self._latency_s = self._network.paths.latency_s(*self.nodes)
        path = self._network.limits(*self.nodes)
        start = partial(self._transfers.start, self.number, path, self.air_bytes, self._arrived)
        self.driver.after(self._latency_s, self, start)

    def _arrived(self) -> None:
        self.driver.over(self)

    def add(self, total: LegSum) -> None:
        """Add the seconds so far, the share that has moved, and the seconds on air."""
        seconds, share, flow_s, air_s = self._used or self._so_far()
        total.flow_s += flow_s
        total.seconds[self.phase], total.shares[self.phase] = seconds, share
        if self.phase == DOWNLOAD:
            total.down_air_s = air_s
        else:
            total.up_air_s = air_s
        if self._used is not None:
            alone_bps = self._network.alone_bps(*self.nodes)
            total.alone_s += (8.0 * share * self.air_bytes / alone_bps,)
            total.rest_s += (8.0 * (1.0 - share) * self.air_bytes / alone_bps,)

    def _so_far(self) -> tuple[float, float, float, float]:
        """Return the seconds, the share that has moved, and the seconds of its flow and of its radio."""
        if self.since_s == inf:
            return 0.0, 0.0, 0.0, 0.0
        until_s = min(self.until_s, self.driver.env.now)
        seconds, share = until_s - self.since_s, 1.0
        if self.until_s == inf:
            share = unless_whole(self.moved_bytes(), self.air_bytes) / self.air_bytes if self.air_bytes else 0.0
        flow_s = max(0.0, seconds - self._latency_s - self._down_so_far_s())
        return seconds, share, flow_s, flow_s - self._spared_s(until_s)

    def moved_bytes(self) -> float:
        """Return the bytes that have crossed the links so far."""
        return self._transfers.moved_bytes(self.number)

    def _down_so_far_s(self) -> float:
        """Return the seconds for which it has stood still."""
        return 0.0

    def _spared_s(self, until_s: float) -> float:
        """Return the seconds, at its usual power, that its radio has been on less than for its whole flow."""
        return 0.0

    def close(self, through: bool) -> None:
        """Take the transfer off the links."""
        self._used = self._so_far()
        if self.since_s < inf and self.until_s == inf:
            self._transfers.drop(self.number)

    @property
    def number(self) -> int:
        """Its number on the links, which tells it from all others."""
        return 2 * self.trip.job.id + (self.phase == UPLOAD)

    @property
    def air_bytes(self) -> float:
        """Bytes on the links, those that are sent again among them."""
        prices = self.trip.job.prices
        return prices.down_air_bytes if self.phase == DOWNLOAD else prices.up_air_bytes

    @property
    def nodes(self) -> tuple[int, int]:
        """The nodes of the topology from which and to which it goes."""
        job = self.trip.job
        if self.phase == DOWNLOAD:
            return job.base.owner, self.node
        return self.node, job.base.owner if job.to is None else job.to


class AccessTransfer(Transfer):
    """A model to or from a device, which draws power; it stands still while the device's own link is down."""

    __slots__ = ("_down_s", "_down_since_s", "_moved_bytes", "_radio", "_radio_since_s", "_spared")

    def __init__(self, driver: Driver, trip: Trip, phase: int) -> None:
        super().__init__(driver, trip, phase, 1 + trip.job.device)
        self._moved_bytes = 0.0  # before the link was last down
        self._down_s = 0.0  # with the link down
        self._down_since_s = inf
        self._radio = 1.0  # the share of its power that the radio draws now, on average
        self._radio_since_s = 0.0
        self._spared = 0.0  # seconds before that

    def begin(self) -> None:
        """Let the latency of the path pass, with the drawn latency of the device's access link."""
        job, fleet = self.trip.job, self.driver.fleet
        self.driver.draw(self.trip, 0.0)
        latency_s = self._network.paths.latency_s(*self.nodes)
        if fleet.impaired:
            drawn_s = job.prices.down_latency_s if self.phase == DOWNLOAD else job.prices.up_latency_s
            latency_s = max(0.0, latency_s + drawn_s - float(fleet.latency_s[job.device]))
        self._latency_s = latency_s
        self.driver.after(latency_s, self, self._go_on)

    def _go_on(self) -> None:
        """Put the remaining bytes on the links, now or as soon as the device's own link is up."""
        driver, device, now_s = self.driver, self.trip.job.device, self.driver.env.now
        self._down_s, self._down_since_s = self._down_so_far_s(), inf
        if driver.links_up is not None:
            row = np.array([device])
            changes_s = float(driver.links_up.next_change_s(row, now_s)[0])
            if not driver.links_up.on(row, now_s)[0]:
                self._down_since_s = now_s
                driver.draw(self.trip, 0.0)
                if changes_s == inf:
                    raise link_outage_is_too_short(now_s)
                driver.after(changes_s - now_s, self, self._go_on)
                return
            if changes_s < inf:
                driver.after(changes_s - now_s, self, self._pause)
        path, job = self._network.limits(*self.nodes), self.trip.job
        if self._network.links.is_silent(self.number, path):
            self.trip.ends.fail(self.trip, "outage")
            return
        if job.choice is not None and self.phase == UPLOAD:
            self._network.links.reserve(self.number, job.choice.hertz, job.choice.power_w)
        self._on_radio(1.0)
        left_bytes = max(0.0, self.air_bytes - self._moved_bytes)  # rounding must not make it negative
        self._transfers.start(self.number, path, left_bytes, self._arrived, self._on_radio)

    def _pause(self) -> None:
        """Take the bytes off the links, as the device's own is down."""
        self._moved_bytes += self._transfers.drop(self.number)
        self._on_radio(1.0)
        self._go_on()

    def _on_radio(self, share: float) -> None:
        """Let the radio draw this share of its power from now on."""
        driver = self.driver
        self._spared = self._spared_s(driver.env.now)
        self._radio, self._radio_since_s = share, driver.env.now
        job, fleet = self.trip.job, driver.fleet
        watts = float(fleet.receive_w[job.device]) if self.phase == DOWNLOAD else transmit_w_of(job, fleet)
        driver.draw(self.trip, share * watts)

    def _spared_s(self, until_s: float) -> float:
        return self._spared + (1.0 - self._radio) * (until_s - self._radio_since_s)

    def moved_bytes(self) -> float:
        """Return the bytes that have crossed the links so far, those before the link was down among them."""
        return self._moved_bytes + self._transfers.moved_bytes(self.number)

    def _down_so_far_s(self) -> float:
        return self._down_s + (self.driver.env.now - self._down_since_s if self._down_since_s < inf else 0.0)


class Overlap(Leg):
    """Transfers of a job that pass while its device computes; all begin together. It is over when the last part is."""

    phase = COMPUTATION
    __slots__ = ("_parts",)

    def __init__(self, driver: Driver, trip: Trip) -> None:
        super().__init__(driver, trip)
        down, up = (AccessTransfer(driver, trip, phase) for phase in (DOWNLOAD, UPLOAD))
        self._parts: tuple[Leg, ...] = (down, Computation(driver, trip), up)
        for part in self._parts:
            part.within = self

    def begin(self) -> None:
        """Start all parts."""
        for part in self._parts:
            part.since_s = self.since_s
            part.begin()

    def part_over(self) -> None:
        """Be over if all parts are."""
        if all(part.until_s < inf for part in self._parts):
            self.driver.over(self)

    def add(self, total: LegSum) -> None:
        """Add the parts, with the seconds of transfers beyond computing alone."""
        for part in self._parts:
            part.add(total)
        down_s, compute_s, up_s = total.seconds
        total.spans_s = (down_s, compute_s, up_s)
        total.seconds = list(exposed_s(total.spans_s))
        # waits for links that computing covers are none of the job's seconds
        total.flow_s = min(total.flow_s, sum(total.alone_s) + total.seconds[DOWNLOAD] + total.seconds[UPLOAD])

    def settle(self) -> None:
        """Let the parts be over that are due at this very instant."""
        for part in self._parts:
            if part.until_s == inf:
                part.settle()

    def close(self, through: bool) -> None:
        """Take the transfers off the links."""
        for part in self._parts:
            part.close(through)
