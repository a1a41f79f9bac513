"""One federated training on a world: its learner, global model, rounds so far, selection and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import simpy

from edgesim.core.arrays import Arr
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, Completion, Job, Outcome
from edgesim.core.learner import Learner
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Plan
from edgesim.core.update import FIRST_MODEL
from edgesim.core.view import Setting
from edgesim.engine.accounting import Cost, Totals
from edgesim.engine.dispatcher import Dispatcher
from edgesim.engine.in_flight import Running
from edgesim.engine.inbox import Inbox
from edgesim.engine.presence import Presence
from edgesim.engine.server_buffer import ServerBuffer
from edgesim.engine.trained_models import TrainedModels
from edgesim.engine.usage import Usage, lacked_s
from edgesim.engine.view import FleetView, PeerGraphs
from edgesim.engine.world import World
from edgesim.records.rows import JobRow
from edgesim.records.table import Table


class _AtWork(NamedTuple):
    """A job at work."""

    job: Job


class Session:
    """One federated training on a world, with one server. Others may share the world."""

    def __init__(
        self,
        world: World,
        *,
        learner: Learner,
        setting: Setting,
        tables: Mapping[str, Table],
        selection: Any,
        peers: Any,
        key: Key,
        word: int = 0,
    ) -> None:
        """`peers`: the scenario's graph of peers; None: devices have none. `word`: tells draws of sessions apart."""
        self.world = world
        self.learner = learner
        self.setting = setting
        self.tables = tables
        self.model = FIRST_MODEL
        self.round = 0
        self.exchange = 0
        self.last: Sequence[Completion] = ()
        self.running: dict[int, Job] = {}  # of this session, by id, ascending
        self.presence = Presence(world.availability, world.batteries, setting.members)
        self.nobody_fits = False  # the last plan asked for more memory than any device has
        self.trained = TrainedModels(setting)
        self.server_buffer = ServerBuffer(world.env, tables["jobs"], world.failures)
        self._selection = selection
        self._graphs = PeerGraphs(peers, key.at(Purpose.PEERS), setting.members)
        self._dispatcher = Dispatcher(
            fleet=world.fleet,
            setting=setting,
            availability=world.availability,
            failures=world.failures,
            batteries=world.batteries,
            counter=world.counter,
            key=world.job_key,
            due_known=world.due_known,
            session_word=word,
        )
        self._outsiders: np.ndarray | None = None
        if setting.members is not None:
            self._outsiders = np.ones(len(world.fleet), dtype=bool)
            self._outsiders[setting.members] = False
        self._flops, self._down_bytes, self._up_bytes = 0.0, 0, 0  # of the jobs that have ended
        self._in_flight = world.new_in_flight()

    @property
    def env(self) -> simpy.Environment:
        """The clock of the world."""
        return self.world.env

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.world.env.now

    def view(self, places: int | None = None, only: int | None = None, hidden: tuple[int, ...] = ()) -> FleetView:
        """Return what a method may know now; `places`: how many devices may be asked at most (None: all).

        `only`: the one device that may be asked if it can; if it cannot, all others may. `hidden`: devices that may
        not be asked.
        """
        world = self.world
        # by position, as protocols without rounds look once a job: by name it takes three times as long
        return FleetView(
            self.setting,
            world.env.now,
            self.model.version,
            self.round,
            self.exchange,
            self.last,
            self.presence,
            world.busy,
            len(world.running),
            self._selection,
            self._graphs,
            places,
            only,
            hidden,
            self._outsiders,
        )

    @property
    def others_at_work(self) -> bool:
        """Whether devices that this session may ask have jobs of other sessions: they will be free again."""
        running = len(self.world.running)
        if running == len(self.running):
            return False
        if self._outsiders is None:
            return True
        return int((self.world.busy & ~self._outsiders).sum()) > len(self.running)

    def totals(self, costs: Arr | None = None) -> Totals:
        """Return what has been spent up to now: FLOPs and bytes of this session, joules, money and carbon of the world.

        `costs`: as `World.totals`, which raises the same.
        """
        own = self.world.totals(costs)
        if self._dispatcher.jobs == self.world.counter.jobs:  # all of the world's are of this session
            return own
        running: dict[int, Running] = {id_: _AtWork(job) for id_, job in self.running.items()}
        spent = self._in_flight.spent(running, self.world.env.now)
        return own._replace(
            flops=self._flops + spent.flops,
            down_bytes=self._down_bytes + spent.down_bytes,
            up_bytes=self._up_bytes + spent.up_bytes,
        )

    def new_inbox(self) -> Inbox:
        """Return an empty inbox."""
        return Inbox(self.world.env)

    def dispatch(self, plan: Plan, to: Inbox) -> list[Job]:
        """Start the orders of a plan now, from the current global model; their completions go to `to`.

        Raises ContractError if the plan is empty or asks a device twice or while it is busy.
        """
        self._occupy(plan)
        priced = self._dispatcher.price(plan, self.round, self.model, self.world.env.now)
        for job in priced.jobs:
            self.running[job.id] = job
        self.nobody_fits = priced.nobody_fits
        self.world.start(priced, self, to)
        return priced.jobs

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Completion]:
        """End the jobs of `jobs` that still run, charged up to now; return their completions; see `World.abort`."""
        return self.world.abort(jobs, why)

    def price_compute(self, job: Job, start_s: float) -> None:
        """Set what a job's computation takes if it starts at `start_s`, where that depends on the time."""
        self._dispatcher.price_compute(job, start_s)

    def job_ended(self, job: Job, outcome: Outcome, usage: Usage, cost: Cost) -> Completion:
        """Write the row of a job that has just ended and hold its update; return its completion."""
        del self.running[job.id]
        self._flops += cost.flops
        self._down_bytes += cost.down_bytes
        self._up_bytes += cost.up_bytes + cost.peer_bytes
        delivered = outcome in DELIVERED
        if outcome != "no_memory":
            self.trained.add(job)
        row = self.tables["jobs"].append(self._row(job, outcome, usage, cost))
        if delivered:
            self.server_buffer.add(job, row)
        staleness = self.model.version - job.base.version if job.task.start == "server" else 0
        return Completion(job, self.world.env.now, outcome, staleness, usage.shares[1] == 1.0)

    def _occupy(self, plan: Plan) -> None:
        """Mark the devices of a plan as busy."""
        if not plan.orders:
            raise ContractError(f"round {self.round}: the method asked no device")
        busy = self.world.busy
        for order in plan.orders:
            if not 0 <= order.device < len(busy):
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device}; there are 0 to {len(busy) - 1}"
                )
            if busy[order.device]:
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device} twice, or while it is busy"
                )
            busy[order.device] = True

    def _row(self, job: Job, outcome: Outcome, usage: Usage, cost: Cost) -> JobRow:
        task = job.task
        down_s, compute_s, up_s = usage.seconds
        lacks_s = 0.0 if outcome in DELIVERED else lacked_s(job, usage)
        # in the order of the fields, a line for each group of them: by name it takes three times as long
        return JobRow(
            job.number, job.device, job.round, job.base.version, task.name, task.submodel.shape_id, job.sent_s,
            down_s, compute_s, up_s, usage.link_wait_s, usage.wait_s, self.world.env.now, outcome, lacks_s,
            cost.flops, cost.down_bytes, cost.up_bytes, cost.peer_bytes,
            cost.down_j, cost.compute_j, cost.up_j, cost.peer_j, cost.link_j,
        )  # fmt: skip
