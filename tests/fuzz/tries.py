"""Processes that try one case after another, with limits to memory and time."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

MEMORY_BYTES = 6 << 30  # of a case


class Verdict(NamedTuple):
    """How a case ended, in a word; "fault" if something is wrong. `says`: the line or the fault it ended with."""

    case: int
    ended: str
    says: str


class Limits(NamedTuple):
    """Limits to one case, in seconds of the processor and of wall time."""

    cpu_s: float = math.inf  # a TimeoutError is raised in it
    wall_s: float = 600.0  # its process is killed


Judge = Callable[[int, int], Verdict]  # of a seed and the number of a case


def _work(judge: Judge, seed: int, cpu_s: float, pipe: Connection) -> None:
    os.setsid()  # so that the workers of a backend end with it
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    if cpu_s < math.inf:

        def too_long(*_: object) -> None:
            raise TimeoutError(f"not done after {cpu_s:g} s")

        signal.signal(signal.SIGPROF, too_long)
    while (case := pipe.recv()) is not None:
        if cpu_s < math.inf:
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
        pipe.send(judge(seed, case))
        signal.setitimer(signal.ITIMER_PROF, 0.0)


class _Worker:
    """A process that tries one case after another, and is replaced if one takes too long."""

    def __init__(self, judge: Judge, seed: int, limits: Limits) -> None:
        self._judge, self._seed, self._limits = judge, seed, limits
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(self._judge, self._seed, self._limits.cpu_s, other))
        self._process.start()
        other.close()
        self.case: int | None = None
        self.until_s = math.inf
        self._tried = 0

    def give(self, case: int) -> None:
        """Let it try a case."""
        self.case, self.until_s = case, time.monotonic() + self._limits.wall_s
        self._tried += 1
        self.pipe.send(case)

    def take(self) -> Verdict | None:
        """Return the verdict on its case if there is one; one that takes too long or kills its process failed.

        A fault counts if a new process finds it too: memory, for one, is less where others were tried before.
        """
        found = self._found()
        if found is None or found.ended != "fault":
            return found
        alone = self._tried == 1
        self.stop()
        self._start()
        if not alone:
            self.give(found.case)
        return found if alone else None

    def _found(self) -> Verdict | None:
        assert self.case is not None
        try:
            if self.pipe.poll():
                return self.pipe.recv()
            fault = "" if time.monotonic() < self.until_s else f"not done after {self._limits.wall_s:g} s"
        except (EOFError, OSError):
            fault = "killed its process"
        return Verdict(self.case, "fault", fault) if fault else None

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self.pipe.close()


def verdicts(judge: Judge, seed: int, cases: range, workers: int, limits: Limits) -> Iterator[Verdict]:
    """Yield the verdicts on cases as they come, from so many processes. `judge`: a function of a module."""
    pool, left = [_Worker(judge, seed, limits) for _ in range(min(workers, len(cases)))], iter(cases)
    busy = list[_Worker]()
    try:
        for worker in pool:
            worker.give(next(left))
            busy.append(worker)
        while busy:
            wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in list(busy):
                if (found := worker.take()) is None:
                    continue
                yield found
                if (case := next(left, None)) is None:
                    busy.remove(worker)
                else:
                    worker.give(case)
    finally:
        for worker in pool:
            worker.stop()
