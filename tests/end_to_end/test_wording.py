"""Refusals speak of lists, tables and whole numbers, as files have them, and not of Python's types."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from edgesim.config.load import load_scenario
from edgesim.config.plugin_fields import PartOf
from edgesim.config.plugins import PACKAGES, plugins_of
from edgesim.config.prices import PricesTable
from edgesim.config.scenario import Cpu, FleetBlock, Scenario, Server
from edgesim.config.sections import Edges, Encodings, Evaluation, SessionTable, Stop
from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import Training
from edgesim.core.price_list import CostProfile
from edgesim.studies.study import Study, study_of
from tests.calling import TINY
from tests.sizes import full

# What pydantic says, which no file of a user has.
LEAKS = re.compile(
    r"valid (tuple|dict|list|set|frozen|string|integer|number|boolean|mapping|path|date)|[Ii]nput should|"
    r"(Tuple|List|String|Set|Value|Dictionary|Mapping) should|instance of|unable to parse|fractional part|pydantic|"
    r"(Value|Assertion) error|validation|iterable|callable|Field required|valid_type|extra_forbidden|model_type"
)
WRONG: list[Any] = [
    True, 0.8, -1, 3, 1e300, float("inf"), "odd", "", [], [[]], ["odd"], [True], [-1, 2, 3], {}, {"odd": 1},
    {"odd": [{}]}, [{"odd": 1}], ["seed=1", 3],
]  # fmt: skip
SECTIONS: dict[str, type[BaseModel]] = {
    "": Scenario, "evaluation": Evaluation, "stop": Stop, "encoding": Encodings,
    "server": Server, "prices": PricesTable, "edges": Edges, "session.0": SessionTable, "fleet.0": FleetBlock,
    "fleet.0.cpu": Cpu,
}  # fmt: skip


def refusals_of_scenarios() -> Iterator[str]:
    base = tomllib.loads(TINY)
    keys = {section: [*cls.model_fields] for section, cls in SECTIONS.items()}
    keys["training"] = [field.name for field in dataclasses.fields(Training)]
    for section, names in keys.items():
        for key in names:
            for wrong in WRONG:
                table: Any = {**base, "fleet": [{**block} for block in base["fleet"]]}
                place = table
                for step in filter(None, section.split(".")):
                    if step == "session":
                        table["session"] = [{}]
                    place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
                place[key] = wrong
                try:
                    load_scenario(table)
                except ConfigError as error:
                    yield str(error)


def refusals_of_parts() -> Iterator[str]:
    for kind in PACKAGES:
        for name, cls in plugins_of(kind).items():
            for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
                for wrong in WRONG:
                    try:
                        PartOf(kind).read({"name": name, field.name: wrong})
                    except ValidationError as error:
                        yield reason(error)
                    except ValueError as error:
                        yield str(error)


def refusals_of_studies(tmp_path: Any) -> Iterator[str]:
    base = {"name": "study", "base": tomllib.loads(TINY), "columns": ["sim_time_s"], "axes": {"seed": [1]}}
    for key in Study.model_fields:
        for wrong in WRONG:
            try:
                study_of({**base, key: wrong}, tmp_path)
            except ConfigError as error:
                yield str(error)


def leaks(said: set[str]) -> list[str]:
    return sorted(each for each in said if LEAKS.search(each))


@full
def test_no_key_of_a_scenario_is_refused_in_pydantics_words() -> None:
    said = set(refusals_of_scenarios())
    assert len(said) > 600
    assert leaks(said) == []
    assert said >= {
        "evaluation.targets: must be a list, got 0.8",
        "stop.rounds: must be a whole number, got 0.8",
        "name: must be a string, got 0.8",
    }


def test_no_key_of_a_shipped_part_is_refused_in_pydantics_words() -> None:
    said = set(refusals_of_parts())
    assert len(said) > 300
    assert leaks(said) == []


def test_no_key_of_a_study_is_refused_in_pydantics_words(tmp_path: Any) -> None:
    said = set(refusals_of_studies(tmp_path))
    assert len(said) > 40
    assert leaks(said) == []


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"model": 1}', '{"model": "m", "layers": 3}', '{"model": "m", "layers": [3]}']
)
def test_nor_is_a_cost_profile(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CostProfile.from_json(text)
    assert leaks({str(caught.value)}) == []
