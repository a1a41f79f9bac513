"""The PI controller on the deadline: three rounds by hand, its bounds, and a fleet that it settles on."""

from __future__ import annotations

import pytest

from edgesim.core.controller import Choice, ClosedRound, RoundHistory
from edgesim.core.errors import ConfigError
from edgesim.engine.controllers.pi_deadline import PIDeadline
from tests.conftest import frames, simulate_null
from tests.plugins.one_number import scenario


def after(late: int, state: float) -> RoundHistory:
    """Return the history after a round of ten devices, of which so many were late."""
    closed = ClosedRound(Choice(), 10.0, 0.0, 0.0, 0.0, 0, 0.0, 10, 10 - late, late, 0.0, 0.0, 0.0, {})
    return RoundHistory(None, (closed,), 10.0, {}, {}, state)  # type: ignore[arg-type]


def test_three_rounds_by_hand():
    """Errors 0.4, 0 and -0.1 with gains 1 and 0.5: 10 (1 + 0.4 + 0.2), 10 (1 + 0.2), 10 (1 - 0.1 + 0.15) s."""
    rule = PIDeadline(start=10.0, shortest=1.0, longest=50.0, set_point=0.1, proportional=1.0, integral=0.5)
    deadlines_s, state = [], 0.0
    for late in (5, 1, 0):
        choice = rule.adapt(after(late, state))
        deadlines_s.append(choice.deadline_s)
        state = choice.state
    assert deadlines_s == pytest.approx([16.0, 12.0, 10.5], rel=1e-12)
    assert state == pytest.approx(0.3, rel=1e-12)


def test_at_a_bound_errors_do_not_wind_up():
    """Twenty rounds at the longest deadline leave no sum behind, so that one good round is enough to leave it."""
    rule = PIDeadline(start=10.0, shortest=1.0, longest=12.0, set_point=0.1, proportional=1.0, integral=0.5)
    state = 0.0
    for _ in range(20):
        choice = rule.adapt(after(10, state))
        assert choice.deadline_s == 12.0
        state = choice.state
    assert state == 0.0
    assert rule.adapt(after(0, state)).deadline_s == pytest.approx(10.0 * (1 - 0.1 - 0.05), rel=1e-12)


def test_a_fleet_of_ten_settles_at_the_set_point():
    """Devices take 1 to 10 s. At a set point of 0.2 the deadline ends between 8 and 9 s, and two are late."""
    controller = {"name": "pi_deadline", "start": 3.0, "shortest": 1.0, "longest": 30.0, "set_point": 0.2}
    given = {"protocol": {"name": "deadline", "deadline": 3.0}, "stop": {"rounds": 60}}
    rounds = frames(simulate_null(scenario(range(1, 11), controller=controller, **given)))["rounds"]
    assert rounds["late"].tolist()[:2] == [7, 6]  # 3 (1 + 0.25 + 0.1) s
    assert rounds["late"].tolist()[-10:] == [2] * 10
    assert rounds["deadline_s"].iloc[-10:].between(8.0, 9.0).all()


def test_a_start_outside_of_its_bounds_is_refused():
    controller = {"name": "pi_deadline", "start": 3.0, "shortest": 4.0, "longest": 9.0}
    given = {"protocol": {"name": "deadline", "deadline": 3.0}, "stop": {"rounds": 1}}
    with pytest.raises(ConfigError, match=r"controller.start: must be from shortest, 4 s, above 0, to longest, 9 s"):
        simulate_null(scenario([1], controller=controller, **given))
