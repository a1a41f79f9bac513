"""Base of methods of peers without rounds: each device takes one job at a time and keeps its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.method import Needs
from edgesim.core.rng import Key
from edgesim.core.task import Plan
from edgesim.core.view import Turn, View
from edgesim.methods.decentralised.base import OwnModelMethod


@dataclass(frozen=True, kw_only=True)
class OwnClockMethod(OwnModelMethod):
    """Base of methods on the protocol `gossip`. Subclasses give the next job of a device."""

    needs: ClassVar[Needs] = Needs(protocols=frozenset({"gossip"}), device_state="computed", peers="any")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the jobs of all idle devices as if each had done one job a round: for estimates."""
        turns = [
            Turn(view.setting, device, view.round, view.peers.of(device), view.round) for device in view.idle.tolist()
        ]
        return Plan(tuple(self.next_order(state, turn, key.at(turn.device)) for turn in turns))
