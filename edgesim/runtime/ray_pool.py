"""Processes of a Ray cluster that work items off. What a lost machine was at is done again elsewhere."""

from __future__ import annotations

import pickle
import platform
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from edgesim.core.errors import EdgesimError
from edgesim.files.loaded_code import LoadedCode, check_same, loaded_here
from edgesim.files.reading import in_short
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runtime.pool import Pool, answer
from edgesim.runtime.ray_cluster import PATIENCE_S, services, travel_as_arrays

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
        """Return what is done by now; see edgesim.runtime.pool.Pool.

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
