"""Ray: a cluster, a pool of its processes, and answers that all of its machines share.

Work of a lost machine is done again on another one. One process of this machine alone writes the file of answers.
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
from edgesim.execution.processes import Pool, answer
from edgesim.execution.result_cache import FOLDER, ROWS, FileRows
from edgesim.files.loaded_code import LoadedCode, check_same, loaded_here
from edgesim.files.reading import in_short, quoted
from edgesim.learning.data.dataset import Numbers
from edgesim.learning.train.torch_settings import plain_torch

_ADDRESS = "RAY_ADDRESS"  # the environment variable that Ray's own programs read
PATIENCE_S = 10.0  # for a machine that answers
_TRY_S = 1.0  # between two looks whether Ray answers, and for the answer
_QUIET = {"log_to_driver": False, "logging_level": "error"}
_UNTOLD = {"RAY_USAGE_STATS_ENABLED": "0"}  # nothing is sent to anybody


def check_installed(key: str) -> None:
    """Raise ConfigError that names `key` where Ray is not installed. It is not loaded."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # a folder of that name is no module
        raise ConfigError(f'{key}: ray is not installed; pip install "edgesim[ray]"')


class RayCluster:
    """The connection of this process to a cluster."""

    def __init__(self, key: str, workers: int, address: str | None = None) -> None:
        """Connect to `address`, else to RAY_ADDRESS, else start a cluster of so many CPUs here.

        In a process that is connected already that connection is used, and left open. `key`: what errors name. Raises
        ConfigError if Ray is not installed, or nobody is at the address.
        """
        check_installed(key)
        address = address or os.environ.get(_ADDRESS)
        if address and "://" in address:
            raise ConfigError(
                f"{key}: a Ray address is HOST:PORT or auto, and this a machine of it, got {quoted(address)}"
            )
        if address:
            _check_answers(key, address)
        self._folder: Path | None = None
        self._is_open = True
        with _handlers_kept(), _told_nobody():
            import ray  # takes half a second

            self._owns = not ray.is_initialized()
            try:
                if self._owns and address:
                    ray.init(address=address, **_QUIET)
                elif self._owns:
                    self._start_here(workers)
            except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
                self.close()
                where = f"cannot connect to {quoted(address)}" if address else "cannot start here"
                raise ConfigError(f"{key}: Ray {where}: {in_short(str(error))}") from error
            except BaseException:
                self.close()
                raise
        travel_as_arrays()

    def close(self) -> None:
        """Leave the cluster, which ends what this process has running there; end one that was started.

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

    def _start_here(self, workers: int) -> None:
        import ray

        self._folder = Path(tempfile.mkdtemp(prefix="edgesim-ray-"))  # else its logs are left
        ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=str(self._folder), **_QUIET)


def services() -> tuple[Service, ...]:
    """Return the Ray processes without which this process cannot use the cluster that it is connected to."""
    import ray

    context = ray.get_runtime_context()
    (here,) = (node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
    return Service("head", context.gcs_address), Service("raylet on this machine", raylet)


class Service:
    """A Ray process at an address, which is gone when it does not answer there any more.

    A process that cannot be reached from this machine at first is never gone: Ray has other ways to it.
    """

    def __init__(self, name: str, address: str) -> None:
        """`name`: for messages. `address`: HOST:PORT."""
        self.name = name
        self.address = address
        self._in_reach = self._answers()
        self._tried_s = monotonic()
        self._silent_since_s: float | None = None

    def is_gone(self) -> bool:
        """Return whether it has answered no try for PATIENCE_S. It is tried once a second, for a second."""
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
    """Connect to HOST:PORT and hang up. Raises OSError, ValueError or OverflowError if there is no answer."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s).close()


def _check_answers(key: str, address: str) -> None:
    """Raise ConfigError if nobody is at HOST:PORT, for which Ray would wait minutes."""
    if ":" not in address:
        return  # as "auto" says where by itself
    try:
        _connect(address, PATIENCE_S)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"{key}: nobody answers at the Ray address {quoted(address)}: {error}") from error


def travel_as_arrays() -> None:
    """Let tensors and data sets that this process sends lie in Ray's memory as arrays, which no process unpacks.

    A tensor that comes is a copy, as who gets it may write; the data set is not: all processes of a machine read one.
    """
    from ray.util import register_serializer

    register_serializer(Tensor, serializer=_array, deserializer=_tensor)
    register_serializer(Numbers, serializer=_sent_numbers, deserializer=_numbers)


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.copy(order="K"))


def _sent_numbers(numbers: Numbers) -> tuple[np.ndarray, str]:
    return numbers.array, numbers.digest  # not as the name of a file, which other machines do not have


def _numbers(sent: tuple[np.ndarray, str]) -> Numbers:
    array, digest = sent
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # and nobody writes
        return Numbers(torch.from_numpy(array), digest=digest)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give SIGTERM back to who handled it: Ray takes it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is not before:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _told_nobody() -> Iterator[None]:
    """Let Ray start with its reports to its makers switched off."""
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


_TRIES = 5  # of an item, or of beginning at all, before it is given up: the processes or machines at it were lost
_TURN_S = 2.0  # of waiting for an answer, between two looks whether Ray answers
_DEPTH = 2  # items that a process is sent at once, if so many are given
SAME = ("edgesim", "torch", "numpy")  # whose versions decide results


class _Beginning(NamedTuple):
    """What a process has to have before its first item."""

    path: list[str]  # where modules are looked for
    versions: dict[str, str]
    code: LoadedCode  # of plug-ins
    start: bytes  # a function and its arguments, pickled, as their modules are found by `path`


class _Given(NamedTuple):
    """An item as it was given."""

    name: Any
    item: Any
    packed: bytes  # what is to be done with the item
    references: tuple[Any, ...]
    tries: int = 0  # that were cut off


class RayPool(Pool):
    """Processes of a cluster, each on a CPU of its own. There may be fewer of them while a machine is missing.

    `start(*arguments)` is called in each process before its first item; the arguments lie in the memory of the cluster
    once. `name` begins messages; `doing(item)`: what a process was at, in its words.
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
        self._beginning: dict[Any, Any] = {}  # processes by what stands for their being ready
        self._ready: dict[Any, int] = {}  # processes, and how many items they are at
        self._at: dict[Any, tuple[Any, _Given]] = {}  # processes and items by what stands for the answer
        self._lost = 0  # processes, since one was ready

    def begin(self) -> None:
        """Let processes load what they need while this one goes on. May be called twice."""
        while len(self._beginning) + len(self._ready) < self._workers:
            process = self._make()
            self._beginning[process.begin.remote()] = process

    def close(self) -> None:
        """End the processes at once, whatever they are at. May be called twice."""
        import ray

        for process in (*self._beginning.values(), *self._ready) if ray.is_initialized() else ():
            ray.kill(process)
        self._forget()

    def _forget(self) -> None:
        for each in (self._waiting, self._beginning, self._ready, self._at):
            each.clear()

    def is_busy(self) -> bool:
        """Return whether items have been given whose answers were not taken."""
        return bool(self._at or self._waiting)

    def has_room(self, depth: int = 1) -> bool:
        """Return whether fewer items were given than so many for each process that there is to be."""
        return len(self._at) + len(self._waiting) < depth * self._workers

    def give(self, name: Any, work: Callable[..., Any], item: Any, *references: Any) -> None:
        """Let a process do one more item; `work` gets what the references refer to after it."""
        self._waiting.append(_Given(name, item, pickle.dumps((work, item)), references))
        self.begin()
        self._hand_out()

    def take(self, wait: bool) -> list[tuple[Any, Any]]:
        """Return what is done by now; see edgesim.execution.processes.Pool.

        Raises EdgesimError if the processes or machines that were at an item have died time and again, or cannot begin,
        or the cluster is gone.
        """
        import ray

        found: list[tuple[Any, Any]] = []
        while self.is_busy():
            self._check_services()
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

    def _check_services(self) -> None:
        """Raise EdgesimError if the cluster is gone."""
        for each in self._services:
            if each.is_gone():
                self._forget()  # to kill a process that the head has not heard of would wait for the head
                raise EdgesimError(
                    f"{self._name}: the Ray cluster is gone: its {each.name} {each.address} has not answered for "
                    f"{PATIENCE_S:g} s; what was finished is kept"
                )

    def _hand_out(self) -> None:
        """Send items that wait to processes that are ready, each to one that is at the fewest."""
        while self._waiting and self._ready:
            process = min(self._ready, key=lambda each: self._ready[each])
            if self._ready[process] >= _DEPTH:
                return
            given = self._waiting.popleft()
            self._ready[process] += 1
            self._at[process.do.remote(given.packed, *given.references)] = process, given

    def _begun(self, reference: Any) -> list[tuple[Any, Any]]:
        """Take note of a process that is ready, or was lost before it was."""
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
        """Return the name of an item and its answer; nothing if its process was lost: it is then done again."""
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
    """A process of the cluster; what `beginning` refers to is looked at when it begins."""

    def __init__(self, beginning: Sequence[Any]) -> None:
        self._beginning = beginning

    def begin(self) -> Exception | None:
        """Get ready; return why that cannot be."""
        error: Exception | None = answer(_begin, *self._beginning)
        return error

    def do(self, packed: bytes, *given: Any) -> Any:
        """Do an item; return the exception that it raised."""
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
    """Raise EdgesimError if this machine has other versions of what decides results."""
    for package, theirs in wanted.items():
        if version(package) != theirs:
            raise EdgesimError(
                f"machine {platform.node()} has {package} {version(package)}, which has to be {theirs}, as where the "
                "cluster is used from"
            )


class RayRows:
    """Rows that a process of this machine reads and writes; can be sent to any process of the cluster."""

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
        """Do nothing: others use them."""

    def _told(self, what: str, *given: bytes) -> Any:
        import ray

        found = ray.get(self._holder.do.remote(what, *given))
        if isinstance(found, Exception):
            raise found
        return found


class _Holder:
    """The process that has the file."""

    def __init__(self, file: Path) -> None:
        self._rows = FileRows(file)

    def do(self, what: str, *given: bytes) -> Any:
        """Return what a function of the rows gives, or the exception that it raises."""
        return answer(getattr(self._rows, what), *given)


@contextmanager
def rows_here(folder: Path) -> Iterator[RayRows]:
    """Give the rows of the answers of a folder, held by a process of this machine while the with-block lasts."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holder = ray.remote(num_cpus=0, scheduling_strategy=here)(_Holder).remote(folder / FOLDER / ROWS)
    try:
        yield RayRows(holder)
    finally:
        ray.kill(holder)
