"""`[[session]]`: one of several trainings on a fleet, by what it does otherwise than the scenario says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, Le
from pydantic import BeforeValidator, Strict, StringConstraints
from pydantic import model_validator as validator

from edgesim.config.learning import Encodings, Evaluation, LocalTraining, Stop
from edgesim.config.merging import merged
from edgesim.config.plugin_fields import Chosen, PartOf, check_keys, refusal_at
from edgesim.config.strict_table import StrictTable
from edgesim.config.units import Delay, refusal
from edgesim.core.errors import ConfigError
from edgesim.core.job import SESSION_NAME
from edgesim.files.reading import quoted

# Keys of a scenario that all sessions share, as they are of the one world, host or run folder.
OF_THE_WORLD = frozenset(
    {
        *("seed", "backend", "fleet", "network", "energy", "slowdown", "availability", "failures", "topology"),
        *("server", "prices", "weights", "edges", "session", "extends"),
    }
)
OWN = ("name", "devices", "start")  # keys of a session that no scenario has

_LATEST_S = 1e9  # thirty years: much later, floats would not tell the ends of short jobs apart

Block: TypeAlias = tuple[str, int]  # name and count of a fleet block


def _listed(given: Any) -> Any:
    """Return the devices of a session as a list; one block alone needs no brackets."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple) or not given:
        raise refusal(f"must be a list of names of fleet blocks and of pairs [first, last], got {quoted(given)}")
    for each in given:
        if not isinstance(each, str | list | tuple):
            raise refusal(
                f"must be the name of a fleet block or a pair [first, last] of device ids, got {quoted(each)}"
            )
    return given


_Id: TypeAlias = Annotated[int, Ge(0)]
_Devices: TypeAlias = Annotated[
    tuple[str | Annotated[tuple[_Id, _Id], Strict(False)], ...], Strict(False), BeforeValidator(_listed)
]
_SessionName: TypeAlias = Annotated[str, StringConstraints(pattern=SESSION_NAME)]


class SessionTable(StrictTable):
    """One of several trainings on the fleet. What it does not say, the scenario does."""

    name: _SessionName  # in tables and file names, of letters, digits, _ and -; session1, ... unless given
    devices: _Devices | None = None  # whom it may ask: fleet blocks by name, and pairs [first, last] of ids; None: all
    start: Annotated[Delay, Le(_LATEST_S)] = 0.0  # when it begins, on the clock of the world; at most 1e9 s
    data: Annotated[Chosen, PartOf("data")] | None = None
    partition: Annotated[Chosen, PartOf("partition")] | None = None  # over its own devices
    data_seed: Annotated[int, Ge(0)] | None = None
    model: Annotated[Chosen, PartOf("model")] | None = None
    training: LocalTraining | None = None
    cost: Annotated[Chosen, PartOf("cost")] | None = None
    selection: Annotated[Chosen, PartOf("selection")] | None = None
    method: Annotated[Chosen, PartOf("method")] | None = None
    objective: Annotated[Chosen, PartOf("objective")] | None = None
    server_optimizer: Annotated[Chosen, PartOf("server_optimizer")] | None = None
    protocol: Annotated[Chosen, PartOf("protocol")] | None = None
    peers: Annotated[Chosen, PartOf("peers")] | None = None
    encoding: Encodings | None = None
    evaluation: Evaluation | None = None
    stop: Stop | None = None  # when this session ends; joules and money are those of the whole world

    @validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping | cls):
            raise refusal(f"must be a table, got {quoted(given)}")
        if isinstance(given, Mapping):
            for key in given:
                if key in OF_THE_WORLD:
                    allowed = ", ".join(cls.model_fields)
                    raise refusal_at(
                        key,
                        f"belongs to the scenario, whose world all sessions share (allowed here: {allowed})",
                        given[key],
                    )
            check_keys(given, cls.model_fields)
        return given

    @property
    def overrides(self) -> dict[str, Any]:
        """What this session has instead of the scenario's, by key of the scenario."""
        keys = (key for key in type(self).model_fields if key not in OWN)
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    @property
    def word(self) -> int:
        """A number below 2**31 that follows from the name, and names the random streams of the session."""
        return word_of(self.name)

    def spans(self, blocks: Sequence[Block]) -> list[tuple[int, int]] | None:
        """Return the first and last ids of the devices that it may ask, by the blocks of the fleet; None: all.

        Raises ConfigError for a block that is not there, and for ids that no device has.
        """
        if self.devices is None:
            return None
        lasts = [sum(count for _, count in blocks[: i + 1]) - 1 for i in range(len(blocks))]
        found: list[tuple[int, int]] = []
        for wanted in self.devices:
            if isinstance(wanted, str):
                spans = [
                    (last - count + 1, last)
                    for (name, count), last in zip(blocks, lasts, strict=True)
                    if name == wanted
                ]
                if not spans:
                    names = ", ".join(dict.fromkeys(name for name, _ in blocks))
                    raise ConfigError(f"no fleet block is called {quoted(wanted)} (there are {names})")
                found += spans
            elif not wanted[0] <= wanted[1] <= lasts[-1]:
                raise ConfigError(f"must be first and last of the ids 0 to {lasts[-1]}, got {list(wanted)}")
            else:
                found.append(wanted)
        return found


def word_of(name: str) -> int:
    """Return a number below 2**31 that follows from a name."""
    return int.from_bytes(sha256(name.encode()).digest()[:4]) >> 1


def with_sessions(given: Any) -> Any:
    """Return the table of a scenario whose sessions are laid over it: each has a name, and its sections are whole."""
    tables = given.get("session") if isinstance(given, Mapping) else None
    if not isinstance(tables, list | tuple):
        return given
    return {**given, "session": [_laid_over(given, each, place) for place, each in enumerate(tables)]}


def _laid_over(scenario: Mapping[str, Any], table: Any, place: int) -> Any:
    if not isinstance(table, Mapping):
        return table
    given = {key: value for key, value in table.items() if value is not None}
    shared = [key for key in given if key not in OWN and key in scenario]
    whole = merged({key: scenario[key] for key in shared}, {key: given[key] for key in shared})
    return {"name": f"session{place + 1}", **given, **whole}
