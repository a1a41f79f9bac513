"""Labels of the axes of a study, and the blocks of its fleet, each with speed, power, rate, trust and source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from edgesim.config import device_profiles
from edgesim.config.describe import describe
from edgesim.config.display_names import display_name
from edgesim.config.plugins import PACKAGES, is_outside
from edgesim.core.errors import ConfigError
from edgesim.core.work import interval_factor
from edgesim.reports.format import text
from edgesim.reports.html.content import Level
from edgesim.reports.load import Run
from edgesim.studies.decision import level
from edgesim.studies.scenario_words import section_words, value_words
from edgesim.studies.study import StudyCell

FLEET = ""  # the key of the fleet
_CAUTIONS = {
    "estimated": "its speed is an estimate ({error}). Measure one before you rely on its seconds",
    "one point": "its speed comes from one measurement ({error})",
}
_PRODUCT = ("frequency", "cores", "flops_per_cycle", "efficiency")
_NEAR = 0.01  # relative; a speed this close to that of the profile is the profile's


def levels_of(runs: Sequence[tuple[StudyCell, Run]], base: Mapping[str, str]) -> dict[str, list[Level]]:
    """Return the labels of each axis with what they change, and the fleet blocks under FLEET. `base`: labels."""
    scenarios = {tuple(cell.group.items()): run.manifest["scenario"] for cell, run in reversed(runs)}
    found: dict[str, list[Level]] = {}
    changed: set[str] = set()
    for axis in base:
        labels = list(dict.fromkeys(cell.group[axis] for cell, _ in runs))
        if len(labels) < 2:
            continue
        own = {}
        for label in labels:
            here = tuple({**base, axis: label}.items())
            others = (scenario for group, scenario in scenarios.items() if dict(group)[axis] == label)
            own[label] = scenarios.get(here) or next(others)
        paths = _differing(list(own.values()))
        changed |= paths
        found[axis] = [_level(level(axis, label), scenario, paths) for label, scenario in own.items()]
    found[FLEET] = list(_fleet(scenarios[tuple(base.items())], changed))
    return found


def _differing(scenarios: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the sections, and the sections of fleet blocks such as fleet.0.cpu, that are not the same in all."""
    flat = [dict(_sections(scenario)) for scenario in scenarios]
    paths = dict.fromkeys(path for each in flat for path in each)
    return {path for path in paths if any(each.get(path) != flat[0].get(path) for each in flat)}


def _sections(scenario: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, value in scenario.items():
        if section == "fleet":
            blocks = enumerate(value)
            yield from ((f"fleet.{place}.{key}", each) for place, block in blocks for key, each in block.items())
        elif section not in ("seed", "name", "backend", "weights"):
            yield section, value


def _level(name: str, scenario: Mapping[str, Any], paths: set[str]) -> Level:
    facts: dict[str, list[str]] = {}
    cautions = []
    for place, block in enumerate(scenario.get("fleet", ())):
        own = {path.rpartition(".")[2] for path in paths if path.startswith(f"fleet.{place}.")}
        for key, said in _device(block, own).items():
            facts.setdefault(key, []).append(said)
        if "cpu" in own:
            cautions.append(_caution(block))
    for section in sorted(path for path in paths if not path.startswith("fleet.")):
        value = scenario.get(section)
        part = value.get("name") if isinstance(value, Mapping) else None
        if part and section in PACKAGES and not is_outside(section, part):
            with suppress(ConfigError):
                known = describe(section, part)
                facts.setdefault("what it is", []).append(known.what.partition(". ")[0].rstrip("."))
                if known.source:
                    facts.setdefault("source", []).append(known.source)
        said = "none" if value in (None, [], ()) else section_words(section, value)
        facts.setdefault("setting", []).append(f"{section.replace('_', ' ')} {said}")
    caution = next(filter(None, cautions), "")
    return Level(name=name, facts={key: "; ".join(dict.fromkeys(said)) for key, said in facts.items()}, caution=caution)


def _fleet(scenario: Mapping[str, Any], changed: set[str]) -> Iterator[Level]:
    """Yield each fleet block with its number of devices. Sections that an axis changes stand with the axis."""
    for place, block in enumerate(scenario.get("fleet", ())):
        own = {key for key in block if f"fleet.{place}.{key}" not in changed}
        shared = {key: scenario[key] for key in ("network", "energy") if block.get(key) is None and key not in changed}
        facts = {"devices": f"{block.get('count', 1)}", **_device({**block, **shared}, own)}
        caution = _caution(block) if "cpu" in own else ""
        yield Level(name=display_name(str(block.get("name") or "device")), facts=facts, caution=caution)


def _device(block: Mapping[str, Any], sections: set[str]) -> dict[str, str]:
    """Return the facts of some sections of a fleet block."""
    cpu, facts = block.get("cpu") or {}, {}
    profile = _profile(cpu)
    if "cpu" in sections and cpu:
        speed = _speed(cpu)
        facts["what it is"] = profile.title if profile else ""
        facts["speed"] = value_words(cpu["flops_per_s"], "FLOP/s") if speed is None else text("flops_per_s", speed)
    if "energy" in sections and (energy := block.get("energy")) and energy.get("name") != "none":
        watts = [("idle", "idle"), ("busy", "computing")]
        known = [f"{value_words(energy[key], 'W')} {word}" for key, word in watts if energy.get(key) is not None]
        facts["power"] = ", ".join(known) or section_words("energy", energy)
    if "network" in sections and (network := block.get("network")):
        ways = [(key, "bit/s") for key in ("up", "down")]
        known = [f"{value_words(network[key], unit)} {key}" for key, unit in ways if network.get(key) is not None]
        wait = [f"latency {value_words(network['latency'], 's')}"] if network.get("latency") else []
        facts["rate"] = ", ".join([*known, *wait]) if known else section_words("network", network)
    if "cpu" in sections and cpu:
        facts["trust"] = f"{profile.trust}, {_error(profile)}" if profile else "set by the scenario"
        facts["source"] = _source(profile) if profile else "the scenario"
    elif "network" in sections and len(sections & {"cpu", "energy", "network"}) == 1:
        facts["source"] = "the scenario"
    return {key: said for key, said in facts.items() if said}


def _speed(cpu: Mapping[str, Any]) -> float | None:
    """Return the FLOP/s of a block's processor; None if they are drawn from a distribution."""
    given = cpu.get("flops_per_s")
    if given is not None:
        return float(given) if isinstance(given, int | float) else None
    product = 1.0
    for key in _PRODUCT:
        if not isinstance(cpu.get(key), int | float):
            return None
        product *= cpu[key]
    return product


def _profile(cpu: Mapping[str, Any]) -> device_profiles.Profile | None:
    """Return the profile of a block's processor; None without one, or if the scenario gives another speed."""
    board, speed = cpu.get("board"), _speed(cpu)
    if board not in device_profiles.names():
        return None
    profile = device_profiles.find(board)
    same = speed is not None and abs(speed / profile.flops_per_s - 1) < _NEAR
    return profile if same else None


def _error(profile: device_profiles.Profile) -> str:
    return f"nine of ten networks within x/: {interval_factor(profile.spread):.2g}"


def _caution(block: Mapping[str, Any]) -> str:
    profile = _profile(block.get("cpu") or {})
    return _CAUTIONS.get(profile.trust, "").format(error=_error(profile)) if profile else ""


def _source(profile: device_profiles.Profile) -> str:
    speed = profile.quantities["flops_per_s" if "flops_per_s" in profile.quantities else "efficiency"]
    clock = next((quantity for key, quantity in profile.quantities.items() if key.startswith("terms.")), speed)
    return "; ".join(dict.fromkeys(f"{each.source} ({each.year})" for each in (speed, clock)))
