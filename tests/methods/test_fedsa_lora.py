"""FedSA-LoRA: A is the mean of all, B never leaves its device."""

from __future__ import annotations

import torch

from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.recorded import record

LAYERS = ("fc1", "fc2")


def test_b_never_leaves_a_device(monkeypatch):
    """No message has it, the global one stays at 0, and each device starts with what it had at the end."""
    jobs = record(monkeypatch)
    simulation = run(mixed_scenario(method="fedsa_lora", stop={"rounds": 3}))
    learner = simulation.learner
    for layer in LAYERS:
        a, b = f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight"
        assert all(b not in tensors for job in jobs for tensors in job.result.body.values())
        assert not learner.weights()["params"][b].any()
        mean = sum(job.result.body["params"][a].double() for job in jobs[-6:]) / 6
        torch.testing.assert_close(learner.weights()["params"][a].double(), mean, atol=1e-7, rtol=1e-6)
        own = [learner.memory[device]["params"][b] for device in range(6)]
        assert len({tuple(each.flatten().tolist()) for each in own}) == 6
        for before, after in zip(jobs[6:12], jobs[12:], strict=True):
            assert before.assignment.device == after.assignment.device
            assert torch.equal(before.result.new_device_state["params"][b], after.assignment.device_state["params"][b])


def test_a_device_is_tested_with_its_own_b():
    simulation = run(mixed_scenario(method="fedsa_lora"))
    model, kept = simulation.learner.weights(), simulation.learner.memory[3]
    personal = simulation.learner.method.personal_model(model, kept)["params"]
    assert torch.equal(personal["fc1.lora_A.default.weight"], model["params"]["fc1.lora_A.default.weight"])
    assert torch.equal(personal["fc1.lora_B.default.weight"], kept["params"]["fc1.lora_B.default.weight"])


def test_bytes_by_hand():
    """A of two adapters, 512 numbers each, and the 650 numbers of the classifier."""
    simulation = prepare(mixed_scenario(method="fedsa_lora"))
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    profile = simulation.parts.setting.cost_profile
    statistics = 4 * sum(layer.buffers for layer in profile.layers)
    assert profile.nbytes(task.up) - statistics == 4 * (2 * 512 + 650)


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedsa_lora": {
        "aggregate_over": "test_fedavg.py::test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
    }
}
