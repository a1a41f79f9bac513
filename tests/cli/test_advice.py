"""What `show` says of a scenario and where it comes from, and what `validate` warns of."""

import json
import re

import pytest

from tests.calling import call
from tests.sizes import full

BASE = """
partition = { name = "sizes", samples_per_device = 500 }
model = "cnn_cifar10"
method = "fedavg"
backend = { name = "null" }
stop = { rounds = 1 }
"""
PHONE = '\n[[fleet]]\nname = "phone"\ncpu = { flops_per_s = "1 GFLOP/s" }\n'
PI = '\n[[fleet]]\nprofile = "raspberry_pi_4"\n'
LINKS = 'network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a maker of scenario files: lines before the fleet, and the fleet."""
    monkeypatch.chdir(tmp_path)

    def make(lines="", fleet=PHONE, name="mine.toml", base=BASE):
        (tmp_path / name).write_text(base + lines + fleet, encoding="utf-8")
        return name

    return make


def warnings(name, *sets):
    """Return what `validate` warns of; it succeeds all the same."""
    done = call("validate", name, *(word for text in sets for word in ("--set", text)))
    assert (done.code, done.out) == (0, f"{name}: ok\n"), done.err
    return [line.removeprefix("warning: ") for line in done.err.splitlines()]


def shown(name, *sets):
    """Return origin and value of every key that `show` prints, as its JSON has them."""
    done = call("show", name, "--json", *(word for text in sets for word in ("--set", text)))
    assert done.code == 0, done.err
    found = json.loads(done.out)
    values = [*(value for block in found["fleet"] for value in block["values"]), *found["scenario"]]
    return {value["key"]: (value["origin"], value["value"]) for value in values}


# --- show -------------------------------------------------------------------------------------------------------


def test_every_value_says_where_it_comes_from(write):
    write(LINKS, name="base.toml", fleet="")
    mine = write('extends = "base.toml"\nnetwork.up = "2 Mbit/s"\n', PHONE + PI, base="")
    found = shown(mine, "training.lr=0.5", "fleet.0.level=3")
    assert found["network.up"] == ("mine.toml", "2 Mbit/s")
    assert found["network.down"] == ("base.toml", "8 Mbit/s")
    assert found["network.latency"][0] == "default"
    assert found["fleet.0.level"] == ("--set", 3)
    assert found["fleet.0.cpu.flops_per_s"] == ("mine.toml", "1 GFLOP/s")
    assert found["fleet.0.count"] == ("default", 1)
    assert found["fleet.1.network.up"][0] == found["fleet.1.energy.idle"][0] == "profile raspberry_pi_4"
    assert found["training.lr"] == ("--set", 0.5)
    assert found["method.name"] == ("base.toml", "fedavg")


def test_a_block_over_its_profile(write):
    found = shown(write(fleet=PI + 'energy = { name = "cpu", idle = "9 W", capacitance = 1e-28 }\n'))
    assert found["fleet.0.energy.idle"] == ("mine.toml", "9 W")
    assert found["fleet.0.energy.name"] == ("mine.toml", "cpu")
    assert found["fleet.0.cpu.frequency"][0] == "profile raspberry_pi_4"


@full
def test_a_part_of_another_name_replaces_what_lies_below(write):
    """The latency of base.toml is that of links that are not used."""
    write('network = { name = "fixed", up = 1e6, down = 1e6, latency = 0.5 }\n', name="base.toml", fleet="")
    network = 'network = { name = "shared", up = 2e6, down = 2e6 }\n'
    found = shown(write('extends = "base.toml"\n' + network, base=""))
    assert found["network.name"] == ("mine.toml", "shared") and found["network.latency"] == ("default", 0.0)


def test_overrides_of_a_key_and_of_its_section(write):
    """The finer one has effect whatever their order; the coarser replaces what the file says."""
    found = shown(write(LINKS), "network.up=3e6", "network={ name = 'fixed', up = 1e6, down = 2e6 }")
    assert found["network.up"] == ("--set", 3e6) and found["network.down"] == ("--set", 2e6)
    latency = LINKS.replace(" }", ", latency = 1.5 }")
    assert shown(write(latency), "network={ name = 'fixed', up = 1e6, down = 2e6 }")["network.latency"][0] == "default"


def test_the_table_for_people(write):
    done = call("show", write(LINKS, PHONE + PI))
    assert "fleet.0: phone" in done.out and "fleet.1: raspberry_pi_4" in done.out
    assert re.search(r"network\.up +1 Mbit/s +mine\.toml", done.out)
    assert done.err.startswith("warning: network: is not that of all fleet blocks")


def test_a_fleet_of_a_csv_file(write, tmp_path):
    (tmp_path / "devices.csv").write_text("count,cpu.flops_per_s\n3,1e9\n4,2e9\n", encoding="utf-8")
    found = shown(write('fleet = "devices.csv"\n', fleet=""))
    assert found["fleet.1.count"] == ("devices.csv", 4) and found["fleet.1.cpu.flops_per_s"] == ("devices.csv", 2e9)


# --- warnings ---------------------------------------------------------------------------------------------------


def test_a_scenario_without_fault_has_no_warning(write):
    assert warnings(write(LINKS + 'energy = { name = "power", idle = "1 W", busy = "2 W" }\n')) == []


def test_sections_that_a_profile_wins_over(write):
    """The case of the report."""
    assert warnings(write(LINKS, PHONE + PI)) == [
        "network: is not that of all fleet blocks: the profile of raspberry_pi_4 has its own"
    ]
    assert warnings(write(LINKS, PI)) == [
        "network: has no effect, as every fleet block has its own (the profile of raspberry_pi_4 has its own)"
    ]
    assert warnings(write(LINKS, PHONE + LINKS)) == ["network: has no effect, as every fleet block has its own"]


DEADLINE = 'protocol = {{ name = "deadline", deadline = "{}"{} }}\n'


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (DEADLINE.format("8 s", ", late_weight = 0.5"), "protocol.late_weight: has no effect with late = 'drop'"),
        (DEADLINE.format("8 s", ", quantile = 0.5"), "protocol.quantile: has no effect with rule = 'fixed'"),
        ('evaluation = { every = 2 }\n', "evaluation: has no effect, as backend null trains nothing"),
        ('server = { busy = "9 W" }\n', "server.busy: has no effect without server.flops_per_s"),
        (
            'evaluation = { targets = [0.9] }\nserver = { flops_per_s = "1 GFLOP/s", test_samples = 10 }\n',
            "evaluation.targets: has no effect, as backend null trains nothing",
        ),
        ("server = { workers = 2 }\n", "server.workers: has no effect without server.flops_per_s"),
        (DEADLINE.format("2 s", ""), "protocol.deadline: no device can meet 2 s: the shortest job, of fast"),
        (DEADLINE.format("9 s", ""), "protocol.deadline: no device can miss 9 s: the longest job, of phone"),
    ],
)  # fmt: skip
def test_what_has_no_effect_or_is_hardly_meant(write, lines, warning):
    fast = '\n[[fleet]]\nname = "fast"\ncpu = { flops_per_s = "2 GFLOP/s" }\n'
    found = warnings(write(lines, PHONE + fast))
    assert any(line.startswith(warning) for line in found), found


def test_a_deadline_that_some_miss_or_that_decides_what_is_done_is_fine(write):
    fast = '\n[[fleet]]\nname = "fast"\ncpu = { flops_per_s = "2 GFLOP/s" }\n'
    assert warnings(write(DEADLINE.format("5 s", ""), PHONE + fast)) == []
    by_deadline = BASE.replace('"fedavg"', '{ name = "fedpmt", rule = "deadline" }')
    assert warnings(write(DEADLINE.format("5 s", ""), PHONE + fast, base=by_deadline)) == []


def test_fedpmt_with_one_level_for_all(write):
    fedpmt, two = BASE.replace('"fedavg"', '"fedpmt"'), PHONE.replace("\ncpu", "\ncount = 2\nlevel = 2\ncpu")
    [line] = warnings(write(fleet=two, base=fedpmt))
    assert line.startswith(
        "method.name: fedpmt gives every device the same sub-model, 'last2', as all have level 2; no device trains"
    )
    assert warnings(write(fleet=two + PHONE, base=fedpmt)) == []


def test_run_warns_once(write):
    name = write(LINKS, PI)
    assert call("run", name, "--out", "loud").err.count("warning: network: has no effect") == 1
    assert call("run", name, "--quiet", "--out", "quiet").err.count("warning: network: has no effect") == 1
