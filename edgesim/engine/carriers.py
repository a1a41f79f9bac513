"""Takes jobs from being sent to their end, in the way that their links and their task ask for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import simpy

from edgesim.contracts import Job, Outcome
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.desk import Stamped
from edgesim.engine.direct import Direct
from edgesim.engine.flows import Flows, OwnFlows, SharedFlows
from edgesim.engine.journeys import Journeys
from edgesim.engine.peers import Peers
from edgesim.engine.spending import Spending
from edgesim.engine.transfers import Transfers
from edgesim.rng import Key
from edgesim.world.fleet import Fleet
from edgesim.world.onoff import OnOff
from edgesim.world.shared_network import SharedNetwork


class Carriers:
    """One carrier for jobs of the server, one for jobs of peers; they call `arrive` or `fail` at a job's end."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        batteries: FleetBatteries,
        shared: SharedNetwork | None,
        links_up: OnOff | None,
        key: Key,
        price_compute: Callable[[Job, float], None],
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self.due_known = shared is None  # the end of a job follows from its prices
        self._server: Direct | Journeys
        flows: Flows
        if shared is None:
            self._server = Direct(env, fleet, batteries, links_up, arrive, fail)
            flows = OwnFlows(env, fleet, key)
        else:
            transfers = Transfers(env, shared.links)
            self._server = Journeys(env, shared, transfers, fleet, batteries, links_up, price_compute, arrive, fail)
            flows = SharedFlows(env, shared, transfers)
        self._peers = Peers(env, flows, price_compute, arrive, fail)

    def start(self, stamped: Stamped) -> None:
        """Send off the jobs that fit."""
        places = [place for place, fits in enumerate(stamped.fits) if fits]
        jobs, fates, battery_s = stamped.jobs, stamped.fates, stamped.battery_s
        among_peers = [place for place in places if jobs[place].task.home == "self"]
        if among_peers:
            own = None if fates is None else [fates[place] for place in among_peers]
            refused = [job.device for job, fits in zip(jobs, stamped.fits, strict=True) if not fits]
            self._peers.start([jobs[place] for place in among_peers], own, refused)
        for place in places:
            if jobs[place].task.home == "server":
                fate = None if fates is None else fates[place]
                self._server.start(jobs[place], fate, inf if battery_s is None else battery_s[place])

    def start_sure(self, job: Job) -> None:
        """Send off a job of the server to which nothing can happen."""
        self._server.start(job, None, inf)

    def settle(self, within_s: float) -> None:
        """Let what would end within `within_s` seconds end now."""
        self._server.settle(within_s)

    def end(self, job: Job, through: bool) -> Spending:
        """Forget a job, through or broken off; return what it spent up to now."""
        return self._of(job).end(job, through)

    def so_far(self, job: Job) -> Spending:
        """Return what a job would have spent if it were broken off now; asking changes nothing."""
        return self._of(job).so_far(job)

    def _of(self, job: Job) -> Direct | Journeys | Peers:
        return self._server if job.task.home == "server" else self._peers
