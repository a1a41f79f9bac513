"""Where the joules went: every joule of the tables once, at the device, component and activity that spent it."""

import json
import re

import numpy as np
import pytest

import edgesim
from edgesim.cli.look import energy_by
from edgesim.core.errors import LedgerError
from edgesim.reports.energy import attribute_energy
from edgesim.reports.stats import JOULES
from tests.calling import call
from tests.conftest import digits_scenario, simulate_null, timing_scenario
from tests.records.written import new_tables, write

POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
DEVICE_J = ["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]


def add_job(tables, job, device, round_, outcome, down_j, compute_j, up_j, peer_j=0.0, link_j=0.0):
    begun = (job, device, round_, round_, "train", "full", 10.0 * round_, 1.0, 4.0, 2.0, 0.0, 0.0)
    joules = (down_j, compute_j, up_j, peer_j, link_j)
    tables["jobs"].append((*begun, 10.0 * round_ + 7.0, outcome, 0.0, 8e6, 80, 40, 0, *joules))


@pytest.fixture
def hand_made(tmp_path):
    """Return a run of two rounds with 1 s and 3 s of server work at 2 W above idle.

    Device 1 sent 0.25 J to peers for the job of device 0, which the network carried for 0.125 J.
    """
    tables = new_tables()
    add_job(tables, 0, 0, 0, "ok", 2.0, 12.0, 1.0, peer_j=0.25, link_j=0.125)
    add_job(tables, 1, 1, 1, "late", 3.0, 6.0, 0.0)
    for round_, server_s in enumerate((1.0, 3.0)):
        ends = (10.0 * round_, 10.0 * round_ + 10.0)
        tables["rounds"].append((round_, round_, *ends, 1, 1, 0, "all", np.inf, 0.0, server_s, *([0] * 14)))
    tables["devices"].append((0, "psi", 1, 1, 1, 7.0, 80, 40, 2.0, 12.0, 1.0, 6.0, 1.5))
    tables["devices"].append((1, "psi", 1, 1, 0, 7.0, 80, 40, 3.0, 6.0, 0.25, 7.0, 0.0))
    tables["devices"].append((-1, "server", 0, 0, 0, 4.0, 0, 0, 0.0, 8.0, 0.0, 5.0, 0.0))
    return write(tmp_path / "run", tables, {"scenario": {}, "status": "finished"})


def test_every_joule_of_a_hand_made_run(hand_made):
    found = attribute_energy(hand_made)
    assert list(found) == ["device", "component", "activity", "job", "round", "joules"]
    assert set(found.itertuples(index=False, name=None)) == {
        (0, "radio", "receive", 0, 0, 2.0),
        (0, "cpu", "compute", 0, 0, 12.0),
        (0, "radio", "transmit", 0, 0, 1.0),
        (0, "network", "carry", 0, 0, 0.125),
        (0, "base", "idle", -1, -1, 6.0),
        (0, "base", "sleep", -1, -1, 1.5),
        (1, "radio", "receive", 1, 1, 3.0),
        (1, "cpu", "compute", 1, 1, 6.0),
        (1, "radio", "transmit", -1, -1, 0.25),
        (1, "base", "idle", -1, -1, 7.0),
        (-1, "server", "compute", -1, 0, 2.0),
        (-1, "server", "compute", -1, 1, 6.0),
        (-1, "server", "idle", -1, -1, 5.0),
    }


def test_sums_and_shares(hand_made):
    """All components of the devices make 38.75 J; so do the rounds. Server and network are accounts of their own."""
    sums = energy_by(hand_made, ["component"])
    assert sums.to_dict("list") == {
        "component": ["cpu", "base", "radio"],
        "joules": [18.0, 14.5, 6.25],
        "share": [joules / 38.75 for joules in (18.0, 14.5, 6.25)],
    }
    assert energy_by(hand_made, ["account", "component"]).to_dict("list") == {
        "account": ["devices", "devices", "server", "devices", "network"],
        "component": ["cpu", "base", "server", "radio", "network"],
        "joules": [18.0, 14.5, 13.0, 6.25, 0.125],
        "share": [18.0 / 38.75, 14.5 / 38.75, 1.0, 6.25 / 38.75, 1.0],
    }
    rounds = energy_by(hand_made, ["round"])
    assert rounds["joules"].tolist() == [15.0, 14.75, 9.0]  # 2 + 12 + 1; 6 + 1.5 + 7 + 0.25 of none; 3 + 6
    assert rounds["round"].isna().tolist() == [False, True, False]
    assert rounds["round"].dropna().tolist() == [1, 2]
    assert energy_by(hand_made, ["job"])["job"].dropna().tolist() == [0, 1]


RUNS = {
    "shared links": timing_scenario(
        energy=POWER,
        network={"name": "shared", "up": "1 Mbit/s", "down": "4 Mbit/s"},
        topology={"name": "star", "server_up": "2 Mbit/s"},
        stop={"rounds": 3},
    ),
    "batteries": timing_scenario(
        energy=POWER,
        network={"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s"},
        protocol={"name": "deadline", "deadline": "30 s"},
        fleet=[{"count": 4, "cpu": {"flops_per_s": {"log_uniform": [2e8, 2e9]}}, "battery": {"capacity": "150 J"}}],
        stop={"rounds": 3},
    ),
    "server": digits_scenario(server={"flops_per_s": "1 MFLOP/s", "idle": "10 W", "busy": "30 W"}),
    "cut off": timing_scenario(energy=POWER, stop={"sim_time": "75 s"}),
    "nothing spent": timing_scenario(),
}


@pytest.mark.parametrize("name", RUNS)
def test_all_rows_add_up_to_the_energy_of_the_run(name, tmp_path):
    run = edgesim.run(RUNS[name], out=tmp_path / "run")
    found = attribute_energy(run)
    joules = run.devices[DEVICE_J].sum(axis=1)
    of_devices_j, server_j = float(joules[run.devices["device"] >= 0].sum()), float(joules.iloc[-1])
    total_j = of_devices_j + server_j + float(run.jobs["link_j"].sum())
    assert found["joules"].sum() == pytest.approx(total_j, rel=1e-9, abs=0)
    by_device = found.groupby("device")["joules"].sum().reindex(run.devices["device"], fill_value=0.0)
    assert by_device.tolist() == pytest.approx(run.devices[DEVICE_J].sum(axis=1).tolist(), rel=1e-9, abs=0)
    assert found["joules"].ne(0).all() and not found.duplicated(list(found.columns[:-1])).any()
    # Whatever is not idle belongs to a round; a server's work to no job.
    assert set(found.loc[found["round"] < 0, "activity"]) <= {"idle", "sleep"}
    # From the first round's end at 50 s on: five devices idle for 25 s, and each computes until then or is done before.
    after_j = 5 * 25 * 2.0 + (25 + 25 + 25 + 20 + 10) * 3.0 if name == "cut off" else 0.0
    last = run.rounds.iloc[-1]
    assert of_devices_j == pytest.approx(last["total_energy_j"] + after_j, rel=1e-9, abs=0)
    assert server_j == pytest.approx(last["total_energy_server_j"], rel=1e-9, abs=0)


def test_what_was_spent_after_the_last_closed_round_of_an_interrupted_run_is_kept(hand_made, tmp_path):
    """Device 0 spent 4 J more of computing in a round whose jobs are not in the tables."""
    devices = hand_made.devices
    devices.loc[0, "compute_j"] += 4.0
    found = attribute_energy(hand_made)
    late = found[(found["device"] == 0) & (found["component"] == "cpu")]
    assert late[["job", "round", "joules"]].to_numpy().tolist() == [[0, 0, 12.0], [-1, -1, 4.0]]


def test_the_devices_table_tells_what_each_received_and_sent(tmp_path):
    run = edgesim.run(RUNS["shared links"], out=tmp_path / "run")
    for column in ("down_bytes", "up_bytes"):
        expected = [run.jobs.loc[run.jobs["device"] == device, column].sum() for device in range(5)]
        assert run.devices[column].tolist() == [*expected, 0]
        assert min(expected) == 3 * 4 * 567_858  # CNN-CIFAR10 in each of three rounds


def test_the_ledger_counts_what_peers_sent():
    """3 J that device 1 spent for the job of row 0 must stand in that row."""
    simulation = simulate_null(timing_scenario(energy=POWER))
    simulation.ledger.charge(1, 0.0, 0.0, 3.0, 0.0)
    with pytest.raises(LedgerError):
        simulation._check_ledger()
    simulation.tables["jobs"].amend(0, "peer_j", 3.0)
    simulation._check_ledger()


def test_the_command_prints_sums_and_shares(hand_made):
    code, out, err = call("energy", hand_made.folder)
    rows = [line.split() for line in out.splitlines() if line.strip()]
    assert (code, err) == (0, "")
    said = "run: 38.8 J = 24.2 J active + 14.5 J idle; 38.8 J without devices that were never asked"
    said += "; network 125 mJ; server 13 J"
    assert rows[:2] == [said.split(), ["account", "component", "activity", "energy", "share"]]
    assert rows[3:6] == [
        ["devices", "cpu", "compute", "18", "J", "46.5%"],
        ["devices", "base", "idle", "13", "J", "33.5%"],
        ["server", "server", "compute", "8", "J", "61.5%"],
    ]
    by_round = [line.split() for line in call("energy", hand_made.folder, "--by", "round").out.splitlines()]
    assert ["devices", "1", "15", "J", "38.7%"] in by_round and ["server", "-", "5", "J", "38.5%"] in by_round


def test_the_command_prints_json(hand_made):
    found = json.loads(call("energy", hand_made.folder, "--by", "round, device", "--json").out)
    accounts = {"energy_j": 38.75, "energy_network_j": 0.125, "energy_server_j": 13.0, "energy_total_j": 51.875}
    assert {name: found[name] for name in accounts} == accounts
    assert found["by"][0] == {"account": "devices", "round": 1, "device": 0, "joules": 15.0, "share": 15.0 / 38.75}
    assert {row["round"] for row in found["by"]} == {None, 1, 2}


def test_a_run_without_joules_has_an_empty_table(tmp_path):
    folder = edgesim.run(RUNS["nothing spent"], out=tmp_path / "idle").folder
    code, out, _ = call("energy", folder)
    assert (code, out.splitlines()[0].split(" = ")[0]) == (0, "idle: 0 J")
    nothing = dict.fromkeys([*JOULES, "energy_total_j"], 0.0)
    assert json.loads(call("energy", folder, "--by", "job", "--json").out) == {
        "status": "finished",
        **nothing,
        "by": [],
    }


@pytest.mark.parametrize("wrong", ["colour", "", "job,", "job,round,job"])
def test_unknown_columns_are_refused(hand_made, wrong):
    code, out, err = call("energy", hand_made.folder, "--by", wrong)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(r"error: --by: '\w*' is unknown or given twice \(known: device, component, activ", err)


def test_numbers_are_plain(hand_made):
    found = attribute_energy(hand_made)
    assert [str(found[name].dtype) for name in ("device", "job", "round", "joules")] == ["int64"] * 3 + ["float64"]
    assert np.isfinite(found["joules"]).all()
