"""Notes of what an app's server part sends and gets, by which two runners can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch


class Passed(NamedTuple):
    """A message between the server part and a node."""

    node: int
    kind: str
    values: dict[str, Any]


@dataclass
class Notes:
    """A run as its server part saw it."""

    nodes: list[int] = field(default_factory=list)  # in the order of the devices
    seeds: dict[tuple[int, int], int] = field(default_factory=dict)  # of (node, nth call from 1)
    orders: list[list[int]] = field(default_factory=list)  # nodes of the replies of each send_and_receive
    sent: list[Passed] = field(default_factory=list)
    got: list[Passed] = field(default_factory=list)
    server_generators: Any = None  # random states when the server part began
    _next: int = 0

    def seed_of(self, node: int, number: int) -> int:
        """Return the seed of a node's nth call: the noted one, else one made of both."""
        return self.seeds.get((node, number), (node * 1_000_003 + number) % 2**32)

    def next_order(self, replied: list[int]) -> list[int]:
        """Return these nodes in the order of the next noted exchange, if that had the same ones, else as they are."""
        if self._next < len(self.orders) and sorted(self.orders[self._next]) == sorted(replied):
            self._next += 1
            return self.orders[self._next - 1]
        return replied


def seed_all(seed: int) -> None:
    """Seed every global random generator that apps use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def generators() -> Any:
    """Return the states of the global random generators."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def set_generators(states: Any) -> None:
    """Set the global random generators to earlier states."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the global random generators as they were."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)


def observe_servers(begin: Any = None) -> Notes:
    """Note what the server parts of this process do from now on. `begin`: random states for them; None: as they are."""
    from flwr.serverapp import ServerApp

    notes, called = Notes(), ServerApp.__call__

    def observed(self: ServerApp, grid: Any, context: Any) -> None:
        if begin is not None:
            set_generators(begin)
        notes.server_generators = generators()
        _observe(type(grid), notes)
        called(self, grid, context)

    ServerApp.__call__ = observed  # type: ignore[method-assign]
    return notes


def _observe(grid: type, notes: Notes) -> None:
    """Note the messages that pass the methods of a class of grids, those of nested calls once."""
    depth = [0]

    def noted(name: str, first: str, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> None:
        method = getattr(grid, name)

        def call(self: Any, *words: Any, **others: Any) -> Any:
            given = list(words[0] if words else others.pop(first))
            outer, depth[0] = depth[0] == 0, depth[0] + 1
            try:
                if outer:
                    before(given)
                found = list(method(self, given, *words[1:], **others))
                if outer:
                    after(found)
                return found
            finally:
                depth[0] -= 1

        setattr(grid, name, call)

    def sent(messages: Any) -> None:
        notes.sent.extend(_facts(message, message.metadata.dst_node_id) for message in messages)

    def got(messages: Any) -> None:
        notes.got.extend(_facts(message, message.metadata.src_node_id) for message in messages)

    def exchanged(messages: Any) -> None:
        got(messages)
        notes.orders.append([message.metadata.src_node_id for message in messages])

    noted("push_messages", "messages", sent, lambda _: None)
    noted("pull_messages", "message_ids", lambda _: None, got)
    noted("send_and_receive", "messages", sent, exchanged)


def _facts(message: Any, node: int) -> Passed:
    content = _values(message.content) if message.has_content() else {"error": message.error.code}
    return Passed(node, message.metadata.message_type, content)


def _values(content: Any) -> dict[str, Any]:
    """Return the arrays, metrics and settings of a message by the names of record and entry."""
    found: dict[str, Any] = {}
    for record, entries in content.items():
        for name, value in entries.items():
            found[f"{record}/{name}"] = value.numpy() if hasattr(value, "numpy") else value
    return found
