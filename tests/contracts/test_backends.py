"""Who trains, when and in which order changes nothing; who does not train at all changes only the accuracies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import edgesim
from edgesim.config.plugins import plugins_of
from edgesim.core.errors import ConfigError
from edgesim.core.update import SERVER, ModelRef
from edgesim.learning.compiled.program import compiler
from edgesim.learning.compiled.programs import Programs
from edgesim.learning.train.trainer import Trainer
from edgesim.records.schema import TABLES
from edgesim.runs.simulation import Simulation
from tests.contracts.support import (
    CLAIMS,
    COORDINATORS,
    FORESEEABLE,
    METHODS,
    MODELS,
    NORMED,
    PLUGINS,
    UNDISTURBED,
    BackwardsBackend,
    claims,
    fingerprint,
    hardest,
    mixed_scenario,
    needs_of,
    prepare,
    results_of,
    run,
    run_eagerly,
    tried,
)
from tests.sizes import full, thinned

AMONG_PEERS = [name for name in METHODS if needs_of(name).peers is not None]
DEADLINE = COORDINATORS["deadline"]
# Methods whose devices send no model but answers or signs, so short that the slow link makes nobody late.
SHORT = {"comet", "dsfl", "fedmd", "signsgd"}
# Methods whose devices take so many more passes, and send so much more, that two more of them are late.
LONG = {"fedl"}
# How far weights may lie apart, of the largest: Adam takes steps of its rate, as FedDF does on its server, also along
# gradients that are nothing but rounding. LAQ's grid takes a number to another point by its last digit.
ROUNDING = {"feddf": 1e-3, "laq": 1e-2}


def test_every_coordinator_is_tried():
    """A protocol that edgesim ships has its arguments here, and every method runs on one of them at least."""
    assert COORDINATORS.keys() == plugins_of("protocol").keys()
    assert {method for method, _ in CLAIMS} == set(METHODS)
    assert {protocol for _, protocol in CLAIMS} == set(COORDINATORS)


@pytest.mark.parametrize("server", [{}, {"flops_per_s": "1 MFLOP/s"}], ids=["ready server", "slow server"])
@pytest.mark.parametrize(("name", "protocol"), tried(FORESEEABLE))
def test_null_and_serial_tell_the_same_time(name, protocol, server):
    """Without feedback, jobs and rounds of a timing-only run are those of the run that trains, byte for byte.

    That is so too if the server takes time to average: how many numbers it got does not depend on training.
    """
    scenario = {"method": name, "protocol": COORDINATORS[protocol], "server": server}
    simulations = [run(mixed_scenario(**scenario, backend=backend)) for backend in ("serial", "null")]
    runs = [results_of(simulation) for simulation in simulations]
    for table in ("jobs", "rounds", "devices"):
        assert runs[0][table] == runs[1][table]
    assert runs[0]["evals"] != runs[1]["evals"]
    works = bool(server) and needs_of(name).peers is None
    rounds = simulations[0].tables["rounds"].frame()
    sends = rounds["round"] >= needs_of(name).overlap  # devices that send beside their work have nothing at first
    assert (rounds[sends]["server_s"] > 0).all() == works


def test_null_refuses_feedback():
    """A method that plans from what was learned cannot run without learning; the error says so."""
    with pytest.raises(ConfigError, match=r"backend\.name: .*Greedy plans from training results, which null"):
        prepare(mixed_scenario(method=f"{PLUGINS}:Greedy", backend="null"))


@pytest.mark.parametrize(("name", "protocol"), tried(CLAIMS))
def test_lazy_eager_and_backwards_agree(name, protocol):
    """Training at the end of each job, late jobs included, or in reverse order, gives the same tables and weights."""
    scenario = mixed_scenario(method=name, protocol=COORDINATORS[protocol])
    simulation = run(scenario)
    lazy = results_of(simulation)
    eager, devices = run_eagerly(scenario)
    assert results_of(eager) == lazy
    assert devices.trained == len(eager.tables["jobs"].frame())
    if not len(simulation.learner._pending):
        assert fingerprint(dict(sorted(devices.memory.items()))) == lazy["memory"]
    assert results_of(run(scenario, BackwardsBackend)) == lazy


def same_but_for_rounding(name: str, backend: dict[str, Any]) -> Simulation:
    """Run a method with this backend and with the plain one, compare the two, and return the first run.

    They tell the same time. Weights differ in the last digits. What devices keep may lie further apart: some of it is
    quantised, or a difference divided by a learning rate.
    """
    serial, other = (run(mixed_scenario(method=name, backend=each, stop={"rounds": 1})) for each in ("serial", backend))
    assert results_of(serial)["jobs"] == results_of(other)["jobs"]
    assert serial.learner.memory.keys() == other.learner.memory.keys()
    for kind, tensors in serial.learner.weights().items():
        for tensor_name, tensor in tensors.items():
            exact, found = tensor.double(), other.learner.weights()[kind][tensor_name].double()  # masks are bool
            assert float((exact - found).abs().max()) <= ROUNDING.get(name, 1e-5) * float(exact.abs().max())
    return other


@pytest.mark.parametrize("name", tried(METHODS))
def test_cohort_agrees_within_rounding(name):
    """Devices trained together get the weights of those trained one by one."""
    same_but_for_rounding(name, {"name": "cohort", "workers": 2}).learner.backend.close()


@full
@pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", thinned(METHODS, ("fedavg", "dp_fedavg", "scaffold", "heterofl"), ()))
def test_compiled_steps_agree_within_rounding(name, monkeypatch):
    """Every method gets the weights of eager steps. It uses compiled ones, or a line says why it does not."""
    found, find = [], Programs.find
    monkeypatch.setattr(Programs, "find", lambda *given: found.append(find(*given)) or found[-1])
    trained = same_but_for_rounding(name, {"name": "serial", "compile": True})
    assert any(found) or trained.learner.backend.warnings


# Jobs crash wherever they are, or stop early; the server forgets; in the test devices come and go as well.
TROUBLE = [
    {"name": "crash", "probability": 0.3},
    {"name": "partial_work", "probability": 0.5},
    {"name": "server_restart", "mean_time": "20 s"},
]


@pytest.mark.parametrize(("name", "protocol"), tried([case for case in FORESEEABLE if case[0] not in UNDISTURBED]))
def test_all_agree_in_trouble(name, protocol):
    """The same where jobs crash, stop early and are lost: what a device kept or its peers heard is what it had then.

    Timing alone tells the same story, as trouble comes to jobs and devices, whoever trains them.
    """
    # a device cannot know that what it delivered was lost afterwards, and peers have no server that loses anything
    lost = needs_of(name).device_state != "delivered" and needs_of(name).peers is None
    changes = {
        "method": name,
        "protocol": COORDINATORS[protocol],
        "failures": TROUBLE[: 2 + lost],
        "availability": {"name": "sessions", "on": "20 s", "off": "2 s"},
        "stop": {"rounds": 12 if protocol == "tiers" else 6},  # of the quick tier, most of them
    }
    simulation = run(mixed_scenario(**changes))
    lazy, timed = results_of(simulation), results_of(run(mixed_scenario(**changes, backend="null")))
    assert results_of(run_eagerly(mixed_scenario(**changes))[0]) == lazy
    assert [timed[table] for table in ("jobs", "rounds", "devices")] == [lazy["jobs"], lazy["rounds"], lazy["devices"]]
    outcomes = set(simulation.tables["jobs"].frame()["outcome"])
    assert {"ok", "crashed"} <= outcomes
    assert ("lost" in outcomes) == lost


@pytest.mark.parametrize(
    "name",
    tried([n for n in plugins_of("method") if "deadline" in claims(n) and needs_of(n).device_state != "computed"]),
)
def test_stragglers_are_never_trained(name, monkeypatch):
    """The trainer runs once for every job that arrived and never for one that was late."""
    trained: list[int] = []
    really_run = Trainer.run

    def counted(self, assignment):
        trained.append(assignment.job)
        return really_run(self, assignment)

    monkeypatch.setattr(Trainer, "run", counted)
    jobs = run(mixed_scenario(method=name, protocol=DEADLINE)).tables["jobs"].frame()
    # devices 0 and 1, twice
    assert (jobs["outcome"] == "late").sum() == 4 - 2 * (name in SHORT) + 2 * (name in LONG)
    assert sorted(trained) == sorted(jobs["job"][jobs["outcome"] == "ok"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", tried([*METHODS, f"{PLUGINS}:Asking"]))
def test_nobody_writes_into_what_he_was_given(name, model, monkeypatch):
    """No hook changes base, own memory or a peer's message; no later job changes what an earlier one sent or kept;
    merges are pure.
    """
    seen: list[tuple[object, str]] = []
    really_run = Trainer.run

    def guarded(self, assignment):
        given = [assignment.global_model, assignment.device_state, [m.body for m in assignment.received]]
        before = fingerprint(given)
        result = really_run(self, assignment)
        assert fingerprint(given) == before
        made = [result.body, result.new_device_state, result.statistics]
        seen.append((made, fingerprint(made)))
        return result

    simulation = prepare(mixed_scenario(method=name, model=model, protocol=hardest(name)))
    really_aggregate = type(simulation.learner.method).aggregate

    def pure_aggregate(self, state, base, got, *rest):
        given = [state, base, [m.body for m in got]]
        before = fingerprint(given)
        merged = really_aggregate(self, state, base, got, *rest)
        assert fingerprint(given) == before
        assert fingerprint(really_aggregate(self, state, base, got, *rest).model) == fingerprint(merged.model)
        return merged

    monkeypatch.setattr(Trainer, "run", guarded)
    monkeypatch.setattr(type(simulation.learner.method), "aggregate", pure_aggregate)
    simulation.run()
    assert len(seen) >= 8 - 2 * (name in LONG or hardest(name)["name"] == "tiers")  # of which one tier ends no round
    assert all(fingerprint(made) == before for made, before in seen)


@pytest.mark.parametrize("name", [f"{PLUGINS}:Proximal", f"{PLUGINS}:Teacher"])
def test_training_depends_on_the_assignment_alone(name, monkeypatch):
    """An assignment gives the same bits again after other jobs and an evaluation used the same network."""
    assignments, bits = [], []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        assignments.append(assignment)
        bits.append(fingerprint([result.body, result.new_device_state, result.statistics]))
        return result

    scenario = mixed_scenario(method=name, model=NORMED)
    monkeypatch.setattr(Trainer, "run", recorded)
    simulation = run(scenario)
    monkeypatch.undo()
    trainer = simulation.parts.make_trainer("cpu")
    again = []
    for assignment in reversed(assignments):
        trainer.score_chunks(assignment.global_model, [0])
        result = trainer.run(assignment)
        again.append(fingerprint([result.body, result.new_device_state, result.statistics]))
    assert again[::-1] == bits


@pytest.mark.parametrize("name", tried([*METHODS, f"{PLUGINS}:Asking"]))
def test_nothing_is_left_over(name):
    """After a run only jobs that were never merged or cancelled wait, and no model lives that nobody starts from.

    In rounds that is no job at all. Peers keep their newest messages, and the first model for whoever is new.
    """
    simulation = run(mixed_scenario(method=name, protocol=hardest(name), stop={"rounds": 3}))
    learner, tables = simulation.learner, {name: table.frame() for name, table in simulation.tables.items()}
    waiting = learner._pending._jobs.values()
    assert len(waiting) == len(tables["jobs"]) - tables["rounds"]["asked"].sum()
    assert hardest(name)["name"] in ("buffered", "gossip", "tiers") or not waiting
    among_peers = needs_of(name).peers
    needed = {learner.model, *(job.base for job in waiting), *([ModelRef(SERVER, 0)] if among_peers else [])}
    assert learner._models.models.keys() == needed
    owners = [ref.owner for ref in learner._messages]
    if hardest(name)["name"] == "gossip":  # nobody fetches from a device that trades, and some have not sent yet
        assert learner._begun.keys() == {job.id for job in waiting}
        needed_messages = {ref for job in waiting for ref in job.received}
        newest = Counter(ref.owner for ref in learner._messages.keys() - needed_messages)
        assert set(newest.values()) <= {1}
    else:
        assert sorted(owners) == (list(range(1, 7)) if among_peers else [])


def test_two_exchanges_are_one_round():
    """A probe and the training after it are merged together: one version, one evaluation and one row a round."""
    tables = {name: t.frame() for name, t in run(mixed_scenario(method=f"{PLUGINS}:Asking")).tables.items()}
    assert tables["jobs"].groupby(["round", "task"]).size().to_dict() == {
        (0, "probe"): 6, (0, "proximal"): 6, (1, "probe"): 6, (1, "proximal"): 6
    }  # fmt: skip
    assert tables["rounds"]["version"].tolist() == [1, 2]
    assert tables["evals"]["round"].tolist() == [0, 1]


def test_an_exchange_after_the_deadline_is_late_at_once():
    """If the probe takes the whole round, whoever is asked afterwards ends at the deadline without a charge."""
    scenario = mixed_scenario(method=f"{PLUGINS}:Asking", protocol={"name": "deadline", "deadline": "0.03 s"})
    jobs = run(scenario).tables["jobs"].frame()
    first = jobs[jobs["round"] == 0]
    assert set(first["outcome"]) == {"late"}
    assert set(first["end_s"]) == {0.03}
    assert first[first["task"] == "proximal"][["down_s", "compute_s", "up_s", "flops"]].to_numpy().max() == 0.0


@pytest.mark.parametrize(
    ("name", "protocol", "counts"),
    [
        pytest.param(f"{PLUGINS}:Proximal", "deadline", (1, 2), marks=full),
        (f"{PLUGINS}:Proximal", "buffered", (2,)),
        *thinned(
            [(name, claims(name)[0], (2,)) for name in AMONG_PEERS],
            [("dpsgd", "sync", (2,)), ("adpsgd", "gossip", (2,))],
        ),
    ],
)
@pytest.mark.workers
def test_workers_agree_with_serial(name, protocol, counts):
    """One or two worker processes give the tables, weights and memories of the serial backend, peers' too."""
    outcomes = []
    for backend in ("serial", *({"name": "workers", "workers": count} for count in counts)):
        simulation = prepare(
            mixed_scenario(method=name, model=NORMED, protocol=COORDINATORS[protocol], backend=backend)
        )
        simulation.run()
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])
    assert outcomes[0]["memory"] != fingerprint({})


@pytest.fixture
def many_threads():
    """Let this process compute on as many threads as it may have on another host."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "backend", ["serial", pytest.param({"name": "workers", "workers": 1}, marks=[full, pytest.mark.workers])]
)
def test_results_do_not_depend_on_the_threads_of_the_host(backend, many_threads, tmp_path):
    """Sums over a network large enough to be split between threads are those of one thread; these are given back."""
    scenario = mixed_scenario(method="fedadp", model="fcnn", backend=backend, stop={"rounds": 2})
    outcomes = []
    for threads in (1, many_threads):
        torch.set_num_threads(threads)
        run = edgesim.run(scenario, out=tmp_path / str(threads))
        assert torch.get_num_threads() == threads
        models = [load_file(run.folder / f"{which}.safetensors") for which in ("final", "best")]
        outcomes.append([fingerprint(models), *(run.table(name).to_csv() for name in TABLES)])
    assert outcomes[0] == outcomes[1]
