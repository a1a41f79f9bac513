"""Rules that look at what is known of devices: they know what is so, change nothing that is learned, and repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.config.plugins import plugins_of
from edgesim.core.job import DELIVERED
from edgesim.core.rng import Key
from edgesim.core.selection import Informed
from edgesim.execution.checkpoint import Checkpoint
from edgesim.execution.result_cache import Answers
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedavg import FedAvg
from tests.calling import call
from tests.contracts.support import METHODS, UNDISTURBED, mixed_scenario, needs_of, results_of, run, tried
from tests.contracts.test_answers import found
from tests.contracts.test_backends import TROUBLE
from tests.contracts.test_checkpoint import ALWAYS_S, resumed, trained
from tests.methods.hand_made import merged_layers, message_of, setting_of
from tests.plugins import watching
from tests.sizes import full, spread

__all__ = ["trained"]  # a fixture

WATCHING = "tests.plugins.watching"
CELL = {"name": "cell", "bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}}
RULES: dict[str, dict[str, Any]] = {
    "least_time": {"count": 3},
    "packet_error": {"count": 3},
    "importance_channel": {"count": 3},
    "round_robin": {"count": 3},
    "proportional_fair": {"count": 3},
    "bc": {"count": 3},
    "bn2": {"count": 3},
    "bc_bn2": {"count": 2, "candidates": 4},
    "bn2_c": {"count": 3, "upload": "50 ms"},
    "power_of_choice": {"count": 2, "candidates": 4},
    "pow_d": {"count": 2, "candidates": 4, "batch": 10},
    "fedcs": {"count": 4, "deadline": "3 s"},
    "oort": {"count": 3, "window": 2},
    "tifl": {"count": 2, "tiers": 2, "interval": 2},
    "norm_sampling": {"count": 3},
    "battery_aware": {"count": 3},
}
REPORTING = [name for name in RULES if "reports" in plugins_of("selection")[name].needs]
METHODS_WITH_A_SERVER = [name for name in METHODS if needs_of(name).peers is None and name not in UNDISTURBED]


def world_of(name: str) -> dict[str, Any]:
    """Return the keys of a scenario that a rule needs beside its own."""
    if "cell" not in plugins_of("selection")[name].needs:
        return {}
    return {"network": CELL, "fleet": [{"count": 6, "cpu": {"flops_per_s": "40 MFLOP/s"}}]}


def rule_of(name: str) -> dict[str, Any]:
    """Return the table of a rule."""
    return {"name": name, **RULES[name]}


def test_every_rule_is_tried():
    shipped = plugins_of("selection")
    assert {name for name, cls in shipped.items() if issubclass(cls, Informed)} == set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_works_in_a_run(name):
    """Rounds pass, whoever is asked was idle, no more than wanted, and everybody is thought of by those who try all."""
    scenario = mixed_scenario(**world_of(name), selection=rule_of(name), stop={"rounds": 6}, evaluation={"every": 6})
    jobs = run(scenario).tables["jobs"].frame()
    per_round = jobs[jobs["task"] != "poll"].groupby("round").size()
    assert len(per_round) == 6
    assert per_round.max() <= RULES[name]["count"]
    if name in ("round_robin", "oort", "power_of_choice", "bn2"):
        assert jobs["device"].nunique() == 6


@pytest.mark.parametrize("method", tried([m for m in METHODS_WITH_A_SERVER if "sync" in needs_of(m).protocols]))
def test_asking_for_reports_changes_nothing_that_is_learned(method):
    """All six devices are asked either way: what is learned is equal, bit for bit; uploads are 16 bytes longer."""
    plain = run(mixed_scenario(method=method, selection="all", evaluation={"every": 1}))
    watching.SEEN.clear()
    rule = {"name": f"{WATCHING}:Watching", "count": 6}
    reporting = run(mixed_scenario(method=method, selection=rule, evaluation={"every": 1}))
    one, other = results_of(plain), results_of(reporting)
    assert (one["weights"], one["memory"]) == (other["weights"], other["memory"])
    losses, again = (sim.tables["evals"].frame()[["loss", "accuracy"]].to_csv() for sim in (plain, reporting))
    assert losses == again
    up, longer = (sim.tables["jobs"].frame().query("outcome in ['ok', 'partial']") for sim in (plain, reporting))
    sent = set((longer["up_bytes"].to_numpy() - up["up_bytes"].to_numpy()).tolist())
    assert sent <= {0, 16}
    assert 16 in sent
    assert np.isfinite(watching.SEEN[-1].reported.loss).any()


CHOOSES_ITSELF = {"fedpns"}  # and draws among the idle by its own probabilities


@pytest.mark.parametrize("rule", ["oort", "norm_sampling", "fedcs"])
@pytest.mark.parametrize("method", spread([m for m in METHODS_WITH_A_SERVER if m not in CHOOSES_ITSELF], 6))
def test_rules_go_with_every_method(method, rule):
    """On the first protocol that the method claims, if the rule works with it, every round brings updates."""
    scenario = {"method": method, "selection": rule_of(rule), "stop": {"rounds": 3}}
    if "sync" not in needs_of(method).protocols and "deadline" not in needs_of(method).protocols:
        scenario["selection"] = rule_of("oort")
    rounds = run(mixed_scenario(**scenario)).tables["rounds"].frame()
    assert (rounds["used"] > 0).all()


# --- what is known ------------------------------------------------------------------------------------------------


def seen_by(scenario):
    """Return what the rule was told in a run, and the run."""
    watching.SEEN.clear()
    return run(scenario), list(watching.SEEN)


def test_expected_jobs_are_the_jobs():
    """Nothing disturbs them: seconds of each phase and joules are those of the jobs table."""
    energy = {"name": "power", "busy": "4 W", "idle": "1 W", "transmit": "2 W", "receive": "0.5 W"}
    simulation, seen = seen_by(
        mixed_scenario(selection={"name": f"{WATCHING}:Watching", "count": 6}, energy=energy, stop={"rounds": 2})
    )
    jobs, expected = simulation.tables["jobs"].frame(), seen[0].expected
    assert len(jobs) == 12
    for name in ("down_s", "compute_s", "up_s"):
        assert jobs[name].to_numpy() == pytest.approx(getattr(expected, name)[jobs["device"]], rel=1e-12)
    joules = jobs[["down_j", "compute_j", "up_j"]].sum(axis=1).to_numpy()
    assert joules == pytest.approx(expected.joules[jobs["device"]], rel=1e-12)
    assert expected.up_bytes == jobs["up_bytes"].iloc[0]


def test_the_channel_is_that_of_the_next_job():
    """Links fade from job to job: what a device's upload runs at is known before it is asked."""
    wireless = {
        "name": "wireless",
        "bandwidth": "1 MHz",
        "distance_m": {"uniform": [50, 500]},
        "fading": "per_transfer",
    }
    simulation, seen = seen_by(
        mixed_scenario(
            selection={"name": f"{WATCHING}:Watching", "count": 4},
            network=wireless,
            fleet=[{"count": 6, "cpu": {"flops_per_s": "40 MFLOP/s"}}],
            stop={"rounds": 3},
        )
    )
    jobs = simulation.tables["jobs"].frame()
    assert len(jobs) == 12
    rates = []
    for known in seen:
        mine = jobs[jobs["round"] == known.round]
        bps = known.up_bps[mine["device"]]
        latency_s = known.setting.latency_s[mine["device"]]
        assert (8 * mine["up_bytes"] / (mine["up_s"] - latency_s)).to_numpy() == pytest.approx(bps, rel=1e-9)
        rates.append(bps.tolist())
    assert rates[0] != rates[1]


def test_the_cell_is_that_of_the_next_job():
    """One device a round has the whole band: rates of both directions follow from the SNR, with its fading."""
    cell = {"name": "cell", "bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}, "fading": "per_transfer"}
    simulation, seen = seen_by(
        mixed_scenario(
            selection={"name": f"{WATCHING}:InCell", "count": 1},
            network=cell,
            fleet=[{"count": 6, "cpu": {"flops_per_s": "40 MFLOP/s"}}],
            energy={"name": "power", "busy": "4 W", "transmit": "2 W"},
            stop={"rounds": 13},
        )
    )
    jobs = simulation.tables["jobs"].frame()
    assert jobs["device"].tolist() == [*range(6), *range(6), 0]
    for job, known in zip(jobs.itertuples(), seen, strict=True):
        up_hz, down_hz = (column[job.device] for column in (known.cell.up_snr_hz, known.cell.down_snr_hz))
        up_bps, down_bps = 1e6 * np.log2(1 + up_hz / 1e6), 1e6 * np.log2(1 + down_hz / 1e6)
        latency_s = known.setting.latency_s[job.device]
        assert 8 * job.up_bytes / (job.up_s - latency_s) == pytest.approx(up_bps, rel=1e-9)
        assert 8 * job.down_bytes / (job.down_s - latency_s) == pytest.approx(down_bps, rel=1e-9)
        assert known.up_bps[job.device] == pytest.approx(up_bps, rel=1e-12)
        assert known.cell.transmit_w[job.device] == 2
    assert len(set(known.cell.base.tolist())) == 1
    assert len({known.cell.up_snr_hz[0] for known in seen}) == 3  # as device 0 had three jobs


def test_the_history_is_that_of_the_jobs():
    """Counts, rounds, seconds and reports, after crashes, late and partial jobs, from the jobs table."""
    simulation, seen = seen_by(
        mixed_scenario(
            selection={"name": f"{WATCHING}:Learning", "count": 5},
            protocol={"name": "deadline", "deadline": "1.5 s"},
            failures=TROUBLE[:2],
            stop={"rounds": 6},
        )
    )
    jobs = simulation.tables["jobs"].frame()
    assert len(set(jobs["outcome"])) > 2
    for known in seen:
        before = jobs[jobs["round"] < known.round]
        assert known.state == tuple(
            (1 + r, tuple(sorted(before.loc[before["round"] == r, "device"]))) for r in range(known.round)
        )
        for device in range(6):
            mine = before[before["device"] == device]
            came = mine[mine["outcome"].isin(DELIVERED)]
            assert (known.asked[device], known.delivered[device]) == (len(mine), len(came))
            assert known.last_asked[device] == mine["round"].max() if len(mine) else known.last_asked[device] == -1
            if len(came):
                newest = came.sort_values("round").iloc[-1]
                assert known.last_delivered[device] == newest["round"]
                assert known.seconds[device] == pytest.approx(newest["end_s"] - newest["sent_s"], rel=1e-12)
            else:
                assert np.isnan(known.seconds[device])
            assert np.isfinite(known.reported.loss[device]) == (len(came) > 0)


def test_batteries_hold_what_jobs_have_left():
    """5 W of a job of t s and no idle power, of 100 J that are never charged."""
    simulation, seen = seen_by(
        mixed_scenario(
            selection={"name": f"{WATCHING}:Watching", "count": 2},
            energy={"name": "power", "busy": "5 W"},
            fleet=[
                {
                    "count": 3,
                    "cpu": {"flops_per_s": "40 MFLOP/s"},
                    "battery": {"name": "rechargeable", "capacity": "100 J"},
                },
                {"count": 3, "cpu": {"flops_per_s": "40 MFLOP/s"}},
            ],
            stop={"rounds": 2},
        )
    )
    jobs = simulation.tables["jobs"].frame()
    spent_j = jobs[jobs["round"] == 0].set_index("device")["compute_j"]
    assert seen[0].battery.stored_j.tolist() == [100, 100, 100, np.inf, np.inf, np.inf]
    assert seen[1].battery.stored_j[:3] == pytest.approx([100 - spent_j[0], 100 - spent_j[1], 100], rel=1e-9)
    assert seen[1].battery.capacity_j.tolist() == [100, 100, 100, np.inf, np.inf, np.inf]


def test_labels_are_known_if_a_rule_asks():
    _, seen = seen_by(mixed_scenario(selection={"name": f"{WATCHING}:Watching", "count": 2}, stop={"rounds": 1}))
    assert seen[0].setting.labels.sum(axis=1).tolist() == [40] * 6


@pytest.mark.parametrize("backend", ["serial", "cohort"])
def test_a_report_is_what_the_device_met(backend):
    """Two epochs of batches of 16 of 40 samples, played again by hand with autograd alone."""
    scenario = mixed_scenario(
        selection={"name": f"{WATCHING}:Watching", "count": 2},
        training={"batch": 16, "lr": 0.1, "local_epochs": 2},
        backend=backend,
        stop={"rounds": 2},
    )
    simulation, seen = seen_by(scenario)
    parts = simulation.parts
    first, data, shards = simulation.learner.graph.value(simulation.learner._first), parts.data, parts.split.train
    for device in range(2):
        params = {n: w.clone().requires_grad_() for n, w in first["params"].items()}
        key = Key(scenario.seed).at(8, device, 0).at(0, 0)
        losses, hits = [], []
        for positions in batch_order(key, 40, scenario.training.local_sgd(0), False):
            x, y = data.batch("train", torch.from_numpy(shards[device])[positions])
            logits = torch.func.functional_call(parts.module, params, x)
            each = F.cross_entropy(logits, y, reduction="none")
            losses += each.detach().double().tolist()
            hits += (logits.argmax(1) == y).tolist()
            gradients = torch.autograd.grad(each.mean(), list(params.values()))
            params = {
                n: (w - 0.1 * g).detach().requires_grad_() for (n, w), g in zip(params.items(), gradients, strict=True)
            }
        moved = sum(float((params[n] - first["params"][n]).detach().double().square().sum()) for n in params)
        reported = seen[1].reported
        assert len(losses) == 80
        assert reported.loss[device] == pytest.approx(np.mean(losses), rel=1e-4)
        assert reported.square_loss[device] == pytest.approx(np.mean(np.square(losses)), rel=1e-4)
        assert reported.accuracy[device] == pytest.approx(np.mean(hits), abs=1e-12)
        assert reported.norm[device] == pytest.approx(np.sqrt(moved), rel=1e-4)


# --- weights ------------------------------------------------------------------------------------------------------


def test_weights_of_a_rule_reach_the_method():
    """Updates of devices 0 to 5 count 1, 1/2, ... 1/6; late ones that count half, half of that."""
    protocol = {"name": "deadline", "deadline": "0.6 s", "late": "keep", "late_weight": 0.5}
    halving = {"name": f"{WATCHING}:Halving", "count": 6}
    scenario = mixed_scenario(selection=halving, protocol=protocol, stop={"rounds": 3})
    counted: list[tuple[int, float]] = []
    method = scenario.method.value
    aggregate = type(method).aggregate

    def noting(self: Any, state: Any, model: Any, updates: Any, server: Any, key: Any) -> Any:
        counted.extend((update.device, update.weight) for update in updates)
        return aggregate(self, state, model, updates, server, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "aggregate", noting)
        run(scenario)
    assert {device for device, _ in counted} >= {2, 3, 4, 5}
    assert all(weight in (1 / (1 + device), 0.5 / (1 + device)) for device, weight in counted)
    assert any(weight == 0.5 / (1 + device) for device, weight in counted)


def test_weights_beyond_all_data_move_the_model_beyond_the_mean():
    """Of 600 samples updates of 200 and 300 count 4 and 2 times: w + (800 d_0 + 600 d_1) / 600, not / 1400."""
    updates = [
        message_of(0, 200, {"w": [1.0, 0.0]})._replace(weight=4.0),
        message_of(1, 300, {"w": [0.0, 3.0]})._replace(weight=2.0),
    ]
    setting = setting_of([200, 300, 100], {"w": 2})
    made = merged_layers(FedAvg(aggregate_over="all"), setting, {"w": [0.5, 1.0]}, updates)
    by_hand = np.array([0.5, 1.0]) + (800 * np.array([0.5, -1.0]) + 600 * np.array([-0.5, 2.0])) / 600
    assert made["w"] == pytest.approx(by_hand, rel=1e-6)


# --- the same again -----------------------------------------------------------------------------------------------

LONG: dict[str, Any] = {
    "failures": TROUBLE,
    "availability": {"name": "sessions", "on": "20 s", "off": "2 s"},
    "evaluation": {"every": 2},
    "stop": {"rounds": 5},
}


@pytest.mark.parametrize("name", [*REPORTING, "pow_d"])
def test_as_many_workers_as_you_like(name):
    """Tables and weights do not depend on who trains, though choices wait for reports."""
    changes = {**LONG, **world_of(name), "selection": rule_of(name)}
    alone = results_of(run(mixed_scenario(**changes)))
    assert results_of(run(mixed_scenario(**changes, backend={"name": "workers", "workers": 2}))) == alone


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "afd"])
@pytest.mark.parametrize("name", ["oort", "norm_sampling", "pow_d"])
def test_a_run_that_is_answered_is_the_run(name, method, tmp_path, trained):
    """Reports too are answered: nothing is trained; nor under other prices. Plans of AFD come from what it learned."""
    changes = {**LONG, "selection": rule_of(name), "method": method}
    alone, _ = found(mixed_scenario(**changes), None)
    first, _ = found(mixed_scenario(**changes), Answers(tmp_path))
    assert alone == first
    trained.clear()
    assert found(mixed_scenario(**changes), Answers(tmp_path))[0] == first
    dear = {**changes, "energy": {"name": "power", "idle": "3 W", "busy": "9 W"}}
    assert found(mixed_scenario(**dear), Answers(tmp_path))[0] == found(mixed_scenario(**dear), None)[0]
    trained.clear()
    assert found(mixed_scenario(**dear), Answers(tmp_path))[0] != first
    assert trained == []


def test_answers_without_reports_are_not_taken(tmp_path):
    """A run that asked nobody to report cannot answer one that does."""
    found(mixed_scenario(**LONG), Answers(tmp_path))
    changes = {**LONG, "selection": rule_of("oort")}
    assert found(mixed_scenario(**changes), Answers(tmp_path))[0] == found(mixed_scenario(**changes), None)[0]


@pytest.mark.parametrize("backend", ["serial", {"name": "workers", "workers": 2}], ids=["serial", "workers"])
def test_a_run_goes_on_as_if_it_had_not_been_cut_off(backend, tmp_path, trained):
    """Nothing is trained twice by one process; a checkpoint holds the reports of all rounds so far."""
    changes = {**LONG, "selection": rule_of("oort"), "backend": backend}
    whole = mixed_scenario(**changes)
    expected, jobs = results_of(run(whole)), trained.copy()
    trained.clear()
    checkpoint = Checkpoint(tmp_path / "checkpoint", ALWAYS_S, {})
    resumed(mixed_scenario(**{**changes, "stop": {"rounds": 3}}), checkpoint)
    assert results_of(resumed(whole, checkpoint)) == expected
    assert sorted(trained) == sorted(jobs)


@full
def test_rules_that_look_at_time_are_sooner_under_a_heavy_tail(tmp_path):
    """The shipped study in its quick size, one seed: simulated seconds until 80 % of the digits."""
    study = (Path(__file__).parents[2] / "scenarios/studies/choosing_devices.toml", "--runs", tmp_path / "runs")
    cells = [f"selection={name},seed=1" for name in ("uniform", "oort", "tifl", "fedcs")]
    only = [word for cell in cells for word in ("--only", cell)]
    assert call("study", "run", *study, *only).code == 0
    shown = json.loads(call("study", "table", *study, *only, "--json").out)
    seconds = {row["selection"]: row["mean"] for row in shown["rows"] if row["column"] == "sim_time_s@0.8"}
    assert max(seconds["oort"], seconds["tifl"], seconds["fedcs"]) < 0.7 * seconds["uniform"]


def test_rules_work_without_rounds():
    """In the buffered protocol places are filled one by one, from what is known by then."""
    scenario = {"method": "fedbuff", "protocol": {"name": "buffered", "concurrency": 3, "buffer": 2}}
    for name in ("oort", "round_robin", "tifl", "power_of_choice"):
        rounds = run(mixed_scenario(**scenario, selection=rule_of(name), stop={"rounds": 6})).tables["rounds"].frame()
        assert (rounds["used"] == 2).all()
