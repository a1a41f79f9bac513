"""What does a job cost the event loop? Timing only, from a thousand devices to a million, against bare SimPy loops.

A job in synchronous rounds stands beside a process that sleeps three times (download, computation, upload); a job of
the buffered protocol, and one among peers with 10 random neighbours, beside a single timeout. Seconds to build the run
are not part of it. Peers all train in every round, so their number is that of the jobs at once.

Run: python benchmarks/engine.py [--devices N ...] [--peers N ...] [--jobs N]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import simpy

import edgesim
import timing_only
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from rows import Figures, Found, alone, compared, in_turns, of

PER_ROUND, CONCURRENCY, DEGREE = 1_000, 500, 10  # at most; never more than a tenth of the devices
QUICK = {"devices": (100,), "peers": (20,), "jobs": 200}
WIRELESS = {
    "name": "wireless",
    "bandwidth": "1 MHz",
    "distance_m": {"uniform": [50, 500]},
    "shadowing_db": 8.0,
    "fading": "per_transfer",
}
NOTES = {
    "edgesim": "CPU time of edgesim's event loop for a job, its rows in the tables included.",
    "fading links": "The same with wireless links that fade for every transfer.",
    "bare SimPy": "CPU time of a bare SimPy loop for a job.",
}


def sleeping_processes(jobs: int, at_once: int) -> None:
    """Run rounds of processes that sleep three times: download, compute, upload."""
    env = simpy.Environment()

    def device(k: int) -> simpy.events.ProcessGenerator:
        yield env.timeout(1.0 + k % 7)
        yield env.timeout(2.0 + k % 11)
        yield env.timeout(3.0 + k % 13)

    def server() -> simpy.events.ProcessGenerator:
        for _ in range(jobs // at_once):
            yield env.all_of([env.process(device(k)) for k in range(at_once)])

    env.process(server())
    env.run()


def timeouts(jobs: int, at_once: int) -> None:
    """Run a loop in which a job is one timeout and `at_once` of them are pending."""
    env = simpy.Environment()
    started = 0

    def start(_: simpy.Event) -> None:
        nonlocal started
        if started < jobs:
            started += 1
            env.timeout(1.0 + started % 13).callbacks.append(start)

    for _ in range(at_once):
        start(env.event())
    env.run()


def edgesim_job(chosen: Callable[[], edgesim.Scenario], jobs: int) -> Callable[[], Figures]:
    """Return the measurement of a run: microseconds a job."""

    def measured() -> Figures:
        simulation = Simulation(assemble(chosen()), NullBackend(), Silent())
        return cpu_us(simulation.run, jobs)

    return measured


def bare_job(loop: Callable[[int, int], None], jobs: int, at_once: int) -> Callable[[], Figures]:
    """Return the measurement of a bare loop: microseconds a job."""
    return lambda: cpu_us(lambda: loop(jobs, at_once), jobs)


def cpu_us(work: Callable[[], object], jobs: int) -> Figures:
    """Return the CPU time of some work in microseconds a job."""
    begun_s = time.process_time()
    work()
    return {"us": 1e6 * (time.process_time() - begun_s) / jobs}


def rows(
    devices: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000),
    peers: tuple[int, ...] = (1_000, 10_000, 100_000),
    jobs: int = 100_000,
    repeats: int = 3,
) -> Iterator[Found]:
    """Yield the cost of a job in rounds, of the buffered protocol, and among peers; at least `jobs` jobs each."""
    for count in devices:
        yield from _contest(f"rounds, {count:,} devices", _rounds(count, jobs), repeats)
    for count in devices:
        yield from _contest(f"buffered, {count:,} devices", _buffered(count, jobs), repeats)
    for count in peers:
        yield from _contest(f"{count:,} peers", _peers(count, jobs), repeats)


def _contest(about: str, contestants: Mapping[str, Callable[[], Figures]], repeats: int) -> Iterator[Found]:
    yield from compared(of(in_turns(contestants, repeats), "us"), "bare SimPy", "us", NOTES, about=about)


def _rounds(devices: int, least: int) -> dict[str, Callable[[], Figures]]:
    at_once = min(PER_ROUND, devices // 10)
    rounds = -(-least // at_once)
    jobs = rounds * at_once
    return {
        "bare SimPy": bare_job(sleeping_processes, jobs, at_once),
        "edgesim": edgesim_job(lambda: timing_only.in_rounds(devices, at_once, rounds), jobs),
        "fading links": edgesim_job(lambda: timing_only.in_rounds(devices, at_once, rounds, network=WIRELESS), jobs),
    }


def _buffered(devices: int, least: int) -> dict[str, Callable[[], Figures]]:
    at_once = min(CONCURRENCY, devices // 10)
    buffer = max(1, at_once // 10)
    aggregations = -(-least // buffer)
    jobs = aggregations * buffer
    return {
        "bare SimPy": bare_job(timeouts, jobs, at_once),
        "edgesim": edgesim_job(lambda: timing_only.buffered(devices, at_once, buffer, aggregations), jobs),
    }


def _peers(peers: int, least: int) -> dict[str, Callable[[], Figures]]:
    rounds = -(-least // peers)
    jobs = rounds * peers
    return {
        "bare SimPy": bare_job(timeouts, jobs, peers),
        "edgesim": edgesim_job(lambda: timing_only.among_peers(peers, DEGREE, rounds), jobs),
    }


if __name__ == "__main__":
    alone(rows, QUICK)
