"""Tiny scenarios from which the fuzzer starts: together they have every kind of part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgesim.config.toml_file import read_toml

SHIPPED = Path(__file__).parents[2] / "scenarios"
Table = dict[str, Any]
_LEARNING = {"dadpfl_cifar10", "dadpfl_cost", "feddhad_cifar10"}  # their methods plan from training results

_CPU = {"frequency": "2 GHz", "cores": 4, "flops_per_cycle": 2, "efficiency": {"uniform": [0.002, 0.006]}}
_FLEET = [
    {"name": "slow", "count": 3, "level": 1, "cpu": _CPU},
    {"name": "fast", "count": 3, "level": 2, "cpu": {"flops_per_s": "100 MFLOP/s"}},
]
_FIXED = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "5 Mbit/s"]}, "down": "10 Mbit/s", "latency": "20 ms"}
_POWER = {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.8 W"}


def _null(**sections: Any) -> Table:
    """Return a scenario that simulates time alone."""
    base = {
        "seed": 1,
        "partition": {"name": "sizes", "samples_per_device": [20, 60]},
        "model": {"name": "cnn_cifar10"},
        "training": {"local_epochs": 1, "batch": 16, "lr": 0.1},
        "network": _FIXED,
        "energy": _POWER,
        "selection": {"name": "uniform", "count": 4},
        "method": {"name": "fedavg"},
        "backend": {"name": "null"},
        "stop": {"rounds": 3},
        "fleet": _FLEET,
    }
    return {key: section for key, section in {**base, **sections}.items() if section is not None}


def _trained(**sections: Any) -> Table:
    """Return a scenario that trains on a few digits."""
    data = {"name": "digits", "train_limit": 120, "test_limit": 40}
    trained = {
        "data": data,
        "partition": {"name": "iid"},
        "model": {"name": "cnn_digits"},
        "backend": {"name": "serial"},
    }
    return _null(**{**trained, "stop": {"rounds": 1}, **sections})


_WITH_PUBLIC_SAMPLES = {"two_networks_fashion"}  # of their data, without which the method cannot run


def _shipped() -> dict[str, Table]:
    """Return the scenarios that come with edgesim, without their data: most of it is not on every machine."""
    small = {"partition": {"name": "sizes", "samples_per_device": 20}, "backend": {"name": "null"}}
    digits = {key: _trained()[key] for key in ("data", "partition", "model", "backend")}
    tables = {path.stem: read_toml(path) for path in sorted(SHIPPED.glob("*.toml"))}
    return {
        name: {key: section for key, section in table.items() if key not in ("data", "extends")}  # in the file's order
        | (digits if name in _LEARNING else small)
        | {"stop": {"rounds": 2}}
        for name, table in tables.items()
        if "fleet" in table and name not in _WITH_PUBLIC_SAMPLES
    }


def bases() -> dict[str, Table]:
    """Return the scenarios by name."""
    peers = {"selection": None, "protocol": {"name": "sync"}, "peers": {"name": "ring"}}
    shared = {"name": "shared", "up": "5 Mbit/s", "down": "20 Mbit/s", "discipline": "fair"}
    tree = {"name": "tree", "edge_servers": 2, "edge_up": "50 Mbit/s", "server_down": "100 Mbit/s"}
    wireless = {"name": "wireless", "bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}, "fading": "per_round"}
    battery = {"capacity": "20 J", "charge": "3 W", "windows": [["22 h", "6 h"]], "level": {"uniform": [0.3, 1]}}
    with_battery = [{**block, "battery": battery} for block in _FLEET]
    clock = {"name": "terms", "flops": "0.1 ns", "bytes": "0.4 ns", "steps": "1 ms", "clocked": {"bytes": 0.2}}
    governed = {**_CPU, "min_frequency": "600 MHz", "governor": {"name": "just_in_time"}, "clock": clock}
    cpu_energy = {"name": "cpu", "capacitance": 1e-28, "idle": "0.5 W", "static": "0.5 W", "transmit": "1 W"}
    sessions = [{"name": "sessions", "on": "2 h", "off": "30 min"}, {"name": "diurnal", "zones": 3, "mean": 0.8}]
    crash, restart = {"name": "crash", "probability": 0.2}, {"name": "server_restart", "mean_time": "10 min"}
    outage = {"name": "link_outage", "up": "10 min", "down": "20 s"}
    load = {"name": "markov", "idle": "60 s", "busy": "20 s", "factor": 3}
    dirichlet = {"name": "dirichlet_label", "beta": 0.5}
    buffered = {"name": "buffered", "concurrency": 4, "buffer": 3, "staleness": "polynomial"}
    ours = {
        "plain": _null(),
        "deadline": _null(
            protocol={"name": "deadline", "deadline": "30 s", "minimum": 1, "late": "keep"},
            method={"name": "fedpmt", "rule": "deadline"},
            evaluation={"every": 1, "targets": [0.5, 0.9]},
            server={"flops_per_s": "1 TFLOP/s", "workers": 2, "idle": "5 W", "busy": "9 W"},
        ),
        "peers": _null(**peers, method={"name": "dfedavg", "reuse": 2}),
        "peers over shared links": _null(**peers, method={"name": "dpsgd"}, network=shared, topology=tree),
        "peers that break": _null(
            **peers,
            method={"name": "dfedavg", "reuse": 1},
            network=shared,
            fleet=with_battery,
            failures=[outage, crash],
        ),
        "shared": _null(network=shared, topology=tree, failures=[outage, crash]),
        "wireless": _null(network=wireless, slowdown={"name": "log_normal", "sigma": 0.3}),
        "batteries": _null(fleet=with_battery, availability={"name": "bernoulli", "p": 0.8, "retry": "60 s"}),
        "governors": _null(energy=cpu_energy, fleet=[{"name": "dvfs", "count": 4, "cpu": governed}], slowdown=load),
        "failures": _null(failures=[crash, outage, restart, {"name": "partial_work", "probability": 0.3}]),
        "availability": _null(availability=sessions, energy={**_POWER, "sleep": "0.1 W"}),
        "lifetime": _null(availability=[{"name": "lifetime", "join": {"uniform": ["0 s", "9 s"]}, "leave": "2 h"}]),
        "buffered": _null(method={"name": "fedbuff"}, protocol=buffered, failures=[restart, crash]),
        "tiers": _null(method={"name": "fedat"}, protocol={"name": "tiers", "tiers": 2}, failures=[restart, crash]),
        "over_selection": _null(protocol={"name": "over_selection", "keep": 2}, encoding={"up": "float16"}),
        "profiles": _null(fleet=[{"profile": "raspberry_pi_4", "count": 3}, {"profile": "jetson_nano"}], energy=None),
        "trained": _trained(encoding={"up": {"values": "qsgd", "bits": 8, "zeros": "cheapest"}, "down": "float16"}),
        "trained peers": _trained(**peers, method={"name": "dfedavgm"}),
        "trained buffered": _trained(method={"name": "fedasync"}, protocol={**buffered, "buffer": 1}),
        "trained dropout": _trained(method={"name": "feddrop", "channels": "all"}, partition=dirichlet),
    }
    return {**ours, **_shipped()}
