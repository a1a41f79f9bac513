"""Frozen parameters are the base of a network: they stay where they are, and nothing sends or changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import edgesim
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.core.rng import Key
from edgesim.execution.shared_memory import MemoryBlock, SharedMemory
from edgesim.learning.models.build import base_of, digest_of, model_state_of
from edgesim.runs.assembly import Assembly, assemble
from edgesim.runs.cache_identity import facts_of
from edgesim.runs.estimate import estimate
from edgesim.runs.simulation import Silent, Simulation
from tests.conftest import digits_scenario
from tests.sizes import full

HEAD = "tests.plugins.own_networks:HeadOnly"
LORA = "tests.plugins.adapted:Digits"
pytest.importorskip("peft")


def scenario(model: Any = HEAD, **changes: Any) -> edgesim.Scenario:
    """Return a scenario of four devices that train for two rounds."""
    given: dict[str, Any] = {"method": "fedavg", "selection": "all", "stop": {"rounds": 2}, "fleet": FLEET}
    return digits_scenario(**{**given, "model": model, **changes})


FLEET = [{"count": 4, "cpu": {"flops_per_s": 1e9}}]


def trained(parts: Assembly) -> Simulation:
    """Return a simulation that has run."""
    backend = parts.scenario.backend.value.open(parts.make_trainer)
    try:
        simulation = Simulation(parts, backend, Silent())
        simulation.run()
        simulation.learner.weights()
    finally:
        backend.close()
    return simulation


@pytest.mark.parametrize("model", [HEAD, pytest.param(LORA, marks=full)])
@pytest.mark.parametrize(
    "backend",
    [
        "serial",
        {"name": "cohort", "workers": 1},
        pytest.param({"name": "workers", "workers": 2}, marks=pytest.mark.workers),
    ],
    ids=["serial", "cohort", "workers"],
)
def test_no_bit_of_the_base_changes_in_a_run(model: str, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hold it in shared memory: looked at there as well."""
    put, blocks = SharedMemory.put, list[tuple[SharedMemory, MemoryBlock]]()

    def noted(self: SharedMemory, value: Any) -> MemoryBlock:
        blocks.append((self, put(self, value)))
        return blocks[-1][1]

    monkeypatch.setattr(SharedMemory, "put", noted)
    parts = assemble(scenario(model, backend=backend))
    before, base = digest_of(base_of(parts.module)), {n: v.clone() for n, v in base_of(parts.module).items()}
    opened = parts.scenario.backend.value.open(parts.make_trainer)
    first = model_state_of(parts.module)
    try:
        simulation = Simulation(parts, opened, Silent())
        simulation.run()
        last = simulation.learner.weights()
        shared = [memory.get(block, copied=True) for memory, block in blocks[:1]]
    finally:
        opened.close()
    assert base and digest_of(base_of(parts.module)) == before
    assert all(torch.equal(base_of(each.module)[name], value) for each in shared for name, value in base.items())
    assert last["params"].keys() == first["params"].keys() and base.keys().isdisjoint(last["params"])
    assert not last["buffers"]
    assert any(not torch.equal(last["params"][name], value) for name, value in first["params"].items())


@pytest.mark.workers
def test_workers_and_serial_give_the_same_bits() -> None:
    one, other = (
        trained(assemble(scenario(backend=backend))).learner.weights()
        for backend in ("serial", {"name": "workers", "workers": 2})
    )
    assert all(torch.equal(value, other["params"][name]) for name, value in one["params"].items())


@full
def test_cohorts_stack_adapters_on_one_base() -> None:
    serial, cohort = (
        trained(assemble(scenario(LORA, backend=backend))) for backend in ("serial", {"name": "cohort", "workers": 1})
    )
    one, other = serial.learner.weights(), cohort.learner.weights()
    for name, value in one["params"].items():
        torch.testing.assert_close(other["params"][name], value, rtol=1e-3, atol=1e-5)
    assert not cohort.learner.backend.warnings


def test_an_update_of_adapters_has_their_bytes_alone() -> None:
    """Rank 8 on queries and values, 64 wide, 2 layers: 2 x 2 x (8 x 64 + 64 x 8) = 4,096 numbers of 4 bytes.

    Base: rows (8 x 64 + 64), head (64 x 10 + 10), and in each layer two norms (2 x 2 x 64), four projections
    (4 x (64 x 64 + 64)) and a perceptron (64 x 256 + 256 + 256 x 64 + 64).
    """
    parts = assemble(scenario(LORA))
    profile = parts.network.cost_profile
    in_a_layer = 2 * 2 * 64 + 4 * (64 * 64 + 64) + 64 * 256 + 256 + 256 * 64 + 64
    assert profile.params == 2 * 2 * (8 * 64 + 64 * 8) == 4096
    assert profile.base == 8 * 64 + 64 + 64 * 10 + 10 + 2 * in_a_layer
    assert profile.base_bytes == 4 * profile.base
    jobs = trained(parts).tables["jobs"].frame()
    assert (jobs["down_bytes"] == 4 * 4096).all() and (jobs["up_bytes"] == 4 * 4096).all()


def test_the_manifest_and_the_estimate_name_the_base(tmp_path: Path) -> None:
    """Of HeadOnly 4 x 36 x 10 + 10 numbers travel, and 4 x 9 + 4 stay."""
    run = edgesim.run(scenario(backend="null", encoding={"base": "once"}), out=tmp_path / "run")
    assert run.manifest["model"] == {"numbers": 1450, "nbytes": 5800, "base": 40, "base_bytes": 160}
    assert estimate(scenario(backend="null")).notes == (
        "The model that travels has 1,450 numbers, 5,800 bytes; its frozen base, which is on devices from the start, "
        "has 40 numbers, 160 bytes.",
    )
    assert not estimate(scenario("cnn_digits", backend="null")).notes
    charged = assemble(scenario(cost={"name": "as", "model": {"name": HEAD, "numbers": "bfloat16"}})).setting
    assert charged.cost_profile.sizes == (1450, 5800, 40, 80)


def test_the_memory_of_a_device_holds_the_base_in_its_type() -> None:
    whole, half = (
        assemble(scenario({"name": HEAD, "numbers": numbers})).network.cost_profile
        for numbers in ("float32", "bfloat16")
    )
    assert (whole.base_bytes, half.base_bytes) == (4 * 40, 2 * 40)
    needs = [profile.memory_bytes(edgesim.core.task.Submodel(), 8).weights for profile in (whole, half)]
    assert needs == [4 * 1450 + 4 * 40, 4 * 1450 + 2 * 40]


def test_saved_weights_are_those_that_train(tmp_path: Path) -> None:
    edgesim.run(scenario(), out=tmp_path / "run")
    [saved] = (tmp_path / "run").glob("**/final*.safetensors")
    assert load_file(saved).keys() == {"head.weight", "head.bias"}


def test_a_file_may_hold_the_base_only_as_a_whole(tmp_path: Path) -> None:
    from edgesim.learning.models.base import ModelPlugin
    from edgesim.learning.models.build import build_model
    from tests.plugins.own_networks import HeadOnly

    class Start(ModelPlugin):
        def build(self, input_shape: Any, classes: int) -> HeadOnly:
            return HeadOnly()

    head = {"head.weight": torch.ones(10, 144), "head.bias": torch.ones(10)}
    features = {"features.weight": torch.full((4, 1, 3, 3), 2.0), "features.bias": torch.full((4,), 2.0)}
    path = tmp_path / "start.safetensors"
    save_file({**head, **features}, path)
    assert torch.equal(
        base_of(build_model(Start(init_from=path), (1, 8, 8), 10, Key(1)))["features.bias"], torch.full((4,), 2.0)
    )
    save_file(head, path)
    assert base_of(build_model(Start(init_from=path), (1, 8, 8), 10, Key(1))).keys() == features.keys()
    save_file({**head, "features.bias": features["features.bias"]}, path)
    with pytest.raises(ConfigError, match=r"does not fit: features\.weight is missing"):
        build_model(Start(init_from=path), (1, 8, 8), 10, Key(1))


def test_other_numbers_in_a_file_that_a_users_code_reads_are_another_run(tmp_path: Path) -> None:
    path, found = tmp_path / "features.pt", set[bytes]()
    for value in 1.0, 2.0:
        torch.save({"weight": torch.full((4, 1, 3, 3), value), "bias": torch.zeros(4)}, path)
        found.add(facts_of(assemble(scenario({"name": HEAD, "file": str(path)}))))
        found.add(facts_of(assemble(scenario({"name": HEAD, "file": str(path)}))))
    assert len(found) == 2


def changing_loop(model: torch.nn.Module, data: Any, config: Any) -> dict[str, Any]:
    """Train on a batch, and change a frozen parameter."""
    x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=config.batch)))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        model.features.bias.add_(1.0)
    return {"samples": len(data)}


def test_a_loop_of_a_user_must_not_change_the_base() -> None:
    method = {"name": "fedavg", "local": "tests.end_to_end.test_base:changing_loop"}
    with pytest.raises(EdgesimError, match=r"must not change frozen parameters, .*: 'features\.bias'"):
        trained(assemble(scenario(method=method)))


def test_a_job_that_carries_the_base_trains_the_same_bits() -> None:
    """The key says what a download takes, and nothing about training."""
    one, other = (
        trained(assemble(scenario(encoding={"base": base}))).learner.weights() for base in ("preloaded", "once")
    )
    assert all(torch.equal(value, other["params"][name]) for name, value in one["params"].items())


def test_a_network_that_changes_what_it_froze_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.name: Drifting changes its frozen parameter shift when it runs"):
        assemble(scenario("tests.plugins.own_networks:Drifting"))
