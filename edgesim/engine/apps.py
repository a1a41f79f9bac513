"""A user's program under the simulated clock: its calls become jobs, and its waiting lets time pass.

The server part runs in a thread of its own, in lockstep with the event loop: one of the two waits for the other at any
moment. So the server part may look at the state of the simulation without locks, and results do not depend on the host.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import simpy

from edgesim.core.app import AppClock, Call, Called, Reply, RunEnded
from edgesim.core.errors import EdgesimError
from edgesim.core.job import DELIVERED, Job
from edgesim.core.learner import Learner
from edgesim.core.protocol import RoundProtocol
from edgesim.core.task import CountedWork, Order, Payload, Plan, Task
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session
from edgesim.engine.watchdog import NOBODY_LEFT

_PATIENCE_S = 10.0  # of the host, for a server part to end once the run has ended
# Sleeps in a row, without a call, after which an app waits for ever: where no device will come or go, and anywhere.
_MOST_SLEEPS, _MOST_SLEEPS_AT_ALL = 1_000, 1_000_000
_BARE = Payload(frozenset())  # what its messages hold is counted with the work


class LearnerOfApp(Learner, Protocol):
    """The device part of a program and what devices keep, as the protocol of its calls sees them."""

    def serve(self, clock: AppClock) -> None:
        """Run the server part."""

    def price(self, call: Call) -> CountedWork | None:
        """Return the price of a call that may be answered later; None: it has to be answered first."""

    def answer(self, calls: Sequence[Call]) -> Sequence[Called]:
        """Run the device part for calls of different devices, each from what its device keeps."""

    def keep(self, call: Call, called: Called) -> None:
        """Let the device of a call keep its new state."""

    def score(self, split: str, metrics: Mapping[str, float], samples: int) -> None:
        """Note a score of the current model, for the round that closes next."""

    def note(self, metrics: Mapping[str, float]) -> None:
        """Note further numbers of the round that closes next."""

    def conclude(self) -> None:
        """Raise EdgesimError if the run is worth nothing, as no call that should train succeeded."""


@dataclass(frozen=True, kw_only=True)
class AppCalls(RoundProtocol):
    """Protocol of a program that asks devices itself; the scenario's `app` implies it."""

    protocol: ClassVar[str] = "app"

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run the program until it or the run ends."""
        return _AppRun(session, rounds).run()


class _Request(NamedTuple):
    """A request of the server part, for whose end it waits."""

    kind: Literal["send", "wait", "sleep"]
    calls: Sequence[Call] = ()  # to send
    numbers: Collection[int] | None = None  # calls whose answers it waits for; None: any
    until_s: float = inf


class Lockstep:
    """A function in a thread of its own that runs only while its caller waits for its next request."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._goes_on, self._has_asked = threading.Semaphore(0), threading.Semaphore(0)
        self._request: Any = None
        self._raised: BaseException | None = None
        self._ended = False  # the caller wants no more requests
        self.thread = threading.Thread(target=self._run, name="edgesim-app", daemon=True)

    def resume(self) -> Any:
        """Let the function go on until its next request and return this; None: it has returned. Raises as it."""
        self._request = None
        if self.thread.ident is None:
            self.thread.start()
        else:
            self._goes_on.release()
        self._has_asked.acquire()
        if self._raised is not None:
            raise self._raised
        return self._request

    def ask(self, request: Any) -> None:
        """Wait, in the function's thread, until the caller has fulfilled a request. Raises RunEnded."""
        if self._ended:
            raise RunEnded
        self._request = request
        self._has_asked.release()
        self._goes_on.acquire()
        if self._ended:
            raise RunEnded

    def stop(self) -> None:
        """Let the function end: what it asks from now on raises RunEnded. It gets some seconds for that."""
        self._ended = True
        if self.thread.ident is not None:
            self._goes_on.release()
            self.thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            self._function()
        except RunEnded:
            pass
        except BaseException as error:  # also SystemExit, which ends the program and not the simulation
            self._raised = error
        self._request = None
        self._has_asked.release()


@dataclass
class _Running:
    """A call on its way: its job, and its answer if the device part has been run."""

    call: Call
    job: Job
    called: Called | None


class _AppRun(AppClock):
    """One run of a program: its clock, and the process that serves it."""

    def __init__(self, session: Session, rounds: Rounds) -> None:
        self._session = session
        self._rounds = rounds
        learner: Any = session.learner
        self._learner: LearnerOfApp = learner
        self._steps = Lockstep(lambda: self._learner.serve(self))
        self._inbox = session.new_inbox()
        self._queued: dict[int, deque[Call]] = {}  # calls that wait for their device, by device
        self._running: dict[int, _Running] = {}  # by job
        self._open: dict[int, Call] = {}  # unanswered, by number
        self._replies: list[Reply] = []  # that the server part has not taken
        self._ended: list[Any] = []  # completions since the last round
        self._trained: set[int] = set()  # devices that have trained, or failed to, since the last round
        self._group: str | None = None  # of the newest calls
        self._sleeps = 0  # in a row, since the newest call
        self._looked_s = -inf  # time at which it was last asked who can be reached

    # --- in the thread of the server part -----------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self._session.now_s

    @property
    def devices(self) -> int:
        """Number of devices of the fleet."""
        return self._session.setting.devices

    def reachable(self) -> Sequence[int]:
        """Return the devices that can be reached now, ascending, whether or not they are busy."""
        self._check_thread()
        self._look()
        there: list[int] = np.flatnonzero(self._session.presence.seen(self._session.now_s)).tolist()
        return there

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls now. A device answers one after the other. Raises RunEnded."""
        self._ask(_Request("send", calls))

    def wait(self, until_s: float = inf, calls: Collection[int] | None = None) -> Sequence[Reply]:
        """Let time pass until all of these calls are answered, or until `until_s`; return the answers that came."""
        self._ask(_Request("wait", numbers=calls, until_s=until_s))
        replies, self._replies = self._replies, []
        return replies

    def sleep(self, seconds: float) -> None:
        """Let time pass. Raises RunEnded."""
        if not 0.0 <= seconds < inf:
            raise ValueError(f"sleep length must be a number of at least 0, got {seconds}")
        self._ask(_Request("sleep", until_s=self.now_s + seconds))

    def score(self, split: str, metrics: Mapping[str, float], samples: int) -> None:
        """Note the score of the current model."""
        self._learner.score(split, metrics, samples)

    def note(self, metrics: Mapping[str, float]) -> None:
        """Note further numbers of the current round, by name."""
        self._learner.note(metrics)

    def _ask(self, request: _Request) -> None:
        self._check_thread()
        self._steps.ask(request)

    def _check_thread(self) -> None:
        if threading.current_thread() is not self._steps.thread:
            raise EdgesimError("app: only the thread in which the server part runs may use the simulated clock")

    # --- in the event loop --------------------------------------------------------------------------------------------

    def run(self) -> Generator[Any, Any, None]:
        """Serve the program's requests until it or the run has ended."""
        try:
            request: _Request | None = self._steps.resume()
            while request is not None and not self._rounds.stopped:
                if request.kind == "send":
                    yield from self._send(request.calls)
                else:
                    yield from self._pass_time(request)
                if self._rounds.stopped:
                    break
                request = self._steps.resume()
            if not self._rounds.stopped:
                self._learner.conclude()
                yield from self._close_round(self._ended)
            if not self._rounds.stopped:
                self._rounds.end("the app has ended")
        finally:
            self._steps.stop()

    def _send(self, calls: Sequence[Call]) -> Generator[Any, Any, None]:
        """Queue calls; a new group of them, or a device that trains again, closes the round before."""
        for call in calls:
            again = call.trains and call.device in self._trained
            if self._ended and (again or call.group != self._group):
                yield from self._close_round(self._ended)
                if self._rounds.stopped:
                    return
            self._group = call.group
            self._open[call.number] = call
            self._queued.setdefault(call.device, deque()).append(call)
        self._sleeps = 0
        self._look()

    def _look(self) -> None:
        """Begin a new occasion to ask devices, once at an instant, so that those that can be reached can be asked."""
        if self._session.now_s > self._looked_s:
            self._looked_s = self._session.now_s
            self._session.presence.new_occasion()

    def _close_round(self, ended: list[Any]) -> Generator[Any, Any, None]:
        """Close a round with the calls that have been answered since the last one."""
        self._ended, self._trained = [], set()
        if not ended:
            return
        result = self._learner.aggregate(ended, self._session.view())
        self._session.server_buffer.release(ended)
        yield from self._rounds.close(result, ended)

    def _pass_time(self, request: _Request) -> Generator[Any, Any, None]:
        """Let time pass until a request is fulfilled or its time is over."""
        session = self._session
        if request.kind == "sleep" and not self._open:
            self._sleeps += 1
            change_s = session.presence.wait_s(session.now_s) if self._sleeps % _MOST_SLEEPS == 0 else 0.0
            if change_s == inf or self._sleeps == _MOST_SLEEPS_AT_ALL:
                self._rounds.give_up(f"the app slept {self._sleeps} times in a row without asking a device")
        while not self._rounds.stopped:
            self._dispatch()
            if request.numbers is None:
                fulfilled = bool(self._replies) or not self._open
            else:
                fulfilled = self._open.keys().isdisjoint(request.numbers)
            if (fulfilled and request.kind == "wait") or session.now_s >= request.until_s:
                return
            next_s = min([request.until_s, *(call.expires_s for call in self._open.values())])
            if self._queued:
                next_s = min(next_s, session.now_s + session.presence.wait_s(session.now_s))
            events = [session.below.any_end()] if self._running else []
            if next_s < inf:
                events.append(session.env.timeout(max(0.0, next_s - session.now_s)))
            if not events:
                self._rounds.give_up(NOBODY_LEFT)
                return
            yield simpy.AnyOf(session.env, events)

    def _dispatch(self) -> None:
        """Take what has ended, and send every device that is free its next call; again until nothing changes."""
        self._expire()
        while True:
            self._collect()
            idle = set(self._session.view().idle.tolist()) & self._queued.keys()
            due = sorted((self._queued[device][0] for device in idle), key=lambda call: call.number)
            if not due:
                return
            for call in due:
                self._queued[call.device].popleft()
                if not self._queued[call.device]:
                    del self._queued[call.device]
            prices = {call.number: price for call in due if (price := self._learner.price(call)) is not None}
            first = [call for call in due if call.number not in prices]
            answers = {call.number: answer for call, answer in zip(first, self._learner.answer(first), strict=True)}
            orders = []
            for call in due:
                work = prices[call.number] if call.number in prices else answers[call.number].work
                orders.append(Order(call.device, Task(name=call.kind, counted=work, down=_BARE, up=_BARE, passes=())))
            jobs = self._session.dispatch(Plan(tuple(orders)), to=self._inbox)
            for call, job in zip(due, jobs, strict=True):
                self._running[job.id] = _Running(call, job, answers.get(call.number))

    def _collect(self) -> None:
        """Turn jobs that have ended into replies, in the order (time, device, job)."""
        ended = [(completion, self._running.pop(completion.job.id)) for completion in self._inbox.take()]
        later = [running.call for completion, running in ended if completion.computed and running.called is None]
        answers = {call.number: answer for call, answer in zip(later, self._learner.answer(later), strict=True)}
        for completion, running in ended:
            call = running.call
            called = running.called or answers.get(call.number)
            if completion.computed and called is not None:
                self._learner.keep(call, called)
            self._ended.append(completion)
            if call.trains:
                self._trained.add(call.device)
            if completion.outcome in DELIVERED and called is not None:
                self._reply(call, called.content)
            else:
                self._reply(call, None, completion.outcome)

    def _expire(self) -> None:
        """Answer calls whose time is over, and end their jobs."""
        now_s = self._session.now_s
        over = [call for call in self._open.values() if call.expires_s <= now_s]
        if not over:
            return
        numbers = {call.number for call in over}
        for device in {call.device for call in over} & self._queued.keys():
            self._queued[device] = deque(call for call in self._queued[device] if call.number not in numbers)
            if not self._queued[device]:
                del self._queued[device]
        jobs = [running.job for running in self._running.values() if running.call.number in numbers]
        for completion in self._session.abort(jobs, "late"):  # others end at this very instant, and are in time
            self._running.pop(completion.job.id)
            self._ended.append(completion)
        in_time = {running.call.number for running in self._running.values()}
        for call in over:
            if call.number not in in_time:
                self._reply(call, None, "expired")

    def _reply(self, call: Call, content: bytes | None, reason: str = "") -> None:
        del self._open[call.number]
        self._replies.append(Reply(call, content, self._session.now_s, reason))
