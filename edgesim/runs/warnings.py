"""Warnings about a valid scenario, and the keys of it that have no effect: each rule is one small function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from edgesim.config.origin import COMMON, Layers, of_block
from edgesim.config.scenario import Scenario
from edgesim.config.sections import OWN
from edgesim.config.units import Distribution
from edgesim.engine.protocols.buffered import Buffered
from edgesim.engine.protocols.deadline import Deadline
from edgesim.world.batteries.rechargeable import Battery
from edgesim.world.compute.governors.dvfs import Max

_MOST_NAMED = 3  # fleet blocks
_NUMBER = re.compile(r"(?<![\w.])\d[\d.e+-]*")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_HIGHEST_LR = 10.0
# Far beyond what there is: microcontrollers have 1e5 FLOP/s, accelerators 1e16; Sigfox 100 bit/s, data centres 1e12.
_REAL = {"FLOP/s": (1e3, 1e18), "bit/s": (10.0, 1e13)}


@dataclass(frozen=True)
class _Given:
    """A valid scenario and what its user wrote of it."""

    scenario: Scenario
    layers: Layers

    def wrote(self, *path: str) -> bool:
        """Return whether the user wrote something at this path."""
        found = self.layers.find(*path)
        return found is not None and found[1] is not None


def of_text(scenario: Scenario, layers: Layers) -> list[str]:
    """Return the warnings that follow from what is written, each one line that begins with a key."""
    given = _Given(scenario, layers)
    void = [
        f"{'.'.join(path)}: has no effect{why}{_of_profiles(given, path[0])}"
        for path, why in void_keys(scenario)
        if given.wrote(*path)
    ]
    return [*void, *(line for each in (_sections, _learning_rates, _speeds, _batteries) for line in each(given))]


def void_keys(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each key that has no effect in a scenario, whoever wrote it, and why, to follow these words."""
    for each in (_common_sections, _without_training, _server_power, _protocol_keys, _frequencies, _without_prices):
        yield from each(scenario)


def effective(scenario: Scenario) -> tuple[list[dict[str, Any]], dict[tuple[str, ...], str]]:
    """Return the canonical tables of the trainings of a scenario without the keys that have no effect, and these keys.

    Scenarios with equal tables give equal runs. Each key is a path and why it has no effect.
    """
    tables, found = [], dict[tuple[str, ...], str]()
    for alone in scenario.trainings:
        table = alone.canonical()
        if "session" in table:  # its sections stand in their usual places too
            table["session"] = [{key: each[key] for key in OWN if key in each} for each in table["session"]]
        void = {("name",): ", as it only names the run", **dict(void_keys(alone))}
        if not alone.backend.value.trains:
            void |= {("training", key): _untrained(alone) for key in ("lr", "lr_decay", "lr_floor")}
        for path in void:
            _remove(table, path)
        tables.append(table)
        found |= void
    return tables, found


def of_parts(scenario: Scenario, of_each: Sequence[Any]) -> list[str]:
    """Return the warnings that follow from the jobs of the first exchange of each training of an assembled scenario."""
    sessions = [f"session.{place}." if scenario.session else "" for place in range(len(of_each))]
    return [f"{session}{line}" for session, parts in zip(sessions, of_each, strict=True) for line in _of_jobs(parts)]


def once(of_each: Sequence[Sequence[str]]) -> list[str]:
    """Return each warning about several scenarios once, and in how many of them it holds unless it is all.

    Of warnings that differ in numbers alone, such as the seconds of a job, the first stands.
    """
    groups = _alike(of_each)
    total = len(of_each)
    some = {lines[0]: f" (in {len(lines)} of {total} runs)" for lines in groups.values() if len(lines) < total}
    return [f"{lines[0]}{some.get(lines[0], '')}" for lines in groups.values()]


def new(of_each: Sequence[Sequence[str]], said: set[str]) -> list[str]:
    """Return each warning about several scenarios once, but for those that were `said`, and note them there.

    Warnings that differ in numbers alone count as one.
    """
    groups = _alike(of_each)
    found = [lines[0] for words, lines in groups.items() if words not in said]
    said.update(groups)
    return found


def _alike(of_each: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Return the warnings about several scenarios by their words without numbers."""
    groups: dict[str, list[str]] = {}
    for line in (line for lines in of_each for line in dict.fromkeys(lines)):
        groups.setdefault(_NUMBER.sub("", line), []).append(line)
    return groups


def _of_jobs(parts: Any) -> list[str]:
    from edgesim.runs.estimate import of_everybody, timed  # loads torch, which `of_text` does without

    if parts.scenario.method.value.needs.peers is not None:
        return []
    start = timed(parts)
    plan = start.trainings[0].asks_devices.learner.plan(of_everybody(start))
    return [*_one_part(parts, plan), *_deadline(parts, plan)]


# --- what has no effect ---------------------------------------------------------------------------------------


def _common_sections(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Sections of the scenario of which every fleet block has its own."""
    for section in COMMON:
        if all(of_block(block, section) for block in scenario.fleet):
            yield (section,), ", as every fleet block has its own"


def _without_training(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys that ask for accuracies of a timing-only run."""
    if not scenario.backend.value.trains:
        for path in (("evaluation",), *(("stop", key) for key in ("accuracy", "metric", "milestones"))):
            yield path, _untrained(scenario)


def _untrained(scenario: Scenario) -> str:
    return f", as backend {scenario.backend.name} trains nothing"


def _server_power(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Watts and workers of a server that is never busy."""
    if scenario.server.flops_per_s == float("inf"):
        for key in ("busy", "workers"):
            yield ("server", key), " without server.flops_per_s, as the server's work takes no time"


def _protocol_keys(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys of the protocol that another of its keys makes void."""
    rule = scenario.protocol.value
    void: dict[str, str | None] = {}
    if isinstance(rule, Deadline):
        void = {
            "late_weight": None if rule.late == "keep" else "late = 'drop'",
            "quantile": None if rule.rule == "quantile" else f"rule = {rule.rule!r}",
            "k": None if rule.rule == "mad" else f"rule = {rule.rule!r}",
            "rounds": None if rule.rule != "fixed" else f"rule = {rule.rule!r}",
        }
    elif isinstance(rule, Buffered):
        form = f"staleness = {rule.staleness!r}"
        void = {"a": form if rule.staleness == "constant" else None, "b": None if rule.staleness == "hinge" else form}
    yield from ((("protocol", key), f" with {why}") for key, why in void.items() if why)


def _frequencies(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Lowest frequencies of CPUs whose governor never goes there."""
    for i, block in enumerate(scenario.fleet):
        if block.cpu.min_frequency is not None and isinstance(block.cpu.governor.value, Max):
            yield ("fleet", str(i), "cpu", "min_frequency"), f" with governor {block.cpu.governor.name!r}"


def _without_prices(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Whose prices hold for a fleet block, where there are none."""
    if scenario.prices is None:
        for i in range(len(scenario.fleet)):
            yield from ((("fleet", str(i), key), " without prices") for key in ("zone", "link"))


def _remove(table: Any, path: Sequence[str]) -> None:
    """Take a key out of nested tables and lists, where it is there."""
    *above, last = path
    for key in above:
        table = table[int(key)] if isinstance(table, list) else table.get(key, {})
    table.pop(last, None)


def _of_profiles(given: _Given, section: str) -> str:
    """Return the profiles that bring a section of their own, in words."""
    by_profile = _with_profile(given, section) if section in COMMON else []
    return f" (the profile of {_named(by_profile)} has its own)" if by_profile else ""


def _with_profile(given: _Given, section: str) -> list[str]:
    """Return the names of the fleet blocks that have a section of their own which the user did not write."""
    blocks = enumerate(given.scenario.fleet)
    return [block.name for i, block in blocks if of_block(block, section) and not given.wrote("fleet", str(i), section)]


# --- what has an effect on a part only ------------------------------------------------------------------------


def _sections(given: _Given) -> Iterator[str]:
    """Sections of the scenario that some fleet blocks do not follow, as their profiles have their own."""
    for section in COMMON:
        followed = not all(of_block(block, section) for block in given.scenario.fleet)
        if followed and given.wrote(section) and (by_profile := _with_profile(given, section)):
            yield f"{section}: is not that of all fleet blocks: the profile of {_named(by_profile)} has its own"


# --- what is probably not meant -------------------------------------------------------------------------------


def _learning_rates(given: _Given) -> Iterator[str]:
    """Rates of local training that are far above any in use."""
    sessions = enumerate(given.scenario.session)
    own = [(f"session.{i}.training", each.training) for i, each in sessions if each.training is not None]
    for path, training in [("training", given.scenario.training), *own]:
        if training.lr > _HIGHEST_LR:
            yield (
                f"{path}.lr: training will diverge at {training.lr:g}, as rates above {_HIGHEST_LR:g} are not in use"
            )


def _speeds(given: _Given) -> Iterator[str]:
    """Speeds of devices, servers and links that nothing has, as where a unit was forgotten."""
    fleet = given.scenario.fleet
    speeds: list[tuple[str, Any, str]] = [("server.flops_per_s", given.scenario.server.flops_per_s, "FLOP/s")]
    speeds += [(f"fleet.{i}.cpu.flops_per_s", block.cpu.flops_per_s, "FLOP/s") for i, block in enumerate(fleet)]
    own = [(f"fleet.{i}.network", block.network) for i, block in enumerate(fleet)]
    for path, network in [("network", given.scenario.network), *own]:
        args = {} if network is None else network.args
        speeds += [(f"{path}.{key}", args.get(key), "bit/s") for key in ("up", "down")]
    said = set[str]()
    for path, speed, unit in speeds:
        least, most = _REAL[unit]
        wrong = [value for value in _numbers(speed) if not least <= value <= most]
        key = path.translate(_NO_DIGITS)
        if wrong and key not in said:
            said.add(key)  # once, though many blocks may have it
            effect = "almost no time" if wrong[0] > most else "very long"
            work = "computing" if unit == "FLOP/s" else "a transfer"
            yield f"{path}: {work} will take {effect} at {wrong[0]:g} {unit}; real ones have {least:g} to {most:.0e}"


def _batteries(given: _Given) -> Iterator[str]:
    for i, block in enumerate(given.scenario.fleet):
        battery = block.battery and block.battery.value
        if isinstance(battery, Battery) and (not battery.windows or battery.charge == 0.0):
            yield f"fleet.{i}.battery: will never charge, so that a device is off for good once it is empty"


def _numbers(speed: Any) -> list[float]:
    """Return the finite numbers of a speed, or of the distribution that it has, as an object or a table."""
    table = speed.table() if isinstance(speed, Distribution) else speed
    if isinstance(table, Mapping):
        [kind, values] = next(iter(table.items()))
        table = values[0] if kind.endswith("normal") else values  # the other one is a spread
    numbers = table if isinstance(table, list) else [table]
    return [value for value in numbers if isinstance(value, float) and isfinite(value)]


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
    from edgesim.runs.estimate import priced
    from edgesim.runs.tree import protocol_of_devices

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
    from edgesim.runs.estimate import of_everybody, priced, timed

    setting = replace(parts.setting, deadline_s=2.0 * parts.setting.deadline_s)
    later = replace(parts, setting=setting)
    start = timed(later)
    others = priced(later, start.trainings[0].asks_devices.learner.plan(of_everybody(start)))
    return bool(len(others) != len(jobs) or (others["seconds"].to_numpy() != jobs["seconds"].to_numpy()).any())


def _named(names: list[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])
