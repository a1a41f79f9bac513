"""The books of a run: the ledger, the bytes of each device, and the jobs table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edgesim.contracts import DELIVERED, Ids, Job, Outcome
from edgesim.engine.flows import Flow
from edgesim.engine.spending import Spending, joules_of, lacked_s
from edgesim.records.table import Table
from edgesim.world.fleet import Fleet
from edgesim.world.ledger import EnergyLedger


class Totals(NamedTuple):
    """All that fleet, links and server have spent since the start of a run; joules as in `world.ledger.Joules`."""

    flops: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    energy_j: float = 0.0
    active_j: float = 0.0
    idle_j: float = 0.0
    participant_j: float = 0.0


class Cost(NamedTuple):
    """What a job has spent: FLOPs, bytes and joules of its row, and what each flow to it cost its sender."""

    flops: float
    down_bytes: int
    up_bytes: int
    down_j: float
    compute_j: float
    up_j: float
    peer_j: float
    link_j: float
    senders: Sequence[tuple[int, int, float]] = ()  # device, bytes, joules


class Accounts:
    """Books what jobs spent, at the instant of their end."""

    def __init__(self, fleet: Fleet, ledger: EnergyLedger, jobs: Table) -> None:
        self.ledger = ledger
        self.flops = 0.0
        self.down_bytes = 0
        self.up_bytes = 0
        self._received_bytes: defaultdict[int, int] = defaultdict(int)  # of devices that did something
        self._sent_bytes: defaultdict[int, int] = defaultdict(int)
        self._fleet = fleet
        self._transmit_w = fleet.transmit_w.data  # the same numbers: one of them costs a third this way
        self._table = jobs
        self._links_draw = bool(fleet.j_per_bit.any())

    @property
    def received_bytes(self) -> Ids:
        """Bytes that each device received, int64, shape (devices,)."""
        return self._array(self._received_bytes)

    @property
    def sent_bytes(self) -> Ids:
        """Bytes that each device sent, int64, shape (devices,)."""
        return self._array(self._sent_bytes)

    def _array(self, by_device: Mapping[int, int]) -> Ids:
        values = np.zeros(len(self._fleet), dtype=np.int64)
        values[list(by_device)] = list(by_device.values())
        return values

    def book(self, job: Job, outcome: Outcome, spent: Spending, now_s: float) -> int:
        """Charge what a job spent and write its row; return the row."""
        device, task = job.device, job.task
        down_s, compute_s, up_s = spent.seconds
        cost = self.cost(job, spent)
        flops, down_bytes, up_bytes, down_j, compute_j, up_j, peer_j, link_j, senders = cost
        self.ledger.charge(device, down_j, compute_j, up_j, down_s + compute_s + up_s)
        if task.home == "server":
            self._sent_bytes[device] += up_bytes
        for source, sent_bytes, sending_j in senders:
            self._sent_bytes[source] += sent_bytes
            if sending_j:
                self.ledger.charge_sending(source, sending_j)
        if self._links_draw:
            self.ledger.charge_link(link_j)
        self._received_bytes[device] += down_bytes
        self.flops += flops
        self.down_bytes += down_bytes
        self.up_bytes += up_bytes
        return self._table.append(
            (job.id, device, job.round, job.base.version, task.name, task.part.shape_id, job.sent_s,
             down_s, compute_s, up_s, spent.link_wait_s, spent.wait_s, now_s, outcome,
             0.0 if outcome in DELIVERED else lacked_s(job, spent), flops, down_bytes, up_bytes,
             down_j, compute_j, up_j, peer_j, link_j)
        )  # fmt: skip

    def cost(self, job: Job, spent: Spending) -> Cost:
        """Return what a job spent, in bytes, FLOPs and joules; nothing is charged."""
        device, (down, compute, up) = job.device, spent.shares
        flops = compute * job.flops
        down_j, compute_j, up_j = joules_of(job, spent, self._fleet)
        if job.task.home == "server":
            down_bytes, up_bytes = int(down * job.down_bytes), int(up * job.up_bytes)
            link_j = 8.0 * float(self._fleet.j_per_bit[device]) * (down_bytes + up_bytes) if self._links_draw else 0.0
            return Cost(flops, down_bytes, up_bytes, down_j, compute_j, up_j, 0.0, link_j)
        senders = [self._sending(flow) for flow in spent.flows]
        peer_bytes = sum(nbytes for _, nbytes, _ in senders)
        peer_j = sum((joules for _, _, joules in senders), 0.0)
        link_j = 0.0
        if self._links_draw:  # what peers send crosses their own links, and the receiver's
            j_per_bit = self._fleet.j_per_bit
            link_j = 8.0 * float(j_per_bit[device]) * peer_bytes
            link_j += sum(8.0 * float(j_per_bit[source]) * nbytes for source, nbytes, _ in senders)
        return Cost(flops, peer_bytes, peer_bytes, down_j, compute_j, up_j, peer_j, link_j, senders)

    def _sending(self, flow: Flow) -> tuple[int, int, float]:
        """Return who sent a flow, and the bytes and joules that it cost him."""
        return flow.source, int(flow.moved_bytes), flow.up_air_s * self._transmit_w[flow.source]
