"""Jobs that end alone are dealt with without waking the coordinator: the same run, carried out more cheaply."""

from __future__ import annotations

import pandas as pd
import pytest

from edgesim.engine.engine import Engine
from edgesim.engine.inbox import Inbox
from tests.conftest import frames, simulate_null
from tests.plugins.one_number import JOB_FLOPS, scenario

SECONDS = [1, 1, 1.25, 1.5, 2, 2, 2.7, 3.1, 4, 5]  # some end at the same instant, most alone
RULE = {"name": "buffered", "concurrency": 4, "buffer": 3}
SMALL = [{"cpu": {"flops_per_s": JOB_FLOPS / s}, **({"memory": 1} if s == 2 else {})} for s in SECONDS]
CHURN = {"name": "sessions", "on": "5 s", "off": "3 s"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"coordinator": {**RULE, "reassign": "same"}},
        {"coordinator": {**RULE, "max_staleness": 1}},
        {"selection": {"name": "uniform", "count": 1}},
        {"server": {"flops_per_s": 10}},
        {"fleet": SMALL},
        {"availability": CHURN},
        {"availability": CHURN, "coordinator": {**RULE, "reassign": "same", "concurrency": 9}},
        {"availability": {"name": "bernoulli", "p": 0.5, "retry": "0.3 s"}},
        {"failures": [{"name": "crash", "probability": 0.3}]},
        {"failures": [{"name": "crash", "probability": 0.5, "phase": "download"}], "fleet": SMALL},
        {"stop": {"sim_time": "30 s"}},
    ],
)
def test_served_alone_is_the_same_run(monkeypatch, changes):
    """With all of what may go wrong, every row of every table is the one of a coordinator that is woken each time."""
    given = scenario(SECONDS, **{"method": "fedbuff", "coordinator": RULE, "stop": {"rounds": 40}, **changes})
    taken = []
    really_take = Inbox.take
    monkeypatch.setattr(Inbox, "take", lambda self: (taken.append(self), really_take(self))[1])
    cheap, cheap_takes = simulate_null(given), len(taken)
    monkeypatch.setattr(Engine, "one_by_one", False)
    woken = simulate_null(given)
    assert cheap.rounds.stop_reason == woken.rounds.stop_reason
    for name, table in frames(cheap).items():
        pd.testing.assert_frame_equal(table, frames(woken)[name])
    assert cheap_takes < len(taken) - cheap_takes  # or nothing was served alone
