"""Two methods as a user would write them: server momentum, and devices that agree by logits on public samples."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import edgesim
from edgesim.core.errors import ContractError
from edgesim.core.task import Payload, TensorSpec
from edgesim.learning.train.rules import objective_loss
from tests.conftest import digits_scenario
from tests.contracts.support import Spy, mixed_scenario, prepare
from tests.methods.recorded import record
from tests.outside.fedavgm import FedAvgM
from tests.outside.fedmd import FedMD
from tests.sizes import full

OUTSIDE = Path(__file__).parents[1] / "outside"
SAMPLES, CLASSES = 20, 10


@pytest.mark.parametrize(("file", "lines"), [("fedavgm.py", 25), ("fedmd.py", 60)])
def test_they_are_short_and_use_nothing_private(file: str, lines: int) -> None:
    text = (OUTSIDE / file).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert not any(
                name.startswith("_") for alias in node.names for name in (alias.name, *(node.module or "").split("."))
            )


def test_server_momentum_is_that_of_torch() -> None:
    """The server's moves are those of torch.optim.SGD with momentum, whose gradient is x minus FedAvg's mean."""
    simulation = prepare(
        mixed_scenario(method={"name": "tests.outside.fedavgm:FedAvgM", "momentum": 0.5}, stop={"rounds": 4})
    )
    assert isinstance(simulation.learner.method, FedAvgM)
    spy = simulation.learner.method = Spy(simulation.learner.method)  # type: ignore[assignment]
    simulation.run()
    name = "conv1.weight"
    x = torch.nn.Parameter(spy.rounds[0][1]["params"][name].clone())
    optimiser = torch.optim.SGD([x], lr=1.0, momentum=0.5)
    for _, model, updates, *_ in spy.rounds:
        torch.testing.assert_close(model["params"][name], x.detach(), rtol=0, atol=1e-6)
        sizes = [update.samples * update.weight for update in updates]
        mean = sum(n * update.body["params"][name] for n, update in zip(sizes, updates, strict=True)) / sum(sizes)
        x.grad = x.detach() - mean
        optimiser.step()
    assert len(spy.rounds) == 4
    torch.testing.assert_close(simulation.learner.weights()["params"][name], x.detach(), rtol=0, atol=1e-6)


def distilling(**changes: object) -> edgesim.Scenario:
    """Return a run of four devices that keep models of their own and agree by logits."""
    method = {"name": "tests.outside.fedmd:FedMD", "public_samples": SAMPLES}
    base = {"partition": {"name": "iid", "samples_per_device": 40}, "stop": {"rounds": 3}, "selection": "all"}
    return digits_scenario(**{"method": method, **base, **changes})


def test_only_logits_travel() -> None:
    """20 samples x 10 classes x 4 bytes up; as many down from the second round on, nothing in the first."""
    jobs = edgesim.run(distilling()).jobs
    assert set(jobs["up_bytes"]) == {SAMPLES * CLASSES * 4}
    assert jobs.groupby("round")["down_bytes"].unique().map(list).tolist() == [[0], [800], [800]]


@full
def test_encodings_hold_for_logits_too() -> None:
    """Half the bytes in float16; a byte each and one scale in int8, and all arrive on that scale's 255 levels."""
    for values, expected in (("float16", 400), ("int8", 204)):
        run = edgesim.run(distilling(encoding={"up": values}))
        assert set(run.jobs["up_bytes"]) == {expected}


@full
def test_devices_agree_and_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server says is the mean of what devices sent; they send what their own networks say in a test."""
    done = record(monkeypatch, kinks=True)
    simulation = prepare(distilling())
    simulation.run()
    devices = len(simulation.parts.fleet)
    last = done[-devices:]
    sent = torch.stack([job.result.body["tensors"]["logits"] for job in last])
    torch.testing.assert_close(simulation.learner.weights()["tensors"]["logits"], sent.mean(dim=0))
    public = simulation.parts.server_set
    assert public is not None
    x, _ = simulation.parts.data.batch("train", torch.from_numpy(public.rows))  # type: ignore[union-attr]
    for job in last:
        network = job.network(job.result.new_device_state).eval()  # type: ignore[arg-type]
        torch.testing.assert_close(job.result.body["tensors"]["logits"], network(x).detach(), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(
        FedMD, "loss", lambda self, local, batch, context: objective_loss(local.weights, batch, context)
    )
    prepare(distilling()).run()
    alone = torch.stack([job.result.body["tensors"]["logits"] for job in done[-devices:]])
    assert float(sent.std(dim=0).mean()) < 0.9 * float(alone.std(dim=0).mean())  # who agrees is closer to the others
    held = {row for shard in simulation.parts.split.train for row in shard.tolist()}  # type: ignore[union-attr]
    assert held.isdisjoint(public.rows.tolist())


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            TensorSpec("logits", (SAMPLES, 3)),
            r"declared as float32 of shape \(20, 3\), but .* gave float32 of shape \(20, 10\)",
        ),
        (TensorSpec("logits", (SAMPLES, CLASSES), "int8"), r"declared as int8 .* gave float32"),
        (TensorSpec("scores", (SAMPLES, CLASSES)), r"declares the tensor 'scores', but the method gave none"),
    ],
)
def test_what_is_sent_is_what_was_declared(monkeypatch: pytest.MonkeyPatch, spec: TensorSpec, says: str) -> None:
    """Bytes are priced before anything is trained, so a tensor of another shape, type or name is refused."""
    really_task = FedMD.task

    def wrong(self: FedMD, view: object) -> object:
        task = really_task(self, view)
        object.__setattr__(task, "up", Payload(collections=frozenset(), tensors=(spec,)))
        return task

    monkeypatch.setattr(FedMD, "task", wrong)
    with pytest.raises(ContractError, match=says):
        prepare(distilling()).run()


def test_public_samples_have_to_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that looks at public samples of a method that has none is told so."""
    monkeypatch.setattr(FedMD, "server_set", None)
    with pytest.raises(ContractError, match="the method has no public samples: its server_set is None or not public"):
        prepare(distilling()).run()


@pytest.mark.parametrize(("dtype", "nbytes"), [("int64", 8), ("int32", 4), ("int16", 2), ("uint8", 1), ("bool", 1)])
def test_other_types_travel_as_they_are(dtype: str, nbytes: int) -> None:
    """Whole numbers are never rounded, whatever the encoding: indices of top values, counts, bits."""
    profile = prepare(mixed_scenario()).parts.setting.cost_profile
    spec = TensorSpec("own", (3, 5), dtype)  # type: ignore[arg-type]
    assert profile.nbytes(Payload(collections=frozenset(), tensors=(spec,))) == 15 * nbytes
