"""The costs of DA-DPFL's comparison: those of its table, and those of runs beside what the paper would count.

Source: DA-DPFL paper, Table II, Figs. 3 and 4.
"""

import csv
import io
import runpy
from pathlib import Path

import pytest

import edgesim
from edgesim.config import device_profiles
from tests.conftest import digits_scenario
from tests.sizes import full

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "analysis" / "dadpfl_cost.py"))
RECONSTRUCTION = ROOT / "tests" / "world" / "data" / "dadpfl_cost_reconstruction.csv"
# The theta from which on DA-DPFL_Dir and DA-DPFL_Pat are cheaper.
THETAS = {
    "CIFAR10": {"DisPFL": (0.2091, 0.1575), "GossipFL": (0.1587, 0.1204), "DFedSAM": (0.0525, 0.0392)},
    "CIFAR100": {"DisPFL": (0.4496, 0.3781), "GossipFL": (0.2766, 0.2354), "DFedSAM": (0.1091, 0.0921)},
}
DEVICES, DEGREE, ROUNDS = 5, 2, 7
GPUS = {
    "fleet": [device_profiles.find("dadpfl_gpu").merged({"count": DEVICES})],
    "network": "ideal", "energy": "none",  # of the block instead
    "partition": {"name": "iid", "samples_per_device": 40},
    "cost": {"name": "measured", "sparse": "ideal"},
    "encoding": {"up": {"zeros": "known"}},
    "evaluation": {"every": ROUNDS},
    "stop": {"rounds": ROUNDS},
}  # fmt: skip
PEERS = {**GPUS, "peers": {"name": "random", "degree": DEGREE}, "selection": "all"}
# Everybody votes for it in round 1, so that devices prune in rounds 3 and 6.
PRUNING = {"name": "dadpfl", "change_below": 1e9, "b": 2, "c": 1.0, "end_round": ROUNDS, "growth": "random"}


def tables(text):
    """Return the CSV tables of an output."""
    return [list(csv.DictReader(io.StringIO(part))) for part in text.split("\n\n") if "," in part]


def printed(capsys, out, *runs):
    """Return the tables that the script prints, and whether it says which figures it drew."""
    SCRIPT["main"](list(runs), out=out)
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [f"{out}.png", f"{out}.svg"]
    return tables(text.rsplit("\n\n", 1)[0])


def test_the_papers_table(tmp_path, capsys):
    """All rows and columns of the reconstruction, and from which theta on DA-DPFL is cheaper than other peers."""
    costs10, thetas10, costs100, thetas100 = printed(capsys, tmp_path / "cost")
    expected = list(csv.DictReader(RECONSTRUCTION.read_text().splitlines()))
    assert len(expected) == len(costs10 + costs100) == 20
    for found, row in zip(costs10 + costs100, expected, strict=True):
        assert found.keys() == row.keys() and (found["dataset"], found["method"]) == (row["dataset"], row["method"])
        for name in list(row)[2:]:
            assert float(found[name]) == pytest.approx(float(row[name]), abs=1.0001e-4), name
    for found, dataset in ((thetas10, "CIFAR10"), (thetas100, "CIFAR100")):
        right = THETAS[dataset] | dict.fromkeys(("DFedAvgM", "BEER"), THETAS[dataset]["GossipFL"])
        crossings = {(row["cheaper"], row["than"]): float(row["from_theta"]) for row in found}
        assert crossings == {
            (f"DA-DPFL_{partition}", other): theta
            for other, pair in right.items()
            for partition, theta in zip(("Dir", "Pat"), pair, strict=True)
        }
    drawn = (tmp_path / "cost.svg").read_text()
    for label in ("CIFAR10", "CIFAR100", "FedAvg, Ditto", "GossipFL, DFedAvgM, BEER", "DA-DPFL_Dir", "theta"):
        assert f">{label}" in drawn


@full
def test_a_run_of_peers(tmp_path, capsys):
    """Rounds become cheaper as devices prune: the last one times their number is less than all of them.

    A device's 450 W over FLOPs / 16e12 and 1 W over 8 bits / 1e9 of each byte, both from the tables of the run.
    """
    edgesim.run(digits_scenario(method=PRUNING, **PEERS), out=tmp_path / "pruning")
    edgesim.run(digits_scenario(method={**PRUNING, "max_prunings": 0}, **PEERS), out=tmp_path / "whole")
    rows, *crossings = printed(capsys, tmp_path / "cost", tmp_path / "pruning", tmp_path / "whole")[4:]
    found = {(row["run"], row["counted"][:4]): {k: float(v) for k, v in list(row.items())[2:]} for row in rows}
    run = edgesim.open(tmp_path / "pruning")
    of_rounds = run.jobs.groupby("round")[["flops", "down_bytes"]].sum() / DEVICES
    joules = 450 * of_rounds["flops"] / 16e12 + 8 * of_rounds["down_bytes"] / 1e9
    seconds = of_rounds["flops"] / 16e12 + 8 * of_rounds["down_bytes"] / 1e9
    everything, last = found["pruning", "all "], found["pruning", "last"]
    assert everything["energy_j"] == pytest.approx(joules.sum(), rel=1e-5)
    assert everything["time_s"] == pytest.approx(run.rounds["now_s"].iloc[-1], rel=1e-5)
    assert last["energy_j"] == pytest.approx(ROUNDS * joules[ROUNDS - 1], rel=1e-5)
    assert last["bytes"] == pytest.approx(ROUNDS * of_rounds["down_bytes"][ROUNDS - 1], rel=1e-5)
    assert last["time_s"] / everything["time_s"] == pytest.approx(
        ROUNDS * seconds[ROUNDS - 1] / seconds.sum(), rel=1e-5
    )
    assert last["energy_j"] < everything["energy_j"] and last["time_s"] < everything["time_s"]
    assert everything["theta0.3"] == pytest.approx(0.7 * everything["time_s"] + 0.3 * everything["energy_j"], rel=1e-4)
    assert found["whole", "all "] == pytest.approx(found["whole", "last"], rel=1e-5)  # its rounds are all alike
    assert crossings == []  # pruning saves time and energy alike


@full
def test_a_run_with_a_server(tmp_path, capsys):
    """Two of five devices compute; of what the server receives, two models, a device bears a fifth."""
    edgesim.run(
        digits_scenario(method="fedavg", selection={"name": "uniform", "count": 2}, **GPUS), out=tmp_path / "server"
    )
    everything, last = (
        {k: float(v) for k, v in list(row.items())[2:]}
        for row in printed(capsys, tmp_path / "cost", tmp_path / "server")[4]
    )
    run = edgesim.open(tmp_path / "server")
    flops, nbytes = run.jobs["flops"].iloc[0], run.jobs["up_bytes"].iloc[0]
    energy_j = 0.4 * 450 * flops / 16e12 + 0.2 * 8 * 2 * nbytes / 1e9
    assert last["energy_j"] == pytest.approx(ROUNDS * energy_j, rel=1e-5)
    assert last["time_s"] == pytest.approx(ROUNDS * (flops / 16e12 + 8 * 2 * nbytes / 1e9), rel=1e-5)
    assert everything["energy_j"] == pytest.approx(last["energy_j"], rel=1e-5)
    # on their own links: down and up, the two at the same time
    assert everything["time_s"] == pytest.approx(ROUNDS * (flops / 16e12 + 8 * (nbytes + nbytes) / 1e9), rel=1e-5)


@full
def test_runs_of_other_devices_have_no_count_of_the_paper(tmp_path, capsys):
    """The paper's prices are those of its GPU; what the rounds of any run took stands in its ledger."""
    edgesim.run(digits_scenario(stop={"rounds": 2}), out=tmp_path / "phones")
    [row] = printed(capsys, tmp_path / "cost", tmp_path / "phones")[4]
    run = edgesim.open(tmp_path / "phones")
    devices = (run.devices["device"] >= 0).sum()
    assert row["counted"] == "all rounds"
    assert float(row["energy_j"]) == pytest.approx(run.rounds["energy_j"].sum() / devices, rel=1e-5)
    assert float(row["time_s"]) == pytest.approx(run.rounds["now_s"].iloc[-1], rel=1e-5)
