"""What a job has spent when it ends, by phase."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from edgesim.core.job import Job
from edgesim.engine.transport.flows import Flow
from edgesim.world.fleet import Fleet


class Usage(NamedTuple):
    """What a job has spent; triples are of download, computation and upload."""

    seconds: tuple[float, float, float]
    shares: tuple[float, float, float]  # of each phase's work, done
    air_s: tuple[float, float] | None = None  # down and up with the radio on; None: the shares of what was planned
    link_wait_s: float = 0.0  # of the seconds, those beyond what the transfers take with the links to themselves
    wait_s: float = 0.0  # for messages of peers, beside the seconds of the phases
    flows: Sequence[Flow] = ()  # of peers, to this job; all over
    rest_s: tuple[float, float] | None = None  # what is left of both transfers takes, with the links to themselves
    sent: Sequence[Flow] = ()  # to a peer, of a job that trades models after it has computed; all over


NO_USAGE = Usage((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))  # of a job that was refused


def dedicated_usage(job: Job, elapsed_s: float) -> Usage:
    """Return what a job over dedicated links has spent `elapsed_s` seconds after its start; inf: all of it."""
    prices = job.prices
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


def lacked_s(job: Job, usage: Usage) -> float:
    """Return the seconds that a job still lacked when it was broken off; over shared links with them to itself.

    There a latency that has begun to pass, while no bit has moved yet, counts as a whole.
    """
    prices = job.prices
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
    receive_w, transmit_w = float(fleet.receive_w[job.device]), float(fleet.transmit_w[job.device])
    return receive_w * usage.air_s[0], compute * prices.compute_j, transmit_w * usage.air_s[1]


def _passed_s(elapsed_s: float, start_s: float, length_s: float) -> float:
    return min(max(0.0, elapsed_s - start_s), length_s)


def _share(elapsed_s: float, start_s: float, length_s: float) -> float:
    """Return which share of a phase is over, from 0 to 1; a phase without length is over once it has begun."""
    if elapsed_s >= start_s + length_s:
        return 1.0
    return max(0.0, elapsed_s - start_s) / length_s if length_s > 0 else 0.0
