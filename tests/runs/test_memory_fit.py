"""Whether training fits devices: what the estimate says against runs with the changes that it names."""

from typing import Any

import pytest

import edgesim
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.task import Submodel
from edgesim.runs.assembly import assemble
from edgesim.runs.job_sample import of_everybody, timed
from edgesim.runs.memory_fit import MemoryFit, memory_fits
from tests.conftest import digits_scenario, frames, simulate_null
from tests.sizes import full

BATCH = 16
ADAM = {"batch": BATCH, "optimizer": "adam"}


def scenario_of(memory: int, batch: int = BATCH, **changes: object) -> edgesim.Scenario:
    """Two kinds of devices with Adam: one without a limit, and one with this many bytes."""
    cpu = {"flops_per_s": "1 GFLOP/s"}
    fleet = [{"name": "any", "cpu": cpu}, {"name": "small", "cpu": cpu, "memory": memory}]
    training = {"training": {**ADAM, "batch": batch}, "selection": "all", "stop": {"rounds": 1}, "backend": "null"}
    return digits_scenario(fleet=fleet, **{**training, **changes})


def fit_of(scenario: edgesim.Scenario) -> MemoryFit:
    """The only fit of a scenario."""
    start = timed(assemble(scenario))
    (found,) = memory_fits(start.parts, start.trainings[0].asks_devices.learner.plan(of_everybody(start)))
    return found


def outcomes(scenario: edgesim.Scenario) -> list[str]:
    """How the jobs of the two kinds end in a run."""
    found: list[str] = frames(simulate_null(scenario))["jobs"].sort_values("device")["outcome"].tolist()
    return found


def test_devices_fit_up_to_the_batch_that_is_named_and_with_the_changes_that_are_named() -> None:
    profile, adam = assemble(scenario_of(1)).setting.cost_profile, LocalSGD(BATCH, 0.1, optimizer="adam")
    need = profile.memory_bytes(Submodel(), BATCH, adam.moments, adam.scratch).total
    fits = fit_of(scenario_of(need))
    assert (fits.kind, fits.memory_bytes, fits.need_bytes, fits.fits) == ("small", need, need, True)
    assert fits.largest_batch == BATCH
    assert fits.changes == ()
    assert fits.line().endswith(f"fits, {need / 1e6:.3g} MB at batch {BATCH}; largest batch {BATCH}")
    lacks = fit_of(scenario_of(need - 1))
    assert not lacks.fits
    assert outcomes(scenario_of(need - 1)) == ["ok", "no_memory"]
    named = dict(lacks.changes)
    assert named.pop("a smaller training.batch") == lacks.largest_batch == BATCH - 1
    assert outcomes(scenario_of(need - 1, BATCH - 1)) == ["ok", "ok"]
    plain = named.pop('training.optimizer = "sgd" without momentum')
    assert [outcomes(scenario_of(need - 1, training={"batch": size}))[1] for size in (plain, plain + 1)] == [
        "ok", "no_memory",
    ]  # fmt: skip
    ((text, size),) = named.items()
    last = int(text.split()[6])
    frozen = [name for name in profile.layer_names[:-last]]
    assert text == f"model.freeze of all but the last {last} of {len(profile.layer_names)} layers"
    assert outcomes(scenario_of(need - 1, size, model={"name": "cnn_digits", "freeze": frozen}))[1] == "ok"
    assert text in lacks.line()
    assert lacks.facts()["changes"][-1] == {"change": text, "largest_batch": size}


def test_nothing_makes_a_network_fit_that_is_larger_than_the_memory() -> None:
    found = fit_of(scenario_of(1000))
    assert (found.fits, found.largest_batch, found.changes) == (False, 0, ())
    assert found.line().endswith("no change known to edgesim makes it fit")


@full
def test_adapters_and_checkpointing_are_named_for_a_transformer_that_does_not_fit() -> None:
    """With either a job fits at the batch that is named, and at no larger one."""
    pytest.importorskip("peft")
    texts = {"name": "markov_text", "users": 2, "samples_per_user": 20, "letters": 8, "styles": 2, "own": 0.3}
    changes: dict[str, Any] = {
        "data": texts,
        "objective": "next_token",
        "partition": "by_column",
        "evaluation": {"every": 1},
    }

    def transformer(batch: int, **keys: object) -> edgesim.Scenario:
        model = {"name": "hf", "config": "tiny-gpt2", **keys}
        return scenario_of(900_000, model=model, training={"batch": batch}, **changes)

    named = dict(fit_of(transformer(8)).changes)
    batch = named["model.lora = { r = 8 }"]
    assert 0 < batch < named['model.lora = { r = 8 } and model.dtype = "bfloat16"']
    assert [outcomes(transformer(size, lora={"r": 8}))[1] for size in (batch, batch + 1)] == ["ok", "no_memory"]
    batch = named["model.gradient_checkpointing = true"]
    again = [transformer(size, gradient_checkpointing=True) for size in (batch, batch + 1)]
    assert [outcomes(each)[1] for each in again] == ["ok", "no_memory"]
