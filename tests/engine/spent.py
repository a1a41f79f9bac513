"""What a ledger has been charged."""

from __future__ import annotations

import numpy as np

from edgesim.world.energy.ledger import EnergyLedger


def charged_j(ledger: EnergyLedger, now_s: float) -> float:
    """Return all joules charged to fleet, links and server, with idle and sleeping power from 0 to `now_s`."""
    joules = ledger.joules(now_s, np.ones(len(ledger.activity_j), dtype=bool))
    return joules.energy_j + joules.energy_network_j + joules.energy_server_j
