"""A project with golden tables, made once a file of tests and copied for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.calling import TINY, Done, call
from tests.studies.golden_project import GOLDEN, PROGRESS, STUDY


@pytest.fixture(scope="module")
def golden_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with a study of timing only, its runs in runs/ and its golden tables in golden/."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "golden").mkdir()
    for name, text in {"base.toml": TINY, "study.toml": STUDY, "golden/golden.toml": GOLDEN}.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call("study", "run", "study.toml", "--runs", "runs").code == 0
        assert call("check", "golden", "--update") == Done(0, "golden: written, 2 cells\n", PROGRESS)
    return folder


@pytest.fixture
def golden_here(golden_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a copy of that project."""
    shutil.copytree(golden_project, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"
