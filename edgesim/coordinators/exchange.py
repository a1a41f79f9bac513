"""What round-based protocols share: one exchange of a round, and the exchanges of a whole round."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edgesim.contracts import Arrival, Learner
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Rounds


def run_rounds(engine: Engine, rounds: Rounds, learner: Learner, within_s: float) -> Generator[Any, Any, None]:
    """Ask, wait until all answered or `within_s` seconds of the round are over, merge; again until stopped.

    A merge gets the arrivals of all exchanges of its round; their tasks tell them apart.
    Whoever is late is cancelled untrained and charged up to then. Without arrivals the model stays as it is.
    """
    while not rounds.stopped:
        yield from _wait_for_somebody(engine, rounds)
        if rounds.stopped:
            return
        arrivals: list[Arrival] = []
        more, closes_s = True, engine.now_s + within_s
        while more:
            ended, more = yield from _exchange(engine, learner, max(0.0, closes_s - engine.now_s))
            arrivals += ended
        if engine.nobody_fits:
            rounds.end("no device of the fleet has the memory to train what the method asks for")
        result = learner.merge(arrivals, engine.view())
        yield from rounds.close(result, arrivals, learner)


def _exchange(engine: Engine, learner: Learner, within_s: float) -> Generator[Any, Any, tuple[list[Arrival], bool]]:
    plan, inbox = learner.plan(engine.view()), engine.new_inbox()
    jobs = engine.dispatch(plan, to=inbox)
    learner.start(jobs)
    yield inbox.at_least(len(jobs), within_s)
    late = engine.abort(jobs, "late")
    ended = inbox.take()
    learner.cancel(late + [arrival for arrival in ended if arrival.outcome != "ok"])
    arrivals = ended + late
    engine.last = arrivals
    engine.exchange += 1
    return arrivals, plan.more


def _wait_for_somebody(engine: Engine, rounds: Rounds) -> Generator[Any, Any, None]:
    """Sleep until a device can be asked; end the run if none ever can again."""
    while not len(engine.view().idle):
        back_s = engine.next_on_s()
        if back_s == float("inf"):
            rounds.end("no device can take part any more: every battery is empty and never charges again")
            return
        yield engine.env.timeout(back_s - engine.now_s)
