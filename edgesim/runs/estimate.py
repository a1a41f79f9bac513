"""Time, energy and traffic of a scenario, estimated before anything trains.

The method plans its first exchange for a sample of each fleet block, and the jobs of that plan are priced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from typing import Any

import numpy as np
import pandas as pd

from edgesim.config.scenario import Scenario, Stop
from edgesim.core.errors import ConfigError
from edgesim.execution.backends.null import NullBackend
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import Assembly
from edgesim.runs.host_memory import Loaded, model_bytes, needed_bytes
from edgesim.runs.host_time import HostSpeed, HostTime, Speed, backends_here, host_speed, host_times, host_work
from edgesim.runs.job_sample import by_block, of_everybody, of_peers, priced, timed
from edgesim.runs.memory_fit import MemoryFit, memory_fits
from edgesim.runs.retiming import Quantiles, check_spread, quantiles, redrawn
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all

_SPLIT = ("energy_j", "active_j", "idle_j", "energy_network_j", "energy_server_j")
_UNKNOWN = dict.fromkeys(
    ("rounds", "jobs", "flops", "host_minutes", "disk_bytes", "memory_bytes", "sim_time_s", *_SPLIT)
)
_JOB_JOULES = ["down_j", "compute_j", "up_j", "peer_j"]
_ROUNDS, _JOBS = 20, 20_000  # most rounds and jobs of the trial, a run without training
_UPDATES = 2_000  # most updates before a merge of the trial, or four per device if that is more
_TRIAL_S = 5.0  # host time after which the trial ends with its current round
_LATEST_S = 20.0  # also if a session has closed no round
_ENOUGH = "enough was seen"
_TABLES_BYTES, _JOB_BYTES = 50_000, 100  # size of a run folder without jobs, and of the rows of one job; measured


@dataclass(frozen=True)
class Estimate:
    """`blocks`: a row for each fleet block and part of the model. `totals`: of the whole run; None = unknown.

    Columns of blocks: session (if there are several), kind, level, devices, submodel, the means over jobs of those
    devices in round 0 (flops, down_bytes, up_bytes, seconds, joules above idle power), and late_share, the share of
    jobs that take longer than a fixed deadline (NaN without one). Among peers the means include the messages that a
    device fetches, the joules of their senders, and the waits of the device.
    Keys of totals: rounds (of all sessions), jobs, flops, host_minutes, memory_bytes, disk_bytes (of the run folder),
    sim_time_s, energy_j of the devices (the sum of active_j and idle_j), energy_network_j and energy_server_j.
    `notes`: sizes of models with a base, and effects of batteries on the run, or that they are unknown.
    `memory`: of each fleet block with a memory limit. Its jobs are those of the method's plan for all devices.
    `spread_blocks`: with draws of the clocks' errors, columns kind, submodel, and low, median and high of seconds and
    joules. `spread_totals`: the same three of rounds, sim_time_s and energy_j, by name. Low and high are the 5 and 95 %
    quantiles of the draws.
    """

    blocks: pd.DataFrame
    totals: dict[str, Any]
    notes: Sequence[str] = ()
    memory: Sequence[MemoryFit] = ()
    spread_blocks: pd.DataFrame | None = None
    spread_totals: Mapping[str, Quantiles] = field(default_factory=dict)
    backends: Sequence[HostTime] = ()


@dataclass(frozen=True)
class _Round:
    """Means of one round: jobs, FLOPs of the devices, simulated seconds, and joules.

    `active_j` and `idle_j`: of the devices, above idle power and at idle power. `flying_*`: of jobs in progress when
    the last round closes, added once per run. `host_s`: seconds that this host needs to simulate a round, without
    training.
    """

    jobs: float
    flops: float
    seconds: float
    active_j: float
    idle_j: float
    network_j: float
    server_j: float
    flying_flops: float = 0.0
    flying_j: float = 0.0
    flying_network_j: float = 0.0
    host_s: float = 0.0
    cost: float = 0.0  # in the currency of the prices
    of_run: int | None = None  # rounds of the whole run, if the trial reached its end
    notes: Sequence[str] = ()


class _Brief(Silent):
    """An observer that ends a trial after _TRIAL_S seconds of host time."""

    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.host_s = 0.0  # until the last round was closed
        self.trial: Simulation | None = None

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """End the trial after the first round that closes too late, if every session has closed one."""
        self.host_s = time.perf_counter() - self.started_s
        if self.host_s > _TRIAL_S and self.trial is not None:
            trainings = self.trial.trainings
            if all(len(each.tables["rounds"]) for each in trainings) or self.host_s > _LATEST_S:
                for training in trainings:
                    training.rounds.end(_ENOUGH)


def estimate(scenario: Scenario, draws: int = 0, backends: bool = False, loaded: Loaded | None = None) -> Estimate:
    """Estimate a scenario, as `estimate_of` does, and again with each of `draws` draws of the clocks' errors.

    `backends`: also measure how long the run takes with other backends. `loaded`: share of this host that a
    run takes before it builds its scenario, by default no time. Raises ConfigError or DataError as `assemble`
    does, and ConfigError for draws if no device's clock has a spread or there are several sessions, and for backends as
    `_with_backends` does.
    """
    if scenario.app is not None:
        raise ConfigError("estimate: the jobs of an app have no price before its code has run; run it for a few rounds")
    if draws and len(scenario.session) > 1:
        raise ConfigError(f"estimate: intervals are of one training, found {len(scenario.session)} sessions")
    began_s, loaded = time.perf_counter(), loaded or Loaded()
    all_parts = assemble_all(scenario)
    loaded = loaded._replace(host_s=loaded.host_s + time.perf_counter() - began_s)
    found = _with_backends(all_parts, loaded) if backends else estimate_of(all_parts, loaded=loaded)
    if not draws:
        return found
    check_spread(scenario)
    of_draws = [estimate_of([redrawn(all_parts[0], draw)], instant) for draw in range(1, draws + 1)]
    totals = {name: [each.totals[name] for each in of_draws] for name in ("rounds", "sim_time_s", "energy_j")}
    blocks = found.blocks[["kind", "submodel"]]
    for name in ("seconds", "joules"):
        ends = quantiles(np.array([each.blocks[name] for each in of_draws]))
        blocks = blocks.assign(**{f"{name}_{end}": ends._asdict()[end] for end in Quantiles._fields})
    return replace(
        found,
        spread_blocks=blocks,
        spread_totals={name: quantiles(np.array(each)) for name, each in totals.items() if None not in each},
    )


def instant(parts: Assembly, jobs: int) -> HostSpeed:
    """Return the speed with which training and tests take no time, as their results are known."""
    return HostSpeed()


@plain_torch()
def _with_backends(all_parts: Sequence[Assembly], loaded: Loaded) -> Estimate:
    """Estimate a run, and how long it takes with each backend.

    Raises ConfigError for several sessions, for a run that trains nothing, and if the number of rounds is unknown.
    """
    if len(all_parts) > 1:
        raise ConfigError(f"estimate: backends are compared for one training, found {len(all_parts)} sessions")
    parts, backend = all_parts[0], all_parts[0].scenario.backend
    if not backend.value.trains or backend.value.device != "cpu":
        raise ConfigError(f"estimate: backends are compared for runs that train on a CPU, found backend {backend.name}")
    found = estimate_of(all_parts, instant, loaded)
    rounds, jobs = found.totals["rounds"], found.totals["jobs"]
    if rounds is None:
        raise ConfigError("estimate: backends are compared for runs whose number of rounds is known")
    work, beside_s = host_work(parts, rounds, jobs, found.totals["flops"]), 60.0 * found.totals["host_minutes"]
    own, *others = host_times(parts, {"": backend.value, **backends_here()}, rounds, work, beside_s, loaded.host_s)
    times = sorted(others, key=lambda each: each.host_s)
    return replace(found, totals={**found.totals, "host_minutes": own.host_s / 60.0}, backends=times)


@plain_torch()
def estimate_of(all_parts: Sequence[Assembly], speed: Speed = host_speed, loaded: Loaded | None = None) -> Estimate:
    """Estimate a run from prices, a trial without training, and the measured speed of this host.

    `all_parts`: of each session. The number of rounds follows from the limits on rounds, simulated time, energy and
    money. The effects of training, such as reaching an accuracy, are not foreseen. `speed` replaces the measurement
    `host_speed`. `loaded`: share of this host that a run takes before its first round, by default no time. Several
    sessions run in one trial, which ends as the run would, or after _TRIAL_S seconds of this host: then each goes on as
    it went. Raises ConfigError if the trial ends before its first round.
    """
    loaded = loaded or Loaded()
    if len(all_parts) == 1:
        return _of_one(all_parts[0], speed, loaded)
    for place, parts in enumerate(all_parts):
        if parts.scenario.method.value.needs_training:
            name = parts.scenario.method.name
            raise ConfigError(f"estimate: session.{place}.method: {name} plans from training results")
    brief = _Brief()
    others = [(parts, NullBackend()) for parts in all_parts[1:]]
    trial = brief.trial = Simulation(all_parts[0], NullBackend(), brief, others=others)
    trial.run()
    cut = any(each.rounds.stop_reason == _ENOUGH for each in trial.trainings)
    told = f"Sessions were followed for {trial.world.now_s:.3g} s alone, {_TRIAL_S:g} s of this host."
    totals = _totals_of_sessions(trial, brief.host_s, speed, loaded)
    blocks, memory = [], list[MemoryFit]()
    for training in trial.trainings:
        parts, start = training.parts, timed(training.parts)
        plan = start.learner.plan(of_everybody(start))
        memory += memory_fits(parts, plan)
        if parts.scenario.method.value.needs.peers is None:
            jobs = pd.DataFrame(priced(parts, plan))
        else:
            jobs = of_peers(training.tables["jobs"].frame())
        found = by_block(parts, jobs)
        blocks.append(found.assign(session=training.name)[["session", *found]])
    notes = [note for parts in all_parts for note in _base_notes(parts)]
    return Estimate(pd.concat(blocks, ignore_index=True), totals, (*notes, *((told,) if cut else ())), memory)


def _of_one(parts: Assembly, speed: Speed, loaded: Loaded) -> Estimate:
    scenario, start = parts.scenario, timed(parts)
    session, everyone = start.trainings[0].asks_devices, of_everybody(start)
    learner, view = session.learner, session.view()
    first = learner.plan(view if len(view.idle) else everyone)
    peers = scenario.method.value.needs.peers is not None
    plan = first if peers else learner.plan(everyone)
    if peers:
        trial, typical = _trial(parts, len(first.orders))
        jobs = of_peers(trial.tables["jobs"].frame())
    elif not scenario.method.value.needs_training:
        _, typical = _trial(parts, len(first.orders))
        jobs = pd.DataFrame(priced(parts, plan))
    else:  # the method plans from training results, so no trial is possible: the prices of its first exchange count
        asked = pd.DataFrame(priced(parts, first)).drop_duplicates("device")
        seconds = min(float(asked["seconds"].max()), parts.setting.deadline_s)
        idle_j = float(parts.fleet.idle_w.sum() * seconds)
        unknown = f"Batteries are not foreseen, as method {scenario.method.name} plans from training results."
        sums = asked[["flops", "joules", "link_j"]].sum()
        typical = _Round(
            len(asked), float(sums["flops"]), seconds, float(sums["joules"]), idle_j, float(sums["link_j"]),
            scenario.server.idle * seconds, notes=(unknown,) if _has_batteries(parts) else (),
        )  # fmt: skip
        jobs = pd.DataFrame(priced(parts, plan))
    totals = _totals(parts, typical, speed, loaded)
    notes = (*_base_notes(parts), *typical.notes)
    return Estimate(by_block(parts, jobs), totals, notes, memory_fits(parts, plan))


def _base_notes(parts: Assembly) -> list[str]:
    """Return a sentence about the sizes of a model that has frozen parameters; of a session with its name."""
    sizes, scenario = parts.setting.cost_profile.sizes, parts.scenario
    if not sizes.base:
        return []
    of = f"Session {scenario.session[0].name}: the" if scenario.session else "The"
    way = "comes with the first download" if parts.setting.base == "once" else "is on devices from the start"
    return [
        f"{of} model that travels has {sizes.numbers:,} numbers, {sizes.nbytes:,} bytes; its frozen base, which {way}, "
        f"has {sizes.base:,} numbers, {sizes.base_bytes:,} bytes."
    ]


# --- the whole run ------------------------------------------------------------------------------------------


def _trial(parts: Assembly, asked: int) -> tuple[Simulation, _Round]:
    """Simulate the first rounds without training, `asked` jobs each; return the simulation and the means of its rounds.

    Of the server's work only averaging takes time. A method that plans from training results gets one round, as
    nothing is trained that it could plan from. Where a merge waits for many updates, the trial merges after fewer,
    and the means are scaled to a merge of the scenario. Where batteries may end the run, the trial is the whole run,
    as far as it comes in _TRIAL_S seconds of this host.
    """
    scenario, devices = parts.scenario, parts.setting.devices
    # ratio: rounds of the trial per real one
    fewer, ratio = scenario.protocol.value.with_fewer(max(_UPDATES, 4 * devices), devices)
    scenario = scenario.model_copy(update={"protocol": replace(scenario.protocol, value=fewer)})
    given, feedback = scenario.stop, scenario.method.value.needs_training
    limit = min(ceil((given.rounds or _ROUNDS) * ratio), _ROUNDS, _JOBS // max(1, asked))
    stop = Stop(rounds=1 if feedback else max(1, limit))
    has_limit = not (given.rounds is given.sim_time is given.energy is None)
    whole = _has_batteries(parts) and not feedback and has_limit
    if whole:
        most = None if given.rounds is None else ceil(given.rounds * ratio)
        stop = Stop(rounds=most, sim_time=given.sim_time, energy=given.energy)
    brief = _Brief()
    trial = brief.trial = timed(replace(parts, scenario=scenario.model_copy(update={"stop": stop})), brief)
    trial.run()
    if not len(trial.tables["rounds"]):
        raise ConfigError(
            f"estimate: no round would close; a run without training ended with {trial.rounds.stop_reason!r}"
        )
    typical = _means(trial, brief.host_s, ratio)
    if not whole:
        return trial, typical
    rounds, wanted = max(1, round(len(trial.tables["rounds"]) / ratio)), given.rounds
    if trial.rounds.stop_reason == _ENOUGH:
        told = f"Batteries were followed for {rounds} rounds alone, {_TRIAL_S:g} s of this host; they may end the run."
        return trial, replace(typical, notes=(told,))
    if wanted is None or rounds >= wanted or (trial.world.batteries.on_from_s(trial.world.now_s) < np.inf).all():
        return trial, replace(typical, of_run=rounds)
    told = f"Empty batteries end the run after {rounds} of {wanted} rounds."
    return trial, replace(typical, of_run=rounds, notes=(told,))


def _has_batteries(parts: Assembly) -> bool:
    return any(block.new_batteries is not None for block in parts.fleet.blocks)


def _means(trial: Simulation, host_s: float, ratio: float) -> _Round:
    """Return the sums over `ratio` mean rounds of a trial, which took `host_s` in total."""
    rounds, jobs = trial.tables["rounds"].frame(), trial.tables["jobs"].frame()
    asked, end, n = float(rounds["asked"].mean()), rounds.iloc[-1], len(rounds)
    ended = jobs[(jobs["end_s"] <= end["now_s"]) & (jobs["outcome"] != "stopped")]
    active_j, network_j = float(ended[_JOB_JOULES].to_numpy().sum()), float(ended["link_j"].sum())
    flops, each = float(ended["flops"].sum()), ratio / n
    return _Round(
        asked * ratio, flops * each, float(end["now_s"]) * each, active_j * each, float(end["total_idle_j"]) * each,
        network_j * each, float(end["total_energy_server_j"]) * each,
        float(end["total_flops"]) - flops, float(end["total_active_j"]) - active_j,
        float(end["total_energy_network_j"]) - network_j, host_s * each, float(end["total_cost"]) * each,
    )  # fmt: skip


def _totals(parts: Assembly, typical: _Round, speed: Speed, loaded: Loaded) -> dict[str, Any]:
    rounds, stop = typical.of_run, parts.scenario.stop
    if rounds is None:  # as many as the limits allow, at least one; None if only an accuracy ends the run
        joules = None if stop.energy is None else stop.energy - typical.flying_j
        money = None if stop.cost is None else stop.cost.values[1]
        each_j = typical.active_j + typical.idle_j
        spent = ((stop.rounds, 1.0), (stop.sim_time, typical.seconds), (joules, each_j), (money, typical.cost))
        allowed = [limit / each for limit, each in spent if limit is not None and each > 0]
        rounds = max(1, int(min(allowed))) if allowed else None
    memory_bytes = loaded.nbytes + needed_bytes(parts, typical.jobs)
    if rounds is None:
        return {**_UNKNOWN, "memory_bytes": memory_bytes}
    flops, jobs = rounds * typical.flops, round(rounds * typical.jobs)  # of jobs that are trained
    active_j, idle_j = rounds * typical.active_j + typical.flying_j, rounds * typical.idle_j
    network_j, server_j = rounds * typical.network_j + typical.flying_network_j, rounds * typical.server_j
    training_s = speed(parts, ceil(jobs / rounds)).seconds(host_work(parts, rounds, jobs, flops), loaded.host_s)
    return {
        "rounds": rounds,
        "jobs": jobs,
        "flops": flops + typical.flying_flops,
        "host_minutes": (loaded.host_s + rounds * typical.host_s + training_s) / 60.0,
        "disk_bytes": _disk_bytes(parts, jobs),
        "memory_bytes": memory_bytes,
        "sim_time_s": min(rounds * typical.seconds, parts.scenario.stop.sim_time or np.inf),
        **dict(zip(_SPLIT, (active_j + idle_j, active_j, idle_j, network_j, server_j), strict=True)),
    }


def _totals_of_sessions(trial: Simulation, host_s: float, speed: Speed, loaded: Loaded) -> dict[str, Any]:
    now_s, spent = trial.world.now_s, trial.world.totals()
    memory_bytes, whole_s, rows = loaded.nbytes, 0.0, []  # one process serves all
    for training in trial.trainings:
        parts, stop, process = training.parts, training.parts.scenario.stop, training.process
        jobs, rounds = training.tables["jobs"].frame(), len(training.tables["rounds"].frame())
        start_s, end_s = parts.scenario.session[0].start, (process and process.ended_s) or now_s
        longer = 1.0
        if training.rounds.stop_reason == _ENOUGH:
            limits = (
                (stop.rounds, rounds), (stop.sim_time, end_s - start_s), (stop.energy, spent.energy_j),
                (stop.cost and stop.cost.values[1], spent.cost),
            )  # fmt: skip
            longer = min((limit / seen for limit, seen in limits if limit and seen > 0), default=np.inf)
        memory_bytes += needed_bytes(parts, len(jobs) / max(1, rounds))
        whole_s = max(whole_s, start_s + longer * (end_s - start_s))
        if isfinite(longer):
            rounds, asked = round(longer * rounds), round(longer * len(jobs))
            active_j, network_j = jobs[_JOB_JOULES].to_numpy().sum(), jobs["link_j"].sum()
            flops = longer * float(jobs["flops"].sum())
            training_s = speed(parts, ceil(asked / max(1, rounds))).seconds(
                host_work(parts, rounds, asked, flops), loaded.host_s
            )
            rows.append(
                (rounds, asked, flops, training_s, _disk_bytes(parts, asked), longer * active_j, longer * network_j)
                + (active_j, network_j)
            )
    if not isfinite(whole_s):
        return {**_UNKNOWN, "memory_bytes": memory_bytes}
    rounds, asked, flops, training_s, disk_bytes, active_j, network_j, *seen_j = np.sum(rows, axis=0).tolist()
    more = whole_s / now_s
    # what a session has booked is all that its jobs have spent, so that only their growth counts
    active_j += spent.active_j - seen_j[0]
    network_j += spent.energy_network_j - seen_j[1]
    joules = (active_j + more * spent.idle_j, active_j, more * spent.idle_j, network_j, more * spent.energy_server_j)
    return {
        "rounds": int(rounds),
        "jobs": int(asked),
        "flops": flops,
        "host_minutes": (loaded.host_s + more * host_s + training_s) / 60.0,
        "disk_bytes": int(disk_bytes),
        "memory_bytes": memory_bytes,
        "sim_time_s": whole_s,
        **dict(zip(_SPLIT, joules, strict=True)),
    }


# --- this host ----------------------------------------------------------------------------------------------


def _disk_bytes(parts: Assembly, jobs: int) -> int:
    models = 2 if parts.scenario.backend.value.trains else 0  # the last and the best
    return models * model_bytes(parts) + _TABLES_BYTES + _JOB_BYTES * jobs
