"""Updates of low rank against NumPy's decompositions, the sizes of PowerSGD's authors and numbers on paper."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Contents, Encoding
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.learning.codec.encode import update_uplinked
from edgesim.learning.codec.steps import factors, orthonormal, warm
from tests.contracts.support import COORDINATORS, mixed_scenario, results_of, run
from tests.contracts.whole_runs import check_whole_runs
from tests.learning.test_measure import cost_profile_of
from tests.sizes import full, spread

RANK_1 = Encoding(rank=1, error_feedback=True)
PARAMS = Payload(frozenset({"params"}))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def sent(moves: dict[str, Tensor], encoding: Encoding, left: ModelState) -> tuple[dict[str, Tensor], ModelState]:
    """Return what arrives of moves from parameters of zeros, and what they leave on the device."""
    zeros = {"params": {name: torch.zeros_like(tensor) for name, tensor in moves.items()}}
    assignment = Assignment(0, 0, Task(up=PARAMS), Key(3), zeros, None)
    got, left = update_uplinked({"params": moves}, zeros, left, assignment, encoding)
    return dict(got["params"]), left


# --- factors ------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_a_qr_decomposition() -> None:
    """NumPy's Householder factor, its columns turned so that R has a positive diagonal, as Gram-Schmidt has."""
    columns = normal(12, 4).double()
    q, r = np.linalg.qr(columns.numpy())
    np.testing.assert_allclose(orthonormal(columns).numpy(), q * np.sign(np.diag(r)), atol=1e-12)


def test_a_column_that_depends_on_others_is_left_out() -> None:
    """(3, 4), its double, and (0, 5), whose rest beside (3, 4) / 5 is (-2.4, 1.8)."""
    columns = torch.tensor([[3.0, 6.0, 0.0], [4.0, 8.0, 5.0]]).double()
    np.testing.assert_allclose(orthonormal(columns).numpy(), [[0.6, 0.0, -0.8], [0.8, 0.0, 0.6]], atol=1e-12)


def test_a_matrix_of_rank_one_arrives_whole() -> None:
    """(1, 2) by (2, 1, 2), from (1, 0, 0): P = (1, 2) / sqrt(5), Q = sqrt(5) (2, 1, 2)."""
    matrix = torch.tensor([[2.0, 1.0, 2.0], [4.0, 2.0, 4.0]])
    p, q = factors(matrix, torch.tensor([[1.0], [0.0], [0.0]]))
    np.testing.assert_allclose(p.numpy(), np.array([[1.0], [2.0]]) / np.sqrt(5), rtol=1e-6)
    np.testing.assert_allclose(q.numpy(), np.sqrt(5) * np.array([[2.0], [1.0], [2.0]]), rtol=1e-6)
    zeros = factors(torch.zeros(2, 3), torch.ones(3, 1))
    assert [int(factor.count_nonzero()) for factor in zeros] == [0, 0]


def test_a_basis_that_is_kept_finds_the_nearest_matrix() -> None:
    """Twenty steps from where the last one ended come to the truncated singular value decomposition (NumPy's)."""
    u, s, vt = np.linalg.svd(normal(10, 8).numpy())
    s[2:] /= 4.0  # subspaces are found as fast as singular values differ
    matrix = torch.from_numpy((u[:, :8] * s) @ vt).float()
    basis = normal(8, 2, seed=1)
    errors = []
    for _ in range(20):
        p, basis = factors(matrix, basis)
        errors.append(float((matrix - p @ basis.T).norm()))
    nearest = np.sqrt(np.square(s[2:]).sum())
    assert errors[0] > 1.02 * nearest
    assert errors[-1] == pytest.approx(nearest, rel=1e-4)


def test_bases_start_as_drawn_and_columns_of_zeros_again() -> None:
    drawn = torch.randn(2, 3, generator=torch.Generator().manual_seed(5)).T
    assert warm(None, 3, 2, torch.Generator().manual_seed(5)).equal(drawn)
    known = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    again = warm(known, 3, 2, torch.Generator().manual_seed(5))
    assert again[:, 0].tolist() == [1.0, 0.0, 2.0]
    assert again[:, 1].equal(drawn[:, 1])


# --- updates ------------------------------------------------------------------------------------------------------


def test_some_updates_in_numpy() -> None:
    """Vogels et al., algorithms 1 and 2, of a convolution as 6 outputs by 4 * 2 * 2; the bias is sent as it is."""
    left: ModelState = {}
    error, q = np.zeros((6, 16)), None
    for job in range(4):
        g = {"a.weight": normal(6, 4, 2, 2, seed=job), "a.bias": normal(6, seed=10 + job)}
        got, left = sent(g, RANK_1, left)
        m = g["a.weight"].numpy().reshape(6, 16) + error
        if q is None:
            q = torch.randn(1, 16, generator=torch.Generator().manual_seed(_drawn())).numpy()[0]
        p = m @ q / np.linalg.norm(m @ q)
        q = m.T @ p
        error = m - np.outer(p, q)
        np.testing.assert_allclose(got["a.weight"].numpy().reshape(6, 16), np.outer(p, q), atol=1e-5)
        np.testing.assert_allclose(left["residual of params"]["a.weight"].numpy().reshape(6, 16), error, atol=1e-5)
        np.testing.assert_allclose(left["basis of params"]["a.weight"].numpy().reshape(16), q, atol=1e-5)
        assert got["a.bias"].equal(g["a.bias"])
    assert set(left) == {"residual of params", "basis of params"}


def _drawn() -> int:
    return Key(3).at(JobStream.UPLINK).at(0).at(0, 2, 0).word()


def test_small_matrices_are_sent_whole() -> None:
    """Two by two at rank 1: four numbers either way. Two by three: five for six."""
    moves = {"a.weight": normal(2, 2), "b.weight": normal(2, 3)}
    got, left = sent(moves, RANK_1, {})
    assert got["a.weight"].equal(moves["a.weight"])
    assert set(left["basis of params"]) == {"b.weight"}
    assert not got["b.weight"].equal(moves["b.weight"])
    assert int(left["residual of params"]["a.weight"].count_nonzero()) == 0


# --- prices -------------------------------------------------------------------------------------------------------


@full
def test_resnet_18_is_as_small_as_its_authors_have_it() -> None:
    """1/243.3 of the numbers at rank 1 (their code gives top-k 1/244 to compare with), half as small at rank 2."""
    profile = cost_profile_of("resnet18_gn")
    whole, one, two = (
        profile.nbytes(PARAMS, Submodel(), encoding)
        for encoding in (Encoding(), RANK_1, Encoding(rank=2, error_feedback=True))
    )
    convolutions = [(64, 27), *4 * [(64, 576)], (128, 576), *3 * [(128, 1152)], (128, 64), (256, 1152)]
    convolutions += [*3 * [(256, 2304)], (256, 128), (512, 2304), *3 * [(512, 4608)], (512, 256), (10, 512)]
    thin, vectors = sum(n + m for n, m in convolutions), 9600 + 10
    assert whole == 4 * 11173962
    assert one == 4 * (thin + vectors)
    assert two == 4 * (2 * thin + vectors)
    assert whole / one == pytest.approx(243.3, abs=0.1)


def test_parts_have_smaller_matrices() -> None:
    """Half of the 16 and 32 channels of cnn_digits: convolutions 8 x 9 and 16 x 72, and 10 outputs of 256."""
    profile = cost_profile_of("cnn_digits")
    part = Submodel(channels=tuple((group.name, tuple(range(group.size // 2))) for group in profile.groups))
    assert sorted(profile.contents(PARAMS, Submodel()).matrices) == [(10, 128), (16, 9), (32, 144)]
    assert sorted(profile.contents(PARAMS, part).matrices) == [(8, 9), (10, 64), (16, 72)]
    one = 4 * (8 + 9 + 10 + 64 + 16 + 72) + 4 * (8 + 16 + 10)
    assert profile.nbytes(PARAMS, part, RANK_1) == one


def test_flops_on_paper() -> None:
    """A matrix of 20 x 30 at rank 2; one of 2 x 3 is sent whole. Of each of the 606 weights 3 as ever."""
    held = Contents(1, 2, 606, 0, 0, 0, matrices=((20, 30), (2, 3)))
    encoding = Encoding(rank=2, error_feedback=True)
    gram_schmidt = (3 * 20) + (4 * 20 + 3 * 20)  # a norm; a projection and a norm
    assert encoding.coding_flops(held) == 3 * 606 + 3 * 2 * 20 * 30 * 2 + gram_schmidt
    assert encoding.decoding_flops(held) == 606 + 2 * 20 * 30 * 2
    assert encoding.nbytes(held) == 4 * (2 * 50 + 6)


# --- whole runs ---------------------------------------------------------------------------------------------------

CASES = [("fedavg", "deadline"), ("scaffold", "over_selection"), ("fedbuff", "buffered"), ("ditto", "deadline")]


def thin(method: Any, protocol: str = "sync", **changes: Any) -> Any:
    encoding = {"up": {"rank": 2, "error_feedback": True}}
    return mixed_scenario(method=method, protocol=COORDINATORS[protocol], encoding=encoding, **changes)


@full
@pytest.mark.parametrize(("method", "protocol"), spread(CASES, 1))
def test_runs_are_timed_answered_and_resumed(method: str, protocol: str, tmp_path: Any) -> None:
    """Without training jobs and rounds are the same; another run finds all answers; one cut off ends as the whole."""
    check_whole_runs(partial(thin, method, protocol), tmp_path)


@full
@pytest.mark.workers
@pytest.mark.parametrize(("method", "protocol"), CASES)
def test_workers_give_the_same(method: str, protocol: str) -> None:
    """Bit for bit, bases too."""
    backends = ("serial", {"name": "workers", "workers": 2})
    first, second = (results_of(run(thin(method, protocol, backend=backend))) for backend in backends)
    assert first == second


def test_inputs_that_a_part_leaves_out_keep_their_basis() -> None:
    """HeteroFL's thin devices: a basis for all inputs of a layer, 0 for those of channels that they have not."""
    simulation = run(thin({"name": "heterofl", "rates": [0.5, 1.0]}))
    kept = [state["basis of params"]["conv2.weight"] for state in simulation.learner.memory.values()]
    inputs = simulation.learner.weights()["params"]["conv2.weight"].shape[1:]
    assert {tensor.shape for tensor in kept} == {(2, *inputs)}
    half = inputs[0] // 2
    assert all(int(tensor[:, :half].count_nonzero()) > 0 for tensor in kept)
    assert {int(tensor[:, half:].count_nonzero()) > 0 for tensor in kept} == {False, True}
