"""Charges jobs at their end: what each spent by phase goes to the ledger and to the bytes of its device."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.job import Job
from edgesim.engine.flows import Flow
from edgesim.world.energy.ledger import EnergyLedger
from edgesim.world.fleet import Fleet
from edgesim.world.prices.ledger import (
    COMPUTE,
    DATA,
    DEVICE_HOURS,
    NETWORK,
    PAYMENTS,
    RECEIVE,
    TRANSMIT,
    CostLedger,
    Use,
)


class Usage(NamedTuple):
    """Amounts that a job has spent; triples hold download, computation and upload."""

    seconds: tuple[float, float, float]
    shares: tuple[float, float, float]  # of each phase's work, done
    air_s: tuple[float, float] | None = None  # down and up with the radio on; None: the shares of what was planned
    link_wait_s: float = 0.0  # of the seconds, those beyond what the transfers take with the links to themselves
    wait_s: float = 0.0  # for messages of peers, beside the seconds of the phases
    flows: Sequence[Flow] = ()  # of peers, to this job; all over
    rest_s: tuple[float, float] | None = None  # what is left of both transfers takes, with the links to themselves
    sent: Sequence[Flow] = ()  # to a peer, of a job that trades models after it has computed; all over
    spans_s: tuple[float, float, float] | None = None  # of phases that overlap: how long each took from the job's start


NO_USAGE = Usage((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))  # of a job that was refused


def dedicated_usage(job: Job, elapsed_s: float) -> Usage:
    """Return the usage of a job over dedicated links `elapsed_s` seconds after its start; inf: of the whole job."""
    prices = job.prices
    if job.task.overlaps:
        down_s, compute_s, up_s = prices.down_s, prices.compute_s, prices.up_s
        spans_s = (min(elapsed_s, down_s), min(elapsed_s, compute_s), min(elapsed_s, up_s))
        shares = (
            _share(elapsed_s, prices.down_latency_s, down_s - prices.down_latency_s),
            _share(elapsed_s, 0.0, compute_s),
            _share(elapsed_s, prices.up_latency_s, up_s - prices.up_latency_s),
        )
        return Usage(exposed_s(spans_s), shares, spans_s=spans_s)
    if elapsed_s == inf:
        return Usage((prices.down_s, prices.compute_s, prices.up_s), (1.0, 1.0, 1.0))
    computing_s, sending_s = prices.down_s, prices.down_s + prices.compute_s  # when these phases begin
    return Usage(
        seconds=(
            _passed_s(elapsed_s, 0.0, prices.down_s),
            _passed_s(elapsed_s, computing_s, prices.compute_s),
            _passed_s(elapsed_s, sending_s, prices.up_s),
        ),
        shares=(
            _share(elapsed_s, prices.down_latency_s, prices.down_s - prices.down_latency_s),
            _share(elapsed_s, computing_s, prices.compute_s),
            _share(elapsed_s, sending_s + prices.up_latency_s, prices.up_s - prices.up_latency_s),
        ),
    )


def exposed_s(spans_s: Sequence[float]) -> tuple[float, float, float]:
    """Return the seconds of download, computation and upload that add up to a job whose phases begin together.

    `spans_s`: how long each took. Transfers count for the seconds that they last beyond computing. The last to end has
    them all.
    """
    down_s, compute_s, up_s = spans_s
    beyond_s = max(0.0, max(down_s, up_s) - compute_s)
    return (beyond_s, compute_s, 0.0) if down_s > up_s else (0.0, compute_s, beyond_s)


def lacked_s(job: Job, usage: Usage) -> float:
    """Return the seconds that a job still lacked when it was broken off; over shared links with them to itself.

    There a latency that has begun to pass, while no bit has moved yet, counts as a whole.
    """
    prices = job.prices
    if usage.spans_s is not None:
        (down, compute, up), (down_s, compute_s, up_s) = usage.shares, usage.spans_s
        if usage.rest_s is None:
            return max(prices.down_s - down_s, prices.compute_s - compute_s, prices.up_s - up_s)
        down_s = usage.rest_s[0] + prices.down_latency_s * (down == 0)
        up_s = usage.rest_s[1] + prices.up_latency_s * (up == 0)
        return max(down_s, (1.0 - compute) * prices.compute_s, up_s)
    if usage.rest_s is None:
        planned_s = (prices.down_s, prices.compute_s, prices.up_s)
        return sum(max(0.0, plan_s - spent_s) for plan_s, spent_s in zip(planned_s, usage.seconds, strict=True))
    down, compute, up = usage.shares
    latency_s = prices.down_latency_s * (down == 0) + prices.up_latency_s * (up == 0)
    return sum(usage.rest_s) + latency_s + (1.0 - compute) * prices.compute_s


def joules_of(job: Job, usage: Usage, fleet: Fleet) -> tuple[float, float, float]:
    """Return joules above idle power of download, computation and upload."""
    (down, compute, up), prices = usage.shares, job.prices
    if usage.air_s is None:
        return down * prices.down_j, compute * prices.compute_j, up * prices.up_j
    receive_w, transmit_w = float(fleet.receive_w[job.device]), transmit_w_of(job, fleet)
    return receive_w * usage.air_s[0], compute * prices.compute_j, transmit_w * usage.air_s[1]


def transmit_w_of(job: Job, fleet: Fleet) -> float:
    """Return the watts above idle power that the radio of a job's device draws during its upload."""
    return float(fleet.transmit_w[job.device]) if job.choice is None else job.choice.drawn_w


def _passed_s(elapsed_s: float, start_s: float, length_s: float) -> float:
    return min(max(0.0, elapsed_s - start_s), length_s)


def _share(elapsed_s: float, start_s: float, length_s: float) -> float:
    """Share of a phase that is over, from 0 to 1; a phase without length is over once it has begun."""
    if elapsed_s >= start_s + length_s:
        return 1.0
    return max(0.0, elapsed_s - start_s) / length_s if length_s > 0 else 0.0


class Totals(NamedTuple):
    """All that has been spent since the start of a run; joules by account, as in `edgesim.world.energy.ledger.Joules`.

    Money and carbon are 0 in a run without prices.
    """

    flops: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    energy_j: float = 0.0
    active_j: float = 0.0
    idle_j: float = 0.0
    participant_j: float = 0.0
    energy_network_j: float = 0.0
    energy_server_j: float = 0.0
    cost_low: float = 0.0
    cost: float = 0.0
    cost_high: float = 0.0
    co2e_low_g: float = 0.0
    co2e_g: float = 0.0
    co2e_high_g: float = 0.0

    @property
    def moved_bytes(self) -> int:
        """Bytes of all transfers, down and up."""
        return self.down_bytes + self.up_bytes

    def since(self, before: Totals) -> Totals:
        """Return the amounts spent since `before`."""
        return Totals(*(now - then for now, then in zip(self, before, strict=True)))  # type: ignore[arg-type]


class Cost(NamedTuple):
    """Cost of a job: FLOPs, bytes and joules of its row, and the cost of each flow to it at the sender."""

    flops: float
    down_bytes: int
    up_bytes: int  # to the server
    peer_bytes: int  # sent to it by peers
    down_j: float
    compute_j: float
    up_j: float
    peer_j: float
    link_j: float
    senders: Sequence[FlowCost] = ()
    receivers: Sequence[FlowCost] = ()  # of flows from its device

    @property
    def received_bytes(self) -> int:
        """Bytes that arrived for this job anywhere."""
        return self.down_bytes + sum(flow.nbytes for flow in self.receivers)


class FlowCost(NamedTuple):
    """Cost of a flow to the device at its other end."""

    device: int
    nbytes: int
    joules: float
    begins_s: float  # on air
    ends_s: float


class Accounting:
    """Charges what jobs spent, at the instant of their end."""

    def __init__(self, fleet: Fleet, ledger: EnergyLedger, costs: CostLedger | None = None) -> None:
        """`costs`: the ledger of money and carbon; None: there are no prices."""
        self.ledger = ledger
        self.costs = costs
        self.flops = 0.0
        self.down_bytes = 0
        self.up_bytes = 0
        self._received_bytes = np.zeros(len(fleet), dtype=np.int64).data  # to add to a number of an array takes longer
        self._sent_bytes = np.zeros(len(fleet), dtype=np.int64).data
        self._fleet = fleet
        self._transmit_w = fleet.transmit_w.data  # the same numbers: one of them costs a third this way
        self._links_draw = bool(fleet.j_per_bit.any())

    @property
    def received_bytes(self) -> Ids:
        """Bytes that each device received, int64, shape (devices,)."""
        return np.array(self._received_bytes)

    @property
    def sent_bytes(self) -> Ids:
        """Bytes that each device sent, int64, shape (devices,)."""
        return np.array(self._sent_bytes)

    def charge(self, job: Job, usage: Usage, delivered: bool) -> Cost:
        """Charge what a job spent; return that. `delivered`: the server, or its own model, has its update."""
        device, cost = job.device, self.cost(job, usage)
        if self.costs is not None:
            self.costs.book(self.uses(job, usage, cost, delivered))
        down_s, compute_s, up_s = usage.seconds
        self.ledger.charge(device, cost.down_j, cost.compute_j, cost.up_j, down_s + compute_s + up_s)
        for sent in cost.senders:
            self._sent_bytes[sent.device] += sent.nbytes
            if sent.joules:
                self.ledger.charge_sending(sent.device, sent.joules)
        for received in cost.receivers:
            self._received_bytes[received.device] += received.nbytes
            self.ledger.charge_receiving(received.device, received.joules)
        if self._links_draw:
            self.ledger.charge_link(cost.link_j)
        self._received_bytes[device] += cost.down_bytes
        self._sent_bytes[device] += cost.up_bytes
        self.flops += cost.flops
        self.down_bytes += cost.received_bytes
        self.up_bytes += cost.up_bytes + cost.peer_bytes
        return cost

    def cost(self, job: Job, usage: Usage) -> Cost:
        """Return the cost of a job in bytes, FLOPs and joules, without charging it."""
        prices, (down, compute, up) = job.prices, usage.shares
        down_bytes, up_bytes, peer_bytes, peer_j = int(down * prices.down_bytes), int(up * prices.up_bytes), 0, 0.0
        senders: list[FlowCost] = []
        receivers = [self._received(flow) for flow in usage.sent]
        if receivers:
            up_bytes += sum(received.nbytes for received in receivers)
            peer_j += sum(received.joules for received in receivers)
        if usage.flows:
            senders = [self._sent(flow) for flow in usage.flows]
            peer_bytes = sum([sent.nbytes for sent in senders])
            peer_j += sum([sent.joules for sent in senders], 0.0)
            down_bytes += peer_bytes
        link_j = 0.0
        if self._links_draw:  # what peers send crosses their own links, and the receiver's
            j_per_bit = self._fleet.j_per_bit
            link_j = 8.0 * float(j_per_bit[job.device]) * (down_bytes + up_bytes)
            link_j += sum(8.0 * float(j_per_bit[sent.device]) * sent.nbytes for sent in (*senders, *receivers))
        joules = joules_of(job, usage, self._fleet)
        return Cost(
            compute * prices.flops, down_bytes, up_bytes, peer_bytes, *joules, peer_j, link_j, senders, receivers
        )

    def _sent(self, flow: Flow) -> FlowCost:
        """Return the cost of a flow to its sender."""
        joules = flow.up_air_s * self._transmit_w[flow.source]
        return FlowCost(flow.source, int(flow.moved_bytes), joules, flow.begins_s, flow.ends_s)

    def _received(self, flow: Flow) -> FlowCost:
        """Return the cost of a flow to its receiver."""
        joules = flow.down_air_s * float(self._fleet.receive_w[flow.target])
        return FlowCost(flow.target, int(flow.moved_bytes), joules, flow.begins_s, flow.ends_s)

    def uses(self, job: Job, usage: Usage, cost: Cost, delivered: bool) -> list[Use]:
        """Return amounts that devices used for a job, with the times of each, for the ledger of money and carbon."""
        device, (down_s, compute_s, up_s) = job.device, usage.seconds
        computes_s = job.sent_s + down_s + usage.wait_s
        sends_s = computes_s + compute_s
        sending = (sends_s, sends_s + up_s)
        receiving = sending if usage.sent else (job.sent_s, computes_s)  # a trade passes both ways at once
        if usage.spans_s is not None:
            computes_s = job.sent_s
            receiving, (_, sends_s), sending = ((job.sent_s, job.sent_s + span_s) for span_s in usage.spans_s)
        j_per_byte = 8.0 * float(self._fleet.j_per_bit[device])
        found: list[Use] = [
            (device, RECEIVE, cost.down_j, *receiving),
            (device, COMPUTE, cost.compute_j, computes_s, sends_s),
            (device, TRANSMIT, cost.up_j, *sending),
            (device, NETWORK, j_per_byte * cost.down_bytes, *receiving),
            (device, NETWORK, j_per_byte * cost.up_bytes, *sending),
            (device, DATA, cost.down_bytes + cost.up_bytes, 0.0, 0.0),
            (device, DEVICE_HOURS, down_s + compute_s + up_s, 0.0, 0.0),
            (device, PAYMENTS, delivered, 0.0, 0.0),
        ]
        until_s = sends_s + up_s if usage.sent else computes_s  # of a flow under way
        for item, others in (TRANSMIT, cost.senders), (RECEIVE, cost.receivers):
            for other in others:
                network_j = 8.0 * float(self._fleet.j_per_bit[other.device]) * other.nbytes
                ends_s = other.ends_s if other.ends_s < inf else until_s
                times = (other.begins_s, max(other.begins_s, ends_s))
                found.append((other.device, item, other.joules, *times))
                found.append((other.device, NETWORK, network_j, *times))
                found.append((other.device, DATA, other.nbytes, 0.0, 0.0))
        return found
