"""The same 30 % of the devices die in mid-training in every round: what real training makes of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import edgesim
from edgesim.reports.load import Run
from tests.sizes import full

FASHION = Path("/usr/share/datasets/fashion-mnist")  # of the Debian package dataset-fashion-mnist
ROUNDS, DEVICES, KILLED = 30, 20, 6
IDLE_W, BUSY_W, TRANSMIT_W, RECEIVE_W, LATENCY_S = 2.0, 5.0, 1.0, 0.5, 0.02
SCENARIO = {
    "seed": 5,
    "data": {"name": "fashion_mnist", "normalise": "none", "train_limit": 6000, "test_limit": 2000},
    "partition": {"name": "iid", "samples_per_device": 200},
    "model": "cnn_mnist",
    "training": {"local_epochs": 1, "batch": 20, "lr": 0.1},
    "network": {"name": "fixed", "up": "5 Mbit/s", "down": "20 Mbit/s", "latency": LATENCY_S},
    "energy": {"name": "power", "idle": IDLE_W, "busy": BUSY_W, "transmit": TRANSMIT_W, "receive": RECEIVE_W},
    "method": "fedavg",
    "protocol": {"name": "deadline", "deadline": "60 s"},
    "evaluation": {"every": ROUNDS},
    "stop": {"rounds": ROUNDS},
    "fleet": [{"count": DEVICES, "cpu": {"flops_per_s": {"uniform": ["20 MFLOP/s", "100 MFLOP/s"]}}}],
}
KILLING = {"name": "crash", "probability": 1.0, "share": KILLED / DEVICES, "phase": "training"}
SPENT = ["down_s", "compute_s", "up_s", "flops", "down_j", "compute_j", "up_j", "down_bytes", "up_bytes"]

pytestmark = [
    full,
    pytest.mark.skipif(not FASHION.is_dir(), reason="needs the Debian package dataset-fashion-mnist"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Give the run without failures and the one with them."""
    folder = tmp_path_factory.mktemp("killed")
    unharmed = edgesim.run(edgesim.load(SCENARIO), out=folder / "unharmed")
    return unharmed, edgesim.run(edgesim.load({**SCENARIO, "failures": [KILLING]}), out=folder / "killed")


def by_round(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return jobs by round and device."""
    return jobs.set_index(["round", "device"]).sort_index()


def test_the_run_ends(runs):
    """All rounds close with the updates of the survivors, as soon as these are there."""
    unharmed, killed = runs
    assert killed.manifest["stop_reason"] == f"{ROUNDS} rounds done"
    assert killed.rounds[["asked", "used", "late"]].to_numpy().tolist() == [[DEVICES, DEVICES - KILLED, 0]] * ROUNDS
    assert (unharmed.jobs["outcome"] == "ok").all()
    survivors = killed.jobs[killed.jobs["outcome"] == "ok"]
    assert killed.rounds["now_s"].tolist() == survivors.groupby("round")["end_s"].max().tolist()


def test_exactly_the_killed_jobs_are_there_with_what_they_spent(runs):
    """Six devices, the same in every round, end inside their training; all other jobs are as without failures."""
    whole, jobs = (by_round(run.jobs) for run in runs)
    crashed = jobs[jobs["outcome"] == "crashed"]
    assert len(crashed) == ROUNDS * KILLED
    assert crashed.index.get_level_values("device").nunique() == KILLED
    survivors = jobs.drop(crashed.index)
    assert set(survivors["outcome"]) == {"ok"}
    pd.testing.assert_frame_equal(survivors[SPENT], whole.loc[survivors.index, SPENT], rtol=1e-9)

    full = whole.loc[crashed.index]
    assert crashed["down_j"].to_numpy() == pytest.approx(RECEIVE_W * (full["down_s"] - LATENCY_S).to_numpy())
    assert ((crashed["compute_s"] > 0) & (crashed["compute_s"] < full["compute_s"])).all()
    assert crashed["compute_j"].to_numpy() == pytest.approx((BUSY_W - IDLE_W) * crashed["compute_s"].to_numpy())
    share = crashed["compute_s"] / full["compute_s"]
    assert crashed["flops"].to_numpy() == pytest.approx((share * full["flops"]).to_numpy())
    assert share.groupby("device").nunique().eq(ROUNDS).all()  # at another moment in every round
    assert (crashed[["up_s", "up_j", "up_bytes"]] == 0).all(axis=None)


def test_the_others_learn_as_well(runs):
    """Independent and identically distributed data: losing 30 % of it costs at most 0.05 of accuracy."""
    unharmed, killed = (run.evals["accuracy"].iloc[-1] for run in runs)
    assert unharmed > 0.7
    assert killed == pytest.approx(unharmed, abs=0.05)
