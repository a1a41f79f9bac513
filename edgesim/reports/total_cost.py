"""Time and energy of one round as a single cost, as the DA-DPFL study weighs them.

Source: DA-DPFL paper, cost model: compute seconds = inefficiency x FLOPs / speed, transfer seconds = 8 x bytes / rate,
joules = seconds x power of the activity, total = (1 - theta) x seconds + theta x joules at 1 dollar each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from edgesim.core.errors import ConfigError


class RoundCost(NamedTuple):
    """Seconds and joules of one round."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Factors by which a comparison corrects what one device spends in a round; 1 = as the ledger has it."""

    compute_energy: float = 1.0
    transfer_energy: float = 1.0
    waiting: float = 1.0  # on the whole time

    def __post_init__(self) -> None:
        for name, factor in asdict(self).items():
            if not factor > 0:
                raise ConfigError(f"scaling.{name}: must be above 0, got {factor!r}")


# Differs from the paper, which draws curves and prints no factors: these are inferred from its text.
SCALINGS: Mapping[str, Scaling] = {
    "none": Scaling(),
    # 10 of 100 devices train, and 10 instead of 1,000 models move
    "server_based": Scaling(compute_energy=0.10, transfer_energy=0.01),
    # mean longest wait in DA-DPFL if each of 100 devices has 10 neighbours and waits for up to 10 of them
    "waiting": Scaling(waiting=17.0406),
}


def compute_time_s(flops: float, flops_per_s: float, inefficiency: float = 1.0) -> float:
    """Return the seconds of `flops` at the peak speed; `inefficiency`: measured over theoretical seconds."""
    return inefficiency * flops / flops_per_s


def transfer_time_s(nbytes: float, bps: float) -> float:
    """Return the seconds that `nbytes` take at `bps` bit/s."""
    return 8.0 * nbytes / bps


def round_cost(
    compute_s: float, transfer_s: float, compute_j: float, transfer_j: float, scaling: Scaling = SCALINGS["none"]
) -> RoundCost:
    """Return what one device's computation and transfer make of a round under a scaling."""
    energy_j = scaling.compute_energy * compute_j + scaling.transfer_energy * transfer_j
    return RoundCost(scaling.waiting * (compute_s + transfer_s), energy_j)


def total_cost(theta: float, time_s: float, energy_j: float) -> float:
    """Return (1 - theta) x seconds + theta x joules. Raises ConfigError unless 0 <= theta <= 1."""
    if not 0.0 <= theta <= 1.0:
        raise ConfigError(f"theta: must be between 0 (time alone) and 1 (energy alone), got {theta!r}")
    return (1.0 - theta) * time_s + theta * energy_j


def crossing(one: RoundCost, other: RoundCost) -> float | None:
    """Return the theta, between 0 and 1, at which both cost the same; None if one costs no more whatever theta is."""
    later_s, saved_j = one.time_s - other.time_s, other.energy_j - one.energy_j
    return later_s / (later_s + saved_j) if later_s * saved_j > 0 else None
