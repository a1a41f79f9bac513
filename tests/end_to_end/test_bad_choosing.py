"""Selection rules that cannot work with a fleet, method, protocol or backend are refused in one line before a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.calling import TINY
from tests.end_to_end.test_bad_input import UNTRAINED, Bad, check
from tests.end_to_end.test_bad_physics import keys_of, settings

# TINY has 4 devices in 2 blocks.
selection = partial(keys_of, "selection")
WATCHING = "tests.plugins.watching"
OORT, TIFL, CHOICE = "name='oort', count=2", "name='tifl', count=2", "name='power_of_choice', count=2"

WRONG = {
    "no count": selection("count: is missing", "name='oort'"),
    "more than there are": selection(
        "count: must be at most the 4 devices of the fleet, found 5", "name='bc', count=5"
    ),
    "unknown key": selection("epsilon: unknown key", f"{OORT}, epsilon=0.9"),
    "share above one": selection("explore: must be less than or equal to 1, got 2", f"{OORT}, explore=2"),
    "no pace": selection("pace: must be greater than 0, got 0", f"{OORT}, pace=0"),
    "no quantile": selection("preferred: must be greater than 0, got 0", f"{OORT}, preferred=0"),
    "window of none": selection("window: must be greater than or equal to 1, got 0", f"{OORT}, window=0"),
    "more tiers than devices": selection("tiers: must be at most the 4 devices of the fleet, found 5", TIFL),
    "odd probabilities": selection(
        "probabilities: must have one entry for each of the 2 tiers, found 3",
        f"{TIFL}, tiers=2, probabilities=[1, 1, 1]",
    ),
    "no probability": selection("probabilities: must not all be 0", f"{TIFL}, tiers=2, probabilities=[0, 0]"),
    "negative probability": selection(
        "probabilities.0: must be greater than or equal to 0, got -1", f"{TIFL}, tiers=2, probabilities=[-1, 2]"
    ),
    "odd credits": selection(
        "credits: must have one entry for each of the 2 tiers, found 1", f"{TIFL}, tiers=2, credits=[3]"
    ),
    "too few candidates": selection(
        "candidates: must be from count, 2, to the 4 devices of the fleet, found 1", f"{CHOICE}, candidates=1"
    ),
    "too many candidates": selection(
        "candidates: must be from count, 2, to the 4 devices of the fleet, found 9",
        "name='bc_bn2', count=2, candidates=9",
    ),
    "no deadline": selection("deadline: is missing", "name='fedcs', count=2"),
    "deadline at once": selection("deadline: must be above 0 s, got 0", "name='fedcs', count=2, deadline=0"),
    "no time left for devices": selection(
        "deadline: must be above selecting + aggregating, 1 s + 2 s, got 3 s",
        "name='fedcs', count=2, deadline=3, selecting=1, aggregating=2",
    ),
    "uploads in a heap": selection(
        "uploads: must be 'sequential' or 'parallel', got 'heap'", "name='fedcs', count=2, deadline=1, uploads='heap'"
    ),
    "no slot": selection("upload: is missing", "name='bn2_c', count=2"),
    "no floor": selection("floor: must be greater than 0, got 0", "name='norm_sampling', count=2, floor=0"),
    "reserve above all": selection(
        "reserve: must be less than or equal to 1, got 20", "name='battery_aware', count=2, reserve=20"
    ),
    "weights without rounds": selection(
        "name: norm_sampling works with the protocols deadline, sync, found buffered",
        "name='norm_sampling', count=2",
        "method=fedbuff",
        "protocol={name='buffered', concurrency=2}",
    ),
    "no server": selection(
        "name: round_robin looks at what a server knows; dfedavg has peers, use 'all'",
        "name='round_robin', count=2",
        "method=dfedavg",
        "peers=ring",
    ),
    "nothing trained": Bad(
        "backend.name: selection oort chooses by training results, which null does not have",
        [f"selection={{{OORT}}}", *UNTRAINED],
    ),
    "polls without training": Bad(
        "backend.name: selection pow_d chooses by training results, which null does not have",
        ["selection={name='pow_d', count=2, candidates=3}", *UNTRAINED],
    ),
    "polls with a deadline": selection(
        "name: pow_d works with the protocols sync, found deadline",
        "name='pow_d', count=2, candidates=3",
        "protocol={name='deadline', deadline='3 s'}",
    ),
    "knows too much": selection(
        "name: Odd.needs has 'weather', must be of battery, cell, channel, labels, reports",
        f"name='{WATCHING}:Odd', count=2",
    ),
    "no cell": Bad(
        "network.name: the selection least_time looks at a cell, must be 'cell', found 'fixed'",
        ["selection={name='least_time', count=2}"],
    ),
    "interference of too few blocks": selection(
        "interference_db: must have a number for each of the 2 blocks, found 1",
        "name='packet_error', count=2, interference_db=[3]",
        "network={name='cell', bandwidth='1 MHz', distance_m=100}",
    ),
    "nobody chosen": selection(
        f"name: {WATCHING}:Undecided must have choose(self, idle, known, key), as edgesim.core.selection.Selection",
        f"name='{WATCHING}:Undecided', count=2",
    ),
    "more kept than asked": Bad(
        "protocol.keep: must be at most the 2 devices asked a round, found 3",
        ["selection={name='round_robin', count=2}", "protocol={name='over_selection', keep=3}"],
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario."""
    (tmp_path / "scenario.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("bad", WRONG.values(), ids=WRONG)
def test_an_impossible_choice_is_one_line(here: Path, bad: Bad) -> None:
    """It names the key, says what was found and what is allowed; nothing is written."""
    check(here, ["run", "scenario.toml", "--out", "run", *settings(bad.overrides)], bad.says)
