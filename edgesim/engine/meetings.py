"""Meetings of two devices: jobs of peers on their own clocks that have computed trade models with one peer, both ways.

A device takes part in one trade at a time, as one model cannot be averaged with two at once: the average of a trade is
of the models that were sent. A device that asks for a peer that is taken waits, and can be traded with meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from edgesim.core.job import ON_TIME_S
from edgesim.engine.flows import Flow, Flows
from edgesim.engine.legs import Computation, Driver, JobOwner, Leg, LegSum, Trip
from edgesim.world.failures.base import UPLOAD


class Meeting(Leg):
    """A trade of models with a peer, and the wait for both devices to be free; without a peer it is over at once."""

    phase = UPLOAD
    __slots__ = ("arrived", "begins_s", "flows", "meetings", "peer")

    def __init__(self, driver: Driver, trip: Trip, meetings: Meetings) -> None:
        super().__init__(driver, trip)
        self.meetings = meetings
        self.peer = trip.job.inputs[0] if trip.job.inputs else None
        self.begins_s = inf  # the trade
        self.flows: list[Flow] = []  # to the device, and from it
        self.arrived = 0  # of them

    def begin(self) -> None:
        """Wait for a trade with the peer."""
        self.driver.draw(self.trip, 0.0)
        if self.peer is None:
            self.driver.over(self)
        else:
            self.meetings.wait(self)

    def ends_now(self) -> bool:
        """Return True if both models are there at this very instant."""
        return all(flow.ends_s <= self.driver.env.now + ON_TIME_S for flow in self.flows)

    def settle(self) -> None:
        """Be over if both models are there at this very instant."""
        if self.flows and self.ends_now():
            self.meetings.traded(self)

    def add(self, total: LegSum) -> None:
        """Add the seconds since the device has computed, those of waiting among them, and the two models."""
        if self.since_s == inf:
            return
        now_s = self.driver.env.now
        total.seconds[UPLOAD] = now_s - self.since_s
        if self.peer is not None:
            total.link_wait_s = min(now_s, self.begins_s) - self.since_s
        if self.flows:
            to_me, from_me = self.flows if self.trip.job.ended else self.meetings.flows.so_far(self.flows)
            total.down_air_s, total.up_air_s = to_me.down_air_s, from_me.up_air_s
            total.flows, total.sent = [to_me], [from_me]

    def close(self, through: bool) -> None:
        """Leave the trade and the queue."""
        self.meetings.let_go(self)

    def job_ended(self, through: bool) -> None:
        """Let others that wait for one of its devices go on."""
        self.meetings.job_ended(self, through)


class Meetings:
    """The trades of devices, and the devices that wait for one.

    Without its peer a job is through as soon as it has computed: where the peer is not there when the trade could
    begin, or leaves or fails before it ends. Then `Job.partner` stays None.
    """

    def __init__(self, driver: Driver, flows: Flows) -> None:
        self.flows = flows
        self._driver = driver
        driver.when_gone.append(self._gone)
        self._waiting: list[Meeting] = []  # for their peers or for themselves to be free, the first to ask first
        self._trading: dict[int, Meeting] = {}  # by both of their devices

    def start(self, trip: Trip) -> None:
        """Let a job compute from now on, and then trade with its one input; without any it only computes."""
        trip.legs = (Computation(self._driver, trip), Meeting(self._driver, trip, self))
        self._driver.start(trip)

    def wait(self, meeting: Meeting) -> None:
        """Put a meeting into the queue, and begin all trades that can begin."""
        self._waiting.append(meeting)
        self._begin_trades(meeting.trip.owner)

    def traded(self, meeting: Meeting) -> None:
        """End a trade whose models are there."""
        if meeting.trip.job.ended or self._trading.get(meeting.trip.job.device) is not meeting:
            return
        for flow in meeting.flows:
            flow.ends_s = min(flow.ends_s, self._driver.env.now)  # a sum of seconds may miss it by a rounding error
        meeting.trip.job.partner = meeting.peer
        self.let_go(meeting)
        self._driver.over(meeting)

    def let_go(self, meeting: Meeting) -> None:
        """Take a job out of trading and waiting, and its flows off the links."""
        self.flows.stop(meeting.flows)
        if meeting in self._waiting:
            self._waiting.remove(meeting)
        for device in (meeting.trip.job.device, meeting.peer):
            if device is not None and self._trading.get(device) is meeting:
                del self._trading[device]

    def job_ended(self, meeting: Meeting, through: bool) -> None:
        """Let the peer of a device that fails go on without it, and devices that waited begin their trades."""
        job, owner = meeting.trip.job, meeting.trip.owner
        if not through:
            self._gone(job.device)
        if self._waiting:
            self._at(self._driver.env.now, lambda: self._begin_trades(owner))

    def _gone(self, device: int) -> None:
        """Let the peer of a device that fails or leaves go on without it, unless the run ends at this instant."""
        if (other := self._trading.get(device)) is not None:
            self._at(self._driver.env.now, lambda: self._go_on_without(other))

    def _begin_trades(self, owner: JobOwner) -> None:
        """Begin the waiting trades of a training in the order of asking, where both devices are free."""
        own = [each for each in self._waiting if each.trip.owner is owner]
        for meeting in sorted(own, key=lambda each: (each.since_s, each.trip.job.device)):
            if meeting not in self._waiting:
                continue  # it went on without its peer meanwhile
            assert meeting.peer is not None
            until_s = owner.there_until_s(meeting.peer)
            if until_s <= self._driver.env.now:
                self._waiting.remove(meeting)
                self._driver.over(meeting)
            elif meeting.peer not in self._trading and meeting.trip.job.device not in self._trading:
                self._waiting.remove(meeting)
                self._begin(meeting, meeting.peer, until_s)

    def _begin(self, meeting: Meeting, peer: int, until_s: float) -> None:
        job = meeting.trip.job
        self._trading[job.device] = self._trading[peer] = meeting
        meeting.begins_s = self._driver.env.now
        # both ways have draws of their own, also where the peer's own trade of the same number is with this device
        ways = ((peer, job.device, 2 * job.nth), (job.device, peer, 2 * job.nth + 1))
        for source, target, occasion in ways:
            flow = self.flows.one(source, target, job.prices.message_bytes, occasion, lambda _: self._there(meeting))
            meeting.flows.append(flow)
        if all(flow.ends_s < inf for flow in meeting.flows):
            self._at(max(flow.ends_s for flow in meeting.flows), lambda: self.traded(meeting))
        if until_s < inf:
            self._at(until_s, lambda: self._go_on_without(meeting))

    def _there(self, meeting: Meeting) -> None:
        """Record the end of a flow whose end was unknown."""
        meeting.arrived += 1
        if meeting.arrived == len(meeting.flows):
            self.traded(meeting)

    def _go_on_without(self, meeting: Meeting) -> None:
        """End a trade whose peer cannot continue; the job completes without it."""
        if meeting.trip.job.ended or self._trading.get(meeting.trip.job.device) is not meeting:
            return
        if meeting.ends_now():
            self.traded(meeting)
            return
        self.let_go(meeting)
        self._driver.over(meeting)

    def _at(self, at_s: float, then: Callable[[], None]) -> None:
        self._driver.env.timeout(max(0.0, at_s - self._driver.env.now)).callbacks.append(lambda _: then())
