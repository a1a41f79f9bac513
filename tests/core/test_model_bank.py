"""Models beside the global model: kept, priced and read back as they were."""

from __future__ import annotations

import pytest
import torch

from edgesim.core import model_state as ms
from edgesim.core.encoding import FLOAT32
from edgesim.core.model_bank import ModelBank
from edgesim.core.task import Payload
from tests.contracts.support import NORMED, merge_arguments, mixed_scenario, prepare

BANK = ModelBank("cluster")


def test_a_model_comes_back_as_it_was_put() -> None:
    first = prepare(mixed_scenario(model={"name": NORMED})).learner.weights()
    models = {number: ms.mapped(lambda t, number=number: t + number, first) for number in (2, 10)}
    held = {**first, **BANK.put(2, models[2]), **BANK.put(10, models[10])}
    for number, model in models.items():
        found = BANK.get(held, number)
        assert {kind: list(ts) for kind, ts in found.items()} == {kind: list(model[kind]) for kind in ms.MODEL}
        assert all(torch.equal(a, b) for a, b in zip(ms.tensors_in(found), ms.tensors_in(model), strict=True))
    with pytest.raises(KeyError, match="cluster_1"):
        BANK.get(held, 1)
    names = [name for tensors in held.values() for name in tensors]
    assert len(names) == len(set(names)) == 3 * len(list(ms.tensors_in(first)))


def test_a_payload_is_priced_as_that_many_models() -> None:
    setting = merge_arguments(prepare(mixed_scenario(model={"name": NORMED})))[3].setting
    profile, alone = setting.cost_profile, Payload()

    def nbytes(payload: Payload) -> int:
        return int(profile.nbytes(payload, usual=FLOAT32))

    assert nbytes(BANK.payload([2, 10], setting)) == 3 * nbytes(alone)
    assert nbytes(BANK.payload([10], setting, whole=False)) == nbytes(alone)
    assert nbytes(BANK.payload([], setting)) == nbytes(alone)
    assert BANK.numbers(BANK.payload([10, 2], setting)) == [2, 10]
    assert BANK.numbers(BANK.payload([], setting)) == []
