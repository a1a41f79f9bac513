"""Worker processes begin to load before a scenario is read, where it looks as if there will be any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution import processes
from edgesim.execution.preload import warm_up_for


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows when something is warmed up, and let that be all that happens."""
    calls: list[str] = []
    monkeypatch.setattr(processes, "warm_up", lambda: calls.append("warm"))
    return calls


@pytest.mark.parametrize(
    ("source", "overrides", "workers", "expected"),
    [
        ({"backend": "workers"}, (), None, True),
        ({"backend": {"name": "workers", "workers": 3}}, (), None, True),
        ({"backend": "cohort"}, (), None, True),
        ({"backend": {"name": "cohort", "workers": 1}}, (), None, False),
        ({"backend": {"name": "cohort", "device": "cuda"}}, (), None, False),
        ({"backend": "serial"}, (), None, False),
        ({"backend": 5}, (), None, False),
        ({}, (), None, False),
        ({}, ("backend=workers",), None, True),
        ({}, ("backend.name=workers", "seed=1"), None, True),
        ({}, ("backend=cohort",), None, True),
        ({}, ("seed=1",), None, False),
        ({}, (), 2, True),
        ({}, 3, None, False),
        ({}, [3, None], None, False),
        ({}, {"backend": "workers"}, None, True),
        ({}, {"backend": {"name": "cohort"}, "seed": 1}, None, True),
        ({}, {"seed": 1}, None, False),
        (object(), (), None, False),
        ('backend = "workers"', (), None, True),
        ('[backend]\nname = "workers"', (), None, True),
        ("backend = ", (), None, False),
        ('backend = "workers"', ["backend=serial"], None, False),
        ('[backend]\nname = "workers"', ["backend.name = 'serial'"], None, False),
        ('[backend]\nname = "workers"', ["backend.workers=3"], None, True),
        (None, (), None, False),
    ],
)
def test_what_asks_for_workers(
    source: Any, overrides: Any, workers: int | None, expected: bool, warmed: list[str], tmp_path: Path
) -> None:
    if isinstance(source, str):
        (tmp_path / "scenario.toml").write_text(source, encoding="utf-8")
        source = tmp_path / "scenario.toml"
    warm_up_for(source, overrides, workers)
    assert bool(warmed) == expected


def test_a_file_that_is_not_there_is_told_of_later(warmed: list[str], tmp_path: Path) -> None:
    warm_up_for(tmp_path / "none.toml")
    assert not warmed


def test_a_run_in_python_does_so_before_it_reads_its_scenario(warmed: list[str]) -> None:
    with pytest.raises(ConfigError):
        edgesim.run({"backend": "workers", "no_such_key": 1})
    assert warmed == ["warm"]


def test_a_worker_that_loads_its_script_does_not(warmed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "is_loading_main", lambda: True)
    warm_up_for({"backend": "workers"})
    assert not warmed
