"""Opening run folders, and the numbers taken from them."""

import json
import math
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from edgesim.core.errors import ConfigError
from edgesim.reports.format import text, unit_for
from edgesim.reports.load import open_run
from edgesim.reports.stats import curve, energy_by_kind, first_crossing, summary, targets_table
from tests.records.written import seal_again
from tests.sizes import full


def test_a_run_is_read_back(fake_run):
    run = fake_run("seven")
    assert (run.name, run.method, run.seed, run.targets) == ("seven", "fedavg", 1, (0.5, 0.99))
    assert run.jobs["outcome"].tolist() == ["ok"] * 4
    assert [len(table) for table in (run.rounds, run.evals, run.devices, run.metrics)] == [4, 8, 4, 0]
    assert run.weights()["w"].tolist() == [0, 1, 2]


def test_what_is_not_a_run_folder_is_refused(fake_run, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: not a run folder: no manifest\.json, jobs\.parquet"):
        open_run(tmp_path / "nowhere")
    run = fake_run()
    with pytest.raises(ConfigError, match="not saved; this run has final"):
        run.weights("best")
    with pytest.raises(ConfigError, match="not saved"):
        run.weights("../run/final")
    (run.folder / "evals.parquet").write_text("not parquet")
    with pytest.raises(ConfigError, match=r"evals\.parquet: damaged: its SHA-256 is not the one in manifest\.json"):
        _ = open_run(run.folder).evals
    seal_again(run.folder)
    with pytest.raises(ConfigError, match=r"evals\.parquet: not a readable parquet file, truncated or damaged: "):
        _ = open_run(run.folder).evals
    pd.DataFrame({"round": [1]}).to_parquet(run.folder / "metrics.parquet")
    seal_again(run.folder)
    with pytest.raises(ConfigError, match="'metrics' lacks name, device, value"):
        _ = open_run(run.folder).metrics
    manifest = (run.folder / "manifest.json").read_text()
    (run.folder / "manifest.json").write_text(manifest.replace('"seed": 1', '"seed": 2'))
    with pytest.raises(ConfigError, match=r"manifest\.json: damaged: its SHA-256 is not the one"):
        _ = open_run(run.folder).manifest
    (run.folder / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest\.json: not valid JSON"):
        _ = open_run(run.folder).manifest
    for other in ("{}", "[]", "null", "5", '{"scenario": 1}'):
        (run.folder / "manifest.json").write_text(other)
        with pytest.raises(ConfigError, match=r"manifest\.json: not the manifest of a run"):
            _ = open_run(run.folder).manifest
    (run.folder / "manifest.json").write_text(manifest)
    (run.folder / "final.safetensors").write_bytes(b"cut")
    with pytest.raises(ConfigError, match=r"final\.safetensors: damaged"):
        open_run(run.folder).weights()
    seal_again(run.folder)
    with pytest.raises(ConfigError, match=r"final\.safetensors: not a readable safetensors file"):
        open_run(run.folder).weights()
    (run.folder / "jobs.parquet").unlink()
    with pytest.raises(ConfigError, match=r"no jobs\.parquet$"):
        open_run(run.folder)


def test_summary_counts_rounds_from_one_and_takes_the_first_crossing(fake_run):
    # 0.5 is first reached in the second round (0.6); the dip to 0.5 in the third does not matter; 0.99 never.
    assert summary(fake_run()) == {
        "method": "fedavg",
        "status": "finished",
        "rounds": 4,
        "accuracy": 0.95,
        "best_accuracy": 0.95,
        "sim_time_s": 40.0,
        "energy_j": 20.0,
        "active_j": 8.0,
        "idle_j": 12.0,
        "participant_j": 16.0,
        "energy_network_j": 0.0,
        "energy_server_j": 0.0,
        "up_bytes": 400,
        "down_bytes": 800,
        "flops": 4e6,
        "host_s": 1.25,
        "diverged": None,
        "targets": {
            "0.5": {
                "round": 2,
                "sim_time_s": 20.0,
                "energy_j": 10.0,
                "active_j": 4.0,
                "idle_j": 6.0,
                "participant_j": 8.0,
                "energy_network_j": 0.0,
                "energy_server_j": 0.0,
                "up_bytes": 200,
                "down_bytes": 400,
            },
            "0.99": None,
        },
    }


def test_summary_is_plain_json(fake_run):
    found = summary(fake_run())
    assert json.loads(json.dumps(found)) == found
    whole = ("rounds", "up_bytes", "down_bytes")
    assert all(type(found[name]) is int for name in whole)
    assert all(type(found["targets"]["0.5"][name]) is int for name in ("round", *whole[1:]))


def test_an_accuracy_equal_to_the_target_reaches_it(fake_run):
    points = curve(fake_run())
    assert first_crossing(points, 0.6)["round"] == 2
    assert first_crossing(points, math.nextafter(0.6, 1))["round"] == 4


def test_rounds_without_an_evaluation_are_skipped(fake_run):
    found = summary(fake_run(accuracies=(0.1, None, None, 0.7, None)))
    assert (found["rounds"], found["accuracy"], found["sim_time_s"]) == (5, 0.7, 50.0)
    assert found["targets"]["0.5"] == {
        "round": 4,
        "sim_time_s": 40.0,
        "energy_j": 20.0,
        "active_j": 8.0,
        "idle_j": 12.0,
        "participant_j": 16.0,
        "energy_network_j": 0.0,
        "energy_server_j": 0.0,
        "up_bytes": 400,
        "down_bytes": 800,
    }


def test_a_run_without_evaluations_or_rounds(fake_run):
    timing = summary(fake_run("timing", accuracies=(None, None)))
    assert (timing["rounds"], timing["accuracy"], timing["best_accuracy"]) == (2, None, None)
    assert timing["targets"] == {"0.5": None, "0.99": None}
    nothing = summary(fake_run("nothing", accuracies=()))
    assert (nothing["rounds"], nothing["sim_time_s"], nothing["energy_j"]) == (0, 0.0, 0)


def test_an_evaluation_before_the_first_round_costs_nothing(fake_run):
    run = fake_run(accuracies=(0.6,))
    first = pd.DataFrame([(-1, 0, 0.0, "test", 2.3, 0.1, 50, "session1")], columns=run.evals.columns)
    pd.concat([first, run.evals]).to_parquet(run.folder / "evals.parquet", index=False)
    seal_again(run.folder)
    points = curve(open_run(run.folder))
    assert points["round"].tolist() == [0, 1]
    assert points["energy_j"].tolist() == [0.0, 5.0]
    assert points["up_bytes"].tolist() == [0, 100]


def test_targets_table_has_a_row_for_each_run_and_target(fake_run):
    frame = targets_table([fake_run("a"), fake_run("b", method="fedprox", seed=2, accuracies=(0.1, 0.2))])
    assert frame[["run", "method", "seed", "target"]].values.tolist() == [
        ["a", "fedavg", 1, 0.5],
        ["a", "fedavg", 1, 0.99],
        ["b", "fedprox", 2, 0.5],
        ["b", "fedprox", 2, 0.99],
    ]
    assert frame["round"].isna().tolist() == [False, True, True, True]
    assert (frame["round"][0], frame["energy_j"][0], frame["up_bytes"][0]) == (2, 10.0, 200)


def test_energy_by_kind_adds_the_devices_of_a_kind(fake_run):
    joules = energy_by_kind(fake_run())
    # fake compute joules are 10 (device + 2): server 10, slow 20, fast 30 + 40
    assert joules["compute_j"].to_dict() == {"server": 10.0, "slow": 20.0, "fast": 70.0}
    assert joules.loc["fast"].tolist() == [2.0, 70.0, 4.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("sim_time_s", 12_312.0, "3.42 h"),  # 12312 / 3600
        ("sim_time_s", 119.0, "119 s"),
        ("sim_time_s", 120.0, "2 min"),
        ("energy_j", 2500.0, "2.5 kJ"),
        ("up_bytes", 45_143_328, "45.1 MB"),
        ("train_flops", 0.0, "0 FLOP"),
        ("seconds", 1e6, "11.6 days"),
        ("round", 600, "600"),
        ("energy_j", None, "-"),
    ],
)
def test_readable_numbers(column, value, expected):
    assert text(column, value) == expected


def test_the_unit_of_an_axis_follows_its_largest_value():
    assert unit_for("energy_j", 1999.0) == ("J", 1)
    assert unit_for("total_energy_j", 2e6) == ("MJ", 1e6)


@full
def test_reading_a_run_needs_no_torch(fake_run):
    run = fake_run(weights={"final": {"w": np.ones(1)}})
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import edgesim.cli.app, edgesim.reports.compare, edgesim.reports.stats as stats\n"
        "from edgesim.reports.load import open_run\n"
        f"print(stats.summary(open_run({str(run.folder)!r}))['rounds'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("4", "")


def test_a_copied_run_is_still_a_run(fake_run, tmp_path):
    run = fake_run()
    shutil.copytree(run.folder, tmp_path / "elsewhere")
    assert summary(open_run(str(tmp_path / "elsewhere"))) == summary(run)
