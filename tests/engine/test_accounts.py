"""Joules of devices, network and server stand in accounts of their own, the same wherever a run is told of."""

import csv
import io
import json

import pytest

import edgesim
from edgesim.runs.estimate import estimate
from edgesim.studies.column import parse_column
from tests.calling import call
from tests.conftest import PSI, simulate_null, timing_scenario
from tests.sizes import full

NBYTES = 4 * 567_858  # of CNN-CIFAR10 in float32
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
# 2,271,432 bytes: 2.271432 s down at 8 Mbit/s, 10 s of computing, 9.085728 s up at 2 Mbit/s
DOWN_S, COMPUTE_S, UP_S = 8 * NBYTES / 8e6, 10.0, 8 * NBYTES / 2e6
ROUND_S = DOWN_S + COMPUTE_S + UP_S
ACTIVE_J = 0.5 * DOWN_S + 3.0 * COMPUTE_S + 1.0 * UP_S  # of a device and round
NETWORK_J = 8 * 2 * NBYTES * 3e-6  # of a device and round, at 3 uJ/bit: 109 J, more than the device's


def two_devices(**changes):
    """Two equal devices on a network that takes 3 uJ/bit, and a server that draws 7 W."""
    network = {"name": "fixed", "up": "2 Mbit/s", "down": "8 Mbit/s", "latency": 0, "energy_per_bit": "3 uJ/bit"}
    fleet = [{"name": "phone", "count": 2, "cpu": {"flops_per_s": PSI}}]
    base = {"network": network, "energy": POWER, "fleet": fleet, "server": {"idle": "7 W"}, "stop": {"rounds": 3}}
    return timing_scenario(**{**base, **changes})


def test_three_accounts_of_a_run_by_hand():
    rounds = simulate_null(two_devices()).tables["rounds"].frame()
    done = range(1, 4)
    active_j, idle_j = [n * 2 * ACTIVE_J for n in done], [n * 2 * 2.0 * ROUND_S for n in done]
    assert rounds["total_active_j"].tolist() == pytest.approx(active_j, rel=1e-12)
    assert rounds["total_idle_j"].tolist() == pytest.approx(idle_j, rel=1e-12)
    devices_j = [active + idle for active, idle in zip(active_j, idle_j, strict=True)]
    assert rounds["total_energy_j"].tolist() == pytest.approx(devices_j, rel=1e-12)
    assert rounds["total_participant_j"].tolist() == pytest.approx(devices_j, rel=1e-12)
    assert rounds["total_energy_network_j"].tolist() == pytest.approx([n * 2 * NETWORK_J for n in done], rel=1e-12)
    assert rounds["total_energy_server_j"].tolist() == pytest.approx([n * 7.0 * ROUND_S for n in done], rel=1e-12)
    assert rounds["energy_network_j"].tolist() == pytest.approx([2 * NETWORK_J] * 3, rel=1e-12)


@pytest.mark.parametrize("devices", [2, 60])  # few jobs are summed one by one, many at once
def test_jobs_in_flight_are_split_too(devices):
    """The server merges when half of the devices are done; the others computed for 15 s, so they still send."""
    half, speeds = devices // 2, (PSI, PSI / 1.5)
    simulation = simulate_null(
        two_devices(
            fleet=[{"count": half, "cpu": {"flops_per_s": speed}} for speed in speeds],
            method="fedbuff",
            protocol={"name": "buffered", "concurrency": devices, "buffer": half},
            selection="all",
            stop={"rounds": 1},
        )
    )
    (row,) = simulation.tables["rounds"].frame().to_dict("records")
    sent_s = UP_S - 5.0
    active_j = ACTIVE_J + (0.5 * DOWN_S + 3.0 * 15.0 + 1.0 * sent_s)  # of one that is done and one that sends
    assert row["total_active_j"] == pytest.approx(half * active_j, rel=1e-9)
    network_j = NETWORK_J + 8 * 3e-6 * (NBYTES + int(sent_s * 2e6 / 8))
    assert row["total_energy_network_j"] == pytest.approx(half * network_j, rel=1e-6)


def test_a_limit_on_energy_is_one_of_the_devices():
    """Three rounds of both devices take 446 J and those of network and server 1.1 kJ."""
    of_devices_j = 2 * (ACTIVE_J + 2.0 * ROUND_S)
    scenario = two_devices(stop={"energy": f"{2.5 * of_devices_j} J"})
    assert len(simulate_null(scenario).tables["rounds"]) == 3
    assert estimate(scenario).totals["rounds"] == 2  # whole rounds that the limit allows


@pytest.fixture(scope="module")
def on_lte(tmp_path_factory):
    """A run on `network = "lte"` whose server draws power, a table of it and the study that it is a cell of."""
    folder = tmp_path_factory.mktemp("lte")
    (folder / "lte.toml").write_text(
        'seed = 1\nmodel = "cnn_digits"\ndata = "digits"\npartition = "iid"\nnetwork = "lte"\nbackend = "null"\n'
        'energy = { name = "power", idle = "0.5 W", busy = "3 W" }\nserver = { idle = "10 W", busy = "30 W", '
        'flops_per_s = "1 MFLOP/s" }\nmethod = "fedavg"\nstop = { rounds = 3 }\n'
        '[training]\nbatch = 16\nlr = 0.1\n[[fleet]]\nname = "phone"\ncount = 4\ncpu = { flops_per_s = "1 GFLOP/s" }\n'
    )
    columns = ["energy_j", "energy_device_j", "energy_network_j", "energy_server_j", "energy_total_j"]
    (folder / "study.toml").write_text(
        f'base = "lte.toml"\nquestion = "Which?"\ncolumns = {json.dumps(columns)}\nname = "lte"\n'
        '[axes]\nmethod = ["fedavg", "fedprox"]\n[sizes]\nquick = {}\n'
    )
    run = edgesim.run(edgesim.load(folder / "lte.toml"), out=folder / "run")
    return folder, run, columns


def test_commands_agree_on_the_accounts_of_a_run(on_lte):
    folder, run, _ = on_lte
    last = run.rounds.iloc[-1]
    expected = {
        "energy_j": float(run.devices[run.devices["device"] >= 0].filter(regex="_j$").to_numpy().sum()),
        "energy_network_j": float(run.jobs["link_j"].sum()),
        "energy_server_j": float(run.devices[run.devices["device"] < 0].filter(regex="_j$").to_numpy().sum()),
    }
    assert min(expected.values()) > 0 and expected["energy_network_j"] > expected["energy_j"]
    assert {name: last[f"total_{name}"] for name in expected} == pytest.approx(expected, rel=1e-9)

    devices = json.loads(call("devices", run.folder, "--json").out)["kinds"]
    assert sum(row["active_j"] + row["idle_j"] for row in devices) == pytest.approx(expected["energy_j"], rel=1e-9)
    assert "network_j" not in devices[0]

    energy = json.loads(call("energy", run.folder, "--json").out)
    assert {name: energy[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert energy["energy_total_j"] == pytest.approx(sum(expected.values()), rel=1e-9)
    for account, name in zip(("devices", "network", "server"), expected, strict=True):
        rows = [row for row in energy["by"] if row["account"] == account]
        assert sum(row["joules"] for row in rows) == pytest.approx(expected[name], rel=1e-9)
        assert sum(row["share"] for row in rows) == pytest.approx(1.0)

    (table,) = json.loads(call("table", run.folder, "--json").out)["runs"]
    assert {name: table[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    (row,) = csv.DictReader(io.StringIO(call("table", run.folder, "--csv").out))
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-9)

    foreseen = json.loads(call("estimate", folder / "lte.toml", "--json").out)
    assert {name: foreseen["totals"][name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert run.energy_by_activity().sum() == pytest.approx(expected["energy_j"], rel=1e-9)


@full
def test_studies_and_reports_agree_with_the_run(on_lte):
    folder, run, columns = on_lte
    expected = {name: parse_column(name).of(run) for name in columns}
    assert expected["energy_device_j"] == expected["energy_j"] == run.summary()["energy_j"]
    assert expected["energy_total_j"] == pytest.approx(
        sum(expected[name] for name in ("energy_j", "energy_network_j", "energy_server_j")), rel=1e-12
    )
    study = folder / "study.toml"
    assert call("study", "run", study, "--runs", folder / "cells").code == 0
    rows = json.loads(call("study", "table", study, "--runs", folder / "cells", "--json").out)["rows"]
    assert {row["column"]: row["mean"] for row in rows if row["method"] == "fedavg"} == pytest.approx(expected)

    page = folder / "report.html"
    assert call("report", run.folder, "--out", page).code == 0
    print(page.read_text())
