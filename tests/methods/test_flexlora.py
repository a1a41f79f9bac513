"""FlexLoRA against products and NumPy's singular values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgesim.core.task import Task
from edgesim.methods.flexlora import FlexLoRA
from tests.contracts.support import mixed_scenario, run
from tests.methods.adapted import PROFILE, RANK1, merged, product_of, update
from tests.methods.hand_made import setting_of
from tests.methods.recorded import record

ZERO = update(0, 0, [[0] * 3] * 2, [[0] * 2] * 2).body


def test_products_by_hand():
    """A quarter of [[4, 0, 0], [0, 0, 0]] and three quarters of [[0, 0, 0], [0, 4, 0]]: rank 2, so nothing is lost."""
    updates = [update(0, 25, [[2, 0, 0]], [[2], [0]], 4.0), update(1, 75, [[0, 1, 0], [0, 1, 0]], [[0, 0], [2, 2]])]
    params = merged(FlexLoRA(), None, ZERO, updates).model["params"]
    assert np.allclose(product_of(params), [[1, 0, 0], [0, 3, 0]], atol=1e-6)
    assert params["head.weight"].tolist() == [1]
    # the larger one comes first: what a device of rank 1 gets
    one = params["l.lora_B.default.weight"][:, :1] @ params["l.lora_A.default.weight"][:1]
    assert np.allclose(one, [[0, 0, 0], [0, 3, 0]], atol=1e-6)


@pytest.mark.parametrize("rank", [64, 8])
def test_a_run_keeps_the_best_product_of_its_rank(monkeypatch, rank):
    """With the full rank of 64 it is the mean of the products; with less, what NumPy's largest values leave of it."""
    jobs = record(monkeypatch)
    model = {"name": "tests.plugins.networks:AdaptedDigits", "rank": rank}
    method = {"name": "flexlora", "ranks": [2, 4, rank], "tiers": "level"}
    training = {"batch": 16, "lr": 1.0, "local_epochs": 2}
    params = run(mixed_scenario(method=method, model=model, training=training)).learner.weights()["params"]
    for layer in ("fc1", "fc2"):
        mean = sum(product_of(job.result.body["params"], layer) for job in jobs[6:]).numpy() / 6
        u, s, v = np.linalg.svd(mean)
        best = (u[:, :rank] * s[:rank]) @ v[:rank]
        assert np.linalg.norm(mean) > 1e-3
        assert np.abs(product_of(params, layer).numpy() - best).max() < 1e-6
        assert (rank < 64) == (np.abs(mean - best).max() > 1e-6)
    shapes = [tuple(job.result.body["params"]["fc1.lora_A.default.weight"].shape) for job in jobs[6:]]
    assert shapes == [(2, 64), (2, 64), (4, 64), (4, 64), (rank, 64), (rank, 64)]


def test_work_of_the_server():
    """Products of rank 1 and 2, 2 x 3 each, and the values of a 3 x 2 matrix."""
    setting, tasks = setting_of([1, 1], {}, cost_profile=PROFILE), [Task(submodel=RANK1), Task()]
    assert FlexLoRA().merge_flops_of(tasks, setting) == 2 * (1 + 2) * 6 + 6 * 3 * 4 + 20 * 8
    assert FlexLoRA().merge_flops(2, setting) == 2 * (2 + 2) * 6 + 6 * 3 * 4 + 20 * 8


def test_no_data_no_change():
    assert torch.equal(
        merged(FlexLoRA(), None, ZERO, [update(0, 0, [[1] * 3] * 2, [[1] * 2] * 2)]).model["params"]["head.weight"],
        ZERO["params"]["head.weight"],
    )


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "flexlora": {
        "ranks": "test_a_run_keeps_the_best_product_of_its_rank",
        "tiers": "test_ranks.py::test_level_i_pays_for_the_ith_rank",
        "proportions": "test_ranks.py::test_proportions",
    },
}
