"""Order-free randomness: the name of a random stream tells its purpose, never the time of its first use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np

_INDEX_LIMIT = 2**32
_WORD = 2**64 - 1


class Purpose(IntEnum):
    """First index of every stream. Never renumber: the numbers are part of every published result."""

    FLEET = 1
    DATA = 2
    INIT = 3
    PLAN = 4
    MERGE = 5
    SLOWDOWN = 6
    CHANNEL = 7
    LOCAL = 8
    EVAL = 9
    PROBE = 10
    PEERS = 11
    AVAILABILITY = 12
    FAILURE = 13
    SERVER_SET = 14
    BOOTSTRAP = 15  # resamples of the statistics over a study's runs
    SEARCH = 16  # points of trials
    EDGES = 17  # decisions of edge servers, and moves of devices
    SESSION = 18  # then a word of its name: all draws of one of several trainings
    TESTS = 19  # then the round: devices that test its model
    CLOCK_ERROR = 20  # below the number of a draw, not the seed: a word of the board, and one of the network
    APP = 21  # of a program: calls by device, then those before; and its server part
    CELL = 22  # fading of transfers that share a band
    ARRIVAL = 23  # then the device: when its samples arrive


class PlanStream(IntEnum):
    """First index below the key of a plan. Never renumber; numbers are alike where no method uses both.

    Selection draws from the key itself, and from index 1 alone if there are too few places.
    """

    DEVICES = 1  # selected devices, where the method chooses itself
    CHANNELS = 1  # then the device: the channels that it keeps, or the widths that it trains
    RATES = 1  # then 0: the devices' rates of a round
    FADING = 2  # gains of devices' channels in simultaneous transmission


class JobStream(IntEnum):
    """First index below the key of a job, whose runs of local SGD have 0, 1, ... in their order. Never renumber.

    Numbers are alike where no method uses both.
    """

    LOOKED_AT = 0  # samples of a job without training
    LABELS = 1  # HeteroFL: the device's labels
    WHOLE_GRADIENT = 1  # SCAFFOLD: the gradient of all samples
    SPLIT = 1  # AugFL: samples for adaptation and query
    PUBLIC = 1  # batches of public samples
    DROPOUT = 2  # AugFL: of both gradients of a difference
    OTHER_BATCHES = 1  # Per-FedAvg: then 0 for adaptation, 1 for the Hessian
    GENERATED = 1  # FedGen: labels and noise of generated samples
    ADAPTERS = 1  # FLoRA: new low-rank adapters
    ALIGNMENT = 1  # FedAS
    FISHER = 2
    PROTOTYPES = 3
    LANCZOS_STARTS = 2  # FedAD
    GROWTH = 2**32 - 4  # random scores of weights that may come back
    ONE_BATCH = 2**32 - 3  # the samples of one gradient
    DOWNLINK = 2**32 - 2  # random rounding of received models
    UPLINK = 2**32 - 1  # random rounding of sent updates


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a random stream. Drawing never changes a Key; equal Keys give equal streams."""

    seed: int
    path: tuple[int, ...] = ()

    def at(self, *index: int) -> Key:
        """Return the sub-stream named by further indices, each in [0, 2**32).

        Raises ValueError outside that range: NumPy would split a larger index into words, so that two
        different paths could name one stream.
        """
        path = tuple(map(int, index))
        if path and not (min(path) >= 0 and max(path) < _INDEX_LIMIT):
            raise ValueError(f"stream index outside [0, 2**32): {path}")
        return Key(self.seed, self.path + path)

    def numpy(self) -> np.random.Generator:
        """Return a NumPy generator at the start of this stream."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=self.path))

    def words(self) -> Iterator[int]:
        """Yield 64-bit numbers of this stream, each at little cost.

        Source: SplitMix64, as in `Draws.uniform`, from `word` of the stream's first two indices.
        """
        word = _word_of(self.seed, self.path[:2])
        for index in self.path[2:]:
            word = _mix_one(word + index)
        while True:
            word = _mix_one(word)
            yield word

    def exact_word(self) -> int:
        """Return 52 bits of this stream: a seed that a float, such as one in the config of a task, holds exactly."""
        return self.word() >> 11

    def word(self) -> int:
        """Return 63 bits of this stream, the seed of a torch generator."""
        state = np.random.SeedSequence(self.seed, spawn_key=self.path).generate_state(1, np.uint64)
        return int(state[0]) >> 1


@lru_cache(maxsize=1024)
def _word_of(seed: int, path: tuple[int, ...]) -> int:
    return Key(seed, path).word()


def _mix_one(word: int) -> int:
    """Return SplitMix64's output for one state, as `_mix` does for many."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


@dataclass(frozen=True, slots=True)
class Draws:
    """One random number for each of k jobs, independent of other draws and of their order.

    `ids`: device of each job. `nth`: number of the job (or round) of its device. Both are int64, shape (k,).
    """

    key: Key
    ids: np.ndarray
    nth: np.ndarray

    def uniform(self, stream: int) -> np.ndarray:
        """Return numbers in (0, 1), float64, shape (k,). `stream` distinguishes several numbers of one job.

        Source: SplitMix64, the mixing function of Steele, Lea and Flood, "Fast splittable pseudorandom number
        generators" (OOPSLA 2014), chained over the words (key, stream, device, nth).
        """
        word = np.uint64(self.key.at(stream).word())
        mixed = _mix(_mix(word + self.ids.astype(np.uint64)) + self.nth.astype(np.uint64))
        numbers: np.ndarray = ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return numbers

    def normal(self, stream: int) -> np.ndarray:
        """Return standard normal numbers, float64, shape (k,), by Box and Muller from streams 2s and 2s + 1."""
        radius = np.sqrt(-2.0 * np.log(self.uniform(2 * stream)))
        numbers: np.ndarray = radius * np.cos(2.0 * np.pi * self.uniform(2 * stream + 1))
        return numbers


def _mix(words: np.ndarray) -> np.ndarray:
    """Return SplitMix64's output for each state, uint64. Overflow wraps, as intended."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: np.ndarray = words ^ (words >> np.uint64(31))
        return mixed
