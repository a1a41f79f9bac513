"""The asynchronous protocol on timelines worked by hand; timing only, unless a test says otherwise."""

from __future__ import annotations

import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.engine.protocols.buffered import Buffered
from tests.conftest import frames, simulate_null, timing_scenario
from tests.plugins.one_number import JOB_FLOPS, moved, numbers, scenario

SAME = {"name": "buffered", "concurrency": 2, "buffer": 1, "reassign": "same"}
RANDOM = {**SAME, "reassign": "random"}
SMALL = {"cpu": {"flops_per_s": JOB_FLOPS}, "memory": 1}  # one byte: nothing fits


def run(seconds, *, rounds=4, **changes):
    """Run devices that train for so many seconds; return tables and the reason of the end."""
    simulation = simulate_null(scenario(seconds, method="fedbuff", stop={"rounds": rounds}, **changes))
    return frames(simulation), simulation.rounds.stop_reason


def jobs_of(tables, *columns):
    """Return columns of the jobs, in the order in which they were sent, without those in flight at the end."""
    jobs = tables["jobs"].query("outcome != 'stopped'").sort_values("job")
    return [tuple(row) for row in jobs[list(columns)].itertuples(index=False)]


def merges_of(tables, *columns):
    """Return columns of the merges."""
    return [tuple(row) for row in tables["rounds"][list(columns)].itertuples(index=False)]


def fleet(*seconds):
    """Return blocks of one device each; None: one without the memory to train."""
    return [SMALL if s is None else {"cpu": {"flops_per_s": JOB_FLOPS / s}} for s in seconds]


def there(tmp_path, *rows):
    """Return an availability of (device, start, end)."""
    path = tmp_path / "there.csv"
    pd.DataFrame(rows, columns=["device", "start", "end"]).to_csv(path, index=False)
    return {"name": "trace", "file": str(path)}


# --- places and merges --------------------------------------------------------------------------------------


def test_every_second_update_is_merged():
    """Two devices of 2 and 3 s, two updates a merge.

    t=2 A in the buffer, asked again; t=3 B: merge 1. t=4 A, sent at 2 from version 0, is one merge old. t=6 A, sent at
    4 from version 1, is taken first, by device: merge 2; then B, sent at 3 from version 1, is one merge old. Both are
    asked again with version 2. t=8 A, fresh: merge 3.
    """
    tables, _ = run([2, 3], rounds=3, protocol={**SAME, "buffer": 2})
    assert jobs_of(tables, "device", "sent_s", "end_s", "base_version") == [
        (0, 0, 2, 0), (1, 0, 3, 0), (0, 2, 4, 0), (1, 3, 6, 1), (0, 4, 6, 1), (0, 6, 8, 2),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "version", "asked", "used", "staleness_mean") == [
        (3, 1, 2, 2, 0), (6, 2, 2, 2, 0.5), (8, 3, 2, 2, 0.5),
    ]  # fmt: skip


def test_who_arrives_together_is_taken_one_by_one():
    """At 3 s A (1 s) is merged and asked again with version 3, only then B (3 s), which gets version 4.

    With as many places as devices a place can only go to the device that left it, so both rules give the same run.
    """
    runs = [run([1, 3], rounds=8, protocol=protocol)[0] for protocol in (SAME, RANDOM)]
    sent = [row for row in jobs_of(runs[0], "sent_s", "device", "base_version") if row[0] == 3]
    assert sorted(sent) == [(3, 0, 3), (3, 1, 4)]
    for name, table in runs[0].items():
        pd.testing.assert_frame_equal(table, runs[1][name])


@pytest.mark.parametrize("selection", ["all", {"name": "uniform", "count": 1}])
def test_all_places_are_taken_all_the_time(selection):
    """Five devices, three places: until the end three are at work at every instant, and everybody has his turn."""
    simulation = simulate_null(
        scenario(
            [1, 2, 3, 4, 5], method="fedbuff", stop={"rounds": 60}, selection=selection,
            protocol={"name": "buffered", "concurrency": 3, "buffer": 1},
        )
    )  # fmt: skip
    jobs, end_s = frames(simulation)["jobs"], simulation.session.now_s
    for now_s in sorted(set(jobs["sent_s"]) - {end_s}):
        assert ((jobs["sent_s"] <= now_s) & (now_s < jobs["end_s"])).sum() == 3
    assert set(jobs["device"]) == {0, 1, 2, 3, 4}
    assert all((own["sent_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()
               for _, own in jobs.sort_values("job").groupby("device"))  # fmt: skip


def test_the_same_device_keeps_its_place():
    """Two places among five devices never change hands."""
    tables, _ = run([1, 1, 1, 1, 1], rounds=20, protocol=SAME)
    assert tables["jobs"]["device"].nunique() == 2


def test_what_is_too_old_is_discarded():
    """B (3 s) is three merges old at 3 s. If two are the most, it is not merged and asked again with version 3.

    Its completion belongs to the merge at 4 s, which uses A alone.
    """
    tables, _ = run([1, 3], protocol={**SAME, "max_staleness": 2})
    assert jobs_of(tables, "device", "end_s", "outcome") == [
        (0, 1, "ok"), (1, 3, "stale"), (0, 2, "ok"), (0, 3, "ok"), (0, 4, "ok"),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "version", "asked", "used") == [
        (1, 1, 1, 1), (2, 2, 1, 1), (3, 3, 1, 1), (4, 4, 2, 1),
    ]  # fmt: skip
    assert tables["jobs"].query("device == 1 and sent_s == 3")["base_version"].tolist() == [3]
    kept, _ = run([1, 3], protocol={**SAME, "max_staleness": 3})
    assert set(kept["jobs"].query("end_s < 3.5 or device == 1")["outcome"]) <= {"ok", "stopped"}
    assert merges_of(kept, "now_s", "version", "used") == [(1, 1, 1), (2, 2, 1), (3, 3, 1), (3, 4, 1)]


def test_updates_wait_while_the_server_works():
    """An update of one number costs the server 2 FLOPs, 1 s here. A takes 1 s, B 1.25 s.

    A is merged from 1 to 2 s; B comes at 1.25 s, is taken at 2 s, one merge old, and merged until 3 s. A, asked again
    at 2 s with version 1, comes at 3 s, and is one merge old when it is taken then.
    """
    tables, _ = run([1, 1.25], rounds=3, protocol=SAME, server={"flops_per_s": 2})
    assert merges_of(tables, "now_s", "staleness_mean", "server_s") == [(2, 0, 1), (3, 1, 1), (4, 1, 1)]
    assert jobs_of(tables, "device", "sent_s", "end_s", "base_version")[:3] == [
        (0, 0, 1, 0), (1, 0, 1.25, 0), (0, 2, 3, 1),
    ]  # fmt: skip


def test_more_places_than_devices_are_refused():
    with pytest.raises(ConfigError, match=r"protocol\.concurrency: must be at most the 1 devices.*found 2"):
        run([1], protocol=SAME)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"buffer": 0}, {"a": 0}, {"b": -1}, {"max_staleness": -1}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"protocol\.{key}"):
        scenario([1, 1], protocol={**SAME, **wrong})


def test_weights_never_rise_with_staleness():
    """Each function starts at 1, falls or stays, and remains positive."""
    for staleness in ("constant", "polynomial", "hinge"):
        weights = [Buffered(concurrency=1, staleness=staleness).weight(s) for s in range(50)]
        assert weights[0] == 1 and min(weights) > 0
        assert weights == sorted(weights, reverse=True)


# --- a server that restarts ---------------------------------------------------------------------------------


def restarting(*at, **changes):
    """Return what changes for two devices of 2 and 3 s and four updates a merge."""
    failures = [{"name": "server_restart", "at": list(at)}]
    return {"protocol": {**SAME, "buffer": 4, "staleness": "constant"}, "failures": failures, **changes}


def test_a_restart_loses_exactly_what_was_in_the_buffer():
    """Updates of 2, 3 and 4 s are lost at 4.5 s; those of 6 (A, B), 8 (A) and 9 s (B) are merged at 9 s.

    A's job of 4 to 6 s is at work during the restart, and counts.
    """
    tables, _ = run([2, 3], rounds=1, **restarting("4.5 s"))
    assert sorted(jobs_of(tables, "end_s", "device", "outcome")) == [
        (2, 0, "lost"), (3, 1, "lost"), (4, 0, "lost"), (6, 0, "ok"), (6, 1, "ok"), (8, 0, "ok"), (9, 1, "ok"),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "version", "asked", "used") == [(9, 1, 7, 4)]


def test_two_restarts():
    """At 2.5 s and 4.5 s: the first loses A, the second B and A again; nobody is lost twice."""
    tables, _ = run([2, 3], rounds=1, **restarting("2.5 s", "4.5 s"))
    assert tables["jobs"]["outcome"].value_counts().to_dict() == {"lost": 3, "ok": 4, "stopped": 1}
    assert merges_of(tables, "now_s", "asked", "used") == [(9, 7, 4)]


@pytest.mark.parametrize("before", [[], ["1 s"], ["3.5 s"]])
def test_who_arrives_at_the_instant_of_a_restart_is_not_lost(before):
    """At 4 s A's second update survives, whether the restart was foreseen before or after that job was sent (2 s).

    With it four are there at 8 s: A at 4, A and B at 6, A at 8.
    """
    tables, _ = run([2, 3], rounds=1, **restarting(*before, "4 s"))
    assert sorted(jobs_of(tables, "end_s", "device", "outcome"))[:3] == [(2, 0, "lost"), (3, 1, "lost"), (4, 0, "ok")]
    assert merges_of(tables, "now_s", "asked", "used") == [(8, 6, 4)]


def test_lost_updates_teach_nothing():
    """Trained for real: A moves by 1, B by -2, all start from 0: (1 - 2 + 1 - 2) / 4, not the mean of seven."""
    given = restarting("4.5 s", method=moved("Buff", [1, -2]), backend="serial", stop={"rounds": 2})
    simulation, seen = numbers(scenario([2, 3], **given))
    assert seen[0] == (9, -0.5)
    in_flight = set(frames(simulation)["jobs"].query("outcome == 'stopped'")["job"])
    assert simulation.learner._pending._jobs.keys() == in_flight


# --- devices that fail, or are not there --------------------------------------------------------------------


def test_who_leaves_is_replaced_and_who_comes_is_asked(tmp_path):
    """One place. Device 0 leaves in its third job, at 5 s; then device 1 takes over until it leaves at 8 s.

    Nobody is there from 8 to 20 s. Device 0 comes at 20 s; its job of 22 s ends as it leaves, and counts. Then nobody
    will ever be there again.
    """
    availability = there(tmp_path, (0, 0, 5), (0, 20, 24), (1, 5, 8))
    alone = {**SAME, "concurrency": 1}
    tables, reason = run([2, 2], rounds=99, protocol=alone, availability=availability)
    assert jobs_of(tables, "device", "sent_s", "end_s", "outcome") == [
        (0, 0, 2, "ok"), (0, 2, 4, "ok"), (0, 4, 5, "offline"), (1, 5, 7, "ok"), (1, 7, 8, "offline"),
        (0, 20, 22, "ok"), (0, 22, 24, "ok"),
    ]  # fmt: skip
    assert tables["rounds"]["now_s"].tolist() == [2, 4, 7, 22, 24]
    assert reason.startswith("no device can take part any more")


def test_a_free_place_is_filled_as_soon_as_somebody_comes(tmp_path):
    """Device 0 works from 0 to 10 s; device 1 comes at 3 s and does not wait for it."""
    tables, _ = run([10, 4], rounds=2, protocol=SAME, availability=there(tmp_path, (0, 0, 99), (1, 3, 99)))
    assert jobs_of(tables, "device", "sent_s", "end_s") == [(0, 0, 10), (1, 3, 7)]


def test_a_buffer_that_will_never_be_full_is_not_merged(tmp_path):
    """Both leave at 4.5 s, after three updates of the four that a merge needs."""
    availability = there(tmp_path, (0, 0, 4.5), (1, 0, 4.5))
    tables, reason = run([2, 3], rounds=1, protocol={**SAME, "buffer": 4}, availability=availability)
    assert sorted(tables["jobs"]["outcome"]) == ["offline", "offline", "ok", "ok", "ok"]
    assert len(tables["rounds"]) == 0
    assert reason.startswith("no device can take part any more")


def test_all_crash_at_once():
    """At 1 s everybody is gone, and asked again at once; the merge of 5 s hears of two crashes and two updates."""
    blackout = {"name": "tests.plugins.blackout:Blackout", "after": 1.0}
    tables, _ = run([2, 4], rounds=1, protocol={**SAME, "buffer": 3}, failures=[blackout])
    assert jobs_of(tables, "device", "sent_s", "end_s", "outcome") == [
        (0, 0, 1, "crashed"), (1, 0, 1, "crashed"), (0, 1, 3, "ok"), (1, 1, 5, "ok"), (0, 3, 5, "ok"),
    ]  # fmt: skip
    assert merges_of(tables, "now_s", "asked", "used") == [(5, 5, 3)]


@pytest.mark.parametrize("protocol", [SAME, RANDOM])
def test_who_has_no_memory_holds_nobody_up(protocol):
    """Device 0 can never train: it is refused once a merge, device 1 works on; the clock does not stand still."""
    tables, _ = run([1, 1], rounds=3, protocol=protocol, fleet=fleet(None, 1))
    outcomes = tables["jobs"].query("outcome != 'stopped'").groupby("device")["outcome"].agg(list)
    assert outcomes[0] == ["no_memory"] * 3
    assert outcomes[1] == ["ok"] * 3
    assert tables["rounds"]["now_s"].tolist() == [1, 2, 3]


def test_a_place_goes_to_somebody_who_can_train():
    """One place, three devices, of which one can train: whoever is asked first, it works from the beginning."""
    alone = {**SAME, "concurrency": 1}
    for seed in range(4):
        tables, _ = run([1] * 3, rounds=2, protocol=alone, fleet=fleet(None, None, 1), seed=seed)
        assert tables["jobs"].query("outcome == 'ok'")["sent_s"].tolist() == [0, 1]


def test_a_fleet_that_nobody_fits_ends_with_the_reason():
    """Nothing else would stop it."""
    tables, reason = run([1, 1], rounds=10**9, protocol=SAME, fleet=fleet(None, None))
    assert "memory" in reason
    assert set(tables["jobs"]["outcome"]) == {"no_memory"}


def test_who_fits_is_waited_for(tmp_path):
    """Until 10 s only a device without the memory is there: the clock moves on to the other."""
    tables, _ = run(
        [1, 1], rounds=1, protocol=SAME, fleet=fleet(None, 1), availability=there(tmp_path, (0, 0, 99), (1, 10, 99))
    )
    assert jobs_of(tables, "device", "sent_s", "outcome") == [
        (0, 0, "no_memory"), (0, 10, "no_memory"), (1, 10, "ok"),
    ]  # fmt: skip
    assert tables["rounds"]["now_s"].tolist() == [11]


def test_devices_that_crash_at_once_end_the_run():
    """A download without length crashes at its beginning: no time passes, so the run ends after a thousand tries."""
    crash = {"name": "crash", "probability": 1.0, "phase": "download"}
    tables, reason = run([1, 1], rounds=10**9, protocol=SAME, failures=[crash])
    assert set(tables["jobs"]["end_s"]) == {0}
    assert "failed at the instant of being asked" in reason


def test_a_device_that_crashes_at_once_now_and_then():
    """With probability 0.5 its first tries may fail; it is tried again at once, and the run goes on."""
    crash = {"name": "crash", "probability": 0.5, "phase": "download"}
    tables, reason = run([1], rounds=20, protocol={**SAME, "concurrency": 1}, failures=[crash])
    assert reason == "20 rounds done"
    assert tables["rounds"]["now_s"].tolist() == list(range(1, 21))
    assert (tables["jobs"]["outcome"] == "crashed").sum() > 5


def test_half_of_a_fleet_crashes_at_once():
    """Those whom it befalls are left alone until the next merge; all four places go to the others."""
    crash = {"name": "crash", "probability": 1.0, "phase": "download", "share": 0.5}
    tables, _ = run([1] * 8, rounds=3, protocol={**RANDOM, "concurrency": 4, "buffer": 4}, failures=[crash])
    assert tables["rounds"]["now_s"].tolist() == [1, 2, 3]
    crashed = tables["jobs"].query("outcome == 'crashed'").groupby(["round", "device"]).size()
    assert crashed.max() == 1


# --- the clock and the books --------------------------------------------------------------------------------


def test_links_and_joules_add_up():
    """The ledger closes in an asynchronous run with crashes, restarts, links and powers; everybody is charged."""
    network = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "9 Mbit/s"]}, "down": "20 Mbit/s", "latency": "50 ms"}
    given = timing_scenario(
        method="fedbuff", protocol={**RANDOM, "concurrency": 3, "buffer": 2, "max_staleness": 3}, network=network,
        energy={"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.5 W"},
        failures=[{"name": "crash", "probability": 0.3}, {"name": "server_restart", "mean_time": "60 s"}],
        stop={"rounds": 30},
    )  # fmt: skip
    simulation = simulate_null(given)  # checks the ledger
    tables = frames(simulation)
    assert {"ok", "crashed", "lost"} <= set(tables["jobs"]["outcome"])
    assert tables["rounds"]["now_s"].is_monotonic_increasing
    assert (tables["rounds"]["used"] == 2).all()
    assert tables["jobs"]["job"].is_unique
    assert (tables["jobs"][["down_j", "compute_j", "up_j"]].sum() > 0).all()


def test_a_run_that_trains_takes_the_same_time():
    """The tables of a run that trains are those of one that does not, but for what was learnt."""
    given = {"protocol": {**RANDOM, "buffer": 2}, "method": moved("Buff", [1, -2, 3]), "stop": {"rounds": 9}}
    trained, _ = numbers(scenario([1, 2, 3], **given, backend="serial"))
    timed = simulate_null(scenario([1, 2, 3], **given))
    for name in ("jobs", "rounds"):
        pd.testing.assert_frame_equal(frames(trained)[name], frames(timed)[name])
