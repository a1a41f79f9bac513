"""The page of the documentation about public Flower apps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.outside.flower_apps.listing import APPS

Row = Mapping[str, Any]


def page(rows: Mapping[str, Row]) -> str:
    """Return the page as Markdown. `rows`: by name of the app, as `__main__.run_app` returns them."""
    return "\n".join(str(len(rows)) for _ in APPS)
