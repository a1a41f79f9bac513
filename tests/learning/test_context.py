"""Training in bfloat16: the steps that torch's autocast takes, its identity and its refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from edgesim.core.backend import Assignment
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.learning.models.build import copy_of, model_state_of
from edgesim.learning.train.loop import batch_order
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import digits_scenario

MIXED = {"batch": 16, "lr": 0.1, "momentum": 0.9, "precision": "bfloat16"}


def mixed(**changes: Any) -> Any:
    """Return the parts of a scenario that trains in bfloat16."""
    return assemble(digits_scenario(**{"training": MIXED, "stop": {"rounds": 1}, **changes}))


def test_a_job_takes_the_steps_of_autocast() -> None:
    """The loop of PyTorch's own page on autocast, to the last bit: master weights, gradients and losses are float32."""
    parts = mixed()
    trainer, start = parts.make_trainer("cpu"), model_state_of(parts.module)
    key, sgd = Key(5), parts.scenario.training.local_sgd(0)
    module, (x, y) = copy_of(parts.module).train(), trainer.data.batch("train", trainer.shards[0])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    with plain_torch():
        found = trainer.run(Assignment(0, 0, Task(local_sgd=(sgd,)), key, start, None)).body["params"]
        for rows in batch_order(key.at(0).at(0), len(y), sgd, drop_single=False):
            with torch.autocast("cpu", torch.bfloat16):
                logits = module(x[rows])
            assert logits.dtype == torch.bfloat16
            optimizer.zero_grad()
            F.cross_entropy(logits.float(), y[rows]).backward()
            optimizer.step()
    for name, value in module.named_parameters():
        assert value.dtype == found[name].dtype == torch.float32
        assert torch.equal(found[name], value), name


def weights(backend: Any) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the weights after a round, and the reasons of a cohort that trains one by one."""
    parts = mixed(backend=backend)
    opened = parts.scenario.backend.value.open(parts.make_trainer)
    try:
        simulation = Simulation(parts, opened, Silent())
        simulation.run()
        return simulation.learner.weights()["params"], list(opened.warnings)
    finally:
        opened.close()


def test_a_cohort_trains_one_by_one_and_says_why() -> None:
    one, (other, why) = weights("serial")[0], weights({"name": "cohort", "workers": 1})
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert why == [
        "backend.name: cohort trains one by one, as it cannot be stacked: training.precision: it trains in bfloat16"
    ]


@pytest.mark.workers
def test_workers_give_the_bits_of_serial() -> None:
    one, other = weights("serial")[0], weights({"name": "workers", "workers": 2})[0]
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_type_is_part_of_the_identity_and_its_speed_is_not() -> None:
    cpu, whole = {"flops_per_s": "1 GFLOP/s"}, {**MIXED, "precision": "float32"}
    slow, fast = ([{"count": 10, "cpu": {**cpu, "bfloat16_speedup": speedup}}] for speedup in (1, 2))
    mixed_facts = facts_of(mixed(fleet=slow))
    assert mixed_facts == facts_of(mixed(fleet=fast)) != facts_of(mixed(fleet=slow, training=whole))


def test_frozen_weights_in_float16_are_refused() -> None:
    """Some layers of PyTorch do not run with parameters of the one type and inputs of the other."""
    parts = mixed(model={"name": "tests.plugins.own_networks:HeadOnly", "numbers": "float16"})
    with pytest.raises(ConfigError, match=r"^training.precision: bfloat16 does not go with frozen weights in float16"):
        parts.make_trainer("cpu")


def test_a_loop_of_the_user_s_own_chooses_its_types_itself() -> None:
    method = {"name": "fedavg", "local": "tests.end_to_end.test_base:changing_loop"}
    with pytest.raises(ConfigError, match=r"^training.precision: must be 'float32', as .* chooses its types itself"):
        mixed(method=method)
