"""The README is short, its picture and pages are there, and its method and that of the guide do what they say."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgesim
from edgesim.config.plugins import places_of
from tests.conftest import digits_scenario
from tests.docs.pages import ROOT, Block, Reader, blocks_of, claims_by_verdict
from tests.sizes import full

README = ROOT / "README.md"
MOST_BYTES = 7000
# Figures of the README and how the page that they come from has them.
FIGURES = {
    "device_times": {
        "outside the fit are 8.2 % off": r"Raspberry Pi 4: mean error \| 8\.2 %",
        "95.1 % of the Pi 4's times lie within 25 %": r"Raspberry Pi 4: within 25 % \| 95\.1 %",
    },
    "validation": {"198 rows, none failed": "198 rows, none failed"},
    "decisions": {
        "39 % less time": r"first 15 of 20.* 39 % less time",
        "Boards first, then cables": "Boards first, then cables",
    },
    "performance": {
        "[0.5]": r"ratio to bare loop, 2 processes\.\s*\*\*W1\*\*[^*]*\| edgesim, 2 workers \| 0\.493 \(0\.505\)"
    },
    "independent_checks": {"within 1e-5": "within 1e-5"},
}


def titled(page: Path, title: str) -> Block:
    """Return the block of a page that is a file of this name."""
    [found] = [block for block in blocks_of(page) if block.title == title]
    return found


def test_it_is_short() -> None:
    assert len(README.read_bytes()) <= MOST_BYTES


def test_what_it_links_to_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_its_figures_are_those_of_the_pages() -> None:
    """What the README says of measurements stands on the page that it links to."""
    said = " ".join(README.read_text(encoding="utf-8").split())
    pages = {name: (ROOT / f"docs/explanation/{name}.md").read_text(encoding="utf-8") for name in FIGURES}
    for name, figures in FIGURES.items():
        for here, there in figures.items():
            assert here in said
            assert re.search(there, pages[name]), (name, there)
    rivals = re.findall(r"^\| `\w+` \| rival \|", pages["independent_checks"], re.MULTILINE)
    assert f"{len(rivals)} methods have the weights of Flower or fluke" in said
    of = claims_by_verdict()
    on_the_mean = of["same order"] + of["within on the mean"]
    counts = f"{sum(of.values())}, {of['reproduced']} are reproduced, {on_the_mean} hold on the mean"
    assert f"{counts}, {of['refuted']} are refuted" in said
    fewest = re.search(r"edgesim ships more than (\d+) methods", said)
    assert fewest is not None and 0 < len(places_of("method")) - int(fewest[1]) <= 10


def test_the_tutorial_goes_on_with_its_scenario() -> None:
    tutorial = ROOT / "docs" / "tutorial" / "first_decision.md"
    assert titled(tutorial, "first.toml").text == titled(README, "first.toml").text


def test_the_guide_explains_the_quickstart() -> None:
    """The lines explained are those of the quickstart, with one of its fleet blocks."""
    block = blocks_of(ROOT / "docs" / "howto" / "scenario.md")[0]
    shown = tomllib.loads(block.text)
    shipped = tomllib.loads((ROOT / "scenarios" / "quickstart.toml").read_text(encoding="utf-8"))
    edgesim.load(shown)
    assert shown.pop("fleet") == shipped.pop("fleet")[:1]
    shipped.pop("name")
    assert shown == shipped


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the methods of the README and of the guide importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    reader = Reader(tmp_path)
    reader.do(titled(README, "cautious.py"))
    reader.do(titled(ROOT / "docs" / "howto" / "method.md", "my_fedprox.py"))
    yield
    for name in ("cautious", "my_fedprox"):
        sys.modules.pop(name, None)


def weights(method: object) -> tuple[edgesim.Run, dict[str, np.ndarray]]:
    """Return the run of two rounds with a method, and its last model."""
    run = edgesim.run(digits_scenario(method=method, stop={"rounds": 2}, evaluation={"every": 1}))
    return run, run.weights()


@pytest.mark.usefixtures("written")
def test_the_readme_s_method_goes_part_of_the_way() -> None:
    """All of the way is FedAvg; none of it stays where it is; in one round the way is as long as its share."""
    one = {"stop": {"rounds": 1}}
    name = "cautious:Cautious"
    models = {
        share: edgesim.run(digits_scenario(method={"name": name, "share": share}, **one)).weights()["conv1.weight"]
        for share in (0.0, 0.25, 1.0)
    }
    mean = edgesim.run(digits_scenario(method="fedavg", **one)).weights()["conv1.weight"]
    np.testing.assert_allclose(models[1.0], mean, atol=1e-6)
    assert np.abs(mean - models[0.0]).max() > 1e-3
    np.testing.assert_allclose(models[0.25] - models[0.0], 0.25 * (mean - models[0.0]), atol=1e-6)


@full
@pytest.mark.usefixtures("written")
def test_the_guide_s_method_is_fedprox() -> None:
    """With mu = 0 it is FedAvg; with mu > 0 it is not, but edgesim's own FedProx; its extra work has its price."""
    name = "my_fedprox:FedProx"
    plain, of_fedavg = weights("fedavg")
    zero, of_zero = weights({"name": name, "mu": 0.0})
    _, of_one = weights({"name": name, "mu": 1.0})
    _, of_own = weights({"name": "fedprox", "mu": 1.0})
    assert np.array_equal(of_zero["conv1.weight"], of_fedavg["conv1.weight"])
    assert not np.array_equal(of_one["conv1.weight"], of_fedavg["conv1.weight"])
    np.testing.assert_allclose(of_one["conv1.weight"], of_own["conv1.weight"], atol=1e-6)
    extra = zero.jobs["flops"].to_numpy() - plain.jobs["flops"].to_numpy()
    steps = extra / (4 * 6090)  # cnn_digits has 6,090 parameters
    assert (steps == np.round(steps)).all()
    assert (steps > 0).all()
