"""What holds of any run, tried on whole runs of one scenario."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgesim.execution.checkpoint import Checkpoint
from edgesim.execution.result_cache import Answers
from tests.contracts.support import results_of, run
from tests.contracts.test_answers import found
from tests.contracts.test_checkpoint import ALWAYS_S, resumed


def check_whole_runs(scenario_of: Callable[..., Any], folder: Path, timed: bool = True) -> dict[str, Any]:
    """Assert that a second run of four rounds finds all answers, and that one cut off after two ends as the whole one.

    `scenario_of`: gives the scenario, with keys changed. `timed`: and that jobs and rounds are the same without
    training. Returns what `found` does of the first run, whose answers lie in `folder` / "answers".
    """
    whole = scenario_of(stop={"rounds": 4})
    first, _ = found(whole, Answers(folder / "answers"))
    second, again = found(whole, Answers(folder / "answers"))
    assert second == first
    assert again.learner.memo.known > 0
    checkpoint = Checkpoint(folder / "checkpoint", ALWAYS_S, {})
    resumed(scenario_of(stop={"rounds": 2}), checkpoint)
    serial = results_of(run(whole))
    assert results_of(resumed(whole, checkpoint)) == serial
    if timed:
        null = results_of(run(scenario_of(stop={"rounds": 4}, backend="null")))
        assert all(null[table] == serial[table] for table in ("jobs", "rounds", "devices"))
    return first
