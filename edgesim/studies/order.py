"""Order of the cells of a study among processes, so that cells that train the same train once."""

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

# Keys of a scenario, and of a block of its fleet, that determine only times and costs.
_WORLD = frozenset({"network", "topology", "energy", "slowdown", "server"})
_WORLD_OF_DEVICES = frozenset({"name", "cpu", "network", "energy", "slowdown", "zone", "link"})
# Keys that determine only costs even if training depends on times, and protocols under which it does not: there a
# device learns the same, however long it takes, unless it is late.
_ENERGY = frozenset({"energy"})
_ROUNDS = ("sync", "deadline")


def learning_of(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios that are likely to train the same; "" if they share nothing.

    It is a guess, because only the simulation shows which devices are late. A wrong guess costs time but changes no
    result.
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
    """Return the cells as if no cell reads results of another one."""
    return [replace(each, learning="") for each in cells]


class Turns:
    """Queue of cells. Of cells that are likely to train the same, the first ends before the others start.

    Otherwise they would train in parallel at the same pace, and none could reuse results of another. `left_alone`:
    places of cells that another command is running, and of cells that are likely to train the same as those.
    """

    def __init__(self, cells: Sequence[Planned]) -> None:
        first: dict[str, int] = {}
        self._first = [first.setdefault(cell.learning, n) if cell.learning else n for n, cell in enumerate(cells)]
        self._waiting = sorted(range(len(cells)), key=lambda n: (self._first[n] != n, n))
        self._open = set(self._waiting)  # have not ended
        self.left_alone: list[int] = []

    def next(self) -> int | None:
        """Remove and return the place of the next cell; None if no cell may start now."""
        for n in self._waiting:
            if self._first[n] == n or self._first[n] not in self._open:
                self._waiting.remove(n)
                return n
        return None

    def end(self, place: int, elsewhere: bool = False) -> None:
        """Mark a cell as ended, or as `elsewhere`: another command is running it."""
        self._open.discard(place)
        if elsewhere:
            alike = [n for n in self._waiting if self._first[n] == place]
            self.left_alone += [place, *alike]
            self._waiting = [n for n in self._waiting if self._first[n] != place]


def _without(table: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}
