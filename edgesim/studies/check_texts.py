"""Results of a check of golden tables in words, as JUnit XML, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from xml.etree import ElementTree

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import one_line
from edgesim.records.manifest import plain_json
from edgesim.studies.check import Checked, Difference, FirstJob, Verdict
from edgesim.studies.golden import as_text

SCHEMA = 1  # version of the JSON object
_NAMED = 3  # columns in a one-line message
_ROWS = 50  # differing columns of a golden in a summary. Services cut long summaries
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # Source: XML 1.0, production 2


# --- in words ---------------------------------------------------------------------------------------------------


def where_of(first: FirstJob) -> str:
    """Return the identity of the job, such as "job 3 (device 1, round 0, submodel full)"."""
    job = first.label
    return f"job {job['job']} (device {job['device']}, round {job['round']}, submodel {job['submodel']})"


def side_of(first: FirstJob) -> str:
    """Return the side that has the job, in words; "" if both sides have it."""
    if first.found is not None and first.stored is not None:
        return ""
    return "is stored but was not found" if first.stored else "was found but is not stored"


def in_words(difference: Difference) -> str:
    """Return a difference as "flops: stored 100, found 120 (+20 %, allowed: equal)"."""
    change = change_of(difference)
    said = f"{change}, allowed: {difference.allowed}" if change else f"allowed: {difference.allowed}"
    stored, found = (as_text(value) or "nothing" for value in (difference.stored, difference.found))
    return f"{difference.column}: stored {stored}, found {found} ({said})"


def change_of(difference: Difference) -> str:
    """Return the relative change of a number, such as "+20 %"; "" if it is undefined."""
    return "" if difference.change is None else f"{100 * difference.change:+.3g} %"


def message_on(verdict: Verdict, cell: str) -> str:
    """Return one line with the scenario, differing columns and first differing job of a cell; "" if nothing differs."""
    checked = _checked(verdict, cell)
    if checked.agrees:
        return ""
    scenario = os.path.normpath(verdict.outcome.golden.base)
    parts = [in_words(difference) for _, difference in checked.columns[:_NAMED]]
    if len(checked.columns) > _NAMED:
        parts.append(f"{len(checked.columns) - _NAMED} more columns differ")
    return f"scenario {scenario}, cell {cell}: {'; '.join([*parts, _on_jobs(verdict, checked)])}"


def _checked(verdict: Verdict, cell: str) -> Checked:
    return verdict.checked.of(cell) if verdict.checked else Checked([], [])


def _on_jobs(verdict: Verdict, checked: Checked) -> str:
    if not checked.jobs:
        rounds = verdict.outcome.golden.file.rounds
        return "no job differs" if rounds is None else f"no job of the first {rounds} rounds, which are kept, differs"
    first = checked.jobs[0]
    said = side_of(first) or "; ".join(map(in_words, first.differences))
    return f"first of {first.jobs} jobs that differ: {where_of(first)}: {said}"


# --- JUnit XML --------------------------------------------------------------------------------------------------


def junit(verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> str:
    """Return a JUnit XML file with a suite for each golden and a case for each of its cells.

    A cell that differs has a failure, and a cell that could not run has an error. `broken`: the error that stopped the
    check or prevented a comparison. It becomes a case in a suite of its own.
    """
    root = ElementTree.Element("testsuites", {"name": "edgesim check"})
    suites = []
    for verdict in verdicts:
        outcome, name = verdict.outcome, str(verdict.outcome.golden.folder)
        cases = []
        for cell in [each.name for each in outcome.golden.cells]:
            message, said = message_on(verdict, cell), None
            if cell in outcome.faults:
                said = "error", f"cell {cell}: {outcome.faults[cell]}", ""
            elif message and verdict.written:
                said = "system-out", "", f"written anew: {message}"
            elif message:
                lines = [in_words(difference) for _, difference in _checked(verdict, cell).columns]
                said = "failure", message, "\n".join([message, "", *lines]).rstrip()
            if cell in outcome.faults or cell in outcome.found.cells:
                cases.append(_case(name, cell, outcome.host_s.get(cell, 0.0), said))
        suites.append(_counted(name, cases))
    if broken is not None:
        suites.append(
            _counted("edgesim check", [_case("edgesim check", "input", 0.0, ("error", one_line(broken), ""))])
        )
    for suite in suites:
        root.append(suite)
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: str, cell: str, host_s: float, said: tuple[str, str, str] | None = None) -> ElementTree.Element:
    """Return a case. `said`: tag, message and text of the element inside it."""
    case = ElementTree.Element("testcase", {"classname": _xml(suite), "name": _xml(cell), "time": f"{host_s:.3f}"})
    if said:
        tag, message, text = said
        inner = ElementTree.SubElement(case, tag, {"message": _xml(message), "type": tag} if message else {})
        inner.text = _xml(text) or None
    return case


def _counted(name: str, cases: Sequence[ElementTree.Element]) -> ElementTree.Element:
    counts = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error")}
    time = sum(float(case.get("time", "0")) for case in cases)
    suite = ElementTree.Element("testsuite", {"name": _xml(name), "tests": str(len(cases))})
    suite.attrib |= {"failures": str(counts["failure"]), "errors": str(counts["error"]), "skipped": "0"}
    suite.set("time", f"{time:.3f}")
    suite.extend(cases)
    return suite


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)


# --- JSON -------------------------------------------------------------------------------------------------------


def as_json(verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> str:
    """Return all results as one JSON object."""
    goldens = []
    for verdict in verdicts:
        golden, outcome = verdict.outcome.golden, verdict.outcome
        cells: list[dict[str, Any]] = []
        for cell in [each.name for each in golden.cells]:
            if cell not in outcome.faults and cell not in outcome.found.cells:
                continue
            checked = _checked(verdict, cell)
            first = checked.jobs[0] if checked.jobs else None
            first_job = first and {
                "stored": first.stored,
                "found": first.found,
                "differences": [_as_table(each) for each in first.differences],
                "jobs": first.jobs,
            }
            cells.append(
                {
                    "cell": cell,
                    "fault": outcome.faults.get(cell),
                    "agrees": cell not in outcome.faults and verdict.checked is not None and checked.agrees,
                    "host_s": outcome.host_s.get(cell),
                    "numbers": outcome.found.cells.get(cell),
                    "differences": [_as_table(difference) for _, difference in checked.columns],
                    "first_job": first_job,
                }
            )
        goldens.append(
            {
                "folder": str(golden.folder),
                "study": golden.study.name,
                "scenario": os.path.normpath(golden.base),
                "size": golden.file.size,
                "agrees": verdict.agrees,
                "written": verdict.written,
                "why": verdict.why or None,
                "cells": cells,
            }
        )
    return plain_json(
        {
            "schema": SCHEMA,
            "edgesim": version("edgesim"),
            "agrees": broken is None and all(verdict.agrees for verdict in verdicts),
            "error": None if broken is None else one_line(broken),
            "goldens": goldens,
        }
    )


def _as_table(difference: Difference) -> Mapping[str, Any]:
    return {**difference._asdict(), "change": difference.change}


# --- Markdown ---------------------------------------------------------------------------------------------------


def as_markdown(verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> str:
    """Return a summary for a pull request: a row for each golden, then all differences and first differing jobs."""
    good = sum(verdict.agrees for verdict in verdicts)
    written = any(verdict.written for verdict in verdicts)
    lines = [f"## Golden tables: {good} of {len(verdicts)} {'written anew' if written else 'as stored'}", ""]
    if broken is not None:
        compared = "Not everything" if verdicts else "Nothing"
        lines += [f"**{compared} was compared:** {_cell_of(one_line(broken))}", ""]
    if verdicts:
        lines += ["| golden | study | cells | result |", "|---|---|---|---|"]
    for verdict in verdicts:
        golden, cells = verdict.outcome.golden, len(verdict.outcome.found.cells)
        words = (f"`{_cell_of(str(golden.folder))}`", _cell_of(golden.study.name), str(cells), result_of(verdict))
        lines.append(f"| {' | '.join(words)} |")
    for verdict in verdicts:
        lines += _details(verdict)
    return "\n".join(lines) + "\n"


def result_of(verdict: Verdict) -> str:
    """Return the result of a golden in a few words."""
    if verdict.outcome.faults:
        return f"{len(verdict.outcome.faults)} cells could not be run"
    if verdict.checked is None:
        return "written"
    moved = "nothing moved" if verdict.checked.agrees else f"{_moved(verdict.checked)} moved"
    if verdict.written:
        return f"written, {moved}"
    return "as stored" if verdict.checked.agrees else f"**differs**: {_moved(verdict.checked)}"


def _moved(checked: Checked) -> str:
    numbers, jobs = len(checked.columns), sum(first.jobs for first in checked.jobs)
    return f"{numbers} number{'s'[: numbers != 1]}, {jobs} job{'s'[: jobs != 1]}"


def _details(verdict: Verdict) -> Iterator[str]:
    faults, checked = verdict.outcome.faults, verdict.checked or Checked([], [])
    if checked.agrees and not faults:
        return
    yield ""
    yield f"### `{_cell_of(str(verdict.outcome.golden.folder))}`"
    yield ""
    yield f"Scenario: `{_cell_of(os.path.normpath(verdict.outcome.golden.base))}`"
    yield ""
    yield from (f"- cell `{cell}` could not be run: {_cell_of(fault)}" for cell, fault in faults.items())
    if checked.columns:
        yield from (
            *([""] if faults else []),
            "| cell | column | stored | found | change | allowed |",
            "|---|---|---|---|---|---|",
        )
    for cell, each in checked.columns[:_ROWS]:
        values = (as_text(each.stored), as_text(each.found), change_of(each), each.allowed)
        yield f"| `{cell}` | `{each.column}` | {' | '.join(values)} |"
    yield ""
    if len(checked.columns) > _ROWS:
        yield f"- and {len(checked.columns) - _ROWS} more columns"
    for first in checked.jobs[:_ROWS]:
        said = side_of(first) or "; ".join(map(in_words, first.differences))
        yield f"- first of {first.jobs} differing jobs of `{first.cell}`: {_cell_of(where_of(first))}: {_cell_of(said)}"
    if not checked.jobs and checked.columns:
        yield f"- {_on_jobs(verdict, checked)}"


def _cell_of(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")
