"""Programs of users as trainings: their server part asks devices by calls, and their device part answers them.

The server part runs in a thread of its own while the event loop waits, never beside it. Time passes only where it
waits. No torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from edgesim.core.rng import Key
from edgesim.core.task import CountedWork


@dataclass(frozen=True, slots=True)
class Call:
    """A message of the server part to the device part of a program."""

    number: int  # in the run, in the order of sending
    device: int
    kind: str  # what is to be done, such as "train" or "evaluate"; name of the task in tables
    group: str  # calls of one round have the same
    content: bytes  # the message as the device gets it; `len` of it are the bytes of the download
    trains: bool = True  # a call that should train: without FLOPs it warns
    signature: str = ""  # calls of a device with the same kind and signature have one price with `price = "first"`
    expires_s: float = inf  # simulated time from which no answer counts


class Called(NamedTuple):
    """Outcome of a call on a device: what its code answered, and what that took."""

    content: bytes  # the reply as it is sent; `len` of it are the bytes of the upload
    state: bytes  # what the device keeps for its next call; b"": nothing
    work: CountedWork
    failure: str = ""  # one line about the exception that the code raised; "": none. The reply then tells the server
    warnings: tuple[str, ...] = ()


class Reply(NamedTuple):
    """Answer to a call as the server part sees it."""

    call: Call
    content: bytes | None  # None: it got no answer
    arrived_s: float
    reason: str = ""  # why there is no answer: an outcome of a job such as "crashed", or "expired"


class RunEnded(BaseException):
    """Raised in the server part when the run has ended, so that its thread ends. It is no error."""


class DeviceCode(ABC):
    """Device part of a program. It is pickled and called in any process, for one call of a device at a time."""

    @abstractmethod
    def identity(self) -> str:
        """Return a digest of all code and settings on which answers depend. Raises Unidentified if there is none."""

    @abstractmethod
    def call(self, call: Call, state: bytes, seed: int) -> Called:
        """Answer a call from the state that the device kept, b"" at first; `seed`: of all global random generators.

        What the user's code raises, or leaves changed in the process, has no effect beyond `Called`.
        """


class AppClock(ABC):
    """Simulated time and devices as the server part of a program uses them, from its own thread only."""

    @property
    @abstractmethod
    def now_s(self) -> float:
        """Simulated seconds since the start."""

    @property
    @abstractmethod
    def devices(self) -> int:
        """Number of devices of the fleet."""

    @abstractmethod
    def reachable(self) -> Sequence[int]:
        """Return the devices that can be reached now, ascending, whether or not they are busy."""

    @abstractmethod
    def send(self, calls: Sequence[Call]) -> None:
        """Send calls now. A device answers one after the other. Raises RunEnded."""

    @abstractmethod
    def wait(self, until_s: float = inf, calls: Collection[int] | None = None) -> Sequence[Reply]:
        """Let time pass until all of these calls are answered, or until `until_s`; return the answers that came.

        `calls`: their numbers; None: until any call is answered. An answer is returned once, whoever waits; in the
        order (time, device, number). Raises RunEnded.
        """

    @abstractmethod
    def sleep(self, seconds: float) -> None:
        """Let time pass. Raises RunEnded."""

    @abstractmethod
    def score(self, split: str, metrics: Mapping[str, float], samples: int) -> None:
        """Note the score of the current model: `loss`, `accuracy` and any other numbers. Split "test" is the main one.

        It belongs to the round whose replies came last.
        """

    @abstractmethod
    def note(self, metrics: Mapping[str, float]) -> None:
        """Note further numbers of the current round, by name."""


class App(ABC):
    """A program as a scenario names it: a frozen dataclass."""

    price: Literal["each", "first"]  # every call is run and then priced, or a device's first call of a signature alone

    @abstractmethod
    def check(self) -> None:
        """Raise ConfigError if the program cannot be run. Loads none of its code."""

    def preload(self) -> None:
        """Load, in a process that will run the device part, what that takes long to load. By default nothing."""

    @abstractmethod
    def open(self, devices: int, key: Key) -> tuple[DeviceCode, Callable[[AppClock], None]]:
        """Return the device part, and the function that runs the server part until its end.

        `key`: of the random draws of the run. Raises ConfigError if the program cannot be loaded.
        """
