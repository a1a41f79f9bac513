"""Runs of the small apps over a clock without an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.core.rng import Key
from edgesim.flower import compat
from edgesim.flower.app import FlowerApp
from tests.flower.fake_clock import FakeClock

APPS = Path(__file__).parent / "apps"


class Ran(NamedTuple):
    """A run that has ended."""

    clock: FakeClock
    context: Any  # of the server part


def ran(folder: str | Path, config: dict[str, Any] | None = None, devices: int = 3, seed: int = 0, **fates: Any) -> Ran:
    """Run an app. `fates`: of the clock."""
    code, serve = FlowerApp(path=str(APPS / folder), config=config or {}).open(devices, Key(seed))
    clock, contexts = FakeClock(code, devices, **fates), []
    make: Callable[..., Any] = compat.Context

    def noting(**given: Any) -> Any:
        contexts.append(make(**given))
        return contexts[-1]

    with compat.patched({(compat, "Context"): noting}):
        serve(clock)
    return Ran(clock, next(each for each in contexts if each.node_id == compat.SERVER_NODE))


def app_of(folder: Path, source: str, config: str = "") -> Path:
    """Write an app of one module, `app.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.py").write_text(source)
    (folder / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "app:server"\nclientapp = "app:client"\n'
        f"[tool.flwr.app.config]\n{config}\n"
    )
    return folder


HEAD = """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

def reply(message, **metrics):
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

def messages(nodes, kind="train", **given):
    return [Message(RecordDict({"config": ConfigRecord({"rate": 0.1})}), node, kind, **given) for node in nodes]

@client.train()
def train(message, context):
    return reply(message, partition=context.node_config["partition-id"])

"""
