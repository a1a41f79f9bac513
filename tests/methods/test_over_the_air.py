"""Over-the-air aggregation against closed forms: Rayleigh fading, truncated channel inversion, the server's noise.

Source: Zhu, Wang and Huang (2020); Sery, Shlezinger, Cohen and Eldar (2021) for COTAF.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.task import Pass
from edgesim.methods.over_the_air import AnalogFedAvg, AnalogFedSGD
from tests.contracts.support import mixed_scenario, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of

LOUD = {"snr_db": 100.0, "cutoff": 1e-6}  # nearly no noise, and nobody is silent


def silent_message(device, start):
    """Return what the server gets of a device in a deep fade: nothing."""
    return message_of(device, 1, start)._replace(body={})


def merged(method, start, updates, key=KEY):
    """Return the aggregate of a first round."""
    size = len(next(iter(start.values())))
    setting = setting_of([1] * len(updates), {"a": size})
    return method.aggregate(method.init(setting, KEY), model_of(start), updates, server_of(view_of(setting)), key)


def landed(made):
    """Return the parameters of an aggregate."""
    return made.model["params"]["a.weight"].double().numpy()


def test_without_noise_it_is_the_speakers_mean():
    """Of moves 1 and 3 and a device that is not heard: 2; data sizes do not matter."""
    start = {"a": [1.0, 0.0]}
    updates = [message_of(0, 9, {"a": [2.0, 0.0]}), silent_message(1, start), message_of(2, 1, {"a": [4.0, -2.0]})]
    made = merged(AnalogFedAvg(**LOUD), start, updates)
    assert landed(made) == pytest.approx([3.0, -1.0], abs=1e-3)
    assert made.metrics == {"silent": 1.0}


@pytest.mark.parametrize(("snr_db", "cutoff", "speakers"), [(20.0, 0.1, 2), (3.0, 0.5, 4), (-10.0, 2.0, 2)])
def test_noise_is_the_channel_s(snr_db, cutoff, speakers):
    """Half of the speakers move by 1, half by -1, so that all that is heard is noise of the closed form's deviation.

    E1 by numerical integration; the root mean square of the moves is 1.
    """
    size = 20_000
    updates = [message_of(k, 1, {"a": [(-1.0) ** k] * size}) for k in range(speakers)]
    noise = landed(merged(AnalogFedAvg(snr_db=snr_db, cutoff=cutoff), {"a": [0.0] * size}, updates))
    e1 = quad(lambda x: np.exp(-x) / x, cutoff, np.inf)[0]
    deviation = np.sqrt(e1 / 10 ** (snr_db / 10)) / speakers
    assert noise.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * size))  # five standard errors
    assert abs(noise.mean()) < 5 * deviation / np.sqrt(size)


@pytest.mark.parametrize("snr_db", [10.0, -3.0])
def test_cotaf_s_noise_is_that_of_the_longest_move(snr_db):
    """Sery et al.: noise sigma / (N sqrt(p)) with p = P / max |move|^2 over d numbers of average power P / d each.

    Moves of 2 and -2, and two of 0: a root mean square over all would be sqrt(2), the longest is 2.
    """
    size, lengths = 20_000, [2.0, -2.0, 0.0, 0.0]
    updates = [message_of(k, 1, {"a": [x] * size}) for k, x in enumerate(lengths)]
    cotaf = AnalogFedAvg(fading="none", precoding="longest", snr_db=snr_db, cutoff=5.0)
    sigma, power = 10 ** (-snr_db / 20), size  # an average power of 1 in each number
    p = power / (size * 2.0**2)
    deviation = sigma / (4 * np.sqrt(p))
    noise = landed(merged(cotaf, {"a": [0.0] * size}, updates))
    assert noise.std() == pytest.approx(deviation, rel=5 / np.sqrt(2 * size))  # five standard errors


def test_without_fading_no_device_is_silent():
    """All gains are 1, and a high cutoff has no effect."""
    setting = setting_of([1] * 40, {"a": 10})
    plan = AnalogFedAvg(fading="none", cutoff=10.0).plan({}, view_of(setting), KEY)
    assert len({id(order.task) for order in plan.orders}) == 1
    assert setting.cost_profile.nbytes(plan.orders[0].task.up) > 0


def test_cotaf_without_noise_is_the_mean():
    """And with equally long moves its noise is that of the mean's precoding, to the last bit."""
    quiet = AnalogFedAvg(fading="none", precoding="longest", snr_db=100.0)
    updates = [message_of(k, 1, {"a": [x, -x]}) for k, x in enumerate([1.0, 3.0])]
    assert landed(merged(quiet, {"a": [0.0, 0.0]}, updates)) == pytest.approx([2.0, -2.0], abs=1e-3)
    same = [message_of(k, 1, {"a": [1.0, -1.0]}) for k in range(2)]
    longest, mean = (
        landed(merged(AnalogFedAvg(fading="none", precoding=p), {"a": [0.0] * 2}, same)) for p in ("longest", "mean")
    )
    assert (longest == mean).all()


def test_noise_is_by_the_scale_of_moves():
    """Moves a hundred times as long are sent with the same power, and get a hundred times the noise."""
    updates = [[message_of(k, 1, {"a": [x * (-1.0) ** k] * 500}) for k in range(2)] for x in (1.0, 100.0)]
    one, hundred = (landed(merged(AnalogFedAvg(), {"a": [0.0] * 500}, some)) for some in updates)
    assert hundred == pytest.approx(100 * one, rel=1e-4)


def test_noise_is_another_one_in_another_round():
    """And the same where a round is repeated."""
    updates = [message_of(k, 1, {"a": [(-1.0) ** k] * 5000}) for k in range(2)]
    first, again, other = (
        landed(merged(AnalogFedAvg(), {"a": [0.0] * 5000}, updates, Key(seed))) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(5000)


@pytest.mark.parametrize("cutoff", [0.1, 0.7])
def test_fading_is_rayleigh_s(cutoff):
    """The share of the silent is 1 - exp(-cutoff), and power / E1(cutoff) keeps the mean transmit power."""
    method, n = AnalogFedAvg(cutoff=cutoff), 100_000
    gains = method.gains(range(n), Key(3))
    share = 1 - np.exp(-cutoff)
    assert gains.mean() == pytest.approx(1.0, abs=5 / np.sqrt(n))
    assert (gains < cutoff).mean() == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / n))
    e1 = quad(lambda x: np.exp(-x) / x, cutoff, np.inf)[0]
    watts = np.where(gains >= cutoff, 1 / np.maximum(gains, cutoff), 0.0) / e1
    assert watts.mean() == pytest.approx(1.0, abs=5 * watts.std() / np.sqrt(n))


def test_gains_of_a_device_do_not_depend_on_others():
    """Nor are they those of another round."""
    method = AnalogFedAvg()
    assert method.gains([4, 7], Key(3))[1] == method.gains([7], Key(3))[0] != method.gains([7], Key(4))[0]


def test_a_deep_fade_is_silent():
    """Who is below the cutoff trains as the others do, sends nothing, and is asked by a task of its own."""
    method, setting = AnalogFedAvg(cutoff=0.7, symbol_bits=2.0), setting_of([1] * 40, {"a": 10})
    plan, speaks = method.plan({}, view_of(setting), KEY), method.gains(range(40), KEY) >= 0.7
    nbytes = [setting.cost_profile.nbytes(order.task.up) for order in plan.orders]
    assert nbytes == [3 + 4 if one else 0 for one in speaks]  # 20 bits, and the move's mean square
    assert len({id(order.task) for order in plan.orders}) == 2
    speaking = plan.orders[int(speaks.argmax())].task
    assert speaking.passes == (Pass(), Pass("flops", times=4 * 10))
    assert setting.cost_profile.nbytes(speaking.down) == 40 + 4


def test_if_nobody_speaks_the_model_stays():
    made = merged(AnalogFedAvg(), {"a": [1.0]}, [silent_message(0, {"a": [1.0]})])
    assert made.model is None
    assert made.metrics == {"silent": 1.0}


def test_late_updates_are_not_heard():
    """Amplitudes add up only if they are sent at the same time."""
    start = {"a": [0.0]}
    updates = [message_of(0, 1, {"a": [2.0]}), message_of(1, 1, {"a": [8.0]})._replace(staleness=1)]
    made = merged(AnalogFedAvg(**LOUD), start, updates)
    assert landed(made) == pytest.approx([2.0], abs=1e-3)
    assert made.metrics == {"silent": 1.0}


def test_variances_stay_at_least_0():
    """Noise may make a running variance negative, of which no root can be taken."""
    start = {"params": {}, "buffers": {"n.running_var": torch.zeros(200), "n.running_mean": torch.zeros(200)}}
    moved = {kind: {n: t + 1e-3 * (-1) ** k for n, t in ts.items()} for k in (0,) for kind, ts in start.items()}
    updates = [message_of(0, 1, {})._replace(body=moved)]
    setting = setting_of([1], {"a": 1})
    made = AnalogFedAvg(snr_db=-20.0).aggregate({}, start, updates, server_of(view_of(setting)), KEY)
    variances, means = (made.model["buffers"][f"n.running_{name}"] for name in ("var", "mean"))
    assert float(variances.min()) == 0 > float(means.min())


def test_jobs_of_a_run():
    """A speaker's upload takes the air for its numbers at the link's rate; the silent one's nothing but latency."""
    link = {"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s", "latency": 0.02}
    fleet = [{"count": 30, "cpu": {"flops_per_s": "50 MFLOP/s"}}]
    done = run(
        mixed_scenario(method={"name": "analog_fedavg", "cutoff": 0.5}, network=link, fleet=fleet, protocol="sync")
    )
    jobs, metrics = done.tables["jobs"].frame(), done.tables["metrics"].frame()
    speaks = jobs["up_bytes"] > 0
    nbytes = -(-6090 // 8) + 4  # cnn_digits
    assert set(jobs["up_bytes"]) == {0, nbytes}
    assert jobs["up_s"][speaks].to_numpy() == pytest.approx(0.02 + 8 * nbytes / 1e6)
    assert jobs["up_s"][~speaks].to_numpy() == pytest.approx(0.02)
    silent = metrics[metrics["name"] == "silent"]["value"].tolist()
    assert silent == (~speaks).groupby(jobs["round"]).sum().tolist()
    assert 0 < sum(silent) < 60


def test_of_gradients_it_is_fedsgd():
    """With equal data, no fades and next to no noise the run's model is FedSGD's."""
    fleet = [{"count": 4, "cpu": {"flops_per_s": "50 MFLOP/s"}}]
    analog, digital = (
        run(mixed_scenario(method=method, fleet=fleet, protocol="sync")).learner.weights()["params"]
        for method in ({"name": "analog_fedsgd", **LOUD}, "fedsgd")
    )
    first = run(mixed_scenario(method="fedsgd", fleet=fleet, protocol="sync", training={"lr": 1e-12})).learner.weights()
    for name, tensor in digital.items():
        moved = float((tensor - first["params"][name]).abs().max())
        assert float((analog[name] - tensor).abs().max()) < 1e-2 * moved
    assert AnalogFedSGD().task(view_of(setting_of([3], {"a": 1}))).name == "train"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [("cutoff", 0.0, "greater than 0"), ("snr_db", 200.0, "or equal to 100"), ("symbol_bits", 0.0, "greater")],
)  # fmt: skip
def test_bad_channels_are_refused(key, value, says):
    with pytest.raises(ConfigError, match=rf"method\.{key}: .*{says}"):
        mixed_scenario(method={"name": "analog_fedavg", key: value})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "analog_fedavg": {
        "snr_db": "test_noise_is_the_channel_s",
        "cutoff": "test_fading_is_rayleigh_s",
        "symbol_bits": "test_a_deep_fade_is_silent",
        "fading": "test_without_fading_no_device_is_silent",
        "precoding": "test_cotaf_s_noise_is_that_of_the_longest_move",
    },
    "analog_fedsgd": {
        "snr_db": "test_noise_is_the_channel_s",
        "cutoff": "test_fading_is_rayleigh_s",
        "symbol_bits": "test_a_deep_fade_is_silent",
        "fading": "test_without_fading_no_device_is_silent",
        "precoding": "test_cotaf_s_noise_is_that_of_the_longest_move",
        "batch_size": "test_of_gradients_it_is_fedsgd",
    },
}
