"""Device part of a Flower app: its ClientApp answers one message at a time, as in Flower's own simulation."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.core.app import Call, Called, DeviceCode
from edgesim.core.task import CountedWork
from edgesim.files.loaded_code import Unidentified
from edgesim.flower import compat
from edgesim.flower.app_modules import AppModules
from edgesim.flower.app_time import EPOCH_S, ClockOfApp, app_time
from edgesim.flower.code_digest import digest_of_app
from edgesim.flower.process_state import exception_line, put_back, seed_all, single_thread
from edgesim.foreign.counted import Counted, cpu_s, unseen_work
from edgesim.foreign.isolation import NamesKept, own_interrupts, worker_ended

_AGAIN_S = 1.0  # from one signal to the next, as code may catch the first ones
_CAUGHT = 3  # signals after which they come faster
_FASTER_S = 1e-4  # so that one arrives between two blocks that catch everything


@dataclass(frozen=True)
class FlowerDevices(DeviceCode):
    """Device part of a Flower app."""

    folder: Path
    reference: str  # "package.module:app" of the ClientApp
    run_id: int
    node_ids: tuple[int, ...]  # by device
    run_config: Mapping[str, Any]
    call_timeout_s: float = inf  # host seconds of a call
    host_flops_per_s: float | None = None  # FLOPs that a CPU second of this host counts for; None: FLOPs are counted
    digest: str = ""  # of the app's code when the run began

    def identity(self) -> str:
        """Return a digest of the app's code, Flower's version and the configuration."""
        if digest_of_app(self.folder, self.run_config) != self.digest:
            raise Unidentified(f"{self.folder} has changed since the run began")
        return self.digest

    def load(self) -> None:
        """Load the ClientApp in this process, anew. Raises ConfigError if that fails."""
        _loaded.cache_clear()
        with put_back():
            self._client()

    def call(self, call: Call, state: bytes, seed: int) -> Called:
        """Answer a message with the ClientApp."""
        with_torch = "torch" in sys.modules
        called = self._call(call, state, seed)
        if not with_torch and "torch" in sys.modules:  # loaded by this call, so that nothing was counted or seeded
            called = self._call(call, state, seed)
        return called

    def _call(self, call: Call, state: bytes, seed: int) -> Called:
        message = compat.message_from_bytes(call.content)
        context = compat.Context(
            run_id=self.run_id,
            node_id=self.node_ids[call.device],
            node_config=compat.node_config(call.device, len(self.node_ids)),
            state=compat.records_from_bytes(state),
            run_config=dict(self.run_config),
        )
        clock, measured = _DeviceClock(), _Measured(self.host_flops_per_s)
        limit = _TimeLimit(self.call_timeout_s, f"{self.folder}/")
        identity = compat.task_identity(self.run_id, self.node_ids[call.device])
        with put_back(), identity, compat.patched(compat.dates(lambda: EPOCH_S)), own_interrupts() as interrupted:
            try:
                content, kept = self._answer(message, context, seed, clock, measured, limit)
                failure, warnings = "", measured.warnings(call)
            except BaseException as error:  # SystemExit and KeyboardInterrupt of the app's code too
                if interrupted():
                    raise
                failure, warnings = exception_line(error, f"{self.folder}/"), ()
                if limit.passed:  # where it was just then depends on the host, as its reply and price must not
                    clock, measured, error = _DeviceClock(), _Measured(self.host_flops_per_s), limit.error()
                asked = compat.message_from_bytes(call.content)  # as the code may have changed the other
                content, kept = compat.message_to_bytes(compat.Message(compat.told(error), reply_to=asked)), state
        return Called(content, kept, measured.work(call, content, clock.slept_s), failure, warnings)

    def _answer(
        self, message: Any, context: Any, seed: int, clock: _DeviceClock, measured: _Measured, limit: _TimeLimit
    ) -> tuple[bytes, bytes]:
        """Return the serialised reply of the ClientApp, and the state to keep. Raises what Flower does not accept."""
        client = self._client()
        seed_all(seed)
        single_thread()
        with client.modules.entered(), app_time(clock, f"{self.folder}/"):
            with limit.held(), worker_ended(self.call_timeout_s), measured.counting(), NamesKept():
                reply = client.app(message, context)
            if limit.passed:
                raise limit.error()
            if not isinstance(reply, compat.Message):
                raise TypeError(f"the ClientApp returned {type(reply).__name__}, not a Message")
            if context.run_config != self.run_config:
                raise compat.ChangedRunConfig(
                    f"The `run_config` field of the `Context` object cannot be modified (run_id: {self.run_id})."
                )
            return compat.message_to_bytes(reply), compat.records_to_bytes(context.state)

    def _client(self) -> _Client:
        return _loaded(self.folder, self.reference, self.digest)


class _Client(NamedTuple):
    """A ClientApp with the modules of its folder."""

    modules: AppModules
    app: Any


@cache
def _loaded(folder: Path, reference: str, digest: str) -> _Client:
    modules = AppModules(folder)
    with modules.entered():
        return _Client(modules, modules.attribute(reference, compat.ClientApp))


class _DeviceClock(ClockOfApp):
    """Host clock that a sleep puts forward."""

    def __init__(self) -> None:
        self.slept_s = 0.0
        self._start_s = time.perf_counter()

    def seconds(self) -> float:
        """Return seconds of the host since the start, and of sleep."""
        return time.perf_counter() - self._start_s + self.slept_s

    def sleep(self, seconds: float) -> None:
        """Count seconds of sleep."""
        self.slept_s += seconds


class _Measured:
    """Amounts of one call."""

    def __init__(self, host_flops_per_s: float | None) -> None:
        self._host_flops_per_s = host_flops_per_s
        self._counted = Counted(0.0, 0, 0, 0, 0, None, 0.0)
        self._host_s = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count a block, also if it raises an exception."""
        start_s = cpu_s()
        counter: Any = None
        if "torch" in sys.modules:
            from edgesim.foreign.counting import Counter  # which loads torch

            counter = Counter(kinds=True)
        block: AbstractContextManager[Any] = nullcontext() if counter is None else counter
        try:
            with block:
                yield
        finally:
            self._host_s = cpu_s() - start_s
            if counter is not None:
                self._counted = counter.counted()

    def work(self, call: Call, reply: bytes, idle_s: float) -> CountedWork:
        """Return the price of the call."""
        down, up = len(call.content), len(reply)
        if self._host_flops_per_s is not None:
            flops = self._host_s * self._host_flops_per_s
            return CountedWork(flops, max(self._counted.memory_bytes, down + up), down, up, idle_s)
        memory = max(self._counted.memory_bytes, down + up)
        return CountedWork(self._counted.flops, memory, down, up, idle_s, self._counted.work)

    def warnings(self, call: Call) -> tuple[str, ...]:
        """Return a warning if the counts lack the work of a training."""
        warning = None if self._host_flops_per_s is not None else unseen_work(self._counted, call.trains)
        return () if warning is None else (warning,)


class CallTimeout(BaseException):
    """Raised in a call that takes too many seconds of the host."""


class _TimeLimit:
    """Seconds of the host that a block of code of an app may take. `passed`: it has taken more."""

    def __init__(self, seconds: float, prefix: str) -> None:
        """`prefix`: of the paths of files that are interrupted, with what they call."""
        self._seconds = seconds
        self._prefix = prefix
        self._rings = 0

    @property
    def passed(self) -> bool:
        """True if the block has taken longer, also if its code has caught all exceptions since."""
        return self._rings > 0

    def error(self) -> CallTimeout:
        """Return the error of a block that has taken longer."""
        return CallTimeout(f"the call took longer than {self._seconds:g} s of this host (app.call_timeout)")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raise CallTimeout in a block that takes longer. Only the main thread of a process can be interrupted."""
        if self._seconds == inf or threading.current_thread() is not threading.main_thread():
            yield
            return
        before, unraisable = signal.signal(signal.SIGALRM, self._ring), sys.unraisablehook

        def lost(told: Any) -> None:
            if not isinstance(told.exc_value, CallTimeout):
                unraisable(told)
            elif self._rings < _CAUGHT:
                signal.setitimer(signal.ITIMER_REAL, _FASTER_S, _AGAIN_S)

        sys.unraisablehook = lost  # a signal in a destructor or a callback of a reference interrupts that alone
        signal.setitimer(signal.ITIMER_REAL, self._seconds, _AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            sys.unraisablehook = unraisable

    def _ring(self, _number: int, frame: Any) -> None:
        self._rings += 1
        if self._rings == _CAUGHT:
            signal.setitimer(signal.ITIMER_REAL, _FASTER_S, _FASTER_S)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._prefix):
                raise self.error()
            frame = frame.f_back
