"""Labels of the axes of a study, and the blocks of its fleet, each with speed, power, rate, trust and source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from edgesim.config import device_profiles
from edgesim.config.describe import describe
from edgesim.config.display_names import display_name
from edgesim.config.plugins import PACKAGES, is_outside
from edgesim.core.errors import ConfigError
from edgesim.core.work import interval_factor
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
_SET = "set by the scenario"
_PRODUCT = ("frequency", "cores", "flops_per_cycle", "efficiency")
_NO_SETTING = ("seed", "name", "backend", "weights", "fleet")
_NEAR = 0.01  # relative; a speed this close to that of the profile is the profile's


def levels_of(runs: Sequence[tuple[StudyCell, Run]], base: Mapping[str, str]) -> dict[str, list[Level]]:
    """Return the labels of each axis with what they change, and the fleet blocks under FLEET. `base`: labels."""
    scenarios = {tuple(cell.group.items()): run.manifest["scenario"] for cell, run in reversed(runs)}
    found: dict[str, list[Level]] = {}
    changed: set[str] = set()
    for axis in base:
        labels = list(dict.fromkeys(cell.group[axis] for cell, _ in runs))
        own = {}
        for label in labels:
            here = tuple({**base, axis: label}.items())
            others = (scenario for group, scenario in scenarios.items() if dict(group)[axis] == label)
            own[label] = sections_of(scenarios.get(here) or next(others))
        first, *rest = own.values()
        paths = {path: set[str]() for each in rest for path in {*first, *each} if each.get(path) != first.get(path)}
        for path, keys in paths.items():
            tables = [table for each in own.values() if isinstance(table := each.get(path), Mapping)]
            if len(tables) == len(own) and len({table.get("name") for table in tables}) == 1:
                keys |= {key for key in tables[0] if any(table.get(key) != tables[0][key] for table in tables)}
        changed |= set(paths)
        if rest:
            found[axis] = [_level(level(axis, label), sections, paths) for label, sections in own.items()]
    scenario = scenarios[tuple(base.items())]
    blocks = []
    for place, block in enumerate(scenario.get("fleet", ())):
        own_sections = {key for key in block if f"fleet.{place}.{key}" not in changed}
        shared = {key: scenario[key] for key in ("network", "energy") if block.get(key) is None and key not in changed}
        facts = {"devices": f"{block.get('count', 1)}", **_device({**block, **shared}, own_sections)}
        caution = _caution(block) if "cpu" in own_sections else ""
        blocks.append(Level(name=display_name(str(block.get("name") or "device")), facts=facts, caution=caution))
    return found | {FLEET: blocks}


def sections_of(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a scenario that define a setting, those of fleet blocks as fleet.0.cpu."""
    found = {
        key: value for key, value in scenario.items() if key not in ("seed", "name", "backend", "weights", "fleet")
    }
    for place, block in enumerate(scenario.get("fleet", ())):
        found |= {f"fleet.{place}.{key}": value for key, value in block.items()}
    return found


def _level(name: str, sections: Mapping[str, Any], paths: Mapping[str, set[str]]) -> Level:
    """Return a label with the facts of its sections in `paths`, as `sections_of` names them.

    The keys of a path are those that differ in a part that all labels have; none if the part differs.
    """
    facts: dict[str, list[str]] = {}
    caution = ""
    for block in dict.fromkeys(path.rpartition(".")[0] for path in sorted(paths) if path.startswith("fleet.")):
        whole = {path.rpartition(".")[2]: value for path, value in sections.items() if path.startswith(f"{block}.")}
        own = {path.rpartition(".")[2] for path in paths if path.startswith(f"{block}.")}
        for key, said in _device(whole, own).items():
            facts.setdefault(key, []).append(said)
        caution = caution or (_caution(whole) if "cpu" in own else "")
    for section in sorted(path for path in paths if not path.startswith("fleet.")):
        value, keys = sections.get(section), paths[section]
        part = value.get("name") if isinstance(value, Mapping) and not keys else None
        if part and section in PACKAGES and not is_outside(section, part):
            with suppress(ConfigError):
                known = describe(section, part)
                facts.setdefault("what it is", []).append(known.what.partition(". ")[0].rstrip("."))
                facts.setdefault("source", []).extend(filter(None, [known.source]))
        if isinstance(value, Mapping) and keys:
            facts.setdefault("setting", []).append(section_words(section, value, keys))
        else:
            said = "none" if value in (None, [], ()) else section_words(section, value)
            facts.setdefault("setting", []).append(f"{section.replace('_', ' ')} {said}")
    shown = {key: "; ".join(dict.fromkeys(said)) for key, said in facts.items() if said}
    return Level(name=name, facts=shown, caution=caution)


def _device(block: Mapping[str, Any], sections: set[str]) -> dict[str, str]:
    """Return the facts of some sections of a fleet block."""
    cpu, facts = block.get("cpu") or {}, {}
    profile = _profile(cpu)
    if "cpu" in sections and cpu:
        speed = _speed(cpu)
        facts["what it is"] = profile.title if profile else ""
        facts["speed"] = value_words(speed, "FLOP/s")
    if "energy" in sections and (energy := block.get("energy")) and energy.get("name") != "none":
        watts = [("idle", "idle"), ("busy", "computing")]
        known = [f"{value_words(energy[key], 'W')} {word}" for key, word in watts if energy.get(key) is not None]
        model = [] if energy.get("busy") is not None else [f"computing by the model {energy['name']}"]
        facts["power"] = ", ".join([*known, *model])
    if "network" in sections and (network := block.get("network")):
        ways = [(key, "bit/s") for key in ("up", "down")]
        known = [f"{value_words(network[key], unit)} {key}" for key, unit in ways if network.get(key) is not None]
        wait = [f"latency {value_words(network['latency'], 's')}"] if network.get("latency") else []
        facts["rate"] = ", ".join([*known, *wait]) if known else section_words("network", network)
    if "cpu" in sections and cpu:
        facts["trust"] = f"{profile.trust}, {_error(profile)}" if profile else ""
        facts["source"] = _SET
        if profile:
            speed_key = "flops_per_s" if "flops_per_s" in profile.quantities else "efficiency"
            clock = next((key for key in profile.quantities if key.startswith("terms.")), speed_key)
            of = [profile.quantities[key] for key in (speed_key, clock)]
            facts["source"] = "; ".join(dict.fromkeys(f"{each.source} ({each.year})" for each in of))
    elif "network" in sections and len(sections & {"cpu", "energy", "network"}) == 1:
        facts["source"] = _SET
    return {key: said for key, said in facts.items() if said}


def _speed(cpu: Mapping[str, Any]) -> Any:
    """Return the FLOP/s of a block's processor, or the distribution from which each device draws them."""
    if cpu.get("flops_per_s") is not None:
        return cpu["flops_per_s"]
    numbers = [cpu[key] for key in _PRODUCT if isinstance(cpu.get(key), int | float)]
    drawn = [cpu[key] for key in _PRODUCT if isinstance(cpu.get(key), Mapping)]
    factor = math.prod(numbers)
    if len(drawn) != 1:
        return factor if not drawn else "drawn"
    [(kind, values), *_] = drawn[0].items()
    return {kind: [factor * values[0], values[1]] if kind == "log_normal" else [factor * each for each in values]}


def _profile(cpu: Mapping[str, Any]) -> device_profiles.Profile | None:
    """Return the profile of a block's processor; None without one, or if the scenario gives another speed."""
    board, speed = cpu.get("board"), _speed(cpu)
    if board not in device_profiles.names():
        return None
    profile = device_profiles.find(board)
    same = isinstance(speed, int | float) and abs(speed / profile.flops_per_s - 1) < _NEAR
    return profile if same else None


def _error(profile: device_profiles.Profile) -> str:
    return f"nine of ten networks within x/: {interval_factor(profile.spread):.2g}"


def _caution(block: Mapping[str, Any]) -> str:
    profile = _profile(block.get("cpu") or {})
    return _CAUTIONS.get(profile.trust, "").format(error=_error(profile)) if profile else ""
