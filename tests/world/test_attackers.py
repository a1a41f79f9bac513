"""Devices that want to do harm: who they are, what they train on and send, and who withstands them."""

from __future__ import annotations

import pytest
import torch

from edgesim.core.attack import Attack
from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.execution.result_cache import Answers
from edgesim.learning.train.attacked import attacked
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from edgesim.world.failures.attackers import Attackers
from tests.conftest import digits_scenario, frames
from tests.contracts.support import COORDINATORS, fingerprint, mixed_scenario, prepare, results_of, run
from tests.contracts.test_answers import found
from tests.sizes import full

FLIP = {"name": "attackers", "devices": [1, 4], "labels": "mirrored"}
TURN = {"name": "attackers", "devices": [1, 4], "factor": -1.0}


def test_who_attacks_is_drawn_once_for_each_device():
    """About the share asked for; devices that are added leave the others as they are; another seed draws others."""
    part = Attackers(probability=0.3, devices=(7,), labels="next")
    small, large = (set(part.build(n, Key(5), "failures.0").attacks()) for n in (1000, 2000))
    assert {device for device in large if device < 1000} == small
    assert 7 in small
    assert 250 < len(small) < 350  # 300 expected, with a deviation of 14
    assert set(part.build(1000, Key(6), "failures.0").attacks()) != small
    assert set(Attackers(probability=1.0, factor=2.0).build(3, Key(1), "").attacks()) == {0, 1, 2}


def test_labels_of_ten_classes():
    assert Attack("mirrored").relabelled(10) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert Attack("next").relabelled(10) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert Attack().relabelled(10) is None


def test_moves_are_multiplied_where_they_are_moves():
    """Parameters from what was received: 1 + 3 (2 - 1) = 4. A method's own numbers from 0, buffers and counts not."""
    body = {
        "params": {"a": torch.tensor([2.0])},
        "buffers": {"b": torch.tensor([2.0])},
        "delta": {"a": torch.tensor([2.0]), "count": torch.tensor([2])},
    }
    received = {"params": {"a": torch.tensor([1.0]), "c": torch.zeros(1)}, "buffers": {"b": torch.tensor([1.0])}}
    sent = {kind: {n: t.tolist() for n, t in ts.items()} for kind, ts in attacked(body, received, 3.0).items()}
    assert sent == {"params": {"a": [4.0]}, "buffers": {"b": [2.0]}, "delta": {"a": [6.0], "count": [2]}}
    assert attacked(body, received, -1.0)["params"]["a"].tolist() == [0.0]


def updates_of(**changes):
    """Return what the devices send in the first round, by device, and the model that they received."""
    simulation = prepare(mixed_scenario(protocol="sync", **changes))
    learner, session = simulation.learner, simulation.session
    inbox = session.new_inbox()
    jobs = session.dispatch(learner.plan(session.view()), to=inbox)
    trainer, first = simulation.parts.make_trainer("cpu"), learner.weights()
    given = [Assignment(job.id, job.device, job.task, learner._key_of(job), first, None) for job in jobs]
    return {each.device: trainer.run(each).body for each in given}, first


def test_only_attackers_send_something_else():
    honest, first = updates_of()
    flipped, turned = updates_of(failures=FLIP)[0], updates_of(failures=TURN)[0]
    assert {d for d in honest if fingerprint(honest[d]) != fingerprint(flipped[d])} == {1, 4}
    assert {d for d in honest if fingerprint(honest[d]) != fingerprint(turned[d])} == {1, 4}
    for name, old in first["params"].items():
        assert torch.allclose(turned[1]["params"][name] - old, old - honest[1]["params"][name], atol=1e-6)


def test_an_attacker_trains_as_on_data_with_those_labels():
    """A data set whose labels are all mirrored gives an honest device the update of the attacker, bit for bit."""
    flipped, _ = updates_of(failures=FLIP)
    simulation = prepare(mixed_scenario(protocol="sync"))
    trainer = simulation.parts.make_trainer("cpu")
    trainer.data.y_train.copy_(9 - trainer.data.y_train)
    learner, session = simulation.learner, simulation.session
    [job] = [j for j in session.dispatch(learner.plan(session.view()), to=session.new_inbox()) if j.device == 1]
    given = Assignment(job.id, 1, job.task, learner._key_of(job), learner.weights(), None)
    assert fingerprint(trainer.run(given).body) == fingerprint(flipped[1])


@pytest.mark.parametrize("attack", [FLIP, TURN], ids=["labels", "factor"])
def test_nothing_takes_another_time(attack):
    """Jobs, rounds and devices are those without attackers; what is learned is not."""
    one, other = (results_of(run(mixed_scenario(failures=failures))) for failures in ([], attack))
    assert [one[t] for t in ("jobs", "rounds", "devices")] == [other[t] for t in ("jobs", "rounds", "devices")]
    assert one["weights"] != other["weights"]


@pytest.mark.parametrize(
    ("method", "protocol"), [("scaffold", "deadline"), ("fedbuff", "buffered"), ("heterofl", "deadline")]
)
@pytest.mark.parametrize("attack", [{**FLIP, "labels": "next"}, {**TURN, "factor": 5.0}], ids=["labels", "factor"])
def test_methods_run_with_attackers(method, protocol, attack, tmp_path):
    """Answers of an honest run are not taken for those of one with attackers, nor the other way round."""
    changes = {"method": method, "protocol": COORDINATORS[protocol]}
    honest, _ = found(mixed_scenario(**changes), Answers(tmp_path))
    harmed, _ = found(mixed_scenario(**changes, failures=[attack]), Answers(tmp_path))
    assert harmed == found(mixed_scenario(**changes, failures=[attack]), None)[0]
    assert harmed["weights"] != honest["weights"]


def test_attacks_are_part_of_what_learning_depends_on():
    """Who attacks and how; not that a failure named attackers is there, whose devices nobody has."""
    facts = [
        facts_of(assemble(mixed_scenario(failures=failures)))
        for failures in ([], [FLIP], [TURN], [{**FLIP, "devices": [1]}], [{"name": "crash", "probability": 0.5}])
    ]
    assert len(set(facts)) == 4
    assert facts[0] == facts[-1]


def test_a_cohort_flips_the_labels_of_its_attackers():
    """Within rounding what serial gives."""
    weights = []
    for backend in ("serial", "cohort"):
        scenario = mixed_scenario(failures=[FLIP, {**TURN, "devices": [0]}], protocol="sync", backend=backend)
        simulation = run(scenario)
        weights.append(simulation.learner.weights()["params"])
        simulation.learner.backend.close()
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=1e-4), name


def test_the_first_of_two_says_how():
    both = assemble(mixed_scenario(failures=[FLIP, {**TURN, "devices": [4, 5]}])).attacks
    assert both == {1: Attack("mirrored"), 4: Attack("mirrored"), 5: Attack("kept", -1.0)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"labels": "next"}, r"failures\.0\.probability: must be above 0, or devices be listed"),
        ({"devices": [0]}, r"failures\.0\.labels: must be mirrored or next, or factor other than 1"),
        ({"devices": [2, 6], "factor": 2.0}, r"failures\.0\.devices: must be ids below 6, .* found 6"),
        ({"devices": [-1], "factor": 2.0}, r"failures\.0\.devices\.0: .*greater than or equal to 0"),
        ({"probability": 1.5, "factor": 2.0}, r"failures\.0\.probability: "),
        ({"devices": [0], "labels": "random"}, r"failures\.0\.labels: .*'kept', 'mirrored' or 'next'"),
        ({"devices": [0], "factor": "inf"}, r"failures\.0\.factor: "),
    ],
)
def test_bad_attackers(changes, says):
    with pytest.raises(ConfigError, match=says):
        assemble(mixed_scenario(failures=[{"name": "attackers", **changes}]))


def test_peers_may_flip_labels_but_have_no_model_to_move_from():
    peers = {"method": "dpsgd", "peers": "ring"}
    one, other = (results_of(run(mixed_scenario(**peers, failures=failures))) for failures in ([], [FLIP]))
    assert one["weights"] != other["weights"]
    with pytest.raises(ConfigError, match=r"failures\.0\.name: attackers needs a server, found peers"):
        assemble(mixed_scenario(**peers, failures=[TURN]))


def accuracy_of(method, failures):
    """Return the last accuracy of a short run on digits of ten devices, three of which may attack."""
    scenario = digits_scenario(
        method=method,
        failures=failures,
        selection="all",
        model="mlr",
        training={"batch": 16, "lr": 0.2},
        stop={"rounds": 8},
        evaluation={"every": 8},
    )
    return float(frames(run(scenario))["evals"]["accuracy"].iloc[-1])


@full
def test_the_robust_withstand_what_the_mean_does_not():
    """Three of ten devices send ten times the opposite of what they learned."""
    attack = [{"name": "attackers", "devices": [0, 4, 8], "factor": -10.0}]
    assert accuracy_of("fedavg", []) > 0.85
    assert accuracy_of("fedavg", attack) < 0.3
    for method in ("fedmedian", {"name": "trimmed_mean", "trim": 0.3}, "krum", "multi_krum"):
        assert accuracy_of(method, attack) > 0.8, method
