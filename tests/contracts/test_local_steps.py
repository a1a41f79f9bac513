"""Local work by steps: as many as an epoch has are an epoch, for every method, and time is that of the steps."""

from __future__ import annotations

import pytest

from edgesim.core.errors import ConfigError
from tests.contracts.support import METHODS, mixed_scenario, results_of, run, tried

BY_EPOCHS = {"fedrep", "feddst"}  # which say so, see below
BATCH = 8  # of the 40 samples of each device: an epoch has five steps
OF_FEWER = {"fedfomo": 4}  # steps of an epoch where some samples are kept out of training: here a fifth


@pytest.mark.parametrize("name", tried([method for method in METHODS if method not in BY_EPOCHS]))
def test_the_steps_of_an_epoch_are_an_epoch(name):
    """Two epochs and all their steps give the same jobs, times and weights, bit for bit; local epochs do not count."""
    steps = 2 * OF_FEWER.get(name, 5)
    by_epochs = run(mixed_scenario(method=name, training={"batch": BATCH, "lr": 0.1, "local_epochs": 2}))
    by_steps = run(
        mixed_scenario(method=name, training={"batch": BATCH, "lr": 0.1, "local_epochs": 7, "local_steps": steps})
    )
    assert results_of(by_epochs) == results_of(by_steps)


def test_time_is_that_of_the_steps():
    """Three steps cost three fifths of an epoch's FLOPs, on 40 samples and on 80, with training and without."""
    for backend in ("serial", "null"):
        flops = []
        for samples, work in ((40, {"local_epochs": 1}), (40, {"local_steps": 3}), (80, {"local_steps": 3})):
            partition = {"name": "iid", "samples_per_device": samples}
            training = {"batch": BATCH, "lr": 0.1, **work}
            done = run(mixed_scenario(training=training, partition=partition, backend=backend, stop={"rounds": 1}))
            jobs = done.tables["jobs"].frame()
            flops.append(jobs["flops"].to_numpy())
        assert flops[1] == pytest.approx(flops[0] * 3 / 5)
        assert flops[1].tolist() == flops[2].tolist()


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedrep", "it trains head and body for epochs each"),
        ("feddst", "with method.readjust 'last_epoch' masks move in the last epoch"),
        ({"name": "ditto", "global_epochs": 2}, "one of its two models trains for method.global_epochs"),
    ],
)
def test_who_divides_work_by_epochs_says_so(method, reason):
    """One line names the key, what was found, and why and with what to go on."""
    found = r"training\.local_steps: must be left out for this method, found 3; "
    with pytest.raises(ConfigError, match=rf"{found}{reason}.*, so use training\.local_epochs"):
        run(mixed_scenario(method=method, training={"local_steps": 3}))


@pytest.mark.parametrize("method", [{"name": "feddst", "readjust": "before"}, "ditto"])
def test_who_can_do_without_epochs_runs(method):
    """Steps go with masks that move before training, and with two models that train for as many."""
    assert len(run(mixed_scenario(method=method, training={"batch": BATCH, "local_steps": 3})).tables["jobs"].frame())
