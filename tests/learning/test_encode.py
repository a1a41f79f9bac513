"""What encodings do to numbers: the sheet's vector, means and error bounds, real bits, and what a run makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor

from edgesim.core.backend import Assignment, Result
from edgesim.core.encoding import FLOAT32, Contents, Encoding
from edgesim.core.method import Finished, LocalRule, LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Order, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.core.view import View
from edgesim.learning.codec.encode import downlinked, uplinked
from edgesim.learning.codec.steps import rounded, stochastic
from edgesim.learning.models.build import model_state_of
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import assemble
from tests.contracts.support import mixed_scenario, results_of, run
from tests.sizes import full

KEY = Key(11)
INT8, HALF = Encoding(values="int8"), Encoding(values="float16")
LOSSY = [HALF, INT8, *(Encoding(values=v, bits=b) for v in ("qsgd", "gsgd") for b in (3, 8, 16))]  # type: ignore[arg-type]


def generator(*path: int) -> torch.Generator:
    """Return a generator of its own."""
    return torch.Generator().manual_seed(KEY.at(*path).word())


def normal(count: int, *path: int) -> Tensor:
    """Return standard normal numbers, float32."""
    return torch.from_numpy(KEY.at(*path).numpy().standard_normal(count)).float()


def sent(tensor: Tensor, encoding: Encoding, generator: torch.Generator) -> Tensor:
    """Return a tensor as the receiver decodes it."""
    return rounded(encoding.steps[-1], tensor, generator)  # type: ignore[arg-type]


def tau(d: int, bits: int) -> float:
    """Return by how much gsgd shrinks d numbers."""
    return 1 + min(d / 2 ** (2 * (bits - 1)), d**0.5 / 2 ** (bits - 1))


# --- numbers ------------------------------------------------------------------------------------------------------


def test_the_vector_of_the_sheet() -> None:
    """gsgd of (3, 4), 3 bits, u = 0.5: multiples 2 and 3 of 5 / (1.125 x 4)."""
    x = torch.tensor([3.0, 4.0])
    half = torch.tensor([0.5, 0.5])
    assert stochastic(x, 3, half, shrunk=True).tolist() == pytest.approx([2.222222, 3.333333], abs=1e-6)
    assert stochastic(x, 3, half, shrunk=False).tolist() == [2.5, 3.75]
    tiny = torch.tensor([3e-11, -4e-11])
    assert stochastic(tiny, 3, half, shrunk=True).equal(tiny)


@pytest.mark.parametrize("bits", [3, 5])
def test_the_mean_of_qsgd_is_the_tensor(bits: int) -> None:
    """Over 4000 draws, each mean lies within 5 standard errors; of level l + p the variance is p (1 - p)."""
    x, draws = normal(20, 1), generator(2)
    mean = torch.stack([sent(x, Encoding(values="qsgd", bits=bits), draws) for _ in range(4000)]).double().mean(0)
    step = float(x.double().norm()) / 2 ** (bits - 1)
    p = (x.double().abs() / step) % 1.0
    error = step * (p * (1 - p) / 4000).sqrt()
    assert ((mean - x.double()).abs() <= 5 * error).all()
    assert error.max() < 0.02  # and that is not much


@pytest.mark.parametrize("bits", [3, 6])
def test_gsgd_contracts(bits: int) -> None:
    """The mean squared error is at most (1 - 1 / tau) of the squared norm, where qsgd's may be more than all of it."""
    x = normal(1000, 3)
    errors = {}
    for values in ("gsgd", "qsgd"):
        encoding = Encoding(values=values, bits=bits)  # type: ignore[arg-type]
        decoded = [sent(x, encoding, generator(4, i)) for i in range(50)]
        errors[values] = np.mean([float((each - x).norm()) ** 2 for each in decoded])
    whole = float(x.norm()) ** 2
    assert errors["gsgd"] <= (1 - 1 / tau(1000, bits)) * whole
    assert (errors["qsgd"] > whole) == (bits == 3)


NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32) | st.just(0.0), min_size=1, max_size=30)


@given(numbers=NUMBERS, seed=st.integers(0, 100))
@example(numbers=[2.006659400913138e-42], seed=0)  # its 127th has three binary digits
@example(numbers=[1e-44, 7e-45], seed=0)  # theirs rounds to 0
def test_round_trips_are_close(numbers: list[float], seed: int) -> None:
    """Half a step of the rounding for float16 and int8, a whole one for qsgd; zeros stay zeros."""
    x = torch.tensor(numbers)
    exact, slack = x.double(), 1 + 1e-5
    bounds = {
        HALF: exact.abs() * 2.0**-11 + 2.0**-25,
        INT8: exact.abs().max() / 127 / 2 * slack + exact.abs() * 1e-6 + 1e-44,
        **{
            Encoding(values="qsgd", bits=b): exact.norm() / 2 ** (b - 1) * slack + exact.abs() * 1e-6 + 1e-44
            for b in (3, 16)
        },
    }
    for encoding, bound in bounds.items():
        assert ((sent(x, encoding, generator(5, seed)).double() - exact).abs() <= bound).all()
    for encoding in LOSSY:
        decoded = sent(x, encoding, generator(5, seed))
        assert (decoded[x == 0] == 0).all()
        assert decoded.dtype == x.dtype
        if encoding != HALF and encoding.values != "gsgd":
            assert sent(x.reshape(1, -1), encoding, generator(5, seed)).flatten().equal(decoded)


@pytest.mark.parametrize("encoding", LOSSY, ids=str)
def test_a_diverged_tensor_looks_diverged(encoding: Encoding) -> None:
    """What is not finite is not hidden from the server by an encoding."""
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not sent(torch.tensor([1.0, bad, 0.0]), encoding, generator(6)).isfinite().all()


# --- real bits ----------------------------------------------------------------------------------------------------


def written(decoded: np.ndarray, scale: float, bits: int) -> bytes:
    """Return multiples of a scale in so many bits each; the sign of the scale says which end the lowest code is."""
    multiples = np.rint(decoded / np.float32(scale)).astype(np.int64)
    end = 2 ** (bits - 1)
    at_end = np.abs(multiples) == end
    assert at_end.sum() <= 1
    codes = np.where(at_end, -end, multiples)
    assert ((codes >= -end) & (codes < end)).all()
    signed = -scale if (multiples == end).any() else scale
    return np.float32(signed).tobytes() + np.packbits((codes[:, None] >> np.arange(bits)) & 1).tobytes()


def read(data: bytes, count: int, bits: int) -> np.ndarray:
    """Return the numbers written."""
    scale, end = np.frombuffer(data[:4], np.float32)[0], 2 ** (bits - 1)
    raw = np.unpackbits(np.frombuffer(data[4:], np.uint8))[: count * bits].reshape(count, bits)
    codes = (raw.astype(np.int64) << np.arange(bits)).sum(axis=1)
    codes -= 2 * end * (codes >= end)
    codes[codes == -end] *= int(np.sign(scale))
    return np.abs(scale) * codes.astype(np.float32)


@given(numbers=NUMBERS, spike=st.sampled_from([0.0, 1e6, -1e6]), bits=st.integers(3, 16), seed=st.integers(0, 100))
@pytest.mark.parametrize("values", ["int8", "qsgd", "gsgd"])
def test_the_bits_charged_hold_the_numbers(
    values: Any, numbers: list[float], spike: float, bits: int, seed: int
) -> None:
    """What the receiver decodes can be written in the bytes charged, one large number of either sign among it."""
    x = torch.tensor([*numbers, spike])
    encoding = Encoding(values=values, bits=None if values == "int8" else bits)
    bits = encoding.bits or 8
    norm, largest = float(x.double().norm()), float(x.double().abs().max())
    shrunk = tau(len(x), bits) if values == "gsgd" else 1.0
    scale = largest / 127 if values == "int8" else norm / (shrunk * 2 ** (bits - 1))
    assume(scale > 1e-30 and norm >= 1e-10)  # less is not written as multiples
    decoded = sent(x, encoding, generator(7, seed)).numpy()
    data = written(decoded, scale, bits)
    np.testing.assert_array_equal(read(data, len(x), bits), decoded)
    held = Contents(collections=1, layers=1, whole=len(x), masked=0, nonzero=0, vectors=0)
    assert encoding.nbytes(held) == len(data)


# --- bundles ------------------------------------------------------------------------------------------------------


def model_state() -> dict[str, dict[str, Tensor]]:
    """Return two layers with parameters, buffers and a kind of the method's own."""
    kinds: dict[str, dict[str, Tensor]] = {}
    for place, kind in enumerate(("params", "delta")):
        kinds[kind] = {
            f"{layer}.{name}": normal(count, 8, place, i).reshape(shape)
            for i, (layer, name, count, shape) in enumerate(
                [("a", "weight", 12, (3, 4)), ("a", "bias", 3, (3,)), ("b", "weight", 36, (2, 2, 3, 3))]
            )
        }
    kinds["buffers"] = {"a.mean": normal(3, 9), "a.square": normal(9, 10).reshape(3, 3)}
    return kinds


def test_each_layer_has_its_own_scale() -> None:
    """int8: a 127th of the largest weight of the layer; biases and buffers of any shape stay as they are."""
    body = model_state()
    task = Task(up=Payload(frozenset(body)))
    got = uplinked(body, task, INT8, KEY)
    for kind in ("params", "delta"):
        for name in ("a.weight", "b.weight"):
            weight = body[kind][name]
            scale = weight.abs().max() / 127
            torch.testing.assert_close(got[kind][name], torch.round(weight / scale) * scale)
            assert not got[kind][name].equal(weight)
        assert got[kind]["a.bias"].equal(body[kind]["a.bias"])
    assert all(got["buffers"][name].equal(tensor) for name, tensor in body["buffers"].items())


def test_float16_takes_everything() -> None:
    """It halves the bytes of biases and buffers too."""
    body = model_state()
    got = uplinked(body, Task(up=Payload(frozenset(body))), HALF, KEY)
    for kind, tensors in body.items():
        for name, tensor in tensors.items():
            assert got[kind][name].numpy().tobytes() == tensor.numpy().astype(np.float16).astype(np.float32).tobytes()


def test_two_matrices_of_a_layer_share_a_scale() -> None:
    """As a layer pays for one."""
    one, two = normal(6, 12).reshape(2, 3), 100 * normal(6, 13).reshape(3, 2)
    got = uplinked({"params": {"rnn.one": one, "rnn.two": two}}, Task(), INT8, KEY)["params"]
    together = sent(torch.cat([one.flatten(), two.flatten()]), INT8, generator(14))
    assert torch.cat([got["rnn.one"].flatten(), got["rnn.two"].flatten()]).equal(together)


def test_memory_layout_does_not_matter() -> None:
    """Random numbers belong to entries, not to places in memory."""
    body, encoding = model_state(), Encoding(values="qsgd", bits=4)
    strided = {n: t.to(memory_format=torch.channels_last) for n, t in body["params"].items() if t.dim() == 4}
    other = {"params": {**body["params"], **strided}}
    first, second = (uplinked(b, Task(), encoding, KEY)["params"] for b in (body, other))
    assert all(first[name].equal(second[name]) for name in first)


def test_up_and_down_have_streams_of_their_own() -> None:
    """Asking twice gives the same; the other direction or another job gives other random numbers."""
    body, encoding = {"params": model_state()["params"]}, Encoding(values="qsgd", bits=4)
    task = Task()
    up, down = uplinked(body, task, encoding, KEY), downlinked(body, task, encoding, KEY)
    weights = [
        found["params"]["b.weight"]
        for found in (up, uplinked(body, task, encoding, KEY), down, uplinked(body, task, encoding, KEY.at(0)))
    ]
    assert [weights[0].equal(other) for other in weights[1:]] == [True, False, False]


def test_only_what_travels_down_is_decoded() -> None:
    """Layers and kinds that the payload leaves out, requests without weights and peers' own models stay exact."""
    base = model_state()
    some = downlinked(base, Task(down=Payload(frozenset({"params"}), frozenset({"a"}))), HALF, KEY)
    changed = {(kind, n) for kind, tensors in base.items() for n, t in tensors.items() if not some[kind][n].equal(t)}
    assert changed == {("params", "a.weight"), ("params", "a.bias")}
    for task in (Task(down=None), Task(start="device"), Task(down=Payload(encoding=FLOAT32))):
        assert all(downlinked(base, task, HALF, KEY)[k][n].equal(t) for k, ts in base.items() for n, t in ts.items())


@pytest.mark.parametrize("encoding", [HALF, INT8, Encoding(values="qsgd", bits=4), Encoding(values="gsgd", bits=4)])
def test_a_weight_rounded_to_nothing_is_still_under_its_mask(encoding: Encoding) -> None:
    """Where a part has a mask, zeros stay zeros, and only they; what else was rounded to 0 is next to nothing."""
    weight = normal(400, 16).reshape(20, 20) * torch.tensor([1.0, 1e-12, 0.0, 1e-3]).repeat(5)
    body = {"params": {"a.weight": weight, "a.bias": torch.tensor([0.0, 1e-12])}}
    plain, masked = Task(), Task(submodel=Submodel(nnz=(("a", 300),)))
    for crossing in (uplinked, downlinked):
        got, told = (crossing(body, task, encoding, KEY)["params"] for task in (plain, masked))
        assert torch.equal(told["a.weight"] != 0, weight != 0)
        assert not torch.equal(got["a.weight"] != 0, weight != 0)
        torch.testing.assert_close(told["a.weight"], got["a.weight"], rtol=0, atol=2e-38)
        assert told["a.bias"].equal(got["a.bias"])


# --- runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Echo(FedAvg):
    """Devices send back what they got, and say what they made of it."""

    def local(self, task: Task) -> LocalRule:
        """Return no training at all."""
        return LocalRule()


def test_a_device_starts_from_what_it_received() -> None:
    """The trainer decodes the model before the method sees it, and the message once more before anybody else does."""
    parts = assemble(
        mixed_scenario(method="tests.learning.test_encode:Echo", encoding={"down": "float16", "up": "int8"})
    )
    base = model_state_of(parts.module)
    task = Task()
    result = parts.make_trainer("cpu").run(Assignment(0, 0, task, KEY, base, None))
    for name, tensor in base["params"].items():
        halved = tensor.half().float()
        expected = sent(halved, INT8, generator(15)) if tensor.dim() > 1 else halved
        assert result.body["params"][name].equal(expected)
        assert not halved.equal(tensor)


MASKED = "tests.learning.test_encode:Slices"


@dataclass(frozen=True, kw_only=True)
class Slices(FedAvg):
    """Devices send a third of the weights of each layer but the last, always the same ones."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Say how many weights there will be."""
        kept = tuple((layer.name, layer.weights // 3) for layer in view.setting.cost_profile.layers[:-1])
        orders = super().plan(state, view, key).orders
        return Plan(tuple(Order(order.device, replace(order.task, submodel=Submodel(nnz=kept))) for order in orders))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD that ends with a mask."""

        def masked(local: LocalState, context: Context) -> Finished:
            w = local.weights
            return Finished({**w, "params": {n: _slice(n, t, task) for n, t in w["params"].items()}})

        return LocalRule(PLAIN_SGD.phases, on_finish=masked)


def _slice(name: str, tensor: Tensor, task: Task) -> Tensor:
    kept = dict(task.submodel.nnz).get(name.rpartition(".")[0])
    if kept is None or tensor.dim() < 2:
        return tensor
    order = torch.from_numpy(KEY.numpy().permutation(tensor.numel()))
    flat = tensor.detach().flatten().clone()
    flat[order[kept:]] = 0.0
    return flat.view(tensor.shape)


def masked_bytes(body: ModelState, masked: Sequence[str]) -> int:
    """Return the length of a message: values that are not zero, one bitmap, all other numbers."""
    covered = {n: t.numpy() for n, t in body["params"].items() if t.dim() > 1 and n.rpartition(".")[0] in masked}
    bits = np.concatenate([t.ravel() != 0 for t in covered.values()])
    values = np.concatenate([t[t != 0] for t in covered.values()])
    others = [t.numpy() for tensors in body.values() for n, t in tensors.items() if n not in covered]
    return len(np.packbits(bits).tobytes() + b"".join(v.astype(np.float16).tobytes() for v in (values, *others)))


def test_a_run_charges_what_its_messages_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-precision values of a mask with its bitmap, written down from the messages of a real run."""
    really_run, lengths = Trainer.run, {}

    def weighed(self: Trainer, assignment: Assignment) -> Result:
        result = really_run(self, assignment)
        lengths[assignment.job] = masked_bytes(result.body, [name for name, _ in assignment.task.submodel.nnz])
        return result

    monkeypatch.setattr(Trainer, "run", weighed)
    scenario = mixed_scenario(method=MASKED, encoding={"up": {"values": "float16", "zeros": "bitmap"}})
    jobs = run(scenario).tables["jobs"].frame().set_index("job")
    assert len(lengths) == len(jobs) == 12
    assert jobs["up_bytes"].to_dict() == lengths


def test_half_the_bytes_and_the_same_accuracy() -> None:
    """float16 halves what is sent; a run with it is not the run without, and hardly differs."""
    plain, half = (run(mixed_scenario(encoding={"up": up})) for up in ("float32", "float16"))
    frames = [simulation.tables["jobs"].frame() for simulation in (plain, half)]
    assert (2 * frames[1]["up_bytes"]).tolist() == frames[0]["up_bytes"].tolist()
    weights = [simulation.learner.weights()["params"]["fc1.weight"] for simulation in (plain, half)]
    assert 0 < float((weights[0] - weights[1]).abs().max()) < 1e-2


@pytest.mark.parametrize("method", ["fedavg", "dfedavg"])
@full
@pytest.mark.workers
def test_workers_draw_the_same_random_numbers(method: str) -> None:
    """Rounding at random up and down: serial and two workers give the same tables and weights, bit for bit."""
    coarse = {"values": "qsgd", "bits": 4}
    scenario = {"method": method, "encoding": {"up": coarse, "down": coarse}}
    backends = ("serial", {"name": "workers", "workers": 2})
    first, second = (results_of(run(mixed_scenario(**scenario, backend=backend))) for backend in backends)
    assert first == second


FULL = {"peers": {"name": "full"}}


@pytest.mark.parametrize(
    ("sparse", "dense", "more"),
    [
        ({"name": "feddst", "sparsity": 0.0, "alpha": 0.0}, "fedavg", {"stop": {"rounds": 1}}),  # sums differ by 1e-8,
        ({"name": "dispfl", "sparsity": 0.0}, "dfedavg", FULL),  # which the next rounds' rounding would make larger
        ({"name": "dadpfl", "sparsity": 0.0, "target_sparsity": 0.0, "reuse": 0}, "dfedavg", FULL),
    ],
)
def test_rounding_takes_no_weight_out_of_a_mask(sparse: Any, dense: str, more: dict[str, Any]) -> None:
    """Sparse methods with nothing left out are their dense ones, also if most weights are rounded to 0."""
    coarse = {"values": "qsgd", "bits": 4, "zeros": "cheapest"}
    one, other = (
        run(mixed_scenario(method=method, encoding={"up": coarse}, **more)).learner.weights()["params"]
        for method in (sparse, dense)
    )
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-7)
