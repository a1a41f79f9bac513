"""How much a run of the tests does: which of them, and how many examples each.

EDGESIM_TEST_SIZE, which the make targets set, is one of

- quick: one in four of the short tests of every file, and none that searches or starts a process; `make quick`
- short: representatives of every kind of test, few cases of each; `make test`, and what pytest does by itself
- rest: what a short run leaves out, but for what is marked `thorough` and two thirds of the contracts' cases, and tests
  of many examples again, with more of them; `make test-rest`
- all: every test, at full size, in one go; `make test-all`
- nightly: as all, with ten times the examples, drawn anew each time; `make test-nightly`
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
from hypothesis import Phase, is_hypothesis_test, settings

SIZES = ("quick", "short", "rest", "all", "nightly")
SIZE = os.environ.get("EDGESIM_TEST_SIZE") or "short"
if SIZE not in SIZES:
    raise pytest.UsageError(f"EDGESIM_TEST_SIZE: must be one of {', '.join(SIZES)}, got {SIZE!r}")
# Unix time in s after which no test starts any more: a run that is cut off tells nothing.
UNTIL_S = float(os.environ.get("EDGESIM_TEST_UNTIL") or "inf")

T = TypeVar("T")

# Marks what a short run leaves out: the rest of a matrix, or one more of a kind that has its representatives.
full = pytest.mark.full
# Marks what the rest of a short run leaves out too: further pairs of what both have by itself.
thorough = pytest.mark.thorough
# Marks a test that does more in larger runs. Tests of hypothesis need no mark: they all do.
grows = pytest.mark.grows


def sized(short: T, everything: T, nightly: T, rest: T | None = None) -> T:
    """Return the value that is for this run. The rest of a short run has that of everything, unless it has its own."""
    if SIZE == "rest" and rest is not None:
        return rest
    return {"quick": short, "short": short, "nightly": nightly}.get(SIZE, everything)


def examples(everything: int, short: int | None = None) -> int:
    """Return how many examples of hypothesis a test draws, which draws `everything` in a run of all tests.

    The rest of a short run draws a third as many.
    """
    short = max(10, everything // 4) if short is None else short
    return sized(short, everything, 10 * everything, rest=max(short, everything // 3))


def thinned(values: Iterable[Any], keep: Container[Any], rest: Container[Any] | None = None) -> list[Any]:
    """Return the values of a parametrisation: all of them, those that are not in `keep` for larger runs only.

    `rest`: the values that the rest of a short run has beside them, all if None. Others are `thorough`. Raises
    ValueError if none is kept, as nothing of the test would be seen in a short run.
    """
    values = list(values)
    if not any(value in keep for value in values):
        raise ValueError(f"none of {values} is kept for a short run")
    return [
        value if value in keep else _marked(value, full if rest is None or value in rest else thorough)
        for value in values
    ]


def spread(values: Iterable[Any], count: int) -> list[Any]:
    """Return the values of a parametrisation: all of them, and `count`, evenly spread, in a short run too."""
    values = list(values)
    kept = {round(place * (len(values) - 1) / max(1, count - 1)) for place in range(count)}
    return [value if place in kept else _marked(value, full) for place, value in enumerate(values)]


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*(value if type(value) is tuple else (value,)), marks=mark)  # a named tuple is one value


QUICK = 4  # a quick run has one in so many of the short tests of a file that neither search nor start a process
CASES = 2  # a short run has at most so many cases of a parametrised test, evenly spread: the first and the last
# But in these folders, whose cases are kinds of methods and pages, so many, and not the same of each test.
TURNS = {"contracts": 3, "docs": 4}
ALL_CASES = "conventions"  # and in this folder all: each file counts, and takes no time
# Of what a short run leaves out of a test with many cases in this folder, the rest has every third, so that a third of
# the tests try a method, and not the same third for its neighbour.
IN_THIRDS, MANY = "contracts", 20


def chosen(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that this run is for."""
    items = list(items)
    if SIZE in ("all", "nightly"):
        return items
    items = [item for item in items if item.get_closest_marker("thorough") is None]
    larger = {item for item in items if item.get_closest_marker("full") is not None}
    larger |= _more_cases(item for item in items if item not in larger)
    if SIZE == "rest":
        rest = larger - _other_thirds(item for item in items if item in larger)
        return [item for item in items if item in rest or _has_more_examples(item)]
    short = [item for item in items if item not in larger]
    if SIZE == "short":
        return short
    places: Counter[Path] = Counter()
    kept = []
    for item in short:
        if not any(item.get_closest_marker(name) for name in ("process", "kills", "workers", "grows")):
            places[item.path] += 1
            kept += [item] * (places[item.path] % QUICK == 1)
    return kept


def _more_cases(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases of parametrised tests that a short run leaves out."""
    left_out: set[pytest.Item] = set()
    for test, same in _by_test(item for item in items if ALL_CASES not in item.path.parts).items():
        kept = _kept(test, len(same))
        left_out |= {item for place, item in enumerate(same) if place not in kept}
    return left_out


def _other_thirds(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the cases that the rest of a short run leaves to runs of all tests."""
    left_out: set[pytest.Item] = set()
    for test, same in _by_test(item for item in items if IN_THIRDS in item.path.parts).items():
        if len(same) >= MANY:
            left_out |= set(same).difference(same[crc32(test.encode()) % 3 :: 3])
    return left_out


def _by_test(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Return the cases of each parametrised test."""
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    return cases


def _kept(test: str, count: int) -> set[int]:
    """Return the places of the cases of a test that a short run keeps of so many.

    Where tests take turns, the name of a test says which case it begins with, so that tests of the same cases have
    all of them among them.
    """
    most = next((TURNS[folder] for folder in Path(test.partition("::")[0]).parts if folder in TURNS), None)
    if count <= (most or CASES):
        return set(range(count))
    if most is None:
        return {round(place * (count - 1) / (CASES - 1)) for place in range(CASES)}
    return {(crc32(test.encode()) + round(place * count / most)) % count for place in range(most)}


def _has_more_examples(item: pytest.Item) -> bool:
    return item.get_closest_marker("grows") is not None or is_hypothesis_test(getattr(item, "obj", None))


def load_profile() -> None:
    """Tell hypothesis how many examples to draw, and whether they are the same in every run.

    They are, so that a test never fails by chance, but in nightly runs and with HYPOTHESIS_PROFILE=random. With
    HYPOTHESIS_PROFILE=first a test that fails is done at once, and no smaller example is searched for.
    """
    seen = (Phase.explicit, Phase.generate)
    settings.register_profile("default", derandomize=True, deadline=None, max_examples=examples(100))
    settings.register_profile("random", derandomize=False, deadline=None, max_examples=examples(100))
    settings.register_profile("first", derandomize=True, deadline=None, max_examples=examples(100), phases=seen)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or sized("default", "default", "random"))
