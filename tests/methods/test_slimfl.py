"""SlimFL's server on paper, and what its messages cost; its training is tried in `test_us_nets.py`.

Source: Yun et al. (2022), Baek et al. (2022).
"""

from __future__ import annotations

import math

import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.task import Task
from edgesim.core.update import Update
from edgesim.methods.slimfl import SlimFL
from tests.conftest import digits_scenario, frames
from tests.contracts.support import NORMED, Spy, fingerprint, mixed_scenario, prepare, run
from tests.contracts.test_prices import measured_jobs
from tests.methods.hand_made import KEY, server_of, setting_of, view_of
from tests.methods.test_fjord import TWO
from tests.sizes import full, thinned


def arrived(device, samples, value, bad):
    """Return what a device sends: a 4 x 2 matrix full of one value; over a bad channel its first half is decoded."""
    setting = setting_of([1], {}, cost_profile=TWO)
    task = Task(submodel=SlimFL().submodel(2, setting), config={"seed": 1.0, **({"half": 1.0} if bad else {})})
    return Update(device, device, task, {"params": {"w.weight": torch.full((4, 2), value)}}, samples, 1, 0, {})


@pytest.mark.parametrize(
    ("bad", "absent", "inner", "outer"),
    [
        ((False, False, False), "average_over_holders", 2.75, 2.75),
        ((True, False, True), "average_over_holders", 2.75, 2.0),
        ((True, True, True), "average_over_holders", 2.75, 9.0),
        ((True, False, True), "include_absent", 2.75, 7.25),
    ],
)
def test_halves_are_averaged_over_who_was_decoded(bad, absent, inner, outer):
    """Values 1, 2, 4 of 1, 1, 2 samples, the old one is 9: all count for the inner half, (1 + 2 + 8) / 4; the outer is
    the second's 2, or nobody's, or (2 + 27) / 4.
    """
    got = [arrived(0, 1, 1.0, bad[0]), arrived(1, 1, 2.0, bad[1]), arrived(2, 2, 4.0, bad[2])]
    base = {"params": {"w.weight": torch.full((4, 2), 9.0)}}
    setting = setting_of([1, 1, 2], {}, cost_profile=TWO)
    method = SlimFL(absent=absent)
    merged = method.aggregate(method.init(setting, KEY), base, got, server_of(view_of(setting)), KEY)
    expected = torch.full((4, 2), outer)
    expected[:2, :1] = inner
    assert torch.equal(merged.model["params"]["w.weight"], expected)
    assert merged.metrics == {"halves": sum(bad)}


@full
@pytest.mark.parametrize("share", thinned([0.0, 0.3, 1.0], [0.3]))
def test_how_often_a_channel_is_bad(share):
    """Of 6 devices in 20 rounds so many, within four standard errors; bytes and FLOPs are those of a good one."""
    tables = [
        frames(run(mixed_scenario(method={"name": "slimfl", "half_only": only}, stop={"rounds": 20})))
        for only in (0, share)
    ]
    halves = tables[1]["metrics"].query("name == 'halves'")["value"].sum()
    assert abs(halves - 120 * share) <= 4 * math.sqrt(120 * share * (1 - share))
    for column in ("up_bytes", "down_bytes", "flops"):
        assert tables[0]["jobs"][column].tolist() == tables[1]["jobs"][column].tolist()


def test_what_is_lost_does_not_move():
    """With bad channels alone, the outer half and the running statistics stay; the inner half is trained."""
    simulation = prepare(mixed_scenario(method={"name": "slimfl", "half_only": 1}, model=NORMED))
    spy = simulation.learner.method = Spy(simulation.learner.method)
    simulation.run()
    first, last = spy.rounds[0][1], simulation.learner.weights()
    assert fingerprint(dict(first["buffers"])) == fingerprint(dict(last["buffers"]))
    for old, new in ((first["params"][n], last["params"][n]) for n in ("conv.weight", "norm.weight")):
        assert torch.equal(old[2:], new[2:])
        assert not torch.equal(old[:2], new[:2])


@full
def test_charged_is_what_was_done(monkeypatch):
    """Whatever is decoded, all of the model is sent."""
    jobs = measured_jobs(mixed_scenario(method={"name": "slimfl", "half_only": 0.5}), monkeypatch)
    assert (jobs["flops"] == jobs["real_flops"]).all()
    assert (jobs["up_bytes"] == jobs["real_bytes"]).all()


@pytest.mark.parametrize("wrong", [{"half_only": 1.5}, {"weights": [0, 1]}, {"weights": [1]}, {"widths": [0, 1]}])
def test_settings_out_of_range(wrong):
    (key,) = wrong
    with pytest.raises(ConfigError, match=rf"method\.{key}"):
        digits_scenario(method={"name": "slimfl", **wrong})


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "slimfl": {
        "absent": "test_halves_are_averaged_over_who_was_decoded",
        "widths": "test_us_nets.py::test_the_only_width_is_fedavg",
        "tiers": "test_us_nets.py::test_everybody_may_have_the_whole_model",
        "channels": "test_fjord.py::test_units_of_several_layers",
        "distill": "test_us_nets.py::test_a_device_s_steps",
        "weights": "test_us_nets.py::test_a_device_s_steps",
        "half_only": "test_how_often_a_channel_is_bad",
    },
}
