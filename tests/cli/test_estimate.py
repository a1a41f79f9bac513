"""What an estimate says against closed forms, and against the run that it foresees."""

import json
from dataclasses import dataclass
from typing import ClassVar
from unittest.mock import patch

import pytest

import edgesim
import edgesim.runs.estimate
import edgesim.runs.host_time
from edgesim.core.errors import ConfigError
from edgesim.core.method import Needs
from edgesim.execution.backends.cohort import CohortTraining
from edgesim.execution.backends.null import NullBackend
from edgesim.execution.backends.serial import Serial
from edgesim.execution.backends.workers import Workers
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.estimate import estimate, estimate_of
from edgesim.runs.host_memory import Loaded
from edgesim.runs.host_time import HostSpeed, host_work
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all
from tests.calling import call
from tests.conftest import simulate_null
from tests.sizes import full, spread

# CNN-CIFAR10: FLOPs of a forward pass, 2 x outputs x inputs of each, and parameters, layer by layer.
FORWARD = (2 * 28 * 28 * 16 * 75, 2 * 10 * 10 * 32 * 400, 2 * 800 * 500, 2 * 500 * 300, 2 * 300 * 10)
PARAMS = (76 * 16, 401 * 32, 801 * 500, 501 * 300, 301 * 10)
PSI = 7.3806e8
SAMPLES = 500
LINKS = {"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s", "latency": 0.02}
POWERS = {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.5 W"}


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """A method that says it plans from training results."""

    needs: ClassVar[Needs] = Needs(feedback=True)


def job_flops(trained: int) -> int:
    """Return the FLOPs of one epoch that trains the last layers: of these, only the first needs no input gradient."""
    back = FORWARD[-trained:]
    return SAMPLES * (sum(FORWARD) + sum(back) + sum(back[1:]))


def test_job_of_each_block_is_that_of_the_closed_form(timing):
    found = estimate(timing(method="fedpmt", network=LINKS, energy=POWERS)).blocks
    assert found["level"].tolist() == [1, 2, 3, 4, 5]
    assert found["devices"].tolist() == [1] * 5
    assert found["submodel"].tolist() == [f"last{n}" for n in range(1, 6)]
    for row, share in zip(found.itertuples(), (5, 4, 3, 2, 1), strict=True):
        down_bytes = 4 * 567_858 + 1  # with a mask of 5 bits
        up_bytes = 4 * sum(PARAMS[-row.level :]) + 8  # with the device's capability
        compute_s, down_s, up_s = job_flops(row.level) * share / PSI, 8 * down_bytes / 8e6, 8 * up_bytes / 1e6
        assert row.flops == job_flops(row.level)
        assert (row.down_bytes, row.up_bytes) == (down_bytes, up_bytes)
        assert row.seconds == pytest.approx(compute_s + down_s + up_s + 2 * 0.02, rel=1e-12)
        assert row.joules == pytest.approx(3 * compute_s + 0.5 * down_s + 1 * up_s, rel=1e-12)


def test_totals_of_equal_rounds(timing):
    found = estimate(timing(stop={"rounds": 30})).totals
    # Everybody trains the full model of 7.3806 GFLOP; the round ends with the slowest, at psi / 5.
    assert (found["rounds"], found["jobs"]) == (30, 150)
    assert found["flops"] == pytest.approx(150 * 10 * PSI)
    assert found["sim_time_s"] == pytest.approx(30 * 50.0)
    assert 0 < found["host_minutes"] < 1  # nothing is trained, but simulating takes time too


@full
def test_a_method_that_learns_from_results_is_priced_by_its_first_plan(digits):
    everybody = {"selection": "all"}  # so that all rounds are equal
    known, priced = (
        estimate(digits(**everybody)).totals,
        estimate(digits(method=f"{__name__}:Curious", **everybody)).totals,
    )
    for name in ("rounds", "jobs", "flops", "sim_time_s"):
        assert priced[name] == pytest.approx(known[name], rel=1e-12)


@pytest.mark.parametrize(
    ("stop", "rounds"),
    [
        ({"sim_time": "1000 s"}, 20),  # rounds of 50 s
        ({"sim_time": "1000 s", "rounds": 7}, 7),
        ({"energy": "3000 J"}, 4),  # a round: 5 devices x 1 W x 50 s idle, and 3 W x (10 + 20 + 30 + 40 + 50) s = 700 J
        ({"energy": "1 J"}, 1),
    ],
)
def test_rounds_follow_from_the_limits(timing, stop, rounds):
    found = estimate(timing(energy=POWERS, stop=stop)).totals
    assert found["rounds"] == rounds
    assert found["flops"] == pytest.approx(rounds * 50 * PSI)


def test_nobody_knows_when_an_accuracy_is_reached(digits):
    found = estimate(digits(stop={"accuracy": 0.5})).totals
    assert {name for name, value in found.items() if value is None} == found.keys() - {"memory_bytes"}


def test_large_blocks_are_sampled(timing, monkeypatch):
    monkeypatch.setattr(edgesim.runs.job_sample, "_DEVICES", 10)
    cpu = {"flops_per_s": PSI}
    fleet = [{"count": 30, "level": 1, "cpu": cpu}, {"count": 7, "level": 2, "cpu": cpu}]
    found = estimate(timing(fleet=fleet)).blocks
    assert found["devices"].tolist() == [30, 7]
    assert found["seconds"].tolist() == pytest.approx([10.0, 10.0])


BUFFERED = {"name": "buffered", "concurrency": 4, "buffer": 2}
CRASHES = {"name": "crash", "probability": 0.5}


@pytest.mark.parametrize(
    ("changes", "asked"),
    spread(
        [
            ({}, 3 * 4),
            ({"method": "fedbuff", "protocol": BUFFERED}, 3 * 2),  # as many updates as are merged
            ({"method": "dfedavg", "peers": "ring"}, 3 * 10),  # everybody
            ({"failures": [CRASHES]}, 3 * 4),  # those that crash are asked too
        ],
        2,
    ),
)
def test_run_costs_what_was_estimated(digits, changes, asked):
    scenario = digits(stop={"rounds": 3}, **changes)
    found = estimate(scenario).totals
    last = edgesim.run(scenario).rounds.iloc[-1]
    assert found["jobs"] == asked
    assert found["flops"] == pytest.approx(last["total_flops"], rel=1e-12)
    assert found["sim_time_s"] == pytest.approx(last["now_s"], rel=1e-12)
    for column in ("energy_j", "active_j", "idle_j"):
        assert found[column] == pytest.approx(last[f"total_{column}"], rel=1e-9)
    assert 0 < found["host_minutes"] < 10


@full
@pytest.mark.parametrize(
    "changes",
    [
        {"fleet": [{"cpu": {"flops_per_s": 1e6}, "battery": {"capacity": 10.0, "level": 0.0}}], "selection": "all"},
        {"method": "fedbuff", "protocol": BUFFERED, "failures": [{"name": "crash", "probability": 1.0}]},
    ],
)
def test_a_run_without_a_round_costs_nothing_that_could_be_told(digits, changes):
    with pytest.raises(ConfigError, match=r"^estimate: no round would close; a run without training ended with '"):
        estimate(digits(**changes))


def test_work_in_flight_is_estimated_once(digits):
    """In a long run eight jobs are at work when it ends, as they are after its first 20 merges, of one job each."""
    protocol = {"name": "buffered", "concurrency": 8, "buffer": 1}
    scenario = digits(method="fedasync", protocol=protocol, stop={"rounds": 400})
    found, last = estimate(scenario).totals, simulate_null(scenario).tables["rounds"].frame().iloc[-1]
    assert found["active_j"] == pytest.approx(last["total_active_j"], rel=0.1)
    assert found["flops"] == pytest.approx(last["total_flops"], rel=0.1)


@full
def test_a_limit_on_time_is_the_most_that_a_run_takes(digits):
    """The first round alone would take longer."""
    whole = estimate(digits(stop={"rounds": 1})).totals["sim_time_s"]
    assert estimate(digits(stop={"sim_time": whole / 2})).totals["sim_time_s"] == whole / 2


@pytest.mark.parametrize("method", spread([{"name": "dfedavg", "reuse": 2}, {"name": "dadpfl", "reuse": 2}], 1))
def test_peers_pay_for_what_they_exchange_and_wait(digits, method):
    # A device hears three others, a message of 6090 parameters each; of the first round everything is foreseen.
    energy = {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.5 W"}
    scenario = digits(
        method=method, peers="full", fleet=[{"count": 4, "cpu": {"flops_per_s": 1e8}}], energy=energy, network=LINKS,
        stop={"rounds": 1}, protocol="sync",
    )  # fmt: skip
    found = estimate(scenario)
    [row] = found.blocks.itertuples()
    done = edgesim.run(scenario)
    jobs = done.jobs.assign(seconds=done.jobs["end_s"] - done.jobs["sent_s"])
    assert (row.devices, row.down_bytes, row.up_bytes) == (4, 3 * 4 * 6090, 3 * 4 * 6090)
    assert row.seconds == pytest.approx(jobs["seconds"].mean(), rel=1e-12)
    assert row.seconds > row.flops / 1e8 + 3 * 8 * 4 * 6090 / 8e6
    of_devices = done.devices[["down_j", "compute_j", "up_j"]].to_numpy().sum()
    assert row.joules == pytest.approx(of_devices / 4, rel=1e-12)
    assert found.totals["sim_time_s"] == pytest.approx(done.rounds["now_s"].iloc[-1], rel=1e-12)


def test_who_is_not_there_at_first_is_priced_as_well(digits, tmp_path):
    # At the start nobody is there: a method that plans from results is priced by what it would ask of everybody.
    (tmp_path / "there.csv").write_text("device,start,end\n0,100,1000\n", encoding="utf-8")
    there = {"name": "trace", "file": str(tmp_path / "there.csv")}
    found = estimate(digits(method="fedpns", selection="all", availability=there))
    assert found.totals["jobs"] > 0 and found.totals["sim_time_s"] > 0


@pytest.mark.parametrize(
    ("backend", "processes"),
    [
        ("serial", 0),
        ({"name": "workers", "workers": 3}, 3),
        ({"name": "cohort", "workers": 4}, 4),  # each trains one of four jobs
    ],
    ids=["serial", "workers", "cohort"],
)
def test_memory_is_that_of_the_closed_form(digits, backend, processes):
    scenario = digits(backend=backend)
    images = 1797 * (64 * 4 + 8)  # float32 pixels and an int64 label
    shards = 8 * len(scenario.data.value.load().y_train)
    model = 4 * 6090
    # Training 16 images takes less than evaluating 100: each with its label, a map of 16 x 8 x 8, and the result of
    # pooling, which is 16 x 4 x 4 numbers and their places.
    network = model + model + 100 * ((4 * 64 + 8) + 4 * 16 * 64 + (4 + 8) * 16 * 16)
    found = estimate_of(assemble_all(scenario), lambda *_: HostSpeed(), Loaded(nbytes=7)).totals["memory_bytes"]
    forked = 300_000_000 + processes * 45_000_000 if processes else 0
    assert found == 7 + images + shards + (1 + 4) * model + forked + max(1, processes) * network


def test_devices_that_train_together_take_memory_together(digits):
    """Eight devices in one call hold eight models, and more than eight times the images of a batch of 16."""
    one, eight = (
        estimate_of(
            assemble_all(digits(backend={"name": "cohort", "workers": 1}, selection=asked)), lambda *_: HostSpeed()
        )
        for asked in ({"name": "uniform", "count": 1}, {"name": "uniform", "count": 8})
    )
    more = eight.totals["memory_bytes"] - one.totals["memory_bytes"]
    assert more > 7 * 2 * 4 * 6090 + (8 * 16 - 100) * 4 * 64


def test_devices_that_keep_models_take_memory(digits):
    """Ten devices among peers hold a model each, in which scaffold's devices hold their control variate."""
    plain, scaffold, peers = (
        estimate_of(assemble_all(scenario), lambda *_: HostSpeed()).totals
        for scenario in (digits(), digits(method="scaffold"), digits(method="dfedavg", peers="ring"))
    )
    assert scaffold["memory_bytes"] - plain["memory_bytes"] == 10 * 4 * 6090
    assert peers["memory_bytes"] - plain["memory_bytes"] == (10 + 10 - 4) * 4 * 6090  # of a round, and kept


def test_host_time_is_that_of_the_closed_form(digits):
    """Every job takes its FLOPs and 0.5 s, each of the tests after rounds 4, 8, 9 and 10 takes 3 s."""
    scenario = digits(stop={"rounds": 10}, evaluation={"every": 4, "last": 2})
    [parts] = assemble_all(scenario)
    speeds = HostSpeed(flops_per_s=1e6, job_s=0.5, test_s=3.0, start_s=7.0), HostSpeed()
    found, idle = (estimate_of([parts], lambda *_, speed=speed: speed, Loaded(100.0)).totals for speed in speeds)
    work = host_work(parts, 10, 40, found["flops"])
    assert work == (40, found["flops"], 4)
    training_s = found["flops"] / 1e6 + 40 * 0.5 + 4 * 3.0 + 7.0
    assert speeds[0].seconds(work, 0.0) == pytest.approx(training_s) and speeds[1].seconds(work, 0.0) == 0.0
    assert speeds[0].seconds(work, 5.0) == pytest.approx(training_s - 5.0)  # its processes loaded meanwhile
    assert 60 * found["host_minutes"] > 100.0 + training_s - 7.0  # the event loop takes time of this host, too
    assert 60 * idle["host_minutes"] > 100.0


def test_rounds_of_many_updates_are_tried_with_fewer(timing, monkeypatch):
    """Means of a round of 300 updates are those of rounds of twelve, four for each device."""
    module = edgesim.runs.estimate
    protocols = ({"name": "buffered", "concurrency": 2, "buffer": 300}, {"name": "gossip", "every": 300})
    for protocol, parts in zip(protocols, ({"method": "fedbuff"}, {"method": "adpsgd", "peers": "ring"}), strict=True):
        scenario = timing(
            fleet=[{"count": 3, "cpu": {"flops_per_s": PSI}}], protocol=protocol, stop={"rounds": 4}, **parts
        )
        whole = estimate(scenario).totals
        with monkeypatch.context() as short, patch.object(module, "_means", wraps=module._means) as means:
            short.setattr(module, "_UPDATES", 1)
            tried = estimate(scenario).totals
        assert means.call_args.args[0].tables["rounds"].frame()["used"].tolist() == [12] * 20
        assert whole["jobs"] == tried["jobs"] == 4 * 300
        for key in ("sim_time_s", "flops", "energy_j"):
            assert tried[key] == pytest.approx(whole[key], rel=0.05)


def test_a_round_of_peers_has_as_many_updates_as_the_session_has_devices(timing):
    fleet = [{"name": name, "count": count, "cpu": {"flops_per_s": PSI}} for name, count in (("a", 3), ("b", 5))]
    session = [{"name": "some", "devices": "a"}]
    scenario = timing(fleet=fleet, method="adpsgd", peers="ring", protocol="gossip", session=session)
    assert estimate(scenario).totals["jobs"] == 3 * scenario.stop.rounds


def test_kinds_of_one_level_have_a_row_each_and_say_how_many_are_late(timing):
    """A job of 7.3806 GFLOP takes 10 s and 40 s; the deadline is at 20 s."""
    fleet = [
        {"name": "fast", "count": 3, "cpu": {"flops_per_s": PSI}},
        {"name": "slow", "count": 5, "cpu": {"flops_per_s": PSI / 4}},
    ]
    protocol = {"name": "deadline", "deadline": "20 s"}
    found = estimate(timing(fleet=fleet, protocol=protocol)).blocks
    columns = ["kind", "level", "devices", "submodel", "late_share"]
    assert found[columns].to_numpy().tolist() == [["fast", 1, 3, "full", 0.0], ["slow", 1, 5, "full", 1.0]]
    assert found["seconds"].tolist() == pytest.approx([10.0, 40.0])
    assert estimate(timing(fleet=fleet)).blocks["late_share"].isna().all()


def test_the_late_share_of_random_jobs_is_that_of_many_runs(timing):
    """Half of the log-normal factors of 1 are above their median; the deadline is at the undisturbed job."""
    fleet = [{"count": 500, "cpu": {"flops_per_s": PSI}}]
    protocol = {"name": "deadline", "deadline": "10 s"}
    slowdown = {"name": "log_normal", "sigma": 0.5}
    scenario = timing(fleet=fleet, protocol=protocol, slowdown=slowdown, stop={"rounds": 4})
    [share] = estimate(scenario).blocks["late_share"]
    late = edgesim.run(scenario).jobs["outcome"].eq("late").mean()
    assert share == pytest.approx(late, abs=0.05) and 0 < share < 1


BATTERY = {"capacity": "2 kJ", "level": {"uniform": [0.5, 1.0]}}
# A device computes for 10 s with 4 W, so that 2 kJ last for some 50 rounds; the server waits for the last one.
DRAINED = {"fleet": [{"count": 6, "cpu": {"flops_per_s": PSI}, "battery": BATTERY}], "energy": POWERS, "network": LINKS}


def test_a_run_that_batteries_end_is_foreseen(timing):
    """Without charging the fleet is off long before 300 rounds; the estimate has the rounds and joules of the run."""
    scenario = timing(**DRAINED, stop={"rounds": 300})
    found, run = estimate(scenario), simulate_null(scenario)
    rounds = run.tables["rounds"].frame()
    assert 10 < len(rounds) < 100
    assert found.totals["rounds"] == len(rounds)
    assert found.notes == (f"Empty batteries end the run after {len(rounds)} of 300 rounds.",)
    assert found.totals["sim_time_s"] == pytest.approx(rounds["now_s"].iloc[-1], rel=1e-9)
    assert found.totals["energy_j"] == pytest.approx(rounds["total_energy_j"].iloc[-1], rel=1e-9)


def test_a_run_that_batteries_outlast_has_all_rounds(timing):
    found = estimate(timing(**DRAINED, stop={"rounds": 9}))
    assert (found.totals["rounds"], found.notes) == (9, ())
    lasting = {**DRAINED["fleet"][0], "battery": {"capacity": "12 Wh", "charge": "9 W", "windows": [["0 h", "24 h"]]}}
    found = estimate(timing(**{**DRAINED, "fleet": [lasting]}, stop={"rounds": 60}))
    assert (found.totals["rounds"], found.notes) == (60, ())


def test_where_batteries_are_not_foreseen_a_line_says_so(digits, timing, monkeypatch):
    drained = [{"count": 6, "cpu": {"flops_per_s": 1e8}, "battery": {"capacity": "20 J"}}]
    found = estimate(digits(method=f"{__name__}:Curious", fleet=drained))
    assert found.notes == ("Batteries are not foreseen, as method tests.cli.test_estimate:Curious plans from training "
                           "results.",)  # fmt: skip
    monkeypatch.setattr(edgesim.runs.estimate, "_TRIAL_S", 0.0)
    found = estimate(timing(**DRAINED, stop={"rounds": 300}))
    assert found.notes[0].startswith("Batteries were followed for 1 rounds alone") and found.totals["rounds"] == 300


def test_validate_warns_of_a_battery_that_never_charges(tmp_path):
    text = (
        'seed = 1\nmodel = "cnn_digits"\ndata = "digits"\npartition = "iid"\nmethod = "fedavg"\n'
        "stop = { rounds = 3 }\ntraining = { batch = 16, lr = 0.1 }\n[[fleet]]\n" + 'profile = "phone_mid"\n'
    )
    warning = "fleet.0.battery: will never charge, so that a device is off for good once it is empty"
    for battery, warned in (("", False), ('"rechargeable"', True), ('"none"', False), ('{ charge = "5 W" }', True)):
        (tmp_path / "it.toml").write_text(text + (f"battery = {battery}\n" if battery else ""))
        done = call("validate", tmp_path / "it.toml")
        assert done.code == 0 and (warning in done.out + done.err) is warned, battery


TWO = {"session": [{"name": "all"}, {"name": "slow", "devices": [[0, 1]], "start": "1 s", "training": {"batch": 5}}]}


def test_several_sessions_cost_what_they_run_for(timing):
    scenario = timing(energy=POWERS, network=LINKS, stop={"rounds": 4}, **TWO)
    found, [first, second] = estimate(scenario), assemble_all(scenario)
    run = Simulation(first, NullBackend(), Silent(), others=[(second, NullBackend())])
    run.run()
    told = {name: run.totals[name] for name in ("sim_time_s", "flops", "energy_j", "active_j", "idle_j")}
    assert {name: found.totals[name] for name in told} == pytest.approx(told, rel=1e-12)
    jobs = sum(len(each.tables["jobs"].frame()) for each in run.trainings)
    assert (found.totals["rounds"], found.totals["jobs"], found.notes) == (8, jobs, ())
    assert set(found.blocks["session"]) == {"all", "slow"}


@full
def test_sessions_that_take_long_go_on_as_they_went(timing, digits, monkeypatch):
    """Rounds without chance are all alike, so that the first few tell the last."""
    apart = [{"name": "one", "devices": [[0, 1]]}, {"name": "two", "devices": [[2, 4]], "stop": {"sim_time": 900.0}}]
    scenario = timing(energy=POWERS, stop={"rounds": 60}, session=apart)
    whole = estimate(scenario).totals
    monkeypatch.setattr(edgesim.runs.estimate, "_TRIAL_S", 0.0)
    cut = estimate(scenario)
    assert len(cut.notes) == 1 and cut.notes[0].startswith("Sessions were followed for ")
    for name in ("sim_time_s", "flops", "active_j", "idle_j"):
        assert cut.totals[name] == pytest.approx(whole[name], rel=0.1), name  # cut in mid-round
    endless = estimate(digits(stop={"accuracy": 0.5}, selection="all", session=apart)).totals
    assert endless["sim_time_s"] is endless["rounds"] is None and endless["memory_bytes"] > 0


def test_a_session_that_plans_from_training_is_named(digits):
    sessions = [{"name": "a"}, {"name": "b", "method": "fedpns"}]
    with pytest.raises(ConfigError, match=r"^estimate: session\.1\.method: fedpns plans from training results$"):
        estimate(digits(session=sessions))


def test_backends_are_told_with_the_fastest_first(digits, monkeypatch):
    """Each takes its own seconds; processes that start later than the first ones find their modules loaded."""
    speeds = {
        Serial: (HostSpeed(2e6, 0.1, 2.0, 0.0), []),
        Workers: (HostSpeed(4e6, 0.2, 1.0, 1e4), []),
        CohortTraining: (HostSpeed(9e6, 0.3, 1.0, 0.5), ["the network: it is odd"]),
    }
    monkeypatch.setattr(edgesim.runs.host_time, "_probed", lambda _, part, jobs: speeds[type(part)])
    monkeypatch.setattr(edgesim.runs.host_time.os, "cpu_count", lambda: 4)
    scenario = digits(stop={"rounds": 3}, selection="all")
    found = estimate(scenario, backends=True)
    flops, jobs = found.totals["flops"], found.totals["jobs"]
    serial, workers = flops / 2e6 + jobs * 0.1 + 3 * 2.0, flops / 4e6 + jobs * 0.2 + 3.0
    cohort = flops / 9e6 + jobs * 0.3 + 3.0
    notes = [("serial", ""), ("cohort, 4 processes", "the network: it is odd"), ("workers, 4 processes", "")]
    assert [(each.backend, each.note) for each in found.backends] == notes
    of_serial, of_cohort, of_workers = (each.host_s for each in found.backends)
    assert 60 * found.totals["host_minutes"] == pytest.approx(of_serial) and of_serial > serial
    assert of_workers - of_cohort == pytest.approx(workers - cohort)
    start_s = of_cohort - (of_serial - serial) - cohort  # less what the command took to load meanwhile
    assert 0.5 < start_s < 1e4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"backend": "null"}, "runs that train on a CPU, found backend null"),
        ({"stop": {"accuracy": 0.5}}, "runs whose number of rounds is known"),
        ({"session": [{"name": "a"}, {"name": "b"}]}, "one training, found 2 sessions"),
    ],
    ids=["null", "until an accuracy", "sessions"],
)
def test_backends_are_compared_for_one_training_of_known_length(digits, changes, says):
    with pytest.raises(ConfigError, match=f"^estimate: backends are compared for {says}$"):
        estimate(digits(**changes), backends=True)


@full
@pytest.mark.workers
def test_a_network_that_cannot_be_stacked_is_named(tmp_path):
    text = """seed = 1\nmodel = "cnn_digits"\ndata = "digits"\npartition = "iid"\nmethod = "fedavg"\nselection = "all"
        stop = { rounds = 2 }\ntraining = { batch = 16, lr = 0.1, precision = "bfloat16" }
        [[fleet]]\ncount = 20\nprofile = "phone_mid\""""
    (tmp_path / "it.toml").write_text(text)
    done = call("estimate", tmp_path / "it.toml", "--backends", "--json")
    assert done.code == 0, done.err
    rows = {row["backend"].partition(",")[0]: row for row in json.loads(done.out)["backends"]}
    assert rows.keys() == {"serial", "workers", "cohort"}
    assert "bfloat16" in rows["cohort"]["note"] and not rows["serial"]["note"]
    done = call("estimate", tmp_path / "it.toml", "--backends", "--set", "selection={name='uniform', count=1}")
    assert "too few jobs a round to train several at once" in done.out
