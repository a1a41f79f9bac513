"""A PI controller that holds the share of late devices by the deadline of rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from edgesim.config.units import Seconds
from edgesim.core.controller import Choice, ChoiceField, Controller, RoundHistory
from edgesim.core.errors import ConfigError
from edgesim.core.limits import NonNegativeNumber, Share
from edgesim.core.view import Setting


@dataclass(frozen=True, kw_only=True)
class PIDeadline(Controller):
    """Move the deadline until the share of devices that miss it is the set point.

    With the error e_k = late_k / asked_k - `set_point` of round k the next deadline is
    `start` (1 + `proportional` e_k + `integral` (e_0 + ... + e_k)), within `shortest` and `longest`. While the deadline
    is at a bound, errors that would push it further are not summed up. Otherwise it would leave the bound late.
    The gains are ours: no paper gives them for federated rounds.
    Source: K. J. Astrom, T. Hagglund, PID Controllers (1995), section 3.5, for conditional integration.
    """

    sets: ClassVar[frozenset[ChoiceField]] = frozenset({"deadline_s"})

    start: Seconds  # deadline of the first round
    shortest: Seconds  # lower bound of the deadline
    longest: Seconds  # upper bound of the deadline
    set_point: Share = 0.1  # wanted share of late devices
    proportional: NonNegativeNumber = 0.5
    integral: NonNegativeNumber = 0.2

    def check(self, setting: Setting, budgets: Mapping[str, float]) -> None:
        """Raise ConfigError unless the first deadline is above 0 and within the bounds."""
        if not 0 < self.shortest <= self.start <= self.longest:
            raise ConfigError(
                f"controller.start: must be from shortest, {self.shortest:g} s, above 0, to longest, "
                f"{self.longest:g} s, got {self.start:g} s"
            )

    def adapt(self, history: RoundHistory) -> Choice:
        """Return the next deadline. The state is the sum of errors."""
        if not history.rounds:
            return Choice(deadline_s=self.start, state=0.0)
        newest, before = history.rounds[-1], history.state
        error = newest.late / max(1, newest.asked) - self.set_point
        wanted_s = self.start * (1.0 + self.proportional * error + self.integral * (before + error))
        deadline_s = min(max(wanted_s, self.shortest), self.longest)
        pushes = (wanted_s - deadline_s) * error > 0  # further beyond the bound
        return Choice(deadline_s=deadline_s, state=before if pushes else before + error)


PLUGINS = {"pi_deadline": PIDeadline}
