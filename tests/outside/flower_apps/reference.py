"""Flower's own in-process simulation of an app, one client at a time instead of in Ray's actors.

The node ids, the order of the nodes and of the replies, and the seed of each client call are given, so that its arrays
and metrics can be compared with those of another runner. Everything else is Flower's: its link state, its grid, its
loop that hands messages to a backend, and its loading of the app. Only the backend class is replaced, as Flower has
no other one than Ray's.

Run: python -m tests.outside.flower_apps.reference APP --devices N --out FILE [--notes FILE] [--config "key=value ..."]
"""

from __future__ import annotations

import argparse
import importlib
import pickle
import sys
import types
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import flwr.server.server as server
import flwr.server.superlink.fleet.vce.vce_api as vce
import flwr.server.superlink.linkstate.in_memory_linkstate as link_state
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp.client_app import ClientApp, ClientAppException
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.server.superlink.fleet.vce.backend.backend import Backend
from flwr.supercore.constant import NOOP_FEDERATION_ID
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType
from flwr.superlink.grid import InMemoryGrid

from tests.outside.flower_apps.notes import Notes, kept_generators, observe_servers, seed_all, set_generators

RUN_ID = 1
simulation = importlib.import_module("flwr.simulation.run_simulation")  # its package has a function of this name


class SerialBackend(Backend):
    """Runs client apps in this process, one after the other, each call with the seed that was noted for it."""

    notes = Notes()  # set before Flower makes one

    def __init__(self, backend_config: Any) -> None:
        super().__init__(backend_config)
        self._calls: dict[int, int] = {}

    def build(self, app_fn: Any) -> None:
        """Keep what returns the app."""
        self._app_fn = app_fn

    @property
    def num_workers(self) -> int:
        """One, so that calls never overlap."""
        return 1

    def is_worker_idle(self) -> bool:
        """Whether a call may start: always, as they wait for each other."""
        return True

    def terminate(self) -> None:
        """Do nothing: there are no processes."""

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Return the reply and the context after it. The server's random numbers go on as if it had not run.

        Message and context are copies, as those of Ray's actors are.
        """
        message, context = pickle.loads(pickle.dumps((message, context)))
        node = message.metadata.dst_node_id
        number = self._calls[node] = self._calls.get(node, 0) + 1
        with kept_generators():
            seed_all(self.notes.seed_of(node, number))
            client: ClientApp = self._app_fn()
            try:
                return client(message=message, context=context), context
            except Exception as error:
                raise ClientAppException(str(error)) from error


class OrderedGrid(InMemoryGrid):
    """Flower's grid, whose nodes and replies come in the order that was noted."""

    notes = Notes()

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, ascending. Flower's order is that of a set."""
        return sorted(super().get_node_ids())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies in the order in which the same nodes were noted to reply."""
        replies = {reply.metadata.src_node_id: reply for reply in super().send_and_receive(messages, timeout=timeout)}
        return [replies[node] for node in self.notes.next_order(list(replies))]


class Turns:
    """Thread pool for the clients of Flower's older API that asks one after the other.

    Flower takes their results in the order of a set of futures, which is that of addresses. Here it is the noted one.
    """

    notes = Notes()

    nodes: ClassVar[dict[Future[Any], int]] = {}

    def __init__(self, max_workers: int | None = None) -> None:
        self.nodes.clear()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, ask: Any, client: Any, *words: Any) -> Future[Any]:
        """Ask a client now."""
        future: Future[Any] = Future()
        try:
            future.set_result(ask(client, *words))
        except Exception as error:
            future.set_exception(error)
        self.nodes[future] = client.node_id
        return future

    @classmethod
    def wait(cls, fs: Iterable[Future[Any]], timeout: float | None = None) -> tuple[list[Future[Any]], set[Any]]:
        """Return the futures in the order of the replies."""
        asked = {node: future for future, node in cls.nodes.items() if future in set(fs)}
        return [asked[node] for node in cls.notes.next_order(list(asked))], set()


def _register(nodes: Sequence[int]) -> Any:
    """Return what registers nodes as Flower does, under the given ids."""
    registered = vce._register_nodes

    def register(num_nodes: int, state_factory: Any) -> dict[int, int]:
        wanted, drawn = iter(nodes), link_state.generate_rand_int_from_bytes
        link_state.generate_rand_int_from_bytes = lambda *_, **__: next(wanted)
        try:
            return registered(num_nodes, state_factory)
        finally:
            link_state.generate_rand_int_from_bytes = drawn

    return register


def simulate(app: Path, devices: int, config: str, notes: Notes) -> Notes:
    """Run an app under Flower's simulation; return what its server part sent, got and asked."""
    SerialBackend.notes = OrderedGrid.notes = Turns.notes = notes
    futures = types.SimpleNamespace(ThreadPoolExecutor=Turns, wait=Turns.wait, Future=Future)
    server.concurrent = types.SimpleNamespace(futures=futures)  # type: ignore[attr-defined]
    ray = types.ModuleType("raybackend")
    ray.RayBackend = SerialBackend  # type: ignore[attr-defined]
    sys.modules["flwr.server.superlink.fleet.vce.backend.raybackend"] = ray
    vce._register_nodes = _register(notes.nodes)
    simulation.InMemoryGrid = OrderedGrid
    seen = observe_servers(notes.server_generators)
    torch.set_num_threads(1)
    if notes.server_generators is not None:
        set_generators(notes.server_generators)  # for what the app draws when it is loaded
    override = parse_config_args([config] if config else None)
    run = Run.create_empty(run_id=RUN_ID)
    run.primary_task_id, run.federation_id, run.override_config = 1, NOOP_FEDERATION_ID, override
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, 1
    parts = get_project_config(app)["tool"]["flwr"]["app"]["components"]
    fused = get_fused_config_from_dir(app, override)
    sys.path.insert(0, str(app))
    simulation._run_simulation(
        num_supernodes=devices,
        backend_name="serial",
        server_app_attr=parts["serverapp"],
        client_app_attr=parts["clientapp"],
        server_app_context=Context(RUN_ID, 0, {}, RecordDict(), fused),
        app_dir=str(app),
        run=run,
        is_app=True,
        exit_event=EventType.FLWR_SIMULATION_RUN_LEAVE,
    )
    return seen


def main() -> None:
    """Simulate one app and write what its server part saw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("app", type=Path)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--config", default="")
    parser.add_argument("--notes", type=Path, help="of the run to follow")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    notes = (
        pickle.loads(given.notes.read_bytes()) if given.notes else Notes(nodes=list(range(1001, 1001 + given.devices)))
    )
    given.out.write_bytes(pickle.dumps(simulate(given.app.absolute(), given.devices, given.config, notes)))


if __name__ == "__main__":
    main()
