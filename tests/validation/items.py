"""All that is validated, in the order of the page."""

from __future__ import annotations

from tests.validation import energy, learning, links, studies

ITEMS = (*links.ITEMS, *energy.ITEMS, *learning.ITEMS, *studies.ITEMS)
