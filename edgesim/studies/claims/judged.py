"""Judges claims by the runs that there are, or by what a file of results has of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from edgesim.reports.load import Run
from edgesim.studies.claims.claim import Claim, ClaimsFile, Smaller, Studies, load_claims
from edgesim.studies.claims.judge import Judgement, cells_for, judge
from edgesim.studies.claims.results import Result, results_of
from edgesim.studies.runs import Planned, plan
from edgesim.studies.study import Study
from edgesim.studies.values import values_of

Runs = dict[
    tuple[Path, str], Mapping[str, tuple[Planned, Run | None]]
]  # of a study file and size, by the names of cells

NOTHING = Judgement((), 0, None)  # of a claim that was not run


@dataclass(frozen=True)
class Judged:
    """A claim, the study that it was judged by, and what was found.

    `smaller`: on a smaller scale than the paper's. `made`: which code made the runs that are there, and `recorded`
    those that are not, of which results are kept. `hours`: what its runs would take in one process of this host; None:
    unknown.
    """

    claim: Claim
    test: Smaller | None = None
    found: Judgement = NOTHING
    smaller: bool = False
    made: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    hours: float | None = None


class Chapter(NamedTuple):
    """A paper and its claims, judged; `folder`: from which they name studies."""

    file: ClaimsFile
    folder: Path
    claims: Sequence[Judged]


class Court:
    """Judges claims. `runs`: the folder with a folder for each study; `results`: numbers of runs that are not there."""

    def __init__(self, runs: Path, results: Sequence[Result] = ()) -> None:
        self._folder = runs
        self._results = results
        self._studies = Studies()
        self._runs: Runs = {}

    def chapters(self, files: Iterable[Path], hours: bool = False) -> list[Chapter]:
        """Return the claims of files with what their runs say; with `hours` also what those not run would take.

        Raises ConfigError for a file that is not right, before anything is judged.
        """
        loaded = [(path, load_claims(path, self._studies)) for path in files]
        return [
            Chapter(file, path.parent, [self._judged(claim, path.parent, hours) for claim in file.claims])
            for path, file in loaded
        ]

    def results(self, files: Iterable[Path]) -> list[Result]:
        """Return the numbers that claims are judged by, of all runs that are there, and the others that were given."""
        found = {each.key: each for each in self._results}
        for path in files:
            for claim in load_claims(path, self._studies).claims:
                for test in claim.tests:
                    found |= {
                        each.key: each for each in self._fresh(claim.by(test), path.parent / test.study, test.size)
                    }
        return list(found.values())

    def _judged(self, claim: Claim, folder: Path, hours: bool) -> Judged:
        of = 0
        for test in claim.tests:
            file = folder / test.study
            study = self._studies.load(file)
            tested = claim.by(test)
            fresh = {each.key: each for each in self._fresh(tested, file, test.size)}
            kept = {each.key: each for each in self._kept(tested, study, file, test.size)} | fresh
            found = judge(tested, study, test.size, _frame(study, kept.values()))
            of = max(of, found.of)  # a smaller study may leave out what the paper has
            if found.verdict is not None:
                recorded = _made([each for key, each in kept.items() if key not in fresh])
                smaller = test != claim.tests[0]
                return Judged(claim, test, found._replace(of=of), smaller, _made(fresh.values()), recorded)
        return Judged(claim, hours=self._hours(claim, folder) if hours and claim.study and not claim.needs else None)

    def _fresh(self, claim: Claim, file: Path, size: str) -> Iterator[Result]:
        """Yield the numbers of runs that are there."""
        assert claim.rule is not None, "a claim with a study has a rule"
        for cell in cells_for(claim, self._studies.load(file), size):
            _, run = self._of_size(file, size)[cell.name]
            if run is not None:
                yield from results_of(file.stem, size, cell, run, dict.fromkeys(claim.rule.columns))

    def _kept(self, claim: Claim, study: Study, file: Path, size: str) -> Iterator[Result]:
        """Yield what the results have of the cells of a claim."""
        assert claim.rule is not None, "a claim with a study has a rule"
        groups = [cell.group for cell in cells_for(claim, study, size)]
        for each in self._results:
            if (
                (each.study, each.size) == (file.stem, size)
                and each.column in claim.rule.columns
                and each.labels in groups
            ):
                yield each

    def _of_size(self, file: Path, size: str) -> Mapping[str, tuple[Planned, Run | None]]:
        key = file, size
        if key not in self._runs:
            planned = plan(self._studies.load(file), file, size, (), self._folder / file.stem / size)
            self._runs[key] = {each.cell.name: (each, each.kept()) for each in planned}
        return self._runs[key]

    def _hours(self, claim: Claim, folder: Path) -> float | None:
        """Return what the runs of a claim take in one process; those of one cell, times the seeds."""
        test = claim.tests[0]
        file = folder / test.study
        cells = cells_for(claim, self._studies.load(file), test.size)
        return self._costs.hours([self._of_size(file, test.size)[cell.name][0] for cell in cells])

    @cached_property
    def _costs(self) -> Costs:
        return Costs()


class Costs:
    """What runs take in one process of this host, each estimated once."""

    def __init__(self) -> None:
        self._known: dict[Path, float | None] = {}

    def hours(self, planned: Sequence[Planned]) -> float | None:
        """Return the hours of runs, those of one seed in the place of all; None if they cannot be estimated here."""
        from edgesim.studies.outlook import outlook

        first = {tuple(each.cell.group.items()): each for each in reversed(planned)}
        todo = [each for each in first.values() if each.folder not in self._known]
        for each in outlook(todo, costs=True):
            self._known[each.planned.folder] = each.host_s
        of_group = {group: self._known[each.folder] for group, each in first.items()}
        seconds = [of_group[tuple(each.cell.group.items())] for each in planned]
        known = [each for each in seconds if each is not None]
        return sum(known) / 3600 if known and len(known) == len(seconds) else None


def verdicts(chapters: Iterable[Chapter]) -> dict[str, int]:
    """Return how many claims have each verdict, and how many none."""
    counts = dict[str, int]()
    for chapter in chapters:
        for each in chapter.claims:
            if each.found.verdict is not None:
                name = f"{each.found.verdict}{' on a smaller scale' if each.smaller else ''}"
                name += " by records" if each.recorded else ""
            else:
                name = "not run" if each.claim.study else "no test here"
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def _made(results: Iterable[Result]) -> tuple[str, ...]:
    """Return which revisions made results, when, and which pages have them."""
    texts = (", ".join(filter(None, [each.revision, each.date, each.source])) for each in results)
    return tuple(dict.fromkeys(texts))


def _frame(study: Study, results: Iterable[Result]) -> pd.DataFrame:
    """Return a table of values as `values_of` does."""
    empty = values_of(study, ())
    rows = [
        (*map(each.labels.get, empty.columns[:-4]), each.seed, each.column, each.value, each.observed)
        for each in results
    ]
    return pd.DataFrame(rows, columns=empty.columns) if rows else empty
