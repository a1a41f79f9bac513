"""Worker processes that end with the process that started them, however it ends, and at once when they are told to."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, current_process, get_context, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar, cast

from edgesim.core.errors import EdgesimError
from edgesim.runtime.interrupts import STOP_SIGNALS

_PR_SET_PDEATHSIG = 1  # of Linux's prctl: a signal for a process whose parent has died
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


class ProcessPool:
    """Processes of one kind that work items off; they start at the first item.

    `start(*arguments)` is called in each of them before its first item. `name` begins messages about those that die;
    `doing(item)`: what they were at, in its words.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        start: Callable[..., Any] | None = None,
        arguments: Any = (),
        doing: Callable[[Any], str] = lambda item: "",
    ) -> None:
        self._name = name
        self._workers = workers
        self._start = start
        self._arguments = arguments
        self._doing = doing
        self._of: dict[Connection, BaseProcess] = {}
        self._served = False  # whether one of them ever answered
        self._kept: list[Connection] = []  # this end of the lifeline, while there are processes

    def close(self) -> None:
        """End the processes at once, whatever they are at. May be called twice."""
        _end_all(self._of, self._kept)

    def map(self, work: Callable[[_Item], _Found], items: Sequence[_Item]) -> list[_Found]:
        """Return what `work` gives for each item, in their order. Raises as `unordered` does."""
        found = dict(self.unordered(work, items))
        return [found[place] for place in range(len(items))]

    def unordered(self, work: Callable[[_Item], _Found], items: Sequence[_Item]) -> Iterator[tuple[int, _Found]]:
        """Yield the place of each item and what `work` gives for it, as they are done.

        Raises what `work` raises, with a note of where, and EdgesimError if a process cannot start, or died.
        """
        waiting = list(enumerate(items))[::-1]
        busy: dict[Connection, int] = {}
        try:
            idle = self._processes() if items else []
            while waiting or busy:
                self._hand_out(work, waiting, idle, busy)
                for worker in _ready(busy):
                    found = self._received(worker)
                    idle.append(worker)
                    yield busy.pop(worker), found
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            doing = " or ".join(filter(None, (self._doing(items[place]) for place in busy.values())))
            raise EdgesimError(f"{self._name}: {self._why_one_died(doing)}") from error
        finally:
            if busy:  # an answer that nobody waits for would be taken for the next one
                self.close()

    def _received(self, worker: Connection) -> Any:
        """Return what a process found; raise what it raised."""
        done, found = worker.recv()
        self._served = True
        if not done:
            raise found
        return found

    @staticmethod
    def _hand_out(
        work: Callable[..., Any], waiting: list[tuple[int, Any]], idle: list[Connection], busy: dict[Connection, int]
    ) -> None:
        while waiting and idle:
            worker = idle.pop()
            busy[worker], item = waiting.pop()
            worker.send((work, item))

    def _processes(self) -> list[Connection]:
        if is_loading_main():
            sys.exit(1)  # the parent says why
        if not self._of:
            resource_tracker.ensure_running()  # it lets signals through again when it starts
            try:
                with _held(STOP_SIGNALS):
                    self._start_all()
            except OSError as error:  # too many open files or processes, too little memory
                self.close()
                reason = error.strerror or error
                raise EdgesimError(f"{self._name}: cannot start {self._workers} processes: {reason}") from error
        return list(self._of)

    def _start_all(self) -> None:
        context = get_context("spawn")
        lifeline, kept = context.Pipe(duplex=False)
        self._kept.append(kept)
        util.Finalize(self, _end_all, (self._of, self._kept), exitpriority=10)  # also if nobody closes the pool
        with lifeline:
            for _ in range(self._workers):
                mine, theirs = context.Pipe()
                with theirs:
                    arguments = (theirs, lifeline, os.getpid(), self._start, self._arguments)
                    process = context.Process(target=_serve, args=arguments)
                    process.start()
                    self._of[mine] = process

    def _why_one_died(self, doing: str) -> str:
        script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
        if not self._served and script.is_file() and b"__main__" not in script.read_bytes():
            return (
                f"a worker process died as it loaded {script}, which every worker does; "
                'the script has to start its runs below a line `if __name__ == "__main__":`'
            )
        return f"a worker process died{f' at {doing}' if doing else ''}; with too little memory use fewer"


def _ready(connections: Iterable[Connection]) -> list[Connection]:
    """Wait until something has come, or somebody has gone; return where."""
    return cast("list[Connection]", connection.wait(list(connections)))


def is_loading_main() -> bool:
    """Return whether this is a worker process that still loads its parent's script, which has to start nothing."""
    return getattr(current_process(), "_inheriting", False)


def _end_all(processes: dict[Connection, BaseProcess], kept: list[Connection]) -> None:
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.join()
    for each in (*processes, *kept):
        each.close()
    processes.clear()
    kept.clear()


@contextmanager
def _held(signals: Sequence[int]) -> Iterator[None]:
    """Hold signals back: they are for this process, and processes started meanwhile inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(work: Connection, lifeline: Connection, parent: int, start: Callable[..., Any] | None, given: Any) -> None:
    """Be a worker process: answer what comes until nothing comes any more."""
    for each in STOP_SIGNALS:  # they are the parent's to act on
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    _end_with(parent, lifeline)
    if start:
        start(*given)
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            function, item = work.recv()
            work.send(_answer(function, item))


def _answer(function: Callable[[Any], Any], item: Any) -> tuple[bool, Any]:
    try:
        return True, function(item)
    except Exception as error:
        told = f"in a worker process:\n{traceback.format_exc()}"
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # one with a constructor of its own does not come home
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(told)
        return False, error


def _end_with(parent: int, lifeline: Connection) -> None:
    """End this process when its parent ends, by whatever signal.

    Linux kills it (prctl). Everywhere the parent's end of the lifeline closes, which a thread waits for.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)
    threading.Thread(target=_wait_for_the_end, args=(lifeline,), daemon=True).start()


def _wait_for_the_end(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
