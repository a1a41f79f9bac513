"""Rounds that do not wait for everybody, on timelines worked by hand; timing only, unless a test says otherwise."""

from __future__ import annotations

import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from tests.conftest import frames, simulate_null
from tests.contracts.support import fingerprint
from tests.plugins.one_number import JOB_FLOPS, moved, numbers, scenario


def run(seconds, *, rounds=2, **changes):
    """Run devices that train for so many seconds; return tables and the reason of the end."""
    simulation = simulate_null(scenario(seconds, stop={"rounds": rounds}, **changes))
    return frames(simulation), simulation.rounds.stop_reason


def first_round(tables, *columns):
    """Return columns of the jobs of round 0 by device."""
    jobs = tables["jobs"].query("round == 0").sort_values("device")
    return [tuple(row) for row in jobs[list(columns)].itertuples(index=False)]


def merges_of(tables, *columns):
    """Return columns of the merges."""
    return [tuple(row) for row in tables["rounds"][list(columns)].itertuples(index=False)]


def there(tmp_path, *rows):
    """Return an availability of (device, start, end)."""
    path = tmp_path / "there.csv"
    pd.DataFrame(rows, columns=["device", "start", "end"]).to_csv(path, index=False)
    return {"name": "trace", "file": str(path)}


# --- over-selection -----------------------------------------------------------------------------------------


def first(keep):
    """Return the protocol that keeps so many."""
    return {"name": "over_selection", "keep": keep}


def test_the_slowest_are_not_waited_for():
    """Of 1, 2, 3 and 5 s the first two make the round; the others have done 2/3 and 2/5 of their 12 FLOPs."""
    tables, _ = run([1, 2, 3, 5], protocol=first(2))
    assert first_round(tables, "outcome", "end_s", "compute_s") == [
        ("ok", 1, 1), ("ok", 2, 2), ("late", 2, 2), ("late", 2, 2),
    ]  # fmt: skip
    flops = [flops for (flops,) in first_round(tables, "flops")]
    assert flops == pytest.approx([JOB_FLOPS, JOB_FLOPS, JOB_FLOPS * 2 / 3, JOB_FLOPS * 2 / 5])
    assert merges_of(tables, "now_s", "asked", "used", "late") == [(2, 4, 2, 2), (4, 4, 2, 2)]


def test_of_two_at_one_instant_the_first_device_counts():
    """Devices 1 and 2 both need 2 s, and one is enough beside device 0: device 2 has worked in vain, to the end."""
    tables, _ = run([1, 2, 2, 5], protocol=first(2))
    assert first_round(tables, "outcome", "end_s") == [("ok", 1), ("ok", 2), ("late", 2), ("late", 2)]
    assert [flops for (flops,) in first_round(tables, "flops")][:3] == [JOB_FLOPS] * 3
    assert merges_of(tables, "now_s", "used", "late") == [(2, 2, 2), (4, 2, 2)]


def test_the_surplus_teaches_nothing():
    """Trained for real: moves of 1 and 3 count, those of 100 and 1000, at the same instant and later, do not."""
    method = moved("Avg", [1, 3, 100, 1000])
    given = {"method": method, "protocol": first(2), "backend": "serial", "stop": {"rounds": 2}}
    assert numbers(scenario([1, 2, 2, 5], **given))[1] == [(2, 2), (4, 4)]


def test_who_fails_does_not_count():
    """Everybody who is there crashes at 1.5 s, after device 0 delivered: the round ends then, one update short."""
    blackout = {"name": "tests.plugins.blackout:Blackout", "after": 1.5}
    tables, _ = run([1, 2, 3, 5], protocol=first(2), failures=[blackout])
    assert first_round(tables, "outcome", "end_s") == [
        ("ok", 1), ("crashed", 1.5), ("crashed", 1.5), ("crashed", 1.5),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "used", "late") == [(1.5, 1, 0), (3.5, 2, 2)]


RESTART = [{"name": "server_restart", "at": ["1.5 s"]}]


def test_what_the_server_lost_does_not_count():
    """At 1.5 s it loses the update of 1 s, so the first two are those of 2 and 3 s."""
    tables, _ = run([1, 2, 3, 3, 5], protocol=first(2), failures=RESTART)
    assert first_round(tables, "outcome", "end_s") == [("lost", 1), ("ok", 2), ("ok", 3), ("late", 3), ("late", 3)]
    assert merges_of(tables, "now_s", "used") == [(3, 2), (5, 2)]


def test_fewer_than_wanted(tmp_path):
    """Only one of two is there: its update ends the round."""
    tables, _ = run([1, 2], protocol=first(2), availability=there(tmp_path, (1, 0, 99)))
    assert merges_of(tables, "now_s", "asked", "used") == [(2, 1, 1), (4, 1, 1)]


def test_more_than_are_asked_are_refused():
    with pytest.raises(ConfigError, match=r"protocol\.keep: must be at most the 2 devices asked a round, found 3"):
        run([1, 1], protocol=first(3))


# --- deadlines that are learnt ------------------------------------------------------------------------------


def within(**settings):
    """Return the protocol with a deadline."""
    return {"name": "deadline", **settings}


FIVE = [1, 2, 3, 4, 10]


@pytest.mark.parametrize(
    ("settings", "ends_s"),
    [
        # of 1, 2, 3, 4, 10 the 0.6-quantile is number 2.4 from 0, rounded up: 4; then of 1, 2, 3, 4, longer: 4 again
        ({"quantile": 0.6, "rounds": 1}, [10, 14, 18]),
        # number 2 of 1, 2, 3, 4, 10: 3, on which device 2 is still in time
        ({"quantile": 0.5, "rounds": 1}, [10, 13, 16]),
        # a first deadline of 2 s lets two through, so the 0.6-quantile is longer than any job: everybody is waited for
        ({"quantile": 0.6, "rounds": 1, "deadline": 2}, [2, 12, 16]),
        # number 1.6 of the five, up: 3; then number 3.6 of 1, 1, 2, 2, 3, 3, 4, 10 and two longer ones, up: 3
        ({"quantile": 0.4, "rounds": 2}, [10, 13, 16]),
    ],
)
def test_deadline_by_quantile(settings, ends_s):
    """Before any job is known, the first deadline, or none."""
    tables, _ = run(FIVE, rounds=3, protocol=within(rule="quantile", **settings))
    assert tables["rounds"]["now_s"].tolist() == pytest.approx(ends_s)


@pytest.mark.parametrize(
    ("settings", "ends_s"),
    [
        # median 3, deviations 2, 1, 0, 1, 7: 3 + 1 = 4; of 1, 2, 3, 4: 2.5 + 1 = 3.5; of 1, 2, 3: 2 + 1 = 3
        ({"k": 1, "rounds": 1}, [10, 14, 17.5, 20.5]),
        # k = 0: the median itself: 3, of 1, 2, 3: 2, of 1, 2: 1.5
        ({"k": 0, "rounds": 1}, [10, 13, 15, 16.5]),
        # of two rounds: 4; then 1, 1, 2, 2, 3, 3, 4, 4, 10: median 3, deviations 0, 0, 1, 1, 1, 1, 2, 2, 7: 3 + 1
        ({"k": 1, "rounds": 2}, [10, 14, 18, 21.5]),
    ],
)
def test_deadline_by_median_deviation(settings, ends_s):
    """Jobs that were cancelled are not known. The last line's end: of twice 1, 2, 3, 4 it is 2.5 + 1."""
    tables, _ = run(FIVE, rounds=4, protocol=within(rule="mad", **settings))
    assert tables["rounds"]["now_s"].tolist() == pytest.approx(ends_s)


def test_a_fixed_deadline_has_to_be_given():
    with pytest.raises(ConfigError, match=r"protocol\.deadline: rule 'fixed' needs one"):
        run([1], protocol=within())


# --- at least so many ---------------------------------------------------------------------------------------


def test_a_round_is_extended_until_it_has_enough():
    """At 2 s two of three are there; the round ends with the third, at 3 s, and the fourth is late then."""
    tables, _ = run([1, 2, 3, 5], protocol=within(deadline=2, minimum=3))
    assert first_round(tables, "outcome", "end_s") == [("ok", 1), ("ok", 2), ("ok", 3), ("late", 3)]
    assert merges_of(tables, "now_s", "used", "late") == [(3, 3, 1), (6, 3, 1)]


def test_a_round_with_enough_ends_at_its_deadline():
    """Two are wanted and there at 2 s; with both at 1 s the round still waits for the others until 2 s."""
    for seconds in ([1, 2, 3], [1, 1, 3]):
        tables, _ = run(seconds, protocol=within(deadline=2, minimum=2))
        assert merges_of(tables, "now_s", "used", "late") == [(2, 2, 1), (4, 2, 1)]


def test_a_round_that_lost_updates_is_extended():
    """At 2 s the update of 1 s is lost, one of two is there: the round goes on to 3 s."""
    tables, _ = run([1, 2, 3, 5], protocol=within(deadline=2, minimum=2), failures=RESTART)
    assert first_round(tables, "outcome", "end_s") == [("lost", 1), ("ok", 2), ("ok", 3), ("late", 3)]
    assert merges_of(tables, "now_s", "used", "late") == [(3, 2, 1), (5, 2, 2)]


def test_too_few_bring_nothing(tmp_path):
    """Devices 2 and 3 leave at 1.5 s, so that a third update never comes: two are thrown away, the model stays."""
    availability = there(tmp_path, (0, 0, 99), (1, 0, 99), (2, 0, 1.5), (3, 0, 1.5))
    tables, _ = run([1, 2, 3, 5], protocol=within(deadline=2, minimum=3), availability=availability)
    assert first_round(tables, "outcome", "end_s") == [("late", 1), ("late", 2), ("offline", 1.5), ("offline", 1.5)]
    assert merges_of(tables, "now_s", "version", "asked", "used", "late") == [(2, 0, 4, 0, 2), (4, 0, 2, 0, 2)]


def test_what_too_few_did_is_not_trained(tmp_path):
    """With real training nothing is left waiting for a merge, and the number stays."""
    availability = there(tmp_path, (0, 0, 99), (1, 0, 1.5))
    given = {"protocol": within(deadline=2, minimum=2), "availability": availability, "backend": "serial"}
    simulation, seen = numbers(scenario([1, 2], method=moved("Avg", [1, 1]), stop={"rounds": 3}, **given))
    assert [number for _, number in seen] == [0, 0, 0]
    assert simulation.learner._pending._jobs == {}


# --- updates that come one round late -----------------------------------------------------------------------


def late_by_a_round(**settings):
    """Return a scenario of devices of 1 and 3 s that move the number by 1 and -2, with a deadline of 2 s."""
    return scenario(
        [1, 3], method=moved("Avg", [1, -2]), protocol=within(deadline=2, **settings), backend="serial",
        stop={"rounds": 3},
    )  # fmt: skip


@pytest.mark.parametrize(("weight", "number"), [(1.0, 0.0), (0.5, 2 / 3), (0.25, 1.2)])
def test_the_late_count_in_the_next_round(weight, number):
    """Round 0 ends at 2 s with device 0: 1. Device 1 goes on and is not asked again; device 0 alone makes round 1.

    At 3 s it brings 2, and device 1, one version old, its -2: the mean with weights 1 and `weight` is 0, 2/3, 1.2.
    """
    simulation, seen = numbers(late_by_a_round(late="keep", late_weight=weight))
    assert seen[:2] == [(2, 1), (3, pytest.approx(number, abs=1e-6))]
    tables = frames(simulation)
    assert merges_of(tables, "now_s", "asked", "used", "late", "staleness_mean")[:2] == [
        (2, 1, 1, 0, 0),
        (3, 2, 2, 0, 0.5),
    ]
    assert tables["jobs"].query("device == 1")["sent_s"].tolist() == [0, 3]


def test_weights_zero_and_one_are_drop_and_keep():
    """Bit for bit: tables and weights. Dropped: device 1 is asked in vain in every round."""

    def left_behind(**settings):
        simulation, _ = numbers(late_by_a_round(**settings))
        return {
            **{name: table.to_csv() for name, table in frames(simulation).items()},
            "weights": fingerprint(simulation.learner.weights()),
        }

    drop, keep = left_behind(late="drop"), left_behind(late="keep")
    assert left_behind(late="keep", late_weight=0.0) == drop
    assert left_behind(late="keep", late_weight=1.0) == keep
    assert left_behind(late="drop", late_weight=0.3) == drop
    assert drop.keys() == keep.keys() and all(drop[name] != keep[name] for name in ("jobs", "rounds", "weights"))
    assert [number for _, number in numbers(late_by_a_round(late="drop"))[1]] == [1, 2, 3]


def test_late_updates_count_towards_the_minimum():
    """Round 0 is extended to 5 s for its third update. At 8 s there are two of round 1 and two late ones: enough."""
    tables, _ = run([1, 1.1, 5, 5.5, 5.7], rounds=4, protocol=within(deadline=3, late="keep", minimum=3))
    assert merges_of(tables, "now_s", "used") == [(5, 3), (8, 4), (11, 3), (14, 4)]


def test_a_late_update_may_end_an_extension():
    """Round 1 starts at 3 s. At its deadline, 5 s, it has one update; device 2's of round 0 comes before device 1's."""
    tables, _ = run([1, 3, 5.5], protocol=within(deadline=2, late="keep", minimum=2))
    assert merges_of(tables, "now_s", "used") == [(3, 2), (5.5, 2)]


def test_later_than_one_round_is_too_late():
    """Device 1 needs 10 s. Round 1 ends at 3 s with device 0: device 1 is cancelled then, and asked again."""
    tables, _ = run([1, 10], rounds=3, protocol=within(deadline=2, late="keep"))
    assert tables["jobs"].query("device == 1 and outcome == 'late'")[["sent_s", "end_s"]].to_numpy().tolist() == [
        [0, 3]
    ]
    assert merges_of(tables, "now_s", "asked", "used", "late") == [(2, 1, 1, 0), (3, 2, 1, 1), (5, 1, 1, 0)]


def test_everybody_is_late():
    """3 and 4 s, deadline 2 s: round 0 brings nothing. The next starts as device 0 is free, at 3 s, and is closed at
    5 s with both updates of round 0.
    """
    tables, _ = run([3, 4], protocol=within(deadline=2, late="keep"))
    assert merges_of(tables, "now_s", "version", "used") == [(2, 0, 0), (5, 1, 2)]


@pytest.mark.parametrize("late", ["drop", "keep"])
def test_a_rounding_error_after_the_deadline_is_in_time(late):
    """Half a nanosecond late counts as on time, whatever becomes of those who are really late."""
    tables, _ = run([2 + 5e-10, 3], rounds=1, protocol=within(deadline=2, late=late))
    assert merges_of(tables, "now_s", "used") == [(2, 1)]


# --- nobody is there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["sync", first(1), within(deadline=9)])
def test_the_clock_moves_to_the_next_change(tmp_path, protocol):
    """Device 0 is there from 5 to 8 s, device 1 from 20 to 24 s: rounds of 2 s from 5, 20 and 22 s, one broken off.

    At 24 s device 1 leaves as its update comes; nobody will ever be there again.
    """
    availability = there(tmp_path, (0, 5, 8), (1, 20, 24))
    tables, reason = run([2, 2], rounds=99, protocol=protocol, availability=availability)
    jobs = tables["jobs"][["device", "sent_s", "end_s", "outcome"]]
    assert [tuple(row) for row in jobs.itertuples(index=False)] == [
        (0, 5, 7, "ok"), (0, 7, 8, "offline"), (1, 20, 22, "ok"), (1, 22, 24, "ok"),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "used") == [(7, 1), (8, 0), (22, 1), (24, 1)]
    assert reason.startswith("no device can take part any more")


def test_all_crash_at_once():
    """At 0.5 s everybody is gone: the round ends then, without an update; the next is as if nothing had happened."""
    blackout = {"name": "tests.plugins.blackout:Blackout", "after": 0.5}
    tables, _ = run([1, 2], protocol="sync", failures=[blackout])
    assert first_round(tables, "outcome", "end_s") == [("crashed", 0.5), ("crashed", 0.5)]
    assert merges_of(tables, "now_s", "version", "used") == [(0.5, 0, 0), (2.5, 1, 2)]


def test_who_fits_is_waited_for(tmp_path):
    """Until 10 s only a device without the memory is there. Asking it takes no time, so the next round waits."""
    small = {"cpu": {"flops_per_s": JOB_FLOPS}, "memory": 1}
    fleet = [small, {"cpu": {"flops_per_s": JOB_FLOPS}}]
    tables, _ = run([1, 1], fleet=fleet, availability=there(tmp_path, (0, 0, 99), (1, 10, 99)))
    assert merges_of(tables, "now_s", "asked", "used") == [(0, 1, 0), (11, 2, 1)]


def test_rounds_that_take_no_time_end_the_run():
    """Downloads without length crash at their beginning: a thousand such rounds are enough."""
    crash = {"name": "crash", "probability": 1.0, "phase": "download"}
    tables, reason = run([1], rounds=10**9, failures=[crash])
    assert len(tables["rounds"]) == 1000
    assert "took no time" in reason
