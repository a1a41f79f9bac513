"""Devices that want to do harm: they train on false labels, or send something else than what they learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from pydantic import FiniteFloat

from edgesim.config.units import PerDevice, draw
from edgesim.core.attack import Attack, Labels
from edgesim.core.errors import ConfigError
from edgesim.core.limits import CountOrZero, Share
from edgesim.core.rng import Draws, Key
from edgesim.world.failures.base import Failure, FailurePart

_PROBABILITY, _WHETHER = 0, 1  # sub-streams of the part's key; never renumber


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Attacks(Failure):
    """Devices that attack in all of their jobs; nothing takes another time for it."""

    by: Mapping[int, Attack] = field(default_factory=dict)

    def attacks(self) -> Mapping[int, Attack]:
        """Return the attack of each attacker, by device."""
        return self.by


@dataclass(frozen=True, kw_only=True)
class Attackers(FailurePart):
    """Some devices flip the `labels` that they train on, or multiply by `factor` how far they moved the model.

    Each device is an attacker with its `probability`, for the whole run; the `devices` listed are in any case. Of what
    an attacker sends the parameters are moved, seen from the model that it received, and a method's own numbers
    multiplied; running statistics stay as they are. Costs are those of honest devices. Of two failures that make an
    attacker of a device, the first listed says how.
    Source: label flipping as in Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems" (ESORICS
    2020); scaled updates as in Bagdasaryan et al., "How To Backdoor Federated Learning" (AISTATS 2020).
    """

    probability: PerDevice[Share] = 0.0
    devices: tuple[CountOrZero, ...] = ()  # device ids, from 0 in the order of the fleet
    labels: Labels = "kept"  # mirrored: C - 1 - y of C classes; next: y + 1, and 0 for the last
    factor: FiniteFloat = 1.0  # -1: the update is turned round

    @property
    def among_peers(self) -> bool:
        """True if it also works without a server. Peers have no received model from which a change could be scaled."""
        return self.factor == 1.0

    @property
    def flips_labels(self) -> bool:
        """True if it changes labels, which have to be classes then."""
        return self.labels != "kept"

    @property
    def fits_app(self) -> bool:
        """False: an app cannot take part in it."""
        return False

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the attacks of n devices. Raises ConfigError that names a key below `path`."""
        if not self.devices and self.probability == 0.0:
            raise ConfigError(f"{path}.probability: must be above 0, or devices be listed, found neither")
        if self.labels == "kept" and self.factor == 1.0:
            raise ConfigError(
                f"{path}.labels: must be mirrored or next, or factor other than 1, else nothing is harmed"
            )
        if (most := max(self.devices, default=0)) >= n:
            raise ConfigError(f"{path}.devices: must be ids below {n}, the devices of the fleet, found {most}")
        ids = np.arange(n)
        probability = draw(self.probability, n, key.at(_PROBABILITY).numpy(), f"{path}.probability")
        drawn = np.flatnonzero(Draws(key.at(_WHETHER), ids, np.zeros(n, dtype=np.int64)).uniform(0) < probability)
        attack = Attack(self.labels, self.factor)
        return Attacks(by={device: attack for device in sorted({*self.devices, *drawn.tolist()})})


PLUGINS = {"attackers": Attackers}
