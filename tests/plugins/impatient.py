"""A method among peers whose devices wait for others, whoever these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgesim.core.rng import Key
from edgesim.core.task import Plan, Wait
from edgesim.core.view import View
from edgesim.methods.dfedavg import DFedAvg


@dataclass(frozen=True, kw_only=True)
class Impatient(DFedAvg):
    """DFedAvg that asks only the devices `asks`, all of which wait for the devices `awaits`."""

    asks: tuple[int, ...]
    awaits: tuple[int, ...]

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders."""
        orders = super().plan(state, view, key).orders
        return Plan(tuple(order._replace(wait=Wait(self.awaits)) for order in orders if order.device in self.asks))
