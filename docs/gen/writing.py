"""Small pieces of Markdown, and comments that stand beside the names of a source file."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from edgesim.config.describe import KeyFacts

_CODE = re.compile(r"(`[^`]+`)")


def escaped(text: str) -> str:
    """Return text in which nothing outside backticks is taken for a tag, a link or the edge of a table's cell."""
    pieces = _CODE.split(text)
    return "".join(piece if piece[:1] == "`" else _plain(piece) for piece in pieces)


def _plain(text: str) -> str:
    for mark, instead in (("\\", "\\\\"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("[", "\\[")):
        text = text.replace(mark, instead)
    return text


def sentence(text: str) -> str:
    """Return text that begins with a capital letter, unless it begins with code or a formula."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ ,:;]", text) else text


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def keys_table(keys: Iterable[KeyFacts]) -> str:
    """Return the table of a part's keys."""
    rows = [
        (code(key.key), escaped(key.type), code(key.default), key.unit, escaped(sentence(key.meaning))) for key in keys
    ]
    return table(("key", "type and range", "default", "unit", "meaning"), rows)


def background(keys: Iterable[KeyFacts]) -> str:
    """Return the list of what the sources say about keys, "" if the part's class says nothing of them."""
    said = [f"- `{key.key}`: {escaped(key.background)}\n" for key in keys if key.background]
    return "".join(["What the sources say:\n\n", *said]) if said else ""


def code(text: str) -> str:
    """Return text in code, for a cell of a table; nothing stays nothing."""
    return f"`{text}`" if text else ""


def comments_of(module: ModuleType) -> dict[int, str]:
    """Return the comment of each line of a module: the one beside it, else those on the lines above it."""
    source = inspect.getsource(module)
    beside, alone = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            kind = alone if token.line.strip().startswith("#") else beside
            kind[token.start[0]] = token.string.lstrip("# ")
    for line in range(1, source.count("\n") + 1):
        above, first = [], line - 1
        while first in alone:
            above.insert(0, alone[first])
            first -= 1
        if above and line not in alone and line not in beside:
            beside[line] = " ".join(above)
    return beside


def keys_with_comments(module: ModuleType, name: str) -> dict[str, dict[str, str]]:
    """Return the comments of the keys of the tables in a module's dictionary `name`: table -> key -> comment."""
    comments, values = comments_of(module), _values(module)
    tables = values[name]
    assert isinstance(tables, ast.Dict)
    found: dict[str, dict[str, str]] = {}
    for key, inner in zip(tables.keys, tables.values, strict=True):
        assert isinstance(key, ast.Constant) and isinstance(inner, ast.Dict)
        found[str(key.value)] = _commented(inner, values, comments)
    return found


def _commented(tables: ast.Dict, values: Mapping[str, Any], comments: Mapping[int, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in zip(tables.keys, tables.values, strict=True):
        if key is None:  # **OTHERS
            assert isinstance(value, ast.Name)
            found.update(_commented(values[value.id], values, comments))
        else:
            assert isinstance(key, ast.Constant)
            found[str(key.value)] = comments.get(key.lineno, "")
    return found


def words_with_comments(module: ModuleType, name: str) -> dict[str, str]:
    """Return the comments of the strings of a module's tuple or Literal `name`."""
    comments, value = comments_of(module), _values(module)[name]
    strings = [node for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {str(node.value): comments.get(node.lineno, "") for node in strings}


def _values(module: ModuleType) -> dict[str, ast.expr]:
    body = ast.parse(inspect.getsource(module)).body
    named = ((node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value)
             for node in body if isinstance(node, ast.Assign | ast.AnnAssign))  # fmt: skip
    return {target.id: value for target, value in named if isinstance(target, ast.Name) and value is not None}
