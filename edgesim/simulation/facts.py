"""What the values of a run follow from beside its jobs: data, model, method, and the code that computes with them."""

from __future__ import annotations

from typing import Any

import torch

from edgesim.runtime.identity import Digests
from edgesim.simulation.assembly import Assembly
from edgesim.simulation.fingerprint import REPORTING, named_files_digest, source_digest
from edgesim.simulation.networks import models_of
from edgesim.simulation.objectives import written_metrics

# Keys of a scenario from which trained weights follow, whatever its network, devices and prices are.
_LEARNING = (
    *("seed", "data", "data_seed", "partition", "model", "training", "method", "server_optimizer", "encoding", "peers"),
    "objective",
)


def facts_of(parts: Assembly) -> bytes:
    """Return the hash that is part of every identity of a run: two runs of equal facts may answer each other.

    A method whose server reads the clock's facts (`Needs.clock`) shares nothing between networks or devices.
    """
    scenario = parts.scenario
    table = scenario.canonical()
    wanted = table.keys() - set(REPORTING) if scenario.method.value.needs.clock else _LEARNING
    chosen = {key: table.get(key) for key in sorted(wanted)}
    wanted_metrics = written_metrics(scenario)
    setting, backend = parts.setting, scenario.backend.value
    return Digests().of(
        _plain(chosen),
        setting.samples,
        setting.level,
        "" if parts.data is None else parts.data.digest,
        _rows(parts),
        getattr(backend, "device", "cpu"),
        getattr(backend, "rounding", ""),
        source_digest(),
        named_files_digest(chosen),
        str(torch.__version__),
        *(("reports",) if setting.reports else ()),  # part of what training gives
        # from which its random streams follow, and who takes part
        *(([parts.session_word, setting.members],) if scenario.session else ()),
        *(("metrics", *wanted_metrics) if wanted_metrics else ()),  # part of what tests give
        *(("asked", setting.asked) if scenario.method.value.needs.asked else ()),
        *(("attacks", parts.attacks) if parts.attacks else ()),
        *_networks(parts),
    )


def _networks(parts: Assembly) -> list[Any]:
    """Return which networks devices have, if these are not all the scenario's `model`."""
    models, networks = [model.table() for model in models_of(parts.scenario)], parts.setting.networks
    if models == [parts.scenario.model.table()]:
        return []
    return ["networks", _plain(models), None if networks is None else networks.of_devices]


def _rows(parts: Assembly) -> list[Any]:
    """Return which samples everybody has, to train on and to test with."""
    split, server_set = parts.split, parts.server_set
    return [
        [] if split is None else list(split.train),
        [] if split is None else list(split.test or ()),
        None if server_set is None else server_set.rows,
    ]


def world_of(parts: Assembly) -> bytes:
    """Return the hash of the whole scenario, but for when a run ends and what it keeps.

    Of several sessions it is that of all, as each has to do with what the others leave it.
    """
    table = (parts.of_all or parts.scenario).canonical()
    own = (parts.session_word,) if parts.scenario.session else ()
    return Digests().of(_plain({key: table[key] for key in table.keys() - set(REPORTING)}), *own)


def _plain(value: Any) -> str:
    """Return a text of a resolved table, which tells equal tables by whatever order their keys were written in."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{_plain(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_plain, value))}]"
    return repr(value)
