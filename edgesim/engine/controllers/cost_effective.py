"""Participants and local steps of the lowest cost to a target, from pilot rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import MinLen

from edgesim.core.controller import Choice, ChoiceField, ClosedRound, Controller, ResultKind, RoundHistory
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, NonNegativeNumber, Share
from edgesim.core.view import Setting


class PilotCosts(NamedTuple):
    """Cost of a round: seconds and joules of a local step of a participant, and of the rest of a round."""

    step_s: float
    rest_s: float
    step_j: float
    rest_j: float

    def of_round(self, steps: int, participants: int, weight: float) -> float:
        """Return `weight` x seconds + (1 - `weight`) x joules of a round."""
        seconds, joules = self.step_s * steps + self.rest_s, self.step_j * steps + self.rest_j
        return weight * seconds + (1.0 - weight) * participants * joules


@dataclass(frozen=True, kw_only=True)
class CostEffective(Controller):
    """Try some pairs of local steps E and participants K, then keep the pair of the lowest expected cost to a target.

    With E steps and K of N devices a round, the loss is bounded by F* + (A + B (1 + (N - K) / (K (N - 1))) E^2) /
    (E R) after R rounds. A round costs `weight` (t_p E + t_m) + (1 - `weight`) K (e_p E + e_m): seconds and joules of
    a step and of the rest. The product of rounds and cost of a round is lowest for one pair, whatever the target is.
    Pilots of `rounds` rounds each, with every pair of `steps` and `participants`, give A, B and the four costs. The
    first round of all is left out, because no loss is known before it.

    Source: Luo et al., "Cost-Effective Federated Learning Design" (INFOCOM 2021). Differences: there every pilot
    starts from the first model, and rounds between two losses give A / B. Here pilots follow each other in one
    training. Under the bound a round of a pair adds the same to 1 / (F - F*), so the losses at the start and the end
    of a pilot give its rounds, with `least_loss` for F*. A and B are non-negative least squares over all pilots.
    Seconds do not grow with K, as in the convex problem of the paper. The default pairs are ours. Pilots during which
    the loss does not fall tell nothing. If none tells anything, the first pair stays.
    """

    sets: ClassVar[frozenset[ChoiceField]] = frozenset({"local_steps", "participants"})
    needs: ClassVar[frozenset[ResultKind]] = frozenset({"losses"})

    weight: Share = 0.5  # weight of seconds; joules have 1 - this
    steps: Annotated[tuple[Count, ...], MinLen(2)] = (1, 10)  # local steps of pilots
    participants: tuple[Count, ...] | None = None  # participants of pilots; unset: a quarter of the devices, and all
    rounds: Count = 3  # rounds of each pilot
    most: Count = 100  # largest number of local steps
    least_loss: NonNegativeNumber = 0.0  # F*, the loss that training tends to

    def check(self, setting: Setting, budgets: Mapping[str, float]) -> None:
        """Raise ConfigError if a pilot asks more devices than there are."""
        if max(self.participants or (1,)) > setting.devices:
            raise ConfigError(
                f"controller.participants: must be at most the {setting.devices} devices, "
                f"found {max(self.participants or (1,))}"
            )

    def adapt(self, history: RoundHistory) -> Choice:
        """Return the pair of the pilot that runs, or the best pair once all pilots are over."""
        devices, closed = history.setting.devices, history.rounds
        pairs = list(product(self.steps, self.participants or (max(1, devices // 4), devices)))
        running = max(0, len(closed) - 1) // self.rounds
        if running < len(pairs):
            return Choice(local_steps=pairs[running][0], participants=pairs[running][1])
        if history.state is not None:
            steps, participants = history.state
            return Choice(local_steps=steps, participants=participants, state=history.state)
        losses, rows, wanted = [each.loss - self.least_loss for each in closed], [], []
        for place, (steps, participants) in enumerate(pairs):
            first, last = losses[place * self.rounds], losses[(place + 1) * self.rounds]
            if isfinite(first) and isfinite(last) and 0 < last < first:
                needed = self.rounds / (1.0 / last - 1.0 / first)  # rounds to a bound of 1
                rows.append([1.0, spread(participants, devices) * steps * steps])
                wanted.append(needed * steps)
        steps, participants = pairs[0]
        if rows:
            a, b = fitted(np.array(rows), np.array(wanted))
            costs = pilot_costs(closed[1:])
            steps, participants = min(
                product(range(1, self.most + 1), range(1, devices + 1)),
                key=lambda at: rounds_to(a, b, at[0], at[1], devices) * costs.of_round(at[0], at[1], self.weight),
            )
        return Choice(local_steps=steps, participants=participants, state=(steps, participants))


def spread(participants: int, devices: int) -> float:
    """Return 1 + (N - K) / (K (N - 1)), the factor of drift when K of N devices take part; 1 for a single device."""
    return 1.0 + (devices - participants) / (participants * (devices - 1)) if devices > 1 else 1.0


def rounds_to(a: float, b: float, steps: int, participants: int, devices: int) -> float:
    """Return (A + B (1 + (N - K) / (K (N - 1))) E^2) / E, the rounds until the bound of the loss is F* + 1."""
    return (a + b * spread(participants, devices) * steps * steps) / steps


def fitted(rows: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Return the non-negative A and B of the least squared relative error. `rows`: shape (pilots, 2)."""
    from scipy.optimize import nnls

    scaled = rows / wanted[:, None]
    a, b = nnls(scaled, np.ones(len(wanted)))[0]
    return float(a), float(b)


def pilot_costs(closed: Sequence[ClosedRound]) -> PilotCosts:
    """Return the mean costs of rounds with a known number of local steps, by local step and participant."""
    known = [(each, each.choice.local_steps or 1, max(1, each.used)) for each in closed]
    sending_j = [max(0.0, each.joules - each.idle_joules - each.compute_j) / used for each, _, used in known]
    return PilotCosts(
        step_s=float(np.mean([each.compute_s / steps for each, steps, _ in known])),
        rest_s=float(np.mean([max(0.0, each.seconds - each.compute_s) for each, _, _ in known])),
        step_j=float(np.mean([each.compute_j / (steps * used) for each, steps, used in known])),
        rest_j=float(np.mean(sending_j)),
    )


PLUGINS = {"cost_effective": CostEffective}
