"""Garbage that is seldom looked for."""

from __future__ import annotations

import gc

import pytest

from edgesim.core.garbage import seldom_collecting


def test_it_is_looked_for_seldom_and_then_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collecting():
        assert gc.get_threshold()[0] > before[0] and gc.get_freeze_count() > 0
        raise KeyError
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
