"""What tests of random runs have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def few_tries() -> Iterator[None]:
    """Ask those who cannot 20 times, not 1000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgesim.engine.watchdog.MOST_TRIES", 20)
        yield


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a measured availability of two devices; the others are never there."""
    path = tmp_path_factory.mktemp("churn") / "trace.csv"
    path.write_text("device,start,end\n0,0,25\n0,40,300\n1,10,120.5\n1,130,5000\n")
    return path
