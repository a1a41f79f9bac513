"""The terms and spreads of the catalogue, edgesim/config/devices: the end of each profile is written from its fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.devices import trust
from edgesim.config.device_profiles import ESTIMATED_SPREAD

FOLDER = Path(__file__).parents[2] / "edgesim" / "config" / "devices"
PI, ZEUS = "jafermarq/federated-embedded-vision", "ml-energy/zeus, summary_power traces"
JETSON = "tuananhngh/FL-G5K-EnergyConsumption, experiments.json"
ONE_NETWORK = "Of {source}. Other networks: spread where such a fit of one network could be tested."
TERMS_AT = "\n[terms."  # from here on a file is written


def fitted() -> dict[str, tuple[Mapping[str, float], float, dict[str, Any], str]]:
    """Terms, spread, source and what the spread is worked out from ("": it is measured), by profile."""
    found = {}
    for profile, device, source, year in (
        ("raspberry_pi_4", "raspberry_pi_4", f"{PI}, 103 training steps of 52 networks", 2023),
        ("raspberry_pi_5", "raspberry_pi_5", f"{PI}, 73 training steps of 52 networks", 2023),
        ("x86_thread", "x86_thread", "edgesim, benchmarks/devices, 80 training steps of 20 networks", 2025),
        ("phone_mid", "xiaomi_sd855", "UbiquitousLearning/Benchmark-On-Device-Training, 25 steps of 5 networks", 2021),
    ):
        spread = trust.left_out(device, "family").spread
        found[profile] = (trust.terms(device), spread, {"source": source, "year": year}, "")
    one = trust.one_network_spread()
    for device in trust.GPUS:
        origin = {"source": f"{ZEUS}, ResNet50 on ImageNet", "year": 2023}
        found[device] = (trust.gpu_terms(device)[0], one, origin, ONE_NETWORK.format(source="ResNet50"))
    origin = {"source": f"{JETSON}, ResNet18 on CIFAR-10", "year": 2024}
    found["jetson_agx_xavier"] = (trust.jetson_terms(), one, origin, ONE_NETWORK.format(source="ResNet18"))
    return found


def tables(profile: str) -> str:
    """The tables `[terms.KIND]` and `[spread]` of a profile as TOML."""
    terms, spread, origin, derived = fitted()[profile]
    parts = []
    for kind, seconds in terms.items():
        if kind == "samples" or not seconds:  # tensors in memory are not loaded
            continue
        how = _OPERATIONS if kind == "operations" and profile.startswith("raspberry") else ""
        parts.append(_table(f"terms.{kind}", float(f"{seconds * 1e9:.4g}"), "ns", origin, how))
    return "\n".join([*parts, _table("spread", round(spread, 3), "", origin, derived)])


_OPERATIONS = "Of the x86_thread profile, times the ratio of both devices' seconds a FLOP: steps at 224x224 show none."


def _table(key: str, value: float, unit: str, origin: Mapping[str, Any], derived: str) -> str:
    fields = {"value": value, **({"unit": unit} if unit else {}), **origin}
    if derived:
        fields |= {"estimate": True, "derived": derived}
    return "\n".join([f"[{key}]", *(f"{name} = {json.dumps(field)}" for name, field in fields.items()), ""])


def stale() -> list[str]:
    """Profiles whose tables are not what the fits give, and the spread of estimates if it is not."""
    estimated = [] if abs(ESTIMATED_SPREAD - trust.estimated_spread()) < 0.005 else ["ESTIMATED_SPREAD"]
    return estimated + [profile for profile in fitted() if _text(profile) != _path(profile).read_text(encoding="utf-8")]


def write() -> None:
    """Write the tables of all profiles."""
    for profile in fitted():
        _path(profile).write_text(_text(profile), encoding="utf-8")


def _path(profile: str) -> Path:
    return FOLDER / f"{profile}.toml"


def _text(profile: str) -> str:
    given = _path(profile).read_text(encoding="utf-8").partition(TERMS_AT)[0].rstrip("\n")
    return f"{given}\n\n{tables(profile)}"
