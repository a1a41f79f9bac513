"""In which order the cells of a study are handed to processes, so that those that train the same do so once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from edgesim.config.scenario import Scenario
from edgesim.runs.fingerprint import REPORTING

if TYPE_CHECKING:
    from edgesim.studies.runs import Planned

# Keys of a scenario that decide how long things take and what they cost, and those of a block of its fleet.
_WORLD = frozenset({"network", "topology", "energy", "slowdown", "server"})
_WORLD_OF_DEVICES = frozenset({"name", "cpu", "network", "energy", "slowdown", "zone", "link"})
# Those that decide no more than that where times say who learns from whom, and the protocols under which they do not: a
# device learns the same, however long it takes, if it is in time.
_ENERGY = frozenset({"energy"})
_ROUNDS = ("sync", "deadline")


def learning_of(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios that are likely to train the same; "" if one can share nothing.

    It is a guess, for who is late is found out by simulating. A wrong one costs time and changes no result.
    """
    if not scenario.backend.value.trains:
        return ""
    world = of_devices = frozenset[str]()
    if not scenario.method.value.needs.clock:
        by_rounds = scenario.protocol.value.protocol in _ROUNDS
        world, of_devices = (_WORLD, _WORLD_OF_DEVICES) if by_rounds else (_ENERGY, _ENERGY)
    table = _without(scenario.canonical(), world.union(REPORTING))
    fleet = [_without(block, of_devices) for block in table["fleet"]]
    text = json.dumps({**table, "fleet": fleet}, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def apart(cells: Sequence[Planned]) -> list[Planned]:
    """Return cells as they are where none reads what another one has found out."""
    return [replace(each, learning="") for each in cells]


class Turns:
    """Cells that wait for a process. Of those that are likely to train the same, the first one ends before the others.

    They would train side by side otherwise, at one pace, so that none found the answers of another. `left_alone`: the
    places of cells that another command is at, and of those that are likely to train what it is training.
    """

    def __init__(self, cells: Sequence[Planned]) -> None:
        first: dict[str, int] = {}
        self._first = [first.setdefault(cell.learning, n) if cell.learning else n for n, cell in enumerate(cells)]
        self._waiting = sorted(range(len(cells)), key=lambda n: (self._first[n] != n, n))
        self._open = set(self._waiting)  # have not ended
        self.left_alone: list[int] = []

    def next(self) -> int | None:
        """Take and return the place of a cell whose turn it is, None while there is none."""
        for n in self._waiting:
            if self._first[n] == n or self._first[n] not in self._open:
                self._waiting.remove(n)
                return n
        return None

    def end(self, place: int, elsewhere: bool = False) -> None:
        """Take note that a cell has ended, or that it is `elsewhere`: another command is at it."""
        self._open.discard(place)
        if elsewhere:
            alike = [n for n in self._waiting if self._first[n] == place]
            self.left_alone += [place, *alike]
            self._waiting = [n for n in self._waiting if self._first[n] != place]


def _without(table: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}
