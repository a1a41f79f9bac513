"""Durations of tests by file: `make durations` runs the short tests and writes tests/durations.csv.

One row a file of tests, the longest first, with its slowest test. Seconds include set-up and teardown. They depend on
the machine and its load; the order of files hardly does.
"""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).with_name("durations.csv")
COLUMNS = ("file", "tests", "seconds", "slowest", "slowest_s")


def rows_of(report: Path) -> list[tuple[str, int, float, str, float]]:
    """Return the rows of a JUnit report of pytest."""
    by_file: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            by_file[case.attrib["classname"].replace(".", "/") + ".py"].append(
                (float(case.attrib["time"]), case.attrib["name"])
            )
    rows = []
    for file, cases in by_file.items():
        slowest_s, slowest = max(cases)
        rows.append((file, len(cases), round(sum(seconds for seconds, _ in cases), 1), slowest, round(slowest_s, 1)))
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def main(report: Path) -> None:
    """Write the table, and print how many files take half of the time."""
    rows = rows_of(report)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    total_s, sum_s, files = sum(row[2] for row in rows), 0.0, 0
    while sum_s < total_s / 2:
        sum_s += rows[files][2]
        files += 1
    print(f"{TABLE.name}: {total_s:.0f} s in {len(rows)} files; {files} of them take half of it")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
