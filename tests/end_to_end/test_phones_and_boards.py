"""The shipped study of phones and boards: joules of devices lead, those of the network stand apart."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

import edgesim
from edgesim.studies.study import load_study
from tests.calling import call
from tests.sizes import full

SHIPPED = Path(__file__).parents[2] / "scenarios" / "studies" / "phones_and_boards.toml"
TIMING = """
without = ["data"]
overrides = ["backend=null", "partition={ name = 'sizes', samples_per_device = 30 }", "stop={ rounds = 2 }"]
"""
HERE = ("study.toml", "--runs", "runs", "--only", "seed=1")
J_PER_BIT = {"phone": 63e-6, "board": 13.5e-6}  # the EU study of 2020, LTE and Wi-Fi
SENT = 1 / (1 - 0.001)  # times a packet is sent on average, as either link loses 0.1 %


def test_the_cells_of_the_study() -> None:
    """FedBuff has no rounds, so no deadline."""
    study = load_study(SHIPPED)
    cells = [tuple(cell.labels.values()) for cell in study.cells("quick")]
    methods = [("fedavg", "none"), ("fedavg", "60s"), ("fedprox", "none"), ("fedprox", "60s")]
    methods += [("fedpmt", "none"), ("fedpmt", "60s"), ("fedbuff", "none")]
    assert cells == [(*method, seed) for method in methods for seed in ("1", "2", "3")]
    blocks = edgesim.load(SHIPPED.parent / study.base).fleet
    assert [(block.name, block.count) for block in blocks] == [("phone", 30), ("board", 20)]


@full
def test_accounts_and_the_sentence_on_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without training and for two rounds, so all columns are to the end and not to 80 %."""
    monkeypatch.chdir(tmp_path)
    text = SHIPPED.read_text("utf-8").replace("@0.8", "").replace("../", f"{SHIPPED.parents[1]}/")
    Path("study.toml").write_text(TIMING + text, encoding="utf-8")
    assert call("study", "run", *HERE).code == 0
    rows = json.loads(call("study", "table", *HERE, "--json").out)["rows"]
    means = {(row["method"], row["deadline"], row["column"]): row["mean"] for row in rows}
    columns = list(dict.fromkeys(row["column"] for row in rows))
    assert columns == ["energy_j", "sim_time_s", "energy_network_j", "energy_server_j", "rounds.late"]

    by_hand: dict[tuple[str, str, str], float] = {}
    for manifest in Path("runs").rglob("manifest.json"):
        run = edgesim.open(manifest.parent)
        kinds = run.devices.set_index("device")["kind"].astype(str)
        bits = 8 * SENT * (run.jobs["down_bytes"] + run.jobs["up_bytes"])
        joules = {
            "energy_j": run.devices[run.devices["device"] >= 0].filter(regex="_j$").to_numpy().sum(),
            "energy_network_j": (bits * run.jobs["device"].map(kinds).map(J_PER_BIT)).sum(),
            "energy_server_j": 30.0 * run.summary()["sim_time_s"],
        }
        scenario = run.manifest["scenario"]
        deadline = "60s" if scenario["protocol"]["name"] == "deadline" else "none"
        for column, value in joules.items():
            key = (scenario["method"]["name"], deadline, column)
            by_hand[key] = float(value)
    assert len(by_hand) == 7 * 3
    assert {key: means[key] for key in by_hand} == pytest.approx(by_hand, rel=1e-6)

    assert call("report", *HERE, "--out", "report.html").code == 0
    page = html.unescape(Path("report.html").read_text("utf-8")).replace("\u00a0", " ")
    energy_j = {key[:2]: value for key, value in by_hand.items() if key[2] == "energy_j"}
    assert min(energy_j, key=lambda cell: energy_j[cell]) == ("fedbuff", "none")
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page))
    lead_kj = energy_j["fedbuff", "none"] / 1000
    assert f"Of all, FedBuff, none uses {lead_kj:.3g} kJ." in text
    assert text.index(f"Least energy {lead_kj:.3g} kJ FedBuff, none") < text.index("Least energy of the network")
    assert re.search(r"<th[^>]*>(<[^>]*>)*energy of the network<", page)
    less_j = {name: energy_j[name, "none"] - energy_j[name, "60s"] for name in ("fedavg", "fedprox", "fedpmt")}
    assert min(less_j.values()) > 0
    saved = re.search(r"Deadline 60s instead of none saves ([\d.]+) kJ, with any method\.", text)
    assert saved and 1000 * float(saved[1]) == pytest.approx(np.mean(list(less_j.values())), abs=5.0)
