"""Print measures of the package that say how much a reader has to hold in mind: `python -m tests.conventions.measures`.

`test_measures.py` has limits for some of them. A line of code has a token other than a comment or a docstring; lines of
docstrings are counted apart.
"""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

from tests.conventions.source_tree import Source, imported, nodes, sources, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HEADLESS = ("what", "whether", "who", "whose", "which", "how", "of", "return what", "return whether", "return who")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def doc_nodes(source: Source) -> Iterator[ast.Expr]:
    """Yield the docstrings of a file."""
    for node in nodes(source):
        if isinstance(node, Documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            yield first


@cache
def lines_of(source: Source) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines of code, and of the lines of docstrings."""
    docs = {line for node in doc_nodes(source) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in _LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code - docs, docs


def functions() -> Iterator[tuple[Source, Function]]:
    """Yield every function and method with its file."""
    for source, node in walk():
        if isinstance(node, Function):
            yield source, node


def function_lengths() -> list[int]:
    """Return the lines of code of each function, its signature included."""
    return [
        len(lines_of(source)[0] & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
        for source, node in functions()
    ]


def private_used_once() -> list[str]:
    """Return the private functions and methods, dunders apart, that their own file uses once."""
    found = []
    for source in sources():
        uses: Counter[str] = Counter()
        for node in nodes(source):
            if isinstance(node, ast.Name | ast.Attribute):
                uses[node.id if isinstance(node, ast.Name) else node.attr] += 1
        found += [
            f"{source.at(node)} {node.name}"
            for node in nodes(source)
            if isinstance(node, Function) and node.name.startswith("_") and not node.name.endswith("__")
            if uses[node.name] == 1
        ]
    return found


def own_imports() -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, wherever the statement stands; packages apart."""
    modules = {source.module for source in sources()}
    found: dict[str, set[str]] = {}
    for source in sources():
        names = {name for node in nodes(source) for name in imported(node)}
        found[source.module] = {name for name in names & modules if not _is_package(name)} - {source.module}
    return found


def _is_package(module: str) -> bool:
    return any(source.module == module and source.path.name == "__init__.py" for source in sources())


def largest_circle() -> list[str]:
    """Return the largest set of modules each of which reaches all others by imports (Tarjan's algorithm)."""
    arrows = own_imports()
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(arrows[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            cut = stack.index(module)
            circles.append(stack[cut:])
            del stack[cut:]

    for module in sorted(arrows):
        if module not in index:
            visit(module)
    return max(circles, key=len)


def repeated_classes() -> dict[str, list[str]]:
    """Return the public class names that more than one file defines, with the places."""
    places: dict[str, list[str]] = defaultdict(list)
    for source, node in walk():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            places[node.name].append(source.at(node))
    return {name: found for name, found in places.items() if len(found) > 1}


def asked_by_name() -> list[str]:
    """Return the calls of getattr and hasattr."""
    return [
        source.at(node)
        for source, node in walk()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
    ]


def headless_docstrings() -> list[str]:
    """Return the docstrings that begin with a pronoun or a preposition instead of a noun or a verb."""
    found = []
    for source in sources():
        for node in doc_nodes(source):
            assert isinstance(node.value, ast.Constant)
            words = str(node.value.value).strip().lower().split()
            if any(words[: len(start.split())] == start.split() for start in HEADLESS):
                found.append(source.at(node))
    return found


@cache
def measures() -> dict[str, float | int | str]:
    """Return every measure by its name."""
    code = {source.module: len(lines_of(source)[0]) for source in sources()}
    lengths = sorted(len(source.text.splitlines()) for source in sources())
    of_functions = sorted(function_lengths())
    arrows = own_imports()
    once = private_used_once()
    total = sum(code.values())
    return {
        "files": len(code),
        "lines of code": total,
        "lines of docstrings": sum(len(lines_of(source)[1]) for source in sources()),
        "lines of a file: median, 90 %, largest": f"{statistics.median(lengths):g}, {_share(lengths)}, {lengths[-1]}",
        "lines of a function: median, 90 %": f"{statistics.median(of_functions):g}, {_share(of_functions)}",
        "private functions used once": len(once),
        "private functions used once, per 1,000 lines": round(1000 * len(once) / total, 1),
        "own imports a module": round(sum(map(len, arrows.values())) / len(arrows), 2),
        "largest circle of modules": len(largest_circle()),
        "public class names that stand twice": len(repeated_classes()),
        "getattr and hasattr": len(asked_by_name()),
        "docstrings with a headless first word": len(headless_docstrings()),
    }


def _share(values: list[int]) -> int:
    return values[int(0.9 * len(values))]


if __name__ == "__main__":
    for name, value in measures().items():
        print(f"{name:50} {value}")
