"""Abstract classes of links, which tell the seconds of a transfer, and of networks, which build links."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgesim.config.plugin_fields import Chosen
from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key

if TYPE_CHECKING:
    from edgesim.world.spectrum.cells import Air, CellBand

MTU_BYTES = 1500.0  # packets of an Ethernet frame; what is lost is sent again packet by packet

# Sub-streams of a job's draws; never renumber.
_UP, _DOWN, BOTH_WAYS, BESIDE_FADING, OUTAGE = 0, 1, 2, 3, 4
_JITTER, _LOSS, _PACKETS = 0, 1, 4  # a normal number of stream s takes the uniform streams 2s and 2s + 1

_FEW_PACKETS = 32
_MANY_LOSSES = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links(ABC):
    """The links of a block of n devices; contention between them is not theirs. Arrays of shape (n,).

    `transmit_w` and `receive_w`: power that their radio adds to a device whose energy model gives no such power. None:
    no power.
    """

    up_bps: Arr  # nominal rates from the devices, as methods are told
    down_bps: Arr  # nominal rates to the devices
    latency_s: Arr  # nominal latencies
    j_per_bit: Arr  # joules that the network spends on a bit to or from a device
    transmit_w: Arr | None = None
    receive_w: Arr | None = None
    air: Air | None = None  # None: devices share no band

    @property
    def steady(self) -> bool:
        """True if transfers take equally long at any time and for every job."""
        return False

    @property
    def impaired(self) -> bool:
        """True if latency or the number of sendings is drawn for every transfer."""
        return False

    @abstractmethod
    def transfer(self, rows: Ids, nbytes: Arr, up: bool, now_s: Arr | float, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of whole transfers that start at `now_s`, and those with the radio on, both of shape (k,).

        `rows`: positions in the block, shape (k,); `draws`: of the same k jobs. A pure function of its arguments.
        """

    def delay_s(self, rows: Ids, up: bool, draws: Draws) -> Arr:
        """Return the seconds before the first bit flows, shape (k,)."""
        latency_s: Arr = self.latency_s[rows]
        return latency_s

    def sendings(self, rows: Ids, nbytes: Arr, up: bool, draws: Draws) -> Arr:
        """Return the mean number of sendings of a byte of each transfer, at least 1, shape (k,)."""
        return np.ones(len(rows))


class NetworkPart(ABC):
    """A network as a scenario names it: a frozen dataclass."""

    constant_rates: ClassVar[bool] = False  # True: a topology may go on beyond the devices' links, which is then shared
    discipline: Chosen | None = None  # sharing of links by transfers; None: devices have links of their own

    @property
    def no_choices(self) -> tuple[str, str] | None:
        """Key and reason why a policy cannot choose power and bandwidth of its devices; None: it can."""
        return "name", "must be 'cell', whose devices share a band"

    @property
    def spectrum(self) -> CellBand | None:
        """Band of the cells that devices share; None: there are no cells."""
        return None

    @property
    def server_only(self) -> str | None:
        """Key and value that only a network with a server can have; None: none."""
        return None

    @abstractmethod
    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices.

        Raises ConfigError that names a key below `path`, the part's place in the scenario, or DataError with a file.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImpairedLinks(Links):
    """Links whose latency may vary and whose packets may get lost. Arrays of shape (n,); None: it does not."""

    jitter_s: Arr | None = None
    loss: Arr | None = None
    apart: ClassVar[tuple[int, ...]] = ()  # the sub-stream of the draws, where the links draw other things too

    @property
    def impaired(self) -> bool:
        """True if latency or the number of sendings is drawn for every transfer."""
        return self.jitter_s is not None or self.loss is not None

    def delay_s(self, rows: Ids, up: bool, draws: Draws) -> Arr:
        """Return the seconds before the first bit flows, shape (k,)."""
        latency_s: Arr = self.latency_s[rows]
        if self.jitter_s is None:
            return latency_s
        # log-normal, with the latency as mean (above 0) and the jitter as standard deviation
        variance = np.log1p((self.jitter_s[rows] / latency_s) ** 2)
        normal = self._one_way(draws, up).normal(_JITTER)
        jittered_s: Arr = latency_s * np.exp(np.sqrt(variance) * normal - variance / 2.0)
        return jittered_s

    def sendings(self, rows: Ids, nbytes: Arr, up: bool, draws: Draws) -> Arr:
        """Return how often a byte of each transfer is sent on average, at least 1, shape (k,).

        Its mean is 1 / (1 - loss), as each sending of a packet of 1500 bytes gets lost by itself.
        """
        loss = self.loss_of(up)
        if loss is None:
            return np.ones(len(rows))
        packets = np.ceil(nbytes / MTU_BYTES)
        again = retransmissions(packets, loss[rows], self._one_way(draws, up))
        sendings: Arr = 1.0 + again / np.maximum(packets, 1.0)
        return sendings

    def loss_of(self, up: bool) -> Arr | None:
        """Return the probability that a packet gets lost in one direction, shape (n,); None: none does."""
        return self.loss

    def _one_way(self, draws: Draws, up: bool) -> Draws:
        return directed(replace(draws, key=draws.key.at(*self.apart)), up)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteadyLinks(ImpairedLinks):
    """Constant rates; latency may vary and packets may get lost."""

    @property
    def steady(self) -> bool:
        """True if neither latency nor packets vary."""
        return not self.impaired

    def transfer(self, rows: Ids, nbytes: Arr, up: bool, now_s: Arr | float, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of whole transfers and those with the radio on; lost packets keep it on for longer."""
        air_s = 8.0 * nbytes / (self.up_bps if up else self.down_bps)[rows]
        if self.loss_of(up) is not None:
            air_s = air_s * self.sendings(rows, nbytes, up, draws)
        return self.delay_s(rows, up, draws) + air_s, air_s


def directed(draws: Draws, up: bool) -> Draws:
    """Return the draws of one direction of a job."""
    return replace(draws, key=draws.key.at(_UP if up else _DOWN))


# --- loss -------------------------------------------------------------------------------------------------


def retransmissions(packets: Arr, loss: Arr, draws: Draws) -> Arr:
    """Return how often packets have to be sent again until all have arrived, float64, shape (k,).

    Each sending of each of N `packets` is lost with probability `loss` < 1, independently, so the number is negative
    binomial with mean N loss / (1 - loss) and variance mean / (1 - loss). It is drawn exactly for fewer than 32
    packets or fewer than 30 first sendings lost on average, otherwise from the normal distribution of that mean and
    variance (cut at 0, more than 5 standard deviations below the mean; not rounded to whole packets).
    """
    again = np.zeros(len(packets))
    lossy = (loss > 0) & (packets > 0)
    few = packets < _FEW_PACKETS
    rare = packets * loss < _MANY_LOSSES
    for drawn, where in ((_summed, few), (_inverted, ~few & rare), (_normal, ~few & ~rare)):
        chosen = np.flatnonzero(lossy & where)
        if len(chosen):
            some = replace(draws, ids=draws.ids[chosen], nth=draws.nth[chosen])
            again[chosen] = drawn(packets[chosen], loss[chosen], some)
    return again


def _summed(packets: Arr, loss: Arr, draws: Draws) -> Arr:
    """Return the sum of one geometric number a packet, each the inverse of its distribution function."""
    again = np.zeros(len(packets))
    for packet in range(int(packets.max())):
        lost = np.floor(np.log(draws.uniform(_PACKETS + packet)) / np.log(loss))
        again += np.where(packet < packets, lost, 0.0)
    return again


def _inverted(packets: Arr, loss: Arr, draws: Draws) -> Arr:
    """Return the least count at which the distribution function reaches a uniform number."""
    uniform = draws.uniform(2 * _LOSS)
    mean, deviation = _moments(packets, loss)
    probability = np.exp(packets * np.log1p(-loss))
    reached, again = probability.copy(), np.zeros(len(packets))
    # beyond this count the probabilities are too small to reach a uniform number that is close to 1
    for count in range(1, int((mean + 12.0 * deviation).max()) + 40):
        more = uniform > reached
        if not more.any():
            break
        again += more
        probability = probability * loss * (packets + count - 1.0) / count
        reached += probability
    return again


def _normal(packets: Arr, loss: Arr, draws: Draws) -> Arr:
    mean, deviation = _moments(packets, loss)
    again: Arr = np.maximum(mean + deviation * draws.normal(_LOSS), 0.0)
    return again


def _moments(packets: Arr, loss: Arr) -> tuple[Arr, Arr]:
    mean = packets * loss / (1.0 - loss)
    return mean, np.sqrt(mean / (1.0 - loss))
