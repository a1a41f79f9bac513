"""SIGKILL at any instant of a search: the same command goes on, and ends with the same study."""

from __future__ import annotations

import secrets
import shutil
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import edgesim
from tests.calling import TINY, call, names
from tests.end_to_end.test_kills import VICTIMS, Killer, check_answers, check_same
from tests.sizes import full, sized

KILLS = sized(5, 5, 70, rest=3)
STUDY = """
name = "which rate"
base = "scenario.toml"
columns = ["best_accuracy"]
[axes]
seed = [1, 2]
[search]
maximise = ["best_accuracy"]
batch = 2
startup = 2
prune = { at = ["8 s"], after = 2 }
[search.space]
"training.lr" = { low = 1e-5, high = 0.3, log = true }
"selection.count" = { low = 1, high = 3 }
[sizes.quick]
overrides = ["stop.rounds=5"]
"""


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator of the instants of kills: in nightly runs another one each time."""
    seed = sized(1, 2, secrets.randbits(32))
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("scenario.toml").write_text(TINY)
    Path("study.toml").write_text(STUDY)
    return tmp_path


@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_search_killed_at_any_instant_goes_on(here: Path, rng: np.random.Generator) -> None:
    """It is killed up to three times before it is left to come to its end."""
    words = ("study", "optimise", "study.toml", "--trials", "6", "--json")
    alone = call(*words, "--runs", "alone")
    assert alone.code == 0
    expected = {name: edgesim.open(f"alone/{name}") for name in names(here / "alone") if "=" in name}
    trials = Path("alone/trials.json").read_bytes()
    assert len(expected) == 12
    killer = Killer(rng, here, VICTIMS["study"])
    for saves in cycle([(), ("--checkpoint", "1 ns")]):
        for kills in range(4):
            given = (*words, "--runs", "runs", "--workers", "2", *saves)
            code, said = killer.run(*given, kill=kills < 3 and killer.kills < KILLS)
            if code == 2:
                assert said.startswith("error: --workers: a worker process died")
            for name in names(here / "runs") if Path("runs").exists() else []:
                if not name.startswith(".") and "=" in name:
                    check_same(edgesim.open(f"runs/{name}"), expected[name])
            if code == 0:
                break
        assert Path("runs/trials.json").read_bytes() == trials
        left = [name for name in names(here / "runs") if not name.endswith(".lock")]
        assert left == [*expected, "trials.json"]
        check_answers(here / "runs")
        assert call(*words, "--runs", "runs").out == alone.out
        if killer.kills >= KILLS:
            return
        shutil.rmtree(here / "runs")
