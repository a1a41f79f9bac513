"""The energy ledger: joules of every device and activity, charged at the instant they were spent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import LedgerError
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, UPLOAD

_BUSY, _COLUMNS = 3, 4  # behind the joules of DOWNLOAD, COMPUTATION and UPLOAD


class Joules(NamedTuple):
    """Joules of a run from its start to an instant, in three accounts: devices, network and server.

    `energy_j` is the devices' account, the sum of the next two. No account contains another.
    """

    energy_j: float  # of the devices
    active_j: float  # of these, what activities added to idle and sleeping power
    idle_j: float  # of these, idle and sleeping power
    participant_j: float  # of the devices, without the idle and sleeping power of those that were never asked
    energy_network_j: float  # of links, in carrying bytes
    energy_server_j: float  # of the server and the edge servers, idle power included


class EdgePower(NamedTuple):
    """Watts of each edge server, of all tiers, shape (edges,): at all times, and while it computes."""

    idle_w: Arr
    busy_w: Arr


class EnergyLedger:
    """Exact integral of piecewise constant power.

    Idle and sleeping power flow for the whole run and are added once, at the end; activities are charged as what they
    add to them, so overlapping activities of one device are counted right. Network and server have accounts of their
    own: neither drains the battery of a device.
    """

    def __init__(
        self,
        idle_w: Arr,
        server_idle_w: float = 0.0,
        server_busy_w: float = 0.0,
        off_s: Callable[[float], Arr] | None = None,
        sleep_w: Arr | None = None,
        asleep_s: Callable[[float], Arr] | None = None,
        edges: EdgePower | None = None,
    ) -> None:
        """`edges`: of edge servers; None: there are none."""
        self._columns = np.zeros((len(idle_w), _COLUMNS))
        # the same numbers: to add to one of them costs a third this way
        self._spent: memoryview[Any] = self._columns.reshape(-1).data
        self.server_busy_s = 0.0
        self.link_j = 0.0  # of all links
        self._idle_w = idle_w
        self._sleep_w = idle_w if sleep_w is None else sleep_w
        self._off_s = off_s  # seconds so far in which devices drew no idle power either; None: never
        self._asleep_s = asleep_s  # seconds so far in which devices slept, those off left out; None: never
        self._fleet_idle_w = float(idle_w.sum())
        self._server_w = (server_idle_w, server_busy_w)
        self._spent_j = 0.0
        self._edge_w = edges or EdgePower(np.zeros(0), np.zeros(0))
        self.edge_busy_s = np.zeros(len(self._edge_w.idle_w))

    @property
    def activity_j(self) -> np.ndarray:
        """Joules above idle power, shape (devices, 3): columns DOWNLOAD, COMPUTATION, UPLOAD."""
        return self._columns[:, :_BUSY].copy()

    @property
    def idle_w(self) -> Arr:
        """Idle power of every device, shape (devices,)."""
        return self._idle_w

    @property
    def rests_unevenly(self) -> bool:
        """True if devices are off or asleep at times, so that idle joules do not follow from the time alone."""
        return self._off_s is not None or self._asleep_s is not None

    @property
    def busy_s(self) -> Arr:
        """Seconds of all jobs, shape (devices,)."""
        return self._columns[:, _BUSY].copy()

    def charge(self, device: int, down_j: float, compute_j: float, up_j: float, busy_s: float) -> None:
        """Add what one job spent on a device: joules above idle power by activity, and its seconds."""
        spent, row = self._spent, _COLUMNS * device
        spent[row + DOWNLOAD] += down_j
        spent[row + COMPUTATION] += compute_j
        spent[row + UPLOAD] += up_j
        spent[row + _BUSY] += busy_s
        self._spent_j += down_j + compute_j + up_j

    def charge_sending(self, device: int, up_j: float) -> None:
        """Add what a device spent on sending beside its own jobs."""
        self._spent[_COLUMNS * device + UPLOAD] += up_j
        self._spent_j += up_j

    def charge_receiving(self, device: int, down_j: float) -> None:
        """Add what a device spent on receiving beside its own jobs."""
        self._spent[_COLUMNS * device + DOWNLOAD] += down_j
        self._spent_j += down_j

    def charge_server(self, busy_s: float) -> None:
        """Add seconds of server work."""
        self.server_busy_s += busy_s

    def charge_edge(self, edge: int, busy_s: float) -> None:
        """Add seconds of work of an edge server."""
        self.edge_busy_s[edge] += busy_s

    def charge_link(self, joules: float) -> None:
        """Add what links took."""
        self.link_j += joules

    def idle_j(self, horizon_s: float) -> Arr:
        """Return the idle joules of every device until `horizon_s` while it was on and awake, shape (devices,)."""
        away = [away_s(horizon_s) for away_s in (self._off_s, self._asleep_s) if away_s is not None]
        joules: Arr = self._idle_w * (horizon_s - sum(away))
        return joules

    def sleep_j(self, horizon_s: float) -> Arr:
        """Return the joules of every device until `horizon_s` while it slept, shape (devices,)."""
        asleep_s = 0.0 if self._asleep_s is None else self._asleep_s(horizon_s)
        joules: Arr = self._sleep_w * asleep_s
        return joules

    def resting_j(self, horizon_s: float) -> float:
        """Return the joules of all devices, idle and asleep, until `horizon_s`."""
        if not self.rests_unevenly:
            return self._fleet_idle_w * horizon_s
        return float(self.idle_j(horizon_s).sum() + self.sleep_j(horizon_s).sum())

    def server_j(self, horizon_s: float) -> tuple[float, float]:
        """Return the server's idle joules and what its work added, until `horizon_s`."""
        return self._server_w[0] * horizon_s, self.server_work_j(self.server_busy_s)

    def edges_j(self, horizon_s: float) -> tuple[Arr, Arr]:
        """Return the idle joules of each edge server and what its work added, until `horizon_s`, shape (edges,)."""
        power = self._edge_w
        return power.idle_w * horizon_s, (power.busy_w - power.idle_w) * self.edge_busy_s

    def edge_work_j(self, edge: int, busy_s: float) -> float:
        """Return the joules that so many seconds of an edge server's work add to its idle power."""
        return float(self._edge_w.busy_w[edge] - self._edge_w.idle_w[edge]) * busy_s

    def server_work_j(self, busy_s: float) -> float:
        """Return the joules that so many seconds of the server's work add to its idle power."""
        idle_w, busy_w = self._server_w
        return (busy_w - idle_w) * busy_s

    def joules(
        self,
        now_s: float,
        asked: np.ndarray,
        in_flight_j: float = 0.0,
        network_in_flight_j: float = 0.0,
        server_in_flight_j: float = 0.0,
    ) -> Joules:
        """Return the joules from 0 to `now_s`, by account.

        `asked`: which devices had a job so far, bool, shape (devices,); `in_flight_j`, `network_in_flight_j` and
        `server_in_flight_j`: what devices, network and server have spent on all that is under way and not charged yet.
        """
        if not self.rests_unevenly:
            resting_j, bystanders_j = self._fleet_idle_w * now_s, float(self._idle_w[~asked].sum()) * now_s
        else:
            idle_j, sleep_j = self.idle_j(now_s), self.sleep_j(now_s)
            resting_j, bystanders_j = float(idle_j.sum() + sleep_j.sum()), float((idle_j + sleep_j)[~asked].sum())
        server_idle_j, server_busy_j = self.server_j(now_s)
        if len(self.edge_busy_s):
            edges_idle_j, edges_busy_j = self.edges_j(now_s)
            server_idle_j, server_busy_j = server_idle_j + edges_idle_j.sum(), server_busy_j + edges_busy_j.sum()
        energy_j = self._spent_j + resting_j + in_flight_j
        return Joules(
            energy_j,
            active_j=self._spent_j + in_flight_j,
            idle_j=resting_j,
            participant_j=energy_j - bystanders_j,
            energy_network_j=self.link_j + network_in_flight_j,
            energy_server_j=server_idle_j + server_busy_j + server_in_flight_j,
        )

    def check(self, jobs_j: float, devices_j: float, horizon_s: float) -> None:
        """Raise LedgerError unless joules of all jobs + idle + asleep equal those of all devices within 1e-9 relative.

        Sums that are not finite are never equal. Links are not the devices'.
        """
        expected = jobs_j + self.resting_j(horizon_s)
        if not (math.isfinite(expected) and abs(devices_j - expected) <= 1e-9 * max(abs(expected), 1e-30)):
            raise LedgerError(f"devices spent {devices_j!r} J but jobs and idle time add up to {expected!r} J")
