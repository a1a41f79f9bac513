"""Users' code in this process: what it changes beyond its own objects is put back.

Functions of NumPy and torch that it replaces, and threads that it leaves running, stay. No torch.
"""

from __future__ import annotations

import decimal
import faulthandler
import gc
import io
import locale
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import in_short
from edgesim.learning.train.torch_settings import restored_torch

_MODULES = (
    *("builtins", "contextlib", "decimal", "faulthandler", "functools", "gc", "hashlib", "io", "itertools", "json"),
    *("locale", "logging", "math", "os", "posixpath", "pickle", "random", "signal", "socket", "sys", "tempfile"),
    *("threading", "time", "warnings", "weakref"),
)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_RINGS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)  # what they send, which ends a process by default
_ABSENT = object()
_GRACE_S = 5.0  # from the end of a call's time until its worker process is ended


# --- what is put back ---------------------------------------------------------------------------------------------


@contextmanager
def put_back() -> Iterator[None]:
    """Put settings of this process back after a block: folder, environment, streams, logging, signals, torch.

    Raises EdgesimError if one cannot be put back, or not even be read, as the process is then unfit for more.
    """
    torch = ExitStack()
    kept: list[list[Any]] = [sys.path, sys.argv, sys.meta_path, sys.path_hooks]
    lists = [(each, list(each)) for each in kept]
    with broken_in_one_line():
        settings = [(setting, setting.read()) for setting in _SETTINGS]
        attributes = [(owner, name, getattr(owner, name)) for owner, name in _ATTRIBUTES]
        loggers, handlers = _loggers(), _handlers()
        torch.enter_context(restored_torch() if "torch" in sys.modules else nullcontext())
        for number in _RINGS:
            if handlers.get(number) == signal.SIG_DFL:
                signal.signal(number, signal.SIG_IGN)  # so that a timer of the code ends nothing but its wait
    streams = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = map(_Unclosed, streams)

    def restore() -> None:
        sys.stdin, sys.stdout, sys.stderr = streams
        for owner, name, value in attributes:
            setattr(owner, name, value)
        for each, content in lists:
            each[:] = content
        failed = []
        for setting, value in settings:
            try:
                if setting.read() != value:
                    setting.write(value)
            except Exception as error:  # such as of a folder that is gone; what comes after is put back all the same
                failed.append(error)
        _put_back_loggers(loggers)
        _put_back_handlers(handlers)
        if failed:
            raise failed[0]

    with warnings.catch_warnings():
        try:
            yield
        finally:
            with broken_in_one_line():
                restore()
                torch.close()


@contextmanager
def broken_in_one_line() -> Iterator[None]:
    """Turn errors of a block that reads or puts back this process into EdgesimError: it is unfit for more."""
    try:
        yield
    except Exception as error:  # functions that it needs are gone, for one
        text = f"{name_of(error)}: {text_of(error)}"
        raise EdgesimError(f"the called code has broken its process: {text}") from error


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:  # it is gone
        return None


def _read_umask() -> int:
    os.umask(before := os.umask(0o22))
    return before


def _set_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _decimals() -> tuple[int, str]:
    context = decimal.getcontext()
    return context.prec, context.rounding


def _set_decimals(before: tuple[int, str]) -> None:
    decimal.getcontext().prec, decimal.getcontext().rounding = before


_SETTINGS = (
    _Setting(_folder, lambda folder: None if folder is None else os.chdir(folder)),
    _Setting(lambda: dict(os.environ), _set_environment),
    _Setting(_read_umask, os.umask),
    _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting(sys.getswitchinterval, sys.setswitchinterval),
    _Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    _Setting(sys.gettrace, sys.settrace),
    _Setting(sys.getprofile, sys.setprofile),
    _Setting(threading.gettrace, lambda trace: threading.settrace(trace)),
    _Setting(threading.getprofile, lambda profile: threading.setprofile(profile)),
    _Setting(threading.stack_size, threading.stack_size),
    _Setting(gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()),
    _Setting(gc.get_threshold, lambda threshold: gc.set_threshold(*threshold)),
    _Setting(faulthandler.is_enabled, lambda enabled: faulthandler.enable() if enabled else faulthandler.disable()),
    _Setting(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    _Setting(_decimals, _set_decimals),
    _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    _Setting(np.geterr, lambda errors: np.seterr(**errors)),
    _Setting(np.get_printoptions, lambda options: np.set_printoptions(**options)),
    _Setting(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    _Setting(
        lambda: [signal.getitimer(timer) for timer in _TIMERS],
        lambda before: [signal.setitimer(timer, *times) for timer, times in zip(_TIMERS, before, strict=True)],
    ),
)
_ATTRIBUTES = (
    *((sys, name) for name in ("path", "argv", "meta_path", "path_hooks", "excepthook", "displayhook")),
    *((sys, name) for name in ("unraisablehook", "__stdout__", "__stderr__", "dont_write_bytecode")),
    *((threading, "excepthook"), (tempfile, "tempdir"), (logging, "raiseExceptions"), (logging, "_loggerClass")),
)


def _loggers() -> list[tuple[logging.Logger, tuple[Any, ...], list[logging.Handler], list[Any]]]:
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return [
        (each, (each.level, each.disabled, each.propagate), list(each.handlers), list(each.filters))
        for each in (logging.root, *known)
    ] + [(logging.root, (logging.root.manager.disable,), [], [])]


def _put_back_loggers(before: list[tuple[logging.Logger, tuple[Any, ...], list[logging.Handler], list[Any]]]) -> None:
    *loggers, (_, (disabled,), _, _) = before
    if logging.root.manager.disable != disabled:
        logging.disable(disabled)
    for logger, facts, handlers, filters in loggers:
        if (logger.level, logger.disabled, logger.propagate) != facts:
            logger.setLevel(facts[0])
            _, logger.disabled, logger.propagate = facts
        logger.handlers[:] = handlers
        logger.filters[:] = filters


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():  # which alone can set them
        return {}
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in handlers.items() if handler is not None}


def _put_back_handlers(before: dict[int, Any]) -> None:
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


class _Unclosed:
    """A standard stream that the code of a block cannot close."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        """Do nothing."""

    def detach(self) -> Any:
        """Raise io.UnsupportedOperation."""
        raise io.UnsupportedOperation("detach")


class NamesKept:
    """Names of Python's modules, and the modules themselves: those of the start of the block are put back at its end.

    It is a class, as a generator needs names that may be gone.
    """

    def __enter__(self) -> None:
        kept = [vars(sys.modules[name]) for name in _MODULES if name in sys.modules]
        self._names = [(names, dict(names)) for names in (*kept, sys.modules)]

    def __exit__(self, *_: object) -> None:
        for names, before in self._names:
            for name, value in before.items():
                if names.get(name, _ABSENT) is not value:
                    names[name] = value


# --- calls --------------------------------------------------------------------------------------------------------


@contextmanager
def worker_ended(seconds: float) -> Iterator[None]:
    """End this process if it is a worker and a block goes on long after `seconds`, as C code may."""
    if seconds == inf or multiprocessing.parent_process() is None:
        yield
        return
    with Path(os.devnull).open("w") as nowhere:
        faulthandler.dump_traceback_later(2 * seconds + _GRACE_S, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def own_interrupts() -> Iterator[Callable[[], bool]]:
    """Tell whether a signal asked this process to stop in a block, and not its code by KeyboardInterrupt."""
    pressed = [False]
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def noting(before: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def note(number: int, frame: Any) -> None:
            pressed[0] = True
            before(number, frame)

        return note

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if callable(before):
                signal.signal(number, noting(before))
                stack.callback(signal.signal, number, before)
        yield lambda: pressed[0]


def name_of(error: BaseException) -> str:
    """Return the name of an exception's class, also if that says another one or none."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def text_of(error: BaseException) -> str:
    """Return the text of an exception on one line, also if its class cannot say it."""
    try:
        return in_short(error)
    except BaseException:  # its __str__ may raise anything
        return "(its text cannot be had)"
