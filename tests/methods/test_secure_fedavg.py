"""Secure aggregation: masks that cancel, bytes of five devices by hand, the paper's expansions, rounds given up.

Source: Bonawitz et al. (CCS 2017).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.job import Completion
from edgesim.core.rng import Key
from edgesim.learning.privacy.field import field_bits, field_sum, quantised
from edgesim.methods.secure_fedavg import SecureFedAvg
from tests.conftest import frames, simulate_null
from tests.contracts.support import mixed_scenario, prepare, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import spread

NUMBERS = 100
SETTING = setting_of([10] * 5, {"a": NUMBERS})


def completion(device, task, outcome="ok"):
    """Return how a job ended."""
    job = type("Ended", (), {"device": device, "task": task})()
    return Completion(job, 1.0, outcome, 0, True)


def exchanges(method, setting=SETTING, lost=()):
    """Return the plans of a round; `lost`: for each exchange, who fails in it."""
    plans, last = [], []
    for number in range(4):
        view = dataclasses.replace(view_of(setting), exchange=number, last=tuple(last))
        plan = method.plan({}, view, KEY)
        plans.append(plan)
        if not plan.orders:
            break
        failed = lost[number] if number < len(lost) else ()
        last = [completion(o.device, o.task, "crashed" if o.device in failed else "ok") for o in plan.orders]
    return plans


def tasks_of(*arguments, **changes):
    """Return the task of each exchange."""
    return [plan.orders[0].task for plan in exchanges(*arguments, **changes)]


def bytes_of(tasks, profile):
    """Return bytes down and up of each task; a bare request has none."""
    return [(0 if t.down is None else profile.nbytes(t.down), profile.nbytes(t.up)) for t in tasks]


def own_flops(task):
    """Return the FLOPs of a task beside training."""
    return sum(each.times for each in task.passes if each.kind == "flops")


def messages(models, samples, plans):
    """Return what the server has of a round: models from those who sent them, and shares."""
    masked, unmask = plans[2].orders, plans[3].orders
    got = [message_of(k, samples[k], {"a": models[k]})._replace(task=masked[0].task) for k in models]
    return [*got, *(message_of(o.device, 1, {})._replace(task=o.task, body={}) for o in unmask)]


def test_masks_cancel_with_drop_outs():
    """Real masks from seeds of pairs and of devices: unmasked as the paper says, their sum is that of plain numbers.

    Two of six devices drop out after the shares are out: their pairs' masks are drawn anew by the server.
    """
    bits, size = field_bits(16, 6), 50
    pair = {(i, j): Key(1).at(i, j) for i in range(6) for j in range(i + 1, 6)}
    plain = {k: torch.from_numpy(Key(2).at(k).numpy().integers(-32767, 32768, size)) for k in range(6)}

    def drawn(key):
        return torch.from_numpy(key.numpy().integers(0, 2**bits, size))

    def pairs_mask(device, others):
        signed = [(1 if device < o else -1) * drawn(pair[min(device, o), max(device, o)]) for o in others]
        return sum(signed, torch.zeros(size, dtype=torch.int64))

    masked = {
        k: (plain[k] + drawn(Key(3).at(k)) + pairs_mask(k, [o for o in range(6) if o != k])) % 2**bits for k in plain
    }
    assert not torch.equal(masked[0], plain[0] % 2**bits)
    survivors, gone = [0, 2, 3, 5], [1, 4]
    own = [-drawn(Key(3).at(k)) for k in survivors]
    left_over = [-pairs_mask(k, gone) for k in survivors]
    unmasked = field_sum([masked[k] for k in survivors] + own + left_over, bits)
    assert torch.equal(unmasked, sum(plain[k] for k in survivors))
    assert torch.equal(unmasked, field_sum([plain[k] for k in survivors], bits))


@pytest.mark.parametrize(("devices", "more"), [(1, 0), (2, 1), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_the_sum_fits_and_no_bit_is_spare(devices, more):
    """ceil(log2 n) bits more; the largest and smallest sums are themselves, modulo the field's size."""
    bits = field_bits(4, devices)
    assert bits == 4 + math.ceil(math.log2(devices)) == 4 + more
    for end in (7, -7):
        assert field_sum([torch.tensor([end])] * devices, bits).tolist() == [end * devices]


def test_integers_by_hand():
    """Of 4 bits, L = 7: half of the weight, a clip of 2. 1 is 1.75, 3 is cut off to 3.5, 0 is always 0."""
    moves = torch.tensor([1.0, -3.0, 0.0])
    assert quantised(moves, 2.0, 0.5, 4, None).tolist() == [2, -4, 0]
    drawn = torch.stack([quantised(moves, 2.0, 0.5, 4, torch.Generator().manual_seed(s)) for s in range(4000)])
    assert [set(column.tolist()) for column in drawn.T] == [{1, 2}, {-4, -3}, {0}]
    error = np.sqrt(np.array([0.75 * 0.25, 0.25]) / 4000)
    assert (np.abs(drawn.double().mean(0)[:2].numpy() - [1.75, -3.5]) < 5 * error).all()


def test_bytes_of_five_devices():
    """Keys of 32, shares of 32, 28 more a message: by hand, each of the four exchanges; numbers of 16 + 3 bits."""
    got = bytes_of(tasks_of(SecureFedAvg()), SETTING.cost_profile)
    message = 32 + 32 + 28
    assert got == [
        (0, 64),  # two public keys
        (4 * 64, 4 * message),  # those of four others; a message to each
        (4 * NUMBERS + 4 * message, math.ceil(100 * 19 / 8) + 3),  # float32 model and four messages; integers
        (1, 5 * 32),  # five bits; a share of a secret of each
    ]


def test_sizes_are_options():
    """Other sizes, by hand again."""
    method = SecureFedAvg(bits=8, key_bytes=10, share_bytes=7, cipher_bytes=3)
    got = bytes_of(tasks_of(method), SETTING.cost_profile)
    assert got == [(0, 20), (80, 4 * 17), (400 + 4 * 17, math.ceil(100 * 11 / 8) + 2), (1, 35)]


@pytest.mark.parametrize(("log_users", "log_numbers", "expansion"), spread([(10, 20, 1.73), (14, 24, 1.98)], 1))
def test_expansion_is_the_abstract_s(log_users, log_numbers, expansion):
    """Bytes of a device by those of 16-bit numbers in the clear: 1.73 and 1.98, of which the model down is no part."""
    users, numbers = 2**log_users, 2**log_numbers
    setting = setting_of([1] * users, {"a": numbers})
    got = bytes_of(tasks_of(SecureFedAvg(cipher_bytes=0), setting), setting.cost_profile)
    spent = sum(down + up for down, up in got) - 4 * numbers
    assert spent / (2 * numbers) == pytest.approx(expansion, abs=0.006)


def test_flops_of_five_devices():
    """t = 4 of 5. Two key pairs; 4 agreements and 2 x 5 x 4 terms of shares; 4 agreements, 5 masks, rounding."""
    tasks = tasks_of(SecureFedAvg(prg_flops=3.0, key_flops=1000.0, share_flops=10.0))
    assert [own_flops(task) for task in tasks] == [2000.0, 4000.0 + 400.0, 4000.0 + 101 * (5 * 3.0 + 6.0), 0.0]
    assert tasks[2].passes[0].kind == "train"


@pytest.mark.parametrize("gone", [(), (4,)])
def test_the_server_s_work(gone):
    """Five secrets of four shares each; a mask a survivor, and of a drop-out one for each of the four who are left."""
    method = SecureFedAvg(prg_flops=3.0, key_flops=1000.0, share_flops=10.0)
    plans = exchanges(method, lost=((), (), gone))
    tasks = [order.task for plan in plans for order in plan.orders]
    survivors, pairs = 5 - len(gone), 4 * len(gone)
    secrets = (4 * 4 + 5 * 4) * 10.0 + pairs * 1000.0
    assert method.merge_flops_of(tasks, SETTING) == secrets + 101 * (3.0 * (survivors + pairs) + 2.0)
    assert method.merge_flops_of(tasks[:10], SETTING) == 0.0


@pytest.mark.parametrize(("share", "least"), [(2 / 3, 5), (0.5, 4), (0.0, 1), (0.99, 6)])
def test_threshold(share, least):
    """floor(share x 6) + 1 of six."""
    setting = setting_of([10] * 6, {"a": 2})
    (task, *_) = tasks_of(SecureFedAvg(threshold=share), setting)
    assert task.config["least"] == least


@pytest.mark.parametrize("number", range(3))
def test_too_few_end_the_round(number):
    """Five are asked and four needed: without one the next exchange asks four, without two nobody."""
    one, two = (exchanges(SecureFedAvg(), lost=[()] * number + [gone]) for gone in ((2,), (2, 3)))
    assert [len(plan.orders) for plan in one] == [5] * (number + 1) + [4] * (3 - number)
    assert [len(plan.orders) for plan in two] == [5] * (number + 1) + [0]
    assert [plan.more for plan in one] == [True, True, True, False]
    assert not two[-1].more


def test_too_few_shares_bring_no_model():
    """Three of five unmask nothing, though all have sent."""
    plans = exchanges(SecureFedAvg())
    got = messages({k: [1.0] * NUMBERS for k in range(5)}, [10] * 5, plans)
    for count, aborted in ((4, 0.0), (3, 1.0)):
        made = SecureFedAvg().aggregate(
            {}, model_of({"a": [0.5] * NUMBERS}), got[: 5 + count], server_of(view_of(SETTING)), KEY
        )
        assert made.metrics["aborted"] == aborted
        assert (made.model is None) == bool(aborted)


@pytest.mark.parametrize(("bits", "rounding"), [(16, "nearest"), (6, "nearest"), (16, "stochastic"), (6, "stochastic")])
def test_mean_by_data_size(bits, rounding):
    """NumPy's weighted mean of clipped moves, within the error of rounding: a step of half (or one) a device."""
    generator, samples = Key(4).numpy(), [10, 20, 40, 30, 40]
    setting = setting_of(samples, {"a": NUMBERS})
    start, moves = generator.normal(size=NUMBERS).astype(np.float32), generator.normal(0, 0.4, (5, NUMBERS))
    moves[0, 0] = 3.0
    method = SecureFedAvg(bits=bits, rounding=rounding, clip=1.5)
    plans = exchanges(method, setting)
    models = {k: (start + moves[k]).tolist() for k in range(5)}
    made = method.aggregate(
        {}, model_of({"a": start.tolist()}), messages(models, samples, plans), server_of(view_of(setting)), KEY
    )
    clipped, top = np.clip(moves, -1.5, 1.5), 2 ** (bits - 1) - 1
    counts = np.round(np.array(samples) / 40 * top)
    expected = (np.array(samples)[:, None] / 40 * clipped).sum(0) * top / counts.sum()
    step = {"nearest": 0.5, "stochastic": 1.0}[rounding]
    error = np.abs(made.model["params"]["a.weight"].numpy() - start - expected)
    assert 0 < error.max() <= 5 * step * 1.5 / counts.sum() + 1e-6
    assert made.metrics["field_bits"] == bits + 3
    assert made.metrics["survivors"] == 5
    assert made.metrics["clipped"] == pytest.approx((np.abs(moves) > 1.5).mean())


def test_weights_of_updates_count_up_to_one():
    """Of equal data with moves 1 and 0.5: weights 1 and 0.5 give 5/6; 3 counts like 1."""
    setting = setting_of([10, 10], {"a": 1})
    method = SecureFedAvg()
    plans = exchanges(method, setting)
    for weight in (1.0, 3.0):
        first, second, *shares = messages({0: [1.0], 1: [0.5]}, [10, 10], plans)
        got = [first._replace(weight=weight), second._replace(weight=0.5), *shares]
        made = method.aggregate({}, model_of({"a": [0.0]}), got, server_of(view_of(setting)), KEY)
        assert made.model["params"]["a.weight"].item() == pytest.approx(5 / 6, abs=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [{"bits": 1}, {"bits": 33}, {"clip": 0.0}, {"rounding": "up"}, {"threshold": 1.0}, {"threshold": -0.1}]
    + [{name: -1} for name in ("key_bytes", "share_bytes", "cipher_bytes", "prg_flops", "key_flops", "share_flops")],
)
def test_settings_out_of_range(wrong):
    """Each key is named."""
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        mixed_scenario(method={"name": "secure_fedavg", **wrong})


@pytest.mark.parametrize("encoding", [{"up": {"values": "int8"}}, {"down": "float16"}, {"up": {"update": True}}])
def test_encodings_are_refused(encoding):
    """Numbers are integers of the method's own."""
    with pytest.raises(ConfigError, match="encoding: secure_fedavg"):
        prepare(mixed_scenario(method="secure_fedavg", encoding=encoding))


# --- runs -------------------------------------------------------------------------------------------------------


def test_four_exchanges_take_their_latency():
    """The round is as long as its four exchanges after each other, and costs more than FedAvg in every column."""
    tables = frames(simulate_null(mixed_scenario(method="secure_fedavg")))
    plain = frames(simulate_null(mixed_scenario(method="fedavg")))["rounds"]
    jobs, rounds = tables["jobs"], tables["rounds"]
    second = jobs[jobs["round"] == 1]
    ends = second.groupby("task")["end_s"].max()
    begins = second.groupby("task")["sent_s"].unique()
    assert [begins[name].tolist() for name in ("shares", "masked", "unmask")] == [
        [ends[name]] for name in ("keys", "shares", "masked")
    ]
    assert rounds["now_s"][1] == ends["unmask"]
    assert (rounds["now_s"] > plain["now_s"] + 3 * 2 * 0.02).all()
    assert (rounds["down_bytes"] > plain["down_bytes"]).all()
    assert (second.groupby("task").size() == 6).all()


def test_fine_integers_train_as_fedavg():
    """With 32 bits and a wide clip the model is FedAvg's within rounding; with 4 bits it is another."""
    models = {}
    for name, method in {
        "fedavg": {"name": "fedavg"},
        "fine": {"name": "secure_fedavg", "bits": 32, "clip": 10.0},
        "coarse": {"name": "secure_fedavg", "bits": 4, "clip": 10.0},
    }.items():
        weights = run(mixed_scenario(method=method, stop={"rounds": 1})).learner.weights()["params"]
        models[name] = np.concatenate([tensor.numpy().ravel() for tensor in weights.values()])
    assert np.abs(models["fine"] - models["fedavg"]).max() < 1e-6
    assert np.abs(models["coarse"] - models["fedavg"]).max() > 1e-2


def test_a_run_with_too_many_failures_gives_rounds_up():
    """Devices fail on their way: in some rounds too few are left, which leave the model; survivors stay above t."""
    scenario = mixed_scenario(
        method="secure_fedavg", failures={"name": "crash", "probability": 0.05}, stop={"rounds": 12}
    )
    tables = frames(run(scenario))
    metrics = tables["metrics"].pivot_table(index="round", columns="name", values="value", aggfunc="first")
    assert 0 < metrics["aborted"].sum() < len(metrics)
    assert (metrics["survivors"].dropna() >= 5).all()


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "secure_fedavg": {
        "bits": "test_sizes_are_options",
        "clip": "test_mean_by_data_size",
        "rounding": "test_mean_by_data_size",
        "threshold": "test_threshold",
        "key_bytes": "test_sizes_are_options",
        "share_bytes": "test_sizes_are_options",
        "cipher_bytes": "test_sizes_are_options",
        "prg_flops": "test_the_server_s_work",
        "key_flops": "test_flops_of_five_devices",
        "share_flops": "test_flops_of_five_devices",
    },
}
