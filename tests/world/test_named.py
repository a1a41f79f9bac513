"""Links by their names: their numbers have sources, scenarios may change them, and prices know them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edgesim.cli.parts import link
from edgesim.config import link_profiles
from edgesim.config.load import load_scenario
from edgesim.config.plugins import find
from edgesim.core.errors import ConfigError
from edgesim.world.fleet import build_fleet
from tests.calling import call
from tests.conftest import frames, simulate_null, timing_scenario

LINKS = {"lte", "5g", "wifi", "nb_iot", "lora", "ethernet", "starlink"}
BITS = 8 * 4 * 567_858  # CNN-CIFAR10, one way
TOML = """
partition = "iid"
model = "cnn_digits"
data = "digits"
method = "fedavg"
stop = { rounds = 1 }
[[fleet]]
profile = "raspberry_pi_4"
network = { name = "wifi", up = "9 Mbit/s" }
"""
every_link = pytest.mark.parametrize("link", link_profiles.all(), ids=lambda link: link.name)


def test_the_catalogue_has_the_links_that_people_know():
    """And each is a network of its name."""
    assert set(link_profiles.names()) == LINKS


@every_link
def test_every_number_can_be_traced(link):
    """A source of one line and a year, and rates for both directions; an estimate says what of."""
    assert {"up", "down", "latency", "loss"} <= link.quantities.keys()
    for quantity in link.quantities.values():
        assert "\n" not in quantity.source + quantity.derived
        assert 1999 <= quantity.year <= 2026


@every_link
def test_a_name_alone_is_a_link_with_the_numbers_of_its_file(link):
    """Defaults of the keys are the file's numbers in SI; what it does not have is 0."""
    cls, fixed = find("network", link.name)
    assert fixed == {}
    defaults = {field.name: field.default for field in dataclasses.fields(cls) if field.name in link.quantities}
    assert defaults == link.si
    fleet = build_fleet(timing_scenario(network=link.name))
    assert fleet.kinds[0] == "block0"
    assert (fleet.up_bps[0], fleet.down_bps[0]) == (link.si["up"], link.si["down"])
    assert fleet.transmit_w[0] == link.si.get("transmit", 0.0)
    assert fleet.j_per_bit[0] == link.si.get("energy_per_bit", 0.0) / (1 - link.si["loss"])


def test_numbers_worked_out_by_hand():
    """0.14 kWh a GB is 63 uJ a bit; LTE at 6 Mbit/s draws 1288.04 + 6 x 438.39 mW; 5G 2.5 times 1.96 W."""
    lte, fifth = link_profiles.find("lte").si, link_profiles.find("5g").si
    assert lte["energy_per_bit"] == pytest.approx(0.14 * 3.6e6 / 8e9)
    assert lte["transmit"] == pytest.approx((1288.04 + 6 * 438.39) / 1e3, rel=2e-3)
    assert lte["receive"] == pytest.approx((1288.04 + 13 * 51.97) / 1e3, rel=2e-3)
    assert fifth["receive"] == pytest.approx(2.5 * lte["receive"])
    assert link_profiles.find("ethernet").si["up"] == pytest.approx(1e9 * 1460 / 1538, rel=1e-3)
    assert link_profiles.find("ethernet").si["latency"] == pytest.approx(2 * 1538 * 8 / 1e9, rel=0.02)


def test_keys_lie_over_those_of_the_name(tmp_path):
    """Changed keys hold, the others stay; what a run keeps has all numbers, and gives the same scenario again."""
    scenario = timing_scenario(network={"name": "lte", "up": "20 Mbit/s", "loss": 0})
    assert (scenario.network.name, scenario.network.value.up, scenario.network.value.down) == ("lte", 20e6, 13e6)
    kept = scenario.canonical()
    assert kept["network"]["name"] == "lte"
    assert kept["network"]["latency"] == 0.0285
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    assert timing_scenario(**kept) == scenario
    (tmp_path / "scenario.toml").write_text('network = "lte"\n' + TOML)
    [block] = load_scenario(tmp_path / "scenario.toml", []).fleet
    assert (block.network.name, block.network.value.up, block.network.value.down) == ("wifi", 9e6, 83.95e6)


def test_a_run_over_a_named_link():
    """Seconds of a link whose jitter and loss are switched off: latency and bits over rate, with its own radio."""
    network = {"name": "nb_iot", "loss": 0, "up": "1 Mbit/s"}
    [job] = frames(simulate_null(timing_scenario(network=network, fleet=[{"cpu": {"flops_per_s": 1e9}}])))[
        "jobs"
    ].to_dict("records")
    assert job["up_s"] == pytest.approx(0.837 + BITS / 1e6)
    assert job["down_s"] == pytest.approx(0.837 + BITS / 25.5e3)
    assert job["up_j"] == pytest.approx(0.77 * BITS / 1e6)


def test_prices_of_data_know_links_by_their_names():
    """2 EUR a GB over LTE and nothing over Wi-Fi: 2 x 2.271432 MB of one device of two."""
    cpu = {"flops_per_s": 1e9}
    fleet = [{"name": "a", "cpu": cpu, "network": "lte"}, {"name": "b", "cpu": cpu, "network": "wifi"}]
    prices = {"data": {"lte": "2 EUR/GB", "wifi": "0 EUR/GB"}}
    tables = frames(simulate_null(timing_scenario(fleet=fleet, prices=prices)))
    assert tables["rounds"]["total_cost"].iloc[0] == pytest.approx(2e-9 * 2 * BITS / 8)


def test_unknown_links_and_keys_are_refused():
    """The nearest name, or what people call it, is offered; a key names itself and what is allowed."""
    with pytest.raises(ConfigError, match=r"unknown network 'lorawan'; did you mean 'lora'\?"):
        timing_scenario(network="lorawan")
    with pytest.raises(ConfigError, match=r"^network\.speed: unknown key.*\(allowed: .*up, down"):
        timing_scenario(network={"name": "5g", "speed": 1})
    with pytest.raises(ConfigError, match=r"^network\.loss: must be less than 1, got 1"):
        timing_scenario(network={"name": "wifi", "loss": 1.0})
    with pytest.raises(ConfigError, match=r"^unknown link 'starling'; did you mean 'starlink'\?"):
        link("starling")


def test_the_command_line_shows_them():
    """The table of all, one with its sources, and the same as JSON; and `list links`."""
    listed = call("list", "links").out
    assert all(name in listed for name in LINKS)
    assert "63 uJ/bit" in listed
    one = call("link", "lte").out
    assert "Huang et al." in one
    assert "438.39 mW per Mbit/s" in one
    found = json.loads(call("link", "lte", "--json").out)
    assert found["quantities"]["up"] == {
        "value": "6 Mbit/s",
        "si": 6e6,
        "year": "2012",
        "source": found["quantities"]["down"]["source"],
        "estimate": "",
    }
    assert call("link", "lte2").code == 2
