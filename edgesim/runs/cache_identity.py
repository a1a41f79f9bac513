"""What the values of a run follow from beside its jobs: data, model, method, and the code that computes with them."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from edgesim.config.scenario import Scenario
from edgesim.execution.identity import Digests
from edgesim.files.code_identity import identity, named_files_digest
from edgesim.files.loaded_code import Unidentified
from edgesim.runs.assembly import Assembly
from edgesim.runs.fingerprint import REPORTING
from edgesim.runs.network import models_of
from edgesim.runs.objectives import written_metrics

# Keys of a scenario from which no trained weights follow: what devices, links and protocols do reaches training only as
# jobs, whose tasks, devices, steps and order are part of the identities of nodes. `session` lays keys over others.
_WORLD = (
    *("network", "topology", "energy", "slowdown", "selection", "protocol", "availability", "failures", "edges"),
    *("server", "session"),
)
_WORLD_OF_BLOCKS = frozenset(
    {*("count", "name", "level", "cpu", "network", "energy", "slowdown", "memory", "battery", "zone", "edge"), "link"}
    | {"x", "y", "model"}  # the last one is told by `_networks`, device by device
)


def facts_of(parts: Assembly) -> bytes:
    """Return the hash that is part of every identity of a run: two runs of equal facts may answer each other.

    A method whose server reads the clock's facts (`Needs.clock`) shares nothing between networks or devices. Raises
    Unidentified if it cannot be told what the run follows from.
    """
    scenario = parts.scenario
    chosen = _learned_from(scenario)
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
        _plain(_identity(parts, chosen)),
        *(("reports",) if setting.reports else ()),  # part of what training gives
        # from which its random streams follow, and who takes part
        *(([parts.session_word, setting.members],) if scenario.session else ()),
        *(("metrics", *wanted_metrics) if wanted_metrics else ()),  # part of what tests give
        *(("asked", setting.asked) if scenario.method.value.needs.asked else ()),
        *(("attacks", parts.attacks) if parts.attacks else ()),
        *_networks(parts),
    )


def _learned_from(scenario: Scenario) -> dict[str, Any]:
    """Return the part of a resolved scenario that decides trained weights, whatever its network and devices are."""
    table = scenario.canonical()
    if scenario.method.value.needs.clock:
        return {key: value for key, value in table.items() if key not in REPORTING}
    chosen = {key: value for key, value in table.items() if key not in (*REPORTING, *_WORLD, "fleet")}
    blocks = [{key: value for key, value in block.items() if key not in _WORLD_OF_BLOCKS} for block in table["fleet"]]
    return {**chosen, "fleet": sorted({_plain(block) for block in blocks})}


def _identity(parts: Assembly, table: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a table's results with the processor and the backend's code.

    Raises Unidentified, also if a file changed after the parts of the run were read from it.
    """
    world = parts.of_all or parts.scenario
    if parts.named_files is not None and named_files_digest(world.canonical()) != parts.named_files:
        raise Unidentified("a file that the scenario names changed while the run began")
    backend, models = parts.scenario.canonical()["backend"], [model.table() for model in models_of(parts.scenario)]
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        **identity({**table, "backend": backend, "models": models}),
        "processors": [capability, _processor(), *_accelerators(parts)],
    }


def _accelerators(parts: Assembly) -> list[str]:
    """Return the names of the GPUs that torch sees, if the run trains on one."""
    if torch.device(getattr(parts.scenario.backend.value, "device", "cpu")) == torch.device("cpu"):
        return []
    return [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]


@cache
def _processor() -> list[str]:
    """Return the name and the instruction sets of this machine's processor, which choose kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})


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
    table = {key: table[key] for key in table.keys() - set(REPORTING)}
    return Digests().of(_plain(table), _plain(identity(table)), *own)


def _plain(value: Any) -> str:
    """Return a text of a resolved table, which tells equal tables by whatever order their keys were written in."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{_plain(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_plain, value))}]"
    return repr(value)
