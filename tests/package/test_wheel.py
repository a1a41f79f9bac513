"""Wheel and source distribution: built from the checkout, installed where nothing of it is at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.conventions.source_tree import PACKAGE, ROOT

pytestmark = pytest.mark.full
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_COPIED = {".git", ".venv", "runs", "build", "dist", "site"}  # folders beside the package
SCENARIO = """
seed = 1
partition = { name = "sizes", samples_per_device = 100 }
model = { name = "cnn_digits" }
training = { batch = 10, lr = 0.1 }
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }
method = { name = "fedavg" }
backend = { name = "null" }
stop = { rounds = 2 }

[[fleet]]
count = 3
profile = "raspberry_pi_4"
"""
Command = Callable[..., str]


def done(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Return what a command prints; a failure shows all that it said."""
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, env=env)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution and the wheel that is built from it, without a network."""
    folder = tmp_path_factory.mktemp("built")
    by_name = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")

    def left_out(path: str, names: list[str]) -> set[str]:
        return by_name(path, names) | (NOT_COPIED if Path(path) == ROOT else set())

    shutil.copytree(ROOT, folder / "copy", ignore=left_out)
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "copy")
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Return the installed `edgesim` of a new environment, started in an empty folder.

    The libraries are those of this environment, behind the new one's own; its .pth files, such as the one that leads to
    the checkout, mean nothing there.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    done(sys.executable, "-m", "pip", "--python", python, "install", *quiet, wheel)
    (own,) = (folder / "venv").glob("lib/python3*/site-packages")
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    here = folder / "elsewhere"
    here.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EDGESIM"))}

    def call(*words: object) -> str:
        return done(python.parent / "edgesim", *words, cwd=here, env=kept)

    where = done(python, "-c", "import edgesim; print(edgesim.__file__)", cwd=here, env=kept)
    assert Path(where.strip()).is_relative_to(own)
    (here / "mine.toml").write_text(SCENARIO)
    return call


def files_of_the_package() -> set[str]:
    """Return all files of the package in the checkout, but for what Python and editors leave there."""
    found = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
    assert inside == files_of_the_package()
    assert "edgesim/py.typed" in inside and any(name.endswith("raspberry_pi_4.toml") for name in inside)


def test_the_wheel_says_licence_and_version(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        said = message_from_bytes(file.read(name))
        assert f"{Path(name).parent}/licenses/LICENSE" in file.namelist()
    assert (said["Name"], said["Version"]) == ("edgesim", PROJECT["version"])
    assert (said["License-Expression"], said["Requires-Python"]) == ("Apache-2.0", PROJECT["requires-python"])


def test_the_source_distribution_has_what_tests_and_pages_need(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    files = {"LICENSE", "CHANGELOG.md", "CITATION.cff", "Makefile", ".ci/run", "scenarios/quickstart.toml"}
    assert files | {"tests/package/test_wheel.py"} | files_of_the_package() <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_it_says_its_version(installed: Command) -> None:
    assert installed("--version") == f"edgesim {PROJECT['version']}\n"


def test_it_lists_its_plug_ins(installed: Command) -> None:
    assert all(word in installed("list") for word in ("fedavg", "dadpfl", "resnet18"))


def test_it_knows_its_devices_and_runs_a_scenario(installed: Command) -> None:
    """The catalogue of devices is read from the package's own files."""
    assert "raspberry_pi_4" in installed("device", "raspberry_pi_4")
    installed("validate", "mine.toml")
    installed("run", "mine.toml", "--out", "run")
    rows = json.loads(installed("table", "run", "--json"))
    assert rows


def test_a_study_builds_on_a_scenario_that_comes_with_it(installed: Command) -> None:
    """In a folder that has nothing else."""
    installed("run", "edgesim:quickstart", "--set", "backend=null", "--set", "stop.rounds=2", "--out", "first")
    assert json.loads(installed("table", "first", "--json"))["runs"][0]["rounds"] == 2
