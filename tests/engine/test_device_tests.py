"""Tests of the global model on devices: seconds, bytes and joules by hand."""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.engine.device_tests import RESULT_BYTES
from edgesim.reports.critical_path import attribute
from edgesim.runs.estimate import estimate
from edgesim.runs.simulate import simulate
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.sizes import full

LINK = {"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s", "latency": "0.1 s"}
POWER = {"name": "power", "idle": "1 W", "busy": "5 W", "transmit": "2 W", "receive": "0.5 W"}
SPEED, COUNT, SAMPLES = 1e9, 4, 500


def run_of(on_devices, rounds=3, **changes):
    """Return a run of equal devices, of which some test the model."""
    given = {
        "fleet": [{"count": COUNT, "cpu": {"flops_per_s": SPEED}}],
        "network": LINK,
        "energy": POWER,
        "evaluation": {"on_devices": on_devices} if on_devices is not None else {},
        "stop": {"rounds": rounds},
    }
    return simulate_null(timing_scenario(**{**given, **changes}))


def test_a_test_is_a_download_a_forward_pass_and_a_result():
    """By closed forms; the next round begins with it, and the last model ends the run."""
    run, plain = run_of(2), run_of(None)
    jobs, rounds = frames(run)["jobs"], frames(run)["rounds"]
    profile, tests = run.parts.setting.cost_profile, jobs[jobs["task"] == "test"]
    down_s, up_s = 0.1 + 8 * 4 * profile.params / 8e6, 0.1 + 8 * RESULT_BYTES / 1e6
    compute_s = SAMPLES * profile.forward_flops() / SPEED
    assert tests["round"].tolist() == [1, 1, 2, 2]
    for column, expected in {"down_s": down_s, "compute_s": compute_s, "up_s": up_s}.items():
        assert tests[column].tolist() == pytest.approx([expected] * 4)
    assert tests["flops"].tolist() == [SAMPLES * profile.forward_flops()] * 4
    assert set(tests["up_bytes"]) == {RESULT_BYTES} and set(tests["down_bytes"]) == {4 * profile.params}
    assert tests["compute_j"].tolist() == pytest.approx([4 * compute_s] * 4)
    assert tests["down_j"].tolist() == pytest.approx([0.5 * (down_s - 0.1)] * 4)
    lengths_s = (rounds["now_s"] - rounds["start_s"]).tolist()
    training_s = frames(plain)["rounds"]["now_s"].iloc[0]
    test_s = down_s + compute_s + up_s
    assert lengths_s == pytest.approx([training_s, training_s + test_s, training_s + test_s])
    assert rounds["asked"].tolist() == rounds["used"].tolist() == [COUNT] * 3
    path = attribute(jobs, rounds)
    parts = ["down_s", "compute_s", "up_s", "link_wait_s", "wait_s"]
    assert path[parts].sum(axis=1).tolist() == pytest.approx(lengths_s)
    assert path["wait_s"].tolist() == pytest.approx([0, 0, 0], abs=1e-9)


@pytest.mark.parametrize(("wanted", "count"), [(1, 1), (3, 3), (9, 4), (0.5, 2), (1.0, 4), (0.01, 1)])
def test_number_or_share(wanted, count):
    """No more than there are, and at least one."""
    jobs = frames(run_of(wanted, rounds=2))["jobs"]
    assert (jobs["task"] == "test").sum() == count


def test_all_devices_are_drawn_sooner_or_later():
    """One of four in each of 40 rounds: drawn anew, and in the same way again."""
    devices = [frames(run_of(1, rounds=40))["jobs"].query("task == 'test'")["device"].tolist() for _ in range(2)]
    assert devices[0] == devices[1] and len(devices[0]) == 39
    assert (np.bincount(devices[0], minlength=COUNT) >= 3).all()


def test_devices_test_when_the_model_is_evaluated():
    """Every second model, at the beginning of the round after."""
    jobs = frames(run_of(1, rounds=6, evaluation={"on_devices": 1, "every": 2}))["jobs"]
    assert jobs[jobs["task"] == "test"]["round"].tolist() == [2, 4]


@pytest.mark.parametrize("protocol", [{"name": "deadline", "deadline": "1 s"}, {"name": "over_selection", "keep": 2}])
def test_protocols_that_do_not_wait_for_all(protocol):
    """The server waits for its tests, whatever it does with updates."""
    tables = frames(run_of(2, protocol=protocol))
    tests = tables["jobs"].query("task == 'test'")
    assert len(tests) == 4 and set(tests["outcome"]) == {"ok"}


def test_two_networks_have_two_prices():
    """Each device tests its own."""
    fleet = [{"cpu": {"flops_per_s": SPEED}, "model": model} for model in ("cnn_cifar10", "lenet5")]
    run = run_of(1.0, rounds=2, fleet=fleet)
    tests = frames(run)["jobs"].query("task == 'test'").sort_values("device")
    each = run.parts.setting.cost_profile.networks.values()
    assert tests["flops"].tolist() == [SAMPLES * profile.forward_flops() for profile in each]


def test_batteries_pay_for_tests():
    """With tests the same charge lasts for fewer rounds."""
    battery = {"name": "rechargeable", "capacity": "2 kJ"}
    fleet = [{"count": 2, "cpu": {"flops_per_s": SPEED}, "battery": battery}]
    with_tests, plain = (run_of(each, rounds=50, fleet=fleet).session.round for each in (1.0, None))
    assert 0 < with_tests < plain < 50


@full
def test_training_is_not_touched(tmp_path):
    """Real training with and without tests: the same accuracies, later; the estimate knows the seconds."""
    scenarios = [digits_scenario(evaluation=given, stop={"rounds": 3}) for given in ({"on_devices": 3}, {})]
    tested, plain = (simulate(each, tmp_path / str(place)) for place, each in enumerate(scenarios))
    assert tested.table("evals")["accuracy"].tolist() == plain.table("evals")["accuracy"].tolist()
    ends_s = [run.table("rounds")["now_s"].iloc[-1] for run in (tested, plain)]
    assert ends_s[0] > ends_s[1]
    assert estimate(scenarios[0]).totals["sim_time_s"] == pytest.approx(ends_s[0])


def test_a_run_may_end_in_mid_test():
    """What the devices have done until then is charged: half the forward pass."""
    whole = frames(run_of(1.0, rounds=2))["jobs"].query("task == 'test'").iloc[0]
    ends_s = float(whole["sent_s"] + whole["down_s"] + whole["compute_s"] / 2)
    run = run_of(1.0, stop={"sim_time": ends_s})
    tests = frames(run)["jobs"].query("task == 'test'")
    assert set(tests["outcome"]) == {"stopped"} and run.session.now_s == ends_s
    assert tests["compute_j"].tolist() == pytest.approx([whole["compute_j"] / 2] * COUNT)


def test_devices_that_fail_or_leave_hold_up_nothing():
    """Crashes and short stays: the run goes on, and every joule of its jobs is accounted for."""
    changes = {
        "availability": {"name": "sessions", "on": "2 min", "off": "1 min"},
        "failures": [{"name": "crash", "probability": 0.3}],
    }
    run = run_of(1.0, rounds=30, **changes)
    jobs, rounds = frames(run)["jobs"], frames(run)["rounds"]
    tests = jobs[jobs["task"] == "test"]
    assert len(rounds) == 30 and {"ok", "crashed"} <= set(tests["outcome"])
    spent_j = jobs[["down_j", "compute_j", "up_j"]].to_numpy().sum()
    assert rounds["total_active_j"].iloc[-1] == pytest.approx(spent_j)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "dfedavg", "peers": "ring"},
        {"method": "fedbuff", "protocol": {"name": "buffered", "buffer": 2, "concurrency": 4}},
        {"topology": {"name": "tree", "edge_servers": 2}, "edges": {}},
    ],
    ids=["peers", "buffered", "edges"],
)
def test_where_there_are_no_rounds_it_is_refused(changes):
    """A server between whose merges devices go on, peers, and edge servers."""
    with pytest.raises(ConfigError, match=r"evaluation\.on_devices: needs a server that asks devices in rounds"):
        run_of(1, **changes)


@pytest.mark.parametrize("wrong", [0, -1, 0.0, 1.5, "all", True])
def test_other_numbers_are_refused(wrong):
    """A number is at least 1, and a share is above 0 and at most 1."""
    with pytest.raises(ConfigError, match=r"evaluation\.on_devices"):
        run_of(wrong)
