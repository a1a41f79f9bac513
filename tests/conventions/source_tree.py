"""The package as syntax trees, for rules that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "edgesim"

INNER = {"execution.backends"}  # packages that may import others than the one they lie in


class Source(NamedTuple):
    """One file of the package."""

    path: Path
    module: str  # dotted
    text: str
    tree: ast.Module

    @property
    def unit(self) -> str:
        """The package of the table of arrows that it belongs to: "world" for edgesim.world.fleet."""
        return package_of(self.module)

    def at(self, node: ast.AST) -> str:
        """Return where a node is, as an editor understands it."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def package_of(dotted: str) -> str:
    """Return the package of the table of arrows that a dotted name of edgesim lies in; "edgesim" for itself."""
    names = dotted.split(".")
    inner = ".".join(names[1:3])
    return inner if inner in INNER else [*names, "edgesim"][1]


@cache
def sources() -> tuple[Source, ...]:
    """Return all files of the package."""
    return tuple(_source(path) for path in sorted(PACKAGE.rglob("*.py")))


def _source(path: Path) -> Source:
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    text = path.read_text(encoding="utf-8")
    return Source(path, dotted, text, ast.parse(text))


@cache
def nodes(source: Source) -> tuple[ast.AST, ...]:
    """Return every node of a file."""
    return tuple(ast.walk(source.tree))


@cache
def walk() -> Sequence[tuple[Source, ast.AST]]:
    """Return every node of the package with its file."""
    return [(source, node) for source in sources() for node in nodes(source)]


def imported(node: ast.AST) -> list[str]:
    """Return the dotted names that an import statement may load, submodules taken from a package included."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def loaded_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the import statements that run when a module is loaded: not those of type checkers or inside functions."""
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.ClassDef):
            yield from (s for s in statement.body if isinstance(s, ast.Import | ast.ImportFrom))


def is_for_type_checkers(statement: ast.stmt) -> bool:
    """Return whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
