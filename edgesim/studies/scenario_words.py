"""Scenario sections in display units, for readers: "20 Mbit/s up" instead of up = 2e+07."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

from edgesim.config.describe import describe, keys_of, toml
from edgesim.config.plugins import PACKAGES, is_outside
from edgesim.config.scenario import Scenario
from edgesim.config.sections import Encodings
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.reports.format import text, unit_for
from edgesim.reports.groups import value_text

_SUFFIXES = {
    "s": "_s", "W": "_w", "J": "_j", "byte": "_bytes", "bit/s": "_bps", "Hz": "_hz", "FLOP/s": "flops_per_s",
    "FLOP": "flops",
}  # fmt: skip
_FIXED = ("training", "server", "evaluation", "stop", "encoding")  # sections with keys of their own, without a part
_PRICE = re.compile(r"(?P<number>[-+0-9.e]+) (?P<what>\w+)/(?P<per>J|byte|B|s)")
_PER = {"J": (3.6e6, "kWh"), "byte": (1e9, "GB"), "B": (1e9, "GB"), "s": (3600.0, "h")}  # of a price
_KINDS = {"availability": "availability", "failures": "failure"}  # sections that list parts
_DISTRIBUTIONS = ("uniform", "log_uniform", "normal", "log_normal", "choice")
_LONGEST = 4  # values of a list that are all shown


def section_words(section: str, value: Any, only: Container[str] = ()) -> str:
    """Return a section of a canonical scenario in one line, without keys at their defaults, or with the keys `only`."""
    if isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        return "; ".join(section_words(_KINDS.get(section, section), each) for each in value)
    if not isinstance(value, Mapping):
        return value_words(value)
    name, facts = value.get("name"), key_facts(section, str(value.get("name", "")))
    pairs = []
    for key, each in value.items():
        unit, default = facts.get(key, ("", ""))
        hidden = each is None or each in ({}, [], ()) or toml(each) == default
        if key == "name" or (key not in only if only else hidden):
            continue
        of_part = isinstance(each, Mapping) and not _is_distribution(each)
        if (section, key) == ("evaluation", "targets"):  # accuracies
            each = [f"{100 * target:.4g}\u00a0%" for target in each]
        said = section_words(key, each) if of_part else value_words(each, unit)
        if said:
            said = f"({said})" if of_part and "; " in said else said
            pairs.append(f"{key.replace('_', ' ')} {said}" if key != "*" else said)
    nested = any(isinstance(each, Mapping) and not _is_distribution(each) for each in value.values())
    told = ("; " if nested else ", ").join(pairs)
    return told if name is None or only else f"{name}: {told}" if told else str(name)


@lru_cache(maxsize=256)
def key_facts(section: str, name: str) -> Mapping[str, tuple[str, str]]:
    """Return unit and default of each key of a part or a section, as far as they are known."""
    if section in _FIXED:
        return {key.key: (key.unit, key.default) for key in keys_of(Scenario.model_fields[section].annotation)}
    if section in Encodings.model_fields and not name:
        return {key.key: (key.unit, key.default) for key in keys_of(Encoding)}
    kind = section if section in PACKAGES else "tariff"  # of electricity, carbon and so on, by zone
    if not name or is_outside(kind, name):
        return {}
    try:
        return {key.key: (key.unit, key.default) for key in describe(kind, name).keys}
    except ConfigError:  # the run may come from a version with another catalogue
        return {}


def value_words(value: Any, unit: str = "") -> str:
    """Return a value of a scenario in display units. A long list of numbers is its range and its length."""
    if _is_distribution(value):
        [kind, given], *_ = value.items()
        shape = kind.replace("_", "-")
        if kind.endswith("normal"):  # the second number of a log-normal distribution is a factor
            return f"{value_words(given[0], unit)} ({shape}, {value_words(given[1], unit if kind == 'normal' else '')})"
        if kind == "choice":
            return f"{value_words(given, unit)} ({shape})"
        of = unit_for(_SUFFIXES.get(unit, ""), max(map(abs, given)))
        return f"{given[0] / of.size:.3g} to {given[1] / of.size:.3g} {of.symbol}".rstrip() + f" ({shape})"
    if isinstance(value, list | tuple):
        if len(value) <= _LONGEST:
            return ", ".join(value_words(each, unit) for each in value)
        numbers = [re.match(r"[-+0-9.e]+", str(each)) for each in value]
        shown = sorted(range(len(value)), key=lambda place: float(found[0]) if (found := numbers[place]) else 0.0)
        first, last = value_words(value[shown[0]], unit), value_words(value[shown[-1]], unit)
        number, _, symbol = first.partition(" ")
        start = number if symbol and last.endswith(f" {symbol}") else first
        return f"{start} to {last} ({len(value)} values)" if first != last else f"{first} ({len(value)} values)"
    if isinstance(value, str):
        found = _PRICE.fullmatch(value)
        if not found:
            return value
        size, per = _PER[found["per"]]
        return f"{float(found['number']) * size:.4g} {found['what']}/{per}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return toml(value)
    return text(_SUFFIXES[unit], value) if unit in _SUFFIXES else f"{value:g} {unit}".rstrip()


def exact_words(section: str, part: str, key: str, value: Any) -> str:
    """Return a value of a part in a display unit, in so many digits that different values have different words."""
    symbol = key_facts(section, part).get(key, ("", ""))[0]
    if symbol not in _SUFFIXES or isinstance(value, bool) or not isinstance(value, int | float):
        return value_text(section, part, key, value)
    unit = unit_for(_SUFFIXES[symbol], abs(value))
    return f"{value / unit.size:.12g} {unit.symbol}"


def _is_distribution(value: Any) -> bool:
    return isinstance(value, Mapping) and next(iter(value), "") in _DISTRIBUTIONS
