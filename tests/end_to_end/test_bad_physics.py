"""Physics that cannot be is refused in one line before anything is written; fleets that never finish end a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from edgesim.reports.load import open_run
from tests.calling import TINY, call
from tests.end_to_end.test_bad_input import MANY, UNTRAINED, Bad, check
from tests.sizes import full

POSSIBLE = {
    "frequency": "1 GHz",
    "cores": "2",
    "flops_per_cycle": "4",
    "efficiency": "0.5",
    "idle": "1 W",
    "busy": "4 W",
    "transmit": "1 W",
    "receive": "1 W",
    "memory": "1 GB",
    "battery": "10 Wh",
    "up": "1 Mbit/s",
    "down": "8 Mbit/s",
    "latency": "20 ms",
    "capacitance": "1e-28 J*s*s",
}


def settings(overrides: Sequence[str]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def write_profile(here: Path, **changes: str | None) -> None:
    """Write mine.toml: a possible device with some numbers changed; None: left out."""
    lines = ['title = "Mine"']
    for key, text in {**POSSIBLE, **changes}.items():
        if text is not None:
            value, _, unit = text.partition(" ")
            lines += [
                f"[{key}]",
                f"value = {value}",
                f'unit = "{unit}"' if unit else "",
                'source = "me"',
                "year = 2024",
            ]
    (here / "mine.toml").write_text("\n".join(lines))


def device(says: str, **changes: str | None) -> Bad:
    """An impossible device of one's own."""
    return Bad(
        f"fleet: mine.toml: {says}", ["fleet.0.profile=mine.toml"], prepare=lambda h: write_profile(h, **changes)
    )


DEVICES = {
    "nothing drawn": device("busy: must be above 0 W, got '0 W'", busy="0 W"),
    "negative idle": device("idle: must be above 0 W, got '-1 W'", idle="-1 W"),
    "negative radio": device("transmit: must be above 0 W, got '-2 W'", transmit="-2 W"),
    "busy below idle": device("busy: must be at least idle, 1 W, got 0.5 W", busy="0.5 W"),
    "endless power": device("receive: 'inf W' is not a power; give a number in W or a", receive="inf W"),
    "better than the peak": device("efficiency: must be less than or equal to 1, got 1.2", efficiency="1.2"),
    "faster than the peak": device(
        "flops_per_s: must be at most the peak of 8e+09 FLOP/s, got 9e+09 FLOP/s",
        flops_per_s="9 GFLOP/s",
        efficiency=None,
    ),
    "two speeds": device("flops_per_s: needs either flops_per_s, or efficiency and", flops_per_s="1 GFLOP/s"),
    "no speed": device("flops_per_s: needs either flops_per_s, or efficiency and", efficiency=None),
    "no clock": device("frequency: must be above 0 Hz, got '0 GHz'", frequency="0 GHz"),
    "no cores": device("cores: must be greater than or equal to 1, got 0", cores="0"),
    "half a core": device("cores: must be a whole number, got 1.5", cores="1.5"),
    "endless work a cycle": device("flops_per_cycle: must be a finite number, got inf", flops_per_cycle="inf"),
    "no memory": device("memory: must be above 0 byte, got '0 GB'", memory="0 GB"),
    "no battery": device("battery: must be above 0 J, got '0 Wh'", battery="0 Wh"),
    "battery below zero": device("battery: must be above 0 J, got '-1 Wh'", battery="-1 Wh"),
    "battery in watts": device("battery: '10 W' is not an energy; give a number in J", battery="10 W"),
    "no bandwidth": device("up: must be above 0 bit/s, got '0 Mbit/s'", up="0 Mbit/s"),
    "messages from the future": device("latency: must be at least 0 s, got '-1 ms'", latency="-1 ms"),
    "no capacitance": device("capacitance: must be above 0 J*s*s, got '0 J*s*s'", capacitance="0 J*s*s"),
    "unknown quantity": device("tdp: unknown key (allowed: title, frequency, cores", tdp="5 W"),
}


def keys_of(key: str, says: str, keys: str, *more: str) -> Bad:
    """Impossible keys of one table."""
    return Bad(f"{key}.{says}", [f"{key}={{{keys}}}", *more])


energy, network, slowdown, server, topology, failures = (
    partial(keys_of, key) for key in ("energy", "network", "slowdown", "server", "topology", "failures")
)
cpu, battery = partial(keys_of, "fleet.0.cpu"), partial(keys_of, "fleet.0.battery")
POWER, CPU, RADIO, LOAD = "name='power'", "name='cpu'", "name='wireless',", "name='markov', idle='1 s', busy='1 s'"
NEAR = f"{RADIO} bandwidth='1 MHz', distance_m=5"
CLOCK = "frequency='1 GHz', flops_per_cycle=2"
CLOCKS = (f"fleet.0.cpu={{{CLOCK}}}", f"fleet.1.cpu={{{CLOCK}}}")
BETWEEN = "frequency={uniform=['1 GHz', '2 GHz']}, flops_per_cycle=2"
WINDOW = "capacity='1 kJ', windows="
SPREAD = "normal=['1 J', '3 J']"

POWERS = {
    "negative busy": energy("busy: must be at least 0 W, got '-1 W'", f"{POWER}, busy='-1 W'"),
    "negative idle": energy("idle: must be at least 0 W, got '-1 W'", f"{POWER}, idle='-1 W', busy='4 W'"),
    "negative transmit": energy("transmit: must be at least 0 W, got '-1 W'", f"{POWER}, busy='4 W', transmit='-1 W'"),
    "negative sleep": energy("sleep: must be at least 0 W, got '-1 W'", f"{POWER}, busy='4 W', sleep='-1 W'"),
    "busy below idle": energy("busy: must be at least idle, found a device 2 W below", f"{POWER}, idle=3, busy=1"),
    "drawn below zero": energy(
        "busy: a value drawn from normal = [1.0, 3.0] must be at least 0 W, got -",
        f"{POWER}, busy={{normal=[1, 3]}}",
        *MANY,
    ),
    "no capacitance": energy("capacitance: must be greater than 0, got 0", f"{CPU}, capacitance=0"),
    "endless capacitance": energy("capacitance: must be a finite number, got inf", f"{CPU}, capacitance=inf"),
    "negative static": energy("static: must be at least 0 W, got '-1 W'", f"{CPU}, static='-1 W'", *CLOCKS),
    "links that give energy": network(
        "energy_per_bit: must be at least 0 J/bit, got -1", "name='fixed', up=1, down=1, energy_per_bit=-1"
    ),
    "server that gives energy": server("idle: must be at least 0 W, got '-1 W'", "idle='-1 W'"),
    "server busy below idle": server("busy: must be at least idle, 5 W, got 1 W", "flops_per_s=1e9, idle=5, busy=1"),
    "server without speed": server("flops_per_s: must be above 0 FLOP/s, got 0", "flops_per_s=0"),
}

COMPUTING = {
    "better than the peak": cpu("efficiency: must be less than or equal to 1, got 1.5", f"{CLOCK}, efficiency=1.5"),
    "no efficiency": cpu("efficiency: must be greater than 0, got 0", f"{CLOCK}, efficiency=0"),
    "endless work a cycle": cpu("flops_per_cycle: must be a finite number", "frequency='1 GHz', flops_per_cycle=inf"),
    "no clock": cpu("frequency: must be above 0 Hz, got '0 Hz'", "frequency='0 Hz', flops_per_cycle=2"),
    "no cores": cpu("cores: must be greater than or equal to 1, got 0", f"{CLOCK}, cores=0"),
    "lowest above highest": cpu(
        "min_frequency: must be at most frequency, 1e+09 Hz, got 2e+09 Hz", f"{CLOCK}, min_frequency=2e9"
    ),
    "lowest above one drawn": cpu(
        "min_frequency: must be at most frequency, 1.", f"{BETWEEN}, min_frequency=1.9e9", *MANY
    ),
    "lowest of none": cpu(
        "min_frequency: must be at most frequency, none given, got 1e+09 Hz", "flops_per_s=1e8, min_frequency=1e9"
    ),
    "governed beyond": cpu(
        "governor.frequency: 2e+09 Hz is not what every CPU can do, one has 1e+09 Hz to 1e+09 Hz",
        f"{CLOCK}, governor={{name='fixed', frequency='2 GHz'}}",
    ),
    "nothing to govern by": cpu("governor.name: needs an energy model with a", f"{CLOCK}, governor='energy_optimal'"),
    "time gained": cpu(
        "clock.steps: must be at least 0 s, got '-1 s'", "flops_per_s=1e8, clock={name='terms', steps='-1 s'}"
    ),
    "work of no kind": cpu(
        "clock.flop: unknown key; did you mean 'flops'?", "flops_per_s=1e8, clock={name='terms', flop='1 ns'}"
    ),
    "a clock without seconds": cpu(
        "clock: needs the seconds of at least one kind of work", "flops_per_s=1e8, clock={name='terms', flops=0}"
    ),
    "a share of no kind": cpu(
        "clock.clocked: unknown kind of work 'byte' (known: flops, bytes,",
        "flops_per_s=1e8, clock={name='terms', flops='1 ns', clocked={byte=0.5}}",
    ),
    "more than all of it": cpu(
        "clock.clocked.bytes: must be less than or equal to 1, got 2",
        "flops_per_s=1e8, clock={name='terms', flops='1 ns', clocked={bytes=2}}",
    ),
    "no memory": Bad("fleet.0.memory: must be above 0 byte, got '0 B'", ["fleet.0.memory='0 B'"]),
    "negative memory": Bad("fleet.0.memory: must be above 0 byte, got -1", ["fleet.0.memory=-1"]),
    "load that helps": slowdown("factor: must be greater than or equal to 1, got 0.5", f"{LOAD}, factor=0.5"),
    "load without end": slowdown("factor: must be a finite number, got inf", f"{LOAD}, factor=inf"),
    "negative slow-down": slowdown(
        "scale: must be greater than or equal to 0", "name='shifted_exponential', scale=-0.1"
    ),
    "infinite mean": slowdown("alpha: must be greater than 1, got 1", "name='pareto', alpha=1"),
}

BATTERIES = {
    "no capacity": battery("capacity: must be above 0 J, got 0", "capacity=0"),
    "capacity below zero": battery("capacity: must be above 0 J, got '-5 J'", "capacity='-5 J'"),
    "capacity drawn below zero": battery(
        "capacity: a value drawn from normal = [1.0, 3.0] must be above 0 J, got -", f"capacity={{{SPREAD}}}", *MANY
    ),
    "fuller than full": battery("level: must be less than or equal to 1, got 1.5", "capacity='1 kJ', level=1.5"),
    "emptier than empty": battery("level: must be greater than or equal to 0, got -0.1", "capacity='1 kJ', level=-0.1"),
    "negative charge": battery("charge: must be at least 0 W, got '-1 W'", "capacity='1 kJ', charge='-1 W'"),
    "back with nothing": battery("restart: must be greater than 0, got 0", "capacity='1 kJ', restart=0"),
    "back with too much": battery("restart: must be less than or equal to 1, got 2", "capacity='1 kJ', restart=2"),
    "window beyond the day": battery(
        "windows: must lie within 24 h and last, got [90000 s, 93600 s]", f"{WINDOW}[['25 h', '26 h']]"
    ),
    "window without length": battery(
        "windows: must lie within 24 h and last, got [21600 s, 21600 s]", f"{WINDOW}[['6 h', '6 h']]"
    ),
    "window before the day": battery("windows.0.0: must be at least 0 s, got '-1 h'", f"{WINDOW}[['-1 h', '6 h']]"),
    "window without an end": battery("windows.0.1: is missing", f"{WINDOW}[['6 h']]"),
}

LINKS = {
    "latency before sending": Bad("network.latency: must be at least 0 s, got '-1 ms'", ["network.latency=-1 ms"]),
    "endless latency": Bad("network.latency: must be finite, got inf", ["network.latency=inf"]),
    "negative jitter": Bad("network.jitter: must be at least 0 s, got '-1 ms'", ["network.jitter=-1 ms"]),
    "jitter of nothing": Bad("network.jitter: needs a latency above 0 to vary, found a", ["network.jitter=1 ms"]),
    "all lost": Bad("network.loss: must be less than 1, got 1", ["network.loss=1"]),
    "more than all lost": Bad("network.loss: must be less than 1, got 1.5", ["network.loss=1.5"]),
    "all lost by chance": Bad("network.loss: must be less than 1, got 1", ["network.loss={uniform=[0, 1]}"]),
    "no bandwidth": network("bandwidth: must be above 0 Hz, got '0 Hz'", f"{RADIO} bandwidth='0 Hz', distance_m=9"),
    "at the antenna": network("distance_m: must be greater than 0, got 0", f"{RADIO} bandwidth=1e6, distance_m=0"),
    "out of reach": network("distance_m: so far away that no signal", f"{RADIO} bandwidth=1e6, distance_m=1e300"),
    "nearer than the model": network("distance_m: uma_los holds from 10 m to 5000 m", f"{NEAR}, path_loss='uma_los'"),
    "noise like thunder": network("noise_dbm_per_hz: must be less than or equal to 0", f"{NEAR}, noise_dbm_per_hz=9"),
    "no noise": network("noise_dbm_per_hz: must be greater than or equal to -200", f"{NEAR}, noise_dbm_per_hz=-inf"),
    "negative shadow": network("shadowing_db: must be greater than or equal to 0, got -1", f"{NEAR}, shadowing_db=-1"),
    "silent device": network("power: must be above 0 W, got '0 W'", f"{NEAR}, power='0 W'"),
    "silent server": network("server_power: must be above 0 W, got '-1 W'", f"{NEAR}, server_power='-1 W'"),
    "louder than a float": network("power: must be finite, got '9999 dBm'", f"{NEAR}, power='9999 dBm'"),
    "buried antenna": network("device_height_m: must be greater than 1, got 1", f"{NEAR}, device_height_m=1"),
    "no carrier": network("carrier: must be above 0 Hz, got 0", f"{NEAR}, carrier=0"),
}

SHARED = "network={name='shared', up='1 Mbit/s', down='8 Mbit/s'}"
WIRED = "a,b,bps_ab,bps_ba,latency_s\n0,1,1e6,1e6,0\n0,2,1e6,1e6,0\n0,3,1e6,1e6,0\n"
UNREACHED = "topology: no path of links leads from the server (node 0) to device 3 (node 4)"
NEVER = "is 0 for ever after, so that nothing would end"
OUTAGE = "name='link_outage'"


def file_of(name: str, text: str) -> Callable[[Path], object]:
    return lambda here: (here / name).write_text(text)


def wires(says: str, more: str = "") -> Bad:
    """Links of a file."""
    return Bad(says, [SHARED, "topology={name='file', file='links.csv'}"], prepare=file_of("links.csv", WIRED + more))


def fifth(says: str, line: str) -> Bad:
    """A fifth line that cannot be."""
    return wires(f"{{here}}/links.csv, line 5: {says}", line)


def rates(says: str, rows: str, *more: str) -> Bad:
    """Rates of a file."""
    given = ", ".join(["name='trace'", "file='rates.csv'", *more])
    text = f"time_s,up_bps,down_bps\n{rows}"
    return Bad(f"{{here}}/rates.csv line {says}", [f"network={{{given}}}"], prepare=file_of("rates.csv", text))


WIRES = {
    "no edge servers": topology(
        "edge_servers: must be greater than or equal to 1, got 0", "name='tree', edge_servers=0"
    ),
    "deaf server": topology("server_down: must be above 0 bit/s, got 0", "name='star', server_down=0", SHARED),
    "too many neighbours": topology(
        "degree: must be above 0, below the number of nodes (5) and, if that is odd, even, got 5",
        "name='random_regular', degree=5",
        SHARED,
    ),
    "unused wires": topology(
        "name: links beyond the devices' own need a network of constant rates, such as fixed",
        "name='tree', edge_servers=2",
        "network={name='wireless', bandwidth='1 MHz', distance_m=100}",
    ),
    "device without a wire": wires(UNREACHED),
    "devices on an island": wires(UNREACHED, "4,5,1e6,1e6,0\n"),
    "dead wire": fifth("bps_ba must be above 0 bit/s, got 0.0", "0,4,1e6,0,0\n"),
    "wire into the past": fifth("latency_s must be at least 0 s, got -1.0", "0,4,1e6,1e6,-1\n"),
    "wire to oneself": fifth("a and b are one node, got 4 and 4", "4,4,1e6,1e6,0\n"),
    "two wires": fifth("a and b are wired already, got 3 and 0", "3,0,1e6,1e6,0\n"),
    "negative rate": rates("2: up_bps must be a finite number of at least 0, got '-1'", "0,-1,1e6\n"),
    "down for ever": rates(f"3: up_bps {NEVER}", "0,9,9\n5,0,9\n", "repeat=false"),
    "down in every period": rates(f"2: down_bps {NEVER}", "0,1e6,0\n"),
    "time runs back": rates("3: time_s must rise, got 0 after 0", "0,1e6,1e6\n0,1e6,1e6\n"),
    # 6090 numbers of 4 bytes at 1 Mbit/s, in 200,000 times that the link is up
    "hardly ever up": failures(
        "up: a model that takes 0.19488 s over the link of device 0, up for 1e-06 s at a time, would take about "
        "1.9e+05 steps, there may be 10,000 at most",
        f"{OUTAGE}, up='1 us', down='1 s'",
    ),
    "never up": failures("up: must be above 0 s, got '0 s'", f"{OUTAGE}, up='0 s', down='1 s'"),
    "down without end": failures("down: must be finite, got inf", f"{OUTAGE}, up='1 s', down=inf"),
}

TABLES = {"device": DEVICES, "power": POWERS, "cpu": COMPUTING, "battery": BATTERIES, "link": LINKS, "wire": WIRES}
IMPOSSIBLE = {f"{table}: {name}": bad for table, cases in TABLES.items() for name, bad in cases.items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario and a device that can be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(TINY)
    write_profile(tmp_path)
    return tmp_path


@pytest.mark.parametrize("bad", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_physics_is_one_line(here: Path, bad: Bad) -> None:
    """Key or file, what was found and what is allowed; nothing is written."""
    bad.prepare(here)
    check(here, ["run", "scenario.toml", "--out", "run", *settings(bad.overrides)], bad.says)


def test_what_the_impossible_devices_vary_is_possible(here: Path) -> None:
    """So each of them is refused for the number it changes."""
    assert call("validate", "scenario.toml", "--set", "fleet.0.profile=mine.toml").code == 0


# --- fleets in which nobody can ever finish ---------------------------------------------------------------------

# Neither the rounds nor the time are meant to be reached: they end what would otherwise never end.
PATIENT = "stop={rounds=60, sim_time='36500 d'}"
PROTOCOLS: dict[str, Sequence[str]] = {
    "rounds": [],
    "rounds over shared links": [SHARED],
    "deadline": ["protocol={name='deadline', deadline='1 d'}"],
    "buffer": ["method=fedbuff", "protocol={name='buffered', concurrency=2, buffer=1}"],
    "peers": ["method=dfedavg", "peers=ring"],
}
ALL = tuple(PROTOCOLS)
WITH_SERVER = ALL[:4]

LEFT = "no device can take part any more: none is there and on, and none will ever be again"
UNFIT = "no device of the fleet has the memory to train what the method asks for"
UNSEEN = "no device was reachable and on at any of 50 looks in a row"
IN_VAIN = {**dict.fromkeys(ALL, "20 rounds in a row brought no update"), "buffer": "40 jobs in a row did not fill"}


def batteries(keys: str) -> tuple[str, str]:
    return f"fleet.0.battery={{{keys}}}", f"fleet.1.battery={{{keys}}}"


def seen(*files: str) -> Bad:
    """Devices that are there only at the times of all these files."""
    parts = ", ".join(f"{{name='trace', file='seen{place}.csv'}}" for place in range(len(files)))

    def write(here: Path) -> None:
        for place, rows in enumerate(files):
            (here / f"seen{place}.csv").write_text(f"device,start,end\n{rows}")

    return Bad(LEFT, [f"availability=[{parts}]"], prepare=write)


FULL, DEAD = batteries("capacity='1 MJ'"), batteries("capacity='0.5 J'")
# Training takes 24 MFLOP at 50 or 100 MFLOP/s and 4 W: 0.2 s and 1 J at least.
HOPELESS: dict[str, tuple[Sequence[str], Bad]] = {
    "no memory": (ALL, Bad(UNFIT, ["fleet.0.memory='1 B'", "fleet.1.memory='1 B'"])),
    "empty batteries": (WITH_SERVER, Bad(LEFT, batteries("capacity='1 kJ', level=0"))),
    "batteries too small": (WITH_SERVER, Bad(LEFT, batteries("capacity='0.5 J'"))),
    "batteries too small to charge": (
        WITH_SERVER, Bad("", batteries("capacity='0.5 J', charge='0.5 W', windows=[['0 h', '24 h']]")),
    ),
    "never there": (ALL, seen("0,0,0.1\n")),
    "never there together": (ALL, seen("0,0,9\n1,0,9\n", "0,9,20\n2,0,9\n")),
    "gone for ever": (ALL, Bad(LEFT, ["availability={name='lifetime', leave='0.1 s'}"])),
    "gone with full batteries": (WITH_SERVER, Bad(LEFT, ["availability={name='lifetime', leave='0.1 s'}", *FULL])),
    "there with dead batteries": (WITH_SERVER, Bad(LEFT, ["availability={name='sessions', on=9, off=9}", *DEAD])),
    "asked with dead batteries": (WITH_SERVER, Bad(LEFT, ["availability={name='bernoulli', p=0.5}", *DEAD])),
    "hardly ever there": (ALL, Bad(UNSEEN, ["availability={name='bernoulli', p=1e-5}"])),
    "never there for long": (ALL, Bad("", ["availability={name='sessions', on='1 ms', off='1 s'}"])),
    "always crashing": (ALL, Bad("", ["failures={name='crash', probability=1, phase='training'}"])),
    "no time": (["rounds"], Bad("", ["protocol={name='deadline', deadline='1 ms'}"])),
}  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "case"),
    [
        pytest.param(p, bad, id=f"{name}: {p}", marks=[] if place == len(name) % len(several) else full)
        for name, (several, bad) in HOPELESS.items()
        for place, p in enumerate(several)
    ],
)
def test_a_fleet_that_never_finishes_ends_the_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, case: Bad
) -> None:
    """With less patience than usual, so that it takes no time; the reason is in the run folder."""
    for limit, most in {"MOST_ROUNDS": 20, "MOST_FILLS": 20, "MOST_LOOKS": 50}.items():
        monkeypatch.setattr(f"edgesim.engine.watchdog.{limit}", most)
    case.prepare(here)
    overrides = settings([*UNTRAINED, PATIENT, *PROTOCOLS[protocol], *case.overrides])
    code, out, err = call("run", "scenario.toml", "--out", "run", "--quiet", *overrides)
    assert (code, out) == (0, "run\n")
    assert all(".battery: will never charge" in line for line in err.splitlines())
    manifest = json.loads((here / "run" / "manifest.json").read_text())
    assert (manifest["status"], manifest["gave_up"]) == ("finished", True)
    assert manifest["stop_reason"].startswith(case.says or IN_VAIN[protocol])


def test_the_reason_is_printed(here: Path) -> None:
    """Below the results, as the exit code is that of any finished run."""
    overrides = settings([*UNTRAINED, "fleet.0.memory='1 B'", "fleet.1.memory='1 B'"])
    code, out, _ = call("run", "scenario.toml", "--out", "run", *overrides)
    assert (code, out.splitlines()[-1]) == (0, f"stopped: {UNFIT}")


def test_a_full_battery_waits_for_its_device(here: Path) -> None:
    """Nobody is there before 10 s, though all are on: the clock moves on to that instant."""
    overrides = settings([*UNTRAINED, "availability={name='lifetime', join='10 s'}", *FULL])
    assert call("run", "scenario.toml", "--out", "run", "--quiet", *overrides).code == 0
    run = open_run(here / "run")
    assert (run.jobs["sent_s"].tolist(), run.manifest["gave_up"]) == ([10, 10], False)


@pytest.mark.parametrize("links", WITH_SERVER[:2])
@pytest.mark.parametrize(
    "away",
    [
        "failures={name='link_outage', up='1 s', down='1e30 s'}",
        "availability={name='sessions', on='1 s', off='1e30 s'}",
    ],
)
def test_ages_pass_in_no_time(here: Path, links: str, away: str) -> None:
    """A device that is out of reach for longer than its clock can count seconds costs nothing to wait for."""
    overrides = settings([*UNTRAINED, "stop.rounds=2", *PROTOCOLS[links], away])
    assert call("run", "scenario.toml", "--out", "run", "--quiet", *overrides).code == 0
    assert json.loads((here / "run" / "manifest.json").read_text())["stop_reason"] == "2 rounds done"
