"""Links that go down and come back, whatever is being sent."""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.config.units import PerDevice, Seconds, draw
from edgesim.core.rng import Key
from edgesim.world.failures.base import Failure, FailurePart
from edgesim.world.processes.on_off import OnOff


@dataclass(frozen=True, kw_only=True)
class LinkOutage(FailurePart):
    """The link of a device is up and down by turns, for exponential times with the means `up` and `down`.

    While it is down nothing is lost, but its transfers stand still; among peers those that it sends and those that it
    receives. At the start of the run it is up with probability up / (up + down). Source: the two-state channel of
    Gilbert, "Capacity of a Burst-Noise Channel", Bell System Technical Journal 39 (1960), in continuous time.
    """

    up: PerDevice[Seconds]
    down: PerDevice[Seconds]

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the outages of n links. Raises ConfigError that names a key below `path`."""
        up_s = draw(self.up, n, key.at(0).numpy(), f"{path}.up")
        down_s = draw(self.down, n, key.at(1).numpy(), f"{path}.down")
        return Failure(links=OnOff(key.at(2), up_s, down_s))


PLUGINS = {"link_outage": LinkOutage}
