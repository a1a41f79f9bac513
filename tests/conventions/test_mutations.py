"""The faults that `python -m tests.mutations` plants have a place in the code that stands."""

from __future__ import annotations

import pytest

from tests.conventions.source_tree import PACKAGE
from tests.mutations import MUTATIONS, Mutation, place_of


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.wrong)
def test_every_planted_fault_has_one_place(mutation: Mutation) -> None:
    assert place_of(mutation, PACKAGE).is_file()
    assert mutation.old != mutation.new
