"""Who took part in a run: counts and means of a scenario that is solved by hand, and sums that have to agree."""

import json

import numpy as np
import pytest

import edgesim
from edgesim.cli.look import energy_by
from edgesim.reports.participation import participation
from tests.calling import call
from tests.conftest import timing_scenario


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two rounds: of jobs of 7.3806 GFLOP "fast" devices need 7.3806 s, "slow" ones 73.8 s, with a deadline of 20 s.

    Computing adds 3 W to 1 W of idle power.
    """
    fleet = [
        {"name": "fast", "count": 3, "cpu": {"flops_per_s": "1 GFLOP/s"}},
        {"name": "slow", "count": 2, "cpu": {"flops_per_s": "100 MFLOP/s"}},
    ]
    scenario = timing_scenario(
        fleet=fleet, protocol={"name": "deadline", "deadline": "20 s"}, stop={"rounds": 2},
        energy={"name": "power", "idle": "1 W", "busy": "4 W"},
    )  # fmt: skip
    return edgesim.run(scenario, out=tmp_path_factory.mktemp("runs") / "run")


def test_a_row_for_each_kind(run):
    found = participation(run).set_index("kind")
    fast, slow = found.loc["fast"], found.loc["slow"]
    assert fast[["devices", "jobs", "ok_jobs", "late_jobs", "failed_jobs"]].tolist() == [3, 6, 6, 0, 0]
    assert slow[["devices", "jobs", "ok_jobs", "late_jobs", "failed_jobs"]].tolist() == [2, 4, 0, 4, 0]
    assert (fast["late_share"], slow["late_share"]) == (0.0, 1.0)
    assert fast["mean_compute_s"] == pytest.approx(7.3806)
    assert np.isnan(slow["mean_compute_s"])  # none delivered
    assert fast["active_j"] == pytest.approx(6 * 3 * 7.3806)
    assert slow["active_j"] == pytest.approx(4 * 3 * 20)
    assert found["idle_j"].tolist() == pytest.approx([3 * 40.0, 2 * 40.0])
    assert found["jobs_share"].tolist() == [0.6, 0.4]
    assert found["took_part"].tolist() == [1.0, 1.0]


def test_devices_add_up_to_their_kinds(run):
    kinds, each = participation(run), participation(run, each=True)
    sums = [name for name in kinds if name.endswith(("jobs", "_bytes", "_j")) or name == "jobs_share"]
    added = each.groupby("kind", sort=False)[sums].sum()
    assert added.to_numpy() == pytest.approx(kinds.set_index("kind")[sums].to_numpy())
    assert each["device"].tolist() == list(range(5)) and each["took_part"].tolist() == [1.0] * 5


def test_who_was_never_asked_has_a_row(tmp_path):
    scenario = timing_scenario(selection={"name": "uniform", "count": 1}, stop={"rounds": 1})
    found = participation(edgesim.run(scenario, out=tmp_path / "run"), each=True)
    assert len(found) == 5 and sorted(found["jobs"]) == [0, 0, 0, 0, 1]
    assert sorted(found["took_part"]) == [0, 0, 0, 0, 1]


def test_the_command(run):
    done = call("devices", run.folder)
    assert done.code == 0 and "run: 10 jobs in 2 rounds" in done.out
    slow = next(line.split() for line in done.out.splitlines() if line.split()[:1] == ["slow"])
    assert slow[:4] == ["slow", "2", "100.0%", "4"]
    found = json.loads(call("devices", run.folder, "--each", "--json").out)
    assert [row["device"] for row in found["devices"]] == list(range(5)) and found["status"] == "finished"
    assert found["devices"][4]["mean_compute_s"] is None


def test_joules_by_kind(run):
    found = energy_by(run, ["kind", "activity"]).set_index(["kind", "activity"])["joules"]
    assert found["slow", "compute"] == pytest.approx(4 * 3 * 20)
    assert found["fast", "idle"] == pytest.approx(120)
    assert found.sum() == pytest.approx(run.rounds["total_energy_j"].iloc[-1])
