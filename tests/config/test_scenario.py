"""What a scenario holds, what it refuses, and its canonical form."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import subprocess
import sys
from typing import Any

import pytest
import toy_parts

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Foreign, Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training


def refused(table: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(table, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_least_scenario_has_these_defaults(minimal: dict[str, Any]) -> None:
    scenario = load_scenario(minimal)
    assert (scenario.seed, scenario.name, scenario.data) == (1, None, None)
    assert scenario.training == Training()
    kinds = ("cost", "network", "energy", "slowdown", "selection", "protocol", "backend", "topology")
    assert [getattr(scenario, kind).name for kind in kinds] == [
        *("measured", "ideal", "none", "none", "all", "sync", "serial", "star")
    ]
    assert [plugin.name for plugin in scenario.availability] == ["always"]
    assert (scenario.failures, scenario.peers) == ((), None)
    assert (scenario.server.flops_per_s, scenario.server.idle, scenario.server.busy) == (math.inf, 0.0, 0.0)
    assert (scenario.evaluation.every, scenario.evaluation.targets) == (1, ())
    assert (scenario.stop.rounds, scenario.stop.accuracy, scenario.stop.sim_time) == (3, None, None)
    [block] = scenario.fleet
    assert (block.count, block.name, block.level, block.network, block.energy) == (1, "block0", 1, None, None)
    assert (block.cpu.flops_per_s, block.cpu.frequency, block.cpu.cores, block.cpu.efficiency) == (1e9, None, 1, 1.0)


@pytest.mark.parametrize("key", ["partition", "model", "method", "stop", "fleet"])
def test_what_has_no_default_is_asked_for(minimal: dict[str, Any], key: str) -> None:
    del minimal[key]
    assert refused(minimal) == f"{key}: is missing"


def test_a_part_is_an_instance_with_its_arguments(minimal: dict[str, Any]) -> None:
    minimal["network"] = {"name": "fixed", "up": "20 Mbit/s"}
    network = load_scenario(minimal).network
    assert network.value == toy_parts.Link(up=20e6, down=1e6, latency=0.0)
    assert (network.kind, network.name) == ("network", "fixed")
    assert network.args == {"up": 20e6, "down": 1e6, "latency": 0.0}


def test_arguments_are_json_whatever_the_fields_are(minimal: dict[str, Any]) -> None:
    args = load_scenario(minimal).method.args
    assert args == {"momentum": "inf", "layers": ["a", "b"], "tags": ["x", "y", "z"], "rule": "mean"}


def test_a_family_fixes_its_member(minimal: dict[str, Any]) -> None:
    minimal["model"] = "family:small"
    scenario = load_scenario(minimal)
    assert scenario.model.value == toy_parts.Member(member="small")
    assert scenario.model.table() == {"name": "family:small", "init_from": None}
    assert load_scenario(scenario.canonical()) == scenario
    minimal["model"] = {"name": "family:small", "member": "large"}
    assert refused(minimal) == "model.member: unknown key (allowed: init_from)"


def test_a_dataclass_from_outside_is_a_part_like_any_other(minimal: dict[str, Any]) -> None:
    minimal["network"] = {"name": "toy_parts:Link", "up": 5}
    assert load_scenario(minimal).network.value == toy_parts.Link(up=5.0)


def test_another_class_from_outside_is_held_with_checked_arguments(minimal: dict[str, Any]) -> None:
    minimal["model"] = {"name": "toy_parts:OwnModel", "width": 3}
    scenario = load_scenario(minimal)
    assert scenario.model.value == Foreign(toy_parts.OwnModel, {"width": 3})
    assert load_scenario(scenario.canonical()) == scenario
    minimal["model"] = {"name": "toy_parts:AnyKeys", "one": 1, "two": [2]}
    assert load_scenario(minimal).model.args == {"one": 1, "two": [2]}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("toy_parts:OwnModel", "model.width: is missing"),
        (
            {"name": "toy_parts:OwnModel", "widht": 1},
            "model.widht: unknown key; did you mean 'width'? (allowed: width, depth)",
        ),
        ({"name": "toy_parts:Odd", "number": 2}, "model: number must be odd, got 2"),
        ({"name": "toy_parts:Odd", "pole": "1+2j"}, "model: must be a number, string, list or table, got (1+2j)"),
        ("toy_parts:PLUGINS", "model.name: 'toy_parts:PLUGINS' must be the name of a class, found {"),
        ("toy_parts:Nothing", "model.name: cannot import 'toy_parts:Nothing': module 'toy_parts' has no attribute"),
        ("no_such_module:Net", "model.name: cannot import 'no_such_module:Net': No module named 'no_such_module'"),
        ("toy_parts:Unreadable", "model: the fields of Unreadable cannot be checked: Unable to generate"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused(minimal: dict[str, Any], model: Any, message: str) -> None:
    minimal["model"] = model
    assert refused(minimal).startswith(message)


MEGABIT = "give a number in bit/s or a string such as '20 Mbit/s'"
LINK = "(allowed: up, down, latency)"


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ("network", {"name": "fixed", "up": "20 MHz"}, f"network.up: '20 MHz' is not a data rate; {MEGABIT}"),
        ("network", {"name": "fixed", "up": 1, "latncy": 1},
         f"network.latncy: unknown key; did you mean 'latency'? {LINK}"),
        ("network", {"name": "fixed", "up": 1, "xyz": 1}, f"network.xyz: unknown key {LINK}"),
        ("network", "fixed", "network.up: is missing"),
        ("network", {"up": 1}, "network.name: is missing; it says which network the other keys belong to"),
        ("network", {"name": 3},
         "network.name: must be a string, got 3; it says which network the other keys belong to"),
        ("network", 3, "network: must be the name of a network or a table with a name, got 3"),
        ("network", "fixd", "network.name: unknown network 'fixd'; did you mean 'fixed'? (known: ideal, fixed)"),
        ("network", {"name": "ideal", "up": 1}, "network.up: unknown key (allowed: none)"),
        ("selection", "one_of", "selection: give exactly one of count and fraction"),
        ("selection", {"name": "one_of", "count": 101}, "selection.count: must be at most 100"),
        ("backend", {"name": "pool", "workers": True}, "backend.workers: must be a whole number, got True"),
        ("partition", {"name": "sizes", "samples_per_device": 0},
         "partition.samples_per_device: must be greater than or equal to 1, got 0"),
        ("method", {"name": "proximal", "mu": -1}, "method.mu: must be greater than or equal to 0, got -1"),
        ("method", {"name": "averaging", "rule": "max"}, "method.rule: must be 'mean' or 'inf', got 'max'"),
        ("training", {"lr": True}, "training.lr: must be a number, got True"),
        ("training", {"lr": 0}, "training.lr: must be greater than 0, got 0"),
        ("training", {"lr": 0, "batch": 0},
         "training.batch: must be greater than or equal to 1, got 0 (and 1 more: training.lr)"),
        ("training", "fast", "training: must be a table, got 'fast'"),
        ("server", 5, "server: must be a table, got 5"),
        ("server", {"speed": 5}, "server.speed: unknown key (allowed: flops_per_s, workers, "
         "per_byte, test_samples, round_overhead, first_round_overhead, idle, busy)"),
        ("stop", {}, "stop: needs at least one of rounds, accuracy, metric, sim_time, energy, device_energy, cost, "
         "bytes"),
        ("stop", {"rounds": True}, "stop.rounds: must be a whole number, got True"),
        ("stop", {"rounds": 0}, "stop.rounds: must be greater than or equal to 1, got 0"),
        ("stop", {"sim_time": "2 m"},
         "stop.sim_time: '2 m' is not a time; did you mean '2 min'? give a number in s or a string such as '26.5 s'"),
        ("evaluation", {"targets": [0.5, 1]}, "evaluation.targets.1: must be less than 1, got 1"),
        ("seed", -1, "seed: must be greater than or equal to 0, got -1"),
        ("seed", math.nan, "seed: a number, string, list or table is needed, got nan"),
        ("netwrk", {}, "netwrk: unknown key; did you mean 'network'? (`edgesim schema` lists all 35)"),
        ("availability", {"name": "hours", "start": "5 W"},
         "availability.start: '5 W' is not a time; give a number in s or a string such as '20 ms'"),
        ("availability", ["always", "allways"],
         "availability.1.name: unknown availability 'allways'; did you mean 'always'? (known: always, hours)"),
        ("availability", ["always", {"name": "hours", "start": -1}],
         "availability.1.start: must be at least 0 s, got -1"),
        ("failures", ["rain", {"name": "breaks", "afte": 1}],
         "failures.1.afte: unknown key; did you mean 'after'? (allowed: after)"),
        ("failures", ["rain", {"name": "breaks", "after": 0}], "failures.1.after: must be above 0 s, got 0"),
        ("failures", 5, "failures.0: must be the name of a failure or a table with a name, got 5"),
        ("peers", "cirle", "peers.name: unknown peers 'cirle'; did you mean 'circle'? (known: circle)"),
        ("fleet", [], "fleet: needs at least one block of devices"),
        ("fleet", 5, "fleet: must be a list of tables or the name of a CSV file, got 5"),
        ("fleet", [5], "fleet.0: must be a table, got 5"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_key(
    minimal: dict[str, Any], section: str, given: Any, message: str
) -> None:
    minimal[section] = given
    assert refused(minimal) == message


def test_targets_are_sorted_and_told_once(minimal: dict[str, Any]) -> None:
    minimal["evaluation"] = {"targets": [0.6, 0.5, 0.55, 0.5]}
    assert load_scenario(minimal).evaluation.targets == (0.5, 0.55, 0.6)


@pytest.mark.parametrize("given", ["hours", {"name": "hours"}, ["hours"], [{"name": "hours", "start": "0 s"}]])
def test_one_part_of_a_list_needs_no_brackets(minimal: dict[str, Any], given: Any) -> None:
    scenario = load_scenario({**minimal, "availability": given})
    assert [plugin.value for plugin in scenario.availability] == [toy_parts.Hours()]
    assert scenario.canonical()["availability"] == [{"name": "hours", "start": 0.0}]
    assert scenario.digest() == load_scenario({**minimal, "availability": "hours"}).digest()


def test_lists_of_parts_keep_their_order(minimal: dict[str, Any]) -> None:
    minimal["failures"] = [{"name": "breaks", "after": "1 min"}, "rain", {"name": "breaks", "after": 5}]
    scenario = load_scenario(minimal)
    values = [plugin.value for plugin in scenario.failures]
    assert values == [toy_parts.Breaks(after=60.0), toy_parts.Empty(), toy_parts.Breaks(after=5.0)]
    assert [(plugin.kind, plugin.name) for plugin in scenario.failures] == [
        *(("failure", "breaks"), ("failure", "rain"), ("failure", "breaks"))
    ]
    assert load_scenario(scenario.canonical()) == scenario
    assert load_scenario(minimal, ["failures.2.after=7"]).failures[2].value == toy_parts.Breaks(after=7.0)
    turned = load_scenario({**minimal, "failures": minimal["failures"][::-1]})
    assert turned.digest() != scenario.digest()  # the first of two equal strikes has it


def test_a_block_may_have_a_network_of_its_own(minimal: dict[str, Any]) -> None:
    own = {"name": "fixed", "up": 5}
    minimal["fleet"] += [{"name": "far", "cpu": {"flops_per_s": "1 GFLOP/s"}, "network": own, "energy": "power"}]
    near, far = load_scenario(minimal).fleet
    assert (near.name, near.network, near.energy) == ("block0", None, None)
    assert far.network is not None and far.network.value == toy_parts.Link(up=5.0)
    assert far.energy is not None and far.energy.value == toy_parts.Power()
    own["up"] = "x"
    assert refused(minimal) == f"fleet.1.network.up: 'x' is not a data rate; {MEGABIT}"
    own["name"] = "fixd"
    assert refused(minimal).startswith("fleet.1.network.name: unknown network 'fixd'")


SPEED = "fleet.0.cpu: needs flops_per_s, or frequency and flops_per_cycle"
TWICE = "fleet.0.cpu: flops_per_s is the speed attained; flops_per_cycle and efficiency do not go with it"


@pytest.mark.parametrize(
    ("cpu", "message"),
    [
        ({}, SPEED),
        ({"frequency": 1e9}, SPEED),
        ({"flops_per_cycle": 8}, SPEED),
        ({"flops_per_s": 1, "flops_per_cycle": 8}, TWICE),
        ({"flops_per_s": 1, "efficiency": 0.5}, TWICE),
        ({"frequency": 1, "flops_per_cycle": 8, "efficiency": 1.5},
         "fleet.0.cpu.efficiency: must be less than or equal to 1, got 1.5"),
        ({"flops_per_s": "1 GHz"}, "fleet.0.cpu.flops_per_s: '1 GHz' is not a computing speed; give a number in FLOP/s "
         "or a string such as '147.6 MFLOP/s'"),
    ],
)  # fmt: skip
def test_a_cpu_has_exactly_one_speed(minimal: dict[str, Any], cpu: dict[str, Any], message: str) -> None:
    minimal["fleet"] = [{"cpu": cpu}]
    assert refused(minimal) == message


def test_a_cpu_may_have_a_measured_speed_and_a_frequency(minimal: dict[str, Any]) -> None:
    cpu = {"flops_per_s": {"uniform": ["1 GFLOP/s", "2 GFLOP/s"]}, "frequency": "1.5 GHz", "cores": 4}
    minimal["fleet"] = [{"cpu": cpu}]
    read = load_scenario(minimal).fleet[0].cpu
    assert (read.frequency, read.cores) == (1.5e9, 4)
    assert read.flops_per_s is not None and not isinstance(read.flops_per_s, float)
    assert read.flops_per_s.table() == {"uniform": [1e9, 2e9]}


def full(minimal: dict[str, Any]) -> dict[str, Any]:
    minimal["network"] = {"name": "fixed", "up": {"normal": ["2 Mbit/s", "1 Mbit/s"], "min": "1 bit/s"}}
    minimal["fleet"] += [
        {"cpu": {"frequency": {"choice": ["1 GHz", "2 GHz"]}, "flops_per_cycle": 8}, "energy": "power"}
    ]
    minimal["stop"] = {"energy": "10 kJ", "accuracy": 0.6}
    return minimal


def test_the_canonical_form_is_json_and_gives_the_same_scenario(minimal: dict[str, Any]) -> None:
    scenario = load_scenario(full(minimal))
    text = json.dumps(scenario.canonical(), allow_nan=False)
    again = load_scenario(json.loads(text))
    assert again == scenario
    assert again.canonical() == scenario.canonical()
    assert again.server.flops_per_s == math.inf
    assert scenario.canonical()["network"]["up"] == {"normal": [2e6, 1e6], "min": 1.0}


def test_the_digest_is_the_sha256_of_all_that_changes_results(minimal: dict[str, Any]) -> None:
    scenario = load_scenario(full(minimal))
    table = scenario.canonical()
    del table["backend"], table["weights"]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    assert scenario.digest() == hashlib.sha256(text.encode()).hexdigest()
    assert load_scenario(minimal, ["backend=pool"]).digest() == scenario.digest()
    assert load_scenario(minimal, ["seed=2"]).digest() != scenario.digest()


@pytest.mark.parametrize("spelling", ["160 Mbit/s", "20 MB/s", 160_000_000, 1.6e8])
def test_one_value_in_several_spellings_is_one_scenario(minimal: dict[str, Any], spelling: Any) -> None:
    scenarios = [load_scenario({**minimal, "network": {"name": "fixed", "up": up}}) for up in (160e6, spelling)]
    assert scenarios[0] == scenarios[1]
    assert scenarios[0].digest() == scenarios[1].digest()


def test_reading_changes_nothing_that_was_given(minimal: dict[str, Any]) -> None:
    before = copy.deepcopy(minimal)
    load_scenario(minimal, ["stop.rounds=9", "fleet.0.count=4", "network=fixed", "network.up=5"])
    assert minimal == before


def test_a_scenario_cannot_be_changed(minimal: dict[str, Any]) -> None:
    scenario = load_scenario(minimal)
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 3  # type: ignore[misc]
    assert isinstance(scenario, Scenario)


def test_reading_scenarios_needs_no_torch() -> None:
    code = "import sys, edgesim.config.load, edgesim.config.schema; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
