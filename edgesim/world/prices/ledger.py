"""The ledger of money and carbon: every joule, byte, hour and job at the price of its own instant and place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.world.energy.ledger import EnergyLedger
from edgesim.world.prices.market import Cost, Market

# What money and carbon go to. Electricity: of devices, by activity, of the network and of the server.
ITEMS = (
    *("receive", "compute", "transmit", "idle", "sleep", "network", "server"),
    *("data", "device_hours", "payments", "server_hours"),
)
RECEIVE, COMPUTE, TRANSMIT, IDLE, SLEEP, NETWORK, SERVER, DATA, DEVICE_HOURS, PAYMENTS, SERVER_HOURS = range(len(ITEMS))
_MOST_WAITING = 65_536  # uses that are not priced yet: about 15 MB
_MOST_CHANGES = 1_000_000  # of prices, in a run in which idle devices have to be looked at then


# Device, item, amount (joules, bytes, seconds or jobs), and of joules from when to when they were spent, s.
Use: TypeAlias = tuple[int, int, float, float, float]


class ServerUse(NamedTuple):
    """Energy of the server, an edge server or the links between them, from one instant to another."""

    item: int  # SERVER: work, above idle power; or NETWORK
    edge: int | None  # None: the server
    joules: float
    from_s: float
    to_s: float


class CostLedger:
    """Costs of a run so far. The joules of an activity are spread evenly over its seconds.

    Idle and sleeping power is that of the energy ledger. Where devices are off or asleep at times it is looked at
    whenever a price changes, so `price_changed` has to be called then.
    """

    def __init__(self, market: Market, energy: EnergyLedger) -> None:
        devices = len(market.zone)
        self._market = market
        self._energy = energy
        self._items = np.zeros((len(ITEMS), 6))  # of jobs and of the server's work
        self._devices = np.zeros((devices, 6))  # the same by device
        # idle and sleeping devices: what they had cost when a price last changed, and their joules until then
        self._known_s = 0.0
        self._known = {IDLE: np.zeros((devices, 6)), SLEEP: np.zeros((devices, 6))}
        self._known_j = {IDLE: np.zeros(devices), SLEEP: np.zeros(devices)}
        self._server = np.zeros(6)  # of the server's work
        self._edges = np.zeros((len(energy.edge_busy_s), 6))  # of each edge server's work and links
        self._waiting: list[Use] = []  # not priced yet
        self._changes = 0
        self._steady = all(zone.steady for zone in market.zones)

    @property
    def looks_at_changes(self) -> bool:
        """True if `price_changed` has to be called, because idle joules do not follow from the time alone."""
        return not self._steady and self._energy.rests_unevenly

    def next_change_s(self, now_s: float) -> float:
        """Return when a price of some zone changes after `now_s`; inf: never."""
        return min(zone.next_change_s(now_s) for zone in self._market.zones)

    def price_changed(self, now_s: float) -> None:
        """Take note of what idle and sleeping devices have cost up to now, from where on prices are others.

        Raises ConfigError if that happens too often for a run.
        """
        self._changes += 1
        if self._changes > _MOST_CHANGES:
            raise ConfigError(
                f"prices.electricity: changed {_MOST_CHANGES:,} times by {now_s:g} s, too often for a fleet of which "
                "devices are off or asleep at times"
            )
        for item in (IDLE, SLEEP):
            self._known[item], self._known_j[item] = self._resting(item, now_s)
        self._known_s = now_s

    # --- what is charged ----------------------------------------------------------------------------------------

    def book(self, uses: Sequence[Use]) -> None:
        """Book amounts that devices used. Those of many jobs are priced together, when a cost is asked for."""
        self._waiting += uses
        if len(self._waiting) >= _MOST_WAITING:
            self._price_waiting()

    def _price_waiting(self) -> None:
        if self._waiting:
            device, item, costs = self._priced(self._waiting)
            self._waiting = []
            _add(self._items, item, costs)
            _add(self._devices, device, costs)

    def _priced(self, uses: Sequence[Use]) -> tuple[Ids, Ids, Cost]:
        """Return device, item and cost, shape (k, 6), of each use that is not 0, in their order."""
        market, rows = self._market, np.fromiter(chain.from_iterable(uses), np.float64, 5 * len(uses)).reshape(-1, 5)
        rows = rows[rows[:, 2] != 0]
        device, item = rows[:, :2].T.astype(np.int64)
        prices, electric = np.empty((len(rows), 6)), item < DATA
        for place, zone in enumerate(market.zones):
            at = electric & (market.zone[device] == place)
            prices[at] = zone.mean(rows[at, 3], rows[at, 4])
        each = (DATA, market.per_byte, market.link), (DEVICE_HOURS, market.per_busy_s, market.kind)
        for what, of_kinds, kind in (*each, (PAYMENTS, market.per_job, market.kind)):
            at = item == what
            prices[at] = of_kinds[kind[device[at]]]
        return device, item, rows[:, 2:3] * prices

    def book_server(self, use: ServerUse) -> None:
        """Book what a use costs, at the prices of the server's zone."""
        self._price_waiting()  # sums depend on the order
        cost = self._of_server(use)
        self._items[use.item] += cost
        if use.edge is None:
            self._server += cost
        else:
            self._edges[use.edge] += cost

    def _of_server(self, use: ServerUse) -> Cost:
        cost: Cost = use.joules * self._market.server_zone.mean(use.from_s, use.to_s)
        return cost

    # --- what it all comes to -----------------------------------------------------------------------------------

    def items(self, now_s: float, in_flight: Sequence[Use] = (), at_servers: Sequence[ServerUse] = ()) -> Cost:
        """Return the cost of each item by `now_s`, shape (items, 6).

        `in_flight`: of jobs that are not booked; `at_servers`: of merges and of links of edge servers that are not.
        """
        self._price_waiting()
        items = self._items.copy()
        if in_flight:
            _add(items, *self._priced(in_flight)[1:])
        for work in at_servers:
            items[work.item] += self._of_server(work)
        for item in (IDLE, SLEEP):
            items[item] += self._resting_total(item, now_s)
        items[SERVER] += self._server_idle(now_s) + self._edges_idle(now_s).sum(axis=0)
        items[SERVER_HOURS] += now_s * self._market.server_per_s
        return items

    def devices(self, now_s: float) -> Cost:
        """Return the cost of each device by `now_s`, without jobs that still run, shape (devices, 6)."""
        self._price_waiting()
        return self._devices + sum(self._resting(item, now_s)[0] for item in (IDLE, SLEEP))

    def server(self, now_s: float) -> Cost:
        """Return the cost of the server by `now_s`, shape (6,)."""
        cost: Cost = self._server + self._server_idle(now_s) + now_s * self._market.server_per_s
        return cost

    def edges(self, now_s: float) -> Cost:
        """Return the cost of each edge server by `now_s`, at the prices of the server's zone, shape (edges, 6)."""
        cost: Cost = self._edges + self._edges_idle(now_s)
        return cost

    def _edges_idle(self, now_s: float) -> Cost:
        cost: Cost = self._energy.edges_j(now_s)[0][:, np.newaxis] * self._market.server_zone.mean(0.0, now_s)
        return cost

    def _server_idle(self, now_s: float) -> Cost:
        cost: Cost = self._energy.server_j(now_s)[0] * self._market.server_zone.mean(0.0, now_s)
        return cost

    def _resting_total(self, item: int, now_s: float) -> Cost:
        """Return the joint cost of idle or sleeping devices, shape (6,)."""
        if self._energy.rests_unevenly:
            total: Cost = self._resting(item, now_s)[0].sum(axis=0)
            return total
        if item == SLEEP:
            return np.zeros(6)
        watts = np.bincount(self._market.zone, self._energy.idle_w, minlength=len(self._market.zones))
        means = np.array([zone.mean(0.0, now_s) for zone in self._market.zones])
        together: Cost = now_s * (watts @ means)
        return together

    def _resting(self, item: int, now_s: float) -> tuple[Cost, Arr]:
        """Return the idle or sleeping cost of each device by `now_s`, (devices, 6), and its joules, (devices,)."""
        joules = self._energy.idle_j(now_s) if item == IDLE else self._energy.sleep_j(now_s)
        means = np.array([zone.mean(self._known_s, now_s) for zone in self._market.zones])
        since_j = (joules - self._known_j[item])[:, np.newaxis]
        return self._known[item] + since_j * means[self._market.zone], joules


def _add(costs: Cost, rows: Ids, added: Cost) -> None:
    """Add costs, shape (k, 6), to rows of others one after the other, as sums depend on the order."""
    np.add.at(costs.reshape(-1), (6 * rows[:, np.newaxis] + np.arange(6)).ravel(), added.ravel())
