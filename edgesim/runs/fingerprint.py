"""What a run depends on, as hashes. A run is made anew when one of them is another."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from edgesim.config.scenario import Scenario
from edgesim.files.code_identity import identity
from edgesim.files.loaded_code import Unidentified

# Keys of a scenario from which nothing follows that is trained, but only when a run ends and what it keeps.
REPORTING = ("name", "stop", "evaluation", "weights", "backend", "prices")
_UNKNOWN = "unidentified"


def stamp_of(scenario: Scenario) -> dict[str, Any]:
    """Return what decides the results of a scenario, but for its data set.

    Keys: scenario (its digest), trains (two backends differ in nothing else), version of edgesim, and those of
    `edgesim.files.code_identity.identity`. Where that cannot be told the stamp equals no other, and says why.
    """
    asked = {
        "scenario": scenario.digest(),
        "trains": bool(scenario.backend.value.trains),
        "version": version("edgesim"),
    }
    try:
        return {**asked, **identity(scenario.canonical())}
    except Unidentified as error:
        return {**asked, _UNKNOWN: str(error), "token": os.urandom(16).hex()}


def common_stamp(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the stamp of a run by those before and after it: they differ if something changed while it ran."""
    if before == after or _UNKNOWN in after:
        return after
    changed = ", ".join(key for key in before if before[key] != after.get(key))
    return {**after, _UNKNOWN: f"{changed} changed during the run", "token": os.urandom(16).hex()}


def data_digest(scenario: Scenario) -> str | None:
    """Return the SHA-256 of the data set as it is loaded, None without one. Raises DataError if it cannot be."""
    return None if scenario.data is None else str(scenario.data.value.load().digest)
