"""What commands load: nothing that they do not need, told by the modules of a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path

import pytest

from edgesim.files import user_cache
from tests.calling import call
from tests.sizes import full

QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.toml"
_RUN = """
import sys
from edgesim.cli.main import main
for words in {commands!r}:
    sys.argv = ["edgesim", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code
    print("loaded", *sorted(set(sys.modules) & {watched!r}), file=sys.stderr)
"""
TORCH, TRACING = {"torch", "torchvision"}, {"torch._dynamo", "sympy"}


def loaded(*words: object, unwatched: Container[str] = frozenset({"pydantic"})) -> set[str]:
    """Return the modules of interest that a command has loaded at its end."""
    return loaded_by([words], unwatched)[0]


def loaded_by(
    commands: Sequence[Sequence[object]], unwatched: Container[str] = frozenset({"pydantic"})
) -> list[set[str]]:
    """Return the modules of interest that one process has loaded after each of several commands."""
    watched = {module for module in TORCH | TRACING | {"pandas", "pydantic"} if module not in unwatched}
    source = _RUN.format(commands=[[str(word) for word in words] for words in commands], watched=watched)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stderr.splitlines()]
    return [set(names) for told, *names in filter(None, lines) if told == "loaded"]


@pytest.mark.process
@full
def test_what_trains_nothing_loads_no_torch_once_a_profile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path / "cache"))
    assert loaded("validate", QUICKSTART) >= TORCH - {"torchvision"} | TRACING  # which measures the network
    timing = ("--set", "backend=null", "--set", "stop.rounds=2", "--quiet", "--out", tmp_path / "run")
    commands = [
        ("cache", "--user"),
        ("model", "cnn_digits", "--input", "1x8x8"),
        ("validate", QUICKSTART),
        ("run", QUICKSTART, *timing),
    ]
    assert loaded_by(commands) == [set(), set(), set(), {"pandas"}]


@pytest.mark.process
def test_the_list_of_commands_loads_nothing_large() -> None:
    assert loaded("--help", unwatched=()) == set()


@full
@pytest.mark.process
def test_training_with_a_kept_profile_traces_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path / "cache"))
    words = ("run", QUICKSTART, "--set", "stop.rounds=1", "--quiet", "--out")
    assert loaded(*words, tmp_path / "first" / "run") >= TRACING
    assert loaded(*words, tmp_path / "again" / "run") == {"torch", "pandas"}
    assert call("diff", tmp_path / "first" / "run", tmp_path / "again" / "run").out == "identical\n"


def test_the_cache_of_the_user_is_shown_and_removed_but_for_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path))
    assert [row["files"] for row in json.loads(call("cache", "--user", "--json").out)["kept"]] == [0, 0, 0]
    user_cache.keep_table(user_cache.PROFILES, "a network", [1.5])
    (tmp_path / "MNIST").mkdir()
    found = json.loads(call("cache", "--user", "--json").out)
    [file] = (tmp_path / user_cache.PROFILES).iterdir()
    assert found["folder"] == str(tmp_path) and not found["removed"]
    assert found["kept"][0] == {"kind": "profiles", "files": 1, "nbytes": file.stat().st_size}
    assert call("cache", "--user", "--prune").out.endswith("removed\n")
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]


def test_the_cache_lies_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(user_cache.VARIABLE, "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv(user_cache.VARIABLE)
    assert user_cache.cache_folder() == tmp_path / "xdg" / "edgesim"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification of XDG has ignored
    assert user_cache.cache_folder() == tmp_path / ".cache" / "edgesim"
