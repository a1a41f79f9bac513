"""A program in a few lines that edgesim does not ship: what its server part does is a function of these tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edgesim.core.app import App, AppClock, Call, Called, DeviceCode
from edgesim.core.rng import Key
from edgesim.core.task import CountedWork

SERVERS: dict[str, Callable[[AppClock], None]] = {}  # server parts by name


@dataclass(frozen=True)
class SmallCode(DeviceCode):
    """Counts the calls of a device, and answers with their number and its seed; a device in `fails` fails."""

    flops: float = 1e9
    idle_s: float = 0.0
    reply_bytes: int = 1000
    fails: tuple[int, ...] = ()
    reads: str = ""
    runs: Path | None = None  # a file to which every call that is run adds a line

    def identity(self) -> str:
        return f"{self.flops} {self.idle_s} {self.reply_bytes} {self.fails} {self.reads}"

    def call(self, call: Call, state: bytes, seed: int) -> Called:
        if self.runs is not None:
            import os

            os.write(os.open(self.runs, os.O_APPEND | os.O_WRONLY | os.O_CREAT), f"{call.number}\n".encode())
        nth = int(state or b"0") + 1
        text = Path(self.reads).read_text() if self.reads else ""
        failure = "ValueError: no luck" if call.device in self.fails else ""
        content = f"{nth} {seed} {text}".encode().ljust(self.reply_bytes)
        work = CountedWork(self.flops, 500, len(call.content), len(content), self.idle_s)
        return Called(content, str(nth).encode(), work, failure)


@dataclass(frozen=True, kw_only=True)
class SmallApp(App):
    """A program whose server part is one of SERVERS."""

    server: str = "rounds"
    price: Literal["each", "first"] = "each"
    flops: float = 1e9
    idle_s: float = 0.0
    fails: tuple[int, ...] = field(default=())
    reads: str = ""
    runs: str = ""

    def check(self) -> None:
        assert self.server in SERVERS

    def open(self, devices: int, key: Key) -> tuple[DeviceCode, Callable[[AppClock], None]]:
        runs = Path(self.runs) if self.runs else None
        code = SmallCode(self.flops, self.idle_s, fails=self.fails, reads=self.reads, runs=runs)
        return code, SERVERS[self.server]


def call_all(clock: AppClock, first: int, group: str, kind: str = "train") -> list[Call]:
    """Send every reachable device a call of 500 bytes; return the calls."""
    calls = [Call(first + i, d, kind, group, b"x" * 500, kind == "train") for i, d in enumerate(clock.reachable())]
    clock.send(calls)
    return calls


def rounds(clock: AppClock) -> None:
    """Two rounds in which all devices train, and a score after each."""
    for round_ in range(2):
        calls = call_all(clock, 100 * round_, str(round_))
        replies = clock.wait(calls=[call.number for call in calls])
        clock.score("test", {"accuracy": 0.5 + 0.25 * round_, "loss": 1.0, "f1": 0.5}, 10)
        clock.note({"replies": sum(reply.content is not None for reply in replies)})


SERVERS["rounds"] = rounds
