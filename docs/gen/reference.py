"""The pages of the reference that follow from the code, and the pieces that written pages ask for.

A written page asks with `<!-- insert: NAME ARGUMENT -->` on a line of its own; `INSERTS` has the names.
"""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args

import method_pages
import scenario_pages
from writing import background, code, escaped, keys_table, keys_with_comments, sentence, table, words_with_comments

from edgesim.cli.app import command_line
from edgesim.cli.parts import print_devices, print_links
from edgesim.config import scenario
from edgesim.config.describe import KeyFacts, describe, keys_of
from edgesim.config.plugins import AROUND, PACKAGES, find, places_of
from edgesim.core import job
from edgesim.core.encoding import Encoding
from edgesim.core.local_sgd import Training
from edgesim.records import schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_HEAD = "This page is generated from the code.\n"
_MEMBER = {"torchvision:": "torchvision:resnet18", "timm:": "timm:resnet18"}  # one of a family, to show its keys
_TYPES = {schema.INT: "integer", schema.REAL: "real", schema.TEXT: "text"}
_INSERT = re.compile(r"^<!-- insert: (\w+) ?(\w*) -->$", re.MULTILINE)

# Sections of a scenario with fixed keys: heading, how it is written, class.
_SECTIONS: Mapping[str, tuple[str, Any]] = {
    "The scenario": ("at the top of the file", scenario.Scenario),
    "training": ("`training = { ... }`", Training),
    "evaluation": ("`evaluation = { ... }`", scenario.Evaluation),
    "stop": ("`stop = { ... }`", scenario.Stop),
    "server": ("`server = { ... }`", scenario.Server),
    "encoding": ("`encoding.up = { ... }` and `encoding.down = { ... }`", Encoding),
    "fleet": ("`[[fleet]]`, once for each kind of device", scenario.FleetBlock),
    "cpu": ("`cpu = { ... }` of a block of the fleet", scenario.Cpu),
}
_KINDS = [kind for kind in PACKAGES if kind != "method"]  # a method has a page of its own
_OWN_SECTIONS = set(_SECTIONS) - {"The scenario"}
_SINGULAR = {"failures": "failure"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path below docs/ and the text of every generated page, table and picture."""
    yield "index.md", _home()
    yield "contributing.md", _contributing()
    yield "analysis.md", (ROOT / "analysis" / "README.md").read_text(encoding="utf-8").replace("](../docs/", "](")
    yield from method_pages.pages()
    yield from scenario_pages.pages()
    yield "reference/scenario.md", _scenario()
    yield "reference/commands.md", _commands()
    yield "reference/options/SUMMARY.md", "".join(f"* [{kind}]({kind}.md)\n" for kind in _KINDS)
    for kind in _KINDS:
        yield f"reference/options/{kind}.md", _kind(kind)
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _INSERT.search(text):
            yield path.relative_to(DOCS).as_posix(), filled(text)


def filled(text: str) -> str:
    """Return a written page with the pieces that it asks for. Raises KeyError if it asks for one that is unknown."""
    return _INSERT.sub(lambda asked: INSERTS[asked[1]](asked[2]), text)


def _home() -> str:
    """Return the README as the first page of the site: links into docs/ become links within it.

    Its badges are left out, because the site asks nothing of a network.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"^\[?!\[[^]]*\]\(https://.*\n", "", text, flags=re.MULTILINE)
    return text.replace("](analysis/README.md)", "](analysis.md)").replace("](docs/", "](")


def _contributing() -> str:
    """Return CONTRIBUTING.md as a page of the site: the paths of pages that it names become links."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.sub(r"`docs/([\w/]+\.md)`", r"[`docs/\1`](\1)", text)


# --- options of plug-ins --------------------------------------------------------------------------------------


def _kind(kind: str) -> str:
    names = [_MEMBER.get(name, name) for name in places_of(kind)]
    about = f"What a scenario may name as `{kind}`. `edgesim list {kind} NAME` prints the same in a terminal."
    around = AROUND.get(kind)
    beside = "" if around is None else _beside(around.place.load())
    return "\n".join([f"# {kind}\n", f"{_HEAD}\n{about}\n", *(_part(kind, name) for name in names), beside])


def _beside(cls: type) -> str:
    """Return the section about keys that tables of a kind may have beside those of their part."""
    return f"## {cls.__name__}\n\n{escaped(sentence(inspect.getdoc(cls) or ''))}\n\n{keys_table(keys_of(cls))}"


def _part(kind: str, name: str) -> str:
    found = describe(kind, name)
    pieces = [f"## {name}\n", *_paragraphs(kind, name)]
    if found.source:
        pieces.append(f"Source: {escaped(found.source)}\n")
    pieces.append(f"```toml\n{found.example}\n```\n")
    pieces.append(keys_table(found.keys) if found.keys else "It has no keys.\n")
    return "\n".join([*pieces, background(found.keys)])


def _paragraphs(kind: str, name: str) -> Iterator[str]:
    """Yield the paragraphs of a plug-in's docstring, without those from its source on."""
    doc = inspect.getdoc(find(kind, name)[0]) or ""
    for paragraph in re.split(r"\n\s*\n", doc.partition("Source: ")[0].strip()):
        yield f"{escaped(sentence(' '.join(paragraph.split())))}\n"


# --- the other keys of a scenario ---------------------------------------------------------------------------


def _scenario() -> str:
    pieces = ["# Keys of a scenario\n", f"{_HEAD}\n`edgesim schema` prints the same as JSON Schema, for editors.\n"]
    for heading, (where, cls) in _SECTIONS.items():
        doc = " ".join((inspect.getdoc(cls) or "").split())
        pieces += [f"## {heading}\n", f"Written {where}. {escaped(doc)}\n"]
        pieces.append(table(("key", "type and range", "default", "unit", "meaning"), map(_scenario_row, keys_of(cls))))
    return "\n".join(pieces)


def _scenario_row(key: KeyFacts) -> tuple[str, ...]:
    kind, type_, default = _SINGULAR.get(key.key, key.key), escaped(key.type), code(key.default)
    if kind in PACKAGES and not key.unit:
        several = " or a list of them" if kind in ("failure", "availability") else ""
        page = "methods.md" if kind == "method" else f"options/{kind}.md"
        type_ = f"one of [{kind}]({page}){several}"
        named = re.search(r'name = "(\w+)"', key.default)
        default = code(f'"{named[1]}"') if named else default
    elif key.key in _OWN_SECTIONS:
        type_, default = f"[table](#{key.key})", "" if key.default != "required" else default
    return code(key.key), type_, default, key.unit, escaped(sentence(key.meaning))


# --- commands -----------------------------------------------------------------------------------------------


def _commands() -> str:
    root: Any = command_line()
    pieces = ["# Commands\n", f"{_HEAD}\n`edgesim COMMAND --help` prints the same.\n"]
    return "\n".join([*pieces, *_walk("edgesim", root)])


def _walk(path: str, command: Any) -> Iterator[str]:
    """Yield a section for each command below one that is a group."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{path} {name}", inner)
    if getattr(command, "commands", None):
        return
    context = command.make_context(path, [], resilient_parsing=True)
    shown = [parameter for parameter in command.params if parameter.name != "help"]
    yield f"## {path}\n\n{escaped(' '.join((command.help or '').split()))}\n"
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    records = [parameter.get_help_record(context) for parameter in shown]
    if records:
        rows = [(code(names), escaped(" ".join(said.split()))) for names, said in records]
        yield table(("argument or option", "meaning"), rows)


# --- pieces of written pages --------------------------------------------------------------------------------


def _columns(name: str) -> str:
    comments = keys_with_comments(schema, "TABLES")[name]
    rows = [(code(column), _TYPES[dtype], escaped(comments[column])) for column, dtype in schema.TABLES[name].items()]
    return table(("column", "type", "meaning"), rows)


def _outcomes(_: str) -> str:
    comments = words_with_comments(job, "Outcome")
    assert list(comments) == list(get_args(job.Outcome))
    return table(
        ("outcome", "what became of the job"), [(code(word), escaped(said)) for word, said in comments.items()]
    )


def _closed_by(_: str) -> str:
    comments = words_with_comments(schema, "CLOSED_BY")
    return table(
        ("closed_by", "what ended the waiting"), [(code(word), escaped(said)) for word, said in comments.items()]
    )


def _devices(_: str) -> str:
    return _printed(print_devices)


def _links(_: str) -> str:
    return _printed(print_links)


def _printed(view: Callable[[], None]) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        view()
    return f"```text\n{printed.getvalue().rstrip()}\n```\n"


INSERTS: Mapping[str, Callable[[str], str]] = {
    "columns": _columns,
    "outcomes": _outcomes,
    "closed_by": _closed_by,
    "devices": _devices,
    "links": _links,
}
