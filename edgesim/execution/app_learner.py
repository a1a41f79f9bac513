"""The device part of a user's program: run in this process or in others, from what each device keeps, or from a cache.

An answer is a function of the code, the message, what the device keeps and a seed. So it is the same in every process,
and earlier runs may have it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import nan
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from edgesim.core.app import App, AppClock, Call, Called, DeviceCode
from edgesim.core.backend import Assignment, Backend, Classes, Result, Score
from edgesim.core.errors import ContractError, EdgesimError
from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import AggregationFacts, Answer, Ready, ServerStep
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import CountedWork, Plan
from edgesim.core.update import SERVER, ModelRef, ModelState
from edgesim.core.view import View
from edgesim.execution.graph import Graph
from edgesim.execution.identity import Digests
from edgesim.execution.memo import FOLDER, Memo
from edgesim.execution.processes import ProcessPool
from edgesim.files.loaded_code import Unidentified, file_of, is_outside, is_outside_file
from edgesim.files.own_code import own_frames
from edgesim.files.reading import in_short
from edgesim.learning.train.torch_settings import plain_where_loaded

if TYPE_CHECKING:
    from edgesim.execution.result_cache import Answers

_CALLS, _SERVER = 0, 1  # streams below the key of an app; never renumber
_INLINE_BYTES = 2**18  # of a reply and a state; larger ones get a file of their own
_MOST_TOLD = 20  # warnings of different calls
_UNSEEN_READERS = ("cv2", "h5py", "jax", "lmdb", "netCDF4", "polars", "tables", "tensorflow")  # read files unseen
_OF_ANSWERS = f"/{FOLDER}/"  # which edgesim itself has open
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/lib/", "/lib/")


class ReadFile(NamedTuple):
    """A file that a call read, as it was then."""

    path: str
    nbytes: int
    changed_ns: int


class Answered(NamedTuple):
    """An answer with the files on which it depends; None: it may depend on more, so that it is not kept."""

    called: Called
    files: tuple[ReadFile, ...] | None


class _Watch:
    """Files that a call opens, as Python's audit events name them."""

    watching: ClassVar[_Watch | None] = None
    _hooked: ClassVar[bool] = False
    _modules: ClassVar[set[str]] = set()  # of the process, looked at so far
    _code: ClassVar[set[str]] = set()  # files of those from outside

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.writes = False
        if not _Watch._hooked:
            sys.addaudithook(_Watch._notice)
            _Watch._hooked = True

    @staticmethod
    def _notice(event: str, arguments: tuple[Any, ...]) -> None:
        watch = _Watch.watching
        if watch is None or event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path, flags = str(Path(os.fsdecode(arguments[0])).absolute()), arguments[2]
        if path.endswith((".py", ".pyc")) or not _counts(path):  # code counts by the modules that are loaded
            return
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            watch.writes = True
        else:
            watch.paths.add(path)

    def files(self) -> tuple[ReadFile, ...] | None:
        """Return the files that were read, as they are now; None: others may have been read or written."""
        if self.writes or any(name in sys.modules for name in _UNSEEN_READERS):
            return None
        with suppress(OSError):  # not on this system
            maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
            self.paths.update(filter(_counts, (line.split(maxsplit=5)[5] for line in maps if " /" in line)))
        # code beside the app's folder, whose own is part of the identity
        for name in sys.modules.keys() - _Watch._modules:
            _Watch._modules.add(name)
            if is_outside(name) and (file := file_of(name)):
                _Watch._code.add(str(file))
        self.paths.update(_Watch._code)
        return tuple(each for path in sorted(self.paths) if (each := _as_it_is(path)) is not None)


def _counts(path: str) -> bool:
    """Return True unless a file belongs to edgesim, to Python, to an installed package or to the system."""
    return is_outside_file(path) and not path.startswith(_SYSTEM) and _OF_ANSWERS not in path


def _as_it_is(path: str) -> ReadFile | None:
    try:
        found = Path(path).stat()
    except OSError:  # it was removed since, or never there
        return None
    return ReadFile(path, found.st_size, found.st_mtime_ns)


def _answer(item: tuple[DeviceCode, Call, bytes, int]) -> Answered:
    """Run the device part for a call, in any process."""
    code, call, state, seed = item
    watch = _Watch.watching = _Watch()
    try:
        called = code.call(call, state, seed)
    finally:
        _Watch.watching = None
    return Answered(called, watch.files())


class CallBackend(Backend):
    """Runs the device part of an app, in this process or in others."""

    def __init__(self, processes: int) -> None:
        """`processes`: 0: calls run in this process, one after the other."""
        doing = lambda item: f"the call of device {item[1].device}, {item[1].kind}"  # noqa: E731
        self._pool = ProcessPool("backend", processes, doing=doing) if processes else None
        self._processes = processes
        self.said: dict[tuple[str, str], set[int]] = {}  # kind of call and what is to be said -> devices

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of calls, each once, with the devices that they are about."""
        lines = []
        for (kind, said), devices in list(self.said.items())[:_MOST_TOLD]:
            first, more = min(devices), len(devices) - 1
            others = f" and of {more} other{'s' if more > 1 else ''}" if more else ""
            lines.append(f"app: {kind} on device {first}{others}: {said}")
        return lines

    def preload(self, app: App) -> None:
        """Let processes load what the device part needs, while this one goes on."""
        for _ in range(self._processes):
            assert self._pool is not None
            self._pool.give(None, methodcaller("preload"), app)

    def answer(self, items: Sequence[tuple[DeviceCode, Call, bytes, int]]) -> Sequence[Answered]:
        """Return the answer of each item: code, call, state of the device, and seed."""
        pool = self._pool
        if pool is None:
            return [_answer(item) for item in items]
        found: dict[int, Any] = {}
        waiting = list(enumerate(items))[::-1]
        while waiting or pool.is_busy():
            while waiting and pool.has_room():
                place, item = waiting.pop()
                pool.give(place, _answer, item)
            for place, answer in pool.take(wait=True):
                if isinstance(answer, BaseException):
                    raise answer
                if place is not None:  # else what it has loaded
                    found[place] = answer
        return [found[place] for place in range(len(items))]

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Raise ContractError: an app trains by itself."""
        raise ContractError("an app has no local rule")

    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return no scores: an app tests by itself."""
        return {}

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Return no scores: an app tests by itself."""
        return {}

    def close(self) -> None:
        """End the processes. May be called twice."""
        if self._pool is not None:
            self._pool.close()


class AppLearner:
    """Learner of a run whose values are those of an app: its server part merges, its device part trains and tests."""

    trains = True
    rounds_ahead = 0

    def __init__(
        self, app: App, backend: CallBackend | Any, devices: int, key: Key,
        answers: Answers | None = None, facts_of: Callable[[str], bytes] = str.encode,
    ) -> None:  # fmt: skip
        """`backend`: a CallBackend, or any other for a run that is only checked; `answers`: of earlier runs.

        `facts_of`: returns all on which answers depend beside the message, from the identity of the app's code.
        """
        self.backend = backend
        self.memo = Memo()
        self.graph = Graph(lambda: backend)
        self.model = ModelRef(SERVER, 0)
        self._app = app
        self._devices = devices
        self._key = key.at(Purpose.APP)
        self._answers = answers
        self._facts_of = facts_of
        self._facts: bytes | None = None  # identity of the code; None: nothing is kept
        self._digests = Digests()
        self._code: DeviceCode | None = None
        self._states: dict[int, bytes] = {}  # by device
        self._calls: Counter[int] = Counter()  # answered so far, by device
        self._prices: dict[tuple[int, str, str], CountedWork] = {}
        self._scores: dict[str, Score] = {}
        self._notes: dict[str, float] = {}
        self._trained, self._failed, self._failure = 0, 0, ""

    # --- what the protocol of calls asks ------------------------------------------------------------------------------

    def serve(self, clock: AppClock) -> None:
        """Run the server part. Raises EdgesimError in one line for what it raises."""
        try:
            with plain_where_loaded():
                self.backend.preload(self._app)
                self._code, serve = self._app.open(self._devices, self._key.at(_SERVER))
                if self._answers is not None:
                    self._identify(self._code)
                serve(clock)
        except EdgesimError:
            raise
        except (Exception, SystemExit) as error:
            frames = own_frames(error)
            place = f" ({frames.place})" if frames else ""
            what = f"{type(error).__name__}: {in_short(error)}{place}"
            raise EdgesimError(f"app: its server part fails: {what}") from error

    def price(self, call: Call) -> CountedWork | None:
        """Return the price of a call that may be answered later; None: it has to be answered first."""
        known = self._prices.get((call.device, call.kind, call.signature))
        return None if known is None else replace(known, down_bytes=len(call.content))

    def answer(self, calls: Sequence[Call]) -> Sequence[Called]:
        """Run the device part for calls of different devices, each from what its device keeps."""
        assert self._code is not None
        items = []
        for call in calls:
            seed = self._key.at(_CALLS, call.device, self._calls[call.device]).word()
            items.append((self._code, call, self._states.get(call.device, b""), seed))
            self._calls[call.device] += 1
        names = [
            self._digests.of(self._facts, call.device, call.kind, call.content, state, seed) if self._facts else None
            for _, call, state, seed in items
        ]
        known = [self._look_up(name) for name in names]
        places = [place for place, found in enumerate(known) if found is None]
        for place, (called, files) in zip(places, self.backend.answer([items[p] for p in places]), strict=True):
            known[place] = called
            self._store(names[place], called, files)
        answers = [called for called in known if called is not None]
        for call, called in zip(calls, answers, strict=True):
            self._notice(call, called)
        return answers

    def keep(self, call: Call, called: Called) -> None:
        """Let the device of a call keep its new state."""
        self._states[call.device] = called.state

    def score(self, split: str, metrics: Mapping[str, float], samples: int) -> None:
        """Note a score of the current model, for the round that closes next."""
        rest = {name: float(value) for name, value in metrics.items() if name not in ("loss", "accuracy")}
        loss, accuracy = float(metrics.get("loss", nan)), float(metrics.get("accuracy", nan))
        self._scores[split] = Score(loss, accuracy, samples, rest, has_loss="loss" in metrics)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Note further numbers of the round that closes next."""
        self._notes.update(metrics)

    def conclude(self) -> None:
        """Raise EdgesimError if no call that should train succeeded."""
        if self._trained and self._failed == self._trained:
            raise EdgesimError(f"app: all {self._failed} calls that should train fail, the first with {self._failure}")

    # --- what rounds ask ----------------------------------------------------------------------------------------------

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Return a new version of the model if some call was answered; the app has merged by itself."""
        if any(each.outcome in DELIVERED for each in completions):
            self.model = self.model._replace(version=self.model.version + 1)
        notes, self._notes = self._notes, {}
        return ServerStep(self.model, Ready(AggregationFacts(metrics=notes)))

    def evaluate(self, model: ModelRef, classes: Classes = None) -> Answer[Mapping[str, Score]]:
        """Return the scores that the app has noted since the last round."""
        scores, self._scores = self._scores, {}
        return Ready(scores)

    def evaluate_personal(self) -> Answer[Mapping[int, Score]]:
        """Return no scores: an app tests by itself."""
        return Ready({})

    def plan(self, view: View) -> Plan:
        """Raise ContractError: an app asks devices by itself."""
        raise ContractError("an app makes no plans")

    def start(self, jobs: Sequence[Job]) -> None:
        """Do nothing: calls are answered before or after their jobs."""

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Do nothing: a call that was not computed changes nothing."""

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Do nothing: an app has no exchanges."""

    def save(self, settle: Callable[[], Any]) -> None:
        """Do nothing: a run that was cut off repeats itself from its cached answers."""

    def saved_models(self) -> Mapping[str, Any]:
        """Return no models: an app keeps them by itself."""
        return {}

    # --- calls --------------------------------------------------------------------------------------------------------

    def _notice(self, call: Call, called: Called) -> None:
        """Count a call, remember its price, and tell what went wrong."""
        if self._app.price == "first" and not called.failure:
            self._prices.setdefault((call.device, call.kind, call.signature), called.work)
        lines = [*called.warnings, *([f"fails: {called.failure}"] if called.failure else [])]
        if call.trains:
            self._trained += 1
            self._failed += bool(called.failure)
            self._failure = self._failure or called.failure
        for line in lines:
            self.backend.said.setdefault((call.kind, line), set()).add(call.device)

    # --- cache --------------------------------------------------------------------------------------------------------

    def _identify(self, code: DeviceCode) -> None:
        """Let calls be looked up and kept, if all that their answers depend on can be named."""
        assert self._answers is not None
        try:
            self._facts = self._facts_of(code.identity())
            self._answers = self._answers.of(self._facts)
        except Unidentified as error:
            self.memo.not_kept = f"{error}: nothing is taken from earlier runs or kept for later ones"

    def _look_up(self, name: bytes | None) -> Called | None:
        if name is None or self._answers is None:
            return None
        row = self._answers.get(name)
        if row is None or any(_as_it_is(path) != ReadFile(path, *rest) for path, *rest in row["files"]):
            return None
        parts = row["parts"] or self._answers.weights(name)
        if parts is None:
            return None
        self.memo.known += 1
        content, state = (parts[part].tobytes() for part in ("content", "state"))
        return Called(content, state, CountedWork(**row["work"]), warnings=tuple(row["warnings"]))

    def _store(self, name: bytes | None, called: Called, files: tuple[ReadFile, ...] | None) -> None:
        import numpy as np

        self.memo.found += 1
        if name is None or self._answers is None or files is None or called.failure:
            return
        parts = {
            "content": np.frombuffer(called.content, np.uint8),
            "state": np.frombuffer(called.state, np.uint8),
        }
        inline = len(called.content) + len(called.state) <= _INLINE_BYTES
        row = {
            "work": {**asdict(called.work), "amounts": dict(called.work.amounts)},
            "warnings": list(called.warnings),
            "files": [list(file) for file in files],
            "parts": parts if inline else None,
        }
        if not inline:
            self._answers.put_weights(name, parts)
        self._answers.put(name, row)
