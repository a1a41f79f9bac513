"""Who trains, when and in which order changes nothing; who does not train at all changes only the accuracies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgesim.backends.lazy import LazyBackend
from edgesim.catalogue import find, parts_of
from edgesim.errors import ConfigError
from edgesim.learning.trainer import Trainer
from tests.contracts.support import (
    COORDINATORS,
    METHODS,
    MODELS,
    NORMED,
    PLUGINS,
    BackwardsBackend,
    EagerBackend,
    fingerprint,
    mixed_scenario,
    prepare,
    results_of,
    run,
)

DEADLINE = COORDINATORS["deadline"]


def protocols_of(name: str) -> Sequence[str]:
    """Return the coordinators that edgesim ships and the method claims."""
    needs = find("method", name)[0].needs
    return sorted(c for c, cls in parts_of("coordinator").items() if cls.protocol in needs.coordinators)


CLAIMS = [(name, coordinator) for name in METHODS for coordinator in protocols_of(name)]


@pytest.mark.parametrize(("name", "coordinator"), CLAIMS)
def test_null_and_serial_tell_the_same_time(name, coordinator):
    """Without feedback, jobs and rounds of a timing-only run are those of the run that trains, byte for byte."""
    runs = [
        results_of(run(mixed_scenario(method=name, coordinator=COORDINATORS[coordinator], backend=backend)))
        for backend in ("serial", "null")
    ]
    for table in ("jobs", "merges", "devices"):
        assert runs[0][table] == runs[1][table]
    assert runs[0]["evals"] != runs[1]["evals"]


def test_null_refuses_feedback():
    """A method that plans from what was learned cannot run without learning; the error says so."""
    with pytest.raises(ConfigError, match=r"backend\.name: .*Greedy plans from training results, which null"):
        prepare(mixed_scenario(method=f"{PLUGINS}:Greedy", backend="null"))


def test_null_refuses_server_work():
    """The null backend merges nothing, so it cannot know how long a server of finite speed takes."""
    with pytest.raises(ConfigError, match=r"server\.flops_per_s"):
        prepare(mixed_scenario(server={"flops_per_s": 1e9}, backend="null"))


@pytest.mark.parametrize("coordinator", sorted(parts_of("coordinator")))
@pytest.mark.parametrize("name", METHODS)
def test_lazy_eager_and_backwards_agree(name, coordinator):
    """Training at once, late jobs included, or in reverse order, gives the same tables and weights."""
    scenario = mixed_scenario(method=name, coordinator=COORDINATORS[coordinator])
    lazy = results_of(run(scenario))
    assert results_of(run(scenario, EagerBackend)) == lazy
    assert results_of(run(scenario, BackwardsBackend)) == lazy


@pytest.mark.parametrize("name", parts_of("method"))
def test_stragglers_are_never_trained(name, monkeypatch):
    """The trainer runs once for every job that arrived and never for one that was late."""
    trained: list[int] = []
    really_run = Trainer.run

    def counted(self, assignment):
        trained.append(assignment.job)
        return really_run(self, assignment)

    monkeypatch.setattr(Trainer, "run", counted)
    jobs = run(mixed_scenario(method=name, coordinator=DEADLINE)).tables["jobs"].frame()
    assert (jobs["outcome"] == "late").sum() == 4  # devices 0 and 1, twice
    assert sorted(trained) == sorted(jobs["job"][jobs["outcome"] == "ok"])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [*METHODS, f"{PLUGINS}:Asking"])
def test_nobody_writes_into_what_he_was_given(name, model, monkeypatch):
    """No hook changes base or own memory; no later job changes what an earlier one sent or kept; merges are pure."""
    seen: list[tuple[object, str]] = []
    really_run = Trainer.run

    def guarded(self, assignment):
        given = [assignment.base, assignment.own]
        before = fingerprint(given)
        result = really_run(self, assignment)
        assert fingerprint(given) == before
        made = [result.body, result.keep, result.signals]
        seen.append((made, fingerprint(made)))
        return result

    simulation = prepare(mixed_scenario(method=name, model=model, coordinator=DEADLINE))
    really_merge = type(simulation.learner.method).merge

    def pure_merge(self, state, base, got, *rest):
        given = [state, base, [m.body for m in got]]
        before = fingerprint(given)
        merged = really_merge(self, state, base, got, *rest)
        assert fingerprint(given) == before
        assert fingerprint(really_merge(self, state, base, got, *rest).model) == fingerprint(merged.model)
        return merged

    monkeypatch.setattr(Trainer, "run", guarded)
    monkeypatch.setattr(type(simulation.learner.method), "merge", pure_merge)
    simulation.run()
    assert len(seen) >= 8
    assert all(fingerprint(made) == before for made, before in seen)


@pytest.mark.parametrize("name", [f"{PLUGINS}:Proximal", f"{PLUGINS}:Teacher"])
def test_training_depends_on_the_assignment_alone(name, monkeypatch):
    """An assignment gives the same bits again after other jobs and an evaluation used the same network."""
    assignments, bits = [], []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        assignments.append(assignment)
        bits.append(fingerprint([result.body, result.keep, result.signals]))
        return result

    scenario = mixed_scenario(method=name, model=NORMED)
    monkeypatch.setattr(Trainer, "run", recorded)
    simulation = run(scenario)
    monkeypatch.undo()
    trainer = simulation.parts.make_trainer("cpu")
    again = []
    for assignment in reversed(assignments):
        trainer.score_chunks(assignment.base, [0])
        result = trainer.run(assignment)
        again.append(fingerprint([result.body, result.keep, result.signals]))
    assert again[::-1] == bits


@pytest.mark.parametrize("name", [*METHODS, f"{PLUGINS}:Asking"])
def test_nothing_is_left_over(name, monkeypatch):
    """After a run no assignment waits and only the newest model is alive, whatever was late or probed."""
    backends: list[LazyBackend] = []
    really_submit = LazyBackend.submit

    def submit(self, assignment):
        backends.append(self)
        really_submit(self, assignment)

    monkeypatch.setattr(LazyBackend, "submit", submit)
    simulation = run(mixed_scenario(method=name, coordinator=DEADLINE, stop={"rounds": 3}))
    assert backends[0]._waiting == {}
    assert len(simulation.learner._store) == 1


def test_two_exchanges_are_one_round():
    """A probe and the training after it are merged together: one version, one evaluation and one row a round."""
    tables = {name: t.frame() for name, t in run(mixed_scenario(method=f"{PLUGINS}:Asking")).tables.items()}
    assert tables["jobs"].groupby(["round", "task"]).size().to_dict() == {
        (0, "probe"): 6, (0, "proximal"): 6, (1, "probe"): 6, (1, "proximal"): 6
    }  # fmt: skip
    assert tables["merges"]["version"].tolist() == [1, 2]
    assert tables["evals"]["round"].tolist() == [0, 1]


def test_an_exchange_after_the_deadline_is_late_at_once():
    """If the probe takes the whole round, whoever is asked afterwards ends at the deadline without a charge."""
    scenario = mixed_scenario(method=f"{PLUGINS}:Asking", coordinator={"name": "deadline", "deadline": "0.03 s"})
    jobs = run(scenario).tables["jobs"].frame()
    first = jobs[jobs["round"] == 0]
    assert set(first["outcome"]) == {"late"}
    assert set(first["end_s"]) == {0.03}
    assert first[first["task"] == "proximal"][["down_s", "compute_s", "up_s", "flops"]].to_numpy().max() == 0.0


def test_workers_agree_with_serial():
    """One or two worker processes give the tables and weights of the serial backend, carried memory included."""
    outcomes = []
    for backend in ("serial", {"name": "workers", "workers": 1}, {"name": "workers", "workers": 2}):
        simulation = prepare(
            mixed_scenario(method=f"{PLUGINS}:Proximal", model=NORMED, coordinator=DEADLINE, backend=backend)
        )
        simulation.run()
        simulation.learner._backend.close()
        outcomes.append({**results_of(simulation), "memory": fingerprint(simulation.learner.memory)})
    assert outcomes[1] == outcomes[0]
    assert outcomes[2] == outcomes[0]
