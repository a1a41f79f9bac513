"""DC-ASGD against numbers on paper, a quadratic loss, FedSGD, and algorithm 2 in plain PyTorch.

Source: Zheng et al. (2017), algorithms 1 and 2.
"""

from __future__ import annotations

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.methods.dc_asgd import DCASGD
from tests.conftest import digits_scenario, frames
from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.methods.plain_torch import flat, gradient, network_of
from tests.methods.recorded import record

EACH = {"name": "buffered", "concurrency": 4, "buffer": 1, "staleness": "constant"}
ALONE = {**EACH, "concurrency": 1}
SETTING = setting_of([100, 300], {"w": 1}, training=Training(lr=0.1))


def sent(g, staleness=0, weight=1.0, device=0):
    """Return a gradient that arrives."""
    body = {"gradient": {"w.weight": torch.tensor([g])}, "buffers": {}}
    return message_of(device, 100, {})._replace(body=body, staleness=staleness, weight=weight)


def merged(w, *updates, state=None, **settings):
    """Return the aggregate of gradients at the number w."""
    method, server = DCASGD(**settings), server_of(view_of(SETTING))
    return method.aggregate(state or method.init(SETTING, KEY), model_of({"w": [w]}), updates, server, KEY)


def number(made):
    """Return the number of an aggregate."""
    return made.model["params"]["w.weight"].item()


def models(*numbers):
    """Return the state of a server that had these models, the newest first."""
    return {"models": [{"w.weight": torch.tensor([w])} for w in numbers], "mean_square": {}}


def test_a_late_gradient_is_corrected():
    """g = 2 from w = 5, two merges ago; now w = 3: 2 + 0.5 x 4 x (3 - 5) = -2, so 3 + 0.1 x 2. A fresh one: 3 - 0.2."""
    state = models(4.0, 5.0)
    given = {"adaptive": False, "lam": 0.5}
    assert number(merged(3.0, sent(2.0, staleness=2), state=state, **given)) == pytest.approx(3.2)
    assert number(merged(3.0, sent(2.0, staleness=1), state=state, **given)) == pytest.approx(3.0)
    assert number(merged(3.0, sent(2.0), state=state, **given)) == pytest.approx(2.8)
    assert number(merged(3.0, sent(2.0, staleness=2, weight=0.5), state=state, **given)) == pytest.approx(3.1)


def test_the_usual_factors():
    """0.04 x 4 x -2 = -0.32 if constant. Adaptive: v = 0.05 x 4, so 2 / sqrt(0.2) x 4 x -2."""
    state = models(4.0, 5.0)
    assert number(merged(3.0, sent(2.0, staleness=2), state=state, adaptive=False)) == pytest.approx(3 - 0.1 * 1.68)
    adaptive = 2 + 2 / (0.2 + 1e-7) ** 0.5 * 4 * -2
    assert number(merged(3.0, sent(2.0, staleness=2), state=state)) == pytest.approx(3 - 0.1 * adaptive)


def test_the_mean_square_decays():
    """v after gradients 2 and 1 at `decay` 0.5: 2, then 1.5."""
    first = merged(3.0, sent(2.0), decay=0.5)
    assert first.state["mean_square"]["w.weight"].item() == 2.0
    second = merged(3.0, sent(1.0), state=first.state, decay=0.5)
    assert second.state["mean_square"]["w.weight"].item() == 1.5
    both = merged(3.0, sent(2.0), sent(1.0), decay=0.5)
    assert both.state["mean_square"]["w.weight"].item() == 1.5


def test_a_quadratic_loss_is_corrected_exactly():
    """Loss 2 w^2, gradient 4 w, Hessian 4: at w = 0.5 the gradient is 2 and its square 4: exact with `lam` 1."""
    for now in (3.0, -1.0, 0.5):
        found = number(merged(now, sent(2.0, staleness=1), state=models(0.5), adaptive=False, lam=1.0))
        assert found == pytest.approx(now - 0.1 * 4 * now)


def test_the_server_forgets_old_models():
    """It keeps two, also of a merge that brought nothing usable; a staler gradient is corrected from the oldest one."""
    made = merged(3.0, sent(float("nan")), state=models(4.0, 5.0), memory=2)
    assert (made.model, made.metrics) == (None, {"left_out": 1.0})
    assert [m["w.weight"].item() for m in made.state["models"]] == [3.0, 4.0]
    given = {"state": made.state, "memory": 2, "adaptive": False, "lam": 0.5}
    assert number(merged(3.0, sent(2.0, staleness=9), **given)) == pytest.approx(3 - 0.1 * (2 + 2 * -1))


# --- runs -------------------------------------------------------------------------------------------------------


def test_one_device_at_a_time_is_fedsgd():
    """No gradient is late, so that nothing is corrected."""
    fleet = [{"cpu": {"flops_per_s": "100 MFLOP/s"}}]
    given = {"fleet": fleet, "selection": "all", "partition": {"name": "iid", "samples_per_device": 60}}
    weights = [
        run(digits_scenario(method=method, protocol=protocol, **given)).learner.weights()["params"]
        for method, protocol in (({"name": "dc_asgd", "batch_size": "full"}, ALONE), ("fedsgd", "sync"))
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("adaptive", [True, False])
def test_merges_are_algorithm_2_in_plain_pytorch(adaptive, monkeypatch):
    """Gradients of plain PyTorch at the models that devices got; corrections of the paper, in float64."""
    jobs, lr = record(monkeypatch), 0.05
    simulation = run(
        mixed_scenario(
            method={"name": "dc_asgd", "adaptive": adaptive}, protocol=EACH, training={"lr": lr}, stop={"rounds": 12},
        )
    )  # fmt: skip
    assert len(jobs) == 12  # trained as their updates are merged, one by one
    w, square = None, {}
    for job in jobs:
        start = {n: t.double() for n, t in flat(job.assignment.global_model).items()}
        w = start if w is None else w
        ((x, y),) = job.batches()
        g = {n: t.double() for n, t in gradient(network_of(job, flat(job.assignment.global_model)), x, y).items()}
        lam = {n: 0.04 for n in g}
        if adaptive:
            square = {n: 0.95 * square.get(n, 0.0) + 0.05 * t**2 for n, t in g.items()}
            lam = {n: 2 / torch.sqrt(v + 1e-7) for n, v in square.items()}
        w = {n: w[n] - lr * (t + lam[n] * t * t * (w[n] - start[n])) for n, t in g.items()}
    for name, tensor in simulation.learner.weights()["params"].items():
        torch.testing.assert_close(tensor.double(), w[name], rtol=0, atol=1e-5)
    assert frames(simulation)["rounds"]["staleness_mean"].max() >= 2


def test_batches_may_be_drawn():
    """A batch of ten is one step of ten samples; "full" is one of all forty."""
    for batch, samples in ((10, 10), ("full", 40)):
        simulation = prepare(mixed_scenario(method={"name": "dc_asgd", "batch_size": batch}))
        plan = simulation.learner.plan(simulation.session.view())
        assert {order.task.local_sgd[0].batch for order in plan.orders} == {samples}


@pytest.mark.parametrize("wrong", [{"lam": -1}, {"decay": 1}, {"memory": 0}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "dc_asgd", **wrong}, protocol=EACH)


def test_rounds_are_refused():
    with pytest.raises(ConfigError, match=r"protocol\.name: dc_asgd runs on buffered, found sync"):
        prepare(digits_scenario(method="dc_asgd"))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "dc_asgd": {
        "batch_size": "test_batches_may_be_drawn",
        "lam": "test_a_late_gradient_is_corrected",
        "adaptive": "test_the_usual_factors",
        "decay": "test_the_mean_square_decays",
        "memory": "test_the_server_forgets_old_models",
    },
}
