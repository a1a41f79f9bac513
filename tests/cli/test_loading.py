"""Commands load what they need and no more; what a library costs is a second or two of every call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sizes import full

SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.toml"
HEAVY = ("torch", "torchvision", "pandas", "sklearn", "scipy", "seaborn", "matplotlib", "networkx", "pyarrow", "numpy")
SHOW = f"""
import json, sys
from edgesim.cli.main import main
try:
    main()
finally:
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)
"""


def loaded(*words: str) -> set[str]:
    """Return which of the heavy libraries a command loads."""
    code = f"import sys\nsys.argv = {['edgesim', *words]}\n{SHOW}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("list",), ("list", "method"), ("run", "--help")], ids=" ".join
)
@pytest.mark.process
def test_what_only_tells_loads_nothing(words: tuple[str, ...]) -> None:
    assert loaded(*words) == set()


@full
@pytest.mark.process
def test_validate_loads_torch_and_little_else() -> None:
    """Other methods and data sets than the scenario's, which have libraries of their own, are left alone."""
    # pint loads scipy's first package, and the warnings come from a table of sample jobs
    assert loaded("validate", str(SCENARIO)) <= {"torch", "numpy", "scipy", "pandas", "pyarrow"}


@full
def test_a_device_needs_no_torch() -> None:
    assert loaded("device", "raspberry_pi_4") & {"torch", "seaborn", "matplotlib", "sklearn"} == set()
