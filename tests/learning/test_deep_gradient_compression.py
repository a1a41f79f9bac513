"""Momentum, clipping and warm-up of updates against numbers on paper, NumPy and torch.optim; runs with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.learning.codec.encode import update_uplinked
from edgesim.runs.assembly import assemble
from tests.contracts.support import COORDINATORS, mixed_scenario, results_of, run
from tests.contracts.whole_runs import check_whole_runs
from tests.core.test_encoding import cost_profile
from tests.sizes import full, spread

DGC = {"sparsify": "top_k", "share": 0.25, "error_feedback": True, "momentum": 0.5}


def sent(moves: dict[str, dict[str, Tensor]], encoding: Encoding, left: ModelState) -> tuple[ModelState, ModelState]:
    """Return what arrives of moves from a model of zeros, and what they leave on the device."""
    zeros = {kind: {n: torch.zeros_like(t) for n, t in tensors.items()} for kind, tensors in moves.items()}
    task = Task(up=Payload(frozenset(moves)))
    return update_uplinked(moves, zeros, left, Assignment(0, 0, task, Key(3), zeros, None), encoding)


def move(*weights: float, bias: float = 0.0) -> dict[str, dict[str, Tensor]]:
    """Return a move of one row of weights and a bias."""
    return {"params": {"a.weight": torch.tensor([weights]), "a.bias": torch.tensor([bias])}}


# --- what is sent -------------------------------------------------------------------------------------------------


def test_two_jobs_on_paper() -> None:
    """m = 1/2, one of four weights. g = (1, 2, 4, 8): u = v = g, 8 is sent. g = 1: u = (3/2, 2, 3, 1), v = v + u."""
    got, left = sent(move(1.0, 2.0, 4.0, 8.0, bias=1.0), Encoding(**DGC), {})
    assert got["params"]["a.weight"].tolist() == [[0.0, 0.0, 0.0, 8.0]]
    assert left["momentum of params"]["a.weight"].tolist() == [[1.0, 2.0, 4.0, 0.0]]
    got, left = sent(move(1.0, 1.0, 1.0, 1.0, bias=1.0), Encoding(**DGC), left)
    assert got["params"]["a.weight"].tolist() == [[0.0, 0.0, 7.0, 0.0]]
    assert got["params"]["a.bias"].tolist() == [1.5]
    assert left["momentum of params"]["a.weight"].tolist() == [[1.5, 2.0, 0.0, 1.0]]
    assert left["momentum of params"]["a.bias"].tolist() == [1.5]
    assert left["residual of params"]["a.weight"].tolist() == [[2.5, 4.0, 0.0, 1.0]]
    assert set(left["residual of params"]) == {"a.weight"}


def test_several_jobs_in_numpy() -> None:
    """Lin et al., algorithm 4, of two layers whose largest are found together: u, v, and both masked where sent."""
    rng, encoding = np.random.default_rng(1), Encoding(**{**DGC, "share": 0.2, "momentum": 0.9})
    u, v, left = np.zeros(30, np.float32), np.zeros(30, np.float32), {}
    for _ in range(6):
        g = rng.standard_normal(30).astype(np.float32)
        u = np.float32(0.9) * u + g
        v = v + u
        there = np.abs(v) >= np.sort(np.abs(v))[-6]
        expected, u, v = np.where(there, v, 0), np.where(there, 0, u), np.where(there, 0, v)
        tensors = {"a.weight": torch.tensor(g[:20]).view(4, 5), "b.weight": torch.tensor(g[20:]).view(5, 2)}
        got, left = sent({"params": tensors}, encoding, left)
        for kind, flat in ((got["params"], expected), (left["momentum of params"], u), (left["residual of params"], v)):
            found_ = torch.cat([kind["a.weight"].flatten(), kind["b.weight"].flatten()])
            np.testing.assert_allclose(found_.numpy(), flat, rtol=1e-5, atol=1e-6)


def test_weights_that_wait_and_vectors_go_as_far_as_with_momentum_at_the_server() -> None:
    """The first weight is always sent. The others wait with all that torch.optim.SGD would do; a bias arrives as it."""
    generator, left, arrived = torch.Generator().manual_seed(0), {}, torch.zeros(1)
    params = {"a.weight": torch.zeros(1, 4), "a.bias": torch.zeros(1)}
    sgd = torch.optim.SGD(params.values(), lr=1.0, momentum=0.5)
    for _ in range(5):
        g = {n: torch.randn(t.shape, generator=generator) for n, t in params.items()}
        g["a.weight"][0, 0] = 1000.0
        for name, tensor in params.items():
            tensor.grad = -g[name]
        sgd.step()
        got, left = sent({"params": g}, Encoding(**DGC), left)
        arrived = arrived + got["params"]["a.bias"]
    torch.testing.assert_close(left["residual of params"]["a.weight"][0, 1:], params["a.weight"][0, 1:])
    torch.testing.assert_close(arrived, params["a.bias"])


def test_weights_that_are_sent_stop_however_they_are_written() -> None:
    """Signs of the two largest, 3 and -5, at their mean 4: u ends there, and the residual keeps what is wrong."""
    ternary = Encoding(**{**DGC, "share": 0.5, "values": "sign"})
    got, left = sent(move(3.0, -5.0, 1.0, 2.0), ternary, {})
    assert got["params"]["a.weight"].tolist() == [[4.0, -4.0, 0.0, 0.0]]
    assert left["momentum of params"]["a.weight"].tolist() == [[0.0, 0.0, 1.0, 2.0]]
    assert left["residual of params"]["a.weight"].tolist() == [[-1.0, -1.0, 1.0, 2.0]]


def test_halves_of_a_vector_s_momentum_are_sent() -> None:
    """float16 of u = 1 + 2^-12 is 1; u itself goes on."""
    half = Encoding(**DGC, values="float16")
    got, left = sent(move(1.0, 2.0, 4.0, 8.0, bias=1.0 + 2.0**-12), half, {})
    assert got["params"]["a.bias"].tolist() == [1.0]
    assert left["momentum of params"]["a.bias"].tolist() == [1.0 + 2.0**-12]


def test_updates_are_clipped_before_they_are_added() -> None:
    """Norm 6 of (2, 4) and the bias 4, cut to 3; what the device kept is not shortened; a short update stays."""
    clipped = Encoding(sparsify="top_k", share=0.5, error_feedback=True, clip_norm=3.0)
    got, left = sent(
        move(2.0, 4.0, bias=4.0), clipped, {"residual of params": {"a.weight": torch.tensor([[9.0, 1.0]])}}
    )
    assert got["params"]["a.weight"].tolist() == [[10.0, 0.0]]
    assert left["residual of params"]["a.weight"].tolist() == [[0.0, 3.0]]
    assert got["params"]["a.bias"].tolist() == [2.0]
    assert set(left) == {"residual of params"}
    got, _ = sent(move(1.0, 2.0, bias=2.0), Encoding(clip_norm=3.0), {})
    assert got["params"]["a.weight"].tolist() == [[1.0, 2.0]]
    assert sent(move(0.0, 0.0), Encoding(clip_norm=3.0), {})[0]["params"]["a.weight"].tolist() == [[0.0, 0.0]]


def test_a_method_s_own_collections_have_no_momentum() -> None:
    """Beside the parameters; fedbuff's moves are all that it sends, and so have it."""
    weights = {"a.weight": torch.ones(1, 4)}
    _, left = sent({"control": weights, "params": weights}, Encoding(**DGC), {})
    assert set(left) == {"momentum of params", "residual of control", "residual of params"}
    _, left = sent({"delta": weights}, Encoding(**DGC), {})
    assert set(left) == {"momentum of delta", "residual of delta"}


# --- prices -------------------------------------------------------------------------------------------------------


def test_the_warm_up_is_the_paper_s() -> None:
    """Lin et al., section 3.3: sparsity 75 %, 93.75 %, 98.4375 %, 99.6 %, and then 99.9 %."""
    encoding = Encoding(sparsify="top_k", share=0.001, warm_up=4)
    shares = [encoding.in_round(round_).share for round_ in range(7)]
    assert shares == pytest.approx([0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001, 0.001], rel=0.015)
    assert encoding.in_round(4) is encoding


@pytest.mark.parametrize(("more", "flops"), [({"momentum": 0.5}, 2 * 1034), ({"clip_norm": 1.0}, 3 * 1034)])
def test_flops_on_paper(more: Any, flops: int) -> None:
    """1024 weights and ten biases: 2 for momentum, 3 for clipping; statistics of 20 channels take no part in it."""
    plain = Encoding(sparsify="top_k", share=0.5, error_feedback=True, indices="int32")
    coded = Encoding(sparsify="top_k", share=0.5, error_feedback=True, indices="int32", **more)
    held = cost_profile((1024, 10)).contents(Payload(), Submodel())._replace(vectors=10 + 40, statistics=40)
    assert coded.coding_flops(held) - plain.coding_flops(held) == flops
    assert coded.decoding_flops(held) - plain.decoding_flops(held) == 10


def test_bytes_and_flops_of_a_warm_up() -> None:
    """cnn_digits has 6032 weights and 58 biases: shares 1/4, 1/16 with int32 indices; the server adds as many."""
    server = {"server": {"flops_per_s": "1 MFLOP/s"}, "stop": {"rounds": 3}, "backend": "null"}
    up = {"sparsify": "top_k", "share": 1 / 16, "indices": "int32"}
    warm, plain = (
        run(mixed_scenario(**server, encoding={"up": {**up, **more}})).tables for more in ({"warm_up": 1}, {})
    )
    jobs = warm["jobs"].frame()
    sizes = [set(jobs["up_bytes"][jobs["round"] == round_]) for round_ in range(3)]
    assert sizes == [{8 * 1508 + 4 * 58}, {8 * 377 + 4 * 58}, {8 * 377 + 4 * 58}]
    seconds = [tables["rounds"].frame()["server_s"].to_numpy() for tables in (warm, plain)]
    np.testing.assert_allclose(seconds[0] - seconds[1], [6e-6 * (1508 - 377), 0, 0], atol=1e-9)


# --- whole runs ---------------------------------------------------------------------------------------------------

UP = {"sparsify": "top_k", "share": 0.02, "error_feedback": True, "momentum": 0.9, "clip_norm": 1.0, "warm_up": 2}
CASES = [("fedsgd", "deadline"), ("fedbuff", "buffered"), ("ditto", "deadline")]


def dgc(method: Any, protocol: str = "sync", **changes: Any) -> Any:
    return mixed_scenario(method=method, protocol=COORDINATORS[protocol], encoding={"up": UP}, **changes)


@pytest.mark.parametrize(("method", "protocol"), spread(CASES, 1))
def test_runs_are_timed_answered_and_resumed(method: str, protocol: str, tmp_path: Any) -> None:
    """Without training jobs and rounds are the same; another run finds all answers; one cut off ends as the whole."""
    check_whole_runs(partial(dgc, method, protocol), tmp_path)


@full
@pytest.mark.workers
@pytest.mark.parametrize(("method", "protocol"), CASES)
def test_workers_give_the_same(method: str, protocol: str) -> None:
    """Bit for bit, momenta too."""
    backends = ("serial", {"name": "workers", "workers": 2})
    first, second = (results_of(run(dgc(method, protocol, backend=backend))) for backend in backends)
    assert first == second


def test_channels_that_a_part_leaves_out_keep_their_momentum() -> None:
    """HeteroFL's thin devices: momenta of the whole model's shape, biases too; 0 where the device has no channels."""
    simulation = run(dgc({"name": "heterofl", "rates": [0.5, 1.0]}))
    params = simulation.learner.weights()["params"]
    kept = [state["momentum of params"] for state in simulation.learner.memory.values()]
    assert {(t["conv2.weight"].shape, t["conv2.bias"].shape) for t in kept} == {
        (params["conv2.weight"].shape, params["conv2.bias"].shape)
    }
    half = len(params["conv2.bias"]) // 2
    assert {int(tensors["conv2.bias"][half:].count_nonzero()) > 0 for tensors in kept} == {False, True}


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"momentum": 0.5}, "training.momentum: must be 0, as encoding.up.momentum, 0.9, .* have none; found 0.5"),
        ({"optimizer": "adam"}, "training.optimizer: must be 'sgd', as encoding.up.momentum, 0.9, .*; found 'adam'"),
    ],
)
def test_momentum_twice_is_refused_in_a_line(training: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        assemble(dgc("fedavg", training=training))
