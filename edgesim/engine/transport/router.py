"""Routes each job to its transport, by its links and its task."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import simpy

from edgesim.core.job import Job, Outcome
from edgesim.core.rng import Key
from edgesim.engine.accounting import Usage
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.dispatcher import PricedJobs
from edgesim.engine.transport.battery_load import BatteryLoads
from edgesim.engine.transport.dedicated import DedicatedLinks
from edgesim.engine.transport.flows import DedicatedFlows, Flows, SharedFlows
from edgesim.engine.transport.pairwise import Owner, Trades
from edgesim.engine.transport.peers import PeerExchange
from edgesim.engine.transport.shared import ContendedLinks
from edgesim.engine.transport.transfers import Transfers
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import OnOff


class Router:
    """Hands each job to the transport of its kind: of the server, over dedicated or shared links, or among peers.

    Transports call `arrive` or `fail` at a job's end.
    """

    def __init__(
        self,
        *,
        env: simpy.Environment,
        fleet: Fleet,
        batteries: FleetBatteries,
        shared: SharedNetwork | None,
        links_up: OnOff | None,
        key: Key,
        price_compute: Callable[[Job, float], None],
        owner_of: Callable[[Job], Owner],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self._server: DedicatedLinks | ContendedLinks
        self.transfers: Transfers | None = None  # over shared links; None: there are none
        flows: Flows
        loads = BatteryLoads(env, batteries, lambda device: self._peers.battery_empty(device))
        if shared is None:
            self._server = DedicatedLinks(env, fleet, batteries, links_up, arrive, fail)
            flows = DedicatedFlows(env, fleet, key, loads, links_up)
        else:
            transfers = self.transfers = Transfers(env, shared.links)
            self._server = ContendedLinks(
                env, shared, transfers, fleet, batteries, links_up, price_compute, arrive, fail
            )
            flows = SharedFlows(env, shared, transfers, fleet, key, loads, links_up)
        self._peers = PeerExchange(env, flows, price_compute, arrive, fail, loads)
        self._trades = Trades(env, flows, owner_of, arrive, fail)

    def start(self, priced: PricedJobs) -> None:
        """Send off the jobs that fit."""
        among_peers, refused = [], []
        for place, (job, fits) in enumerate(zip(priced.jobs, priced.fits, strict=True)):
            if not fits:
                refused.append(job.device)
            elif job.task.own_clock == "trade":
                self._trades.start(job, None if priced.interruptions is None else priced.interruptions[place])
            elif job.task.start == "device":
                among_peers.append(place)
            else:
                interruption = None if priced.interruptions is None else priced.interruptions[place]
                battery_s = inf if priced.battery_s is None else priced.battery_s[place]
                self._server.start(job, interruption, battery_s)
        if among_peers:
            own = None if priced.interruptions is None else [priced.interruptions[place] for place in among_peers]
            self._peers.start([priced.jobs[place] for place in among_peers], own, refused)

    def settle(self, within_s: float) -> None:
        """Let what would end within `within_s` seconds end now."""
        self._server.settle(within_s)

    def end(self, job: Job, through: bool) -> Usage:
        """Forget a job that is complete or ends early; return its usage."""
        return self._of(job).end(job, through)

    def so_far(self, job: Job) -> Usage:
        """Return the usage of a job if it ended now, without side effects."""
        return self._of(job).so_far(job)

    def _of(self, job: Job) -> DedicatedLinks | ContendedLinks | PeerExchange | Trades:
        if job.task.start == "server":
            return self._server
        return self._trades if job.task.own_clock == "trade" else self._peers
