"""The generated pages say all that there is, each thing with a meaning."""

from __future__ import annotations

import csv
import inspect
import io
import re
import sys
from functools import cache
from types import ModuleType
from typing import Any, get_args
from xml.etree import ElementTree

import pytest

from edgesim.cli.app import command_line
from edgesim.config.describe import describe
from edgesim.config.plugins import ABSTRACT, PACKAGES, places_of, plugins_of
from edgesim.config.scenario import Cpu, FleetBlock, Scenario
from edgesim.core import job
from edgesim.records import schema
from tests.calling import call
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"


@cache
def generated() -> dict[str, str]:
    """Return the generated pages by path, as the site has them."""
    return dict(_generator().pages())


@cache
def _generator() -> ModuleType:
    sys.path.insert(0, str(DOCS / "gen"))
    try:
        import reference
    finally:
        sys.path.remove(str(DOCS / "gen"))
    return reference


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Return the rows of all tables of a section whose first column has this heading."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        inside = bool(cells) and (inside or cells[0] == heading)
        if inside and cells[0] != heading and set(line) != {"|", "-"}:
            found.append(cells)
    return found


def section(page: str, heading: str) -> str:
    """Return the text of a section of a generated page."""
    parts = re.split(r"^## ", generated()[page], flags=re.MULTILINE)
    [found] = [part for part in parts if part.partition("\n")[0] == heading]
    return found


@pytest.mark.parametrize("table", schema.TABLES)
def test_every_column_has_its_type_and_a_meaning(table: str) -> None:
    rows = rows_of(section("reference/run_folder.md", table), "column")
    words = {schema.INT: "integer", schema.REAL: "real", schema.TEXT: "text"}
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(n, words[t]) for n, t in schema.TABLES[table].items()]
    assert [row for row in rows if not row[2]] == []


def test_every_table_of_a_run_has_a_section_and_nothing_else() -> None:
    headings = re.findall(r"^## (.*)$", generated()["reference/run_folder.md"], re.MULTILINE)
    assert headings == list(schema.TABLES)


def test_every_outcome_and_end_of_a_round_is_explained() -> None:
    page = generated()["reference/run_folder.md"]
    for heading, words in {"outcome": get_args(job.Outcome), "closed_by": schema.CLOSED_BY}.items():
        rows = rows_of(page, heading)
        assert [row[0].strip("`") for row in rows] == list(words)
        assert all(row[1] for row in rows)


def test_the_table_of_methods_has_a_whole_row_for_each() -> None:
    """And so has the CSV beside it, whose numbers are numbers."""
    rows = rows_of(generated()["reference/methods.md"], "method")
    assert [re.findall(r"`(\w+)`", row[0])[0] for row in rows] == list(plugins_of("method"))
    assert [row[0] for row in rows if not all(row[:3] + row[7:]) or len(row[8]) < 20] == []
    saved = list(csv.reader(io.StringIO(generated()["reference/methods.csv"])))
    assert [row[0] for row in saved] == ["method", *plugins_of("method")]
    assert min(float(cell) for row in saved[1:] for cell in row[3:7] if cell) >= 0
    assert saved[1 + list(plugins_of("method")).index("fedavg")][3:7] == ["1", "1", "1", "1"]


@pytest.mark.parametrize("method", plugins_of("method"))
def test_every_method_has_a_whole_page(method: str) -> None:
    """Idea, formula, source, all options with sensible bounds, costs, and a test that exists."""
    path = f"reference/methods/{method}.md"
    page = generated()[path]
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == [
        "Formula", "Source", "Options", "Costs against FedAvg", "Checks"
    ]  # fmt: skip
    assert len(page.split("\n")[2]) > 20
    assert re.search(r"```text\n.{9,}", section(path, "Formula"))
    assert len(section(path, "Source").split()) > 5
    rows = rows_of(section(path, "Options"), "key") if describe("method", method).keys else []
    assert [row[0].strip("`") for row in rows] == [key.key for key in describe("method", method).keys]
    assert [row for row in rows if not (row[1] and row[2] and row[4])] == []
    assert not re.search(r"at (most|least) -?[0-9.]+e\+(09|[1-9]\d)", page)
    tests = re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", section(path, "Checks"))
    assert tests
    for file, test in tests:
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")


def test_a_formula_stands_where_the_method_is_defined() -> None:
    """The page shows it with the signs of mathematics, a step a line."""
    assert "w ← Σ_k n_k w_k / Σ_k n_k\n" in section("reference/methods/fedavg.md", "Formula")
    assert "v ← v + D^2\nw ← w + lr D / (√(v) + tau)" in section("reference/methods/fedadagrad.md", "Formula")


def test_the_strongest_check_is_named() -> None:
    assert "(rival): Flower `FedAvg`, fluke. Largest difference: 9e-08." in section(
        "reference/methods/fedavg.md", "Checks"
    )
    assert "(paper): chapter 3" in section("reference/methods/fedadp.md", "Checks")


def test_the_page_on_plug_ins_says_what_a_class_of_each_kind_has_to_write() -> None:
    page = (ROOT / "docs/howto/plugin.md").read_text(encoding="utf-8")
    rows = {row[0].strip("`"): row[1:] for row in rows_of(page, "kind")}
    assert list(rows) == [kind for kind in PACKAGES if kind != "model"]
    for kind, (cls, to_write, _) in rows.items():
        base = ABSTRACT[kind].load()
        values = {each for each in inspect.get_annotations(base) if not hasattr(base, each)}
        assert cls == f"`{base.__module__}.{base.__qualname__}`"
        if kind not in ("method", "partition"):  # of which one function of several is enough
            assert set(re.findall(r"`(\w+)`", to_write)) == {*base.__abstractmethods__, *values}


@pytest.mark.parametrize("kind", [kind for kind in PACKAGES if kind != "method"])
def test_every_plug_in_shows_all_of_its_keys(kind: str) -> None:
    page = f"reference/options/{kind}.md"
    for place in places_of(kind):
        name = {"torchvision:": "torchvision:resnet18", "timm:": "timm:resnet18"}.get(place, place)
        rows = rows_of(section(page, name), "key")
        assert [row[0].strip("`") for row in rows] == [key.key for key in describe(kind, name).keys]
        assert [row for row in rows if not (row[1] and row[2] and row[4])] == []


@pytest.mark.parametrize(("heading", "cls"), [("The scenario", Scenario), ("fleet", FleetBlock), ("cpu", Cpu)])
def test_every_key_of_a_scenario_has_a_meaning(heading: str, cls: Any) -> None:
    rows = rows_of(section("reference/scenario.md", heading), "key")
    assert [row[0].strip("`") for row in rows] == list(cls.model_fields)


def test_no_key_of_a_section_lacks_its_meaning() -> None:
    rows = rows_of(generated()["reference/scenario.md"], "key")
    assert len(rows) > 50
    assert [row[0] for row in rows if not (row[1] and row[4])] == []


def test_every_scenario_has_its_line_and_picture() -> None:
    """And the five parts of the world that are easily forgotten are in at least three scenarios each."""
    rows = rows_of(generated()["reference/scenarios.md"], "")
    pages = _generator().scenario_pages
    files = {path.relative_to(pages.FOLDER).as_posix(): path for path in pages.files()}
    assert [row[1].strip("`") for row in rows] == list(files) and {"quickstart.toml", "flower/digits.toml"} <= set(
        files
    )
    assert [row[1] for row in rows if len(row[2]) < 30 or len(row[2]) > 220] == []
    for row, (name, path) in zip(rows, files.items(), strict=True):
        drawn = ElementTree.fromstring(generated()[f"reference/scenarios/{path.stem}.svg"])
        dots = [each for each in drawn if each.tag.endswith("circle") and each.get("r") == "3"]
        devices = int(re.findall(r"(\d+) devices", row[0])[0])
        assert len(dots) == devices or (10 < len(dots) <= 40 and devices > 36), name
    uses = {row[1].strip("`"): row[3].split(", ") for row in rows}
    assert uses["vehicles.toml"] == ["wireless", "mobility", "edge servers"]
    assert uses["solar_sensors.toml"] == ["batteries"] and uses["quickstart.toml"] == ["-"]
    assert uses["factory_restarts.toml"] == ["failures"] and uses["frequencies.toml"] == ["frequency"]
    for part in ("frequency", "wireless", "mobility", "batteries", "failures"):
        assert sum(part in each for each in uses.values()) >= 3, part
    assert pages.times().keys() == set(files), "python docs/gen/scenario_times.py adds run times"
    shown = [
        str(pages.RunTime(*each))
        for each in ((89, "measured"), (95, "measured"), (2736, "estimated"), (4e6, "estimated"))
    ]
    assert shown == ["89 s", "2 min", "about 46 min", "about 1,111 h"]


def test_every_command_is_there_with_its_options() -> None:
    page = generated()["reference/commands.md"]
    root: Any = command_line()
    named = {name for name in root.commands if not getattr(root.commands[name], "commands", None)}
    named |= {
        f"{group} {name}" for group in ("flower", "study", "import-trace") for name in root.commands[group].commands
    }
    assert set(re.findall(r"^## edgesim (.*)$", page, re.MULTILINE)) == named
    assert [row for row in rows_of(page, "argument or option") if not row[1]] == []
    assert "`--checkpoint TIME`" in section("reference/commands.md", "edgesim run")


@pytest.mark.parametrize("catalogue", ["devices", "links"])
def test_the_page_of_a_catalogue_shows_it(catalogue: str) -> None:
    """As `edgesim list devices` prints it."""
    assert call("list", catalogue).out.rstrip() in generated()[f"reference/{catalogue}.md"]


def test_every_piece_that_a_page_asks_for_is_put_in() -> None:
    assert [path for path, text in generated().items() if "<!-- insert:" in text] == []
    asked = [path for path in DOCS.rglob("*.md") if "<!-- insert:" in path.read_text(encoding="utf-8")]
    assert {path.relative_to(DOCS).as_posix() for path in asked} <= generated().keys()


@pytest.mark.parametrize("page", ["README.md", *sorted(p.relative_to(ROOT).as_posix() for p in DOCS.rglob("*.md"))])
def test_links_to_elsewhere_are_well_formed(page: str) -> None:
    """Nobody asks whether what they lead to is there: the tests need no network."""
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)\s]*)\)", text) if ":" in target]
    assert [t for t in targets if not re.fullmatch(r"https://[a-z0-9.-]+\.[a-z]+(/\S*)?", t)] == []
