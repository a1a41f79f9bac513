"""The end of a round: its row in the tables, its evaluation, and whether the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np
import simpy

from edgesim.config.scenario import Evaluation, Server, Stop
from edgesim.contracts import DELIVERED, Arrival, Learner, MergeResult, Score
from edgesim.engine.accounts import Totals
from edgesim.engine.divergence import Divergence, middle
from edgesim.engine.engine import Engine
from edgesim.engine.pricing import averaging_flops
from edgesim.errors import ConfigError, ContractError
from edgesim.records.schema import CLOSED_BY
from edgesim.records.table import Table


class Observer(Protocol):
    """Is told after every round."""

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Take round, accuracy (None: not evaluated), now_s, energy_j, active_j: what of it is above idle power, and
        diverged (None but where it is first seen).
        """


class Rounds:
    """Closes rounds and decides when a run has ended."""

    def __init__(
        self,
        engine: Engine,
        tables: dict[str, Table],
        *,
        stop: Stop,
        evaluation: Evaluation,
        server: Server,
        observer: Observer,
    ) -> None:
        self.engine = engine
        self.stop_reason: str | None = None
        self.divergence = Divergence()
        self.ended: simpy.Event = engine.env.event()
        self._tables = tables
        self._stop = stop
        self._evaluation = evaluation
        self._server = server
        self._observer = observer
        self._start_s = 0.0
        self._works_since_s: float | None = None  # on a merge; None: the server has nothing to do
        self._before = Totals()

    @property
    def stopped(self) -> bool:
        """Whether a stop rule has ended the run."""
        return self.stop_reason is not None

    def close(
        self,
        result: MergeResult,
        arrivals: Sequence[Arrival],
        learner: Learner,
        closed_by: str = "other",
        deadline_s: float = inf,
    ) -> Iterator[simpy.Event]:
        """Charge the server's work, write the round's rows, evaluate when due and apply the stop rules.

        `closed_by`: what ended the waiting, one of edgesim.records.schema.CLOSED_BY; `deadline_s`: that of the round,
        in seconds since it was sent out.
        """
        if closed_by not in CLOSED_BY:
            raise ContractError(f"closed_by must be one of {', '.join(CLOSED_BY)}, got {closed_by!r}")
        engine = self.engine
        server_s = 0.0
        if self._server.flops_per_s < inf:  # updates that come while it works wait in their inbox
            used = [a.job for a in arrivals if a.outcome in DELIVERED]
            flops = result.server_flops + averaging_flops(used, engine.setting)
            server_s = flops / self._server.flops_per_s
            if not isfinite(server_s):
                raise ConfigError(f"server.flops_per_s: a merge takes {server_s} s of the server, must be finite")
        if server_s > 0:
            self._works_since_s = engine.now_s
            yield engine.env.timeout(server_s)
            if self.stopped:  # at this very instant; it has been charged
                return
            self._works_since_s = None
            engine.ledger.charge_server(server_s)
        engine.model = result.model
        engine.last = arrivals
        totals = engine.totals()
        self._write_merge(result, arrivals, server_s, totals, (closed_by, deadline_s))
        self._write_notes(result.notes)
        accuracy, losses = self._evaluate(learner)
        diverged = self.divergence.notice(engine.round, result.notes, arrivals, losses)
        engine.round += 1
        engine.exchange = 0
        for table in self._tables.values():
            table.mark()
        joules = {"energy_j": totals.energy_j, "active_j": totals.active_j}
        self._observer.round_closed(
            {"round": engine.round, "accuracy": accuracy, "now_s": engine.now_s, **joules, "diverged": diverged}
        )
        self._apply_stop_rules(accuracy, totals.energy_j)

    def end(self, reason: str) -> None:
        """End the run; the coordinator sees it at its next look at `stopped`. What the server is at is charged."""
        if not self.stopped:
            self.stop_reason = reason
            if self._works_since_s is not None:
                self.engine.ledger.charge_server(self.engine.now_s - self._works_since_s)
            self.ended.succeed(reason)

    def _write_merge(
        self,
        result: MergeResult,
        arrivals: Sequence[Arrival],
        server_s: float,
        totals: Totals,
        closing: tuple[str, float],
    ) -> None:
        engine = self.engine
        used = [a for a in arrivals if a.outcome in DELIVERED]
        late = sum(a.outcome == "late" for a in arrivals)
        staleness = sum(a.staleness for a in used) / len(used) if used else 0.0
        since = (now - before for now, before in zip(totals, self._before, strict=True))
        self._tables["merges"].append(
            (engine.round, result.model.version, self._start_s, engine.now_s, len(arrivals), len(used), late,
             *closing, staleness, server_s, *since, *totals)
        )  # fmt: skip
        self._before = totals
        self._start_s = engine.now_s

    def _write_notes(self, notes: Mapping[str, Any]) -> None:
        for name, value in notes.items():
            by_device = value if isinstance(value, Mapping) else {-1: value}
            try:
                rows = [(self.engine.round, name, int(device), float(number)) for device, number in by_device.items()]
            except (TypeError, ValueError) as error:
                raise ContractError(f"note {name!r} must be a number, or one for each device, got {value!r}") from error
            for row in rows:
                self._tables["notes"].append(row)

    def _evaluate(self, learner: Learner) -> tuple[float | None, list[float]]:
        """Score the new model if it is due; return its test accuracy and losses: its own, and the median device's.

        Evaluation takes no simulated time.
        """
        engine = self.engine
        done, end = engine.round + 1, self._stop.rounds
        if done % self._evaluation.every and (end is None or done <= end - self._evaluation.last):
            return None, []
        scores = learner.evaluate(engine.model)
        for split, score in scores.items():
            self._tables["evals"].append((engine.round, engine.model.version, engine.now_s, split, *score))
        losses = [score.loss for score in scores.values()]
        if self._evaluation.personal:
            personal = learner.evaluate_personal()
            self._write_personal(personal)
            losses += middle([score.loss for score in personal.values()])
        return scores["test"].accuracy if "test" in scores else None, losses

    def _write_personal(self, scores: Mapping[int, Score]) -> None:
        """Write the mean over devices, the mean over the worst tenth of them, and every device's accuracy as a note."""
        ranked = sorted(scores.values(), key=lambda score: score.accuracy)
        for split, some in ("personal", ranked), ("personal_worst", ranked[: -(-len(ranked) // 10)]):
            if some:
                mean = [float(np.mean([score[column] for score in some])) for column in (0, 1)]
                row = (*mean, sum(score.samples for score in some))
                self._tables["evals"].append(
                    (self.engine.round, self.engine.model.version, self.engine.now_s, split, *row)
                )
        self._write_notes({"personal_accuracy": {device: score.accuracy for device, score in scores.items()}})

    def _apply_stop_rules(self, accuracy: float | None, energy_j: float) -> None:
        stop = self._stop
        if stop.accuracy is not None and accuracy is not None and accuracy >= stop.accuracy:
            self.end(f"accuracy {stop.accuracy:g} reached")
        elif stop.energy is not None and energy_j >= stop.energy:
            self.end(f"energy {stop.energy:g} J spent")
        elif stop.rounds is not None and self.engine.round >= stop.rounds:
            self.end(f"{stop.rounds} rounds done")
