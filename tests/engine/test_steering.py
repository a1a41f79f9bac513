"""Controllers at work: when they are asked, what they see, and what their choices change; timelines by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from edgesim.core.controller import Choice, Controller, RoundHistory
from edgesim.core.errors import ConfigError, ContractError
from edgesim.runs.assembly import assemble
from edgesim.runs.estimate import estimate_of, instant
from tests.conftest import frames, simulate_null
from tests.plugins.one_number import JOB_FLOPS, SAMPLES, scenario

SEEN: list[RoundHistory] = []


@dataclass(frozen=True, kw_only=True)
class Scripted(Controller):
    """Returns the choices of a script in turn, the last one again and again, and notes what it saw."""

    script: tuple[dict[str, Any], ...] = ()

    @property
    def sets(self) -> frozenset[Any]:
        """The fields in the script."""
        return frozenset(key for choice in self.script for key in choice)

    def adapt(self, history: RoundHistory) -> Choice:
        """Return the next choice of the script."""
        SEEN.append(history)
        return Choice(**self.script[min(len(history.rounds), len(self.script) - 1)], state=len(history.rounds))


def steered(seconds, *script: Mapping[str, Any], rounds=2, **changes):
    """Run devices that train for so many seconds by a script; return the tables."""
    SEEN.clear()
    table = {"name": f"{__name__}:Scripted", "script": list(script)}
    stop = {"rounds": rounds, **changes.pop("stop", {})}
    return frames(simulate_null(scenario(seconds, stop=stop, controller=table, **changes)))


def test_a_choice_of_nothing_changes_no_bit():
    plain = frames(simulate_null(scenario([1, 2, 3], stop={"rounds": 3})))
    tables = steered([1, 2, 3], {}, rounds=3)
    for name, table in plain.items():
        assert table.equals(tables[name]), name


def test_local_steps_hold_for_the_rounds_to_come():
    """A job of one epoch is one step of three samples; four steps take four times as long, from round 1 on."""
    tables = steered([1, 2], {}, {"local_steps": 4}, rounds=3)
    assert tables["rounds"]["now_s"].tolist() == [2, 10, 18]


def test_participants_replace_the_count_of_the_selection():
    tables = steered([1, 1, 1, 1], {}, {"participants": 3}, selection={"name": "uniform", "count": 2}, rounds=3)
    assert tables["rounds"]["asked"].tolist() == [2, 3, 3]


def test_a_deadline_replaces_that_of_the_protocol():
    protocol = {"name": "deadline", "deadline": "10 s"}
    tables = steered([1, 4], {}, {"deadline_s": 2.0}, protocol=protocol)
    assert tables["rounds"][["deadline_s", "late", "closed_by"]].to_numpy().tolist() == [
        [10.0, 0, "all"], [2.0, 1, "deadline"],
    ]  # fmt: skip


def test_what_a_controller_sees_by_hand():
    """Devices of 1 and 2 s, and a budget of 5 s: after round 0 there are 3 s left, and one round more is begun."""
    steered([1, 2], {}, rounds=9, stop={"sim_time": 5.0})
    assert [len(seen.rounds) for seen in SEEN] == [0, 1, 2]
    assert [seen.left["sim_time"] for seen in SEEN] == [5, 3, 1]
    assert [seen.state for seen in SEEN] == [None, 0, 1]
    newest = SEEN[1].rounds[0]
    assert (newest.seconds, newest.asked, newest.used, newest.late, newest.compute_s) == (2, 2, 2, 0, 2)
    assert SEEN[0].setting.samples.tolist() == [SAMPLES] * 2


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"local_steps": 0}, r"Scripted.adapt\(\) must set local_steps to a whole number at least 1, got 0"),
        ({"local_steps": 1.5}, "a whole number at least 1, got 1.5"),
        ({"participants": 3}, "participants to a whole number at least 1 and at most 2, got 3"),
        ({"deadline_s": float("inf")}, "deadline_s to a number above 0, got inf"),
        ({"frequency": 1.5}, "frequency to a number above 0 and at most 1, got 1.5"),
    ],
)
def test_what_a_controller_returns_is_checked(choice, says):
    given = {"selection": {"name": "uniform", "count": 1}, "protocol": {"name": "deadline", "deadline": 9.0}}
    with pytest.raises(ContractError, match=says):
        steered([1, 1], choice, **given)


@pytest.mark.parametrize(
    ("choice", "changes", "says"),
    [
        ({"participants": 1}, {}, "controller.name: .* the number of participants, which selection all does not have"),
        ({"deadline_s": 1.0}, {}, "controller.name: .* the deadline of rounds, which protocol sync does not have"),
        (
            {},
            {"protocol": {"name": "buffered", "concurrency": 1, "buffer": 1}, "method": "fedbuff"},
            "controller.name: .* needs a server that asks devices in",
        ),
    ],
)
def test_controllers_that_do_not_fit_are_refused(choice, changes, says):
    with pytest.raises(ConfigError, match=says):
        steered([1, 1], choice, **changes)


def test_a_field_that_a_controller_does_not_name_is_refused(monkeypatch):
    monkeypatch.setattr(Scripted, "sets", frozenset())
    with pytest.raises(ContractError, match=r"Scripted.adapt\(\) set local_steps, which is not in its `sets`"):
        steered([1, 1], {"local_steps": 2})


def test_a_lower_frequency_takes_longer_within_the_bounds_of_the_device():
    """At half of 2 Hz 24 cycles take twice as long; at a tenth the least frequency of 0.5 Hz holds."""
    cpu = {"frequency": 2.0, "flops_per_cycle": JOB_FLOPS / 24, "min_frequency": 0.5}
    tables = steered([1], {}, {"frequency": 0.5}, {"frequency": 0.1}, fleet=[{"cpu": cpu}], rounds=3)
    assert tables["rounds"]["now_s"].tolist() == [12, 36, 84]


def test_an_estimate_takes_the_rounds_of_the_scenario():
    """A trial has no training results and other limits, so a controller that waits for results is not asked."""
    given = {"controller": "adaptive_tau", "backend": "serial", "stop": {"rounds": 3, "bytes": 1e6}}
    totals = estimate_of([assemble(scenario([1, 2], **given))], instant).totals
    assert (totals["rounds"], totals["sim_time_s"]) == (3, 3 * 2 * 3)  # each job has three gradients
