"""Number of devices that a round asks."""

from __future__ import annotations

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Ids
from edgesim.core.rng import Key
from edgesim.core.view import Asked


def asked_at_most(scenario: Scenario, level: Ids, members: Ids | None) -> int:
    """Return the number of devices that a round asks if all are idle.

    `level`: of all devices; `members`: the devices that may be asked, None: all.
    """
    own = level if members is None else level[members]
    most: int = scenario.selection.value.most(np.arange(len(own)), own, Key(scenario.seed))
    return most


def how_asked(scenario: Scenario, level: Ids, members: Ids | None) -> Asked | None:
    """Return the share of devices that a round asks, and whether all have the same chance; None with edge servers.

    The arguments are those of `asked_at_most`.
    """
    if scenario.edges is not None:
        return None
    devices = len(level) if members is None else len(members)
    share = scenario.selection.value.asked_share(devices)
    if share is not None:
        return Asked(share, alike=True)
    return Asked(asked_at_most(scenario, level, members) / devices, alike=False)
