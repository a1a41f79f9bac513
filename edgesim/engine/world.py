"""Physical side of a simulation: clock, devices at work, links, batteries, failures, and their costs.

It moves references and never sees a tensor. Idle devices own no process, event or object; a job over dedicated links is
one SimPy timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite

import numpy as np
import simpy

from edgesim.core.arrays import Arr
from edgesim.core.errors import LedgerError
from edgesim.core.rng import Key, Purpose
from edgesim.engine.accounting import Accounting, Totals
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.flows import DedicatedFlows, Flows, SharedFlows
from edgesim.engine.in_flight import InFlight
from edgesim.engine.legs import Driver
from edgesim.engine.participants import Devices
from edgesim.world.availability.base import Availability
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.energy.ledger import EnergyLedger
from edgesim.world.failures.base import Failure
from edgesim.world.fleet import Fleet
from edgesim.world.prices.ledger import NETWORK, SERVER, CostLedger, ServerUse
from edgesim.world.prices.market import COLUMNS


@dataclass(eq=False, slots=True)
class Merge:
    """A merge that the server, or an edge server, is at."""

    edge: int | None  # None: the server
    since_s: float
    workers_s: Sequence[float]  # seconds that each worker needs for it


class World:
    """Clock, fleet, transport, availability, batteries, failures and ledger of one simulation."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        ledger: EnergyLedger,
        availability: Availability,
        batteries: FleetBatteries,
        key: Key,
        shared: SharedNetwork | None = None,
        failures: Failure | None = None,
        costs: CostLedger | None = None,
    ) -> None:
        """`shared`: links that transfers contend for; None: all devices have dedicated ones.

        `costs`: the ledger of money and carbon; None: there are no prices.
        """
        links_up = None if failures is None else failures.links
        self.env = simpy.Environment(0.0)
        self.fleet = fleet
        self.ledger = ledger
        self.availability = availability
        self.batteries = batteries
        self.failures = failures
        self.accounting = Accounting(fleet, ledger, costs)
        self.due_known = shared is None  # the end of a job of the server follows from its prices
        self.job_key = key.at(Purpose.CHANNEL)  # of all that chance decides about a job
        self.backhaul: list[
            Callable[[], Sequence[ServerUse]]
        ] = []  # give what transfers of edge servers under way took
        self._merges: list[Merge] = []  # at work
        self.asks = 0  # times that sessions with rivals have asked devices
        self.shared = shared
        self.driver = Driver(self.env, fleet, batteries, links_up, shared)
        peers_key, loads, transfers = key.at(Purpose.PEERS), self.driver.loads, self.driver.transfers
        flows: Flows
        if shared is None or transfers is None:
            flows = DedicatedFlows(self.env, fleet, peers_key, loads, links_up)
        else:
            flows = SharedFlows(self.env, shared, transfers, fleet, peers_key, loads, links_up)
        self.devices = Devices(self.driver, flows, availability)
        if costs is not None and costs.looks_at_changes:
            self.env.process(self._watch_prices(costs))
        self._steady_links = shared is None and links_up is None
        self._in_flight = self.new_in_flight()

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now

    def new_in_flight(self) -> InFlight:
        """Return a cached accumulator of the cost of running jobs."""
        return InFlight(self.fleet, self.accounting, self.driver, self._steady_links)

    def totals(self, costs: Arr | None = None) -> Totals:
        """Return the totals up to now, work in progress included, without side effects.

        `costs`: current costs by item, if the caller has them already. Raises LedgerError if a total is infinite or
        not a number.
        """
        booked = self.accounting
        running = self._in_flight.spent(self.devices.running, self.now_s)
        at_servers = self._at_servers()
        network_j, server_j = (sum(use.joules for use in at_servers if use.item == item) for item in (NETWORK, SERVER))
        joules = self.ledger.joules(
            self.now_s, self.devices.counter.asked, running.joules, running.network_j + network_j, server_j
        )
        costs = self.costs_by_item() if costs is None else costs
        totals = Totals(
            booked.flops + running.flops,
            booked.down_bytes + running.down_bytes,
            booked.up_bytes + running.up_bytes,
            *joules,
            *costs.sum(axis=0).tolist(),
        )
        if wrong := [f"{name} {value}" for name, value in totals._asdict().items() if not isfinite(value)]:
            raise LedgerError(f"after {self.now_s:g} s the run has spent {', '.join(wrong)}, must be finite")
        if not isfinite(self.now_s):
            raise LedgerError(f"simulated time has come to {self.now_s} s, must be finite")
        return totals

    def costs_by_item(self) -> Arr:
        """Return the costs up to now, work in progress included, shape (items, 6); no row: no prices.

        Rows are edgesim.world.prices.ledger.ITEMS, columns edgesim.world.prices.market.COLUMNS.
        """
        costs = self.accounting.costs
        if costs is None:
            return np.zeros((0, len(COLUMNS)))
        return costs.items(self.now_s, self._in_flight.uses(self.devices.running), self._at_servers())

    def begin_merge(self, workers_s: Sequence[float], edge: int | None = None) -> Merge:
        """Let workers of the server, or of an edge server, begin a merge now that takes each of them so many seconds.

        What they have done of it is part of all totals until `end_merge` charges it.
        """
        merge = Merge(edge, self.now_s, workers_s)
        self._merges.append(merge)
        return merge

    def end_merge(self, merge: Merge, through: bool) -> None:
        """Charge a merge that is through, or broken off, now."""
        self._merges.remove(merge)
        workers_s = merge.workers_s if through else worked_s(merge.workers_s, self.now_s - merge.since_s)
        for busy_s, use in zip(workers_s, self._work(merge.edge, workers_s), strict=True):
            if merge.edge is None:
                self.ledger.charge_server(busy_s)
            else:
                self.ledger.charge_edge(merge.edge, busy_s)
            if self.accounting.costs is not None:
                self.accounting.costs.book_server(use)

    def charge_edge_link(self, use: ServerUse) -> None:
        """Charge what the links between an edge server and the server took."""
        self.ledger.charge_link(use.joules)
        if self.accounting.costs is not None:
            self.accounting.costs.book_server(use)

    def _at_servers(self) -> list[ServerUse]:
        """Return the uncharged energy of merges in progress and of models between servers."""
        merging = [
            use
            for merge in self._merges
            for use in self._work(merge.edge, worked_s(merge.workers_s, self.now_s - merge.since_s))
        ]
        return merging + [use for under_way in self.backhaul for use in under_way()]

    def _work(self, edge: int | None, workers_s: Sequence[float]) -> Iterator[ServerUse]:
        """Yield what each worker added to idle power; all began when the longest did, which has worked until now."""
        work_j = self.ledger.server_work_j if edge is None else partial(self.ledger.edge_work_j, edge)
        for from_s, to_s in spans(workers_s, self.now_s):
            yield ServerUse(SERVER, edge, work_j(to_s - from_s), from_s, to_s)

    def _watch_prices(self, costs: CostLedger) -> Generator[simpy.Event]:
        at_s = costs.next_change_s(0.0)
        while at_s < inf:
            yield self.env.timeout(max(0.0, at_s - self.now_s))
            costs.price_changed(at_s)
            at_s = costs.next_change_s(at_s)


def spans(workers_s: Sequence[float], now_s: float) -> Iterator[tuple[float, float]]:
    """Yield when each worker began and ended; all began together, and the longest ends now."""
    longest_s = max(workers_s)
    began_s = now_s - longest_s
    for busy_s in workers_s:
        yield began_s, now_s if busy_s == longest_s else began_s + busy_s


def worked_s(workers_s: Sequence[float], elapsed_s: float) -> list[float]:
    """Return the seconds that each worker has worked, `elapsed_s` after all began, while the longest still does."""
    longest_s = max(workers_s)
    return [elapsed_s if busy_s == longest_s else min(busy_s, elapsed_s) for busy_s in workers_s]
