"""The end of a round: its row in the tables, its evaluation, and whether the run goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from math import inf, isnan, nan
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy

from edgesim.config.scenario import Evaluation, Milestone, Server, Stop
from edgesim.core.arrays import Arr
from edgesim.core.backend import Score
from edgesim.core.controller import Controller
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import AggregationFacts, Answer, ServerStep
from edgesim.core.metrics import METRICS, Better, is_reached
from edgesim.engine.accounting import Totals
from edgesim.engine.device_tests import tested_on_devices
from edgesim.engine.divergence import Divergence, middle
from edgesim.engine.server_queue import Merges
from edgesim.engine.session import Session
from edgesim.engine.steering import Steering
from edgesim.records.schema import CLOSED_BY, COSTS
from edgesim.records.table import CostRow, EvaluationRow, MetricRow, RoundRow
from edgesim.world.prices.ledger import ITEMS


class Observer(Protocol):
    """Is told after every round."""

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Take round, accuracy (None: not evaluated, or there is none), metrics of the objective by name, now_s,
        energy_j of the devices, active_j: what of it is above idle power, diverged (None but where it is first seen).
        """


_MOST_REMEMBERED = 2_000_000
_NO_ROUND = -1
_OF_ANSWERS = ("metrics", "evals")  # tables whose rows are written once answers are there


class _Closed(NamedTuple):
    """Closed round whose answers may be outstanding, with everything that its rows and its observer need."""

    facts: Answer[AggregationFacts]
    scores: Answer[Mapping[str, Score]] | None  # None: not evaluated
    current: Answer[Mapping[str, Score]] | None  # on the classes that have appeared; None: not evaluated
    personal: Answer[Mapping[int, Score]] | None
    round: int
    version: int
    now_s: float
    totals: Totals
    came: int  # updates
    rows: Mapping[str, int]  # of each table, once it was closed
    spent: Mapping[str, Arr] | None  # by the devices until then; None: it is settled at once


class Rounds:
    """Closes rounds and decides when a run has ended.

    The simulation may go on while answers of closed rounds are computed: then these are settled later, in their order.
    """

    def __init__(
        self,
        session: Session,
        *,
        stop: Stop,
        evaluation: Evaluation,
        server: Server,
        observer: Observer,
        spent: Callable[[], Mapping[str, Arr]] = dict,
        better: Mapping[str, Better] = METRICS,
        controller: Controller | None = None,
    ) -> None:
        """`spent`: gives what the devices have spent so far. `better`: which numbers of the objective's metrics are.

        `controller`: chooses the work of the rounds to come; None: the scenario has it.
        """
        self.session = session
        self.settled = 0  # rounds, whose answers are all there
        self.settled_spent: Mapping[str, Arr] | None = (
            None  # by the devices until then; None: nothing has gone on since
        )
        self.stop_reason: str | None = None
        self.gave_up = False
        self._closed: deque[_Closed] = deque()  # and not settled
        self._spent = spent
        # what devices have spent is remembered for each outstanding round: a hundred bytes a device
        self._most_ahead = max(1, _MOST_REMEMBERED // len(session.setting.samples))
        if session.learner.rounds_ahead:
            self.settled_spent = spent()
        self.divergence = Divergence()
        self.ended: simpy.Event = session.env.event()
        self._tables = session.tables
        self._stop = stop
        self._steering = None if controller is None else Steering(controller, session, stop)
        self._better = better
        self._evaluation = evaluation
        self._observer = observer
        self._best_accuracy = 0.0  # of all evaluations that are settled
        self._start_s = 0.0
        self._overhead_s = server.round_overhead
        self._first_overhead_s = server.first_round_overhead
        self._merges = Merges(
            session.world,
            session.setting,
            server.flops_per_s,
            server.workers,
            "server",
            per_byte_s=server.per_byte,
            test_samples=server.test_samples,
        )
        self._before = Totals()
        self._costs_before = session.world.costs_by_item()

    @property
    def stopped(self) -> bool:
        """True once a stop rule has ended the run."""
        return self.stop_reason is not None

    @property
    def device_j(self) -> float:
        """Joules of the session's device that has spent the most, idle power included."""
        spent, ids = self._spent(), self.session.setting.ids
        return float(sum(spent[name][ids] for name in ("down_j", "compute_j", "up_j", "idle_j", "sleep_j")).max())

    @property
    def _is_due(self) -> bool:
        """True if the model of the round that is about to close is tested."""
        done, end = self.session.round + 1, self._stop.rounds
        return done % self._evaluation.every == 0 or (end is not None and done > end - self._evaluation.last)

    def steer(self) -> None:
        """Let the controller, if there is one, choose the work of the rounds to come."""
        if self._steering is not None and not self.stopped:
            if self._steering.waits:
                self.settle()
            self._steering.adapt()

    def close(
        self,
        result: ServerStep,
        completions: Sequence[Completion],
        closed_by: str = "other",
        deadline_s: float = inf,
    ) -> Generator[simpy.Event, Any, None]:
        """Charge the server's work, write the round's rows, evaluate when due and apply the stop rules.

        `closed_by`: the end of the waiting, one of edgesim.records.schema.CLOSED_BY; `deadline_s`: of the round,
        in seconds since it was sent out.
        """
        check_closed_by(closed_by)
        session = self.session
        server_s = yield from self._merges.run(result, completions, tests=self._is_due)
        overhead_s = self._overhead_s + (self._first_overhead_s if session.round == 0 else 0.0)
        if overhead_s > 0 and not self.stopped:
            yield session.env.timeout(overhead_s)
            server_s += overhead_s
        if server_s > 0 and self.stopped:  # at the very instant of the end of the merge
            return
        session.close_round(result, completions)
        costs = session.world.costs_by_item()
        totals = session.totals(costs)
        self._write_merge(result, completions, server_s, totals, closed_by, deadline_s)
        self._write_costs(session.round, costs)
        if self._steering is not None:
            device_j = self.device_j if self._steering.watches_devices else 0.0
            self._steering.close(completions, totals, device_j)
        session.learner.save(lambda: self._settle_all(result))  # a longer run that goes on may not score this model
        closed = self._asked_for(result, completions, totals)
        self._closed.append(closed)
        session.round += 1
        session.exchange = 0
        waits = closed.scores is not None and (self._stop.accuracy is not None or bool(self._stop.metric))
        self.settle(0 if waits else min(session.learner.rounds_ahead, self._most_ahead))
        if not self.stopped:
            self._apply_stop_rules(totals)
        if closed.scores is not None and self._evaluation.on_devices is not None and not self.stopped:
            yield from tested_on_devices(session, self._evaluation.on_devices)

    def settle(self, outstanding: int = 0) -> None:
        """Write the answers of closed rounds, all but so many that may be outstanding, and tell the observer."""
        while self._closed and (len(self._closed) > outstanding or _is_ready(self._closed[0])):
            self._settle(self._closed[0])
            self.settled_spent = self._closed.popleft().spent

    def end(self, reason: str) -> None:
        """End the run; the protocol sees it at its next look at `stopped`. What the server is at is charged."""
        if not self.stopped:
            self.stop_reason = reason
            self._merges.stop()
            self.ended.succeed(reason)

    def give_up(self, reason: str) -> None:
        """End the run as nothing more can happen, so that it will never reach a target that it has missed."""
        self.gave_up = self.gave_up or not self.stopped
        self.end(reason)

    def look_at(self, milestone: Milestone, now: simpy.Event) -> None:
        """End the run if no evaluation was as good as a milestone asks by `now`; answers are waited for."""
        if not self.stopped:
            self.settle()
        if not self.stopped and self._best_accuracy < milestone.accuracy:
            found, least = f"{self._best_accuracy:.4g}", f"{milestone.accuracy:.4g}"
            self.end(f"accuracy {found} after {milestone.sim_time:g} s, a milestone asks for {least}")

    def _write_merge(
        self,
        result: ServerStep,
        completions: Sequence[Completion],
        server_s: float,
        totals: Totals,
        closed_by: str,
        deadline_s: float,
    ) -> None:
        session, tally = self.session, self.session.tally(completions)
        spent, spending = totals.since(self._before), totals._asdict()
        self._tables["rounds"].append(
            RoundRow(
                round=session.round,
                version=result.model.version,
                start_s=self._start_s,
                now_s=session.now_s,
                asked=tally.asked,
                used=tally.used,
                late=tally.late,
                closed_by=closed_by,
                deadline_s=deadline_s,
                staleness_mean=tally.staleness / tally.used if tally.used else 0.0,
                server_s=server_s,
                flops=spent.flops,
                down_bytes=spent.down_bytes,
                up_bytes=spent.up_bytes,
                energy_j=spent.energy_j,
                active_j=spent.active_j,
                idle_j=spent.idle_j,
                participant_j=spent.participant_j,
                energy_network_j=spent.energy_network_j,
                energy_server_j=spent.energy_server_j,
                total_flops=totals.flops,
                total_down_bytes=totals.down_bytes,
                total_up_bytes=totals.up_bytes,
                total_energy_j=totals.energy_j,
                total_active_j=totals.active_j,
                total_idle_j=totals.idle_j,
                total_participant_j=totals.participant_j,
                total_energy_network_j=totals.energy_network_j,
                total_energy_server_j=totals.energy_server_j,
                **{f"total_{name}": spending[name] for name in COSTS},
            )
        )
        self._before = totals
        self._start_s = session.now_s

    def write_rest_of_costs(self) -> None:
        """Write what was spent after the last closed round, once the run has ended."""
        self._write_costs(_NO_ROUND, self.session.world.costs_by_item())

    def _write_costs(self, round_: int, costs: Arr) -> None:
        """Write what money and carbon went to since the last time; `costs`: by item, see `World.costs_by_item`."""
        for item, spent in zip(ITEMS, costs - self._costs_before, strict=False):  # no rows without prices
            if spent.any():
                self._tables["costs"].append(CostRow(round_, item, *spent.tolist()))
        self._costs_before = costs

    def _settle_all(self, result: ServerStep) -> None:
        """Wait for the answers of all rounds, and for that to the merge which is about to close one."""
        self.settle()
        result.facts.get()

    def _asked_for(self, result: ServerStep, completions: Sequence[Completion], totals: Totals) -> _Closed:
        """Return a round that is just closed; its new model is scored if that is due, which takes no simulated time."""
        session, due = self.session, self._is_due
        scores = session.learner.evaluate(session.model) if due else None
        arrivals = session.setting.arrivals if due and self._evaluation.current else None
        classes = None if arrivals is None else arrivals.classes(session.now_s)
        current = session.learner.evaluate(session.model, classes) if classes else None
        personal = session.learner.evaluate_personal() if due and self._evaluation.personal else None
        return _Closed(
            result.facts,
            scores,
            current,
            personal,
            round=session.round,
            version=session.model.version,
            now_s=session.now_s,
            totals=totals,
            came=sum(a.outcome in DELIVERED for a in completions),
            rows={name: len(table) for name, table in self._tables.items()},
            spent=self._spent() if session.learner.rounds_ahead else None,
        )

    def _settle(self, closed: _Closed) -> None:
        """Write what the answers of a round say, and tell the observer of it. Ends the run where it is good enough."""
        facts, losses, accuracy = closed.facts.get(), list[float](), None
        metrics: Mapping[str, float] = {}
        self._write_notes(closed.round, facts.metrics)
        if closed.scores is not None:
            scores = closed.scores.get()
            for split, score in scores.items():
                self._write_evaluation(closed, split, score)
            if closed.current is not None and (current := closed.current.get()):
                self._write_evaluation(closed, "current", current["test"])
            losses = [score.loss for score in scores.values() if score.has_loss]
            if "test" in scores:
                metrics = {**scores["test"].metrics, "loss": scores["test"].loss}
                accuracy = None if isnan(scores["test"].accuracy) else scores["test"].accuracy
            self._best_accuracy = max(self._best_accuracy, accuracy or 0.0)
        if closed.personal is not None:
            personal = closed.personal.get()
            self._write_personal(closed, personal)
            losses += middle([score.loss for score in personal.values()])
        diverged = self.divergence.notice(closed.round, facts.metrics, closed.came, losses)
        if self._steering is not None:
            self._steering.settle(closed.round, metrics.get("loss", nan), facts.metrics)
        self.settled = closed.round + 1
        for name, table in self._tables.items():
            table.mark(len(table) if name in _OF_ANSWERS else closed.rows[name])
        joules = {"energy_j": closed.totals.energy_j, "active_j": closed.totals.active_j}
        self._observer.round_closed(
            {
                "round": self.settled,
                "accuracy": accuracy,
                "metrics": metrics,
                "now_s": closed.now_s,
                **joules,
                "diverged": diverged,
            }
        )
        self._stop_where_good(accuracy, metrics)

    def _stop_where_good(self, accuracy: float | None, metrics: Mapping[str, float]) -> None:
        """End the run if the model is as good as a stop rule asks."""
        target = self._stop.accuracy
        if target is not None and accuracy is not None and accuracy >= target:
            self.end(f"accuracy {target:g} reached")
        for name, wanted in (self._stop.metric or {}).items():
            found = accuracy if name == "accuracy" else metrics.get(name)
            if found is not None and is_reached(found, wanted, self._better[name]):
                self.end(f"{name} {wanted:g} reached")

    def _write_notes(self, round_: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            by_device = value if isinstance(value, Mapping) else {-1: value}
            try:
                pairs = [(int(device), float(number)) for device, number in by_device.items()]
            except (TypeError, ValueError) as error:
                raise ContractError(
                    f"metric {name!r} must be a number, or one for each device, got {value!r}"
                ) from error
            for device, number in pairs:
                self._tables["metrics"].append(MetricRow(round_, name, device, number))

    def _write_personal(self, closed: _Closed, scores: Mapping[int, Score]) -> None:
        """Write every device's accuracy as metrics, the means over all and over the worst tenth as evaluations."""
        ranked = sorted(scores.values(), key=lambda score: score.rank)
        for split, some in ("personal", ranked), ("personal_worst", ranked[: -(-len(ranked) // 10)]):
            if some:
                loss = float(np.mean([score.loss for score in some]))
                accuracy = float(np.mean([score.accuracy for score in some]))
                metrics = {name: float(np.mean([score.metrics[name] for score in some])) for name in some[0].metrics}
                samples = sum(score.samples for score in some)
                self._write_evaluation(closed, split, Score(loss, accuracy, samples, metrics))
        self._write_notes(closed.round, {"personal_accuracy": {d: score.accuracy for d, score in scores.items()}})

    def _write_evaluation(self, closed: _Closed, split: str, score: Score) -> None:
        row = EvaluationRow(
            round=closed.round,
            version=closed.version,
            now_s=closed.now_s,
            split=split,
            loss=score.loss,
            accuracy=score.accuracy,
            samples=score.samples,
        )
        self._tables["evals"].append(row)
        before = "" if split == "test" else f"{split}_"
        self._write_notes(closed.round, {f"{before}{name}": value for name, value in score.metrics.items()})

    def _apply_stop_rules(self, totals: Totals) -> None:
        stop = self._stop
        if stop.energy is not None and totals.energy_j >= stop.energy:
            self.end(f"energy {stop.energy:g} J spent")
        elif stop.cost is not None and totals.cost >= stop.cost.values[1]:
            self.end(f"cost {stop.cost.values[1]:g} {stop.cost.unit} spent")
        elif stop.bytes is not None and totals.moved_bytes >= stop.bytes:
            self.end(f"{stop.bytes:g} bytes sent and received")
        elif stop.device_energy is not None and self.device_j >= stop.device_energy:
            self.end(f"energy {stop.device_energy:g} J spent by a device")
        elif stop.rounds is not None and self.session.round >= stop.rounds:
            self.end(f"{stop.rounds} rounds done")


def check_closed_by(closed_by: str) -> None:
    """Raise ContractError unless a protocol says in a known word what ended the waiting."""
    if closed_by not in CLOSED_BY:
        raise ContractError(f"closed_by must be one of {', '.join(CLOSED_BY)}, got {closed_by!r}")


def _is_ready(closed: _Closed) -> bool:
    answers = (closed.facts, closed.scores, closed.personal)
    return all(answer is None or answer.is_ready for answer in answers)
