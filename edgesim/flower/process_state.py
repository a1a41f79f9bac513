"""State of a process that an app's code may change beyond its own objects. It is put back when the code has ended."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from edgesim.foreign import isolation


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and, where it is loaded, torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def single_thread() -> None:
    """Let torch compute on one thread, so that results do not depend on the host's cores."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@contextmanager
def put_back() -> Iterator[None]:
    """Restore generators and all that `isolation.put_back` restores after a block."""
    with isolation.broken_in_one_line():
        restoring = _generators()
    with isolation.put_back():
        try:
            yield
        finally:
            with isolation.broken_in_one_line():
                _generators_back(restoring)


def _generators_back(restoring: list[Callable[[], None]]) -> None:
    for one in restoring:
        one()


class StateOfPart:
    """Generators, settings, folder and environment of one part of an app, which continues with what it left."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state: list[Callable[[], None]] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a block with this state; at first with that of the process and seeded generators, on one thread."""
        before = _restoring()
        if self._state is None:
            seed_all(self._seed)
            single_thread()
        for one in self._state or ():
            one()
        try:
            yield
        finally:
            self._state = _restoring()
            for one in before:
                one()


def _generators() -> list[Callable[[], None]]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    restore: list[Callable[[], None]] = [
        lambda: random.setstate(python),
        lambda: np.random.set_state(numpy),  # noqa: NPY002
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        state = torch.get_rng_state()
        restore.append(lambda: torch.set_rng_state(state))
        if torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            restore.append(lambda: torch.cuda.set_rng_state_all(states))
    return restore


def _torch_settings() -> list[Callable[[], None]]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    threads, grad, dtype = torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )

    def threads_back() -> None:
        if torch.get_num_threads() != threads:  # setting them costs time
            torch.set_num_threads(threads)

    return [
        threads_back,
        lambda: torch._C._set_grad_enabled(grad),
        lambda: torch.set_default_dtype(dtype),
        lambda: torch.use_deterministic_algorithms(deterministic, warn_only=warn_only),
    ]


def _restoring() -> list[Callable[[], None]]:
    """Return functions that put the process back into the state that it has now."""
    folder, environment, path = os.getcwd(), dict(os.environ), list(sys.path)  # noqa: PTH109
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), root.manager.disable
    recursion, streams = sys.getrecursionlimit(), (sys.stdout, sys.stderr)

    def environment_back() -> None:
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)

    def logging_back() -> None:
        root.handlers[:] = handlers
        if (root.level, root.manager.disable) != (level, disabled):  # setting them costs time
            root.setLevel(level)
            logging.disable(disabled)

    def python_back() -> None:
        sys.path[:] = path
        sys.setrecursionlimit(recursion)
        sys.stdout, sys.stderr = streams

    def folder_back() -> None:
        with suppress(OSError):  # it is gone
            os.chdir(folder)

    return [*_generators(), *_torch_settings(), folder_back, environment_back, logging_back, python_back]


def exception_line(error: BaseException, prefix: str) -> str:
    """Return one line about an exception, with the innermost line of a file whose path begins with `prefix`."""
    name, text = isolation.name_of(error), isolation.text_of(error)
    told = name if text == name else f"{name}: {text}"
    place, step = "", error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file.startswith(prefix):
            place = f" ({file.removeprefix(prefix)}:{step.tb_lineno})"
        step = step.tb_next
    return told + place
