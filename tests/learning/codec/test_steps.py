"""Chains of steps: messages written down and read again, and a step from outside that is one class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from edgesim.core import encoding as steps
from edgesim.core.backend import Assignment
from edgesim.core.encoding import Chain, Change, Codec, Contents, Encoding, ErrorFeedback, Mask, Rotate, UpdateStep
from edgesim.core.method import Needs
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.core.view import View
from edgesim.learning.codec.encode import update_uplinked
from edgesim.learning.codec.kept import Kept
from edgesim.learning.codec.steps import WORK, Message, flat_layers, rotated, shaped, turned_back
from edgesim.methods.fedavg import FedAvg
from tests.contracts.support import mixed_scenario, run
from tests.contracts.whole_runs import check_whole_runs
from tests.core.test_encoding import cost_profile

KEY = Key(23)
MESSAGE = KEY.at(JobStream.UPLINK).at(0)  # key of the first collection
PARAMS = frozenset({"params"})
BIAS = torch.tensor([1.0, -2.0, 0.5])


def arrived(weights: Tensor, codec: Codec, left: ModelState | None = None) -> tuple[Tensor, ModelState]:
    """Return what arrives of the change of a layer's weights, and what it leaves on the device."""
    body = {"params": {"a.weight": weights, "a.bias": BIAS}}
    zeros = {"params": {name: torch.zeros_like(tensor) for name, tensor in body["params"].items()}}
    task = Task(up=Payload(PARAMS))
    got, left = update_uplinked(body, zeros, left or {}, Assignment(0, 0, task, KEY, zeros, None), codec)
    assert got["params"]["a.bias"].equal(BIAS)
    return got["params"]["a.weight"], left


def normal(*shape: int) -> Tensor:
    """Return standard normal numbers."""
    return torch.from_numpy(np.random.default_rng(7).standard_normal(shape)).float()


def shared(*index: int) -> torch.Generator:
    """Return the generator that both sides have for a step."""
    return torch.Generator().manual_seed(MESSAGE.at(0, *index).word())


# --- messages ---------------------------------------------------------------------------------------------------------
# Each returns the bytes of a message besides biases, and the weights that a receiver reads from these bytes alone.


def rand_k(move: Tensor, got: Tensor) -> tuple[bytes, np.ndarray]:
    """Return a seed and the values at the places that follow from it."""
    places = torch.randperm(move.numel(), generator=shared(0))[:60].sort().values.numpy()
    data = bytes(8) + got.numpy().ravel()[places].tobytes()
    read = np.zeros(move.numel(), np.float32)
    read[places] = np.frombuffer(data[8:], np.float32)
    return data, read


def rotated_int8(move: Tensor, got: Tensor) -> tuple[bytes, np.ndarray]:
    """Return a seed, a scale and a byte for each rotated weight."""
    turned = rotated(move.flatten(), shared(1, 0))
    scale = float(turned.abs().max() / 127)
    codes = np.rint(turned.numpy() / np.float32(scale)).astype(np.int8)
    data = bytes(8) + np.float32(scale).tobytes() + codes.tobytes()
    values = np.frombuffer(data[12:], np.int8).astype(np.float32) * np.frombuffer(data[8:12], np.float32)
    return data, turned_back(torch.from_numpy(values), shared(1, 0)).numpy()


def rank_2(move: Tensor, got: Tensor) -> tuple[bytes, np.ndarray]:
    """Return two thin factors of the matrix that arrived, which has rank 2."""
    u, s, vt = np.linalg.svd(got.numpy())
    data = (u[:, :2] * s[:2]).tobytes() + vt[:2].tobytes()
    p, q = np.split(np.frombuffer(data, np.float32), [2 * len(move)])
    return data, (p.reshape(-1, 2) @ q.reshape(2, -1)).ravel()


def half(move: Tensor, got: Tensor) -> tuple[bytes, np.ndarray]:
    """Return two bytes for each weight."""
    data = move.half().numpy().tobytes()
    return data, np.frombuffer(data, np.float16).astype(np.float32)


WRITTEN: dict[str, tuple[Encoding, Callable[[Tensor, Tensor], tuple[bytes, np.ndarray]], int]] = {
    "rand_k": (Encoding(sparsify="rand_k", share=0.1), rand_k, 4),
    "rotated int8": (Encoding(values="int8", rotate=True), rotated_int8, 4),
    "rank": (Encoding(rank=2, error_feedback=True), rank_2, 4),
    "float16": (Encoding(values="float16", update=True), half, 2),
}


@pytest.mark.parametrize(("codec", "write", "bias_bytes"), WRITTEN.values(), ids=WRITTEN)
def test_bytes_are_those_of_a_message_that_can_be_read(
    codec: Encoding, write: Callable[[Tensor, Tensor], tuple[bytes, np.ndarray]], bias_bytes: int
) -> None:
    """600 weights and 3 biases. Other chains are written in `test_encode`, `test_update` and `core/test_encoding`."""
    move = normal(20, 30)
    got, _ = arrived(move, codec)
    data, read = write(move, got)
    np.testing.assert_allclose(read, got.numpy().ravel(), atol=1e-5)
    held = cost_profile((600, 3)).contents(Payload(PARAMS), Submodel())._replace(matrices=((20, 30),))
    assert codec.nbytes(held) == len(data) + bias_bytes * 3


# --- chains -----------------------------------------------------------------------------------------------------------


def test_keys_become_steps_in_the_order_of_encoding() -> None:
    """The scenario's keys are short, and each names a step. Nothing asked for is no step at all."""
    assert Encoding().steps == ()
    long = Encoding(
        sparsify="top_k", share=0.1, values="sign", error_feedback=True, momentum=0.9, clip_norm=1.0, warm_up=2
    )
    names = "Change Clip Momentum ErrorFeedback TopK GolombCode Sign"
    assert [type(step).__name__ for step in long.steps] == names.split()
    names = names.replace("Clip Momentum ", "")
    assert [type(step).__name__ for step in long.of_own_collections.steps] == names.replace(
        "Clip Momentum ", ""
    ).split()
    assert long.of_others.steps == ()
    assert (
        Encoding(values="qsgd", bits=4, zeros="cheapest", flops_per_number=1.0).of_others.nbytes(
            Contents(1, 1, 100, 0, 0, 0)
        )
        == 50 + 4
    )


def test_every_step_has_its_work() -> None:
    """Steps of edgesim that change values are computed by class. These four write down what others chose."""

    def below(cls: type) -> set[type]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    bases = {steps.EncodingStep, steps.UpdateStep, steps.Sparsify}
    found = {cls for cls in below(steps.EncodingStep) if cls.__module__ == steps.__name__}
    assert found - bases - set(WORK) == {steps.PerNumber, steps.Mask, steps.Int32Code, steps.GolombCode}


def test_a_chain_checks_its_steps() -> None:
    with pytest.raises(ValueError, match="zeros go with whole models under a mask"):
        Chain((Change(), Mask("bitmap")))
    with pytest.raises(ValueError, match="steps of updates need the step Change"):
        Chain((ErrorFeedback(),))


# --- a step from outside ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ternary(UpdateStep):
    """Weights as -s, 0 or s in 2 bits, with the mean magnitude s of those above a share of the layer's largest."""

    keeps: ClassVar[str] = "sendings"  # how many times each weight was sent
    weight_flops: ClassVar[float] = 3.0
    least: float

    def nbytes(self, held: Contents, rest: Callable[[Contents], int]) -> int:
        """Return the bytes of codes, scales and vectors."""
        codes = -(-2 * held.collections * held.whole // 8)
        return codes + 4 * held.collections * held.layers + rest(held._replace(whole=0))

    def crossed(
        self, tensors: Mapping[str, Tensor], rest: Callable[[Mapping[str, Tensor]], Any], message: Message
    ) -> Any:
        """Return the weights of each layer rounded to three values."""
        flat = {}
        for layer, x in flat_layers(tensors).items():
            large = x.abs() >= self.least * x.abs().max()
            flat[layer] = torch.where(large, x.sign() * x.abs()[large].mean(), 0.0)
        got = {**tensors, **shaped(flat, tensors)}
        before = message.before.get(self.keeps, {})
        message.left[self.keeps] = {n: (t != 0) + before.get(n, 0.0) for n, t in got.items() if t.dim() >= 2}
        return got


TERNARY = Chain((Change(), ErrorFeedback(), Rotate(), Ternary(0.5)))
PLAIN = Chain((Change(), ErrorFeedback(), Ternary(0.5)))


def test_a_step_from_outside_is_one_class() -> None:
    """(4, -1, 2, -3), half of 4: 3 with the signs of 4, 2 and -3; the rest waits beside the step's own state."""
    got, left = arrived(torch.tensor([[4.0, -1.0, 2.0, -3.0]]), PLAIN)
    assert got.tolist() == [[3.0, 0.0, 3.0, -3.0]]
    assert left["residual of params"]["a.weight"].tolist() == [[1.0, -1.0, -1.0, 0.0]]
    got, left = arrived(torch.tensor([[0.0, -3.0, 1.0, 0.0]]), PLAIN, left)
    assert got.tolist() == [[0.0, -4.0, 0.0, 0.0]]
    assert left["sendings of params"]["a.weight"].tolist() == [[1.0, 1.0, 1.0, 1.0]]
    own = {"mine": {"w": torch.ones(1)}}
    assert Kept.of({**own, **left}) == Kept(own, dict(left))


def test_its_price_is_in_the_sum() -> None:
    """1024 weights at 2 bits, a scale, 10 biases, and the seed of the rotation before it."""
    held = cost_profile((1024, 10)).contents(Payload(PARAMS), Submodel())
    assert PLAIN.nbytes(held) == 256 + 4 + 40
    assert TERNARY.nbytes(held) == 256 + 4 + 40 + 8
    assert PLAIN.coding_flops(held) == (1 + 2 + 3) * 1024
    assert TERNARY.coding_flops(held) == (1 + 2 + 2 * 12 + 3) * 1024
    assert TERNARY.decoding_flops(held) == (1 + 12) * 1024


@dataclass(frozen=True, kw_only=True)
class TernaryFedAvg(FedAvg):
    """FedAvg whose devices send ternary updates."""

    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders of FedAvg with an encoding of the method's own."""
        plan = super().plan(state, view, key)
        up = Payload(encoding=TERNARY)
        tasks = {id(order.task): replace(order.task, up=up) for order in plan.orders}
        return plan._replace(orders=tuple(order._replace(task=tasks[id(order.task)]) for order in plan.orders))


def test_a_run_with_it_is_timed_answered_and_resumed(tmp_path: Path) -> None:
    """cnn_digits has 6032 weights in three layers and 58 biases; state and plan go through files."""
    scenario = partial(mixed_scenario, method="tests.learning.codec.test_steps:TernaryFedAvg")
    check_whole_runs(scenario, tmp_path)
    simulation = run(scenario(stop={"rounds": 1}))
    assert set(simulation.tables["jobs"].frame()["up_bytes"]) == {2 * 6032 // 8 + 4 * 3 + 4 * 58 + 8}
    assert {"residual of params", "sendings of params"} == set(next(iter(simulation.learner.memory.values())))
