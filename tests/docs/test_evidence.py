"""The page "Can I trust it?" has the figures of the pages that it leads to."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, claims_by_verdict

PAGES = ROOT / "docs" / "explanation"


def text_of(name: str) -> str:
    """Return the text of a page of explanations."""
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


TRUST = text_of("trust")


def test_device_clock() -> None:
    for board in ("Raspberry Pi 4", "Raspberry Pi 5"):
        rows, error = re.findall(rf"\| {board} \| without its family \| (\d+) \| (\S+ %)", text_of("device_times"))[0]
        assert re.search(rf"On a {board}[^.]*? {re.escape(error)} off[^.]*\({rows} steps\)", TRUST)


def test_closed_forms() -> None:
    items, rows = re.findall(r"(\d+) items, (\d+) rows, none failed", text_of("validation"))[0]
    assert f"{rows} comparisons in {items} groups agree" in TRUST


def test_independent_checks() -> None:
    checks = text_of("independent_checks")
    rival, loop, paper = (checks.count(f"| {kind} |") for kind in ("rival", "PyTorch", "paper"))
    assert f"{rival} methods have the weights" in TRUST
    assert f"{loop} more agree with a loop of plain PyTorch, and {paper} with the formulas" in TRUST


def test_claims() -> None:
    of = claims_by_verdict()
    total, on_the_mean = sum(of.values()), of["same order"] + of["within on the mean"]
    run = total - of["not run"] - of["no test here"]
    assert (
        f"Of {total} claims of five papers, {run} were run: {of['reproduced']} are reproduced, "
        f"{on_the_mean} hold on the mean, {of['undecided']} are undecided and {of['refuted']} are refuted."
    ) in TRUST
    assert f"{of['not run']} need more" in TRUST and f"{of['no test here']} have no test here" in TRUST
