"""A run of the tests whose time is up leaves out what has not started, and says how many that are."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conventions.source_tree import ROOT
from tests.sizes import full


@full
@pytest.mark.process
def test_no_test_starts_when_time_is_up() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/test_rng.py"]
    given = {**os.environ, "EDGESIM_TEST_SIZE": "all"}
    late = subprocess.run(words, cwd=ROOT, env={**given, "EDGESIM_TEST_UNTIL": "1"}, capture_output=True, text=True)
    assert late.returncode == 0, late.stderr
    left_out = re.search(r"SKIPPED \[(\d+)\] tests/conftest.py:\d+: time is up", late.stdout)
    assert left_out and f"\n{left_out[1]} skipped in " in late.stdout
    assert "passed" not in late.stdout
