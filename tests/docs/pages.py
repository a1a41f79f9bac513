"""Reads the pages of the documentation as a reader would: block after block, in one folder.

A block with a title is a file that the reader writes. A block of `sh` is typed. A block of `text` after the comment
`<!-- output -->` is what the last command or program printed; after `<!-- output, numbers within 10 % -->` its numbers
may differ so much, as what is learned depends on the machine. Python without a title is run. TOML without a title are
lines of a scenario, which are laid over the quickstart and run without training. What cannot run here has the comment
`<!-- not run: reason -->` before it. Other languages are looked at only.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import edgesim
from tests.calling import call

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<language>\w*)(?: +title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FOLDERS = ("scenarios", "golden", "analysis", "benchmarks", "docs")  # of the repository, that commands may name


def claims_by_verdict() -> dict[str, int]:
    """Return the number of claims by verdict, as the table of the page of claims has them."""
    page = (ROOT / "docs" / "explanation" / "claims.md").read_text(encoding="utf-8")
    counts = page.split("| verdict | claims |", 1)[1].split("\n\n", 1)[0]
    return {name: int(count) for name, count in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", counts, re.MULTILINE)}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, with the comment before it and the title that names it as a file; "": none."""

    line: int
    language: str
    text: str
    comment: str
    title: str

    @property
    def is_left_out(self) -> bool:
        """Return whether the page says that it cannot run here."""
        return self.comment.startswith("not run: ")


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(line, match["language"], body, match["comment"] or "", match["title"] or ""))
    return found


class Reader:
    """Somebody who does in `folder` what a page says, block after block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = ""
        self.names: dict[str, Any] = {"__name__": "a_page"}
        for name in _FOLDERS:
            (folder / name).symlink_to(ROOT / name)

    def do(self, block: Block) -> None:
        """Do what a block says. Fails if it does not work, or if something else is printed."""
        if block.is_left_out:
            return
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            for line in _commands(block.text):
                self._type(line)
        elif block.language == "python":
            with redirect_stdout(StringIO()) as printed:
                exec(compile(block.text, "block", "exec"), self.names)
            self.printed = printed.getvalue()
        elif block.language == "toml":
            _try_lines(block.text)
        elif block.comment.startswith("output"):
            self._compare(block)

    def _type(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "edgesim" and not set("|><&;$`*?") & set(line):
            done = call(*words[1:])
            assert done.code == 0, f"{line}: {done.err}"
            self.printed = done.out
        else:
            self.printed = _shell(line, self.folder)

    def _compare(self, block: Block) -> None:
        within = re.search(r"within (\d+) %", block.comment)
        expected, found = _lines(block.text), _lines(self.printed)
        if within is None:
            assert found == expected
            return
        assert [_NUMBER.sub("#", line) for line in found] == [_NUMBER.sub("#", line) for line in expected]
        share = int(within[1]) / 100
        for wanted, got in zip(expected, found, strict=True):
            numbers = [float(number) for number in _NUMBER.findall(wanted)]
            assert [float(number) for number in _NUMBER.findall(got)] == pytest.approx(numbers, rel=share), wanted


def _commands(text: str) -> list[str]:
    """Return the commands of a block: its lines, with those that end in a backslash joined to the next."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def _lines(text: str) -> list[str]:
    """Return the lines that say something, with one blank between words: how wide a table is depends on its numbers."""
    lines = [" ".join(line.replace("─", "").split()) for line in text.splitlines()]
    return [line for line in lines if line]


def _shell(line: str, folder: Path) -> str:
    """Return what a command of the shell prints, with this checkout's edgesim on the path."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    for name, start in {"edgesim": "-m edgesim", "python": ""}.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        (tools / name).chmod(0o755)
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def _try_lines(text: str) -> None:
    """Run lines of a scenario, laid over the quickstart, for two rounds without training."""
    shipped = tomllib.loads((ROOT / "scenarios" / "quickstart.toml").read_text(encoding="utf-8"))
    timed = {"backend": {"name": "null"}, "stop": {"rounds": 2}}
    assert edgesim.run({**shipped, **tomllib.loads(text), **timed}).manifest["status"] == "finished"
