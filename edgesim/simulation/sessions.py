"""The parts of all trainings of a scenario, in one world."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import TypeVar

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario, SessionTable
from edgesim.core.backend import Backend
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.engine.batteries import FleetBatteries
from edgesim.simulation.assembly import Assembly, Build, Load, assemble, build_network, load_data

_BACKEND = ("trains", "train", "evaluate", "evaluate_personal", "close")  # what a part of the kind "backend" opens
_T = TypeVar("_T")


def assemble_all(scenario: Scenario, load: Load = load_data, build: Build = build_network) -> tuple[Assembly, ...]:
    """Return what each training of a scenario is made of; all are in the world of the first. Raises as `assemble`.

    A data set that several sessions have is loaded once.
    """
    once = _remembering(load)
    found: list[Assembly] = []
    for place, alone in enumerate(scenario.trainings):
        parts = _named(scenario, place, partial(assemble, alone, once, build))
        if found:
            world = found[0]
            parts = replace(
                parts, fleet=world.fleet, shared=world.shared, availability=world.availability,
                failures=world.failures, market=world.market,
            )  # fmt: skip
        found.append(replace(parts, of_all=scenario))
    _check_peers(found)
    return tuple(found)


def open_backends(all_parts: tuple[Assembly, ...], closes: ExitStack) -> list[Backend]:
    """Return a backend for each training, which `closes` closes."""
    found = (built(parts.scenario.backend, "backend", _BACKEND, parts.make_trainer, by="open") for parts in all_parts)
    return [closes.enter_context(closing(each)) for each in found]


def refuse_sessions(scenario: Scenario, what: str) -> None:
    """Raise ConfigError if a scenario has several trainings; `what` begins the line: it works with one alone."""
    if len(scenario.session) > 1:
        count = len(scenario.session)
        raise ConfigError(f"{what} works with one training, found {count} sessions; leave all but one out")


def _remembering(load: Load) -> Load:
    known: dict[str, object] = {}

    def once(scenario: Scenario) -> object:
        name = repr(scenario.data and scenario.data.table())
        if name not in known:
            known[name] = load(scenario)
        return known[name]

    return once  # type: ignore[return-value]


def _named(scenario: Scenario, place: int, make: Callable[[], _T]) -> _T:
    """Return what is made for a session; what is refused says of which, if there are several."""
    try:
        return make()
    except EdgesimError as error:
        if len(scenario.session) < 2:
            raise
        key = re.split(r"[.:]", str(error), maxsplit=1)[0]
        raise type(error)(f"session.{place}{'.' if key in SessionTable.model_fields else ': '}{error}") from error


def _check_peers(found: list[Assembly]) -> None:
    """Raise ConfigError if a device of a training among peers is one of another, and cannot serve both.

    It has one newest message to be fetched, and to a job of a server its battery is nobody else's.
    """
    for one, other in combinations(found, 2):
        among_peers = [parts for parts in (one, other) if parts.scenario.peers is not None]
        if not among_peers:
            continue
        both = np.intersect1d(one.setting.ids, other.setting.ids)
        names = f"{one.scenario.session_name} and {other.scenario.session_name}"
        if len(both) and len(among_peers) == 2:
            raise ConfigError(
                f"session: {names} exchange among peers and share device {both[0]}; give them disjoint devices"
            )
        batteries = FleetBatteries(one.fleet)
        drained = next((device for device in both.tolist() if device in batteries), None)
        if drained is not None:
            name = among_peers[0].scenario.session_name
            raise ConfigError(
                f"session: {names} share device {drained}, which has a battery, and {name} exchanges among peers; "
                "give them disjoint devices"
            )
