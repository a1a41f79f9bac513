"""Plays the federation by edgesim and by the rivals, compares, and writes numbers.json: python -m tests.rivals.compare.

It needs flwr and fluke-fl beside edgesim and its development tools, which nothing else here does:

    pip install flwr==1.41.0 fluke-fl==0.8.1
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from torch import Tensor

from tests.rivals import flower, fluke_fl
from tests.rivals.federation import CASES, Played, chosen, play

FILE = Path(__file__).parent / "numbers.json"
TOLERANCE = 1e-5
Replay = Callable[[str, Played], dict[str, Tensor]]


def main() -> int:
    """Compare all cases with all rivals that have them, and write the file if they agree; return the exit code."""
    entries, worst = [], 0.0
    for name, case in CASES.items():
        played = play(case)
        rivals: list[tuple[str, Replay, bool]] = [
            ("flwr", flower.replay, name in flower.STRATEGIES),
            ("fluke-fl", fluke_fl.replay, name in fluke_fl.METHODS),
        ]
        for rival, replay, has in rivals:
            if not has:
                continue
            theirs = replay(name, played)
            gap = max(float((theirs[n] - ours).abs().max()) for n, ours in played.weights.items())
            worst = max(worst, gap)
            print(f"{name:14} {rival:9} {gap:.1e}", flush=True)
            of = {n: theirs[n] for n in played.weights}
            who = {"method": name, "rival": rival, "version": version(rival), "torch": version("torch")}
            entries.append({**who, "inputs": played.inputs, "first": played.first, "weights": chosen(of)})
    if worst > TOLERANCE:
        print(f"not written: a weight differs by {worst:.1e}, more than {TOLERANCE:.0e}", file=sys.stderr)
        return 1
    FILE.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
