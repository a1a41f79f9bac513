"""Jobs of peers on their own clocks that compute and then trade models with one peer, both ways at once.

A device takes part in one trade at a time, as one model cannot be averaged with two at once: the average of a trade is
of the models that were sent. Whoever asks for one that is taken waits, and can be traded with meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import simpy

from edgesim.core.job import ON_TIME_S, Job, Outcome
from edgesim.engine.accounting import Usage
from edgesim.engine.interruptions import UNINTERRUPTED, Interruption
from edgesim.engine.transport.flows import Flow, Flows
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, SENT, UPLOAD


class Owner(Protocol):
    """Sender of a job: the training of its peers."""

    def there_until_s(self, device: int) -> float:
        """Return until when a device can be reached, asked now; -inf: it cannot. Asking changes nothing."""


@dataclass(slots=True, eq=False)
class _Trade:
    """Where a job is."""

    job: Job
    owner: Owner
    interruption: Interruption
    peer: int | None
    computed_s: float  # when it has computed, or will have
    computed: bool = False
    begins_s: float = inf  # the trade
    flows: list[Flow] = field(default_factory=list)  # to the device, and from it
    arrived: int = 0  # of them


class Trades:
    """Transports jobs that trade models; calls `arrive` when one is through, else `fail`.

    Without its peer a job is through as soon as it has computed: where the peer is not there when the trade could
    begin, or leaves or fails before it ends. Then `Job.partner` stays None.
    """

    def __init__(
        self,
        env: simpy.Environment,
        flows: Flows,
        owner_of: Callable[[Job], Owner],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        """`owner_of`: gives the sender of a running job."""
        self._env = env
        self._flows = flows
        self._owner_of = owner_of
        self._arrive = arrive
        self._fail = fail
        self._jobs: dict[int, _Trade] = {}  # by device
        self._waiting: list[_Trade] = []  # for their peers or for themselves to be free, the first to ask first
        self._trading: dict[int, _Trade] = {}  # by both of their devices

    def start(self, job: Job, interruption: Interruption | None) -> None:
        """Let a job compute from now on, and then trade with its one input; without any it only computes."""
        now_s, interruption = self._env.now, interruption or UNINTERRUPTED
        peer = job.inputs[0] if job.inputs else None
        trade = self._jobs[job.device] = _Trade(
            job, self._owner_of(job), interruption, peer, now_s + job.prices.compute_s
        )
        self._at(trade.computed_s, lambda: self._computed(trade))
        self._at(interruption.leaves_s, lambda: self._leave(trade))
        if interruption.phase in (SENT, DOWNLOAD, COMPUTATION):
            self._at(now_s + interruption.crashes_s, lambda: self._crash(trade))

    def end(self, job: Job, through: bool) -> Usage:
        """Forget a job, through or broken off; return what it spent up to now."""
        trade = self._jobs.pop(job.device)
        self._let_go(trade)
        usage = self._usage(trade, trade.flows)
        if not through and (other := self._trading.get(job.device)) is not None:
            self._at(self._env.now, lambda: self._go_on_without(other))  # unless the run ends here
        if self._waiting:
            self._at(self._env.now, lambda: self._begin_trades(trade.owner))
        return usage

    def so_far(self, job: Job) -> Usage:
        """Return the usage of a job if it ended now, without side effects."""
        trade = self._jobs[job.device]
        return self._usage(trade, self._flows.so_far(trade.flows))

    def _usage(self, trade: _Trade, flows: Sequence[Flow]) -> Usage:
        now_s, prices = self._env.now, trade.job.prices
        computing_s = min(now_s, trade.computed_s) - trade.job.sent_s
        done = 1.0 if trade.computed else min(1.0, computing_s / prices.compute_s) if computing_s else 0.0
        trading_s = max(0.0, now_s - trade.computed_s)
        waited_s = max(0.0, min(now_s, trade.begins_s) - trade.computed_s)
        to_me, from_me = flows or (None, None)
        return Usage(
            seconds=(0.0, computing_s, trading_s),
            shares=(1.0, done, 1.0),
            air_s=(to_me.down_air_s if to_me else 0.0, from_me.up_air_s if from_me else 0.0),
            link_wait_s=waited_s if trade.peer is not None else 0.0,
            flows=[to_me] if to_me else [],
            sent=[from_me] if from_me else [],
        )

    # --- from computing to trading ------------------------------------------------------------------------------

    def _computed(self, trade: _Trade) -> None:
        if trade.job.ended:
            return
        trade.computed = True
        if trade.interruption.phase == UPLOAD and trade.interruption.crashes_s < inf:
            self._crash(trade)
        elif trade.peer is None:
            self._arrive(trade.job)
        else:
            self._waiting.append(trade)
            self._begin_trades(trade.owner)

    def _begin_trades(self, owner: Owner) -> None:
        """Begin the waiting trades of a training in the order of asking, where both devices are free."""
        own = [each for each in self._waiting if each.owner is owner]
        for trade in sorted(own, key=lambda each: (each.computed_s, each.job.device)):
            if trade not in self._waiting:
                continue  # it went on without its peer meanwhile
            assert trade.peer is not None
            until_s = owner.there_until_s(trade.peer)
            if until_s <= self._env.now:
                self._waiting.remove(trade)
                self._arrive(trade.job)
            elif trade.peer not in self._trading and trade.job.device not in self._trading:
                self._waiting.remove(trade)
                self._begin(trade, trade.peer, until_s)

    def _begin(self, trade: _Trade, peer: int, until_s: float) -> None:
        device, nbytes = trade.job.device, trade.job.prices.message_bytes
        self._trading[device] = self._trading[peer] = trade
        trade.begins_s = self._env.now
        # both ways have draws of their own, also where the peer's own trade of the same number is with this device
        ways = ((peer, device, 2 * trade.job.nth), (device, peer, 2 * trade.job.nth + 1))
        for source, target, occasion in ways:
            trade.flows.append(self._flows.one(source, target, nbytes, occasion, lambda _: self._there(trade)))
        if all(flow.ends_s < inf for flow in trade.flows):
            self._at(max(flow.ends_s for flow in trade.flows), lambda: self._traded(trade))
        self._at(until_s, lambda: self._go_on_without(trade))

    def _there(self, trade: _Trade) -> None:
        """Record the end of a flow whose end was unknown."""
        trade.arrived += 1
        if trade.arrived == len(trade.flows):
            self._traded(trade)

    def _traded(self, trade: _Trade) -> None:
        if trade.job.ended or self._trading.get(trade.job.device) is not trade:
            return
        for flow in trade.flows:
            flow.ends_s = min(flow.ends_s, self._env.now)  # a sum of seconds may miss it by a rounding error
        trade.job.partner = trade.peer
        self._let_go(trade)
        self._arrive(trade.job)

    def _go_on_without(self, trade: _Trade) -> None:
        """End a trade whose peer cannot continue; the job completes without it."""
        if trade.job.ended or self._trading.get(trade.job.device) is not trade:
            return
        if self._ends_now(trade):
            self._traded(trade)
            return
        self._let_go(trade)
        self._arrive(trade.job)

    def _let_go(self, trade: _Trade) -> None:
        """Take a job out of trading and waiting, and its flows off the links."""
        self._flows.stop(trade.flows)
        if trade in self._waiting:
            self._waiting.remove(trade)
        for device in (trade.job.device, trade.peer):
            if device is not None and self._trading.get(device) is trade:
                del self._trading[device]

    # --- failures ---------------------------------------------------------------------------------------------

    def _crash(self, trade: _Trade) -> None:
        if not trade.job.ended:
            self._fail(trade.job, "crashed")

    def _leave(self, trade: _Trade) -> None:
        """Let a device go, which may have done its job at this very instant."""
        if trade.job.ended:
            return
        if trade.flows and self._ends_now(trade):
            self._traded(trade)
        elif trade.peer is None and trade.computed_s <= self._env.now + ON_TIME_S:
            self._computed(trade)
        else:
            self._fail(trade.job, "offline")

    def _ends_now(self, trade: _Trade) -> bool:
        return all(flow.ends_s <= self._env.now + ON_TIME_S for flow in trade.flows)

    def _at(self, at_s: float, then: Callable[[], None]) -> None:
        if at_s < inf:
            self._env.timeout(max(0.0, at_s - self._env.now)).callbacks.append(lambda _: then())
