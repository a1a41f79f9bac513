"""Worker processes that end with the process that started them, and pools of them."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from errno import EMFILE
from multiprocessing import connection, current_process, forkserver, get_context, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from edgesim.core.errors import EdgesimError
from edgesim.execution.interrupts import STOP_SIGNALS
from edgesim.files.own_code import carry_frames, own_frames


class Pool(ABC):
    """Processes of one kind that work items off."""

    @abstractmethod
    def begin(self) -> None:
        """Start the processes, if they are not there. Raises EdgesimError if they cannot start."""

    @abstractmethod
    def close(self) -> None:
        """End the processes at once, whatever they are at. May be called twice."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Return whether items have been given whose answers were not taken."""

    @abstractmethod
    def has_room(self, depth: int = 1) -> bool:
        """Return whether a process is at fewer items than so many."""

    @abstractmethod
    def give(self, name: Any, work: Callable[[Any], Any], item: Any) -> None:
        """Let a process do one more item; `name`: what `take` calls it. Raises as `begin`."""

    @abstractmethod
    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return what is done by now: the name of each item with what `work` gave, or the exception that it raised.

        `wait`: until there is something, if there is anything to wait for. Raises EdgesimError if a process died.
        """


def answer(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function gives in a worker process, or the exception that it raises, fit to be sent home."""
    try:
        return function(*given)
    except Exception as error:
        told, frames = f"in a worker process:\n{traceback.format_exc()}", own_frames(error)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # one with a constructor of its own does not come home
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(told)
        carry_frames(error, frames)
        return error


_PR_SET_PDEATHSIG = 1  # of Linux's prctl: a signal for a process whose parent has died
_FILES_EACH, _FILES_FOR_ALL = 3, 12  # that are open once processes have started, and beside them while they start
# What takes long to load, and starts no thread when it is.
_PRELOADED = ("torch", "edgesim.execution.backends.workers")


class ProcessPool(Pool):
    """Processes of one kind that work items off; they start at the first item, or when they are told to.

    `start(*arguments, each)` is called in each of them before its first item, with its one of `eachs`. `name` begins
    messages about those that die; `doing(item)`: what they were at, in its words.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        start: Callable[..., Any] | None = None,
        arguments: Sequence[Any] = (),
        eachs: Sequence[Any] = (),
        doing: Callable[[Any], str] = lambda item: "",
    ) -> None:
        self._name = name
        self._workers = workers
        self._start = start
        self._arguments = arguments
        self._eachs = eachs
        self._doing = doing
        self._of: dict[Connection, BaseProcess] = {}
        self._at: dict[Connection, deque[tuple[Any, Any]]] = {}  # names of items and items, as they were handed out
        self._served = False  # whether one of them ever answered
        self._kept: list[Connection] = []  # this end of the lifeline, while there are processes

    def close(self) -> None:
        """End the processes at once, whatever they are at. May be called twice."""
        _end_all(self._of, self._kept)
        self._at.clear()

    def begin(self) -> None:
        """Start the processes, if they are not there. Raises EdgesimError if they cannot start."""
        if is_loading_main():
            sys.exit(1)  # the parent says why
        if self._of:
            return
        try:
            _check_files(_FILES_EACH * self._workers + _FILES_FOR_ALL)
            warm_up()
            with _held(STOP_SIGNALS):
                self._start_all()
        except (OSError, RuntimeError) as error:  # too many open files or processes, too little memory
            self.close()
            raise cannot_start(self._name, self._workers, error) from error
        except EOFError as error:
            self.close()
            raise EdgesimError(f"{self._name}: {self._why_one_died('')}") from error

    def is_busy(self) -> bool:
        """Return whether items have been given whose answers were not taken."""
        return any(self._at.values())

    def has_room(self, depth: int = 1) -> bool:
        """Return whether a process is at fewer items than so many."""
        return not self._of or any(len(items) < depth for items in self._at.values())

    def give(self, name: Any, work: Callable[[Any], Any], item: Any) -> None:
        """Let the process that is at the fewest items do one more; `name`: what `take` calls it. Raises as `begin`.

        Of several such processes it is the one that was given none for the longest time.
        """
        self.begin()
        worker = min(self._at, key=lambda each: len(self._at[each]))
        self._at[worker].append((name, item))
        self._at[worker] = self._at.pop(worker)  # to the end
        with self._deaths():
            worker.send((work, item))

    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return what is done by now: the name of each item with what `work` gave, or the exception that it raised.

        `wait`: until there is something, if there is anything to wait for. Raises EdgesimError if a process died.
        """
        busy = [worker for worker, items in self._at.items() if items]
        found = []
        with self._deaths():
            for worker in _ready(busy, None if wait else 0.0):
                answer = worker.recv()
                self._served = True
                found.append((self._at[worker].popleft()[0], answer))
        return found

    def _start_all(self) -> None:
        context = get_context("forkserver")
        lifeline, kept = context.Pipe(duplex=False)
        self._kept.append(kept)
        util.Finalize(self, _end_all, (self._of, self._kept), exitpriority=10)  # also if nobody closes the pool
        with lifeline:
            for place in range(self._workers):
                mine, theirs = context.Pipe()
                with theirs:
                    given = (*self._arguments, *self._eachs[place : place + 1])
                    arguments = (theirs, lifeline, dict(os.environ), Path.cwd(), self._start, given)
                    process = context.Process(target=_serve, args=arguments)
                    process.start()
                    self._of[mine] = process
                    self._at[mine] = deque()

    @contextmanager
    def _deaths(self) -> Iterator[None]:
        """Raise EdgesimError if a process turns out to have died."""
        try:
            yield
        except (EOFError, OSError) as error:  # the second also where an answer breaks off in the middle
            doing = " or ".join(filter(None, (self._doing(items[0][1]) for items in self._at.values() if items)))
            reason = self._why_one_died(doing)
            self.close()
            raise EdgesimError(f"{self._name}: {reason}") from error

    def _why_one_died(self, doing: str) -> str:
        script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
        if not self._served and script.is_file() and b"__main__" not in script.read_bytes():
            return (
                f"a worker process died as it loaded {script}, which every worker does; "
                'the script has to start its runs below a line `if __name__ == "__main__":`'
            )
        return f"a worker process died{f' at {doing}' if doing else ''}; with too little memory use fewer"


def warm_up(*modules: str) -> None:
    """Let what worker processes need be loaded, in a process that they are forked from, while this one goes on.

    `modules`: what else they need. May be called twice; then the first call counts. That process ends with this one.
    """
    resource_tracker.ensure_running()  # it lets signals through again when it starts
    get_context("forkserver").set_forkserver_preload([*_PRELOADED, *modules])
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in path}
    os.environ.update(path)  # so that it loads the modules that this process does
    try:
        with _held(STOP_SIGNALS):  # they are for this process to act on
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _check_files(count: int) -> None:
    """Raise OSError unless so many more files may be open: who fails in mid-start takes the forking process along."""
    with ExitStack() as opened:
        for _ in range(count):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))


def cannot_start(name: str, workers: int, error: OSError | RuntimeError) -> Exception:
    """Return what to raise where processes, or the memory that they share, cannot be had."""
    reason = (getattr(error, "strerror", None) or str(error)).rpartition(": ")[2].removesuffix(f" ({EMFILE})")
    return EdgesimError(f"{name}: cannot start {workers} processes: {reason}")


def _ready(connections: Sequence[Connection], timeout_s: float | None) -> list[Connection]:
    """Wait until something has come, or somebody has gone, or for so long; return where."""
    return cast("list[Connection]", connection.wait(connections, timeout_s)) if connections else []


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


def _serve(
    work: Connection,
    lifeline: Connection,
    environment: Mapping[str, str],
    folder: Path,
    start: Callable[..., Any] | None,
    given: Sequence[Any],
) -> None:
    """Be a worker process: answer what comes until nothing comes any more."""
    for each in STOP_SIGNALS:  # they are the parent's to act on
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    _end_with_parent(lifeline)
    os.environ.clear()  # of the process that this one was forked from
    os.environ.update(environment)
    os.chdir(folder)
    if start:
        start(*given)
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            function, item = work.recv()
            work.send(answer(function, item))


def _end_with_parent(lifeline: Connection) -> None:
    """End this process when the one that uses it ends, by whatever signal.

    Then its end of the lifeline closes, which a thread waits for. On Linux the process that this one was forked from
    ends by that too, and takes it along even if it hangs (prctl).
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_wait_for_the_end, args=(lifeline,), daemon=True).start()


def _wait_for_the_end(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
