"""A scenario connected to a world, engine, learners and tables, and checks of scenarios that train nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Arr
from edgesim.core.backend import Backend
from edgesim.core.garbage import seldom_collecting
from edgesim.core.rng import Key
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.rounds import Observer
from edgesim.engine.sessions import introduce, run_all
from edgesim.engine.world import World
from edgesim.execution.backends.null import NullBackend
from edgesim.learning.train.torch_settings import plain_where_loaded
from edgesim.records.schema import FIRST_EDGE_ROW, SERVER_ROW
from edgesim.runs.assembly import Assembly, Build, Load, build_network, load_data
from edgesim.runs.table_spill import JobCounts, Released
from edgesim.runs.training import RunningTraining, assemble_all
from edgesim.runs.tree import edge_kinds, edge_power
from edgesim.world.energy.ledger import EnergyLedger
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, UPLOAD
from edgesim.world.prices.ledger import CostLedger
from edgesim.world.prices.market import COLUMNS

if TYPE_CHECKING:
    from edgesim.execution.checkpoint import Checkpoint
    from edgesim.execution.result_cache import Answers


class Silent:
    """An observer that shows nothing."""

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class Telling(Silent):
    """An observer that calls a function with the facts of each closed round."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Call the function."""
        self._tell(info)


class Simulation:
    """One run of an assembled scenario, from the first order to its tables.

    With several trainings, `learner`, `session`, `rounds` and `tables` belong to the first.
    """

    def __init__(
        self,
        parts: Assembly,
        backend: Backend,
        observer: Observer,
        checkpoint: Checkpoint | None = None,
        answers: Answers | None = None,
        others: Sequence[tuple[Assembly, Backend]] = (),
    ) -> None:
        """`answers`: cached results of earlier runs, to which this run adds its own; unused without training.

        `others`: parts and backends of further trainings, which share the world of `parts`.
        """
        scenario = parts.scenario
        self.parts = parts
        self.scenario = parts.of_all or scenario
        self.totals: Mapping[str, float] | None = None  # simulated seconds and spending; None: not ended
        server = scenario.server
        fleet, batteries = parts.fleet, FleetBatteries(parts.fleet)
        off_s = batteries.off_s if batteries else None
        sleeps = fleet.sleep_w != fleet.idle_w

        @lru_cache(maxsize=1)  # joules and costs of idle and of sleeping devices are asked for at one instant
        def asleep_s(now_s: float) -> Arr:
            return np.where(sleeps, parts.availability.off_s(now_s), 0.0)

        self.ledger = EnergyLedger(
            fleet.idle_w, server.idle, server.busy, off_s, fleet.sleep_w, asleep_s if sleeps.any() else None,
            edge_power(scenario),
        )  # fmt: skip
        self.costs = CostLedger(parts.market, self.ledger) if parts.market else None
        self.world = World(
            fleet=fleet, ledger=self.ledger, availability=parts.availability, batteries=batteries,
            key=Key(scenario.seed), shared=parts.shared, failures=parts.failures, costs=self.costs,
        )  # fmt: skip
        alone = not others
        first = RunningTraining(self.world, parts, backend, observer, self._spent, checkpoint, answers, alone=alone)
        more = []
        for its_parts, its_backend in others:
            saved = checkpoint and checkpoint.of_session(its_parts.scenario.session_name)
            more.append(
                RunningTraining(self.world, its_parts, its_backend, observer, self._spent, saved, answers, alone=alone)
            )
        self.trainings = (first, *more)
        introduce([each.session for each in self.trainings])
        self.learner, self.session, self.rounds = first.learner, first.session, first.rounds
        self.tables, self.releasing = first.tables, first.releasing

    def run(self) -> None:
        """Run until stop rules have ended all trainings; jobs still in flight are charged up to that moment.

        Raises LedgerError if the joules do not add up or are not finite.
        """
        processes = [each.begin() for each in self.trainings]
        with seldom_collecting():
            run_all(processes)
        self.totals = {"sim_time_s": self.world.now_s, **self.world.totals()._asdict()}
        self._check_ledger()

    @property
    def released(self) -> Released:
        """Rows of the first training that have left its tables for the run folder."""
        return self.trainings[0].released

    @property
    def repeats(self) -> bool:
        """True while a run continued from a checkpoint still repeats the part that the checkpoint holds."""
        return any(each.learner.memo.repeats for each in self.trainings)

    def devices(self, finished: bool = True) -> Mapping[str, Any]:
        """Return the columns of the devices table, the server last.

        Of an unfinished run they are as of the newest round with all its training results.
        """
        fleet, n, edges = self.parts.fleet, len(self.parts.fleet), len(self.ledger.edge_busy_s)
        alone = len(self.trainings) == 1  # rounds of several trainings are not settled in the order of their ends
        spent = self.rounds.settled_spent if alone and not finished else None
        counts = self._job_counts(committed_only=spent is not None)
        return {
            "device": np.concatenate([np.arange(n), FIRST_EDGE_ROW - np.arange(edges), [SERVER_ROW]]),
            "kind": np.concatenate(
                [np.array(fleet.kinds, dtype=object)[fleet.kind], edge_kinds(self.scenario), ["server"]]
            ),
            "level": np.append(fleet.level, [0] * (edges + 1)),
            "jobs": np.append(counts.jobs, [0] * (edges + 1)),
            "ok_jobs": np.append(counts.ok_jobs, [0] * (edges + 1)),
            **(spent or self._spent()),
        }

    def now(self) -> dict[str, Any]:
        """Return the state of the fleet at this moment, without side effects.

        Keys: now_s, devices, busy, away (idle and not reachable), running (jobs).
        """
        world, presence = self.world, self.trainings[0].asks_devices.presence
        idle = ~world.devices.busy
        away = 0 if presence.everybody else int((idle & ~presence.seen(world.now_s)).sum())
        devices, busy = len(self.parts.fleet), int(world.devices.busy.sum())
        return {
            "now_s": world.now_s,
            "devices": devices,
            "busy": busy,
            "away": away,
            "running": len(world.devices.running),
        }

    def _spent(self) -> Mapping[str, Arr]:
        """Return the spending columns of the devices table so far, the server last."""
        now_s = self.world.now_s
        if self.costs is None:
            rows = len(self.parts.fleet) + len(self.ledger.edge_busy_s) + 1
            costs: dict[str, Arr] = dict.fromkeys(COLUMNS, np.broadcast_to(0.0, (rows,)))
        else:
            of_all = np.vstack([self.costs.devices(now_s), self.costs.edges(now_s), self.costs.server(now_s)])
            costs = dict(zip(COLUMNS, of_all.T, strict=True))
        server_idle_j, server_busy_j = self.ledger.server_j(now_s)
        edges_idle_j, edges_busy_j = self.ledger.edges_j(now_s)
        joules, none = self.ledger.activity_j, np.zeros(len(edges_idle_j) + 1)
        busy_s = self.ledger.edge_busy_s, [self.ledger.server_busy_s]
        return {
            "busy_s": np.concatenate([self.ledger.busy_s, *busy_s]),
            "down_bytes": np.append(self.world.accounting.received_bytes, none.astype(np.int64)),
            "up_bytes": np.append(self.world.accounting.sent_bytes, none.astype(np.int64)),
            "down_j": np.append(joules[:, DOWNLOAD], none),
            "compute_j": np.concatenate([joules[:, COMPUTATION], edges_busy_j, [server_busy_j]]),
            "up_j": np.append(joules[:, UPLOAD], none),
            "idle_j": np.concatenate([self.ledger.idle_j(now_s), edges_idle_j, [server_idle_j]]),
            "sleep_j": np.append(self.ledger.sleep_j(now_s), none),
            **costs,
        }

    def _check_ledger(self) -> None:
        now_s = self.world.now_s
        devices_j = float(self.ledger.activity_j.sum()) + self.ledger.resting_j(now_s)
        self.ledger.check(self._job_counts().joules, devices_j, now_s)

    def _job_counts(self, committed_only: bool = False) -> JobCounts:
        n = len(self.parts.fleet)
        counts = [each.released.job_counts(each.tables["jobs"], n, committed_only) for each in self.trainings]
        return reduce(JobCounts.__add__, counts)


@plain_where_loaded()
def check(scenario: Scenario, load: Load = load_data, build: Build = build_network) -> Assembly:
    """Build everything that a scenario names, without training. Raises ConfigError or DataError where a run would.

    `load` and `build`: functions that return the data set and the network, as for `assemble`.
    """
    return check_all(scenario, load, build)[0]


def check_all(scenario: Scenario, load: Load = load_data, build: Build = build_network) -> tuple[Assembly, ...]:
    """Build the parts of each training of a scenario, as `check` does."""
    first, *more = assemble_all(scenario, load, build)
    Simulation(first, NullBackend(), Silent(), others=[(parts, NullBackend()) for parts in more])
    return first, *more
