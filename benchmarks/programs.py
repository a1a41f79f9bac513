"""Runs a program and measures it from outside: its seconds, and the memory of its whole tree of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

ROOT = Path(__file__).parents[1]
LIMIT_S = 600
_SAMPLED_EVERY_S = 0.25


class Ran(NamedTuple):
    """What a program took, and what it printed."""

    seconds: float
    peak_bytes: int  # of all its processes, pages that they share counted once (PSS)
    processors_s: float  # of all its processes, each until it was last seen
    out: str


class ProgramError(Exception):
    """A program that could not be started, failed, or took longer than LIMIT_S."""


def run(words: Sequence[str], environment: Mapping[str, str] | None = None, memory: bool = False) -> Ran:
    """Run a program in this checkout's folder. Raises ProgramError. `memory`: whether to sample it, a slight nuisance.

    It finds this checkout's edgesim, and the moment of its start in T0, as time.time() says it.
    """
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    given = {**os.environ, "PYTHONPATH": paths, **(environment or {}), "T0": repr(time.time())}
    with tempfile.TemporaryFile("w+") as err, tempfile.TemporaryFile("w+") as out:
        start_s = time.perf_counter()
        try:
            started = subprocess.Popen(words, cwd=ROOT, env=given, stdout=out, stderr=err, start_new_session=True)
        except OSError as error:
            raise ProgramError(f"{words[0]}: {error.strerror}") from error
        watch = _Watch(started.pid) if memory else None
        try:
            code = started.wait(LIMIT_S)
            seconds = time.perf_counter() - start_s
        except subprocess.TimeoutExpired as error:
            raise ProgramError(f"took longer than {LIMIT_S} s") from error
        finally:
            with suppress(ProcessLookupError):  # whoever is left of it
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            peak_bytes, processors_s = watch.stop() if watch else (0, 0.0)
        for file in (out, err):
            file.seek(0)
        if code:
            last = next((line for line in reversed(err.read().splitlines()) if line.strip()), "")
            raise ProgramError(f"exit code {code}: {last.strip()}")
        return Ran(seconds, peak_bytes, processors_s, out.read())


def python(*words: str) -> list[str]:
    """Return a command of this interpreter."""
    return [sys.executable, *words]


class _Watch:
    """A thread that samples the memory and the processor time of a tree of processes."""

    def __init__(self, pid: int) -> None:
        self._peak_bytes, self._root = 0, psutil.Process(pid)
        self._processors_s: dict[psutil.Process, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[int, float]:
        """Return the peak in bytes, and the seconds of processors."""
        self._done.set()
        self._thread.join()
        return self._peak_bytes, sum(self._processors_s.values())

    def _sample(self) -> None:
        while not self._done.wait(_SAMPLED_EVERY_S):
            with suppress(psutil.NoSuchProcess):
                tree = [self._root, *self._root.children(recursive=True)]
                self._processors_s |= {each: sum(each.cpu_times()[:2]) for each in tree}
                self._peak_bytes = max(self._peak_bytes, sum(map(_pss_bytes, tree)))


def _pss_bytes(process: psutil.Process) -> int:
    """Return the memory of a process, its part of what it shares included; 0 of one that has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0
