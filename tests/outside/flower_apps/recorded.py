"""The command `edgesim` with notes of what a Flower app's server part sends and gets, and of the seeds of its clients.

Run: python -m tests.outside.flower_apps.recorded FILE flower run APP ...
"""

from __future__ import annotations

import atexit
import pickle
import sys
from collections import Counter
from pathlib import Path

from edgesim.cli.main import main as edgesim
from edgesim.core.app import Call, Called
from edgesim.flower.client import FlowerDevices
from tests.outside.flower_apps.notes import Notes, observe_servers


def observe_clients(notes: Notes) -> None:
    """Note the node ids, and the seed of each call of this process, in the order of each node's calls."""
    calls, called = Counter[int](), FlowerDevices.call

    def observed(self: FlowerDevices, call: Call, state: bytes, seed: int) -> Called:
        node = self.node_ids[call.device]
        notes.nodes = list(self.node_ids)
        calls[node] += 1
        notes.seeds[node, calls[node]] = seed
        return called(self, call, state, seed)

    FlowerDevices.call = observed  # type: ignore[method-assign]


def main() -> None:
    """Run the command that is given, and write the notes when the process ends."""
    file, sys.argv = Path(sys.argv[1]).absolute(), ["edgesim", *sys.argv[2:]]
    notes = observe_servers()
    observe_clients(notes)
    atexit.register(lambda: file.write_bytes(pickle.dumps(notes)))
    edgesim()


if __name__ == "__main__":
    main()
