"""Synchronous rounds with a deadline: fixed, or learned from the durations of earlier jobs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from edgesim.config.units import Seconds
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.limits import Count, CountOrZero, NonNegativeNumber, PositiveShare, Share
from edgesim.core.protocol import RoundProtocol
from edgesim.engine.protocols.exchange import Policy, run_rounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Deadline(RoundProtocol):
    """A round ends when all devices have answered, at the latest `deadline` seconds after the model was sent out.

    A completion exactly at the deadline counts. Later jobs are cancelled and charged up to then (`late = "drop"`), or
    continue and count in the next round with `late_weight` (1: like any other; 0: the same as "drop").
    `rule`: "fixed", or learned from the durations of jobs in the last `rounds` rounds: "quantile" (the `quantile`-th;
    cancelled jobs count as longer than all others) or "mad" (median + `k` median absolute deviations). Before the first
    durations are known, `deadline` applies if given. A round with fewer than `minimum` updates at its deadline, late
    ones of the last round included, is extended until it has them. If they never come, the round brings nothing.
    Source: FedPMT paper, experiments "with constraint", for the fixed deadline.
    """

    protocol: ClassVar[str] = "deadline"
    deadline: Seconds | None = None
    rule: Literal["fixed", "quantile", "mad"] = "fixed"
    quantile: PositiveShare = 0.8
    k: NonNegativeNumber = 3.0
    rounds: Count = 5
    minimum: CountOrZero = 0
    late: Literal["drop", "keep"] = "drop"  # fate of jobs that miss the deadline
    late_weight: Share = 1.0

    @property
    def deadline_s(self) -> float:
        """Longest duration of a round in seconds; inf if it is not fixed."""
        return self.deadline if self.rule == "fixed" and self.deadline is not None else math.inf

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if the rule has no deadline, or more updates are needed than devices asked."""
        if self.rule == "fixed" and self.deadline is None:
            raise ConfigError("protocol.deadline: rule 'fixed' needs one, in seconds; or use 'quantile' or 'mad'")
        if self.minimum > asked:
            raise ConfigError(
                f"protocol.minimum: must be at most the {asked} devices asked a round, found {self.minimum}"
            )

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run rounds until stopped; one SimPy process for the whole fleet."""
        return run_rounds(session, rounds, _ByDeadline(self))


class _ByDeadline(Policy):
    """Closes a round at its deadline."""

    def __init__(self, rule: Deadline) -> None:
        self.minimum = rule.minimum
        self.late_weight = rule.late_weight if rule.late == "keep" else 0.0
        self._rule = rule
        self._took_s: deque[list[float]] = deque(maxlen=rule.rounds)  # of each job, by round; inf: cancelled

    def within_s(self) -> float:
        """Return the deadline of the next round."""
        first_s = math.inf if self._rule.deadline is None else self._rule.deadline
        took_s = np.array([seconds for round_ in self._took_s for seconds in round_])
        if self._rule.rule == "fixed" or not len(took_s):
            return first_s
        if self._rule.rule == "quantile":
            return float(np.quantile(took_s, self._rule.quantile, method="higher"))
        known_s = took_s[np.isfinite(took_s)]
        if not len(known_s):
            return first_s
        median_s = float(np.median(known_s))
        return median_s + self._rule.k * float(np.median(np.abs(known_s - median_s)))

    def learn(self, completions: Sequence[Completion]) -> None:
        """Remember the durations of the jobs of a round."""
        took_s = [
            a.ended_s - a.job.sent_s if a.outcome in DELIVERED else math.inf
            for a in completions
            if a.outcome in DELIVERED or a.outcome == "late"
        ]
        if took_s:
            self._took_s.append(took_s)


PLUGINS = {"deadline": Deadline}
