"""What round-based protocols share: the exchanges of a round, who is waited for, and what becomes of the late."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import simpy

from edgesim.contracts import DELIVERED, Arrival, Job, Learner
from edgesim.engine.engine import Engine
from edgesim.engine.inbox import Inbox
from edgesim.engine.rounds import Rounds
from edgesim.engine.transfers import ON_TIME_S

NOBODY_LEFT = "no device can take part any more: none is there and on, and none will ever be again"
NOBODY_FITS = "no device of the fleet has the memory to train what the method asks for"
_MOST_ROUNDS = 1_000  # in a row without an update: then none will ever come
MOST_LOOKS = 100_000  # for devices, in a row without finding one, as they may come and go a lot


class Policy:
    """How a round is closed. This one waits for everybody; protocols override what they do otherwise."""

    late_weight = 0.0  # what an update counts that comes one round late; 0: it is cancelled
    minimum = 0  # updates without which a round is extended, and brings nothing if they never come

    def within_s(self) -> float:
        """Return how many seconds a round may take, from when it is sent out."""
        return inf

    def enough(self, asked: int) -> int:
        """Return how many updates close a round before the others are there."""
        return asked

    def learn(self, arrivals: Sequence[Arrival]) -> None:
        """Look at how the jobs of a round ended."""


@dataclass
class _Asked:
    """Jobs, and where they arrive."""

    jobs: list[Job] = field(default_factory=list)
    inboxes: list[Inbox] = field(default_factory=list)

    def updates(self, engine: Engine) -> int:
        """Return how many updates the server has of these jobs."""
        return sum(inbox.delivered for inbox in self.inboxes) - engine.held.lost(self.jobs)


@dataclass
class _Vain:
    """Rounds in a row that brought no update."""

    rounds: int = 0
    at_once: int = 0  # of the last of them, those that took no time either
    until_s: float = 0.0

    def count(self, now_s: float, used: Sequence[Arrival]) -> None:
        """Take note of a round that has just been closed."""
        self.rounds = 0 if any(a.outcome in DELIVERED for a in used) else self.rounds + 1
        self.at_once = self.at_once + 1 if self.rounds and now_s == self.until_s else 0
        self.until_s = now_s

    @property
    def reason(self) -> str:
        """Why a run ends after them."""
        took_no_time = " took no time and" if self.at_once == self.rounds else ""
        return f"{self.rounds} rounds in a row{took_no_time} brought no update"


class _Exchange(NamedTuple):
    """What an exchange brought, whether another is to follow, and what ended it (None: it asked nobody)."""

    arrivals: list[Arrival]
    more: bool
    closed_by: str | None


def run_rounds(engine: Engine, rounds: Rounds, learner: Learner, policy: Policy) -> Generator[Any, Any, None]:
    """Ask, wait as the policy says, merge; again until stopped.

    A merge gets the arrivals of all exchanges of its round; their tasks tell them apart. A method may look at those of
    one exchange before it plans the next. Whoever is too late is
    cancelled untrained and charged up to then. Without arrivals the model stays as it is.
    """
    late, vain = _Asked(), _Vain()
    while not rounds.stopped:
        engine.presence.new_occasion()
        yield from wait_for_somebody(engine, rounds)
        if rounds.stopped:
            return
        arrivals: list[Arrival] = []
        deadline_s, closed_by, still_late = policy.within_s(), "all", _Asked()
        closes_s, more = engine.now_s + deadline_s, True
        while more:
            ended = yield from _exchange(engine, learner, policy, closes_s, late, still_late)
            arrivals += ended.arrivals
            more, closed_by = ended.more, ended.closed_by or closed_by
        arrivals += _collect_late(engine, learner, late, policy.late_weight)
        late = still_late
        policy.learn(arrivals)
        used = _enough(engine, learner, engine.held.look(arrivals), policy.minimum)
        if engine.nobody_fits:
            rounds.end(NOBODY_FITS)
        result = learner.merge(used, engine.view())
        engine.held.release(used)
        yield from rounds.close(result, used, learner, closed_by, deadline_s)
        vain.count(engine.now_s, used)
        if vain.rounds >= _MOST_ROUNDS:
            rounds.end(vain.reason)
        elif vain.at_once and (change := _next_change(engine)) is not None:
            yield change  # as the next round would fail in the same way


def wait_for_somebody(engine: Engine, rounds: Rounds) -> Generator[Any, Any, None]:
    """Sleep until a device can be asked; end the run if none ever can again."""
    looks = 0
    while not rounds.stopped and not len(engine.view().idle):
        change, looks = _next_change(engine), looks + 1
        if change is None or looks >= MOST_LOOKS:
            rounds.end(NOBODY_LEFT if change is None else nobody_seen(looks))
        else:
            yield change


def nobody_seen(looks: int) -> str:
    """Return why a run ends after so many looks for devices."""
    return f"nobody was there and on at any of {looks} looks for devices in a row"


def _next_change(engine: Engine) -> simpy.Event | None:
    """Return an event that fires when a job ends or a device comes that is not there now; None: neither ever will."""
    wait_s = engine.presence.wait_s(engine.now_s)
    if wait_s < inf:
        return engine.env.any_of([engine.env.timeout(wait_s), engine.any_end()])
    return engine.any_end() if engine.running else None


def _exchange(
    engine: Engine, learner: Learner, policy: Policy, closes_s: float, late: _Asked, still_late: _Asked
) -> Generator[Any, Any, _Exchange]:
    """Carry out one exchange of a round; jobs that may come late are put into `still_late`.

    `late`: those of the round before, whose updates count towards the minimum of this one.

    An exchange that asks nobody closes the round, as all who answered the one before may have left since; only the
    first one must ask somebody.
    """
    plan, inbox = learner.plan(engine.view()), engine.new_inbox()
    if engine.exchange and not plan.orders:
        return _Exchange([], False, None)
    jobs = engine.dispatch(plan, to=inbox)
    learner.start(jobs)
    enough = policy.enough(len(jobs))
    yield from _until(engine, inbox, jobs, enough, closes_s)
    of_both = _Asked([*jobs, *late.jobs], [inbox, *late.inboxes])
    needed = min(policy.minimum, enough) if engine.exchange else policy.minimum  # a later one may ask fewer than that
    extended = False
    while of_both.updates(engine) < needed and not all(job.ended for job in of_both.jobs):
        extended = True
        yield engine.any_end()
    goes_on = policy.late_weight > 0 and not plan.more
    cancelled = engine.abort([j for j in jobs if not goes_on or j.due_s - engine.now_s <= ON_TIME_S], "late")
    if goes_on:
        still_late.jobs += [job for job in jobs if not job.ended]
        still_late.inboxes.append(inbox)
    had_enough = enough < len(jobs) and _Asked(jobs, [inbox]).updates(engine) >= enough
    closed_by = _closed_by(extended, had_enough, bool(cancelled) or not all(job.ended for job in jobs))
    ended = _first(engine, inbox.take(), enough)
    learner.cancel([a for a in [*ended, *cancelled] if a.outcome not in DELIVERED])
    arrivals = ended + cancelled
    engine.last = arrivals
    engine.exchange += 1
    if plan.more:
        learner.hear(engine.held.look(arrivals), engine.view())
    return _Exchange(arrivals, plan.more, closed_by)


def _closed_by(extended: bool, had_enough: bool, some_late: bool) -> str:
    """Return what ended an exchange, as edgesim.records.schema.CLOSED_BY names it."""
    if extended:
        return "minimum"
    if had_enough:
        return "enough"
    return "deadline" if some_late else "all"


def _until(
    engine: Engine, inbox: Inbox, jobs: Sequence[Job], enough: int, closes_s: float
) -> Generator[Any, Any, None]:
    """Wait until all jobs have ended, the server has `enough` updates, or `closes_s`, whatever comes first."""
    lost, before = engine.held.lost(jobs), -1
    while lost > before:
        yield inbox.until(len(jobs), enough + lost, max(0.0, closes_s - engine.now_s))
        lost, before = engine.held.lost(jobs), lost


def _first(engine: Engine, ended: list[Arrival], enough: int) -> list[Arrival]:
    """Return arrivals with all but the first `enough` updates marked as late: they came at the same instant."""
    surplus = {a.job.id for a in [a for a in engine.held.look(ended) if a.outcome in DELIVERED][enough:]}
    engine.held.release([a for a in ended if a.job.id in surplus], "late")
    return [a._replace(outcome="late") if a.job.id in surplus else a for a in ended]


def _collect_late(engine: Engine, learner: Learner, late: _Asked, weight: float) -> list[Arrival]:
    """Return the arrivals of the last round's late jobs; those that are still not there are cancelled now."""
    cancelled = engine.abort(late.jobs, "late")
    ended = [arrival._replace(weight=weight) for inbox in late.inboxes for arrival in inbox.take()]
    learner.cancel([a for a in [*ended, *cancelled] if a.outcome not in DELIVERED])
    return ended + cancelled


def _enough(engine: Engine, learner: Learner, arrivals: list[Arrival], minimum: int) -> list[Arrival]:
    """Return the arrivals to merge; if fewer than `minimum` delivered, all of those are discarded as late."""
    delivered = [a for a in arrivals if a.outcome in DELIVERED]
    lost = [a for a in arrivals if a.outcome == "lost"]
    learner.cancel(lost)
    if len(delivered) >= minimum:
        return arrivals
    engine.held.release(delivered, "late")
    late = [a._replace(outcome="late") for a in delivered]
    learner.cancel(late)
    return [a for a in arrivals if a.outcome not in DELIVERED] + late
