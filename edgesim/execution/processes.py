"""Worker processes that end with the process that started them, and pools of them."""

from __future__ import annotations

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
from edgesim.files.c_library import c_function
from edgesim.files.own_code import carry_frames, own_frames


class Pool(ABC):
    """Processes of one kind that work on items."""

    @abstractmethod
    def begin(self) -> None:
        """Start the processes unless they run already. Raises EdgesimError if they cannot start."""

    @abstractmethod
    def close(self) -> None:
        """End the processes at once, whatever they are doing. May be called twice."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Return True if the answers of some items have not been taken yet."""

    @abstractmethod
    def has_room(self, depth: int = 1) -> bool:
        """Return True if some process has fewer than `depth` items."""

    @abstractmethod
    def give(self, name: Any, work: Callable[[Any], Any], item: Any) -> None:
        """Give a process one more item; `name`: its name in the answers of `take`. Raises as `begin`."""

    @abstractmethod
    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return the finished items: the name of each with the result of `work`, or the exception that it raised.

        `wait`: block until an item is finished, if there is any. Raises EdgesimError if a process died.
        """


def answer(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function in a worker process; return its result, or its exception in a form that can be pickled."""
    try:
        return function(*given)
    except Exception as error:
        told, frames = f"in a worker process:\n{traceback.format_exc()}", own_frames(error)
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # exceptions with constructors of their own cannot be unpickled
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(told)
        carry_frames(error, frames)
        return error


_PR_SET_PDEATHSIG = 1  # option of Linux's prctl: the signal that a process gets when its parent dies
_FILES_EACH, _FILES_FOR_ALL = 3, 12  # open files per process, and further ones while processes start
# Modules that take long to load and start no thread on import.
_PRELOADED = ("torch", "edgesim.execution.backends.workers")


class ProcessPool(Pool):
    """Processes of one kind on this machine; they start at the first item or with `begin`.

    `start(*arguments, each)` is called in each process before its first item, with its own element of `eachs`. `name`
    begins messages about processes that die, and `doing(item)` describes their work in these messages.
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
        self._at: dict[Connection, deque[tuple[Any, Any]]] = {}  # (name, item) in the order of `give`
        self._served = False  # True once a process has answered
        self._kept: list[Connection] = []  # this process's end of the lifeline, while processes run

    def close(self) -> None:
        """End the processes at once, whatever they are doing. May be called twice."""
        _end_all(self._of, self._kept)
        self._at.clear()

    def begin(self) -> None:
        """Start the processes unless they run already. Raises EdgesimError if they cannot start."""
        if is_loading_main():
            sys.exit(1)  # the parent reports the reason
        if self._of:
            return
        try:
            # Fails here if files run out: a process that fails while it starts ends the forking process too.
            with ExitStack() as opened:
                for _ in range(_FILES_EACH * self._workers + _FILES_FOR_ALL):
                    opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
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
        """Return True if the answers of some items have not been taken yet."""
        return any(self._at.values())

    def has_room(self, depth: int = 1) -> bool:
        """Return True if some process has fewer than `depth` items."""
        return not self._of or any(len(items) < depth for items in self._at.values())

    def give(self, name: Any, work: Callable[[Any], Any], item: Any) -> None:
        """Give an item to the process with the fewest items; `name`: its name in the answers of `take`.

        Among equals it goes to the process that has waited longest for a new item. Raises as `begin`.
        """
        self.begin()
        worker = min(self._at, key=lambda each: len(self._at[each]))
        self._at[worker].append((name, item))
        self._at[worker] = self._at.pop(worker)  # to the end
        with self._deaths():
            worker.send((work, item))

    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return the finished items: the name of each with the result of `work`, or the exception that it raised.

        `wait`: block until an item is finished, if there is any. Raises EdgesimError if a process died.
        """
        busy = [worker for worker, items in self._at.items() if items]
        found = []
        with self._deaths():
            ready = connection.wait(busy, None if wait else 0.0) if busy else []
            for worker in cast("list[Connection]", ready):
                answer = worker.recv()
                self._served = True
                found.append((self._at[worker].popleft()[0], answer))
        return found

    def _start_all(self) -> None:
        context = get_context("forkserver")
        lifeline, kept = context.Pipe(duplex=False)
        self._kept.append(kept)
        util.Finalize(self, _end_all, (self._of, self._kept), exitpriority=10)  # also if the pool is never closed
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
        """Turn errors of a dead process into EdgesimError."""
        try:
            yield
        except (EOFError, OSError) as error:  # OSError also if an answer is cut off in the middle
            doing = " or ".join(filter(None, (self._doing(items[0][1]) for items in self._at.values() if items)))
            reason = self._why_one_died(doing)
            self.close()
            raise EdgesimError(f"{self._name}: {reason}") from error

    def _why_one_died(self, doing: str) -> str:
        script = Path(vars(sys.modules["__main__"]).get("__file__") or "")
        if not self._served and script.is_file() and b"__main__" not in script.read_bytes():
            return (
                f"a worker process died as it loaded {script}, which every worker does; "
                'the script has to start its runs below a line `if __name__ == "__main__":`'
            )
        return f"a worker process died{f' at {doing}' if doing else ''}; with too little memory use fewer"


def warm_up(*modules: str) -> None:
    """Start the process from which workers are forked, and load their modules there while this process goes on.

    `modules`: further modules to load. Of several calls the first counts. The forking process ends with this one.
    """
    resource_tracker.ensure_running()  # its start unblocks signals, so it must come first
    get_context("forkserver").set_forkserver_preload([*_PRELOADED, *modules])
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in path}
    os.environ.update(path)  # so that it imports from the same places as this process
    try:
        with _held(STOP_SIGNALS):  # only this process handles them
            forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def cannot_start(name: str, workers: int, error: OSError | RuntimeError) -> Exception:
    """Return the error to raise if processes or their shared memory cannot be created."""
    told = error.strerror if isinstance(error, OSError) else None
    reason = (told or str(error)).rpartition(": ")[2].removesuffix(f" ({EMFILE})")
    return EdgesimError(f"{name}: cannot start {workers} processes: {reason}")


def is_loading_main() -> bool:
    """Return True in a worker process that still loads its parent's script, which must start nothing."""
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
    """Block signals, so that processes started meanwhile inherit the block; only this process handles them."""
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
    """Run a worker process: answer items until the parent ends.

    The end of the parent closes its end of the lifeline, for which a thread waits. On Linux this also ends the process
    from which this one was forked, and prctl ends this process with that one even if it hangs.
    """

    def end_with_parent() -> None:
        with suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os._exit(1)

    for each in STOP_SIGNALS:  # only the parent handles them
        signal.signal(each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    prctl = c_function("prctl")
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ.clear()  # the environment of the forking process
    os.environ.update(environment)
    os.chdir(folder)
    if start:
        start(*given)
    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            function, item = work.recv()
            work.send(answer(function, item))
