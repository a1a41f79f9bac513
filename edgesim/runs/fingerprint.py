"""Hashes of everything that a run depends on. A run is repeated when one of them changes."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from edgesim.config.scenario import Scenario
from edgesim.files.code_identity import identity
from edgesim.files.loaded_code import Unidentified

# Keys of a scenario that decide only when a run ends and what it keeps, not what is trained.
REPORTING = ("name", "stop", "evaluation", "weights", "backend", "prices")
_UNKNOWN = "unidentified"


def stamp_of(scenario: Scenario) -> dict[str, Any]:
    """Return the identity of a scenario's results, without its data set.

    Keys: scenario (its digest), trains (the only difference between backends), version of edgesim, and the keys of
    `edgesim.files.code_identity.identity`. If the code cannot be identified, the stamp equals no other and has the
    reason. So it is with an app, which may read any data; the answers to its calls are cached one by one.
    """
    asked = {
        "scenario": scenario.digest(),
        "trains": bool(scenario.backend.value.trains),
        "version": version("edgesim"),
    }
    if scenario.app is not None:
        return {**asked, _UNKNOWN: "an app may read data of its own", "token": os.urandom(16).hex()}
    try:
        return {**asked, **identity(scenario.canonical())}
    except Unidentified as error:
        return {**asked, _UNKNOWN: str(error), "token": os.urandom(16).hex()}


def common_stamp(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the stamp of a run from the stamps before and after it; if they differ, it equals no other."""
    if before == after or _UNKNOWN in after:
        return after
    changed = ", ".join(key for key in before if before[key] != after.get(key))
    return {**after, _UNKNOWN: f"{changed} changed during the run", "token": os.urandom(16).hex()}


def data_digest(scenario: Scenario) -> str | None:
    """Return the SHA-256 of the loaded data set, None without one. Raises DataError if it cannot be loaded."""
    return None if scenario.data is None else str(scenario.data.value.load().digest)
