"""The books of a run: the ledger, the bytes of each device, and the jobs table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from edgesim.contracts import DELIVERED, Ids, Job, Outcome
from edgesim.engine.flows import Flow
from edgesim.engine.spending import Spending, joules_of, lacked_s
from edgesim.records.table import Table
from edgesim.world.fleet import Fleet
from edgesim.world.ledger import EnergyLedger


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
        (down_s, compute_s, up_s), (down, compute, up) = spent.seconds, spent.shares
        flops = compute * job.flops
        down_j, compute_j, up_j = joules_of(job, spent, self._fleet)
        self.ledger.charge(device, down_j, compute_j, up_j, down_s + compute_s + up_s)
        peer_j = link_j = 0.0
        if task.home == "server":
            down_bytes, up_bytes = int(down * job.down_bytes), int(up * job.up_bytes)
            self._sent_bytes[device] += up_bytes
        else:
            down_bytes, peer_j = self._book_senders(spent.flows)
            up_bytes = down_bytes
        if self._links_draw:
            j_per_bit = self._fleet.j_per_bit
            own_bytes = down_bytes + (up_bytes if task.home == "server" else 0)
            link_j = 8.0 * float(j_per_bit[device]) * own_bytes  # what peers send crosses their own links
            link_j += sum(8.0 * float(j_per_bit[flow.source]) * int(flow.moved_bytes) for flow in spent.flows)
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

    def _book_senders(self, flows: Sequence[Flow]) -> tuple[int, float]:
        """Charge peers what they spent on sending to a job; return the bytes and joules of them all."""
        peer_bytes, peer_j = 0, 0.0
        for flow in flows:
            source, moved_bytes = flow.source, int(flow.moved_bytes)
            self._sent_bytes[source] += moved_bytes
            peer_bytes += moved_bytes
            sending_j = flow.up_air_s * self._transmit_w[source]
            if sending_j:
                self.ledger.charge_sending(source, sending_j)
                peer_j += sending_j
        return peer_bytes, peer_j
