"""Durations of tests by file: `make durations` runs the short tests with this plug-in and writes tests/durations.csv.

One row a file of tests, the longest first, with its slowest test. Seconds are those of processors, of the test and of
the processes that it starts and waits for, set-up and teardown included, so that the load of the machine changes them
little. The row `(start)` is what each of the test processes takes before its first test: imports and collection.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("durations.csv")
COLUMNS = ("file", "tests", "cpu_s", "slowest", "slowest_cpu_s")
START = "(start)"


def cpu_s() -> float:
    """Seconds of processors that this process and the processes it waited for have taken."""
    return sum(os.times()[:4])


class Durations:
    """Measures each test in the process that runs it, and writes the table in the process that hears of all."""

    def __init__(self) -> None:
        self.began_s: float | None = None
        self.by_file: dict[str, list[tuple[float, str]]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Note where a test starts, or for the first that it is the first."""
        self.first, self.began_s = self.began_s is None, cpu_s()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Give the last report of a test what the test took."""
        if call.when == "teardown" and self.began_s is not None:
            item.user_properties.append(("cpu_s", cpu_s() - self.began_s))
            if self.first:
                item.user_properties.append(("start_cpu_s", self.began_s))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect what tests took, those of other processes too."""
        taken = dict(report.user_properties)
        if report.when == "teardown" and "cpu_s" in taken:
            file, _, name = report.nodeid.partition("::")
            self.by_file[file].append((taken["cpu_s"], name))
            if "start_cpu_s" in taken:
                self.by_file[START].append((taken["start_cpu_s"], ""))

    def rows(self) -> Iterator[tuple[str, int, float, str, float]]:
        """Yield the rows of the table, the longest file first."""
        for file, tests in sorted(self.by_file.items(), key=lambda each: -sum(taken for taken, _ in each[1])):
            slowest_s, slowest = max(tests)
            yield file, len(tests), round(sum(taken for taken, _ in tests), 1), slowest, round(slowest_s, 1)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the table, and print how many files take half of the time."""
        rows = list(self.rows())
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        total_s, sum_s, files = sum(row[2] for row in rows), 0.0, 0
        while sum_s < total_s / 2:
            sum_s += rows[files][2]
            files += 1
        terminalreporter.line(f"{TABLE.name}: {total_s:.0f} s in {len(rows)} files; {files} of them take half of it")


def pytest_configure(config: pytest.Config) -> None:
    """Measure."""
    config.pluginmanager.register(Durations())
