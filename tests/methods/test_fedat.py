"""FedAT against weights on paper, and against FedProx.

Source: Chai et al. (2021), the weights of tiers.
"""

from __future__ import annotations

import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.methods.fedat import FedAT
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames
from tests.contracts.support import results_of, run
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full

TWO = setting_of([100, 300, 100], {"w": 1}, tier=np.array([0, 0, 1]))


def after(*rounds, setting=TWO, first=8.0):
    """Return the numbers of the global model and the last state after rounds of {device: number}."""
    method, model = FedAT(), model_of({"w": [first]})
    state, found = method.init(setting, KEY), []
    for arrived in rounds:
        updates = [message_of(k, int(setting.samples[k]), {"w": [new]}) for k, new in arrived.items()]
        made = method.aggregate(state, model, updates, server_of(view_of(setting)), KEY)
        state, model = made.state, made.model
        found.append(model["params"]["w.weight"].item())
    return found, state


def test_five_rounds_of_the_fast_tier_beside_two_of_the_slow_one():
    """The fast tier has the share of the slow one's updates: 1/3, 1/4, 1/5, 1/6, 2/7; before the first of them, all."""
    fast, slow = [{0: 1.0}, {0: 2.0}, {0: 3.0}, {0: 4.0}, {0: 5.0}], [{2: 10.0}, {2: 20.0}]
    found, state = after(fast[0], fast[1], slow[0], fast[2], fast[3], fast[4], slow[1])
    by_hand = [1, 2, 2 / 3 + 20 / 3, 3 / 4 + 30 / 4, 4 / 5 + 40 / 5, 5 / 6 + 50 / 6, 10 / 7 + 100 / 7]
    assert found == pytest.approx(by_hand, rel=1e-6)
    assert state["updates"] == {"0": 5, "1": 2}


def test_a_tier_averages_by_data_size():
    """100 samples with 1 and 300 with 5 give 4. The slow tier with 10 then counts half."""
    assert after({0: 1.0, 1: 5.0}, {2: 10.0})[0] == [4.0, 7.0]


def test_three_tiers():
    """Updates 2, 1 and 1: the first tier has 1/4, the middle one keeps 1/4, and the last one has 2/4."""
    setting = setting_of([100, 100, 100], {"w": 1}, tier=np.array([0, 1, 2]))
    found, _ = after({0: 1.0}, {0: 2.0}, {1: 4.0}, {2: 10.0}, setting=setting)
    assert found[-1] == pytest.approx((2 + 4 + 2 * 10) / 4)
    assert found[2] == pytest.approx((1 * 2 + 2 * 4) / 3)  # the last tier has no model yet
    assert after({2: 10.0}, {0: 1.0}, {0: 2.0}, setting=setting)[0][-1] == pytest.approx((1 * 2 + 2 * 10) / 3)


def test_what_does_not_count():
    """A round without a finite number leaves models and counts as they are."""
    method, server = FedAT(), server_of(view_of(TWO))
    state = method.init(TWO, KEY)
    made = method.aggregate(state, model_of({"w": [8.0]}), [message_of(0, 100, {"w": [np.inf]})], server, KEY)
    assert made.model is None and made.state == state


def test_one_tier_is_fedprox():
    """Tables and weights are equal bit for bit, apart from the names of what ends a round and of the tier."""
    given = {"stop": {"rounds": 3}, "selection": {"name": "uniform", "count": 3}}
    one = digits_scenario(**given, method={"name": "fedat", "mu": 0.1}, protocol={"name": "tiers", "tiers": 1})
    both = [run(one), run(digits_scenario(**given, method={"name": "fedprox", "mu": 0.1}))]
    ours, theirs = (results_of(each) for each in both)
    assert {name for name in theirs if ours[name] != theirs[name]} == {"rounds", "metrics"}
    rounds = [frames(each)["rounds"].drop(columns="closed_by") for each in both]
    assert rounds[0].equals(rounds[1])


@full
def test_it_learns_in_tiers():
    simulation = run(digits_scenario(method="fedat", protocol={"name": "tiers", "tiers": 2}, stop={"rounds": 20}))
    found = frames(simulation)
    assert found["evals"]["accuracy"].max() > 0.5
    assert set(found["metrics"].query("name == 'tier'")["value"]) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"method": "fedat"}, "protocol.name: fedat runs on tiers, found sync"),
        ({"protocol": "tiers"}, "protocol.name: fedavg runs on deadline, sync, found tiers"),
        ({"method": {"name": "fedat", "mu": -1}, "protocol": "tiers"}, "method.mu: must be greater than or equal to 0"),
        (
            {"method": "dpsgd", "peers": "ring", "protocol": "tiers", "selection": "all"},
            "protocol.name: dpsgd runs on sync, found tiers",
        ),
    ],
)
def test_bad_input(changes, line):
    with pytest.raises(ConfigError, match=line):
        assemble(digits_scenario(**changes))


# The test of each key of the methods, here or in another file.
OPTIONS = {"fedat": {"mu": "test_one_tier_is_fedprox"}}
