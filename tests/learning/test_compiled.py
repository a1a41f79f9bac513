"""Compiled steps: equal to eager ones within rounding, found again by their operations only, and never for chance."""

from __future__ import annotations

import copy
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.execution.backends.serial import Serial
from edgesim.files.user_cache import PROGRAMS, VARIABLE, cache_folder, keep_file
from edgesim.learning.compiled import program
from edgesim.learning.compiled.program import CannotCompile, program_of
from edgesim.learning.compiled.programs import GradientStep, Programs
from edgesim.learning.compiled.recording import NotRecorded, record
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.torch_settings import plain_torch
from tests.fuzz.mutate import to_toml
from tests.sizes import full, thinned

SAMPLES, FEATURES, CLASSES = 11, 6, 3
compiles = pytest.mark.skipif(not program.compiler(), reason="there is no C++ compiler")


class Own(nn.Module):
    """A layer, and what a user's forward pass does beside it."""

    def __init__(self, then: Callable[[Own, Tensor], Tensor] = lambda own, x: x) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.calls, self.scale, self.then = 0, torch.full((CLASSES,), 2.0), then

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.then(self, self.layer(x))
        return out


def counting(own: Own, x: Tensor) -> Tensor:
    own.calls += 1
    return x


UNSTEADY: dict[str, tuple[Callable[[Own, Tensor], Tensor], str]] = {
    "counts its calls": (counting, "changes its own attributes"),
    "has a tensor of its own": (lambda own, x: x * own.scale, "neither a parameter nor a buffer"),
    "looks at numbers": (lambda own, x: x if x.sum() > 0 else -x, "depend on numbers"),
    "picks numbers": (lambda own, x: x + x[x > 0].sum(), "depend on numbers"),
    "draws from Python": (lambda own, x: x * random.random(), "random numbers of Python"),
}


def mlp(width: int = 5, between: nn.Module | None = None) -> nn.Sequential:
    """Return a small perceptron with another layer between its two."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), between or nn.Identity(), nn.Linear(width, CLASSES))


def step_of(module: nn.Module, features: tuple[int, ...] = (FEATURES,)) -> tuple[GradientStep, list[Tensor]]:
    """Return the step of a network whose parameters all train, and inputs of it."""
    trained, others = dict(module.named_parameters()), dict(module.named_buffers())
    draw = torch.Generator().manual_seed(5)
    x, y = torch.rand(SAMPLES, *features, generator=draw), torch.arange(SAMPLES) % CLASSES
    step = GradientStep(module, list(trained), list(others), CLASSIFICATION)
    return step, [*(each.detach() for each in (*trained.values(), *others.values())), x, y]


def recorded(module: nn.Module) -> str:
    """Return the operations of a step of a network."""
    step, inputs = step_of(module)
    return record(step, inputs, module)


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_record_tells_networks_apart() -> None:
    """Other weights change nothing; another width, function, mode, constant or memory layout does."""
    one = recorded(mlp())
    assert recorded(mlp()) == one
    frozen = mlp(between=nn.BatchNorm1d(5))
    running = recorded(frozen)
    frozen[2].eval()
    others = [
        recorded(mlp(6)),
        recorded(mlp(between=nn.Tanh())),
        recorded(mlp(between=nn.Threshold(0.1, 0.0))),
        recorded(mlp(between=nn.Threshold(0.2, 0.0))),
        recorded(mlp(between=nn.Dropout(0.5))),
        recorded(mlp(between=nn.Dropout(0.4))),
        running,
        recorded(frozen),
        recorded(Own(lambda own, x: x * torch.tensor(2.0))),
        recorded(Own(lambda own, x: x * torch.tensor(3.0))),
    ]
    assert len({one, *others}) == 1 + len(others)
    step, (*weights, x, y) = step_of(module := mlp())
    columns = x.T.contiguous().T
    assert record(step, [*weights, columns, y], module) != one


@pytest.mark.parametrize("name", UNSTEADY)
def test_no_record_of_what_may_change(name: str) -> None:
    """A step whose operations may be others next time is not recorded, and says why."""
    then, why = UNSTEADY[name]
    with pytest.raises(NotRecorded, match=why):
        recorded(Own(then))


def test_a_record_changes_nothing() -> None:
    """Neither weights nor running statistics nor torch's stream move."""
    module = mlp(between=nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    step, inputs = step_of(module)
    stream = torch.default_generator.get_state()
    with seeded(Key(0)):
        record(step, inputs, module)
    assert torch.equal(stream, torch.default_generator.get_state())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


# --- without a program ------------------------------------------------------------------------------------------------


def test_a_compiler_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one nothing is made, and the reason says so."""
    monkeypatch.setattr(program, "compiler", str)
    step, inputs = step_of(module := mlp())
    with pytest.raises(CannotCompile, match=r"no C\+\+ compiler"):
        program_of(step, inputs, module)


def scenario(**keys: Any) -> dict[str, Any]:
    """Return a scenario of four devices on the digits, two of whose batches of an epoch are shorter than others."""
    return {
        "seed": 3,
        "data": {"name": "digits", "train_limit": 200, "test_limit": 40},
        "partition": {"name": "iid", "samples_per_device": 25},
        "model": {"name": "mlp", "hidden": [9]},
        "training": {"batch": 8, "lr": 0.1, "local_epochs": 2},
        "method": "fedavg",
        "stop": {"rounds": 2},
        "fleet": [{"count": 4, "cpu": {"flops_per_s": "1 GFLOP/s"}}],
        "backend": {"name": "serial", "compile": True},
        **keys,
    }


def eager(run: edgesim.Run) -> list[str]:
    """Return what a run says of steps that are not compiled."""
    return [line for line in run.manifest["warnings"] if line.startswith("backend.compile: some steps")]


def test_what_is_not_compiled_runs_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the bits are those of eager steps, and the run says why, once."""
    monkeypatch.setattr(program, "compiler", str)
    found = edgesim.run(scenario())
    [line] = eager(found)
    assert line.endswith("there is no C++ compiler on this machine")
    plain = edgesim.run(scenario(backend="serial"))
    assert not eager(plain)
    assert found.evals["loss"].tolist() == plain.evals["loss"].tolist()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"method": "moon"}, "the method: its devices take other gradients"),
        ({"training": {"batch": 8, "lr": 0.1, "precision": "bfloat16"}}, "training.precision: "),
    ],
    ids=["a loss of the method's own", "mixed precision"],
)
def test_what_cannot_be_compiled_is_named(keys: dict[str, Any], why: str) -> None:
    """Methods with other gradients and mixed precision train eagerly, to the same bits."""
    found, plain = edgesim.run(scenario(**keys)), edgesim.run(scenario(**keys, backend="serial"))
    [line] = eager(found)
    assert why in line
    assert found.evals["loss"].tolist() == plain.evals["loss"].tolist()


def test_compiled_runs_share_no_answers_with_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with those of another compiler, or of none: their last bits differ."""
    found = {Serial().rounding, Serial(compile=True).rounding}
    for named in ("another 1.0", ""):
        monkeypatch.setattr(program, "compiler", lambda named=named: named)
        found.add(Serial(compile=True).rounding)
    assert len(found) == 4


def test_only_cpus() -> None:
    """Another device is refused before anything is built."""
    with pytest.raises(ConfigError, match=r"backend\.(compile|device): "):
        edgesim.run(scenario(backend={"name": "serial", "compile": True, "device": "cuda"}))


def test_one_process_makes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four that need it at once one makes it; an error leaves nothing behind, and the next one tries again."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    made = []

    def fail(path: Path) -> None:
        path.write_text("half")
        raise ValueError("broken")

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("whole")

    with pytest.raises(ValueError, match="broken"):
        keep_file(PROGRAMS, f"{'a' * 64}.so", fail)
    assert not list((cache_folder() / PROGRAMS).glob("*.so"))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: keep_file(PROGRAMS, f"{'a' * 64}.so", make).read_text(), range(4)))
    assert found == ["whole"] * 4
    assert len(made) == 1


# --- with a program ---------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An embedding, an LSTM, and an attention layer, on tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(CLASSES, 8), nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(self.attention(self.lstm(self.tokens(x.round().long()))[0])[:, -1])
        return logits


def images() -> nn.Module:
    """Return a network with a normalisation, and a pooling whose path is kept."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(36, CLASSES)),
    )


def eager_step(module: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return gradients, outputs and buffers of a copy of a network after a step, as anyone would calculate them."""
    own = copy.deepcopy(module)
    logits = own(x)
    return [*torch.autograd.grad(cross_entropy(logits, y), list(own.parameters())), logits, *own.buffers()]


@full
@compiles
@plain_torch()
@pytest.mark.parametrize(
    ("build", "features"),
    [(mlp, (FEATURES,)), (images, (1, 6, 6)), (Recurrent, (FEATURES,))],
    ids=["perceptron", "images", "recurrent"],
)
@pytest.mark.parametrize("dtype", thinned([torch.float32, torch.float64], [torch.float32], ()), ids=str)
def test_a_program_gives_what_its_step_gives(
    build: Callable[[], nn.Module], features: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Gradients, outputs, statistics and torch's stream afterwards, for batches of any size."""
    module = build().to(dtype)
    step, (*weights, x, y) = step_of(module, features)
    x = x.to(dtype)
    made = program_of(step, [*weights, x, y], module)
    for samples in (2, 5, SAMPLES):
        given = [*weights, x[:samples], y[:samples]]
        with seeded(Key(1)):
            found, drawn = made(given), torch.rand(1)
        with seeded(Key(1)):
            wanted, rest = eager_step(module, x[:samples], y[:samples]), torch.rand(1)
        assert torch.equal(drawn, rest)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 if dtype is torch.float32 else 1e-13)


def test_a_network_that_fails_in_another_batch_is_not_compiled() -> None:
    """An error of its own code is the reason, and no error of the run."""
    step, inputs = step_of(module := Own(lambda own, x: x.view(SAMPLES + 1, CLASSES)))
    with pytest.raises(CannotCompile, match=r"^the network: shape '\[12, 3\]' is invalid"):
        program_of(step, inputs, module)


@full
@compiles
@plain_torch()
def test_weights_of_another_layout_get_a_program_of_their_own() -> None:
    """A method may hand over weights that lie otherwise in memory than those of the network."""
    programs = Programs()
    step, (*weights, x, y) = step_of(module := mlp())
    context: Any = SimpleNamespace(
        module=module, trained=list(dict(module.named_parameters())), objective=CLASSIFICATION
    )
    by_columns = [each.T.contiguous().T for each in weights]
    for given in (weights, by_columns, weights):
        found = programs.find("whole", context, (), [*given, x, y])
        assert found is not None
        for one, other in zip(found.program([*given, x, y]), step(*weights, x, y), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@full
@compiles
def test_a_network_that_fits_one_batch_size_only() -> None:
    """It is not compiled, the reason is kept, and the next process does not try again."""

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).view(SAMPLES, CLASSES)

    for _ in range(2):
        step, inputs = step_of(module := Fixed())
        with pytest.raises(CannotCompile, match="torch cannot trace it"):
            program_of(step, inputs, module)


@full
@compiles
@pytest.mark.process
def test_compiling_in_a_process_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    """Processes of a study end without a word about locks that they would have had to remove."""
    (tmp_path / "base.toml").write_text(to_toml(scenario()))
    study = 'name = "two"\nbase = "base.toml"\ncolumns = ["accuracy"]\n[axes]\nseed = [1, 2]\n'
    (tmp_path / "study.toml").write_text(study)
    words = ["study", "run", "study.toml", "--workers", "2", "--runs", "runs"]
    environment = {**os.environ, VARIABLE: str(tmp_path / "cache")}
    command = [sys.executable, "-m", "edgesim", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert any((tmp_path / "cache").rglob("*.so")), done.stderr
    assert "resource_tracker" not in done.stderr


KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "layers frozen": {"method": {"name": "fedpmt", "widths": [1, 2, 3]}, "model": {"name": "mlp", "hidden": [9, 7]}},
    "channels": {"method": "feddrop"},  # of random units
    "gradients changed": {"method": {"name": "fedprox", "mu": 0.1}},
    "adam": {"training": {"batch": 8, "lr": 0.01, "optimizer": "adam", "local_epochs": 2}},
    "reports": {"method": "fedavg", "selection": {"name": "oort", "count": 2}},
    "peers": {"method": "dfedavg", "peers": "ring"},
}


@full
@compiles
@pytest.mark.parametrize("kind", thinned(KINDS, ["fedavg"], ["layers frozen", "adam", "peers"]))
def test_compiled_runs_agree_with_eager_ones(kind: str) -> None:
    """Weights after two rounds are within 1e-5 of a tensor's norm; with two workers they have the same bits."""
    chosen = {**KINDS[kind]}
    found = edgesim.run(scenario(**chosen))
    assert bool(eager(found)) == (kind == "channels")
    workers = edgesim.run(scenario(**chosen, backend={"name": "workers", "workers": 2, "compile": True}))
    plain = edgesim.run(scenario(**chosen, backend="serial"))
    assert found.jobs.equals(plain.jobs)
    for name, value in plain.weights().items():
        one, other = torch.as_tensor(found.weights()[name]), torch.as_tensor(value)
        assert float((one - other).norm()) <= 1e-5 * float(other.norm()) + 1e-7, name
        assert torch.equal(torch.as_tensor(workers.weights()[name]), one), name
