"""What is probably not meant in a scenario that is valid: each warning is one small function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgesim.config.origin import COMMON, Layers, of_block
from edgesim.config.scenario import Scenario
from edgesim.engine.protocols.buffered import Buffered
from edgesim.engine.protocols.deadline import Deadline
from edgesim.world.compute.governors.dvfs import Max

_MOST_NAMED = 3  # fleet blocks


@dataclass(frozen=True)
class _Given:
    """A valid scenario and what its user wrote of it."""

    scenario: Scenario
    layers: Layers

    def wrote(self, *path: str) -> bool:
        """Return whether the user wrote something at this path."""
        return self.layers.find(*path) is not None


def of_text(scenario: Scenario, layers: Layers) -> list[str]:
    """Return the warnings that follow from what is written, each one line that begins with a key."""
    given = _Given(scenario, layers)
    found = (_sections, _without_training, _server_power, _deadline_keys, _staleness_keys, _frequencies)
    return [line for each in found for line in each(given)]


def of_parts(parts: Any) -> list[str]:
    """Return the warnings that follow from the jobs of the first exchange of an assembled scenario."""
    from edgesim.simulation.job_sample import of_everybody, timed  # loads torch, which `of_text` does without

    if parts.scenario.method.value.needs.peers is not None:
        return []
    start = timed(parts)
    plan = start.trainings[0].asks_devices.learner.plan(of_everybody(start))
    return [*_one_part(parts, plan), *_deadline(parts, plan)]


# --- what has no effect ---------------------------------------------------------------------------------------


def _sections(given: _Given) -> Iterator[str]:
    """Sections of the scenario that fleet blocks do not follow, as they, or their profiles, have their own."""
    fleet = given.scenario.fleet
    for section in COMMON:
        own = [i for i, block in enumerate(fleet) if of_block(block, section)]
        by_profile = [fleet[i].name for i in own if not given.wrote("fleet", str(i), section)]
        if not given.wrote(section) or not own:
            continue
        whose = f"the profile of {_named(by_profile)} has its own" if by_profile else ""
        if len(own) == len(fleet):
            yield f"{section}: has no effect, as every fleet block has its own{f' ({whose})' if whose else ''}"
        elif by_profile:
            yield f"{section}: is not that of all fleet blocks: {whose}"


def _without_training(given: _Given) -> Iterator[str]:
    """What asks for accuracies of a run that only times."""
    if given.scenario.backend.value.trains:
        return
    if given.wrote("evaluation"):
        yield f"evaluation: has no effect, as backend {given.scenario.backend.name} trains nothing"
    if given.wrote("stop", "accuracy"):
        yield f"stop.accuracy: has no effect, as backend {given.scenario.backend.name} trains nothing"
    if given.wrote("stop", "metric"):
        yield f"stop.metric: has no effect, as backend {given.scenario.backend.name} trains nothing"
    if given.wrote("stop", "milestones"):
        yield f"stop.milestones: have no effect, as backend {given.scenario.backend.name} trains nothing"


def _server_power(given: _Given) -> Iterator[str]:
    """Watts and workers of a server that is never busy."""
    for key in ("busy", "workers"):
        if given.wrote("server", key) and given.scenario.server.flops_per_s == float("inf"):
            yield f"server.{key}: has no effect without server.flops_per_s, as the server's work takes no time"


def _deadline_keys(given: _Given) -> Iterator[str]:
    """Keys of the protocol that another of its keys makes void."""
    rule = given.scenario.protocol.value
    if not isinstance(rule, Deadline):
        return
    void = {
        "late_weight": None if rule.late == "keep" else "late = 'drop'",
        "quantile": None if rule.rule == "quantile" else f"rule = {rule.rule!r}",
        "k": None if rule.rule == "mad" else f"rule = {rule.rule!r}",
        "rounds": None if rule.rule != "fixed" else f"rule = {rule.rule!r}",
    }
    yield from _void(given, void)


def _staleness_keys(given: _Given) -> Iterator[str]:
    """Keys of the weight of stale updates that its form does not have."""
    rule = given.scenario.protocol.value
    if not isinstance(rule, Buffered):
        return
    form = f"staleness = {rule.staleness!r}"
    void = {"a": form if rule.staleness == "constant" else None, "b": None if rule.staleness == "hinge" else form}
    yield from _void(given, void)


def _void(given: _Given, void: dict[str, str | None]) -> Iterator[str]:
    for key, why in void.items():
        if why and given.wrote("protocol", key):
            yield f"protocol.{key}: has no effect with {why}"


def _frequencies(given: _Given) -> Iterator[str]:
    """Lowest frequencies of CPUs whose governor never goes there."""
    for i, block in enumerate(given.scenario.fleet):
        if block.cpu.min_frequency is not None and isinstance(block.cpu.governor.value, Max):
            yield f"fleet.{i}.cpu.min_frequency: has no effect with governor {block.cpu.governor.name!r}"


# --- what is probably not meant -------------------------------------------------------------------------------


def _one_part(parts: Any, plan: Any) -> Iterator[str]:
    """Partial training of which every device does the same, such as FedPMT with one level for all."""
    found = {order.task.submodel for order in plan.orders if order.task.local_sgd}
    if len(found) != 1 or len(plan.orders) < 2:
        return
    [submodel] = found
    layers = [layer.name for layer in parts.setting.cost_profile.layers]
    never = [name for name in layers if name in submodel.frozen]
    if submodel.width or submodel.channels or never:
        levels = np.unique(parts.fleet.level)
        why = f", as all have level {levels[0]}" if len(levels) == 1 else ""
        rest = f"; nobody trains {_named(never)}" if never else ""
        name = parts.scenario.method.name
        yield f"method.name: {name} gives every device the same sub-model, {submodel.shape_id!r}{why}{rest}"


def _deadline(parts: Any, plan: Any) -> Iterator[str]:
    """A fixed deadline that nobody can meet, or that changes nothing as nobody can miss it."""
    from edgesim.core.job import ON_TIME_S
    from edgesim.simulation.job_sample import priced
    from edgesim.simulation.tree import protocol_of_devices

    limit_s, (key, _) = parts.setting.deadline_s, protocol_of_devices(parts.scenario)
    if limit_s == float("inf"):
        return
    jobs = priced(parts, plan)
    tried = "" if parts.fleet.steady else f" of {len(jobs)} that were tried"
    first, last = jobs.sort_values("seconds").iloc[[0, -1]].to_dict("records")
    kind = [parts.fleet.kinds[parts.fleet.kind[job["device"]]] for job in (first, last)]
    if first["seconds"] > limit_s + ON_TIME_S:
        yield (
            f"{key}.deadline: nobody can meet {limit_s:g} s: the shortest job{tried}, of {kind[0]}, "
            f"takes {first['seconds']:.3g} s"
        )
    elif last["seconds"] <= limit_s + ON_TIME_S and _certain(parts, plan) and not _follows_deadline(parts, jobs):
        yield (
            f"{key}.deadline: nobody can miss {limit_s:g} s: the longest job{tried}, of {kind[1]}, "
            f"takes {last['seconds']:.3g} s"
        )


def _certain(parts: Any, plan: Any) -> bool:
    """Return whether nothing can make the jobs longer than their prices, nor another exchange follow them."""
    links_fail = parts.failures is not None and parts.failures.links is not None
    return parts.shared is None and not links_fail and not plan.more


def _follows_deadline(parts: Any, jobs: Any) -> bool:
    """Return whether jobs would be others with twice the deadline: then it is no use to say that all meet it."""
    from edgesim.simulation.job_sample import of_everybody, priced, timed

    setting = replace(parts.setting, deadline_s=2.0 * parts.setting.deadline_s)
    later = replace(parts, setting=setting)
    start = timed(later)
    others = priced(later, start.trainings[0].asks_devices.learner.plan(of_everybody(start)))
    return bool(len(others) != len(jobs) or (others["seconds"].to_numpy() != jobs["seconds"].to_numpy()).any())


def _named(names: list[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])
