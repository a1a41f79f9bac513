"""Encoded updates against NumPy, SciPy and numbers on paper; what a run with them charges, keeps and loses."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag, hadamard
from torch import Tensor

from edgesim.core import golomb
from edgesim.core.backend import Assignment
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.method import Finished
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.learning.codec.encode import update_uplinked, uplinked
from edgesim.learning.codec.kept import Kept, state_name
from edgesim.learning.codec.steps import largest, rotated, turned_back
from edgesim.learning.models.build import model_state_of
from edgesim.methods.encoded import Encoded
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import assemble
from tests.contracts.support import COORDINATORS, LATE_UPLOADING, mixed_scenario, prepare, results_of, run
from tests.contracts.whole_runs import check_whole_runs
from tests.core.test_encoding import cost_profile
from tests.kinks import without_kinks
from tests.methods.exact_gradients import exact_gradients, first_job
from tests.sizes import full, spread

KEY = Key(17)
PLAIN = Task(up=Payload(frozenset({"params"})))
TOP = Encoding(sparsify="top_k", share=0.25, error_feedback=True)


def crossed(
    body: ModelState, received: ModelState, encoding: Encoding, residual: ModelState | None = None, key: Key = KEY
) -> tuple[ModelState, ModelState]:
    """Return what arrives of a body, and its residual."""
    task = Task(up=Payload(frozenset(body)))
    before = {state_name("residual", kind): tensors for kind, tensors in (residual or {}).items()}
    got, left = update_uplinked(body, received, before, Assignment(0, 0, task, key, received, None), encoding)
    return got, {kind.removeprefix("residual of "): tensors for kind, tensors in left.items()}


def one_layer(*weights: float, bias: float = 0.0) -> dict[str, dict[str, Tensor]]:
    """Return a model of one row of weights."""
    return {"params": {"a.weight": torch.tensor([weights]), "a.bias": torch.tensor([bias])}}


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


# --- which weights are sent ---------------------------------------------------------------------------------------


def test_top_k_on_paper() -> None:
    """One of four weights: the one that moved most. Biases arrive as they are; what was not sent stays behind."""
    got, left = crossed(one_layer(1.5, 0.0, -1.0, 4.0, bias=7.0), one_layer(1.0, 0.5, 1.0, 3.0), TOP)
    assert got["params"]["a.weight"].tolist() == [[1.0, 0.5, -1.0, 3.0]]
    assert got["params"]["a.bias"].tolist() == [7.0]
    assert left["params"]["a.weight"].tolist() == [[0.5, -0.5, 0.0, 1.0]]
    assert set(left["params"]) == {"a.weight"}


def test_the_largest_are_of_all_layers_together() -> None:
    """Four of sixteen, all in the second layer; of equal ones the first."""
    small, big = 0.1 * torch.ones(2, 4), torch.tensor([[5.0, -6.0], [7.0, 8.0], [1.0, 1.0], [1.0, 1.0]])
    zero = {"params": {"a.weight": torch.zeros(2, 4), "b.weight": torch.zeros(4, 2)}}
    got, _ = crossed({"params": {"a.weight": small, "b.weight": big}}, zero, TOP)
    assert got["params"]["a.weight"].count_nonzero() == 0
    assert got["params"]["b.weight"].tolist() == [[5.0, -6.0], [7.0, 8.0], [0.0, 0.0], [0.0, 0.0]]
    assert largest(torch.tensor([1.0, -2.0, 2.0, 2.0, 0.0]), 2).tolist() == [False, True, True, False, False]
    assert largest(torch.zeros(5), 3).tolist() == [True, True, True, False, False]


def test_error_feedback_of_some_rounds_in_numpy() -> None:
    """e, sent = (e + g) less its largest fifth, and that (Stich et al., algorithm 1); nothing is ever lost."""
    encoding = Encoding(sparsify="top_k", share=0.2, error_feedback=True)
    error, residual, total = np.zeros(20, np.float32), {}, np.zeros(20)
    for round_ in range(6):
        base, move = normal(4, 5, seed=round_), normal(4, 5, seed=10 + round_)
        body = {"params": {"a.weight": base + move}}
        got, residual = crossed(body, {"params": {"a.weight": base}}, encoding, residual)
        wanted = error + (body["params"]["a.weight"] - base).numpy().ravel()
        sent = np.where(np.abs(wanted) >= np.sort(np.abs(wanted))[-4], wanted, 0)
        error, total = wanted - sent, total + sent
        arrived = (got["params"]["a.weight"] - base).numpy().ravel()
        np.testing.assert_allclose(arrived, sent, atol=1e-6)
        np.testing.assert_array_equal(residual["params"]["a.weight"].numpy().ravel(), error)
    moves = sum(normal(4, 5, seed=10 + round_).numpy().ravel() for round_ in range(6))
    np.testing.assert_allclose(total + error, moves, atol=1e-5)


def test_random_weights_follow_from_a_seed_and_are_right_on_average() -> None:
    """Ten of 100, ten times larger without error feedback, as they are with it; each key draws others."""
    base, move = torch.zeros(10, 10), normal(10, 10)
    plain, fed_back = (Encoding(sparsify="rand_k", share=0.1, error_feedback=f) for f in (False, True))
    arrived = []
    for draw in range(400):
        got, _ = crossed({"params": {"a.weight": move}}, {"params": {"a.weight": base}}, plain, key=KEY.at(draw))
        arrived.append(got["params"]["a.weight"].numpy())
        order = torch.randperm(100, generator=torch.Generator().manual_seed(_shared(KEY.at(draw)).word()))
        expected = torch.zeros(100)
        expected[order[:10]] = 10 * move.flatten()[order[:10]]
        np.testing.assert_allclose(arrived[-1].ravel(), expected.numpy(), rtol=1e-6)
    error = np.abs(np.mean(arrived, 0) - move.numpy()) / (3 * np.abs(move.numpy()))  # 3 |x|: deviation of one draw
    assert error.max() < 4 / math.sqrt(400)
    got, left = crossed({"params": {"a.weight": move}}, {"params": {"a.weight": base}}, fed_back)
    assert (got["params"]["a.weight"] + left["params"]["a.weight"]).equal(move)
    assert got["params"]["a.weight"].count_nonzero() == 10


def _shared(key: Key) -> Key:
    return key.at(JobStream.UPLINK).at(0).at(0, 0)


# --- how they are written -----------------------------------------------------------------------------------------


def test_sign_on_paper() -> None:
    """The mean magnitude 1.25 of the layer with each sign (Karimireddy et al., section 4); 0 counts as positive."""
    sign = Encoding(values="sign", error_feedback=True)
    got, left = crossed(one_layer(2.0, -2.0, 0.0, -1.0), one_layer(0.0, 0.0, 0.0, 0.0), sign)
    assert got["params"]["a.weight"].tolist() == [[1.25, -1.25, 1.25, -1.25]]
    assert left["params"]["a.weight"].tolist() == [[0.75, -0.75, -1.25, 0.25]]


def test_the_scale_of_signs_on_paper() -> None:
    """The root of the mean square, sqrt(9 / 4), in place of the mean 1.25: 1-bit Adam's signs have the norm of x."""
    sign = Encoding(values="sign", scale="root_mean_square", error_feedback=True)
    got, left = crossed(one_layer(2.0, -2.0, 0.0, -1.0), one_layer(0.0, 0.0, 0.0, 0.0), sign)
    assert got["params"]["a.weight"].tolist() == [[1.5, -1.5, 1.5, -1.5]]
    assert left["params"]["a.weight"].tolist() == [[0.5, -0.5, -1.5, 0.5]]


@pytest.mark.parametrize("scale", ["mean", "root_mean_square"])
def test_scales_of_signs_are_those_of_their_sources(scale: Any) -> None:
    """Float64 of ||x||_1 / d (Karimireddy et al., section 4) and of ||x||_2 / sqrt(d) (Tang et al.): 1000 numbers."""
    x = np.random.default_rng(5).standard_normal(1000)
    expected = {"mean": np.abs(x).sum() / 1000, "root_mean_square": np.linalg.norm(x) / math.sqrt(1000)}[scale]
    body = {"params": {"a.weight": torch.from_numpy(x).float().view(20, 50)}}
    got, _ = crossed(body, {"params": {"a.weight": torch.zeros(20, 50)}}, Encoding(values="sign", scale=scale))
    np.testing.assert_allclose(got["params"]["a.weight"].numpy().ravel(), expected * np.sign(x), rtol=1e-6)


def test_sparse_ternary_compression_on_paper() -> None:
    """Sattler et al., algorithm 1: the mean magnitude of the two largest, 3.5, with their signs."""
    ternary = Encoding(sparsify="top_k", share=0.5, values="sign")
    got, left = crossed(one_layer(3.0, -4.0, 1.0, -1.0), one_layer(0.0, 0.0, 0.0, 0.0), ternary)
    assert got["params"]["a.weight"].tolist() == [[3.5, -3.5, 0.0, 0.0]]
    assert left == {}


def test_a_rotation_is_a_hadamard_matrix_of_signs() -> None:
    """13 = 8 + 4 + 1: SciPy's matrices of these orders; lengths stay, and it can be turned back."""
    x = normal(13)
    signs = 2.0 * torch.randint(0, 2, (13,), generator=torch.Generator().manual_seed(3)).double() - 1
    matrix = block_diag(*(hadamard(n) / math.sqrt(n) for n in (8, 4, 1)))
    turned = rotated(x, torch.Generator().manual_seed(3))
    np.testing.assert_allclose(turned.numpy(), matrix @ (signs.numpy() * x.double().numpy()), atol=1e-6)
    assert float(turned.norm()) == pytest.approx(float(x.norm()), rel=1e-6)
    torch.testing.assert_close(turned_back(turned, torch.Generator().manual_seed(3)), x)


def test_a_rotation_makes_rounding_of_uneven_weights_milder() -> None:
    """One large weight among 4096: int8 alone rounds all others to nothing."""
    move = 0.01 * normal(64, 64)
    move[0, 0] = 10.0
    errors = []
    for rotate in (False, True):
        body, base = {"params": {"a.weight": move}}, {"params": {"a.weight": torch.zeros(64, 64)}}
        got, _ = crossed(body, base, Encoding(values="int8", update=True, rotate=rotate))
        errors.append(float((got["params"]["a.weight"] - move).square().sum()))
    assert errors[1] < errors[0] / 5


def test_values_are_of_the_move() -> None:
    """FedPAQ: the layer's scale is that of how far weights moved, and not of where they are."""
    base, move = 100 + normal(10, 10), 0.01 * normal(10, 10, seed=1)
    body = {"params": {"a.weight": base + move}}
    errors = []
    for update in (False, True):
        encoding = Encoding(values="int8", update=update)
        if update:
            got, _ = crossed(body, {"params": {"a.weight": base}}, encoding)
        else:
            got = uplinked(body, PLAIN, encoding, KEY)
        errors.append(float((got["params"]["a.weight"] - body["params"]["a.weight"]).abs().max()))
    assert errors[1] < 1e-3 < 0.1 < errors[0]


def test_a_method_s_own_collections_are_changes_by_themselves() -> None:
    """A control variate's change is no difference to the server's own variate; each collection is thinned by itself."""
    body = {
        "params": {"a.weight": torch.tensor([[2.0, 1.0, 1.0, 1.0]])},
        "control": {"a.weight": torch.tensor([[1.0, 2.0, 3.0, 9.0]])},
    }
    received = {"params": {"a.weight": torch.ones(1, 4)}, "control": {"a.weight": 5 * torch.ones(1, 4)}}
    got, left = crossed(body, received, TOP)
    assert got["params"]["a.weight"].tolist() == [[2.0, 1.0, 1.0, 1.0]]
    assert got["control"]["a.weight"].tolist() == [[0.0, 0.0, 0.0, 9.0]]
    assert left["control"]["a.weight"].tolist() == [[1.0, 2.0, 3.0, 0.0]]


def test_what_is_not_finite_arrives_so_and_leaves_the_residual() -> None:
    got, left = crossed(one_layer(math.inf, 1.0, 1.0, 1.0), one_layer(0.0, 0.0, 0.0, 0.0), TOP)
    assert got["params"]["a.weight"].tolist() == [[math.inf, 1.0, 1.0, 1.0]]
    assert left == {}


# --- bytes and FLOPs ----------------------------------------------------------------------------------------------


def message(move: np.ndarray, biases: int, encoding: Encoding, seed: int) -> bytes:
    """Return a message of one layer as bytes: the seed, the code of the indices, the values and all other numbers."""
    count = math.ceil(encoding.share * move.size) if encoding.share else move.size
    chosen = np.sort(np.argsort(-np.abs(move))[:count])
    code = (
        golomb.written(chosen, move.size, KEY.at(seed))
        if encoding.indices == "golomb"
        else chosen.astype("<u4").tobytes()
    )
    values = move[chosen].astype("<f4").tobytes()
    if encoding.values == "sign":
        values = np.float32(np.abs(move[chosen]).mean()).tobytes() + np.packbits(move[chosen] >= 0).tobytes()
    return (seed.to_bytes(8) if encoding.indices == "golomb" else b"") + code + values + bytes(4 * biases)


@pytest.mark.parametrize("values", ["float32", "sign"])
@pytest.mark.parametrize("indices", ["golomb", "int32"])
def test_a_price_is_the_mean_length_of_a_message(values: Any, indices: Any) -> None:
    """Written down for 20 seeds: 200 of 20000 weights, 10 biases. What is read again is what the run works with."""
    encoding = Encoding(sparsify="top_k", share=0.01, values=values, indices=indices)
    move = normal(20000).numpy()
    price = cost_profile((20000, 10)).nbytes(Payload(frozenset({"params"})), Submodel(), encoding)
    messages = [message(move, 10, encoding, seed) for seed in range(20)]
    lengths = [len(data) for data in messages]
    assert price == (pytest.approx(np.mean(lengths), abs=2) if indices == "golomb" else lengths[0])
    assert max(lengths) - min(lengths) < 0.03 * price
    if indices == "golomb":
        places = golomb.read(messages[0][8:], 200, 20000, KEY.at(0))
        got, _ = crossed(
            {"params": {"a.weight": torch.from_numpy(move).view(200, 100)}},
            {"params": {"a.weight": torch.zeros(200, 100)}},
            encoding,
        )
        assert np.flatnonzero(got["params"]["a.weight"].numpy()).tolist() == places.tolist()


@pytest.mark.parametrize(
    ("encoding", "nbytes"),
    [
        (Encoding(update=True), 4 * 1000 + 4 * 10),
        (Encoding(values="sign"), 125 + 4 * 10 + 4 * 2),
        (Encoding(values="qsgd", bits=4, update=True), 500 + 4 * 10 + 4 * 2),
        (Encoding(values="qsgd", bits=4, rotate=True), 500 + 4 * 10 + 4 * 2 + 8),
        (Encoding(sparsify="rand_k", share=0.1), 4 * 100 + 4 * 10 + 8),
        (Encoding(sparsify="rand_k", share=0.1, values="float16"), 2 * 100 + 2 * 10 + 8),
        (Encoding(sparsify="top_k", share=0.1, indices="int32"), 8 * 100 + 4 * 10),
        (Encoding(sparsify="top_k", share=0.0001, indices="int32"), 8 + 4 * 10),
    ],
)  # fmt: skip
def test_bytes_on_paper(encoding: Encoding, nbytes: int) -> None:
    """1000 weights in two layers and ten biases."""
    assert cost_profile((600, 4), (400, 6)).nbytes(Payload(frozenset({"params"})), Submodel(), encoding) == nbytes


@pytest.mark.parametrize(
    ("encoding", "flops"),
    [
        (Encoding(update=True), 1024),
        (Encoding(update=True, flops_per_number=2.0), 1024 + 2 * 1034),
        (Encoding(sparsify="rand_k", share=0.5, error_feedback=True), 3 * 1024),
        (Encoding(sparsify="top_k", share=0.5, indices="int32"), 4 * 1024),
        (Encoding(sparsify="top_k", share=0.5), 4 * 1024 + 2 * 512),
        (Encoding(values="sign", error_feedback=True), 5 * 1024),
        (Encoding(rotate=True), (1 + 12) * 1024),
        (Encoding(rotate=True, error_feedback=True), (3 + 24) * 1024),
    ],
)  # fmt: skip
def test_flops_of_a_device_on_paper(encoding: Encoding, flops: float) -> None:
    """1024 weights and ten biases: see the steps of `edgesim.core.encoding`."""
    held = cost_profile((1024, 10)).contents(Payload(frozenset({"params"})), Submodel())
    assert encoding.coding_flops(held) == flops


def test_coding_is_charged_to_devices_and_decoding_to_the_server() -> None:
    """cnn_digits has 6032 weights: 3 more FLOPs each for top_k; the server adds 604 numbers an update."""
    server = {"server": {"flops_per_s": "1 MFLOP/s"}, "stop": {"rounds": 1}, "backend": "null"}
    encoding = {"up": {"sparsify": "top_k", "share": 0.1, "indices": "int32"}}
    plain, coded = (run(mixed_scenario(**server, **more)).tables for more in ({}, {"encoding": encoding}))
    flops = [tables["jobs"].frame()["flops"].to_numpy() for tables in (plain, coded)]
    np.testing.assert_allclose(flops[1] - flops[0], 4 * 6032)
    seconds = [tables["rounds"].frame()["server_s"][0] for tables in (plain, coded)]
    assert seconds[1] - seconds[0] == pytest.approx(6 * 604 * 1e-6)


# --- what devices keep --------------------------------------------------------------------------------------------

LINK = {"name": "fixed", "up": "4 Mbit/s", "down": "8 Mbit/s", "latency": 0.02}
FLEET = [
    {"cpu": {"flops_per_s": "50 MFLOP/s"}},
    {"cpu": {"flops_per_s": "50 MFLOP/s"}, "network": {**LINK, "up": "1 kbit/s"}},
    {"count": 4, "cpu": {"flops_per_s": "50 MFLOP/s"}},
]
FED_BACK = {"up": {"sparsify": "top_k", "share": 0.02, "error_feedback": True}}


def test_a_second_job_starts_from_the_first_one_s_residual() -> None:
    """The trainer hands the method what it kept itself, and the encoder the residual."""
    parts = assemble(mixed_scenario(encoding=FED_BACK))
    base, trainer = model_state_of(parts.module), parts.make_trainer("cpu")
    task = Task(local_sgd=(parts.setting.training.local_sgd(0),))
    first = trainer.run(Assignment(0, 0, task, KEY, base, None))
    again = trainer.run(Assignment(1, 0, task, KEY, base, first.new_device_state))
    residual = Kept.of(first.new_device_state).left["residual of params"]
    assert Kept.of(first.new_device_state).own is None
    whole = assemble(mixed_scenario()).make_trainer("cpu").run(Assignment(0, 0, task, KEY, base, None)).body["params"]
    weights = [name for name, tensor in base["params"].items() if tensor.dim() > 1]
    sizes = [base["params"][name].numel() for name in weights]
    wanted = torch.cat([(whole[n] - base["params"][n] + residual[n]).flatten() for n in weights])
    there = largest(wanted, math.ceil(0.02 * sum(sizes)))
    expected = dict(zip(weights, torch.split(torch.where(there, wanted, 0.0), sizes), strict=True))
    for name in weights:
        arrived = again.body["params"][name]
        assert arrived.equal(base["params"][name] + expected[name].view(arrived.shape))


def test_a_late_update_leaves_the_residual_as_it_was() -> None:
    """The device whose uploads come too late keeps none; one that keeps what it computed keeps that of its last job."""
    deadline = {"protocol": COORDINATORS["deadline"], "encoding": FED_BACK, "stop": {"rounds": 2}}
    delivered = run(mixed_scenario(**deadline, fleet=FLEET))
    jobs = delivered.tables["jobs"].frame()
    late = set(jobs["device"][jobs["outcome"] == "late"])
    assert LATE_UPLOADING in late
    assert set(delivered.learner.memory) == set(range(6)) - late
    computed = run(mixed_scenario(**deadline, method="ditto", fleet=FLEET))
    assert "residual of params" in computed.learner.memory[LATE_UPLOADING]


def test_channels_that_a_part_leaves_out_keep_their_residual() -> None:
    """HeteroFL's thin devices: a residual of the whole model's shape, zero where the device has no channels."""
    simulation = run(mixed_scenario(method={"name": "heterofl", "rates": [0.5, 1.0]}, encoding=FED_BACK))
    shape = simulation.learner.weights()["params"]["conv2.weight"].shape
    kept = [Kept.of(state).left["residual of params"]["conv2.weight"] for state in simulation.learner.memory.values()]
    assert {tensor.shape for tensor in kept} == {shape}
    half = shape[0] // 2
    assert all(int(tensor[:half].count_nonzero()) > 0 for tensor in kept)
    assert {int(tensor[half:].count_nonzero()) > 0 for tensor in kept} == {False, True}


def test_what_earlier_updates_left_stays_beside_what_a_method_keeps() -> None:
    """A method whose shared part diverges may still keep its own; the residual waits for the next update."""
    up = {"sparsify": "top_k", "share": 0.1, "error_feedback": True}
    parts = assemble(mixed_scenario(encoding={"up": up}))
    trainer, task = parts.make_trainer("cpu"), Task(local_sgd=(parts.setting.training.local_sgd(0),))
    residual, base = {state_name("residual", "params"): {"w": torch.ones(1)}}, model_state_of(parts.module)
    assignment = Assignment(0, 0, task, KEY, base, residual)
    context = trainer.context(assignment, parts.module)
    body = {**base, "params": {name: tensor + math.inf for name, tensor in base["params"].items()}}
    for own in (None, {"own": {"w": torch.zeros(1)}}):
        result = trainer.result(context, assignment, Finished(body, own), steps=1)
        kept = Kept.of(result.new_device_state)
        assert kept.own == own and kept.left == ({} if own is None else residual)  # of nothing new all stays


@pytest.mark.parametrize("lr", [1e-3, 1e-4])
def test_updates_of_fedsgd_are_exact(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 of -lr g: no sign is lost because the step moves a weight by less than float32 can tell."""
    without_kinks(monkeypatch)
    up = {"values": "sign", "error_feedback": True}
    simulation = prepare(mixed_scenario(method="fedsgd", encoding={"up": up}, training={"lr": lr}))
    result = first_job(simulation, 0)
    left = Kept.of(result.new_device_state).left["residual of params"]
    for name, (gradient, sure) in exact_gradients(simulation.parts, 0).items():
        if gradient.dim() >= 2:
            written = lr * float(gradient.abs().mean()) * -gradient.sign()
            torch.testing.assert_close(
                left[name].double()[sure], (-lr * gradient - written)[sure], rtol=1e-4, atol=1e-5 * lr
            )


def test_a_method_does_not_see_residuals() -> None:
    """Its needs grow where they have to; what it kept is what it gets."""
    plain, fed_back = Encoding(values="sign"), Encoding(values="sign", error_feedback=True)
    assert [Encoded(method=FedAvg(), encoding=e).needs.device_state for e in (plain, fed_back)] == ["none", "delivered"]
    own = {"control": {"w": torch.ones(1)}}
    both = Kept(own, {"residual of params": {"w": torch.zeros(1)}})
    assert Kept.of(both.state()) == both
    assert Kept.of(None) == Kept(None, {}) and Kept.of(own) == Kept(own, {})
    assert Kept.of(Kept(None, both.left).state()) == Kept(None, both.left)


# --- whole runs ---------------------------------------------------------------------------------------------------

CASES = [("fedavg", "deadline"), ("scaffold", "over_selection"), ("fedbuff", "buffered"), ("ditto", "deadline")]
CODED = {"up": {**FED_BACK["up"], "values": "int8", "rotate": True}}


@full
@pytest.mark.parametrize(("method", "protocol"), spread(CASES, 1))
def test_runs_are_timed_answered_and_resumed(method: str, protocol: str, tmp_path: Any) -> None:
    """Without training jobs and rounds are the same; another run finds all answers; one cut off ends as the whole."""
    changes = {"method": method, "protocol": COORDINATORS[protocol], "encoding": CODED}
    check_whole_runs(partial(mixed_scenario, **changes), tmp_path)


@full
@pytest.mark.workers
@pytest.mark.parametrize(("method", "protocol"), CASES)
def test_workers_give_the_same(method: str, protocol: str) -> None:
    """Bit for bit, residuals too."""
    changes = {"method": method, "protocol": COORDINATORS[protocol], "encoding": CODED}
    first, second = (
        results_of(run(mixed_scenario(**changes, backend=backend)))
        for backend in ("serial", {"name": "workers", "workers": 2})
    )
    assert first == second


TREE = {
    "edges": {}, "topology": {"name": "tree", "edge_servers": 2},
    "network": {"name": "shared", "up": "1 Mbit/s", "down": "8 Mbit/s"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"method": "dpsgd", "peers": "ring"}, "encoding.up: dpsgd has no server, its devices exchange whole models"),
        *(
            ({"method": name}, f"encoding.up: {name} sends models under masks, whose zeros .*, not updates")
            for name in ("feddst", "one_shot_pruning", "feddip", "prunefl")
        ),
        ({"method": "ifca"}, "encoding.up: ifca has several models"),
        (TREE, "encoding.up: edge servers send whole models to the server above them"),
    ],
)
def test_what_sends_no_update_is_refused_in_a_line(changes: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        assemble(mixed_scenario(**{"encoding": {"up": "sign"}, **changes}))
