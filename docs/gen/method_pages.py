"""The table of methods, and a page for each: everything is read from the method's own file, its checks and its costs.

The last paragraph of a method's class names its family, its formula and, if it has one, the number of its paper.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from writing import background, code, escaped, keys_table, sentence, table

from edgesim.config.describe import describe
from edgesim.config.plugins import plugins_of
from edgesim.core.method import Method, Needs

ROOT = Path(__file__).parents[2]
_FACTS = re.compile(r"Family: (?P<family>.+?)\. Formula: `(?P<formula>.+?)`\.(?: Paper: (?P<paper>.+)\.)?$")
_CHECK = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| *(.*?) *\| `(.*?)` \|$", re.MULTILINE)
_COST = re.compile(r"^\| `(\w+)`[^|]*\|(.*)\|$", re.MULTILINE)
_UNKNOWN = ("",) * 4  # of a method that the comparison has not run yet
_COLUMNS = ("method", "family", "needs", "FLOPs", "down", "up", "server", "check", "idea")
_HEAD = "This page is generated from the code.\n"
_SYMBOLS = {"<-": "←", "sum_": "Σ_", "sqrt": "√", "alpha": "α", "beta": "β", "theta": "θ", "lam ": "λ ", "grad ": "∇"}

_ABOUT = """The costs are multiples of FedAvg's for one turn, which is what one device does in one round: FLOPs of the
device, bytes that it receives and sends, FLOPs of the server. They come from runs of every method with one small
network, `cnn_digits` with 6,090 parameters ([Methods compared](../explanation/methods_compared.md)). Another network or
fleet gives other multiples.

The check is the strongest one: another simulator (*rival*), a loop in plain *PyTorch*, numbers of a *paper*, or the
method's *own tests*. [Independent checks](../explanation/independent_checks.md) has the details.
"""
_TURNS = "One turn of a device, as multiples of FedAvg's, with `cnn_digits` (6,090 parameters):\n"
_NULL = "It learns from results of training, so it does not run on the `null` backend."


class Facts(NamedTuple):
    """What the last paragraph of a method's class says. `paper`: arXiv numbers or a DOI, "" if the paper has none."""

    family: str
    formula: str
    paper: str


class Check(NamedTuple):
    """An independent check of a method: its kind, what it compares with, and the test."""

    kind: str
    against: str
    difference: str
    test: str


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path below docs/ and the text of the table, of its CSV and of every method's page."""
    yield "reference/methods.md", _all()
    yield "reference/methods.csv", _as_csv()
    for name in plugins_of("method"):
        yield f"reference/methods/{name}.md", _page(name)


def facts_of(method: str) -> Facts:
    """Return a method's family, formula and paper. Raises ValueError if its class does not name them."""
    cls = plugins_of("method")[method]
    last = " ".join((inspect.getdoc(cls) or "").split("\n\n")[-1].split())
    found = _FACTS.match(last)
    if found is None:
        raise ValueError(f"{cls.__module__}: the docstring of {cls.__name__} has to end with Family, Formula and Paper")
    formula = found["formula"]
    for word, symbol in _SYMBOLS.items():
        formula = formula.replace(word, symbol)
    return Facts(found["family"], formula, found["paper"] or "")


@cache
def checks() -> Mapping[str, Check]:
    """Return the independent check of each method that has one, from the page about them."""
    text = (ROOT / "docs" / "explanation" / "independent_checks.md").read_text(encoding="utf-8")
    return {name: Check(*rest) for name, *rest in _CHECK.findall(text)}


@cache
def costs() -> Mapping[str, tuple[str, ...]]:
    """Return FLOPs, bytes down and up, and the server's FLOPs of a turn, as multiples of FedAvg's, by method."""
    text = (ROOT / "docs" / "explanation" / "methods_compared.md").read_text(encoding="utf-8")
    rows = _COST.findall(text.partition("## After")[0])
    return {name: tuple(cell.strip().replace("-", "0") for cell in row.split("|")[3:]) for name, row in rows}


def _first_sentence(method: str) -> str:
    doc = inspect.getdoc(plugins_of("method")[method]) or ""
    return " ".join(doc.partition("\n\n")[0].split())


def needs_in_words(needs: Needs) -> str:
    """Return what a method needs beside a server and devices that train, as a list of words."""
    words = {
        "peers": needs.peers is not None,
        "own clocks": not needs.protocols & {"sync", "deadline"},
        "full rounds": needs.protocols == {"sync"} and needs.peers is None,
        "state on devices": needs.device_state != "none" and needs.peers is None,
        "label counts": "labels" in needs.metadata,
        "known speeds": needs.clock,
    }
    return ", ".join(word for word, needed in words.items() if needed) or "nothing more"


def _rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of the table of methods, in plain text."""
    for name, cls in plugins_of("method").items():
        kind = checks()[name].kind if name in checks() else "own tests"
        early = " (experimental)" if "Experimental:" in (inspect.getdoc(cls) or "") else ""
        idea = _first_sentence(name) + early
        yield name, facts_of(name).family, needs_in_words(cls.needs), *costs().get(name, _UNKNOWN), kind, idea


def _all() -> str:
    rows = [(f"[`{name}`](methods/{name}.md)", *map(escaped, rest)) for name, *rest in _rows()]
    box = '<div class="filtered" markdown data-select="2,3,4,5,6,7,8" data-csv="methods.csv">'
    # the table takes the width of the contents, and a search finds it before pages with the same words
    head = "---\nhide: [toc]\nsearch:\n  boost: 4\n---\n"
    return f"{head}# Methods\n\n{_HEAD}\n{_ABOUT}\n{box}\n\n{table(_COLUMNS, rows)}\n</div>\n"


def _as_csv() -> str:
    with io.StringIO(newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *_rows()])
        return file.getvalue()


def _page(name: str) -> str:
    cls, facts, found = plugins_of("method")[name], facts_of(name), describe("method", name)
    doc = inspect.getdoc(cls) or ""
    details = [" ".join(part.split()) for part in re.split(r"\n\s*\n", doc.partition("Source: ")[0])[1:]]
    said = [f"{escaped(sentence(part))}\n" for part in details if not part.startswith("Family: ")]
    steps = "\n".join(re.split(r"; (?![^(]*\))", facts.formula))
    pieces = [
        f"# {name}\n",
        f"{_first_sentence(name)}\n",
        f"[All methods](../methods.md) · family: {facts.family} · needs: {needs_in_words(cls.needs)}\n",
        f"## Formula\n\n```text\n{steps}\n```\n",
        *said,
        f"## Source\n\n{escaped(found.source)}\n",
        f"{_paper_links(facts.paper)}\n" if facts.paper else "",
        f"## Options\n\n```toml\n{found.example}\n```\n",
        keys_table(found.keys) if found.keys else "It has no options.\n",
        background(found.keys),
        f"## Costs against FedAvg\n\n{_TURNS}",
        table(("FLOPs", "bytes down", "bytes up", "FLOPs of the server"), [costs().get(name, _UNKNOWN)]),
        "[Methods compared](../../explanation/methods_compared.md) says how these numbers are found.\n",
        f"{_NULL}\n" if cls.needs.feedback and cls.foreseen is Method.foreseen else "",
        f"## Checks\n\n{_checked(name)}",
    ]
    return "\n".join(piece for piece in pieces if piece)


def _paper_links(paper: str) -> str:
    linked = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
    return re.sub(r"doi (10\.\S+)", r"[doi \1](https://doi.org/\1)", linked)


def _checked(name: str) -> str:
    module = plugins_of("method")[name].__module__
    test = f"tests/methods/test_{module.rpartition('.')[2]}.py"
    lines = [f"- Own tests: `{test}`. {_about(test)}"]
    if name in checks():
        check = checks()[name]
        gap = f" Largest difference: {check.difference}." if re.match(r"\d", check.difference) else ""
        lines.insert(0, f"- Independent check ({check.kind}): {escaped(check.against)}.{gap} {code(check.test)}")
    if (ROOT / "scenarios" / "claims" / f"{name}.toml").is_file():
        lines.append("- Claims of its paper: [the verdict on each](../../explanation/claims.md).")
    return "\n".join(lines) + "\n"


def _about(test: str) -> str:
    text = (ROOT / test).read_text(encoding="utf-8")
    first = re.match(r'"""(.*?)(?:\n\n|""")', text, re.DOTALL)
    return escaped(" ".join(first[1].split())) if first else ""
