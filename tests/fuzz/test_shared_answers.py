"""Runs that may use the answers of another one equal runs that know nothing, whatever keys of the scenario differ."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import edgesim
from edgesim.config.describe import KeyFacts, describe, keys_of
from edgesim.config.plugins import places_of
from edgesim.config.scenario import Cpu, Server
from edgesim.config.sections import Evaluation
from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError, ContractError, DataError
from edgesim.core.local_sgd import Training
from edgesim.execution.result_cache import Answers
from edgesim.reports.load import Run
from edgesim.runs.simulate import simulate
from tests.sizes import full, sized

SECTIONS = {
    **{kind: kind for kind in ("method", "partition", "network", "energy", "slowdown", "selection", "protocol")},
    **{kind: kind for kind in ("server_optimizer", "availability", "cost", "model")},
    "failure": "failures",
    "battery": "fleet.0.battery",
    "governor": "fleet.0.cpu.governor",
}
TABLES: dict[str, Any] = {
    "training": Training, "encoding.up": Encoding, "encoding.down": Encoding, "evaluation": Evaluation,
    "server": Server, "fleet.0.cpu": Cpu,
}  # fmt: skip
# What trains the same in most cases, so that one of the two runs has answers for the other.
WORLD = ("network", "energy", "slowdown", "server.busy", "server.flops_per_s", "stop.rounds=3", "evaluation.every")
PLAIN = ("seed=4", "data_seed=9", "data.train_limit=50", "stop.rounds=3", "fleet.0.count=4", "fleet.0.level=2")
BASE: dict[str, Any] = {
    "seed": 3,
    "data": {"name": "digits", "train_limit": 60, "test_limit": 30},
    "partition": "iid",
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"batch": 10, "lr": 0.1},
    "network": {"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s"},
    "energy": {"name": "power", "idle": "1 W", "busy": "4 W"},
    "server": {"flops_per_s": "10 MFLOP/s", "busy": "3 W"},
    "method": "fedavg",
    "stop": {"rounds": 2},
    "fleet": [
        {"count": 2, "level": 1, "cpu": {"flops_per_s": "1 MFLOP/s"}},
        {"count": 2, "level": 2, "cpu": {"flops_per_s": "3 MFLOP/s"}},
    ],
}
MOST_ROUNDS = 4
TRIES = 400  # scenarios that are refused, for each that runs


@cache
def changes() -> dict[str, list[str]]:
    """Return overrides of one key each, by what they change: all parts of a kind, each key of a table."""
    found: dict[str, list[str]] = {name: [name] for name in PLAIN}
    for kind, section in SECTIONS.items():
        for name in places_of(kind):
            if not name.endswith(":"):
                facts = describe(kind, name)
                found.setdefault(section, []).extend(f"{section}={text}" for text in _tables(name, facts.keys))
    for section, cls in TABLES.items():
        for key in keys_of(cls):
            found[f"{section}.{key.key}"] = [f"{section}.{key.key}={key.example}"]
    return found


def _tables(name: str, keys: tuple[KeyFacts, ...]) -> Iterator[str]:
    """Yield inline tables that choose a part: as it is, and with each of its keys."""
    needed = [f"{key.key} = {key.example}" for key in keys if key.default == "required"]
    yield f"{{ {', '.join([f'name = {name!r}', *needed])} }}"
    for key in keys:
        if key.default != "required":
            yield f"{{ {', '.join([f'name = {name!r}', *needed, f'{key.key} = {key.example}'])} }}"


def drawn(random: Random) -> tuple[Any, Any]:
    """Return two scenarios that differ in one key or two, neither of which is refused."""
    for _ in range(TRIES):
        known = changes()
        common = random.sample(sorted(known), random.choice((0, 1, 2)))
        both = [random.choice(known[key]) for key in common]
        key = random.choice(["method", random.choice(WORLD), *random.sample(sorted(known), 2)])
        one, other = random.choice(["", *known[key]]), random.choice(known[key])
        try:
            pair = [edgesim.load(BASE, [*both, *filter(None, [each])]) for each in (one, other)]
            if pair[0].digest() != pair[1].digest() and all((each.stop.rounds or 9) <= MOST_ROUNDS for each in pair):
                return pair[0], pair[1]
        except (ConfigError, DataError, tomllib.TOMLDecodeError):
            continue
    raise AssertionError(f"{TRIES} pairs in a row were refused")


def results_of(run: Run) -> dict[str, Any]:
    """Return all that a run folder has that follows from its scenario."""
    frames = {name: run.table(name) for name in ("jobs", "rounds", "evals", "devices")}
    texts = {name: None if frame is None else frame.to_csv() for name, frame in frames.items()}
    weights = {path.name: path.read_bytes() for path in run.folder.glob("*.safetensors")}
    return {**texts, **weights, "status": run.manifest["status"], "totals": run.manifest["totals"]}


def played(scenario: Any, out: Path, answers: Answers | None) -> dict[str, Any] | str:
    """Return the results of a run, or why it cannot be."""
    try:
        return results_of(simulate(scenario, out, answers=answers))
    except (ConfigError, DataError, ContractError) as error:
        return f"{type(error).__name__}: {error}"


@full
@pytest.mark.grows
@pytest.mark.parametrize("group", range(sized(1, 2, 20)))
def test_answers_of_another_scenario_are_answers_of_this_one(tmp_path: Path, group: int) -> None:
    """Each pair of scenarios shares a folder; the second is compared with itself alone."""
    ran = answered = 0
    pairs = sized(3, 50, 100, rest=20)
    for number in range(5 * pairs):
        one, other = drawn(Random(f"{group}/{number}"))
        folder = tmp_path / str(number)
        if isinstance(played(one, folder / "one", Answers(folder)), str):
            continue  # it is refused when it is put together
        shared = played(other, folder / "other", Answers(folder))
        alone = played(other, folder / "alone", None)
        assert shared == alone, (group, number)
        if not isinstance(shared, str):
            answered += edgesim.open(folder / "other").manifest["known"]["answers"] > 0
            ran += 1
        if ran == pairs:
            break
    assert ran == pairs
    assert answered > 0 or pairs < 10  # or nothing was shared that could be stale
