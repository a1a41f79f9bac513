"""A user's own part that breaks a promise is told which: one line, exit code 2, nothing written but the failed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.calling import call

BROKEN = "tests.plugins.broken"


def wrong(function: str, gives: str = "") -> list[str]:
    return [f"method={{name='{BROKEN}:Wrong', function='{function}', gives='{gives}'}}"]


def chooses(ids: str) -> list[str]:
    return [f"selection={{name='{BROKEN}:Chooses', ids={ids}}}"]


CASES = {
    "plan is a list": ("Wrong.plan() must return a Plan, got list", wrong("plan", "list")),
    "plan asks a stranger": ("round 0: the method asked device 77; there are 0 to 3", wrong("plan")),
    "local is nothing": ("Wrong.local() must return a LocalRule, got NoneType", wrong("local")),
    "aggregate is a dict": ("Wrong.aggregate() must return an Aggregate, got dict", wrong("aggregate", "dict")),
    "text metric": ("metric 'mood' must be a number, or one for each device, got 'good'", wrong("aggregate", "text")),
    "a device that is not there": (
        "Chooses.choose() must return distinct idle devices, ascending, got device 77, which is not idle",
        chooses("[0, 77]"),
    ),
    "a device before the first": (
        "Chooses.choose() must return distinct idle devices, ascending, got device -1, which is not idle",
        chooses("[-1]"),
    ),
    "a device twice": (
        "Chooses.choose() must return distinct idle devices, ascending, got [1, 1]", chooses("[1, 1]")
    ),
    "half a device": ("Chooses.choose() must return an array of device ids, got array([1.5])", chooses("[1.5]")),
    "a rule without choose": (
        f"selection.name: {BROKEN}:OnlyChecks must have choose(self, idle, level, key), "
        "as edgesim.core.selection.Selection asks for it",
        [f"selection='{BROKEN}:OnlyChecks'"],
    ),
    "a protocol without protocol": (
        f"protocol.name: {BROKEN}:OnlyRuns must have protocol, as edgesim.core.protocol.RoundProtocol asks for it",
        [f"protocol='{BROKEN}:OnlyRuns'"],
    ),
    "a field in the place of a property": (
        f"peers.name: {BROKEN}:Redrawn.redrawn must have a default, as Peers has one",
        [f"peers={{name='{BROKEN}:Redrawn', redrawn=true}}"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("says", "overrides"), CASES.values(), ids=CASES)
def test_a_broken_promise_is_named(here: Path, says: str, overrides: list[str]) -> None:
    words = [word for override in overrides for word in ("--set", override)]
    code, _, err = call("run", "scenario.toml", "--out", "run", "--quiet", *words)
    assert (code, err) == (2, f"error: {says}\n")


def test_a_module_that_is_no_python(here: Path) -> None:
    (here / "typo.py").write_text("def f(:\n")
    code, _, err = call("run", "scenario.toml", "--out", "run", "--set", "method=typo:Method")
    assert (code, err) == (2, "error: method.name: cannot import 'typo:Method': invalid syntax (typo.py, line 1)\n")
