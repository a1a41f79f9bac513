"""Every item holds, and docs/explanation/validation.md says so."""

from __future__ import annotations

from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import examples, thinned
from tests.validation.checks import Item, Row, close, exact, within, worst
from tests.validation.energy import ledger_gap
from tests.validation.items import ITEMS
from tests.validation.page import PAGE, render, verdicts


# Queues take longer than all others, and have tests of their own beside the links.
@pytest.mark.parametrize(
    "item", thinned(ITEMS, [item for item in ITEMS if item.title != "Queues"]), ids=lambda item: item.title
)
def test_an_item_holds_and_stands_on_the_page(item):
    """Each row is within its tolerance; the committed page has the same rows with the same verdicts."""
    rows = item.rows()
    assert [row for row in rows if row.verdict != "pass"] == []
    committed = verdicts(PAGE.read_text(encoding="utf-8"))
    assert committed.get(item.title) == [(row.what, row.verdict) for row in rows], "run `make validation`"


def test_the_page_has_these_items_and_no_others():
    """In the same order."""
    assert list(verdicts(PAGE.read_text(encoding="utf-8"))) == [item.title for item in ITEMS]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31))
def test_the_ledger_closes_on_any_scenario(seed):
    """The scenarios of the page are a few of these."""
    assert ledger_gap(seed) < 1e-9


def test_rows_that_must_fail():
    """A number too far away, no number, another word; and the worst of several is found."""
    wrong = [
        within("a", 1.0, 1.2, 0.1),
        close("b", 1e6, 1e6 + 1, 1e-7),
        within("c", 1.0, nan, 9),
        exact("d", "ok", "late"),
    ]
    assert [row.verdict for row in wrong] == ["FAIL"] * 4
    right = [within("a", 1.0, 1.05, 0.1), close("b", 1e6, 1e6 + 1, 1e-5), exact("d", "ok", "ok"), exact("e", 3, 3)]
    assert [row.verdict for row in right] == ["pass"] * 4
    assert worst("w", (1, 2, 3), (1, 2.5, 3.1), 0.1) == Row("w", 2.0, 2.5, 0.1)
    assert worst("w", (1, 2, 3), (1, 2.5, nan), 0.1).verdict == "FAIL"


def test_a_page_tells_its_verdicts_again():
    """What is rendered is read back, failures included; numbers are rounded."""
    rows = [close("x: a, s", 2.0, 2.0 + 1e-15), exact("y", "ok", "late"), exact("z", 1_234_567, 1_234_567)]
    text = render({Item("First", "nothing", lambda: rows): rows, Item("Second", "nothing", list): []})
    assert verdicts(text) == {"First": [("x: a, s", "pass"), ("y", "FAIL"), ("z", "pass")], "Second": []}
    assert "| x: a, s | 2 | 2 | < 1e-12 rel. | 1e-12 rel. | pass |" in text
    assert "| z | 1,234,567 | 1,234,567 | 0 | 0 | pass |" in text
    assert "2 items, 3 rows, 1 failed." in text
