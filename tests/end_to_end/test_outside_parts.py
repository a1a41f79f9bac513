"""A user's own model, data set and method, and a run that goes on from the weights of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.runs.assembly import assemble
from tests.calling import call
from tests.sizes import full, spread

OUTSIDE = "tests.outside"
MLP = {"name": f"{OUTSIDE}.models:Mlp", "features": 2, "classes": 2, "hidden": 5}


def blobs(**changes: Any) -> edgesim.Scenario:
    """A run of the three own parts."""
    base: dict[str, Any] = {
        "data": {"name": f"{OUTSIDE}.data:Blobs", "samples": 40},
        "partition": "iid",
        "model": MLP,
        "training": {"batch": 4, "lr": 0.1},
        "method": {"name": f"{OUTSIDE}.methods:Damped", "rate": 0.75},
        "stop": {"rounds": 2},
        "fleet": [{"count": 2, "cpu": {"flops_per_s": "1 MFLOP/s"}}],
    }
    return edgesim.load({**base, **changes})


def test_own_model_data_and_method_train() -> None:
    run = edgesim.run(blobs())
    assert (run.manifest["status"], len(run.rounds), len(run.jobs)) == ("finished", 2, 4)
    shapes = {name: array.shape for name, array in run.weights().items()}
    assert shapes == {"hidden.weight": (5, 2), "hidden.bias": (5,), "out.weight": (2, 5), "out.bias": (2,)}
    assert run.evals["accuracy"].iloc[-1] >= 0.95  # the clouds are 8 standard deviations apart
    # Matrix products of 2 x 5 and 5 x 2, two FLOPs a term: 40 forward and 40 for the gradients of the weights, and 20
    # for the gradient of what enters the second one. A device has 20 samples, a float has 4 bytes.
    assert run.jobs["flops"].tolist() == [20 * 100.0] * 4
    assert run.jobs["up_bytes"].tolist() == [4 * (10 + 5 + 10 + 2)] * 4
    assert run.manifest["scenario"]["method"] == {
        "name": f"{OUTSIDE}.methods:Damped", "rate": 0.75, "aggregate_over": "participants", "weights": "samples"
    }  # fmt: skip


def test_an_own_method_has_its_say() -> None:
    start = assemble(blobs()).module.state_dict()
    average = edgesim.run(blobs(method="fedavg", stop={"rounds": 1})).weights()
    damped = edgesim.run(blobs(stop={"rounds": 1})).weights()
    for name, old in ((name, tensor.numpy()) for name, tensor in start.items()):
        assert not np.array_equal(average[name], old)
        np.testing.assert_allclose(damped[name], 0.25 * old + 0.75 * average[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("section", "given", "says"),
    [
        (
            "method",
            {"name": f"{OUTSIDE}.methods:Damped", "rate": 2},
            "method.rate: must be less than or equal to 1, got 2",
        ),
        ("method", {"name": f"{OUTSIDE}.methods:Damped", "rat": 1}, "method.rat: unknown key; did you mean 'rate'?"),
        (
            "method",
            f"{OUTSIDE}.methods:Broken",
            "method.name: .*Broken must be a dataclass that extends edgesim.core.method.Method",
        ),
        ("data", {"name": f"{OUTSIDE}.data:Blobs", "samples": 1}, "data.samples: must be greater than or equal to 2"),
        ("model", {**MLP, "width": 3}, r"model.width: unknown key \(allowed: features, classes, hidden\)"),
        ("model", {**MLP, "classes": 3}, r"model.name: Mlp must give \(2, 2\) for two inputs of 2, gives \(2, 3\)"),
        ("model", {**MLP, "features": 3}, "model.name: Mlp cannot take inputs of 2: "),
        (
            "partition",
            f"{OUTSIDE}.data:Blobs",
            "partition.name: .*Blobs must be a dataclass that extends edgesim.learning.data.split.Partition",
        ),
    ],
)
def test_own_parts_are_checked_like_any_other(section: str, given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        assemble(blobs(**{section: given}))


def test_a_part_may_lie_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_network.py").write_text(
        "from torch import nn\n\ndef Net() -> nn.Module:\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    text = "partition = 'iid'\nmethod = 'fedavg'\nstop.rounds = 1\nfleet = [{ cpu.flops_per_s = 1e9 }]\n"
    (tmp_path / "scenario.toml").write_text(f"data = 'digits'\nmodel = 'my_own_network:Net'\n{text}")
    assert call("validate", "scenario.toml") == (0, "scenario.toml: ok\n", "")


@full
@pytest.mark.parametrize("model", spread([f"{OUTSIDE}.models:Normed", "cnn_digits"], 1))
def test_a_run_goes_on_from_saved_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Callable[..., edgesim.Scenario], model: str
) -> None:
    first = edgesim.run(digits(model=model, stop={"rounds": 2}), out=tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    resumed = {"model": {"name": model, "init_from": "first/final.safetensors"}, "stop": {"rounds": 1}, "seed": 9}
    start = assemble(digits(**resumed)).module
    saved = first.weights()
    travelling = {name: tensor for name, tensor in start.state_dict().items() if tensor.is_floating_point()}
    assert travelling.keys() == saved.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(travelling[name].numpy(), array, err_msg=name)
    # Nobody makes this deadline, so that what is evaluated is the model that the run began with.
    unchanged = edgesim.run(digits(**resumed, protocol={"name": "deadline", "deadline": "1 us"}))
    scores = [run.evals[["loss", "accuracy", "samples"]].iloc[-1].tolist() for run in (first, unchanged)]
    assert scores[0] == scores[1]
    assert edgesim.run(digits(**resumed)).evals["loss"].iloc[-1] != scores[0][0]
