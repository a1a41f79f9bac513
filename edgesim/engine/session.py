"""One federated training on a world: its learner, global model, rounds so far, selection and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import simpy
from simpy.events import EventPriority

from edgesim.core.arrays import Arr
from edgesim.core.controller import Choice
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, Completion, Job, Outcome
from edgesim.core.learner import Learner, ServerStep
from edgesim.core.rng import Key, Purpose
from edgesim.core.selection import Informed
from edgesim.core.task import Plan
from edgesim.core.update import FIRST_MODEL, ModelRef
from edgesim.core.view import Setting
from edgesim.engine.accounting import Totals, Usage, lacked_s
from edgesim.engine.dispatcher import Dispatcher
from edgesim.engine.edges.edge_servers import EdgeServers, OrderPrices, OrderReport
from edgesim.engine.history import History
from edgesim.engine.in_flight import InFlight, Spent
from edgesim.engine.inbox import Inbox
from edgesim.engine.participants import Devices
from edgesim.engine.pricing import TrainedModels
from edgesim.engine.reachability import Presence
from edgesim.engine.server_queue import ServerBuffer
from edgesim.engine.view import FleetView, PeerGraphs
from edgesim.engine.world import World
from edgesim.records.table import EdgeJobRow, JobRow, Table
from edgesim.world.failures.base import Failure
from edgesim.world.resources.base import Resources


@dataclass
class Edge:
    """Part of an edge server's session: its place, those below it, and what it shares with other edge servers."""

    index: int  # among the servers of all tiers
    node: int  # of the topology
    members: np.ndarray  # which devices, or servers of the tier below, it may ask now, bool, shape (those below,)
    trained: TrainedModels
    presence: Presence  # of those below
    failures: Failure | None  # of its own: restarts
    cloud_round: Callable[[], int]  # rounds of the server so far
    hand_over: Callable[[Completion, int], None]  # to the edge server that a device moved to; its row in the table


def dispatcher_of(
    world: World, setting: Setting, session_word: int = 0, resources: Resources | None = None
) -> Dispatcher:
    """Return the dispatcher of a session; for `session_word` and `resources` see `Dispatcher`."""
    return Dispatcher(
        fleet=world.fleet,
        setting=setting,
        availability=world.availability,
        failures=world.failures,
        batteries=world.batteries,
        counter=world.devices.counter,
        key=world.job_key,
        due_known=world.due_known,
        session_word=session_word,
        resources=resources,
    )


class Session:
    """One federated training on a world, as one aggregator sees it: the server, or an edge server of any tier.

    Others may share the world.
    """

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
        dispatcher: Dispatcher | OrderPrices,
        edge: Edge | None = None,
        below: EdgeServers | None = None,
        alone: bool = True,
    ) -> None:
        """`peers`: the scenario's graph of peers; None: devices have none. `edge`: None: this is the server's.

        `dispatcher`: prices the orders. `below`: the edge servers that it asks; None: it asks devices. `alone`: no
        other session shares the world.
        """
        self.world = world
        self.key = key
        self.below: Devices | EdgeServers = below or world.devices
        self.edge = edge
        self.learner = learner
        self.setting = setting
        self.tables = tables
        self.model = FIRST_MODEL if edge is None else ModelRef(edge.node, 0)
        self.round = 0
        self.exchange = 0
        self.last: Sequence[Completion] = ()
        self.visitors: list[Completion] = []  # with updates of devices that came from other edge servers
        self.running: dict[int, Job] = {}  # of this session, by id, ascending
        self.presence = self.below.new_presence(setting.members) if edge is None else edge.presence
        self.nobody_fits = False  # the last plan asked for more memory than any device has
        self.trained = TrainedModels(setting) if edge is None else edge.trained
        self.rows = tables["jobs" if below is None else "edges"]  # of its jobs
        self.server_buffer = ServerBuffer(world.env, self.rows, world.failures if edge is None else edge.failures)
        self.members: np.ndarray | None = None  # devices that may be asked, bool, shape (devices,); None: all
        if edge is not None:
            self.members = edge.members
        elif setting.members is not None:
            self.members = np.isin(np.arange(len(setting.samples)), setting.members)
        self.choice = Choice()  # of a controller
        self._unsteered = setting, selection
        self._selection = selection
        self._weights: dict[int, float] = {}  # of running jobs whose updates do not count 1, by id
        peers_key = key.at(Purpose.PEERS)
        if peers is not None:
            links = setting.of_members()
            peers = peers.on_links(links.up_bps, links.down_bps, peers_key)
        self._graphs = PeerGraphs(peers, peers_key, setting.members)
        self._dispatcher = dispatcher
        self._history: History | None = None  # None: the selection does not look at it
        if isinstance(selection, Informed) and isinstance(dispatcher, Dispatcher):
            self._history = History(selection, world, setting, dispatcher.draws_of_device)
        self.rivals: list[Session] = []  # that may ask some of its devices too
        self.wants_devices = False  # and waits for one
        self._asked = 0  # asks of all sessions when it asked last; 0: it never did
        self._alone = alone
        self._ended = Spent()  # by jobs that have ended, unless there are no others

    @property
    def env(self) -> simpy.Environment:
        """The clock of the world."""
        return self.world.env

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.world.env.now

    def view(self, places: int | None = None, only: int | None = None, hidden: tuple[int, ...] = ()) -> FleetView:
        """Return the knowledge of a method now; `places`: the largest number of devices it may ask (None: all).

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
            self.below.busy,
            len(self.below.running),
            self._selection,
            self._graphs,
            places,
            only,
            hidden,
            self.members,
            self._history,
        )

    @property
    def others_at_work(self) -> bool:
        """True if devices that this session may ask have jobs of other sessions, which will end."""
        if self._alone:
            return False
        busy = self.below.busy if self.members is None else self.below.busy & self.members
        return int(busy.sum()) > len(self.running)

    def turn(self) -> Iterator[simpy.Event]:
        """Wait, at this instant, until rivals that want devices too, and asked longer ago, have asked."""
        if not self.rivals:
            return
        self.wants_devices = True
        if any(rival.wants_devices for rival in self.rivals):
            turn = self.env.event()
            turn._ok, turn._value = True, None
            # after all that happens at this instant, such as a device that becomes idle
            self.env.schedule(turn, priority=EventPriority(simpy.events.NORMAL + 1 + self._asked))
            yield turn
        self.wants_devices = False

    def totals(self, costs: Arr | None = None) -> Totals:
        """Return the totals up to now: FLOPs and bytes of this session, joules, money and carbon of the world.

        `costs`: as `World.totals`, which raises the same.
        """
        totals = self.world.totals(costs)
        if self._alone:
            return totals
        running = {id_: self.below.running[id_] for id_ in self.running}
        spent = self._in_flight.spent(running, self.world.env.now)
        return totals._replace(
            flops=self._ended.flops + spent.flops,
            down_bytes=self._ended.down_bytes + spent.down_bytes,
            up_bytes=self._ended.up_bytes + spent.up_bytes,
        )

    @cached_property
    def _in_flight(self) -> InFlight:
        return self.world.new_in_flight()

    def there_until_s(self, device: int) -> float:
        """Return until when a device can be reached, asked now; -inf: it cannot. Asking changes nothing."""
        return self.presence.until_s(device, self.world.env.now)

    def new_inbox(self) -> Inbox:
        """Return an empty inbox."""
        return Inbox(self.world.env)

    def dispatch(self, plan: Plan, to: Inbox) -> list[Job]:
        """Start the orders of a plan now, from the current global model; their completions go to `to`.

        Raises ContractError if the plan is empty or asks a device twice or while it is busy.
        """
        history, weights = self._history, dict[int, float]()
        if history is not None and history.weighs:
            view = self.view()
            counts = history.weights(view.places_of_idle, self.round)
            weights = dict(zip(view.idle.tolist(), counts.tolist(), strict=True))
        self._occupy(plan)
        steps = self.choice.local_steps
        if steps and not any(sgd.steps == steps for order in plan.orders for sgd in order.task.local_sgd):
            raise ContractError(f"round {self.round}: the method has local steps of its own, which no controller sets")
        if self.rivals:
            self.world.asks += 1
            self._asked = self.world.asks
        priced = self._dispatcher.price(plan, self.round, self.model, self.world.env.now)
        for job in priced.jobs:
            self.running[job.id] = job
        if weights:
            self._weights |= {job.id: weights[job.device] for job in priced.jobs if job.device in weights}
        self.nobody_fits = priced.nobody_fits
        self.below.start(priced, self, to)
        return priced.jobs

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Completion]:
        """End the jobs of `jobs` that still run, charged up to now; return their completions.

        See `Participants.abort`.
        """
        return self.below.abort(jobs, why)

    def steer(self, choice: Choice) -> None:
        """Let a controller's choice hold for the orders to come. Raises ConfigError if the selection refuses it."""
        setting, rule = self._unsteered
        if choice.participants is not None:
            rule, members = rule.of_count(choice.participants), setting.members
            rule.check(setting.level if members is None else setting.level[members])
        if choice.local_steps is not None:
            setting = replace(setting, training=replace(setting.training, local_steps=choice.local_steps))
        if choice.deadline_s is not None:
            setting = replace(setting, deadline_s=choice.deadline_s)
        self.setting, self._selection = replace(setting, steered=choice[:-1]), rule
        self.choice = choice
        self._dispatcher.steer(setting.deadline_s, choice.frequency or 1.0)
        if self._history is not None:
            self._history.use(rule)

    def price_compute(self, job: Job, start_s: float) -> None:
        """Set what a job's computation takes if it starts at `start_s`, where that depends on the time."""
        self._dispatcher.price_compute(job, start_s)

    def job_ended(self, job: Job, outcome: Outcome, usage: Usage) -> Completion:
        """Charge a job that has just ended, write its row and hold its update; return its completion."""
        del self.running[job.id]
        row = self.rows.append(self._charged(job, outcome, usage))
        self._dispatcher.job_ended(job, usage)
        delivered = outcome in DELIVERED
        if delivered:
            self.server_buffer.add(job, row)
        weight = self._weights.pop(job.id, 1.0) if self._weights else 1.0
        staleness = self.staleness(job)
        completion = Completion(job, self.world.env.now, outcome, staleness, usage.shares[1] == 1.0, weight)
        if job.to is None or not delivered:
            return completion
        assert self.edge is not None
        self.server_buffer.release([completion])
        self.edge.hand_over(completion, row)
        return completion._replace(outcome="moved")

    def close_round(self, result: ServerStep, completions: Sequence[Completion]) -> None:
        """Take over the model of a round that ends now, and note what became of its jobs."""
        self.model = result.model
        self.last = completions
        if self._history is not None:
            self._history.close_round(self.round, completions, result.reports)

    def staleness(self, job: Job) -> int:
        """Return how many models there have been since that which a job started from; 0 if it was another's."""
        return self.model.version - job.base.version if job.base.owner == self.model.owner else 0

    def take_visitors(self) -> list[Completion]:
        """Return the completions with updates of devices that came from other edge servers, once."""
        visitors, self.visitors = self.visitors, []
        return visitors

    def _occupy(self, plan: Plan) -> None:
        """Mark the devices of a plan as busy."""
        if not plan.orders:
            raise ContractError(f"round {self.round}: the method asked no device")
        busy = self.below.busy
        for order in plan.orders:
            if not 0 <= order.device < len(busy):
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device}; there are 0 to {len(busy) - 1}"
                )
            if self.members is not None and not self.members[order.device]:
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device}, which is none of those it may ask"
                )
            if busy[order.device]:
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device} twice, or while it is busy"
                )
            busy[order.device] = True

    def _charged(self, job: Job, outcome: Outcome, usage: Usage) -> JobRow | EdgeJobRow:
        """Charge what a job of a device spent, and return its row; an order charges its transfers itself."""
        if isinstance(self.below, EdgeServers):
            return self._order_row(job, outcome, usage, self.below.reports.setdefault(job.id, OrderReport()))
        cost = self.world.accounting.charge(job, usage, outcome in DELIVERED)
        if not self._alone:
            self._ended = self._ended.with_job(cost)
        if outcome != "no_memory":
            self.trained.add(job)
        task = job.task
        down_s, compute_s, up_s = usage.seconds
        lacks_s = 0.0 if outcome in DELIVERED else lacked_s(job, usage)
        round_, edge = (job.round, -1) if self.edge is None else (self.edge.cloud_round(), self.edge.index)
        # in the order of the fields, a line for each group of them: by name it takes three times as long
        return JobRow(
            job.number, job.device, round_, job.base.version, task.name, task.submodel.shape_id, job.sent_s,
            down_s, compute_s, up_s, usage.link_wait_s, usage.wait_s, self.world.env.now, outcome, lacks_s,
            cost.flops, cost.down_bytes, cost.up_bytes, cost.peer_bytes,
            cost.down_j, cost.compute_j, cost.up_j, cost.peer_j, cost.link_j, edge,
        )  # fmt: skip

    def _order_row(self, job: Job, outcome: Outcome, usage: Usage, report: OrderReport) -> EdgeJobRow:
        assert isinstance(self.below, EdgeServers)
        down_s, work_s, up_s = usage.seconds
        down_bytes, up_bytes = int(usage.shares[0] * job.prices.down_bytes), int(usage.shares[2] * job.prices.up_bytes)
        round_, asked_by = (job.round, -1) if self.edge is None else (self.edge.cloud_round(), self.edge.index)
        return EdgeJobRow(
            order=job.id,
            edge=self.below.first + job.device,
            tier=self.below.tier,
            asked_by=asked_by,
            round=round_,
            base_version=job.base.version,
            sent_s=job.sent_s,
            down_s=down_s,
            work_s=work_s,
            up_s=up_s,
            link_wait_s=usage.link_wait_s,
            end_s=self.now_s,
            outcome=outcome,
            rounds=report.rounds,
            asked=report.asked,
            used=report.used,
            late=report.late,
            samples=report.samples,
            server_s=report.server_s,
            down_bytes=down_bytes,
            up_bytes=up_bytes,
            link_j=8.0 * self.below.j_per_bit * down_bytes + 8.0 * self.below.j_per_bit * up_bytes,
        )

    def tally(self, completions: Sequence[Completion]) -> OrderReport:
        """Return the counts of jobs of devices that ended in a round. Late orders to edge servers merged none."""
        used = [each for each in completions if each.outcome in DELIVERED]
        if isinstance(self.below, EdgeServers):
            reports = {each.job.id: self.below.reports.pop(each.job.id) for each in completions}
            merged = sum((reports[each.job.id] for each in used), OrderReport())
            asked, late = sum(each.asked for each in reports.values()), sum(each.late for each in reports.values())
            return merged._replace(rounds=1, asked=asked, late=late, server_s=0.0)
        samples = 0 if self.edge is None else sum(int(self.setting.samples[each.job.device]) for each in used)
        late = sum(each.outcome == "late" for each in completions)
        return OrderReport(1, len(completions), len(used), late, sum(each.staleness for each in used), samples)
