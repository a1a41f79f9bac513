"""Damages files at random and reads them: the answer has to be one clear line, or an answer.

    python -m tests.fuzz.files [KIND...] --cases 200 --seed 1

Reading runs in a process of its own, with limits to its memory and to the time of each case, so that files that ask
for more, wait for ever or crash the interpreter are found like the rest. Nothing that a file says may be executed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.damage import restore
from tests.fuzz.kinds import KINDS, Kind

SECONDS_A_CASE = 60  # on a busy machine; a case takes milliseconds
MEMORY_BYTES = 12 * 2**30  # of addresses; torch alone takes 4 GiB
LINE = 600  # characters that a message may have
# What Python says of itself as it does it; see "Audit events table" in its documentation.
FORBIDDEN = re.compile(r"subprocess\.Popen|os\.(system|exec|spawn|posix_spawn|fork)|pickle\.find_class|socket\.connect")
_NAMED = re.compile(r"[^:]+: ")  # a key, or another file


def fault_of(kind: Kind, folder: Path, file: Path, case: int, whole: str | None) -> str:
    """Return what is wrong with how a damaged file was read, "" if nothing; `whole`: the answer without damage."""
    forbidden: list[str] = []
    _LISTENERS.append(forbidden)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            answer = shown(kind.read(folder, case))
    except Exception as error:
        fault = fault_of_error(error, file)
    else:
        fault = f"warns: {warned[0].message}" if warned else ""
        if whole is not None and answer != whole:
            fault = "gives another answer, and no line"
    finally:
        _LISTENERS.remove(forbidden)
    return f"runs {forbidden[0]}" if forbidden else fault


def fault_of_error(error: Exception, file: Path) -> str:
    """Return why an error is not one clear line about this file, "" if it is."""
    from edgesim.core.errors import EdgesimError

    line = str(error)
    if not isinstance(error, EdgesimError):
        return f"{type(error).__name__}: {line[:300]!r}"
    if "\n" in line or not line.isprintable() or len(line) > LINE:
        return f"not one short line: {line[:LINE]!r}"
    return "" if file.name in line or _NAMED.match(line) else f"names neither file nor key: {line}"


def shown(answer: Any) -> str:
    """Return a text that two answers share if they are the same."""
    return repr(answer)


def check(name: str, cases: int, seed: int) -> list[str]:
    """Damage the files of a kind in turn, so many cases; return a line for each fault."""
    kind, faults = KINDS[name], []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place)
        files = list(kind.make(folder))
        shown(kind.read(folder, 0))  # it can be read
        for case in range(cases):
            file = files[case % len(files)]
            contents = {each: each.read_bytes() for each in files}
            print(json.dumps({"at": f"{name}, case {case}: {file.name}"}), flush=True)
            faulthandler.dump_traceback_later(SECONDS_A_CASE, exit=True)
            whole = shown(kind.read(folder, case)) if kind.sealed(folder) else None
            way = kind.damage(file, case, seed)
            print(json.dumps({"at": f"{name}, case {case}: {file.name} {way}"}), flush=True)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                fault = fault_of(kind, folder, file, case, whole)
            for each, content in contents.items():
                restore(each, content)
            faulthandler.cancel_dump_traceback_later()
            if fault:
                faults.append(f"{name}, case {case}: {file.name} {way}: {fault}")
    return faults


_LISTENERS: list[list[str]] = []


def _listen(event: str, given: tuple[Any, ...]) -> None:
    if _LISTENERS and FORBIDDEN.match(event) and given[:1] != ("git",):  # runs note the revision of the current folder
        _LISTENERS[-1].append(event)


def _work(names: Sequence[str], cases: int, seed: int) -> None:
    """Check kinds in this process, and print a JSON object a line: where it is, and the faults of a kind."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.addaudithook(_listen)
    for name in names:
        print(json.dumps({"kind": name, "faults": check(name, cases, seed)}), flush=True)


def faults_of(names: Sequence[str], cases: int, seed: int) -> dict[str, list[str]]:
    """Return the faults of each kind. A process that dies is a fault, and the kinds after it go to the next one."""
    found: dict[str, list[str]] = {}
    while left := [name for name in names if name not in found]:
        words = [sys.executable, "-m", "tests.fuzz.files", *left, "--cases", str(cases), "--seed", str(seed), "--here"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
        said = [json.loads(line) for line in done.stdout.splitlines()]
        found |= {line["kind"]: line["faults"] for line in said if "kind" in line}
        if done.returncode:
            at = next((line["at"] for line in reversed(said) if "at" in line), "the start")
            died = next(name for name in names if name not in found)
            found[died] = [f"died with {done.returncode} at {at}: {done.stderr[-2000:]}"]
    return found


def main() -> None:
    """Check the kinds named on the command line, or all; the exit code is 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="in this process, without a look after it")
    given = parser.parse_args()
    names = given.kinds or list(KINDS)
    if given.here:
        _work(names, given.cases, given.seed)
        return
    any_fault = False
    for name in names:
        faults = faults_of([name], given.cases, given.seed)[name]
        print(f"{name}: {given.cases} cases, {len(faults)} faults", *faults, sep="\n  ", flush=True)
        any_fault |= bool(faults)
    sys.exit(1 if any_fault else 0)


if __name__ == "__main__":
    main()
