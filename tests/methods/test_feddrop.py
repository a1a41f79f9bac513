"""FedDrop against numbers on paper, published ratios and costs, and PyTorch.

Source: FedPMT paper, its Table 5.2 in H. Wu's thesis; what follows from it by arithmetic on the layer lists of its
networks.
"""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import ChannelGroup, CostProfile, LayerCost
from edgesim.core.task import Submodel
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.submodel.slicing import thinner
from edgesim.learning.train.trainer import Trainer
from edgesim.methods.feddrop import FedDrop
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.contracts.support import fingerprint, mixed_scenario, prepare, results_of, run
from tests.learning.scattered import scatter
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full

TABLE_5_2 = Path(__file__).parents[1] / "world" / "data" / "fedpmt_table_5_2.csv"


# --- the mean, on paper -----------------------------------------------------------------------------------------

# 2 inputs, 4 hidden units, 2 outputs, without biases; device 0 keeps units 0 and 1, device 1 units 1 and 2
W1, W2 = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]], [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
KEPT = ((0, 1), (1, 2))
MOVES = (
    {"fc1": [[0.1, 0.2], [0.3, 0.4]], "fc2": [[0.1, -0.1], [0.2, 0.0]]},
    {"fc1": [[-0.1, 0.0], [0.2, 0.2]], "fc2": [[0.3, 0.1], [0.0, -0.2]]},
)
LAYERS = (
    LayerCost("fc1", "Linear", 8, 0, 16.0, 16.0, 16.0, frozenset(), weights=8, rows="fc1"),
    LayerCost("fc2", "Linear", 8, 0, 16.0, 16.0, 16.0, frozenset({"fc1"}), weights=8, columns="fc1"),
)
CARD = CostProfile("by hand", (2,), 2, LAYERS, groups=(ChannelGroup("fc1", 4),))


def merged(samples=(1, 1), arrived=(0, 1), **changes):
    """Return both matrices after a merge of the moves of these devices, as arrays; None if there is no new model."""
    got = []
    for k in arrived:
        w1, w2 = np.array(W1)[list(KEPT[k])] + MOVES[k]["fc1"], np.array(W2)[:, list(KEPT[k])] + MOVES[k]["fc2"]
        submodel = Submodel("keep0.5", channels=(("fc1", KEPT[k]),))
        got.append(message_of(k, samples[k], {"fc1": w1.tolist(), "fc2": w2.tolist()}, submodel))
    view = view_of(setting_of(samples, {}, cost_profile=CARD))
    model = (
        FedDrop(keep=0.5, **changes).aggregate({}, model_of({"fc1": W1, "fc2": W2}), got, server_of(view), KEY).model
    )
    return model and [model["params"][f"{name}.weight"].numpy() for name in ("fc1", "fc2")]


def test_a_parameter_is_averaged_over_who_had_it():
    """Unit 1 has two holders, 0 and 2 one, 3 none: its weights keep their bits."""
    w1, w2 = merged()
    assert w1 == pytest.approx(np.array([[0.2, 0.4], [0.4, 0.6], [0.7, 0.8], [0.7, 0.8]]), rel=1e-6)
    assert w2 == pytest.approx(np.array([[0.2, 0.3, 0.4, 0.4], [0.7, 0.6, 0.5, 0.8]]), rel=1e-6)
    assert (w1[3] == np.float32(W1[3])).all() and (w2[:, 3] == np.float32(W2)[:, 3]).all()


def test_who_had_it_not_may_count_with_the_old_one():
    """The other reading: divided by the data of all who arrived, so a lone holder moves a weight half as far."""
    w1, w2 = merged(absent="include_absent")
    assert w1 == pytest.approx(np.array([[0.15, 0.3], [0.4, 0.6], [0.6, 0.7], [0.7, 0.8]]), rel=1e-6)
    assert w2 == pytest.approx(np.array([[0.15, 0.3, 0.35, 0.4], [0.6, 0.6, 0.6, 0.8]]), rel=1e-6)


def test_who_had_it_not_may_count_with_zero():
    """Half of a lone holder's weight is left, and nothing of unit 3, which nobody had."""
    w1, w2 = merged(zero_padded=True)
    assert w1 == pytest.approx(np.array([[0.1, 0.2], [0.4, 0.6], [0.35, 0.4], [0.0, 0.0]]), rel=1e-6)
    assert w2 == pytest.approx(np.array([[0.1, 0.3, 0.25 - 0.05, 0.0], [0.35, 0.6, 0.25, 0.0]]), rel=1e-6)
    with pytest.raises(ConfigError, match=r"^method\.zero_padded: says what method\.absent does"):
        prepare(mixed_scenario(method={"name": "feddrop", "zero_padded": True, "absent": "include_absent"}))
    assert merged((0, 0), zero_padded=True)[0] == pytest.approx(np.array(W1), rel=1e-6)  # updates that count nothing


def test_holders_count_by_data():
    """300 and 100 samples: unit 1 moves 3/4 as device 0 and 1/4 as device 1 say; lone holders as before."""
    w1, w2 = merged((300, 100))
    assert w1[1] == pytest.approx([0.3 + (3 * 0.3 - 0.1) / 4, 0.4 + 3 * 0.4 / 4], rel=1e-6)
    assert w2[:, 1] == pytest.approx([0.2 + (3 * -0.1 + 0.3) / 4, 0.6], rel=1e-6)
    assert w1[2] == pytest.approx([0.7, 0.8], rel=1e-6)


def test_who_does_not_arrive_is_in_no_sum():
    w1, _ = merged(arrived=[1])
    assert w1 == pytest.approx(np.array([[0.1, 0.2], [0.2, 0.4], [0.7, 0.8], [0.7, 0.8]]), rel=1e-6)
    assert merged(arrived=[]) is None


# --- sizes and costs --------------------------------------------------------------------------------------------

# Network, share kept; by arithmetic on its layers: units that stay, share of training's multiply-adds, parameters.
SIZES = [
    ("fcnn", 0.54, [216, 162, 108, 54], 0.418849, 228754),
    ("fcnn", 0.61, [244, 183, 122, 61], 0.493970, 266946),
    ("fcnn", 0.73, [292, 219, 146, 73], 0.633869, 336978),
    ("cnn_mnist", 0.1, [13], 0.903088, 6905),
    ("cnn_mnist", 0.26, [33], 0.919942, 12245),
    ("cnn_mnist", 0.73, [93], 0.970505, 28265),
    ("cnn_cifar10", 0.1, [50, 30], 0.792212, 55938),
    ("cnn_cifar10", 0.4, [200, 120], 0.850500, 199578),
    ("cnn_cifar10", 0.54, [270, 162], 0.881457, 275850),
    ("cnn_cifar10", 0.88, [440, 264], 0.966588, 485562),
    ("cnn_cifar10", 0.93, [465, 279], 0.980296, 519327),
]


def null_jobs(model, keep, batch, samples, **changes):
    """Return the jobs of a timing-only round of FedDrop, a device for each share, in their order."""
    fleet = [{"level": i + 1, "cpu": {"flops_per_s": 1e9}} for i in range(len(keep))]
    method = {"name": "feddrop", "keep": keep}
    partition = {"name": "sizes", "samples_per_device": samples}
    scenario = timing_scenario(
        model=model, method=method, fleet=fleet, partition=partition, training={"batch": batch}, **changes
    )
    return frames(simulate_null(scenario))["jobs"].sort_values("device")


@pytest.mark.parametrize(("model", "share", "counts", "work", "params"), SIZES)
def test_thin_networks_of_the_study(model, share, counts, work, params):
    """Units, FLOPs and bytes asked for are those of the network that PyTorch runs: one step on a batch of 4."""
    simulation = prepare(timing_scenario(model=model, method={"name": "feddrop", "keep": share}))
    cost_profile = simulation.parts.setting.cost_profile
    task = simulation.learner.plan(simulation.session.view()).orders[0].task
    assert [len(channels) for _, channels in task.submodel.channels] == counts
    small = thinner(simulation.parts.module, task.submodel, cost_profile)
    with flop_counter() as counter:
        cross_entropy(small(torch.zeros(4, *cost_profile.input_shape)), torch.zeros(4, dtype=torch.int64)).backward()
    jobs = null_jobs(model, [share], batch=4, samples=4)
    assert jobs["flops"].tolist() == [counter.get_total_flops()]
    assert jobs["flops"][0] / (4 * cost_profile.train_flops()) == pytest.approx(work, abs=5e-7)
    assert sum(p.numel() for p in small.parameters()) == params
    assert (jobs["down_bytes"][0], jobs["up_bytes"][0]) == (4 * params + 8, 4 * params)


@pytest.mark.parametrize(
    ("model", "params", "macs"),
    [("lenet5", 29924, 619740), ("cnn_3conv", 89450, 4515520), ("vgg11", 9420170, 152963584)],
)
def test_half_of_every_hidden_linear_layer(model, params, macs):
    """FedDrop as the FedDHAD paper compares with it. Source: parameters and multiply-adds by arithmetic."""
    simulation = prepare(timing_scenario(model=model, method={"name": "feddrop", "keep": 0.5}))
    cost_profile, plan = simulation.parts.setting.cost_profile, simulation.learner.plan(simulation.session.view())
    assert {
        (cost_profile.submodel_params(o.task.submodel), cost_profile.forward_flops(o.task.submodel))
        for o in plan.orders
    } == {(params, 2 * macs)}


with TABLE_5_2.open(encoding="utf-8") as lines:
    ROWS = [row for row in csv.DictReader(line for line in lines if not line.startswith("#"))]
MODELS = {"FCNN-MNIST": "fcnn", "CNN-MNIST": "cnn_mnist", "CNN-CIFAR10": "cnn_cifar10"}


@pytest.mark.parametrize("network", MODELS)
def test_operations_of_table_5_2(network):
    """One step of a run priced as the paper does, which counts 12.8 of 128 units where 13 are kept."""
    rows = [row for row in ROWS if row["network"] == network and row["keep_rate"] != "1"]
    batch, shares = int(rows[0]["batch"]), [float(row["keep_rate"]) for row in rows]
    found = null_jobs(MODELS[network], shares, batch=batch, samples=batch, cost="fedpmt_paper")["flops"]
    assert found.tolist() == [float(row["operations"]) for row in rows]


def test_the_table_is_complete():
    assert sum(row["keep_rate"] != "1" for row in ROWS) == 10


def test_a_cost_table_prices_level_i_as_width_i():
    """Half and all of it: 0.5 and 1 times the full model's FLOPs, whatever the thinner network takes."""
    jobs = null_jobs("cnn_mnist", [0.1, 1.0], batch=12, samples=300, cost={"name": "table", "ratios": [0.5, 1.0]})
    assert jobs["flops"].tolist() == [300 * 946_944, 2 * 300 * 946_944]


# --- how much each level keeps ----------------------------------------------------------------------------------


def shares(model, levels, **method):
    """Return what FedDrop lets each of so many levels keep."""
    fleet = [{"level": i + 1, "cpu": {"flops_per_s": 1e9}} for i in range(levels)]
    scenario = timing_scenario(model=model, fleet=fleet, method={"name": "feddrop", **method})
    return prepare(scenario).learner.state["keep"]


@pytest.mark.parametrize(
    ("model", "levels", "expected"),
    [
        ("fcnn", 4, [0.54, 0.61, 0.73, 1.0]),
        ("fcnn", 2, [0.73, 1.0]),
        ("cnn_mnist", 4, [0.1, 0.26, 0.73, 1.0]),
        ("cnn_mnist", 2, [0.73, 1.0]),
        ("cnn_cifar10", 5, [0.4, 0.54, 0.88, 0.93, 1.0]),
        ("cnn_cifar10", 2, [0.93, 1.0]),
    ],
)
def test_shares_of_the_paper(model, levels, expected):
    """Those of Table 5.2, by network and number of levels. As shares that are dropped they leave the rest."""
    assert shares(model, levels, keep="paper") == expected
    rest = [1 if share == 1 else 1 - share for share in expected]
    assert shares(model, levels, keep="paper_dropped") == pytest.approx(rest, abs=1e-12)


@pytest.mark.parametrize(
    ("model", "widths", "expected"),
    [
        ("fcnn", [2, 3, 4, 5], [0.557, 0.617, 0.742, 1.0]),
        ("cnn_mnist", None, [0.1, 0.1, 0.1, 1.0]),
        ("cnn_cifar10", None, [0.1, 0.1, 0.1, 0.1, 1.0]),
    ],
)
def test_shares_that_cost_as_much_as_widths(model, widths, expected):
    """With measured FLOPs the convolutions, which stay, cost more than FedPMT's widths: the least share is left."""
    widths = {} if widths is None else {"widths": widths}
    assert shares(model, len(expected), **widths) == expected


def test_a_matching_share_is_the_least():
    """0.557 of the FCNN costs at least as much as its last two layers, 436189 millionths; 0.556 does not."""
    thin = [np.floor(share * np.array([400, 300, 200, 100]) + 0.5) for share in (0.556, 0.557)]
    ends = [np.concatenate([[784], channels, [10]]) for channels in thin]
    macs = [3 * (n[:-1] * n[1:]).sum() - n[0] * n[1] for n in ends]
    assert macs[0] < 536_600 <= macs[1]


# --- what is drawn ----------------------------------------------------------------------------------------------


def submodels_of_round(round_=0, devices=40, **method):
    """Return the parts that FedDrop gives devices of one level of the FCNN."""
    fleet = [{"count": devices, "cpu": {"flops_per_s": 1e9}}]
    simulation = prepare(timing_scenario(model="fcnn", fleet=fleet, method={"name": "feddrop", **method}))
    simulation.session.round = round_
    return [order.task.submodel for order in simulation.learner.plan(simulation.session.view()).orders]


def test_every_device_and_round_has_masks_of_its_own():
    """Fresh every time, from the seed alone; units are in order."""
    rounds = [submodels_of_round(round_, keep=0.5) for round_ in (0, 1)]
    assert len(set(rounds[0] + rounds[1])) == 80
    assert submodels_of_round(0, keep=0.5) == rounds[0]
    assert all(list(channels) == sorted(set(channels)) for submodel in rounds[0] for _, channels in submodel.channels)


@pytest.mark.parametrize("draw", ["exact", "bernoulli"])
def test_every_unit_is_as_likely_as_any_other(draw):
    """300 devices keep 30 %: 90 +- 7.9 times each of the 100 last units; none of them beyond 5 deviations."""
    counts = np.zeros(100)
    for submodel in submodels_of_round(devices=300, keep=0.3, draw=draw):
        np.add.at(counts, list(dict(submodel.channels)["fc4"]), 1)
    assert abs(counts - 90).max() < 5 * math.sqrt(300 * 0.3 * 0.7)
    assert counts.std() > 0


def test_a_count_is_exact_or_drawn():
    """Exact: 120 of 400 and so on, always. Bernoulli: as many on average, and never the same for all."""
    exact, drawn = (
        np.array(
            [
                [len(channels) for _, channels in submodel.channels]
                for submodel in submodels_of_round(keep=0.3, draw=draw)
            ]
        )
        for draw in ("exact", "bernoulli")
    )
    assert {tuple(row) for row in exact.tolist()} == {(120, 90, 60, 30)}
    assert len({tuple(row) for row in drawn.tolist()}) > 30
    deviation = np.sqrt(np.array([400, 300, 200, 100]) * 0.3 * 0.7 / 40)
    assert (abs(drawn.mean(axis=0) - [120, 90, 60, 30]) < 5 * deviation).all()


@pytest.mark.parametrize("draw", ["exact", "bernoulli"])
def test_one_unit_stays_at_least(draw):
    """A thousandth of 400 units is none when rounded, and mostly none when drawn."""
    counts = [
        [len(channels) for _, channels in submodel.channels] for submodel in submodels_of_round(keep=0.001, draw=draw)
    ]
    assert np.min(counts) == 1
    assert np.array(counts)[:, 3].max() <= 2


def test_halves_are_rounded_up():
    """0.29 of 50 units is 14.5, though not in floating point: 15. 0.125 of 100 is 12.5: 13."""
    for share, size, kept in ((0.29, 50, 15), (0.125, 100, 13), (0.01, 50, 1)):
        setting = setting_of([1], {}, cost_profile=replace(CARD, groups=(ChannelGroup("fc1", size),)))
        (order,) = FedDrop(keep=share).plan({"keep": [share]}, view_of(setting), KEY).orders
        assert len(order.task.submodel.channels[0][1]) == kept


def test_what_makes_up_for_units_left_out():
    """n / h where h is exact, so that a sum over units keeps its mean; one over the share where h is drawn."""
    (exact, *_), (drawn, *_) = submodels_of_round(keep=0.123), submodels_of_round(keep=0.123, draw="bernoulli")
    assert exact.scale == tuple((g, (n / h,) * h) for g, n, h in zip(
        ("fc1", "fc2", "fc3", "fc4"), (400, 300, 200, 100), (49, 37, 25, 12), strict=True
    ))  # fmt: skip
    assert {factor for _, factors in drawn.scale for factor in factors} == {1 / 0.123}
    assert [len(factors) for _, factors in drawn.scale] == [len(channels) for _, channels in drawn.channels]
    assert submodels_of_round(keep=0.123, scaling="none")[0].scale == ()


def test_channels_may_be_left_out_too():
    """Of LeNet's conv1, conv2, fc1, fc2 (6, 16, 120, 84) a half each; by default the linear ones only."""
    for channels, counts in (("linear", [60, 42]), ("all", [3, 8, 60, 42])):
        scenario = timing_scenario(model="lenet5", method={"name": "feddrop", "keep": 0.5, "channels": channels})
        simulation = prepare(scenario)
        submodel = simulation.learner.plan(simulation.session.view()).orders[0].task.submodel
        assert [len(kept) for _, kept in submodel.channels] == counts


# --- training ---------------------------------------------------------------------------------------------------


def fcnn_scenario(**method):
    """Six devices of one level that train the FCNN on 40 digits each, three times all of them at once."""
    fleet = [{"count": 6, "cpu": {"flops_per_s": "50 MFLOP/s"}}]
    training = {"batch": 40, "lr": 0.5, "local_epochs": 3}
    return mixed_scenario(
        model="fcnn", fleet=fleet, method={"name": "feddrop", **method}, training=training, stop={"rounds": 1}
    )


def masked_training(global_model, submodel, x, y, lr, epochs):
    """Return the whole FCNN after full gradient steps with the mask multiplied into its hidden activations."""
    w = {name: tensor.clone().requires_grad_() for name, tensor in global_model["params"].items()}
    masks = []
    for place, size in enumerate((400, 300, 200, 100)):
        mask = torch.zeros(size)
        kept = list(submodel.channels[place][1])
        mask[kept] = torch.tensor(submodel.scale[place][1]) if submodel.scale else 1.0
        masks.append(mask)
    for _ in range(epochs):
        a = x.flatten(1)
        for layer in range(1, 5):
            a = torch.relu(a @ w[f"fc{layer}.weight"].T + w[f"fc{layer}.bias"]) * masks[layer - 1]
        loss = cross_entropy(a @ w["fc5.weight"].T + w["fc5.bias"], y)
        gradients = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for tensor, gradient in zip(w.values(), gradients, strict=True):
                tensor -= lr * gradient
    return {name: tensor.detach() for name, tensor in w.items()}


@pytest.mark.parametrize("scaling", ["inverted", "none"])
def test_a_thin_network_trains_as_the_whole_one_under_its_mask(scaling, monkeypatch):
    """Every weight, kept or not, of every device: by hand, dropped activations are zeros in the whole network."""
    seen = []
    really_run = Trainer.run

    def recorded(self, assignment):
        result = really_run(self, assignment)
        seen.append((self, assignment, result.body))
        return result

    monkeypatch.setattr(Trainer, "run", recorded)
    run(fcnn_scenario(keep=0.3, scaling=scaling))
    assert len(seen) == 6
    for trainer, assignment, body in seen:
        x, y = trainer.data.batch("train", trainer.shards[assignment.device])
        submodel = assignment.task.submodel
        expected = masked_training(assignment.global_model, submodel, x, y, lr=0.5, epochs=3)
        found = scatter(body, submodel, trainer.cost_profile, assignment.global_model)["params"]
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-6), name
            assert not torch.equal(found[name], assignment.global_model["params"][name])


@pytest.mark.parametrize(("model", "keep"), [("fcnn", [1.0, 1.0, 1.0]), ("cnn_digits", 1.0)])
def test_all_units_kept_is_fedavg(model, keep):
    """Bit for bit, and with the same bytes, FLOPs and times; also for a model without hidden linear layers."""
    runs = [
        run(mixed_scenario(model=model, method=method, stop={"rounds": 2}))
        for method in ("fedavg", {"name": "feddrop", "keep": keep})
    ]
    assert fingerprint(runs[0].learner.weights()) == fingerprint(runs[1].learner.weights())
    tables = [frames(simulation) for simulation in runs]
    for table in ("jobs", "rounds", "evals", "devices"):
        one, other = (found[table].drop(columns="submodel", errors="ignore") for found in tables)
        assert one.equals(other)


@full
@pytest.mark.workers
def test_worker_processes_draw_the_same_networks():
    scenario = {"model": "fcnn", "method": {"name": "feddrop", "keep": [0.2, 0.5, 1.0]}}
    outcomes = []
    for backend in ("serial", {"name": "workers", "workers": 2}):
        simulation = prepare(mixed_scenario(**scenario, backend=backend))
        simulation.run()
        simulation.learner.backend.close()
        outcomes.append(results_of(simulation))
    assert outcomes[0] == outcomes[1]


@full
def test_thin_networks_learn_together():
    """Ten devices that keep half of the hidden units teach one network nine digits in ten."""
    scenario = digits_scenario(
        model="fcnn", method={"name": "feddrop", "keep": 0.5}, network="ideal", selection="all",
        training={"batch": 16, "lr": 0.1, "local_epochs": 2}, stop={"rounds": 15}, evaluation={"every": 15},
    )  # fmt: skip
    assert frames(run(scenario))["evals"]["accuracy"].iloc[-1] > 0.9


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({"keep": 0.0}, {}, r"method\.keep: shares must be in \(0, 1\], found \[0\.0, 0\.0, 0\.0\]"),
        ({"keep": [0.5, 0.7, 1.01]}, {}, r"method\.keep: shares must be in \(0, 1\], found \[0\.5, 0\.7, 1\.01\]"),
        ({"keep": [0.5, -0.1, 1.0]}, {}, r"method\.keep: shares must be in \(0, 1\], found \[0\.5, -0\.1, 1\.0\]"),
        ({"keep": [0.5, 1.0]}, {}, r"fleet\.level: method\.keep has a share for 2 levels, found level 3"),
        ({"keep": []}, {}, r"fleet\.level: method\.keep has a share for 0 levels, found level 3"),
        ({"keep": "deadline"}, {}, r"method\.keep: must be 'paper', 'paper_dropped' or 'match_measured', got 'd"),
        ({"keep": "paper"}, {}, r"method\.keep: 'paper' knows networks of 515610 .*; fcnn has 227610, .* 3 levels"),
        ({"widths": [2, 5]}, {}, r"fleet\.level: method\.keep has a share for 2 levels, found level 3"),
        ({"widths": [2, 3, 6]}, {}, r"method\.widths: must be at most the model's 5 layers, found \[2, 3, 6\]"),
        ({"widths": []}, {}, r"method\.widths"),
        ({"widths": [0, 5]}, {}, r"method\.widths"),
        ({}, {"model": "cnn_digits"}, r"method\.channels: 'linear' finds no .* groups: conv1, conv2\); method\.keep"),
        ({"keep": 0.5, "channels": "all"}, {"model": "mlr"}, r"method\.channels: 'all' finds no .* groups: none"),
        ({"keep": 0.5}, {"cost": {"name": "table", "ratios": [0.5, 1.0]}}, r"cost\.ratios: .*3 widths, found 2 ratios"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(method, changes, message):
    """The error names the key, what was found and what would do."""
    with pytest.raises(ConfigError, match=message):
        prepare(
            mixed_scenario(**{"model": "fcnn", "backend": "null", "method": {"name": "feddrop", **method}, **changes})
        )


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "feddrop": {
        "absent": "test_who_had_it_not_may_count_with_the_old_one",
        "keep": "test_shares_of_the_paper",
        "widths": "test_shares_that_cost_as_much_as_widths",
        "channels": "test_channels_may_be_left_out_too",
        "draw": "test_a_count_is_exact_or_drawn",
        "scaling": "test_a_thin_network_trains_as_the_whole_one_under_its_mask",
        "zero_padded": "test_who_had_it_not_may_count_with_zero",
    },
}
