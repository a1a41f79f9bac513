"""Shared parts of protocols with rounds: the exchanges of a round, how long the server waits, and late updates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import simpy

from edgesim.core.job import DELIVERED, ON_TIME_S, Completion, Job
from edgesim.engine.inbox import Inbox
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session
from edgesim.engine.watchdog import Watchdog


class Policy:
    """Rules by which a round is closed. This policy waits for every device asked; protocols override its parts."""

    late_weight = 0.0  # weight of an update that comes one round late; 0: it is cancelled
    minimum = 0  # updates that a round waits for past its deadline; without them it brings nothing

    def within_s(self) -> float:
        """Return the longest duration of a round in seconds, from when it is sent out."""
        return inf

    def enough(self, asked: int) -> int:
        """Return the number of updates that close a round before the others are there."""
        return asked

    def learn(self, completions: Sequence[Completion]) -> None:
        """Learn from the ended jobs of a round."""


@dataclass
class _Asked:
    """Jobs and the inboxes of their completions."""

    jobs: list[Job] = field(default_factory=list)
    inboxes: list[Inbox] = field(default_factory=list)

    def updates(self, session: Session) -> int:
        """Return the number of updates of these jobs that the server has."""
        return sum(inbox.delivered for inbox in self.inboxes) - session.server_buffer.lost(self.jobs)


class _Exchange(NamedTuple):
    """Completions of an exchange, whether another one follows, and what ended it (None: it asked no device)."""

    completions: list[Completion]
    more: bool
    closed_by: str | None


def run_rounds(session: Session, rounds: Rounds, policy: Policy) -> Generator[Any, Any, None]:
    """Ask devices, wait as the policy says, and aggregate; again until stopped.

    An aggregation gets the completions of all exchanges of its round; their tasks tell them apart. A method may look at
    the completions of one exchange before it plans the next. A late job is cancelled untrained and charged up to then.
    Without completions the model stays as it is.
    """
    late, watchdog = _Asked(), Watchdog(rounds.give_up)
    while not rounds.stopped:
        rounds.steer()
        if rounds.stopped:
            return
        session.presence.new_occasion()
        yield from _wait_for_a_device(session, rounds, watchdog)
        if rounds.stopped:
            return
        completions: list[Completion] = []
        deadline_s, closed_by, still_late = session.choice.deadline_s or policy.within_s(), "all", _Asked()
        closes_s, more = session.now_s + deadline_s, True
        while more:
            ended = yield from _exchange(session, policy, closes_s, late, still_late)
            completions += ended.completions
            more, closed_by = ended.more, ended.closed_by or closed_by
        others = _collect_late(session, late, policy.late_weight) + session.take_visitors()
        completions += [each._replace(staleness=session.staleness(each.job)) for each in others]  # as of now
        late = still_late
        policy.learn(completions)
        used = _merged(session, session.server_buffer.with_losses(completions), policy.minimum)
        watchdog.check_memory(session.nobody_fits)
        result = session.learner.aggregate(used, session.view())
        session.server_buffer.release(used)
        yield from rounds.close(result, used, closed_by, deadline_s)
        failed_at_once = watchdog.close_round(session.now_s, used)
        if failed_at_once and not rounds.stopped and (change := _next_change(session)) is not None:
            session.wants_devices = True
            yield change  # as the next round would fail in the same way


def _wait_for_a_device(session: Session, rounds: Rounds, watchdog: Watchdog) -> Generator[Any, Any, None]:
    """Wait until a device can be asked; end the run if none ever can again."""
    while not rounds.stopped:
        yield from session.turn()
        if rounds.stopped or len(session.view().idle):
            break
        change = _next_change(session)
        if change is None:
            watchdog.nobody_comes()
        else:
            watchdog.look(found=session.others_at_work)
            if not rounds.stopped:
                session.wants_devices = True
                yield change
    watchdog.look(found=True)


def _next_change(session: Session) -> simpy.Event | None:
    """Return an event that fires when a job ends or a device arrives, or None if neither will ever happen."""
    below = session.below
    wait_s = session.presence.wait_s(session.now_s)
    if wait_s < inf:
        return session.env.any_of([session.env.timeout(wait_s), below.any_end()])
    return below.any_end() if session.running or session.others_at_work else None


def _exchange(
    session: Session, policy: Policy, closes_s: float, late: _Asked, still_late: _Asked
) -> Generator[Any, Any, _Exchange]:
    """Carry out one exchange of a round; jobs that may come late are put into `still_late`.

    `late`: jobs of the round before, whose updates count towards the minimum of this round. A later exchange that asks
    no device closes the round: all devices that answered the one before may have left since.
    """
    plan, inbox = session.learner.plan(session.view()), session.new_inbox()
    if session.exchange and not plan.orders:
        return _Exchange([], False, None)
    jobs = session.dispatch(plan, to=inbox)
    session.learner.start(jobs)
    enough = policy.enough(len(jobs))
    # until all jobs have ended, the server has enough updates, or the deadline; a restart of the server loses updates
    lost, before = session.server_buffer.lost(jobs), -1
    while lost > before:
        yield inbox.until(len(jobs), enough + lost, max(0.0, closes_s - session.now_s))
        lost, before = session.server_buffer.lost(jobs), lost
    of_both = _Asked([*jobs, *late.jobs], [inbox, *late.inboxes])
    needed = min(policy.minimum, enough) if session.exchange else policy.minimum  # it may ask fewer
    extended = False
    while of_both.updates(session) < needed and not all(job.ended for job in of_both.jobs):
        extended = True
        yield session.below.any_end()
    goes_on = policy.late_weight > 0 and not plan.more
    cancelled = session.abort([j for j in jobs if not goes_on or j.due_s - session.now_s <= ON_TIME_S], "late")
    if goes_on:
        still_late.jobs += [job for job in jobs if not job.ended]
        still_late.inboxes.append(inbox)
    if extended:
        closed_by = "minimum"
    elif enough < len(jobs) and _Asked(jobs, [inbox]).updates(session) >= enough:
        closed_by = "enough"
    else:
        closed_by = "deadline" if cancelled or not all(job.ended for job in jobs) else "all"
    ended = inbox.take()
    # updates beyond `enough` that came at the same instant are late
    delivered = [each for each in session.server_buffer.with_losses(ended) if each.outcome in DELIVERED]
    surplus = {each.job.id for each in delivered[enough:]}
    session.server_buffer.release([each for each in ended if each.job.id in surplus], "late")
    ended = [each._replace(outcome="late") if each.job.id in surplus else each for each in ended]
    session.learner.cancel([a for a in [*ended, *cancelled] if a.outcome not in DELIVERED])
    completions = ended + cancelled
    session.last = completions
    session.exchange += 1
    if plan.more:
        session.learner.on_exchange(session.server_buffer.with_losses(completions), session.view())
    return _Exchange(completions, plan.more, closed_by)


def _collect_late(session: Session, late: _Asked, weight: float) -> list[Completion]:
    """Return the completions of the late jobs of the last round; jobs that still run are cancelled now."""
    cancelled = session.abort(late.jobs, "late")
    ended = [
        completion._replace(weight=weight * completion.weight) for inbox in late.inboxes for completion in inbox.take()
    ]
    session.learner.cancel([a for a in [*ended, *cancelled] if a.outcome not in DELIVERED])
    return ended + cancelled


def _merged(session: Session, completions: list[Completion], minimum: int) -> list[Completion]:
    """Return the completions to merge; with fewer than `minimum` updates, all updates are discarded as late."""
    delivered = [a for a in completions if a.outcome in DELIVERED]
    lost = [a for a in completions if a.outcome == "lost"]
    session.learner.cancel(lost)
    if len(delivered) >= minimum:
        return completions
    session.server_buffer.release(delivered, "late")
    late = [a._replace(outcome="late") for a in delivered]
    session.learner.cancel(late)
    return [a for a in completions if a.outcome not in DELIVERED] + late
