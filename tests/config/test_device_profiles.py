"""Device profiles: a catalogue whose numbers have sources, refusal of impossible ones, and fleet blocks from them."""

from __future__ import annotations

import cProfile
import json
import os
import pstats

import pytest

from edgesim.cli.parts import device, print_devices
from edgesim.config import device_profiles
from edgesim.config.load import load_scenario
from edgesim.config.scenario import Cpu
from edgesim.config.toml_file import toml_of
from edgesim.core.errors import ConfigError
from edgesim.world.fleet import build_fleet
from tests.conftest import timing_scenario
from tests.sizes import spread

# Sections that need no more than what the scenario of today has.
SECTIONS = ("name", "cpu", "energy", "network")
KNOWN = """title = "A board"
[flops_per_s]
value = 10
unit = "GFLOP/s"
source = "test"
year = 2024
"""


def board(tmp_path, key, **fields):
    """Return the path of a profile with one more quantity, or with another speed."""
    given = {"source": "test", "year": 2024, **fields}
    lines = [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in given.items())]
    lines = [line.replace("Infinity", "inf") for line in lines]  # as TOML writes it
    path = tmp_path / "board.toml"
    path.write_text((KNOWN if key != "flops_per_s" else 'title = "A board"\n') + "\n".join(lines) + "\n")
    return path


def fleet_of(block):
    """Return the fleet of a scenario with this one block."""
    return build_fleet(timing_scenario(fleet=[{key: block[key] for key in SECTIONS if key in block}]))


def watts_of(fleet):
    """Return the watts that computing adds on the first device, at full speed."""
    cpu = fleet.blocks[0].cpu
    return cpu.compute_w(cpu.max_hz)[0]


@pytest.mark.parametrize("profile", device_profiles.all(), ids=lambda profile: profile.name)
def test_every_profile_is_a_fleet_block(profile):
    """Speed, powers and rates of the fleet are those of the file, in SI."""
    fleet, si = fleet_of(profile.block()), profile.si
    assert fleet.kinds == ("block0",)
    assert fleet.flops_per_s[0] == pytest.approx(profile.flops_per_s, rel=1e-12)
    assert fleet.idle_w[0] == si.get("idle", 0.0)
    assert watts_of(fleet) == pytest.approx(si.get("busy", 0.0) - si.get("idle", 0.0))
    assert fleet.transmit_w[0] == si.get("transmit", 0.0)
    assert fleet.up_bps[0] == si.get("up", float("inf"))
    assert fleet.down_bps[0] == si.get("down", float("inf"))


@pytest.mark.parametrize("profile", device_profiles.all(), ids=lambda profile: profile.name)
def test_every_number_can_be_traced(profile):
    """A source of one line and a year; a capacitance is what the powers say: (busy - idle) / (cores x frequency^3)."""
    for quantity in profile.quantities.values():
        assert "\n" not in quantity.source + quantity.derived
        assert 2000 <= quantity.year <= 2026
    si = profile.si
    if "capacitance" in si:
        assert profile.quantities["capacitance"].estimate
        expected = (si["busy"] - si["idle"]) / (si["cores"] * si["frequency"] ** 3)
        assert si["capacitance"] == pytest.approx(expected, rel=0.02)


def test_the_catalogue_has_all_classes():
    """Phones, boards, laptop, microcontroller, servers, and the GPU of the DA-DPFL study."""
    wanted = {"phone_mid", "phone_high", "raspberry_pi_3b_plus", "raspberry_pi_4", "raspberry_pi_5", "jetson_nano"}
    wanted |= {"jetson_agx_xavier", "v100", "a40", "p100", "rtx_6000", "x86_thread"}
    wanted |= {"jetson_tx2", "jetson_orin_nano", "laptop", "microcontroller", "edge_server", "dadpfl_gpu"}
    assert wanted <= set(device_profiles.names())
    gpu = device_profiles.find("dadpfl_gpu")
    assert gpu.flops_per_s == 80e12 / 5  # its theoretical speed and the study's inefficiency


def test_a_block_in_scenario_shape():
    """All that is known of a phone, as a scenario would write it; efficiency = 6.4e9 / (2.42e9 x 4 x 16)."""
    block = device_profiles.find("phone_mid").block()
    clock = block["cpu"].pop("clock")
    assert clock["name"] == "terms" and set(clock) == {"name", "flops", "bytes", "operations", "update_bytes"}
    assert block == {
        "cpu": {
            "frequency": "2.42 GHz",
            "cores": 4,
            "flops_per_cycle": 16,
            "efficiency": pytest.approx(6.4e9 / (2.42e9 * 4 * 16)),
            "spread": 0.651,
            "board": "phone_mid",
        },
        "energy": {"name": "power", "busy": "4.5 W", "idle": "1.0 W", "transmit": "2.63 W", "receive": "0.68 W"},
        "network": {"name": "fixed", "up": "6 Mbit/s", "down": "13 Mbit/s"},
        "memory": "6 GB",
    }


def batteries_of(**block):
    """Return the capacities of the batteries of a phone's block, in joules; None: it has none."""
    scenario = timing_scenario(fleet=[{"profile": "phone_mid", **block}])
    new_batteries = build_fleet(scenario).blocks[0].new_batteries
    return None if new_batteries is None else new_batteries().capacity_j.tolist()


def test_a_battery_is_asked_for():
    """A profile brings none. Whoever asks for one gets the 12.7 Wh of the phone, or the capacity given."""
    assert batteries_of() is None
    assert batteries_of(battery="none") is None
    assert batteries_of(battery="rechargeable") == [12.7 * 3600]
    assert batteries_of(battery={"charge": "5 W", "windows": [["22 h", "6 h"]]}) == [12.7 * 3600]
    assert batteries_of(battery={"name": "rechargeable", "capacity": "1 Wh"}) == [3600.0]
    with pytest.raises(ConfigError, match=r"^fleet\.0\.battery\.capacity: is missing"):
        batteries_of(profile="jetson_nano", battery="rechargeable")


def test_without_a_profile_there_may_be_no_battery_by_name():
    scenario = timing_scenario(fleet=[{"cpu": {"flops_per_s": 1e9}, "battery": "none"}])
    assert build_fleet(scenario).blocks[0].new_batteries is None


def test_the_catalogue_says_how_to_ask_for_a_battery(capsys):
    device("phone_mid")
    shown = capsys.readouterr().out
    assert "12.7 Wh" in shown and 'battery = "rechargeable"' in shown
    device("jetson_nano")
    assert "rechargeable" not in capsys.readouterr().out
    print_devices()
    assert 'battery = "rechargeable"' in capsys.readouterr().out


def test_what_is_unknown_is_left_out():
    """No rate and no battery of a Jetson is invented."""
    assert set(device_profiles.find("jetson_nano").block()) == {"cpu", "energy", "memory"}


PI = device_profiles.find("raspberry_pi_4")


def test_keys_of_a_block_lie_over_the_profile():
    """One key of a section, a whole block's keys, and a new frequency, which changes the speed in proportion."""
    table = {"profile": "raspberry_pi_4", "count": 3, "cpu": {"frequency": "0.75 GHz"}, "network": {"up": "1 Mbit/s"}}
    block = PI.merged(table)
    assert "profile" not in block
    assert (block["name"], block["count"]) == ("raspberry_pi_4", 3)
    fleet = fleet_of(block)
    assert fleet.flops_per_s[0] == pytest.approx(11.433e9 / 2)
    assert (fleet.up_bps[0], fleet.down_bps[0]) == (1e6, 108e6)
    assert table["cpu"] == {"frequency": "0.75 GHz"}


def test_a_speed_given_replaces_the_way_of_giving_it():
    """flops_per_s does not go with FLOPs per cycle, nor the other way round."""
    assert fleet_of(PI.merged({"cpu": {"flops_per_s": "5 GFLOP/s"}})).flops_per_s[0] == 5e9
    given = {"frequency": "1 GHz", "cores": 2, "flops_per_cycle": 4}
    assert fleet_of(device_profiles.find("laptop").merged({"cpu": given})).flops_per_s[0] == 8e9


def test_another_energy_model_keeps_what_is_known():
    """The CPU model by name: idle 2.7 W and, at 2.7e-28 x f^3 x 4 cores, 3.645 W more while it computes."""
    fleet = fleet_of(PI.merged({"energy": "cpu"}))
    assert fleet.idle_w[0] == 2.7
    assert watts_of(fleet) == pytest.approx(2.7e-28 * 1.5e9**3 * 4)
    fleet = fleet_of(PI.merged({"energy": {"name": "power", "busy": "5 W"}}))
    assert watts_of(fleet) == pytest.approx(5 - 2.7)


def test_another_part_replaces_the_profiles():
    """The keys of a fixed link mean nothing to an ideal one."""
    assert PI.merged({"network": "ideal"})["network"] == "ideal"
    assert PI.merged({"energy": {"name": "none"}})["energy"] == {"name": "none"}
    assert fleet_of(PI.merged({"network": "ideal"})).up_bps[0] == float("inf")


def test_terms_are_the_clock_of_a_profile(tmp_path):
    """Until a scenario gives another clock or a speed; a frequency replaces them where the speed follows from it."""
    path = board(tmp_path, "terms.bytes", value=0.5, unit="ns")
    found = device_profiles.find(path)
    assert found.merged({})["cpu"]["clock"] == {"name": "terms", "bytes": "0.5 ns"}
    assert load_scenario(timing_scenario(fleet=[{"profile": str(path)}]).canonical()).needs_kinds
    for cpu, clock in (({"flops_per_s": "1 GFLOP/s"}, None), ({"clock": "flops"}, "flops")):
        assert found.merged({"cpu": cpu})["cpu"].get("clock") == clock
    assert "clock" in found.merged({"cpu": {"frequency": "1 GHz"}})["cpu"]
    product = {"frequency": ("2", "GHz"), "cores": ("4", ""), "flops_per_cycle": ("8", "")}
    more = [f'[{k}]\nvalue = {v}\nunit = "{u}"\nsource = "test"\nyear = 2026\n' for k, (v, u) in product.items()]
    path.write_text(path.read_text() + "".join(more))
    assert "clock" in device_profiles.find(path).merged({})["cpu"]
    assert "clock" not in device_profiles.find(path).merged({"cpu": {"frequency": "1 GHz"}})["cpu"]


POINTS = """[switched_capacitance]
value = 436
unit = "pF"
source = "test"
year = 2024
[frequency]
value = 1.8
unit = "GHz"
source = "test"
year = 2024
[points]
value = [["408 MHz", "0.8 V"], ["1800 MHz", "1.2 V"]]
source = "test"
year = 2024
"""


def test_operating_points_are_an_energy_model(tmp_path):
    """By name if the busy power is known, else by themselves: 436 pF x 1.2^2 V^2 x 1.8 GHz."""
    path = tmp_path / "board.toml"
    path.write_text(KNOWN + POINTS)
    profile = device_profiles.find(path)
    assert watts_of(fleet_of(profile.block())) == pytest.approx(436e-12 * 1.44 * 1.8e9)
    assert device_profiles.profile_of("board", toml_of(device_profiles.to_toml(profile), path)) == profile
    assert '"points"' in json.dumps(profile.merged({"energy": "voltage"}))
    for text, message in (
        (POINTS.replace("0.8 V", "0.8 W"), "points.value.0.1: '0.8 W' is not a voltage"),
        (POINTS[: POINTS.index("[points]")], "points: points and switched_capacitance go together"),
        (POINTS.replace('source = "test"\nyear = 2024\n[points]', "[points]"), "frequency.source: is missing"),
    ):
        path.write_text(KNOWN + text)
        with pytest.raises(ConfigError, match=message):
            device_profiles.find(path)


def test_a_speed_says_how_far_to_trust_it(tmp_path, capsys):
    assert device_profiles.find(board(tmp_path, "spread", value=0.1)).trust == "measured"
    assert device_profiles.find(board(tmp_path, "memory", value=1, unit="GB")).trust == "one point"
    peak = board(tmp_path, "flops_per_s", value=9, unit="GFLOP/s", estimate=True, derived="half of the peak")
    assert device_profiles.find(peak).trust == "estimated"
    assert {profile.trust for profile in device_profiles.all()} >= {"estimated"}
    print_devices()
    assert "trust" in capsys.readouterr().out


def test_the_nearest_name_is_offered():
    """And all that there are."""
    with pytest.raises(
        ConfigError, match=r"unknown device 'rasberry_pi4'; did you mean 'raspberry_pi_4'\? \(`edgesim list devices`"
    ):
        device_profiles.find("rasberry_pi4")


@pytest.mark.parametrize(
    ("key", "fields", "message"),
    [
        ("busy", {"value": 0, "unit": "W"}, "busy: must be above 0 W, got '0 W'"),
        ("idle", {"value": -1.5, "unit": "W"}, "idle: must be above 0 W, got '-1.5 W'"),
        ("transmit", {"value": 1, "unit": "dBm"}, "transmit: '1 dBm' is not a power"),
        ("battery", {"value": -1, "unit": "Wh"}, "battery: must be above 0 J, got '-1 Wh'"),
        ("memory", {"value": 0, "unit": "GB"}, "memory: must be above 0 byte"),
        ("memory", {"value": 4}, "memory: '4 ' has no unit"),
        ("frequency", {"value": 1.5}, "frequency: '1.5 ' has no unit"),
        ("frequency", {"value": float("inf"), "unit": "GHz"}, "frequency: 'inf GHz' is not a frequency"),
        ("cores", {"value": 0}, "cores: must be greater than or equal to 1, got 0"),
        ("cores", {"value": True}, "cores.value"),
        ("flops_per_cycle", {"value": 0}, "flops_per_cycle: must be greater than 0"),
        ("capacitance", {"value": -1e-28, "unit": "J*s*s"}, "capacitance: must be above 0"),
        ("up", {"value": 0, "unit": "Mbit/s"}, "up: must be above 0 bit/s"),
        ("efficiency", {"value": 0.5}, "flops_per_s: needs either flops_per_s, or efficiency"),
        ("efficiency", {"value": 1.2}, "efficiency: must be less than or equal to 1, got 1.2"),
        (
            "peak_flops_per_s",
            {"value": 9, "unit": "GFLOP/s"},
            r"flops_per_s: must be at most the peak of 9e\+09 FLOP/s",
        ),
        ("flops_per_s", {"value": 0, "unit": "FLOP/s"}, "flops_per_s: must be above 0"),
        ("idle", {"value": 1, "unit": "W", "estimate": True}, "idle: an estimate, and nothing else, needs `derived`"),
        ("idle", {"value": 1, "unit": "W", "derived": "x"}, "idle: an estimate, and nothing else, needs `derived`"),
        ("idle", {"value": 1, "unit": "W", "source": ""}, "idle.source"),
        ("idle", {"value": 1, "unit": "W", "note": "x"}, "idle.note"),
        ("idel", {"value": 1, "unit": "W"}, "idel: unknown key; did you mean 'idle'?"),
        ("terms.bytes", {"value": -0.5, "unit": "ns"}, "terms.bytes: must be at least 0 s, got '-0.5 ns'"),
        ("terms.bytes", {"unit": "ns"}, "terms.bytes.value: is missing"),
        ("terms.bytes", {"value": 0.5}, "terms.bytes: '0.5 ' has no unit"),
        ("terms.byte", {"value": 0.5, "unit": "ns"}, r"terms.byte: unknown kind of work; did you mean 'bytes'\?"),
        ("terms.other_flops", {"value": 0.5, "unit": "ns"}, "terms.other_flops: unknown kind of work"),
        ("spread", {"value": 0}, "spread: must be greater than 0"),
    ],
)
def test_impossible_physics_is_refused(tmp_path, key, fields, message):
    """One line that names the file and the key."""
    with pytest.raises(ConfigError, match=message) as refused:
        device_profiles.find(board(tmp_path, key, **fields))
    assert "board.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_less_power_at_work_than_at_rest_is_refused(tmp_path):
    """The device would gain energy by computing."""
    path = board(tmp_path, "busy", value=1, unit="W")
    path.write_text(path.read_text() + '[idle]\nvalue = 2\nunit = "W"\nsource = "test"\nyear = 2024\n')
    with pytest.raises(ConfigError, match="busy: must be at least idle, 2 W, got 1 W"):
        device_profiles.find(path)


def test_a_profile_without_speed_or_title_is_refused(tmp_path):
    """Both are needed."""
    path = tmp_path / "board.toml"
    path.write_text('title = "A board"\n')
    with pytest.raises(ConfigError, match=r"board\.toml: flops_per_s: needs either"):
        device_profiles.find(path)
    path.write_text(KNOWN.partition("\n")[2])
    with pytest.raises(ConfigError, match=r"board\.toml: title: is missing"):
        device_profiles.find(path)
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        device_profiles.find(tmp_path / "none.toml")


def test_a_profile_file_can_be_written_and_read(tmp_path):
    """Every profile comes back equal."""
    for profile in device_profiles.all():
        path = tmp_path / f"{profile.name}.toml"
        path.write_text(device_profiles.to_toml(profile), encoding="utf-8")
        assert device_profiles.read(path) == profile
    path = board(tmp_path, "terms.bytes", value=0.5, unit="ns")
    assert device_profiles.profile_of("board", toml_of(device_profiles.to_toml(device_profiles.read(path)), path)) == (
        device_profiles.read(path)
    )


def test_one_device_shows_its_sources(capsys):
    """As a table and as JSON."""
    device("raspberry_pi_4")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("11.433 GFLOP/s", "geerlingguy/top500-benchmark", "2024", "Same chip"))
    device("raspberry_pi_4", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["quantities"]["idle"] == {
        "value": "2.7 W",
        "si": 2.7,
        "year": "2019",
        "source": "Pi Dramble, Power Consumption Benchmarks",
        "estimate": "",
    }


def test_all_devices_as_json(capsys):
    """Name to what is known of it."""
    for name in device_profiles.names():
        device(name, as_json=True)
        assert json.loads(capsys.readouterr().out)["flops_per_s"] == device_profiles.find(name).flops_per_s
    assert device_profiles.find("dadpfl_gpu").flops_per_s == 16e12


def test_a_block_is_read_as_strictly_as_any():
    """A scenario's own keys are checked after merging."""
    with pytest.raises(ValueError, match="should be less than or equal to 1"):
        Cpu.model_validate(PI.merged({"cpu": {"efficiency": 1.5}})["cpu"])


def fleet_csv(folder, rows, *, shipped, slowest=1000):
    """Return a scenario whose fleet is a CSV file: each row names one of two profiles, and no two have one uplink."""
    (folder / "board.toml").write_text(KNOWN)
    (folder / "other.toml").write_text(KNOWN.replace("10", "20"))
    names = ("phone_mid", "raspberry_pi_4") if shipped else ("board.toml", "other.toml")
    lines = [f"{names[row % 2]},{slowest + row} kbit/s,9 Mbit/s,fixed" for row in range(rows)]
    (folder / "fleet.csv").write_text("profile,network.up,network.down,network.name\n" + "\n".join(lines))
    return timing_scenario().canonical() | {"fleet": str(folder / "fleet.csv")}


def calls_while_loading(scenario, names):
    """Return how often functions of these names were called while a scenario was loaded."""
    profile = cProfile.Profile()
    loaded = profile.runcall(load_scenario, scenario)
    stats = pstats.Stats(profile).stats
    return len(loaded.fleet), sum(calls for (_, _, name), (_, calls, *_) in stats.items() if name in names)


@pytest.mark.parametrize("shipped", spread([True, False], 1))
def test_a_profile_that_many_rows_name_is_checked_once(tmp_path, shipped):
    """150 rows of two profiles validate no more numbers of profiles, and build no more validators, than 50 rows."""
    checks = ("si_number", "_possible", "_init_core_attrs")  # the last is pydantic's, of each TypeAdapter
    few, checked = calls_while_loading(fleet_csv(tmp_path, 50, shipped=shipped), checks)
    many, checked_again = calls_while_loading(fleet_csv(tmp_path, 150, shipped=shipped), checks)
    assert (few, many) == (50, 150)
    assert checked_again <= checked


def test_the_units_of_a_profile_are_converted_once(tmp_path):
    """400 rows with uplinks that were never seen convert 400 numbers: those of their profiles are known."""
    load_scenario(fleet_csv(tmp_path, 50, shipped=True))
    rows, conversions = calls_while_loading(fleet_csv(tmp_path, 400, shipped=True, slowest=70_000), ("to",))
    assert rows == conversions == 400


def test_a_profile_file_that_changes_is_read_anew(tmp_path):
    """Also with as many bytes and the same time of change, which is all that a look at the folder shows."""
    scenario = fleet_csv(tmp_path, 3, shipped=False)
    board = tmp_path / "board.toml"
    before = board.stat()
    assert build_fleet(load_scenario(scenario)).flops_per_s.tolist() == [10e9, 20e9, 10e9]
    board.write_text(KNOWN.replace("10", "70"))
    os.utime(board, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert board.stat().st_size == before.st_size
    assert build_fleet(load_scenario(scenario)).flops_per_s.tolist() == [70e9, 20e9, 70e9]
    assert device_profiles.find(board).flops_per_s == 70e9
    board.write_text(KNOWN.replace("10", "-1"))
    with pytest.raises(ConfigError, match=r"board\.toml: flops_per_s: must be above 0"):
        load_scenario(scenario)


def test_profiles_of_one_text_keep_their_names(tmp_path):
    """A profile is called after its file, and two files may hold the same."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(KNOWN)
        assert device_profiles.find(tmp_path / f"{name}.toml").name == name


def test_equal_numbers_of_different_types_are_told_apart():
    """Python finds True == 1 == 1.0. As a number of cores, 1 is right, and neither 1.0 nor true."""
    table = {"title": "x", "flops_per_s": {"value": 1, "unit": "GFLOP/s", "source": "x", "year": 2024}}
    for given, fine in ((1, True), (True, False), (1, True)):
        cores = {"cores": {"value": given, "source": "x", "year": 2024}}
        if fine:
            assert device_profiles.profile_of("x", {**table, **cores}).si["cores"] == 1
        else:
            with pytest.raises(ValueError, match="cores"):
                device_profiles.profile_of("x", {**table, **cores})


def test_trust_follows_from_the_spread():
    """Of several networks, of one, and of none: then the spread of estimates."""
    pi, gpu, laptop = (device_profiles.find(name) for name in ("raspberry_pi_4", "v100", "laptop"))
    assert [each.trust for each in (pi, gpu, laptop)] == ["measured", "one point", "estimated"]
    assert pi.spread < gpu.spread < laptop.spread == device_profiles.ESTIMATED_SPREAD
