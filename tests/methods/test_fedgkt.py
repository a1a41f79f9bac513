"""FedGKT against plain PyTorch with its own Adam, shapes and prices by hand.

Source: He, Annavaram and Avestimehr (2020), algorithm 1.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key
from edgesim.learning.train.loop import batch_order
from edgesim.methods.augfl_teacher import teacher_network
from edgesim.methods.fedgkt import FedGKT, output_shape
from tests.conftest import digits_scenario
from tests.contracts.support import NORMED, Spy, mixed_scenario, prepare, run
from tests.methods.hand_made import setting_of
from tests.methods.plain_torch import DEVICES, descend, flat, network_of, rounds_of, three_devices, weights_of
from tests.methods.recorded import close_to, record
from tests.sizes import full

TRAIN, FORWARD, PARAMS = 168448 + 168448 + 150016, 168448, 6090  # of cnn_digits: FLOPs a sample, numbers
MAPS, CLASSES = 16 * 8 * 8, 10  # of its first convolution
SMALL = {"name": "fedgkt", "server_model": "cnn_digits", "server_epochs": 2, "server_batch": 256, "alpha": 0.7}


def distance(logits, wanted):
    """Return 9 KL(wanted || logits) of outputs softened at 3, a sample."""
    q = (wanted / 3).softmax(1)
    return 9 * (q * (q.log() - (logits / 3).log_softmax(1))).sum() / len(logits)


def device_after(job, start, told):
    """Return a device's network after its steps: the places of a batch say which of the server's logits are its."""
    network, (sgd,) = network_of(job, start), job.assignment.task.local_sgd
    n = len(job.trainer.shards[job.assignment.device])
    order = batch_order(job.assignment.key.at(0).at(0), n, sgd, job.trainer.cost_profile.drop_single)
    for (x, y), places in zip(job.batches(), order, strict=True):
        logits = network(x)
        loss = F.cross_entropy(logits, y)
        loss = loss if told is None else loss + 0.7 * distance(logits, told[places])
        names, params = zip(*network.named_parameters(), strict=True)
        descend(network, dict(zip(names, torch.autograd.grad(loss, params), strict=True)), sgd.lr)
    return network.eval()


def server_after(network, maps, told, labels, key):
    """Return the server's network after two epochs of torch's Adam in batches of 256."""
    adam = torch.optim.Adam(network.parameters(), lr=0.001, weight_decay=1e-4)
    network.train()
    x, z, y = torch.cat(maps), torch.cat(told), torch.cat(labels)
    for places in batch_order(key.at(0), len(x), LocalSGD(batch=256, lr=0.001, epochs=2), False):
        logits = network(x[places])
        loss = distance(logits, z[places]) + 0.7 * F.cross_entropy(logits, y[places])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return network.eval()


@full
def test_three_rounds_in_plain_torch(monkeypatch):
    """Networks of devices and of the server, logits that go back, and how both together do on 50 test samples.

    Adam makes more of differences in rounding from round to round.
    """
    jobs = record(monkeypatch)
    scenario = three_devices({**SMALL, "score_samples": 50}, training={"batch": 64, "lr": 0.02, "local_epochs": 2})
    simulation = prepare(scenario)
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    learner, data = simulation.learner, simulation.parts.data
    first = flat(jobs[0].assignment.global_model)
    own, told, accuracy = [first] * DEVICES, [None] * DEVICES, []
    server = teacher_network("cnn_digits", (16, 8, 8), CLASSES, Key(learner.state["seed"]))
    test_x, test_y = data.batch("test", torch.arange(50))
    for number, round_ in enumerate(rounds_of(jobs)):
        networks = [device_after(job, own[k], told[k]) for k, job in enumerate(round_)]
        own = [weights_of(network) for network in networks]
        with torch.no_grad():
            rows = [job.trainer.data.batch("train", job.trainer.shards[k]) for k, job in enumerate(round_)]
            maps = [network.conv1(x) for network, (x, _) in zip(networks, rows, strict=True)]
            logits = [network(x) for network, (x, _) in zip(networks, rows, strict=True)]
        for job, m, z, (_, y) in zip(round_, maps, logits, rows, strict=True):
            sent = job.result.body["tensors"]
            close_to(
                dict(sent),
                {"features of conv1": m, "logits": z, "labels": y.to(torch.int16)},
                atol=2e-5 if not number else 5e-4,
            )
        # the server sums over devices in the order of their jobs
        places = [update.device for update in spy.rounds[number][2]]
        key = spy.rounds[number][-1]
        labels = [rows[k][1] for k in places]
        server = server_after(server, [maps[k] for k in places], [logits[k] for k in places], labels, key)
        with torch.no_grad():
            told = [server(m) for m in maps]
            hits = [(server(network.conv1(test_x)).argmax(1) == test_y).float().mean().item() for network in networks]
        accuracy.append(hits)
    close_to(flat(learner.weights()), first)
    for k in range(DEVICES):
        close_to(flat(learner.method.personal_model(learner.weights(), learner.memory[k])), own[k], atol=5e-4)
        torch.testing.assert_close(learner.weights()["tensors"][f"logits_{k}"], told[k], atol=2e-3, rtol=1e-3)
    expected = {n: t.detach() for n, t in server.named_parameters()}
    close_to(dict(learner.state["server"]["params"]), expected, atol=2e-3)
    metrics = simulation.tables["metrics"].frame().query("name == 'server_accuracy'").sort_values(["round", "device"])
    assert metrics["value"].to_numpy().reshape(3, DEVICES) == pytest.approx(np.array(accuracy), abs=0.021)
    assert [metrics["value"].mean() > 0.1, learner.state["known"]] == [True, [0, 1, 2]]


def test_bytes():
    """The network comes down once, then 40 x 10 logits; maps, logits and labels of 40 samples go up."""
    jobs = run(mixed_scenario(method=SMALL)).tables["jobs"].frame()
    assert set(jobs["up_bytes"]) == {40 * (4 * (MAPS + CLASSES) + 2)}
    assert set(jobs[jobs["round"] == 0]["down_bytes"]) == {4 * PARAMS}
    delivered = set(jobs[(jobs["round"] == 0) & (jobs["outcome"] == "ok")]["device"])
    again = jobs[(jobs["round"] == 1) & jobs["device"].isin(delivered)]
    assert len(again)
    assert set(again["down_bytes"]) == {4 * 40 * CLASSES}


def test_devices_work():
    """A pass of training, and one forward for what is sent."""
    jobs = run(mixed_scenario(method=SMALL)).tables["jobs"].frame()
    assert set(jobs["flops"]) == {40 * (TRAIN + FORWARD)}


@pytest.mark.parametrize("score_samples", [0, 20])
def test_the_server_pays_for_its_training(score_samples):
    """Two epochs of six devices' 40 samples, then one forward, of cnn_digits on 16 maps; the metric is free.

    Its first convolution takes 2 x 9 x 16 x 16 x 64 FLOPs forward and as many for its weights, the second 2 x 9 x 16 x
    32 x 16 three times, the last layer 2 x 128 x 10 three times. Beside 2 FLOPs a number that arrived.
    """
    method = {**SMALL, "score_samples": score_samples}
    scenario = mixed_scenario(method=method, server={"flops_per_s": "1 GFLOP/s"}, protocol={"name": "sync"})
    simulation = run(scenario)
    convs, last = (2 * 9 * 16 * 16 * 64, 2 * 9 * 16 * 32 * 16), 2 * 128 * CLASSES
    train, forward = 2 * convs[0] + 3 * convs[1] + 3 * last, sum(convs) + last
    flops = 6 * 40 * (2 * train + forward) + 6 * 2 * 40 * (MAPS + CLASSES + 1)
    assert simulation.tables["rounds"].frame()["server_s"].tolist() == pytest.approx([flops / 1e9] * 2)
    assert ("server_accuracy" in set(simulation.tables["metrics"].frame()["name"])) == bool(score_samples)


@pytest.mark.parametrize(
    ("model", "layer", "shape"),
    [
        ("cnn_digits", 1, (16, 8, 8)),
        ("cnn_digits", -2, (32, 4, 4)),
        ("cnn_digits", "conv2", (32, 4, 4)),
        ("cnn_digits", "fc1", (10,)),
        (NORMED, 1, (4, 6, 6)),
    ],
)
def test_shapes_of_features(model, layer, shape):
    """Channels and pixels of a convolution, or numbers of a linear layer."""
    profile = prepare(mixed_scenario(model=model)).parts.setting.cost_profile
    assert FedGKT(features=layer)._layer(profile)[1] == shape


def test_features_of_a_linear_layer():
    """The server's network takes vectors."""
    method = {**SMALL, "features": "fc1", "server_model": "fcnn"}
    jobs = run(mixed_scenario(method=method)).tables["jobs"].frame()
    assert set(jobs["up_bytes"]) == {40 * (4 * (CLASSES + CLASSES) + 2)}


def test_late_devices_get_the_network_again():
    """Who did not deliver keeps nothing, and the server has no logits for it."""
    simulation = run(mixed_scenario(method=SMALL, protocol={"name": "deadline", "deadline": "1.5 s"}))
    jobs = simulation.tables["jobs"].frame()
    late = set(jobs[jobs["outcome"] == "late"]["device"])
    assert late
    assert late.isdisjoint(simulation.learner.memory)
    again = jobs[(jobs["round"] == 1) & jobs["device"].isin(late)]
    assert set(again["down_bytes"]) == {4 * PARAMS}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"features": "conv9"}, r"method\.features: .* \(conv1, conv2, fc1\) .* found 'conv9'"),
        ({"features": 0}, r"method\.features: .* 1 to 3 or -3 to -1, found 0"),
        ({"server_model": "nothing"}, r"method\.server_model"),
        ({"features": "fc1", "server_model": "cnn_digits"}, r"method\.server_model: .*"),
    ],
)
def test_what_does_not_fit(wrong, message):
    with pytest.raises(ConfigError, match=message):
        run(mixed_scenario(method={**SMALL, **wrong}))


def test_a_layer_of_another_kind():
    """A linear layer that sees several places of a sample has no such shape."""
    profile = setting_of((1,), {"a": 3}).cost_profile
    with pytest.raises(ConfigError, match=r"method\.features: .* found a of by hand, Linear"):
        output_shape(profile.layers[0].__class__("a", "Linear", 3, 0, 60.0, 2.0, 2.0, frozenset(), weights=3), profile)


@pytest.mark.parametrize(
    ("key", "value"),
    [("alpha", -1), ("temperature", 0), ("server_batch", 1), ("server_epochs", 0), ("score_samples", -1)],
)
def test_settings_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "fedgkt", key: value})


def test_a_server_optimiser_is_refused():
    with pytest.raises(ConfigError, match="server_optimizer"):
        run(mixed_scenario(method=SMALL, server_optimizer={"name": "adam", "lr": 0.1}))


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedgkt": {
        "alpha": "test_three_rounds_in_plain_torch",
        "temperature": "test_three_rounds_in_plain_torch",
        "features": "test_shapes_of_features",
        "server_model": "test_features_of_a_linear_layer",
        "server_epochs": "test_three_rounds_in_plain_torch",
        "server_batch": "test_three_rounds_in_plain_torch",
        "server_lr": "test_three_rounds_in_plain_torch",
        "server_weight_decay": "test_three_rounds_in_plain_torch",
        "score_samples": "test_the_server_pays_for_its_training",
    },
}
