"""Server optimisers against NumPy, torch.optim and numbers on paper; what they leave to the method that they extend.

Source: Reddi et al., "Adaptive Federated Optimization" (2021), algorithm 2; Hsu et al. (2019) for momentum.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from edgesim.core.errors import ConfigError
from edgesim.core.method import Aggregate, Method
from edgesim.execution.result_cache import Answers
from edgesim.learning.server_optimizers.adaptive import Adagrad, Adam, Yogi
from edgesim.learning.server_optimizers.sgd import Sgd
from edgesim.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from edgesim.methods.optimised import Optimised
from edgesim.runs.assembly import assemble, method_of_server
from tests.contracts.support import COORDINATORS, NORMED, fingerprint, mixed_scenario, results_of, run
from tests.contracts.test_answers import found
from tests.contracts.whole_runs import check_whole_runs
from tests.methods.hand_made import KEY, message_of, model_of, server_of, setting_of, view_of
from tests.sizes import full, spread

START = [1.0, -2.0, 0.5]
# Moves that devices of 1 and 3 samples make in each round, from wherever the global model then is.
MOVES = (
    ([0.3, -0.1, 0.0], [0.1, 0.2, 0.01]),
    ([-0.2, 0.05, 0.1], [0.4, -0.2, 0.02]),
    ([0.0, 0.3, -0.3], [-0.1, 0.1, 0.0]),
    ([0.05, 0.0, 0.2], [0.2, -0.3, 0.1]),
)
SAMPLES = (1, 3)


def path(method):
    """Return the global model after each round of MOVES."""
    server = server_of(view_of(setting_of(SAMPLES, {"w": 3})))
    state, x, seen = method.init(server.setting, KEY), START, []
    for moves in MOVES:
        updates = [message_of(k, SAMPLES[k], {"w": np.add(x, move).tolist()}) for k, move in enumerate(moves)]
        merged = method.aggregate(state, model_of({"w": x}), updates, server, KEY)
        state, x = merged.state, merged.model["params"]["w.weight"].tolist()
        seen.append(x)
    return seen


def in_numpy(rule, lr, beta1=0.0, beta2=0.99, tau=1e-3):
    """Return the same path by algorithm 2, line by line."""
    x, m, v = np.array(START), np.zeros(3), np.full(3, tau**2)
    seen = []
    for one, other in MOVES:
        delta = (1 * np.array(one) + 3 * np.array(other)) / 4
        m = beta1 * m + (1 - beta1) * delta
        if rule == "adagrad":
            v = v + delta**2
        elif rule == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + lr * m / (np.sqrt(v) + tau)
        seen.append(x.tolist())
    return seen


ADAPTIVE = [
    (FedAdagrad(), "adagrad", {"lr": 0.1}),
    (FedAdagrad(lr=0.02, beta1=0.5, tau=0.1), "adagrad", {"lr": 0.02, "beta1": 0.5, "tau": 0.1}),
    (FedAdam(), "adam", {"lr": 0.1, "beta1": 0.9}),
    (FedAdam(lr=0.03, beta1=0.0, beta2=0.5, tau=0.01), "adam", {"lr": 0.03, "beta2": 0.5, "tau": 0.01}),
    (FedYogi(), "yogi", {"lr": 0.1, "beta1": 0.9}),
    (FedYogi(lr=0.3, beta1=0.8, beta2=0.9, tau=0.2), "yogi", {"lr": 0.3, "beta1": 0.8, "beta2": 0.9, "tau": 0.2}),
]


@pytest.mark.parametrize(("method", "rule", "settings"), ADAPTIVE)
def test_four_rounds_of_algorithm_2(method, rule, settings):
    """Within the rounding of float32 weights."""
    assert np.array(path(method)) == pytest.approx(np.array(in_numpy(rule, **settings)), abs=1e-6)


def test_the_first_step_of_adam_is_not_corrected_for_its_start():
    """Delta 1: m = 0.1, v = 0.99e-6 + 0.01 = 0.01000099, and the step 0.1 x 0.1 / (0.1000050 + 0.001) = 0.0990."""
    kept, step = Adam().step({}, torch.tensor([1.0], dtype=torch.float64))
    assert step.item() == pytest.approx(0.1 * 0.1 / (math.sqrt(0.01000099) + 0.001), rel=1e-12)
    assert step.item() == pytest.approx(0.0990, abs=1e-5)
    assert (kept["first"].item(), kept["second"].item()) == pytest.approx((0.1, 0.01000099), rel=1e-12)
    # corrected as torch.optim.Adam does it, it would be the learning rate itself
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    weight.grad = -torch.ones(1, dtype=torch.float64)
    torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-3).step()
    assert weight.item() == pytest.approx(0.1, rel=2e-3)


def test_yogi_falls_by_no_more_than_the_square():
    """v = 1 and a move of 0.1: Adam's v is 0.99 + 0.0001, Yogi's 1 - 0.01 x 0.01; upwards from 0 both are alike."""
    move, kept = torch.tensor([0.1]).double(), {"first": torch.zeros(1), "second": torch.ones(1).double()}
    assert Adam().step(kept, move)[0]["second"].item() == pytest.approx(0.9901, rel=1e-6)
    assert Yogi().step(kept, move)[0]["second"].item() == pytest.approx(0.9999, rel=1e-6)


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.9), (0.5, 0.3), (2.0, 0.0)])
def test_momentum_is_that_of_torch(lr, momentum):
    """torch.optim.SGD on the negative mean move, in float64."""
    weight = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer, seen = torch.optim.SGD([weight], lr=lr, momentum=momentum), []
    for one, other in MOVES:
        weight.grad = -(torch.tensor(one).double() + 3 * torch.tensor(other).double()) / 4
        optimizer.step()
        seen.append(weight.tolist())
    assert np.array(path(FedAvgM(lr=lr, momentum=momentum))) == pytest.approx(np.array(seen), abs=1e-6)


def test_the_defaults_are_those_of_the_papers():
    assert (FedAvgM().lr, FedAvgM().momentum) == (1.0, 0.9)
    assert (FedAdam().beta1, FedAdam().beta2, FedAdam().tau) == (0.9, 0.99, 1e-3)
    assert (FedYogi().beta1, FedYogi().beta2, FedYogi().tau) == (0.9, 0.99, 1e-3)
    assert (FedAdagrad().beta1, FedAdagrad().tau) == (0.0, 1e-3)


def test_absent_devices_may_count_with_the_old_model():
    """Delta is a quarter of the lone move (1, 1): at lr 1, momentum's first step is Delta."""
    server = server_of(view_of(setting_of(SAMPLES, {"w": 2})))
    method = FedAvgM(aggregate_over="all")
    merged = method.aggregate(
        method.init(server.setting, KEY),
        model_of({"w": [0.0, 0.0]}),
        [message_of(0, 1, {"w": [1.0, 1.0]})],
        server,
        KEY,
    )
    assert merged.model["params"]["w.weight"].tolist() == [0.25, 0.25]


# --- any method ---------------------------------------------------------------------------------------------------


OPTIMIZERS = ("sgd", "adagrad", "adam", "yogi")
FEDOPT = ("fedavgm", "fedadagrad", "fedadam", "fedyogi")


@pytest.mark.parametrize(("optimizer", "method"), list(zip(OPTIMIZERS, FEDOPT, strict=True)))
def test_fedavg_with_an_optimizer_is_the_method_of_that_name(optimizer, method):
    """Bit for bit, over three rounds that somebody misses."""
    stop = {"stop": {"rounds": 3}, "protocol": COORDINATORS["deadline"]}
    of_method = results_of(run(mixed_scenario(method=method, **stop)))
    assert results_of(run(mixed_scenario(method="fedavg", server_optimizer=optimizer, **stop))) == of_method
    assert results_of(run(mixed_scenario(method="fedavg", **stop))) != of_method


@pytest.mark.parametrize(("method", "protocol"), [("scaffold", "deadline"), ("fedbuff", "buffered")])
def test_a_step_of_the_whole_move_is_the_method_itself(method, protocol):
    """sgd at lr 1 without momentum: every bit of tables and weights, as nothing is wrapped or charged."""
    changes = {"method": method, "protocol": COORDINATORS[protocol], "server": {"flops_per_s": "1 MFLOP/s"}}
    plain = {"name": "sgd", "lr": 1.0, "momentum": 0.0}
    scenario = mixed_scenario(**changes, server_optimizer=plain)
    assert method_of_server(scenario) is scenario.method.value
    assert results_of(run(scenario)) == results_of(run(mixed_scenario(**changes)))


def test_statistics_are_the_method_s():
    """After a round buffers are those of FedAvg, parameters are not."""
    one, other = (
        run(mixed_scenario(method=method, model=NORMED, stop={"rounds": 1})).learner.weights()
        for method in ("fedavg", "fedadam")
    )
    assert fingerprint(one["buffers"]) == fingerprint(other["buffers"])
    assert fingerprint(one["params"]) != fingerprint(other["params"])
    assert len(one["buffers"]) > 0


WRAPPED = [("scaffold", "deadline"), ("fedbuff", "buffered"), ("fedpns", "sync"), ("feddyn", "over_selection")]


@full
@pytest.mark.parametrize(("method", "protocol"), spread([case for case in WRAPPED if case[0] != "feddyn"], 1))
def test_runs_with_an_optimizer_are_answered_and_resumed(method, protocol, tmp_path):
    """A second run finds all answers, one that was cut off ends as the whole one; a plain run gets none of them."""
    changes = {"method": method, "protocol": COORDINATORS[protocol], "server_optimizer": "yogi"}
    first = check_whole_runs(partial(mixed_scenario, **changes), tmp_path, timed=False)
    plain = mixed_scenario(**{**changes, "server_optimizer": None}, stop={"rounds": 4})
    assert found(plain, Answers(tmp_path / "answers"))[0] == found(plain, None)[0] != first


@pytest.mark.parametrize(("method", "protocol"), WRAPPED[:2] + WRAPPED[3:])
def test_timing_only_runs_charge_the_step(method, protocol):
    """Jobs and rounds are those of the run that trains, with a server that takes time."""
    changes = {"method": method, "protocol": COORDINATORS[protocol], "server_optimizer": "adam"}
    changes["server"] = {"flops_per_s": "1 MFLOP/s"}
    one, other = (results_of(run(mixed_scenario(**changes, backend=backend))) for backend in ("serial", "null"))
    assert [one[table] for table in ("jobs", "rounds", "devices")] == [other[t] for t in ("jobs", "rounds", "devices")]


# Products, quotients, sums and roots of a step for each parameter, counted in the formulas of algorithm 2.
FLOPS = {
    FedAvgM(): 1 + 2 + 2,
    FedAvgM(momentum=0.0, lr=0.5): 1 + 2,
    FedAvgM(momentum=0.0): 0,
    FedAdagrad(): 1 + 1 + 1 + 5,
    FedAdam(): 1 + 1 + 3 + 3 + 5,
    FedYogi(): 1 + 1 + 3 + 4 + 5,
}


@pytest.mark.parametrize(("method", "flops"), FLOPS.items())
def test_flops_of_a_step(method, flops):
    assert method.merge_flops(2, setting_of(SAMPLES, {"w": 3})) == 3 * flops


def test_the_server_takes_the_time_of_its_step():
    """1 MFLOP/s: a round of FedAdam takes the server 13 us for each parameter longer than one of FedAvg."""
    server = {"server": {"flops_per_s": "1 MFLOP/s"}, "stop": {"rounds": 1}}
    seconds = [
        run(mixed_scenario(method="fedavg", **more, **server)).tables["rounds"].frame()["server_s"][0]
        for more in ({}, {"server_optimizer": "adam"})
    ]
    parameters = assemble(mixed_scenario()).setting.cost_profile.params
    assert seconds[1] - seconds[0] == pytest.approx(13e-6 * parameters, rel=1e-9)


class Silent(Method):
    """Makes no model."""

    def aggregate(self, state, global_model, updates, server, key):
        """Return the state alone."""
        return Aggregate(state, None)


def test_without_a_model_there_is_no_step():
    state = {"method": {}, "moments": {"w.weight": {"velocity": torch.ones(1)}}}
    merged = Optimised(method=Silent(), optimizer=Sgd()).aggregate(state, model_of({"w": [1.0]}), [], server_of(), KEY)
    assert merged == Aggregate(state, None)


TREE = {
    "edges": {}, "topology": {"name": "tree", "edge_servers": 2},
    "network": {"name": "shared", "up": "1 Mbit/s", "down": "8 Mbit/s"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"method": "dpsgd", "peers": "ring"},
            "server_optimizer: dpsgd has no server, its devices exchange .* found adam",
        ),
        *(
            ({"method": name}, f"server_optimizer: {name} has zeros in its global model that have to stay")
            for name in ("feddst", "one_shot_pruning", "feddip")
        ),
        ({"method": "ifca"}, "server_optimizer: ifca has several models, .* the first alone; leave it out, found adam"),
        (TREE, "server_optimizer: the server above edge servers takes the mean .* found adam"),
        ({"server_optimizer": "adamw"}, "server_optimizer.name: unknown server_optimizer 'adamw'; did you mean 'adam'"),
        ({"server_optimizer": {"name": "adam", "lr": 0}}, r"server_optimizer\.lr: .*greater than 0"),
        ({"server_optimizer": {"name": "yogi", "beta1": 1.0}}, r"server_optimizer\.beta1: .*less than 1"),
        ({"server_optimizer": {"name": "adam", "momentum": 0.9}}, r"server_optimizer\.momentum: unknown key"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(changes, says):
    with pytest.raises(ConfigError, match=says):
        assemble(mixed_scenario(**{"server_optimizer": "adam", **changes}))


def test_optimizers_of_methods_are_those_of_scenarios():
    """The methods' hyper-parameters and defaults are inherited, not written down twice."""
    pairs = ((FedAvgM, Sgd), (FedAdagrad, Adagrad), (FedAdam, Adam), (FedYogi, Yogi))
    for method, optimizer in pairs:
        assert issubclass(method, optimizer)
        assert vars(optimizer()).items() <= vars(method()).items()


# The test of each key of the methods, here or in another file.
OPTIONS = {
    "fedavgm": {
        "aggregate_over": "test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lr": "test_momentum_is_that_of_torch",
        "momentum": "test_momentum_is_that_of_torch",
        "nesterov": "test_diloco.py::test_the_outer_step_is_that_of_torch",
    },
    "fedadagrad": {
        "aggregate_over": "test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lr": "test_four_rounds_of_algorithm_2",
        "beta1": "test_four_rounds_of_algorithm_2",
        "tau": "test_four_rounds_of_algorithm_2",
    },
    "fedadam": {
        "aggregate_over": "test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lr": "test_four_rounds_of_algorithm_2",
        "beta1": "test_four_rounds_of_algorithm_2",
        "tau": "test_four_rounds_of_algorithm_2",
        "beta2": "test_four_rounds_of_algorithm_2",
    },
    "fedyogi": {
        "aggregate_over": "test_absent_devices_may_count_with_the_old_model",
        "weights": "test_fedavg.py::test_devices_may_count_alike",
        "lr": "test_four_rounds_of_algorithm_2",
        "beta1": "test_four_rounds_of_algorithm_2",
        "tau": "test_four_rounds_of_algorithm_2",
        "beta2": "test_four_rounds_of_algorithm_2",
    },
}
