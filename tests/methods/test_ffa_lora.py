"""FFA-LoRA: bytes by hand, training in plain PyTorch, and a mean that is exact."""

from __future__ import annotations

import torch
from torch.nn import functional

from edgesim.core.task import Payload
from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.adapted import product_of
from tests.methods.recorded import close_to, record

LAYERS = ("fc1", "fc2")


def test_half_the_bytes_of_the_adapters():
    """A and B have 64 x 8 numbers each; both directions carry B and the 650 numbers of the classifier alone."""
    sent = {}
    for name in ("fedit", "ffa_lora"):
        simulation = prepare(mixed_scenario(method=name))
        task = simulation.learner.plan(simulation.session.view()).orders[0].task
        profile = simulation.parts.setting.cost_profile
        statistics = 4 * sum(layer.buffers for layer in profile.layers)
        assert profile.nbytes(task.down) == profile.nbytes(task.up)
        sent[name] = profile.nbytes(task.up) - statistics
    assert sent == {"fedit": 4 * (4 * 512 + 650), "ffa_lora": 4 * (2 * 512 + 650)}
    assert 2 * (sent["ffa_lora"] - 4 * 650) == sent["fedit"] - 4 * 650
    assert Payload().layers is None


def test_only_b_moves_and_the_mean_of_products_is_exact(monkeypatch):
    """Two rounds: A is the first A everywhere, and the global product is the mean of the devices' products."""
    jobs = record(monkeypatch)
    simulation = run(mixed_scenario(method="ffa_lora"))
    first = simulation.parts.module
    params = simulation.learner.weights()["params"]
    for layer in LAYERS:
        a = f"{layer}.lora_A.default.weight"
        assert torch.equal(params[a], jobs[0].assignment.global_model["params"][a])
        assert all(a not in job.result.body["params"] for job in jobs)
        bs = [job.result.body["params"][f"{layer}.lora_B.default.weight"].double() for job in jobs[6:]]
        mean = sum(b @ params[a].double() for b in bs) / 6
        torch.testing.assert_close(product_of(params, layer), mean, atol=1e-6, rtol=1e-6)
        assert mean.norm() > 0
    assert first is not None


def test_a_job_in_plain_torch(monkeypatch):
    """SGD at rate 0.1 on B and the classifier, with A and the base as constants."""
    jobs = record(monkeypatch, kinks=True)
    run(mixed_scenario(method="ffa_lora"))
    job = jobs[7]
    module, weights = job.trainer.module, dict(job.assignment.global_model["params"])
    trained = {n: weights[n].clone().requires_grad_() for n in weights if "lora_A" not in n}
    for x, y in job.batches():
        h = x.flatten(1)
        for layer in LAYERS:
            base = module.get_submodule(layer).base_layer
            low = h @ weights[f"{layer}.lora_A.default.weight"].T @ trained[f"{layer}.lora_B.default.weight"].T
            h = functional.relu(functional.linear(h, base.weight, base.bias) + 16.0 / 8 * low)
        loss = functional.cross_entropy(functional.linear(h, trained["head.weight"], trained["head.bias"]), y)
        for w, g in zip(trained.values(), torch.autograd.grad(loss, list(trained.values())), strict=True):
            w.data -= 0.1 * g
    close_to(job.result.body["params"], {n: w.detach() for n, w in trained.items()})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "ffa_lora": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
    }
}
