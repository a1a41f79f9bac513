"""The pytest plug-in that comes with edgesim: golden tables as tests of your own.

The fixture `edgesim_golden` runs what the golden tables of a folder keep, and fails where it differs:

    def test_numbers_stand(edgesim_golden):
        edgesim_golden("golden/quickstart")

`pytest --edgesim-update` writes the tables anew instead, and says what moved. pytest loads this module in every
session, so it imports nothing else before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from edgesim.studies.check import Verdict
    from edgesim.studies.golden import Golden

_TITLE = "edgesim: golden tables that were written"
_PROPERTY = "edgesim_written"  # of a test, which travels with its report, also between processes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --edgesim-update."""
    group = parser.getgroup("edgesim")
    group.addoption("--edgesim-update", action="store_true", help="write edgesim's golden tables anew, say what moved")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what moved in the tables that were written."""
    reports = terminalreporter.stats.get("passed", [])
    lines = [line for report in reports for name, line in report.user_properties if name == _PROPERTY]
    if lines:
        terminalreporter.section(_TITLE)
    for line in lines:
        terminalreporter.line(line)


@pytest.fixture
def edgesim_golden(pytestconfig: pytest.Config, record_property: Callable[[str, Any], None]) -> Callable[..., Verdict]:
    """Return a function that holds the golden tables of a folder against what their runs give now.

    Its arguments: `folder`, of golden.toml, from pytest's root folder; `workers`, so many runs at a time; `tolerances`,
    by column, over those of golden.toml, each a number, "5 %" or "5 % or 0.1". It returns what it found. The test fails
    where a number, or a job, differs, and where the golden or one of its runs is broken.
    """

    def check(folder: str | Path, workers: int = 1, tolerances: Mapping[str, Any] | None = None) -> Verdict:
        from edgesim.core.errors import EdgesimError

        try:
            verdict = _verdict(pytestconfig, folder, workers, tolerances or {})
        except EdgesimError as error:
            pytest.fail(str(error), pytrace=False)
        messages = _messages(verdict)
        if verdict.written:
            for line in messages or [f"{verdict.outcome.golden.folder}: nothing moved"]:
                record_property(_PROPERTY, line)
        elif messages:
            pytest.fail("\n".join(messages), pytrace=False)
        return verdict

    return check


def _verdict(config: pytest.Config, folder: str | Path, workers: int, tolerances: Mapping[str, Any]) -> Verdict:
    from edgesim.studies import check
    from edgesim.studies.golden import load_golden, read_numbers

    golden = load_golden(config.rootpath / folder)
    [golden] = check.tolerant([golden], _parsed(golden, tolerances))
    if config.getoption("--edgesim-update"):
        return check.update(check.rerun([golden], workers)[0])
    stored = read_numbers(golden)
    return check.verdict_on(check.rerun([golden], workers)[0], stored)


def _parsed(golden: Golden, tolerances: Mapping[str, Any]) -> dict[str, Any]:
    from edgesim.core.errors import ConfigError
    from edgesim.reports.compare import parse_tolerance

    try:
        return {column: parse_tolerance(value) for column, value in tolerances.items()}
    except ValueError as error:
        raise ConfigError(f"{golden.folder}: tolerances: {error}") from error


def _messages(verdict: Verdict) -> list[str]:
    """Return a line for each cell that differs or could not be run."""
    from edgesim.studies.check_texts import message_on

    outcome = verdict.outcome
    where = outcome.golden.folder
    found = [message_on(verdict, cell) for cell in outcome.found.cells]
    lines = [f"{where}: {message}" for message in found if message]
    return [*lines, *(f"{where}: cell {cell} could not be run: {fault}" for cell, fault in outcome.faults.items())]
