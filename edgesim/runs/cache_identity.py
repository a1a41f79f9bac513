"""The identity of a run in the result cache: a hash of its data, model, method and code, beside its jobs."""

from __future__ import annotations

from importlib.metadata import distributions
from typing import Any

import torch

from edgesim.execution.identity import Digests
from edgesim.files.code_identity import identity, named_files_digest
from edgesim.files.loaded_code import Unidentified
from edgesim.learning.models.build import digest_of
from edgesim.learning.train.torch_settings import processors
from edgesim.runs.assembly import Assembly
from edgesim.runs.fingerprint import REPORTING
from edgesim.runs.objectives import written_metrics

# Keys of a scenario that do not decide trained weights: devices, links and protocols affect training only through
# jobs, whose tasks, devices, steps and order are part of the identities of nodes. `session` overrides other keys.
_WORLD = (
    *("network", "topology", "energy", "slowdown", "selection", "protocol", "availability", "failures", "edges"),
    *("server", "session", "clock_error", "resources"),
)
_WORLD_OF_BLOCKS = frozenset(
    {*("count", "name", "level", "cpu", "network", "energy", "slowdown", "memory", "battery", "zone", "edge"), "link"}
    | {"x", "y", "model"}  # `facts_of` adds the model of each device
)


def facts_of(parts: Assembly) -> bytes:
    """Return the hash that is part of every identity of a run: runs of equal hashes may share cached results.

    A method whose server reads the clock's facts (`Needs.clock`) shares nothing between networks or devices. Raises
    Unidentified if the identity cannot be told, or if a file changed after the parts of the run were read from it.
    """
    scenario = parts.scenario
    table = scenario.canonical()
    if scenario.method.value.needs.clock:
        chosen: dict[str, Any] = {key: value for key, value in table.items() if key not in REPORTING}
    else:  # the keys that decide trained weights, whatever network and devices are
        chosen = {key: value for key, value in table.items() if key not in (*REPORTING, *_WORLD, "fleet")}
        blocks = [
            {key: value for key, value in block.items() if key not in _WORLD_OF_BLOCKS} for block in table["fleet"]
        ]
        chosen["fleet"] = sorted({_plain(block) for block in blocks})
    wanted_metrics = written_metrics(scenario)
    setting, backend = parts.setting, scenario.backend.value
    split, server_set, networks = parts.split, parts.server_set, setting.networks
    models = [model.table() for model in scenario.models]
    if (
        parts.named_files is not None
        and named_files_digest((parts.of_all or scenario).canonical()) != parts.named_files
    ):
        raise Unidentified("a file that the scenario names changed while the run began")
    torch_device = backend.device
    accelerators: list[str] = []
    if torch.device(torch_device) != torch.device("cpu"):
        accelerators = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    code = {
        **identity({**chosen, "backend": table["backend"], "models": models}),
        "processors": [*processors(), *accelerators],
    }
    return Digests().of(
        _plain(chosen),
        setting.samples,
        setting.level,
        "" if parts.data is None else parts.data.digest,
        [  # the samples of each device, and of the server
            [] if split is None else list(split.train),
            [] if split is None else list(split.test or ()),
            None if server_set is None else server_set.rows,
        ],
        torch_device,
        backend.rounding,
        _plain(code),
        *(("reports",) if setting.reports else ()),  # training returns them
        # random streams and members follow from the session
        *(([parts.session_word, setting.members],) if scenario.session else ()),
        *(("metrics", *wanted_metrics) if wanted_metrics else ()),  # tests return them
        *(("asked", setting.asked) if scenario.method.value.needs.asked else ()),
        *(() if setting.tier is None else ("tiers", setting.tier)),
        *(("attacks", parts.attacks) if parts.attacks else ()),
        *(
            ()
            if models == [scenario.model.table()]  # all devices have the scenario's model
            else ("networks", _plain(models), None if networks is None else networks.of_devices)
        ),
        digest_of({**dict(parts.module.named_parameters()), **dict(parts.module.named_buffers())}),  # and the base
    )


def facts_of_app(code: str) -> bytes:
    """Return the hash that is part of the identity of every call of an app, with the identity of its code.

    An app may depend on anything that is installed. Raises Unidentified if edgesim has changed since it was loaded.
    """
    installed = sorted({f"{each.metadata['Name']} {each.version}" for each in distributions()})
    return Digests().of("app", code, identity({}), processors(), installed)


def world_of(parts: Assembly) -> bytes:
    """Return the hash of the whole scenario without the keys that decide when a run ends and what it keeps.

    With several sessions it covers all of them, as each gets the resources that the others leave.
    """
    table = (parts.of_all or parts.scenario).canonical()
    own = (parts.session_word,) if parts.scenario.session else ()
    table = {key: table[key] for key in table.keys() - set(REPORTING)}
    return Digests().of(_plain(table), _plain(identity(table)), *own)


def _plain(value: Any) -> str:
    """Return a text of a resolved table that does not depend on the order of its keys."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key!r}:{_plain(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_plain, value))}]"
    return repr(value)
