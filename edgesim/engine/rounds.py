"""The end of a round: its row in the tables, its evaluation, and whether the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from typing import Any, Protocol

import numpy as np
import simpy

from edgesim.config.scenario import Evaluation, Server, Stop
from edgesim.core.backend import Score
from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import ServerStep
from edgesim.engine.accounting import Totals
from edgesim.engine.divergence import Divergence, middle
from edgesim.engine.pricing import averaging_flops
from edgesim.engine.session import Session
from edgesim.records.rows import EvaluationRow, MetricRow, RoundRow
from edgesim.records.schema import CLOSED_BY


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
        session: Session,
        *,
        stop: Stop,
        evaluation: Evaluation,
        server: Server,
        observer: Observer,
    ) -> None:
        self.session = session
        self.stop_reason: str | None = None
        self.divergence = Divergence()
        self.ended: simpy.Event = session.env.event()
        self._tables = session.tables
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
        result: ServerStep,
        completions: Sequence[Completion],
        closed_by: str = "other",
        deadline_s: float = inf,
    ) -> Iterator[simpy.Event]:
        """Charge the server's work, write the round's rows, evaluate when due and apply the stop rules.

        `closed_by`: what ended the waiting, one of edgesim.records.schema.CLOSED_BY; `deadline_s`: that of the round,
        in seconds since it was sent out.
        """
        if closed_by not in CLOSED_BY:
            raise ContractError(f"closed_by must be one of {', '.join(CLOSED_BY)}, got {closed_by!r}")
        session = self.session
        server_s = 0.0
        if self._server.flops_per_s < inf:  # updates that come while it works wait in their inbox
            used = [a.job for a in completions if a.outcome in DELIVERED]
            flops = result.server_flops + averaging_flops(used, session.setting)
            server_s = flops / self._server.flops_per_s
            if not isfinite(server_s):
                raise ConfigError(f"server.flops_per_s: a merge takes {server_s} s of the server, must be finite")
        if server_s > 0:
            self._works_since_s = session.now_s
            yield session.env.timeout(server_s)
            if self.stopped:  # at this very instant; it has been charged
                return
            self._works_since_s = None
            session.world.ledger.charge_server(server_s)
        session.model = result.model
        session.last = completions
        totals = session.world.totals()
        self._write_merge(result, completions, server_s, totals, closed_by, deadline_s)
        self._write_notes(result.metrics)
        accuracy, losses = self._evaluate()
        diverged = self.divergence.notice(session.round, result.metrics, completions, losses)
        session.round += 1
        session.exchange = 0
        for table in self._tables.values():
            table.mark()
        joules = {"energy_j": totals.energy_j, "active_j": totals.active_j}
        self._observer.round_closed(
            {"round": session.round, "accuracy": accuracy, "now_s": session.now_s, **joules, "diverged": diverged}
        )
        self._apply_stop_rules(accuracy, totals.energy_j)

    def end(self, reason: str) -> None:
        """End the run; the protocol sees it at its next look at `stopped`. What the server is at is charged."""
        if not self.stopped:
            self.stop_reason = reason
            if self._works_since_s is not None:
                self.session.world.ledger.charge_server(self.session.now_s - self._works_since_s)
            self.ended.succeed(reason)

    def _write_merge(
        self,
        result: ServerStep,
        completions: Sequence[Completion],
        server_s: float,
        totals: Totals,
        closed_by: str,
        deadline_s: float,
    ) -> None:
        session = self.session
        used = [a for a in completions if a.outcome in DELIVERED]
        late = sum(a.outcome == "late" for a in completions)
        staleness = sum(a.staleness for a in used) / len(used) if used else 0.0
        spent = totals.since(self._before)
        self._tables["rounds"].append(
            RoundRow(
                round=session.round,
                version=result.model.version,
                start_s=self._start_s,
                now_s=session.now_s,
                asked=len(completions),
                used=len(used),
                late=late,
                closed_by=closed_by,
                deadline_s=deadline_s,
                staleness_mean=staleness,
                server_s=server_s,
                flops=spent.flops,
                down_bytes=spent.down_bytes,
                up_bytes=spent.up_bytes,
                energy_j=spent.energy_j,
                active_j=spent.active_j,
                idle_j=spent.idle_j,
                participant_j=spent.participant_j,
                total_flops=totals.flops,
                total_down_bytes=totals.down_bytes,
                total_up_bytes=totals.up_bytes,
                total_energy_j=totals.energy_j,
                total_active_j=totals.active_j,
                total_idle_j=totals.idle_j,
                total_participant_j=totals.participant_j,
            )
        )
        self._before = totals
        self._start_s = session.now_s

    def _write_notes(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            by_device = value if isinstance(value, Mapping) else {-1: value}
            try:
                pairs = [(int(device), float(number)) for device, number in by_device.items()]
            except (TypeError, ValueError) as error:
                raise ContractError(
                    f"metric {name!r} must be a number, or one for each device, got {value!r}"
                ) from error
            for device, number in pairs:
                self._tables["metrics"].append(MetricRow(self.session.round, name, device, number))

    def _evaluate(self) -> tuple[float | None, list[float]]:
        """Score the new model if it is due; return its test accuracy and losses: its own, and the median device's.

        Evaluation takes no simulated time.
        """
        session = self.session
        done, end = session.round + 1, self._stop.rounds
        if done % self._evaluation.every and (end is None or done <= end - self._evaluation.last):
            return None, []
        scores = session.learner.evaluate(session.model)
        for split, score in scores.items():
            self._write_evaluation(split, score)
        losses = [score.loss for score in scores.values()]
        if self._evaluation.personal:
            personal = session.learner.evaluate_personal()
            self._write_personal(personal)
            losses += middle([score.loss for score in personal.values()])
        return scores["test"].accuracy if "test" in scores else None, losses

    def _write_personal(self, scores: Mapping[int, Score]) -> None:
        """Write as metrics every device's accuracy, the mean over them and the mean over the worst tenth."""
        ranked = sorted(scores.values(), key=lambda score: score.accuracy)
        for split, some in ("personal", ranked), ("personal_worst", ranked[: -(-len(ranked) // 10)]):
            if some:
                loss = float(np.mean([score.loss for score in some]))
                accuracy = float(np.mean([score.accuracy for score in some]))
                self._write_evaluation(split, Score(loss, accuracy, sum(score.samples for score in some)))
        self._write_notes({"personal_accuracy": {device: score.accuracy for device, score in scores.items()}})

    def _write_evaluation(self, split: str, score: Score) -> None:
        session = self.session
        row = EvaluationRow(
            round=session.round,
            version=session.model.version,
            now_s=session.now_s,
            split=split,
            loss=score.loss,
            accuracy=score.accuracy,
            samples=score.samples,
        )
        self._tables["evals"].append(row)

    def _apply_stop_rules(self, accuracy: float | None, energy_j: float) -> None:
        stop = self._stop
        if stop.accuracy is not None and accuracy is not None and accuracy >= stop.accuracy:
            self.end(f"accuracy {stop.accuracy:g} reached")
        elif stop.energy is not None and energy_j >= stop.energy:
            self.end(f"energy {stop.energy:g} J spent")
        elif stop.rounds is not None and self.session.round >= stop.rounds:
            self.end(f"{stop.rounds} rounds done")
