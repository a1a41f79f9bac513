"""Ranks of devices: by level or drawn, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from tests.conftest import frames
from tests.contracts.support import mixed_scenario, prepare, run

BY_LEVEL = {"name": "flexlora", "ranks": [2, 4, 8], "tiers": "level"}


def test_level_i_pays_for_the_ith_rank():
    """A rank sends 2 adapters of 64 + 64 numbers a rank and 650 of the classifier."""
    jobs = frames(run(mixed_scenario(method=BY_LEVEL, backend="null", stop={"rounds": 1})))["jobs"]
    jobs = jobs.sort_values("device")
    assert jobs["submodel"].tolist() == ["rank2"] * 2 + ["rank4"] * 2 + ["rank8"] * 2
    sent = (jobs["up_bytes"] - jobs["up_bytes"].min()).tolist()
    assert sent == [0, 0] + [4 * 2 * 128 * 2] * 2 + [4 * 2 * 128 * 6] * 2
    # of 40 samples: 2 FLOPs a number forward and for its own gradient; for its input, A of the first layer pays nothing
    per_rank = 40 * (2 * 2 * 2 * 128 + 2 * 128 + 2 * 64)
    assert (jobs["flops"] - jobs["flops"].min()).tolist() == [0, 0, *[2.0 * per_rank] * 2, *[6.0 * per_rank] * 2]


@pytest.mark.parametrize(("proportions", "counts"), [(None, [10, 10]), ([1.0, 3.0], [5, 15])])
def test_proportions(proportions, counts):
    fleet = [{"count": 20, "cpu": {"flops_per_s": 1e9}}]
    method = {"name": "hetlora", "ranks": [1, 8], "proportions": proportions, "gamma": 1.0}
    ranks = prepare(mixed_scenario(method=method, fleet=fleet)).learner.state["rank"]
    assert [np.sum(np.array(ranks) == rank) for rank in (1, 8)] == counts
    assert ranks != sorted(ranks)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"ranks": [4, 2]}, r"method\.ranks: must rise, found \[4, 2\]"),
        ({"ranks": [4, 9]}, r"method\.ranks: must be at most 8, the rank of .*adapters, found 9"),
        ({"ranks": []}, r"method\.ranks"),
        ({"ranks": [0, 2]}, r"method\.ranks"),
        ({"ranks": [2, 4], "proportions": [1.0]}, r"method\.proportions: must be as many as the 2 of method\.ranks"),
        ({"ranks": [2, 4], "tiers": "level"}, r"fleet\.level: method\.ranks has a rank for 2 levels, found level 3"),
        ({"tiers": "level"}, r"method\.tiers: chooses among method\.ranks, which is not set"),
        ({"proportions": [1.0]}, r"method\.proportions: chooses among method\.ranks, which is not set"),
        ({"tiers": "random"}, r"method\.tiers"),
    ],
)
def test_ranks_that_do_not_fit(method, message):
    with pytest.raises(ConfigError, match=message):
        prepare(mixed_scenario(method={"name": "flexlora", **method}, backend="null"))


def test_a_rank_that_more_than_its_b_reads():
    """Where the rank cannot be cut, smaller ranks are refused and the whole one is not."""
    model = "tests.plugins.networks:Leaking"
    prepare(mixed_scenario(method="flexlora", model=model, backend="null"))
    with pytest.raises(ConfigError, match=r"method\.ranks: the rank 4 of fc1 cannot be cut to 2"):
        prepare(mixed_scenario(method={"name": "flexlora", "ranks": [2, 4]}, model=model, backend="null"))
