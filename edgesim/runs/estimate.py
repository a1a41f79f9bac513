"""Time, energy and traffic of a scenario, estimated before anything trains.

The first exchange is asked of a sample of every block of the fleet, and its jobs are priced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from edgesim.config.scenario import Scenario, Stop
from edgesim.core.backend import Assignment, Backend
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, ON_TIME_S
from edgesim.core.limits import PROCESS_BYTES
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.price_list import F32_BYTES, CostProfile
from edgesim.core.rng import Draws, Key, Purpose
from edgesim.core.task import Plan, Submodel, Task
from edgesim.engine.pricing import Pricer
from edgesim.engine.reachability import Presence
from edgesim.engine.rounds import Observer
from edgesim.engine.selection.rules import All
from edgesim.engine.view import FleetView
from edgesim.execution.backends.null import NullBackend
from edgesim.execution.backends.serial import Serial
from edgesim.learning.models.build import applied, model_state_of, on_meta
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.learning.train.trainer import CHUNK
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import Assembly, assemble
from edgesim.runs.simulate import Silent, Simulation
from edgesim.runs.training import refuse_sessions
from edgesim.world.availability.always import Always

_DEVICES = 2_000  # of a fleet block are looked at: enough for means
_DRAWS, _SAMPLED_JOBS = 20, 20_000  # jobs of each device, and in all, where jobs of a device differ
_MEANS = ["flops", "down_bytes", "up_bytes", "seconds", "joules", "link_j"]


def timed(parts: Assembly, observer: Observer | None = None) -> Simulation:
    """Return a run of these parts that has not begun and trains nothing."""
    return Simulation(parts, NullBackend(), observer or Silent())


def of_everybody(start: Simulation) -> FleetView:
    """Return what a method would see if the sampled devices, and nobody else, were there, idle, and all chosen."""
    others = ~_first_of_blocks(start.parts)
    there = Presence(Always().build(len(others), Key(0), "availability"), None)
    view = start.trainings[0].asks_devices.view()
    at_work = int(others.sum())
    return replace(view, presence=there, busy=others, at_work=at_work, selection=All(), history=None, members=None)


def priced(parts: Assembly, plan: Plan) -> pd.DataFrame:
    """Return the prices of a plan, a row a job: device, part, flops, bytes, seconds, joules, the network's as link_j.

    Where jobs of a device differ there are several of each, one for each draw. Over shared links these are the prices
    of a job that has them to itself.
    """
    ids = np.array([order.device for order in plan.orders], dtype=np.int64)
    pricer, key = Pricer(parts.fleet, parts.setting), Key(parts.scenario.seed).at(Purpose.CHANNEL)
    draws = 1 if parts.fleet.steady else max(1, min(_DRAWS, _SAMPLED_JOBS // max(1, len(ids))))
    of_draws = [pricer.prices(plan.orders, 0.0, Draws(key, ids, np.full_like(ids, nth))) for nth in range(draws)]
    prices = pd.concat([pd.DataFrame(each._asdict()) for each in of_draws], ignore_index=True)
    devices = np.tile(ids, draws)
    return prices.assign(
        device=devices,
        submodel=[order.task.submodel.shape_id for order in plan.orders] * draws,
        seconds=prices[["down_s", "compute_s", "up_s"]].sum(axis=1),
        joules=prices[["down_j", "compute_j", "up_j"]].sum(axis=1),
        link_j=8.0 * parts.fleet.j_per_bit[devices] * (prices["down_bytes"] + prices["up_bytes"]),
    )


def of_peers(trial: Simulation) -> pd.DataFrame:
    """Return the same of the first round of a trial, as what peers exchange and wait for shows only there.

    up_bytes and joules are with what peers sent to a job, and spent on that.
    """
    jobs = trial.tables["jobs"].frame()
    first: pd.DataFrame = jobs[(jobs["round"] == 0) & jobs["outcome"].isin(DELIVERED)]
    return first.assign(
        seconds=first["end_s"] - first["sent_s"],
        up_bytes=first["up_bytes"] + first["peer_bytes"],
        joules=first[["down_j", "compute_j", "up_j", "peer_j"]].sum(axis=1),
    )


def by_block(parts: Assembly, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each fleet block and part of the model: kind, level, devices, part, late_share and means.

    late_share: of the jobs, those that take longer than a fixed deadline; NaN if there is none.
    """
    kind = parts.fleet.kind[jobs["device"]]
    limit_s = parts.setting.deadline_s
    late = jobs["seconds"] > limit_s + ON_TIME_S
    groups = jobs.assign(block=kind, late_share=late.astype(float)).groupby(["block", "submodel"])
    means = groups[[*_MEANS, "late_share"]].mean()
    block = means.index.get_level_values("block")
    seen = jobs.groupby(kind)["device"].nunique().reindex(block).to_numpy()
    devices: pd.Series = groups["device"].nunique() * np.bincount(parts.fleet.kind[parts.setting.ids])[block] / seen
    found = pd.DataFrame(
        {
            "kind": [parts.fleet.kinds[each] for each in block],
            "level": [parts.scenario.fleet[each].level for each in block],
            "devices": np.rint(devices.to_numpy()).astype(np.int64),
            "submodel": means.index.get_level_values("submodel"),
        }
    )
    found = found.join(means.reset_index(drop=True))
    return found if np.isfinite(limit_s) else found.assign(late_share=np.nan)


def _first_of_blocks(parts: Assembly) -> np.ndarray:
    """Return a mask, shape (devices,), of the first _DEVICES devices of each block that the training may ask."""
    own, mask = parts.setting.ids, np.zeros(len(parts.fleet), dtype=bool)
    for block in parts.fleet.blocks:
        first, beyond = np.searchsorted(own, [block.first, block.first + block.count])
        mask[own[first : min(first + _DEVICES, beyond)]] = True
    return mask


_SPLIT = ("energy_j", "active_j", "idle_j", "energy_network_j", "energy_server_j")
_JOB_JOULES = ["down_j", "compute_j", "up_j", "peer_j"]
_ROUNDS, _JOBS = 20, 20_000  # of the trial run without training, at most
_UPDATES = 2_000  # before a merge of the trial, or four of each device if that is more
_TRIAL_S = 5.0  # of this host's time for them, but for the round that is under way then
_ENOUGH = "enough was seen"
_PROBE_S = 0.5  # of training, to learn the speed of this host
_TABLES_BYTES, _JOB_BYTES = 50_000, 100  # of a run folder without jobs, and of the rows of one; measured


@dataclass(frozen=True)
class Estimate:
    """`blocks`: a row for each fleet block and part of the model. `totals`: of the whole run; None = unknown.

    Columns of blocks: kind, level, devices, part, and the means over jobs of those devices in round 0: flops,
    down_bytes, up_bytes, seconds, joules above idle power, and late_share: of the jobs, those that take longer than a
    fixed deadline (NaN: there is none). Among peers with the messages that a device fetches,
    what others spend on sending them, and its waits.
    Keys of totals: rounds, jobs, flops, host_minutes, memory_bytes, disk_bytes (of the run folder), sim_time_s,
    energy_j, active_j and idle_j of the devices, of which the first is the sum, energy_network_j and energy_server_j.
    `notes`: what batteries do to the run, or that this is not known; a sentence each.
    """

    blocks: pd.DataFrame
    totals: dict[str, Any]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Round:
    """Means of one round: jobs, FLOPs of the devices, simulated seconds, and joules.

    Joules of the devices are those above idle power and the idle ones, apart from the network's and the server's.

    `flying_*`: of jobs that are at work when a round closes, on top of those that ended; once in a run. `host_s`:
    seconds of this host that simulating it takes, without training.
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
    of_run: int | None = None  # rounds of the whole run, where the trial has shown its end
    notes: Sequence[str] = ()


class _Brief(Silent):
    """Ends a trial once it has taken long enough."""

    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.host_s = 0.0  # until the last round was closed
        self.trial: Simulation | None = None

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """End the trial after the first round that closes too late."""
        self.host_s = time.perf_counter() - self.started_s
        if self.host_s > _TRIAL_S and self.trial is not None:
            self.trial.rounds.end(_ENOUGH)


def estimate(scenario: Scenario) -> Estimate:
    """Return what a scenario will cost, as `estimate_of` does. Raises ConfigError or DataError as `assemble` does."""
    refuse_sessions(scenario, "estimate:")
    return estimate_of(assemble(scenario))


@plain_torch()
def estimate_of(parts: Assembly, speed: Callable[[Assembly], float] | None = None) -> Estimate:
    """Return what a run will cost, from prices, a trial run without training and a probe of this host's speed.

    The number of rounds follows from the limits on rounds, simulated time and energy; what training decides, such as
    when an accuracy is reached, is not foreseen. `speed` stands in for the probe, `host_flops_per_s`. Raises
    ConfigError if the trial ends before its first round.
    """
    scenario, start = parts.scenario, timed(parts)
    learner, view, everyone = (
        start.trainings[0].asks_devices.learner,
        start.trainings[0].asks_devices.view(),
        of_everybody(start),
    )
    first = learner.plan(view if len(view.idle) else everyone)
    if scenario.method.value.needs.peers is not None:
        trial, typical = _trial(parts, len(first.orders))
        jobs = of_peers(trial)
    else:
        typical, jobs = _typical_round(parts, first), priced(parts, learner.plan(everyone))
    totals = _totals(parts, typical, _rounds(scenario.stop, typical), speed)
    return Estimate(by_block(parts, jobs), totals, typical.notes)


# --- the whole run ------------------------------------------------------------------------------------------


def _typical_round(parts: Assembly, first: Plan) -> _Round:
    """Return the means of the first rounds, simulated without training.

    A method that plans from training results cannot be simulated so: then the prices of its first exchange count.
    """
    if not parts.scenario.method.value.needs.feedback:
        return _trial(parts, len(first.orders))[1]
    jobs = priced(parts, first).drop_duplicates("device")
    seconds = min(float(jobs["seconds"].max()), parts.setting.deadline_s)
    idle_j = float(parts.fleet.idle_w.sum() * seconds)
    unknown = f"Batteries are not foreseen, as method {parts.scenario.method.name} plans from training results."
    sums = jobs[["flops", "joules", "link_j"]].sum()
    return _Round(
        len(jobs), float(sums["flops"]), seconds, float(sums["joules"]), idle_j, float(sums["link_j"]),
        parts.scenario.server.idle * seconds, notes=(unknown,) if _has_batteries(parts) else (),
    )  # fmt: skip


def _trial(parts: Assembly, asked: int) -> tuple[Simulation, _Round]:
    """Return the first rounds without training, `asked` jobs each, and their means.

    Of the server's work only averaging takes time.

    It is one round of a method that plans from training results: nobody has any before. Where a merge waits for a
    number of updates, however large, the trial merges after fewer, and the means are of as many of these as make one.
    Where batteries may end the run, the trial is the whole run, as far as this host comes in its time.
    """
    scenario, ratio = _with_fewer_updates(parts)
    limit = min(ceil((scenario.stop.rounds or _ROUNDS) * ratio), _ROUNDS, _JOBS // max(1, asked))
    rounds = 1 if scenario.method.value.needs.feedback else max(1, limit)
    whole = _has_batteries(parts) and not scenario.method.value.needs.feedback and _limits(scenario.stop, ratio)
    short = scenario.model_copy(update={"stop": whole or Stop(rounds=rounds)})
    brief = _Brief()
    trial = brief.trial = timed(replace(parts, scenario=short), brief)
    trial.run()
    if not len(trial.tables["rounds"]):
        raise ConfigError(
            f"estimate: no round would close; a run without training ended with {trial.rounds.stop_reason!r}"
        )
    typical = _means(trial, brief.host_s, ratio)
    return trial, _with_end(typical, trial, scenario.stop.rounds, ratio) if whole else typical


def _has_batteries(parts: Assembly) -> bool:
    return any(block.new_batteries is not None for block in parts.fleet.blocks)


def _limits(stop: Stop, ratio: float) -> Stop | None:
    """Return the limits of a run that do not wait for an accuracy, for rounds of a trial; None: there are none."""
    if stop.rounds is stop.sim_time is stop.energy is None:
        return None
    rounds = None if stop.rounds is None else ceil(stop.rounds * ratio)
    return Stop(rounds=rounds, sim_time=stop.sim_time, energy=stop.energy)


def _with_end(typical: _Round, trial: Simulation, wanted: int | None, ratio: float) -> _Round:
    """Return the means of a trial of the whole run, with how many rounds that has and what batteries did to it."""
    rounds = max(1, round(len(trial.tables["rounds"]) / ratio))
    if trial.rounds.stop_reason == _ENOUGH:
        told = f"Batteries were followed for {rounds} rounds alone, {_TRIAL_S:g} s of this host; they may end the run."
        return replace(typical, notes=(told,))
    if wanted is None or rounds >= wanted or (trial.world.batteries.on_from_s(trial.world.now_s) < np.inf).all():
        return replace(typical, of_run=rounds)
    told = f"Empty batteries end the run after {rounds} of {wanted} rounds."
    return replace(typical, of_run=rounds, notes=(told,))


def _with_fewer_updates(parts: Assembly) -> tuple[Scenario, float]:
    """Return the scenario with merges of fewer updates, and how many of its rounds make one as it was given."""
    scenario, devices = parts.scenario, parts.setting.devices
    if not hasattr(scenario.protocol.value, "with_fewer"):
        return scenario, 1.0
    fewer, ratio = scenario.protocol.value.with_fewer(max(_UPDATES, 4 * devices), devices)
    return scenario.model_copy(update={"protocol": replace(scenario.protocol, value=fewer)}), ratio


def _means(trial: Simulation, host_s: float, ratio: float) -> _Round:
    """Return the means of `ratio` rounds of a trial, which took `host_s` in all."""
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


def _rounds(stop: Stop, typical: _Round) -> int | None:
    """Return how many rounds the limits allow, at least one; None if only an accuracy ends the run."""
    if typical.of_run is not None:
        return typical.of_run
    joules = None if stop.energy is None else stop.energy - typical.flying_j
    money = None if stop.cost is None else stop.cost.values[1]
    each_j = typical.active_j + typical.idle_j
    spent = ((stop.rounds, 1.0), (stop.sim_time, typical.seconds), (joules, each_j), (money, typical.cost))
    allowed = [limit / each for limit, each in spent if limit is not None and each > 0]
    return max(1, int(min(allowed))) if allowed else None


def _totals(
    parts: Assembly, typical: _Round, rounds: int | None, speed: Callable[[Assembly], float] | None
) -> dict[str, Any]:
    memory_bytes = _memory_bytes(parts, typical.jobs)
    if rounds is None:
        unknown = dict.fromkeys(("rounds", "jobs", "flops", "host_minutes", "disk_bytes", "sim_time_s", *_SPLIT))
        return {**unknown, "memory_bytes": memory_bytes}
    flops, jobs = rounds * typical.flops, round(rounds * typical.jobs)  # of jobs that are trained
    active_j, idle_j = rounds * typical.active_j + typical.flying_j, rounds * typical.idle_j
    network_j, server_j = rounds * typical.network_j + typical.flying_network_j, rounds * typical.server_j
    own_flops = flops * _own_share(parts)
    trained_s = _host_s(parts, own_flops + _evaluation_flops(parts, rounds), speed or host_flops_per_s)
    return {
        "rounds": rounds,
        "jobs": jobs,
        "flops": flops + typical.flying_flops,
        "host_minutes": (rounds * typical.host_s + trained_s) / 60.0,
        "disk_bytes": _disk_bytes(parts, jobs),
        "memory_bytes": memory_bytes,
        "sim_time_s": min(rounds * typical.seconds, parts.scenario.stop.sim_time or np.inf),
        **dict(zip(_SPLIT, (active_j + idle_j, active_j, idle_j, network_j, server_j), strict=True)),
    }


# --- this host ----------------------------------------------------------------------------------------------


def _evaluation_flops(parts: Assembly, rounds: int) -> float:
    samples = 0 if parts.data is None else len(parts.data.labels("test"))
    times = -(-rounds // parts.scenario.evaluation.every)
    return float(times * samples * parts.network.cost_profile.forward_flops())


def _own_share(parts: Assembly) -> float:
    """Return the FLOPs that training takes here for one that is charged: 1 unless another network is charged for."""
    own, large = parts.network.cost_profile, parts.setting.cost_profile.charged_as
    return 1.0 if large is None else own.train_flops() / large.train_flops()


def _host_s(parts: Assembly, flops: float, speed: Callable[[Assembly], float]) -> float:
    """Return seconds of training and evaluation on this host, as if workers did not slow each other down."""
    backend = parts.scenario.backend.value
    if not backend.trains:
        return 0.0
    at_once = min(max(1, getattr(backend, "processes", 0)), os.cpu_count() or 1)
    return flops / (at_once * speed(parts))


def host_flops_per_s(parts: Assembly) -> float:
    """Return the speed of one worker at plain SGD on the largest local data set: a warm-up, then about a second."""
    torch_device = getattr(parts.scenario.backend.value, "device", "cpu")
    backend = Serial(device=torch_device).open(lambda name: replace(parts.make_trainer(name), method=FedAvg()))
    setting, device = parts.setting, int(parts.setting.samples.argmax())
    job = Assignment(
        0, device, Task(), Key(parts.scenario.seed).at(Purpose.PROBE, 0), model_state_of(parts.module), None
    )
    plain = LocalSGD(batch=setting.training.batch, lr=setting.training.lr, steps=1)
    try:
        _timed_s(backend, job, plain)
        while (spent_s := _timed_s(backend, job, plain)) < _PROBE_S:
            plain = replace(plain, steps=2 * plain.steps)
    finally:
        backend.close()
    samples, _ = plain.amount(setting.samples[[device]], setting.cost_profile.drop_single)
    return float(samples[0] * parts.network.cost_profile.train_flops()) / spent_s


def _timed_s(backend: Backend, job: Assignment, sgd: LocalSGD) -> float:
    started_s = time.perf_counter()
    backend.train([job._replace(task=Task(local_sgd=(sgd,)))])
    return time.perf_counter() - started_s


def _memory_bytes(parts: Assembly, jobs: float) -> int:
    """Return main memory in bytes: the data set, who holds which sample, and all processes.

    A process: Python with PyTorch. The server: its model and the messages of a round. A network: the weights received,
    and what training or evaluating takes, whichever is more.
    """
    held = (parts.data.nbytes if parts.data else 0) + sum(
        shard.nbytes for shard in (parts.split.train if parts.split else ())
    )
    backend, cost_profile, training = parts.scenario.backend.value, parts.network.cost_profile, parts.setting.training
    if not backend.trains:
        return held + PROCESS_BYTES
    model = _model_bytes(parts)
    # an output and the one that is made from it are all that evaluation keeps
    evaluating = model + F32_BYTES * 2 * CHUNK * _widest(parts.module, cost_profile.input_shape)
    network = model + max(
        evaluating, cost_profile.memory_bytes(Submodel(), training.batch, training.local_sgd(0).moments).total
    )
    others = getattr(backend, "processes", 0)
    return int(held + (1 + others) * PROCESS_BYTES + (1 + jobs) * model + max(1, others) * network)


def _model_bytes(parts: Assembly) -> int:
    cost_profile: CostProfile = parts.network.cost_profile
    return F32_BYTES * sum(layer.params + layer.buffers for layer in cost_profile.layers)


def _disk_bytes(parts: Assembly, jobs: int) -> int:
    """Return the size of the run folder in bytes: the tables, and the weights of the last model and the best one."""
    models = 2 * _model_bytes(parts) if parts.scenario.backend.value.trains else 0
    return models + _TABLES_BYTES + _JOB_BYTES * jobs


def _widest(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return how many numbers the largest output of a module has, for one sample."""
    counts: list[int] = []

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        counts.append(output.numel() if isinstance(output, Tensor) else 0)

    hooks = [inner.register_forward_hook(count) for inner in module.modules()]
    pair = torch.empty(2, *input_shape, device="meta")  # batch normalisation needs two
    try:
        applied(module, on_meta(module), pair)
    finally:
        for hook in hooks:
            hook.remove()
    return max(counts) // 2
