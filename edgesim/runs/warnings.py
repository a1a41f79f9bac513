"""Warnings about a valid scenario, and its keys that have no effect."""

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
from edgesim.config.validate import protocol_of_devices
from edgesim.engine.protocols.buffered import Buffered
from edgesim.engine.protocols.deadline import Deadline
from edgesim.world.batteries.rechargeable import Rechargeable
from edgesim.world.compute.governors.dvfs import Max

_MOST_NAMED = 3  # fleet blocks
_NUMBER = re.compile(r"(?<![\w.])\d[\d.e+-]*")
_NO_DIGITS = str.maketrans("", "", "0123456789")
_HIGHEST_LR = 10.0
# Far beyond real hardware: microcontrollers have 1e5 FLOP/s, accelerators 1e16; Sigfox 100 bit/s, data centres 1e12.
_REAL = {"FLOP/s": (1e3, 1e18), "bit/s": (10.0, 1e13)}


@dataclass(frozen=True)
class _Given:
    """A valid scenario, and the layers that tell which of its keys the user wrote."""

    scenario: Scenario
    layers: Layers

    def wrote(self, *path: str) -> bool:
        """Return True if the user wrote something at this path."""
        found = self.layers.find(*path)
        return found is not None and found[1] is not None


def of_text(scenario: Scenario, layers: Layers) -> list[str]:
    """Return the warnings that follow from the text of a scenario, each one line that begins with a key."""
    given = _Given(scenario, layers)
    lines = []
    for path, why in void_keys(scenario):
        if given.wrote(*path):
            by_profile = _with_profile(given, path[0]) if path[0] in COMMON else []
            profiles = f" (the profile of {_named(by_profile)} has its own)" if by_profile else ""
            lines.append(f"{'.'.join(path)}: has no effect{why}{profiles}")
    for section in COMMON:
        followed = not all(of_block(block, section) for block in scenario.fleet)
        if followed and given.wrote(section) and (by_profile := _with_profile(given, section)):
            lines.append(f"{section}: is not that of all fleet blocks: the profile of {_named(by_profile)} has its own")
    own = [(f"session.{i}.training", e.training) for i, e in enumerate(scenario.session) if e.training is not None]
    for key, training in [("training", scenario.training), *own]:
        if training.lr > _HIGHEST_LR:
            lines.append(
                f"{key}.lr: training will diverge at {training.lr:g}, as rates above {_HIGHEST_LR:g} are not in use"
            )
        unknown = [block.name for block in scenario.fleet if block.cpu.bfloat16_speedup is None]
        if training.precision == "bfloat16" and unknown:
            lines.append(
                f"{key}.precision: cpu.bfloat16_speedup of {_named(unknown)} is unknown, so that training there takes "
                "the seconds and joules of float32"
            )
    lines += _unreal_speeds(scenario)
    for i, block in enumerate(scenario.fleet):
        battery = block.battery and block.battery.value
        if isinstance(battery, Rechargeable) and (not battery.windows or battery.charge == 0.0):
            lines.append(f"fleet.{i}.battery: will never charge, so that a device is off for good once it is empty")
    return lines


def void_keys(scenario: Scenario) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each key without effect, written or not, and the reason, to follow "has no effect"."""
    for section in COMMON:
        if all(of_block(block, section) for block in scenario.fleet):
            yield (section,), ", as every fleet block has its own"
    if not scenario.backend.value.trains:
        tests = ("personal", "metrics", "targets", "metric_targets")  # beside those that decide when tests take time
        take_time = scenario.server.test_samples or scenario.evaluation.on_devices is not None
        of_tests = [("evaluation", key) for key in tests] if take_time else [("evaluation",)]
        for path in (*of_tests, *(("stop", key) for key in ("accuracy", "metric", "milestones"))):
            yield path, _untrained(scenario)
    if scenario.server.flops_per_s == float("inf") and not scenario.server.per_byte:
        for key in ("busy", "workers"):
            yield ("server", key), " without server.flops_per_s or server.per_byte, as the server's work takes no time"
    rule = scenario.protocol.value
    void: dict[str, str | None] = {}  # keys of the protocol, and the other key of it that makes them void
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
    is_mixed = any(each.training.precision == "bfloat16" for each in scenario.trainings)
    for i, block in enumerate(scenario.fleet):
        chosen = scenario.resources is not None or not isinstance(block.cpu.governor.value, Max)
        if not is_mixed:
            yield ("fleet", str(i), "cpu", "bfloat16_speedup"), " with training.precision = 'float32'"
        if block.cpu.min_frequency is not None and not chosen:
            yield ("fleet", str(i), "cpu", "min_frequency"), f" with governor {block.cpu.governor.name!r}"
    if scenario.prices is None:
        for i in range(len(scenario.fleet)):
            yield from ((("fleet", str(i), key), " without prices") for key in ("zone", "link"))


def effective(scenario: Scenario) -> tuple[list[dict[str, Any]], dict[tuple[str, ...], str]]:
    """Return the canonical tables of a scenario's trainings without the keys that have no effect, and these keys.

    Scenarios with equal tables give equal runs. The keys map their path to the reason.
    """
    tables, found = [], dict[tuple[str, ...], str]()
    for alone in scenario.trainings:
        table = alone.canonical()
        if "session" in table:  # the sections of a session stand at the top level too
            table["session"] = [{key: each[key] for key in OWN if key in each} for each in table["session"]]
        void = {("name",): ", as it only names the run", **dict(void_keys(alone))}
        if not alone.backend.value.trains:
            void |= {("training", key): _untrained(alone) for key in ("lr", "lr_decay", "lr_floor")}
        for *above, last in void:
            inner: Any = table
            for key in above:
                inner = inner[int(key)] if isinstance(inner, list) else inner.get(key, {})
            inner.pop(last, None)
        tables.append(table)
        found |= void
    return tables, found


def of_parts(scenario: Scenario, of_each: Sequence[Any]) -> list[str]:
    """Return the warnings that follow from the jobs of the first exchange of each training of an assembled scenario."""
    from edgesim.runs.job_sample import of_everybody, timed

    lines = []
    for place, parts in enumerate(of_each):
        if parts.lacks_memory:
            lines.append(
                "model: training takes more memory than this machine has; blocks of transformers keep less and run "
                "again in backward, but the system may end the run"
            )
        if parts.scenario.method.value.needs.peers is None and parts.scenario.app is None:
            start = timed(parts)
            plan = start.trainings[0].asks_devices.learner.plan(of_everybody(start))
            session = f"session.{place}." if scenario.session else ""
            lines += [f"{session}{line}" for line in (*_one_part(parts, plan), *_deadline(parts, plan))]
    return lines


def once(of_each: Sequence[Sequence[str]]) -> list[str]:
    """Return each warning about several scenarios once, with the number of runs it concerns unless it concerns all.

    Of warnings that differ only in numbers, such as the seconds of a job, the first is returned.
    """
    groups = _alike(of_each)
    total = len(of_each)
    some = {lines[0]: f" (in {len(lines)} of {total} runs)" for lines in groups.values() if len(lines) < total}
    return [f"{lines[0]}{some.get(lines[0], '')}" for lines in groups.values()]


def new(of_each: Sequence[Sequence[str]], said: set[str]) -> list[str]:
    """Return each warning about several scenarios once, except those in `said`, and add the new ones to `said`.

    Warnings that differ only in numbers count as one.
    """
    groups = _alike(of_each)
    found = [lines[0] for words, lines in groups.items() if words not in said]
    said.update(groups)
    return found


def _alike(of_each: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Group the warnings about several scenarios by their words without numbers."""
    groups: dict[str, list[str]] = {}
    for line in (line for lines in of_each for line in dict.fromkeys(lines)):
        groups.setdefault(_NUMBER.sub("", line), []).append(line)
    return groups


def _untrained(scenario: Scenario) -> str:
    return f", as backend {scenario.backend.name} trains nothing"


def _with_profile(given: _Given, section: str) -> list[str]:
    """Return the names of the fleet blocks whose profile, and not the user, gives them a section of their own."""
    blocks = enumerate(given.scenario.fleet)
    return [block.name for i, block in blocks if of_block(block, section) and not given.wrote("fleet", str(i), section)]


def _unreal_speeds(scenario: Scenario) -> Iterator[str]:
    """Warn about speeds of devices, servers and links far from real hardware, as when a unit was forgotten."""
    fleet = scenario.fleet
    speeds: list[tuple[str, Any, str]] = [("server.flops_per_s", scenario.server.flops_per_s, "FLOP/s")]
    speeds += [(f"fleet.{i}.cpu.flops_per_s", block.cpu.flops_per_s, "FLOP/s") for i, block in enumerate(fleet)]
    own = [(f"fleet.{i}.network", block.network) for i, block in enumerate(fleet)]
    for path, network in [("network", scenario.network), *own]:
        args = {} if network is None else network.args
        speeds += [(f"{path}.{key}", args.get(key), "bit/s") for key in ("up", "down")]
    said = set[str]()
    for path, speed, unit in speeds:
        least, most = _REAL[unit]
        table = speed.table() if isinstance(speed, Distribution) else speed
        if isinstance(table, Mapping):
            [kind, values] = next(iter(table.items()))
            table = values[0] if kind.endswith("normal") else values  # the second value of a normal is a spread
        numbers = [n for n in (table if isinstance(table, list) else [table]) if isinstance(n, float) and isfinite(n)]
        wrong = [number for number in numbers if not least <= number <= most]
        key = path.translate(_NO_DIGITS)
        if wrong and key not in said:
            said.add(key)  # one warning, though many blocks may have the speed
            effect = "almost no time" if wrong[0] > most else "very long"
            work = "computing" if unit == "FLOP/s" else "a transfer"
            yield f"{path}: {work} will take {effect} at {wrong[0]:g} {unit}; real ones have {least:g} to {most:.0e}"


def _one_part(parts: Any, plan: Any) -> Iterator[str]:
    """Warn about partial training in which all devices train the same part, such as FedPMT with one level."""
    found = {order.task.submodel for order in plan.orders if order.task.local_sgd}
    if len(found) != 1 or len(plan.orders) < 2:
        return
    [submodel] = found
    layers = [layer.name for layer in parts.setting.cost_profile.layers]
    never = [name for name in layers if name in submodel.frozen]
    if submodel.width or submodel.channels or never:
        levels = np.unique(parts.fleet.level)
        why = f", as all have level {levels[0]}" if len(levels) == 1 else ""
        rest = f"; no device trains {_named(never)}" if never else ""
        name = parts.scenario.method.name
        yield f"method.name: {name} gives every device the same sub-model, {submodel.shape_id!r}{why}{rest}"


def _deadline(parts: Any, plan: Any) -> Iterator[str]:
    """Warn about a fixed deadline that no job can meet, or that all jobs certainly meet."""
    from edgesim.core.job import ON_TIME_S
    from edgesim.runs.job_sample import of_everybody, priced, timed

    limit_s, (key, _) = parts.setting.deadline_s, protocol_of_devices(parts.scenario)
    if limit_s == float("inf"):
        return
    jobs = priced(parts, plan)
    seconds, fleet = jobs["seconds"], parts.fleet
    tried = "" if fleet.steady else f" of {len(seconds)} that were tried"
    first, last = seconds.argmin(), seconds.argmax()
    kind = [fleet.kinds[fleet.kind[jobs["device"][place]]] for place in (first, last)]
    if seconds[first] > limit_s + ON_TIME_S:
        yield (
            f"{key}.deadline: no device can meet {limit_s:g} s: the shortest job{tried}, of {kind[0]}, "
            f"takes {seconds[first]:.3g} s"
        )
        return
    # jobs can take longer than their prices where links are shared or fail, or another exchange follows
    links_fail = parts.failures is not None and parts.failures.links is not None
    certain = parts.shared is None and not links_fail and not plan.more
    if seconds[last] > limit_s + ON_TIME_S or not certain:
        return
    # the warning would be useless if jobs grew with the deadline
    later = replace(parts, setting=replace(parts.setting, deadline_s=2.0 * limit_s))
    start = timed(later)
    others = priced(later, start.trainings[0].asks_devices.learner.plan(of_everybody(start)))["seconds"]
    if len(others) == len(seconds) and (others == seconds).all():
        yield (
            f"{key}.deadline: no device can miss {limit_s:g} s: the longest job{tried}, of {kind[1]}, "
            f"takes {seconds[last]:.3g} s"
        )


def _named(names: list[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])
