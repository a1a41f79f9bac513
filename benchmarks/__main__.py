"""Runs benchmarks, prints their tables, and writes what they found as JSON and as a page of the documentation.

Each is a process of its own: `python benchmarks/NAME.py --help` says what it can be told when it is run alone.
`python -m benchmarks devices` compares predicted with measured seconds of devices instead, see devices/page.py.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # as when a benchmark is started alone

from host import host
from page import as_csv, render
from rivals import VARIABLE

HERE = Path(__file__).parent
FIRST = ("rivals", "training", "two_workers")  # on the page; the others follow by name
PARTS = {"title", "about", "seconds", "load", "date", "git", "rows", "left_out"}  # of a section, beside its name
SAME = ("cpu", "cores_to_use", "versions")  # facts of the host in which reports must agree to be one


def benchmarks() -> list[str]:
    """Return the names of all benchmarks: the modules of this folder with a function `rows`, read from their source."""
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in HERE.glob("*.py")}
    names = {
        name
        for name, tree in trees.items()
        if any(isinstance(node, ast.FunctionDef) and node.name == "rows" for node in tree.body)
    }
    return [*FIRST, *sorted(names - set(FIRST))]


def measured(
    name: str, words: Sequence[str], environment: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Run one benchmark; return its section of the report. Raises SystemExit if it fails, with its exit code."""
    title, about = _explained(name)
    print(f"\n{name}: {title}", flush=True)
    paths = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        file, load, start_s = Path(folder) / "found.json", round(os.getloadavg()[0], 2), time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py"), *words, "--json", str(file)]
        code = subprocess.run(command, env={**os.environ, **environment, "PYTHONPATH": paths}).returncode
        if code:
            print(f"benchmarks/{name}.py failed", file=sys.stderr)
            sys.exit(code if code > 0 else 1)
        found = json.loads(file.read_text(encoding="utf-8"))
    seconds = time.perf_counter() - start_s
    of = {key: facts[key] for key in ("date", "git")}
    return {"name": name, "title": title, "about": about, "seconds": seconds, "load": load, **of, **found}


def _explained(name: str) -> tuple[str, str]:
    """Return the question that a benchmark's docstring begins with, and the rest of it but for how it is run."""
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    first, _, rest = (ast.get_docstring(tree) or "").partition("\n\n")
    question, _, answer = first.partition("? ")
    return f"{question}?", "\n\n".join(filter(None, [answer, rest.partition("Run: ")[0].strip()]))


def sections_of(files: Sequence[Path], facts: Mapping[str, Any], quick: bool) -> dict[str, dict[str, Any]]:
    """Return the sections of earlier reports by name, of equal names the last one.

    Raises ValueError if a file is no report, or of another machine.
    """
    found, known = {}, benchmarks()
    for file in files:
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            was, sections = {"quick": report["quick"], **report["host"]}, report["sections"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} cannot be read as a report: {type(error).__name__}: {error}") from error
        for key, now in {"quick": quick, **{key: facts[key] for key in SAME}}.items():
            if was.get(key) != now:
                raise ValueError(f"{file} has another {key}: {was.get(key)}, here {now}")
        for section in sections:
            if section.get("name") not in known or PARTS - section.keys():
                raise ValueError(f"{file} has a section that this version does not write: {section.get('name')}")
            found[section["name"]] = section
    return found


def main() -> None:
    """Do what the command line says."""
    known = benchmarks()
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help=f"all if left out: {', '.join(known)}")
    options.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: to see that all of them work")
    options.add_argument("--repeats", type=int, metavar="N", help="of every measurement; default: each its own")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    options.add_argument("--page", type=Path, metavar="FILE", help="write the page of the documentation")
    options.add_argument("--csv", type=Path, metavar="FILE", help="write all rows as CSV, which the page links")
    options.add_argument(
        "--rivals", nargs="+", metavar="WORD", help="FOLDER NAME=COMMAND ..., see benchmarks/rivals.py"
    )
    reports = "reports of --json, from this machine, whose sections come along; then only NAMEs are run"
    options.add_argument("--reports", nargs="+", type=Path, default=[], metavar="FILE", help=reports)
    given = options.parse_args()
    if unknown := set(given.names) - set(known):
        options.error(f"NAME: must be of {', '.join(known)}, got {min(unknown)!r}")
    words = [*(["--quick"] if given.quick else []), *(["--repeats", str(given.repeats)] if given.repeats else [])]
    environment = {} if given.rivals is None else {VARIABLE: shlex.join(given.rivals)}
    facts = host(["python", "-m", "benchmarks", *sys.argv[1:]])
    try:
        found = sections_of(given.reports, facts, given.quick)
    except ValueError as error:
        options.error(f"--reports: {error}")
    chosen = given.names if given.names or given.reports else known
    found |= {name: measured(name, words, environment, facts) for name in known if name in chosen}
    sections = [found[name] for name in known if name in found]
    report = {"quick": given.quick, "host": facts, "sections": sections}
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if given.page is not None:
        link = os.path.relpath(given.csv, given.page.parent) if given.csv else ""
        given.page.write_text(render(report, link), encoding="utf-8")
    if given.csv is not None:
        given.csv.write_text(as_csv(report), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["calibration"]:  # its own words, see there
        from benchmarks.calibration import main as calibration

        calibration(sys.argv[2:])
    elif sys.argv[1:2] == ["devices"]:  # times nothing: it compares clocks with measurements that are there
        from benchmarks.devices.page import main as devices

        devices(sys.argv[2:])
    else:
        main()
