"""FedAvg against numbers on paper.

Source: McMahan et al. (2017) for the average; FedPNS and FedAdp papers for the settings of the learning rate.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from edgesim.core.local_sgd import LocalSGD, Training
from edgesim.core.rng import Key
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedavg import FedAvg
from tests.contracts.support import mixed_scenario, prepare
from tests.methods.hand_made import KEY, merged_layers, message_of, setting_of, view_of

BASE = {"w": [1.0, -2.0, 0.5]}
MODELS = ([1.4, -1.0, 0.5], [0.8, -2.6, 1.1], [1.0, -2.2, 0.2])
SAMPLES = (600, 200, 200)


def average(arrived, held=SAMPLES, **settings):
    """Return what FedAvg makes of the models of these devices; `held`: samples of all devices."""
    messages = [message_of(k, SAMPLES[k], {"w": MODELS[k]}) for k in arrived]
    layers = merged_layers(FedAvg(**settings), setting_of(held, {"w": 3}), BASE, messages)
    return None if layers is None else layers["w"]


def test_weights_are_shares_of_the_data():
    """(600, 200, 200) samples weigh 0.6, 0.2, 0.2; the plain mean would be (1.0667, -1.9333, 0.6)."""
    by_hand = np.array([0.6, 0.2, 0.2]) @ np.array(MODELS)
    assert by_hand == pytest.approx([1.2, -1.56, 0.56])
    assert average([0, 1, 2]) == pytest.approx(by_hand, rel=1e-6)


def test_absent_devices_may_count_with_the_old_model():
    """Half of 2000 samples is absent: with "all" the step is half as long as with "participants"."""
    held = (*SAMPLES, 700, 300)
    assert average([0, 1, 2], held, aggregate_over="all") == pytest.approx([1.1, -1.78, 0.53], rel=1e-6)
    assert average([0, 1, 2], held) == pytest.approx([1.2, -1.56, 0.56], rel=1e-6)
    assert average([0, 1, 2], aggregate_over="all") == pytest.approx([1.2, -1.56, 0.56], rel=1e-6)


def test_devices_may_count_alike():
    """The plain mean of three; with two of five devices absent, and "all", 0.6 of the step."""
    plain = np.mean(MODELS, 0)
    assert average([0, 1, 2], weights="equal") == pytest.approx(plain, rel=1e-6)
    held = (*SAMPLES, 700, 300)
    by_hand = 0.6 * plain + 0.4 * np.array(BASE["w"])
    assert average([0, 1, 2], held, weights="equal", aggregate_over="all") == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("over", ["participants", "all"])
def test_one_or_no_arrival(over):
    """One device's model is taken as it is, if only participants count; nobody's leaves the old one."""
    alone = {"participants": [0.8, -2.6, 1.1], "all": [0.96, -2.12, 0.62]}  # 0.8 old + 0.2 device 1
    assert average([1], aggregate_over=over) == pytest.approx(alone[over], rel=1e-6)
    assert average([], aggregate_over=over) is None


def test_learning_rate_of_a_round():
    """0.01 x 0.995^(t-1) in round t = 1, 2, 100, 200; a floor of 0.0001 binds first in round 920.

    Source: FedPNS paper and its authors' published code.
    """
    training = Training(lr=0.01, lr_decay=0.995, lr_floor=1e-4)
    assert [training.lr_at(t - 1) for t in (1, 2, 100, 200)] == pytest.approx(
        [0.01, 0.00995, 0.006088145, 0.003688018], abs=5e-10
    )
    assert training.lr_at(918) > 1e-4 == training.lr_at(919) == training.lr_at(5000)


def test_every_round_asks_for_its_learning_rate():
    """The plan of a later round carries the decayed rate; the whole model is asked for."""
    setting = setting_of(SAMPLES, {"w": 3}, training=Training(lr=0.01, lr_decay=0.995, batch=50, local_epochs=5))
    orders = FedAvg().plan({}, view_of(setting, round_=99), KEY).orders
    assert [order.device for order in orders] == [0, 1, 2]
    (sgd,) = orders[0].task.local_sgd
    assert (sgd.lr, sgd.epochs, sgd.batch) == (pytest.approx(0.006088145), 5, 50)
    assert orders[0].task.submodel.frozen == frozenset()


@pytest.mark.parametrize(
    ("samples", "batch", "steps"), [(600, 32, 19), (600, 50, 12), (200, 20, 10), (300, 12, 25), (500, 20, 25)]
)
def test_steps_of_an_epoch(samples, batch, steps):
    """ceil(samples / batch) steps, the last batch short; priced and really taken, each sample once an epoch."""
    sgd = LocalSGD(batch=batch, lr=0.01, epochs=2)
    done, taken = sgd.amount(np.array([samples]), drop_single=False)
    assert (done[0], taken[0]) == (2 * samples, 2 * steps)
    batches = [positions.tolist() for positions in batch_order(Key(1), samples, sgd, drop_single=False)]
    assert len(batches) == 2 * steps
    epochs = [list(chain(*batches[:steps])), list(chain(*batches[steps:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(samples))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("samples", "batch", "steps", "drop", "done"),
    [(40, 16, 2, False, 32), (40, 16, 5, False, 40 + 32), (33, 16, 5, True, 32 + 32 + 16), (1, 16, 5, True, 0)],
)
def test_a_number_of_steps(samples, batch, steps, drop, done):
    """Steps run through as many epochs as they need: 5 steps of 3 batches are one epoch and two batches."""
    sgd = LocalSGD(batch=batch, lr=0.01, steps=steps)
    counted, taken = sgd.amount(np.array([samples]), drop)
    sizes = [len(positions) for positions in batch_order(Key(1), samples, sgd, drop)]
    assert (int(counted[0]), int(taken[0])) == (done, len(sizes)) == (sum(sizes), len(sizes))


def test_whole_model_travels_both_ways():
    """Download and upload are 4 bytes a parameter; the CNN of the digits has 6090."""
    simulation = prepare(mixed_scenario(backend="null", stop={"rounds": 1}))
    simulation.run()
    jobs = simulation.tables["jobs"].frame()
    assert set(jobs["down_bytes"]) == set(jobs["up_bytes"]) == {4 * 6090}


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedavg": {
        "aggregate_over": "test_absent_devices_may_count_with_the_old_model",
        "weights": "test_devices_may_count_alike",
    },
}
