"""Ray: a cluster, a pool of its processes, and answers that all of its machines share.

The work of a lost machine is repeated on another one. Only one process of this machine writes the file of answers.
"""

from __future__ import annotations

import os
import pickle
import platform
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.execution.memo import FOLDER
from edgesim.execution.processes import Pool, answer
from edgesim.execution.result_cache import ROWS, FileRows
from edgesim.files.loaded_code import LoadedCode, check_same, loaded_here
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.dataset import Numbers
from edgesim.learning.train.torch_settings import plain_torch

_ADDRESS = "RAY_ADDRESS"  # the environment variable that Ray's own programs read
PATIENCE_S = 10.0  # longest wait for an answer of a machine
_TRY_S = 1.0  # interval between two tries to reach Ray, and longest wait of a try
_QUIET = {"log_to_driver": False, "logging_level": "error"}
_UNTOLD = {"RAY_USAGE_STATS_ENABLED": "0"}  # no usage statistics are sent


def check_installed(key: str) -> None:
    """Raise ConfigError that names `key` if Ray is not installed, without loading it."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # a folder of that name is no package
        raise ConfigError(f'{key}: ray is not installed; pip install "edgesim[ray]"')


class RayCluster:
    """The connection of this process to a cluster."""

    def __init__(self, key: str, workers: int, address: str | None = None) -> None:
        """Connect to `address`, else to RAY_ADDRESS, else start a cluster of `workers` CPUs on this machine.

        A process that is connected already uses that connection and leaves it open. `key`: the key that errors name.
        Raises ConfigError if Ray is not installed, or does not answer at the address.
        """
        check_installed(key)
        address = address or os.environ.get(_ADDRESS)
        if address and "://" in address:
            raise ConfigError(
                f"{key}: a Ray address is HOST:PORT or auto, and this a machine of it, got {quoted(address)}"
            )
        if address and ":" in address:  # "auto" finds the address itself
            try:  # Ray would wait for minutes
                _connect(address, PATIENCE_S)
            except (OSError, ValueError, OverflowError) as error:
                raise ConfigError(f"{key}: no Ray cluster answers at {quoted(address)}: {error}") from error
        self._folder: Path | None = None
        self._is_open = True
        with _handlers_kept(), _without_reports():
            import ray  # takes half a second

            self._owns = not ray.is_initialized()
            try:
                if self._owns and address:
                    ray.init(address=address, **_QUIET)
                elif self._owns:
                    self._folder = Path(tempfile.mkdtemp(prefix="edgesim-ray-"))  # removed with its logs in `close`
                    here = {"address": "local", "num_cpus": workers, "_temp_dir": str(self._folder)}
                    ray.init(include_dashboard=False, **here, **_QUIET)
            except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
                self.close()
                where = f"cannot connect to {quoted(address)}" if address else "cannot start here"
                raise ConfigError(f"{key}: Ray {where}: {in_short(str(error))}") from error
            except BaseException:
                self.close()
                raise
        travel_as_arrays()

    def close(self) -> None:
        """Leave the cluster, which ends the processes that this one runs there; stop a cluster started by this object.

        May be called twice.
        """
        if not self._is_open:
            return
        self._is_open = False
        if self._owns:
            import ray

            with _handlers_kept():
                ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def services() -> tuple[Service, ...]:
    """Return the Ray processes that this process needs to use its cluster."""
    import ray

    context = ray.get_runtime_context()
    (here,) = (node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return Service("head", context.gcs_address), Service("raylet on this machine", raylet)


class Service:
    """A Ray process at an address, which is gone once it no longer answers there.

    A process that this machine cannot reach at first is never considered gone, as Ray may reach it in another way.
    """

    def __init__(self, name: str, address: str) -> None:
        """`name`: for messages. `address`: HOST:PORT."""
        self.name = name
        self.address = address
        self._in_reach = self._answers()
        self._tried_s = monotonic()
        self._silent_since_s: float | None = None

    def is_gone(self) -> bool:
        """Return True if it has not answered for PATIENCE_S. It is tried once a second, for a second."""
        now_s = monotonic()
        if not self._in_reach or now_s - self._tried_s < _TRY_S:
            return False
        self._tried_s = now_s
        if self._answers():
            self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        return now_s - self._silent_since_s >= PATIENCE_S

    def _answers(self) -> bool:
        try:
            _connect(self.address, _TRY_S)
        except OSError:
            return False
        return True


def _connect(address: str, patience_s: float) -> None:
    """Connect to HOST:PORT and close the connection. Raises OSError, ValueError or OverflowError without an answer."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s).close()


def travel_as_arrays() -> None:
    """Send tensors and data sets as arrays in Ray's shared memory, without pickling.

    A received tensor is a copy, as its receiver may write to it. A data set is not copied: all processes of a machine
    read the same memory.
    """
    from ray.util import register_serializer

    register_serializer(
        Tensor,
        serializer=lambda tensor: tensor.detach().cpu().numpy(),
        deserializer=lambda array: torch.from_numpy(array.copy(order="K")),
    )
    # not as the name of a file, which other machines do not have
    register_serializer(Numbers, serializer=lambda sent: (sent.array, sent.digest), deserializer=_numbers)


def _numbers(sent: tuple[np.ndarray, str]) -> Numbers:
    array, digest = sent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # no process writes it
        return Numbers(torch.from_numpy(array), digest=digest)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is not before:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_reports() -> Iterator[None]:
    """Start Ray with its usage reports switched off."""
    before = {name: os.environ.get(name) for name in _UNTOLD}
    os.environ.update(_UNTOLD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_TRIES = 5  # attempts at an item, or at starting a process, before the pool gives up
_TURN_S = 2.0  # wait for an answer between two checks that Ray answers
_DEPTH = 2  # most items that a process has at once
SAME = ("edgesim", "torch", "numpy")  # packages whose versions decide results


class _Beginning(NamedTuple):
    """Data that a process needs before its first item."""

    path: list[str]  # folders in which modules are looked up
    versions: dict[str, str]
    code: LoadedCode  # of plug-ins
    start: bytes  # a pickled function, unpickled once its module can be found by `path`


class _Given(NamedTuple):
    """An item to work on."""

    name: Any
    item: Any
    packed: bytes  # pickled function and item
    references: tuple[Any, ...]
    tries: int = 0  # failed attempts


class RayPool(Pool):
    """Processes of a cluster, each on a CPU of its own. There may be fewer of them while a machine is missing.

    `start(*arguments)` is called in each process before its first item; the cluster's memory holds the arguments once.
    `name` begins messages, and `doing(item)` describes an item in them.
    """

    def __init__(
        self,
        name: str,
        workers: int,
        start: Callable[..., Any],
        arguments: Sequence[Any] = (),
        doing: Callable[[Any], str] = lambda item: "",
    ) -> None:
        import ray

        self._name = name
        self._workers = workers
        self._doing = doing
        self._services = services()
        versions = {package: version(package) for package in SAME}
        path = [path for path in sys.path if path]
        beginning = _Beginning(path, versions, loaded_here(), pickle.dumps(start))
        self._make = partial(ray.remote(num_cpus=1)(_Process).remote, [ray.put(beginning), ray.put(tuple(arguments))])
        self._waiting: deque[_Given] = deque()
        self._beginning: dict[Any, Any] = {}  # processes by the reference to the result of `begin`
        self._ready: dict[Any, int] = {}  # number of items of each process that is ready
        self._at: dict[Any, tuple[Any, _Given]] = {}  # processes and items by the reference to the answer
        self._lost = 0  # processes lost since the last one was ready

    def begin(self) -> None:
        """Start missing processes, which load their modules while this one goes on. May be called twice."""
        while len(self._beginning) + len(self._ready) < self._workers:
            process = self._make()
            self._beginning[process.begin.remote()] = process

    def close(self) -> None:
        """End the processes at once, whatever they are doing. May be called twice."""
        import ray

        for process in (*self._beginning.values(), *self._ready) if ray.is_initialized() else ():
            ray.kill(process)
        self._forget()

    def _forget(self) -> None:
        for each in (self._waiting, self._beginning, self._ready, self._at):
            each.clear()

    def is_busy(self) -> bool:
        """Return True if the answers of some items have not been taken yet."""
        return bool(self._at or self._waiting)

    def has_room(self, depth: int = 1) -> bool:
        """Return True if there are fewer than `depth` items for each planned process."""
        return len(self._at) + len(self._waiting) < depth * self._workers

    def give(self, name: Any, work: Callable[..., Any], item: Any, *references: Any) -> None:
        """Give a process one more item; `work` gets the item and the values of the references."""
        self._waiting.append(_Given(name, item, pickle.dumps((work, item)), references))
        self.begin()
        self._hand_out()

    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return the finished items; see edgesim.execution.processes.Pool.

        Raises EdgesimError if the processes of an item died _TRIES times, processes cannot start, or the cluster is
        gone.
        """
        import ray

        found: list[tuple[Any, Any]] = []
        while self.is_busy():
            if gone := next((each for each in self._services if each.is_gone()), None):
                self._forget()  # killing a process that the head does not know would wait for the head
                raise EdgesimError(
                    f"{self._name}: the Ray cluster is gone: its {gone.name} {gone.address} has not answered for "
                    f"{PATIENCE_S:g} s; what was finished is kept"
                )
            under_way = [*self._at, *self._beginning]
            waits = wait and not found
            if waits:
                ray.wait(under_way, num_returns=1, timeout=_TURN_S)
            done, _ = ray.wait(under_way, num_returns=len(under_way), timeout=0)
            if not done and not waits:
                break
            for each in done:
                found += self._answered(each) if each in self._at else self._begun(each)
            self.begin()
            self._hand_out()
        return found

    def _hand_out(self) -> None:
        """Send waiting items to ready processes, each to the process with the fewest items."""
        while self._waiting and self._ready:
            process = min(self._ready, key=lambda each: self._ready[each])
            if self._ready[process] >= _DEPTH:
                return
            given = self._waiting.popleft()
            self._ready[process] += 1
            self._at[process.do.remote(given.packed, *given.references)] = process, given

    def _begun(self, reference: Any) -> list[tuple[Any, Any]]:
        """Note that a process is ready, or was lost before; return no answers."""
        import ray

        process = self._beginning.pop(reference, None)
        if process is None:
            return []
        try:
            error = ray.get(reference)
        except ray.exceptions.RayError as lost:
            self._lost += 1
            if self._lost == _TRIES:
                raise self._given_up("begin", lost) from lost
            return []
        if error is not None:
            self.close()
            raise error
        self._ready[process], self._lost = 0, 0
        return []

    def _answered(self, reference: Any) -> list[tuple[Any, Any]]:
        """Return the name of an item and its answer; if its process was lost, queue the item again and return none."""
        import ray

        process, given = self._at.pop(reference)
        try:
            answered = given.name, ray.get(reference)
        except ray.exceptions.RayError as lost:
            self._ready.pop(process, None)
            if given.tries + 1 == _TRIES:
                raise self._given_up(self._doing(given.item) or "an item", lost) from lost
            self._waiting.appendleft(given._replace(tries=given.tries + 1))
            return []
        if process in self._ready:
            self._ready[process] -= 1
        return [answered]

    def _given_up(self, what: str, error: Exception) -> EdgesimError:
        self.close()
        reason = f"{type(error).__name__}: {in_short(str(error))}"
        return EdgesimError(f"{self._name}: processes of the cluster died {_TRIES} times at {what}; the last: {reason}")


# --- in a process of the cluster --------------------------------------------------------------------------------------


class _Process:
    """A process of the cluster; the references in `beginning` are resolved by `begin`."""

    def __init__(self, beginning: Sequence[Any]) -> None:
        self._beginning = beginning

    def begin(self) -> Exception | None:
        """Prepare for items; return the error if this fails."""
        error: Exception | None = answer(_begin, *self._beginning)
        return error

    def do(self, packed: bytes, *given: Any) -> Any:
        """Work on an item; return its result, or the exception that it raised."""
        return answer(_do, packed, given)


@plain_torch()
def _begin(beginning: Any, arguments: Any) -> None:
    import ray

    found: _Beginning = ray.get(beginning)
    check_versions(found.versions)
    sys.path += [path for path in found.path if path not in sys.path]
    travel_as_arrays()
    pickle.loads(found.start)(*ray.get(arguments))
    check_same(found.code)


@plain_torch()
def _do(packed: bytes, given: Sequence[Any]) -> Any:
    work, item = pickle.loads(packed)
    return work(item, *given)


def check_versions(wanted: dict[str, str]) -> None:
    """Raise EdgesimError if this machine has other versions of the packages that decide results."""
    for package, theirs in wanted.items():
        if version(package) != theirs:
            raise EdgesimError(
                f"machine {platform.node()} has {package} {version(package)}, which has to be {theirs}, as where the "
                "cluster is used from"
            )


class RayRows:
    """Rows that one process of a machine reads and writes; can be sent to any process of the cluster."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder

    def get(self, id_: bytes) -> bytes | None:
        """Return a row, None if there is none. Raises ConfigError if they cannot be used."""
        row: bytes | None = self._told("get", id_)
        return row

    def put(self, id_: bytes, row: bytes) -> None:
        """Keep a row. Raises ConfigError if it cannot be written."""
        self._told("put", id_, row)

    def close(self) -> None:
        """Do nothing: other processes use the rows."""

    def _told(self, what: str, *given: bytes) -> Any:
        import ray

        found = ray.get(self._holder.do.remote(what, *given))
        if isinstance(found, Exception):
            raise found
        return found


class _Holder:
    """The process that has the file open."""

    def __init__(self, file: Path) -> None:
        self._rows = FileRows(file)

    def do(self, what: str, *given: bytes) -> Any:
        """Call `get` or `put` of the rows; return its result, or the exception that it raised."""
        calls: dict[str, Callable[..., Any]] = {"get": self._rows.get, "put": self._rows.put}
        return answer(calls[what], *given)


@contextmanager
def rows_here(folder: Path) -> Iterator[RayRows]:
    """Yield the rows of a folder's answers, which a process of this machine holds during the with-block."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holder = ray.remote(num_cpus=0, scheduling_strategy=here)(_Holder).remote(folder / FOLDER / ROWS)
    try:
        yield RayRows(holder)
    finally:
        ray.kill(holder)
